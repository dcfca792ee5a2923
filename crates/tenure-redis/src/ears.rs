//! `Ears`: where what Redis pushes to this process is heard.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{PushInfo, PushKind, Value};
use tenure_core::{Audience, Bells, Host, Moment, OwnerId, ProcessId, Ringing};
use tokio::sync::Notify;

use tenure_client::{End, locked};

/// Delayed hints that are kept; the oldest are dropped, for they are the likeliest to be over.
const KEPT: usize = 1024;

/// Where what was pushed is heard. Shared by the connections of one handle.
pub(crate) struct Ears {
    host: Arc<dyn Host>,
    bells: Bells,
    /// The channels that somebody here listens to.
    channels: Mutex<Vec<(ProcessId, Audience)>>,
    /// Hints to those who are behind the next holder: they need not ask before its claim ttl is over.
    later: Mutex<VecDeque<(Moment, OwnerId)>>,
    pub(crate) later_added: Notify,
    claim_ttl: Duration,
}

impl Ears {
    pub(crate) fn new(host: Arc<dyn Host>, claim_ttl: Duration) -> Self {
        Self {
            host,
            bells: Bells::default(),
            channels: Mutex::default(),
            later: Mutex::default(),
            later_added: Notify::new(),
            claim_ttl,
        }
    }

    /// All channels, in the order in which they were wanted.
    pub(crate) fn channels(&self) -> Vec<String> {
        locked(&self.channels).iter().map(|&(process, audience)| channel(process, audience)).collect()
    }

    pub(crate) fn channel_count(&self) -> usize {
        locked(&self.channels).len()
    }

    /// From now on the channel of this process is one of them.
    pub(crate) fn listen(&self, process: ProcessId, audience: Audience) -> Ringing {
        let ringing = self.bells.listen(process, audience);
        let mut channels = locked(&self.channels);
        if !channels.contains(&(process, audience)) {
            channels.push((process, audience));
        }
        ringing
    }

    /// Hints may have been missed: everybody must ask again.
    pub(crate) fn ring_all(&self) {
        for &(process, audience) in locked(&self.channels).iter() {
            self.bells.ring_all(process, audience);
        }
    }

    /// What came over a connection, which perhaps is over.
    pub(crate) fn on_push(&self, push: PushInfo, end: &End) {
        match push.kind {
            PushKind::Disconnection => {
                if end.set() {
                    self.ring_all();
                }
            }
            PushKind::Message => {
                if let [Value::BulkString(channel), Value::BulkString(text)] = push.data.as_slice() {
                    self.on_message(channel, text);
                }
            }
            _ => {}
        }
    }

    /// `tenure:p:<process>` and a letter with the claim part of an owner. Anything else is somebody's joke.
    pub(crate) fn on_message(&self, channel: &[u8], text: &[u8]) {
        let Some((audience, process)) = read_channel(channel) else { return };
        let Some((kind, claim)) = std::str::from_utf8(text).ok().and_then(|text| text.split_at_checked(1))
        else {
            return;
        };
        let Ok(owner) = format!("{process}{claim}").parse::<OwnerId>() else { return };
        if kind == "b" {
            let mut later = locked(&self.later);
            if later.len() == KEPT {
                later.pop_front();
            }
            later.push_back((self.host.now() + self.claim_ttl, owner));
            self.later_added.notify_one();
        } else {
            self.bells.ring(audience, owner);
        }
    }

    pub(crate) fn next_later(&self) -> Option<Moment> {
        locked(&self.later).front().map(|(due, _)| *due)
    }

    pub(crate) fn ring_later(&self) {
        let now = self.host.now();
        let mut later = locked(&self.later);
        while let Some((_, owner)) = later.pop_front_if(|(due, _)| due.is_over(now)) {
            self.bells.ring(Audience::Waiters, owner);
        }
    }
}

fn channel(process: ProcessId, audience: Audience) -> String {
    match audience {
        Audience::Waiters => format!("tenure:p:{process}"),
        Audience::Holders => format!("tenure:h:{process}"),
    }
}

fn read_channel(channel: &[u8]) -> Option<(Audience, &str)> {
    let text = std::str::from_utf8(channel).ok()?;
    match text.split_at_checked("tenure:p:".len())? {
        ("tenure:p:", process) => Some((Audience::Waiters, process)),
        ("tenure:h:", process) => Some((Audience::Holders, process)),
        _ => None,
    }
}
