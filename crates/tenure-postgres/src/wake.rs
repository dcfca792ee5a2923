//! Hints: rung in this process at once, told to others by NOTIFY.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{Audience, Bells, OwnerId, ProcessId, Ringing, Wake, Wakes};

use crate::{memory::locked, store::Store};

/// Where what the server pushes is heard. Shared by the connections of one handle.
pub(crate) struct Ears {
    bells: Bells,
    heard: Mutex<Vec<(ProcessId, Audience)>>,
    /// How many processes that are.
    count: AtomicUsize,
}

impl Ears {
    pub(crate) fn new(bells: Bells) -> Self {
        Self { bells, heard: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// The channel of a process.
    pub(crate) fn channel(process: ProcessId) -> String {
        format!("tenure_{process}")
    }

    /// What is said in it.
    pub(crate) fn hint(audience: Audience, owner: OwnerId) -> String {
        let letter = match audience {
            Audience::Waiters => 'w',
            Audience::Holders => 'h',
        };
        format!("{letter}{owner}")
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn processes(&self) -> Vec<ProcessId> {
        let mut processes: Vec<ProcessId> = Vec::new();
        for (process, _) in locked(&self.heard).iter() {
            if !processes.contains(process) {
                processes.push(*process);
            }
        }
        processes
    }

    fn hear(&self, process: ProcessId, audience: Audience) -> Ringing {
        let ringing = self.bells.listen(process, audience);
        let mut heard = locked(&self.heard);
        if !heard.contains(&(process, audience)) {
            if !heard.iter().any(|(known, _)| *known == process) {
                self.count.fetch_add(1, Ordering::AcqRel);
            }
            heard.push((process, audience));
        }
        ringing
    }

    /// Anything but a hint of ours is somebody's joke.
    pub(crate) fn on_notification(&self, channel: &str, text: &str) {
        let audience = match text.as_bytes().first() {
            Some(b'w') => Audience::Waiters,
            Some(b'h') => Audience::Holders,
            _ => return,
        };
        let Ok(owner) = text[1..].parse::<OwnerId>() else { return };
        let is_ours = locked(&self.heard).contains(&(owner.process(), audience));
        if is_ours && Self::channel(owner.process()) == channel {
            self.bells.ring(audience, owner);
        }
    }

    /// Hints may have been missed.
    pub(crate) fn ring_all(&self) {
        for (process, audience) in locked(&self.heard).iter() {
            self.bells.ring_all(*process, *audience);
        }
    }
}

/// The stream of hints of one process.
pub(crate) struct Hints {
    store: Arc<Store>,
    ringing: Ringing,
}

/// Pause after a connection that could not be made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);

impl Hints {
    pub(crate) fn new(store: Arc<Store>, process: ProcessId, audience: Audience) -> Self {
        let ringing = store.ears.hear(process, audience);
        Self { store, ringing }
    }
}

/// Keeps a connection that brings hints, where there can be one; never ends.
async fn listen(store: &Store) {
    let Some(lines) = store.hint_lines() else { return std::future::pending().await };
    let host = &store.shared().host;
    loop {
        match lines.listening().await {
            // One that brings none ends as well, and the next may bring them.
            Ok(line) => {
                let end = line.end();
                drop(line);
                end.wait().await;
                store.ears.ring_all();
            }
            Err(error) => {
                tracing::debug!(%error, "no hints are heard");
                host.sleep_until(host.now() + RECONNECT).await;
            }
        }
    }
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        tokio::select! {
            biased;
            wake = self.ringing.next() => wake,
            () = listen(&self.store) => unreachable!("BUG: listening never ends"),
        }
    }
}
