//! `Waiters`: brings hints to those who wait.

use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::HashMap;
use tenure_core::{Audience, Backend, OwnerId, ProcessId, Wake, Wakes, locked};
use tokio::sync::Notify;

/// The waiters of one process. One of them reads the stream of hints for all, while it waits itself: so the stream
/// needs no task, is read only while somebody waits, and dies with no runtime.
pub(crate) struct Waiters {
    bells: Mutex<HashMap<OwnerId, Arc<Notify>>>,
    stream: tokio::sync::Mutex<Box<dyn Wakes>>,
}

/// Where the hints for one waiter arrive; it ends when it is dropped.
pub(crate) struct Subscription<'a> {
    waiters: &'a Waiters,
    owner: OwnerId,
    bell: Arc<Notify>,
}

impl Waiters {
    pub(crate) fn new(backend: &dyn Backend, process: ProcessId) -> Self {
        let stream = tokio::sync::Mutex::new(backend.wakes(process, Audience::Waiters));
        Self { bells: Mutex::default(), stream }
    }

    /// To be made before the claim is sent, so that no hint comes too early.
    pub(crate) fn subscribe(&self, owner: OwnerId) -> Subscription<'_> {
        let bell = Arc::new(Notify::new());
        self.bells().insert(owner, bell.clone());
        Subscription { waiters: self, owner, bell }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Notify>>> {
        // OK because a map is whole whenever code that can panic runs.
        locked(&self.bells)
    }

    /// Brings a hint to those it is for. Not to the `reader`, who knows: a bell that it found later would make it ask
    /// twice.
    fn ring(&self, wake: Wake, reader: OwnerId) {
        let bells = self.bells();
        match wake {
            Wake::Owner(woken) if woken == reader => {}
            Wake::Owner(woken) => bells.get(&woken).into_iter().for_each(|bell| bell.notify_one()),
            Wake::All => {
                bells.iter().filter(|&(&owner, _)| owner != reader).for_each(|(_, bell)| bell.notify_one());
            }
        }
    }
}

impl Subscription<'_> {
    /// Waits for a hint to this owner, and meanwhile brings the others theirs.
    ///
    /// # Cancel safety
    /// No hint is lost: one that was read has been delivered, and a bell that was rung stays rung.
    pub(crate) async fn woken(&self) {
        let read_for_all = async {
            let mut stream = self.waiters.stream.lock().await;
            loop {
                let wake = stream.next().await;
                self.waiters.ring(wake, self.owner);
                if wake == Wake::Owner(self.owner) || wake == Wake::All {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.bell.notified() => {}
            () = read_for_all => {}
        }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        self.waiters.bells().remove(&self.owner);
    }
}
