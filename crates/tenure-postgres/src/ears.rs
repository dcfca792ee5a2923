//! `Ears`: where what the server pushes is heard, and rung in this process.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure_core::{Audience, Bells, Host, OwnerId, ProcessId, Ringing};

use tenure_client::locked;

/// Where what the server pushes is heard. Shared by the connections of one handle.
pub(crate) struct Ears {
    bells: Bells,
    host: Arc<dyn Host>,
    claim_ttl: Duration,
    heard: Mutex<Vec<(ProcessId, Audience)>>,
    /// How many processes that are.
    count: AtomicUsize,
    /// Who is told when the turn ahead of it is over.
    later: Arc<Mutex<HashSet<OwnerId>>>,
}

impl Ears {
    pub(crate) fn new(bells: Bells, host: Arc<dyn Host>, claim_ttl: Duration) -> Self {
        let (heard, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { bells, host, claim_ttl, heard, count, later: Arc::default() }
    }

    /// The channel of a process.
    pub(crate) fn channel(process: ProcessId) -> String {
        format!("tenure_{process}")
    }

    /// What is said in it.
    pub(crate) fn hint(audience: Audience, owner: OwnerId, behind: Option<OwnerId>) -> String {
        let letter = match audience {
            Audience::Waiters if behind == Some(owner) => 'b',
            Audience::Waiters => 'w',
            Audience::Holders => 'h',
        };
        format!("{letter}{owner}")
    }

    /// Rings for owners of this process. Who stands behind the next holder need not ask before that one's turn is over, and would
    /// only race it.
    pub(crate) fn ring(&self, audience: Audience, owner: OwnerId, is_behind: bool) {
        if !is_behind {
            locked(&self.later).remove(&owner);
            self.bells.ring(audience, owner);
            return;
        }
        let mut later = locked(&self.later);
        if later.len() >= LATER_MAX || !self.bells.reach(audience, owner) || !later.insert(owner) {
            return;
        }
        drop(later);
        let (bells, mut later) =
            (self.bells.clone(), Later { owners: self.later.clone(), owner, is_over: false });
        let over = self.host.sleep_until(self.host.now() + self.claim_ttl);
        self.host.spawn(Box::pin(async move {
            over.await;
            // Unless its own turn has come meanwhile.
            if later.take() {
                bells.ring(audience, owner);
            }
        }));
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

    pub(crate) fn hear(&self, process: ProcessId, audience: Audience) -> Ringing {
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
        let (audience, is_behind) = match text.as_bytes().first() {
            Some(b'w') => (Audience::Waiters, false),
            Some(b'b') => (Audience::Waiters, true),
            Some(b'h') => (Audience::Holders, false),
            _ => return,
        };
        let Ok(owner) = text[1..].parse::<OwnerId>() else { return };
        let is_ours = locked(&self.heard).contains(&(owner.process(), audience));
        if is_ours && Self::channel(owner.process()) == channel {
            self.ring(audience, owner, is_behind);
        }
    }

    /// Hints may have been missed.
    pub(crate) fn ring_all(&self) {
        for (process, audience) in locked(&self.heard).iter() {
            self.bells.ring_all(*process, *audience);
        }
    }
}

/// One that is told later; also if the task that would do so is dropped, as with its runtime, it waits no more.
struct Later {
    owners: Arc<Mutex<HashSet<OwnerId>>>,
    owner: OwnerId,
    is_over: bool,
}

impl Later {
    /// True unless somebody else has taken it before.
    fn take(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.is_over, true);
        is_first && locked(&self.owners).remove(&self.owner)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.take();
    }
}

/// More are dropped: a hint may always be lost.
const LATER_MAX: usize = 1024;
