//! `Waiters`: delivers hints to the waiters of this process.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{Audience, Backend, Host, OwnerId, ProcessId, WakeEvent, WakeStream, locked};
use tokio::sync::Notify;

/// How long the stream is polled after the last waiter has left: a waiter that follows soon wakes no thread.
const LINGER: Duration = Duration::from_secs(1);

/// The waiters of one process. The task that receives a hint notifies its waiter; no waiter depends on another one.
/// Where a store must be polled for hints, the keeper's thread polls it while there are waiters.
pub(crate) struct Waiters {
    owners: Arc<OwnerWakers>,
    /// Here while the keeper's thread does not have it.
    stream: Mutex<Option<Box<dyn WakeStream>>>,
    waiting: AtomicUsize,
    /// The stream is polled.
    is_polled: AtomicBool,
    began: Notify,
}

/// The wakers of the waiters.
#[derive(Default)]
struct OwnerWakers(Mutex<HashMap<OwnerId, Arc<Notify>>>);

/// The hints for one waiter; they end when it is dropped.
pub(crate) struct Subscription<'a> {
    waiters: &'a Waiters,
    owner: OwnerId,
    notify: Arc<Notify>,
}

/// Counts as a waiter.
struct CountedWaiter<'a>(&'a Waiters);

/// The stream, while the keeper's thread has it.
struct Polling<'a> {
    waiters: &'a Waiters,
    stream: Option<Box<dyn WakeStream>>,
}

impl OwnerWakers {
    fn notify(&self, wake: WakeEvent) {
        // OK because a map is consistent whenever code that can panic runs.
        let owners = locked(&self.0);
        match wake {
            WakeEvent::Owner(owner) => owners.get(&owner).into_iter().for_each(|notify| notify.notify_one()),
            WakeEvent::All => owners.values().for_each(|notify| notify.notify_one()),
        }
    }
}

impl Waiters {
    pub(crate) fn new(backend: &dyn Backend, process: ProcessId) -> Self {
        let owners = Arc::<OwnerWakers>::default();
        let mut stream = backend.wakes(process, Audience::Waiters);
        stream.forward(Arc::new({
            let owners = owners.clone();
            move |wake| owners.notify(wake)
        }));
        Self {
            owners,
            stream: Mutex::new(Some(stream)),
            waiting: AtomicUsize::new(0),
            is_polled: AtomicBool::new(false),
            began: Notify::new(),
        }
    }

    /// Call it before the claim is sent, so that no hint comes too early.
    pub(crate) fn subscribe(&self, owner: OwnerId) -> Subscription<'_> {
        let notify = Arc::new(Notify::new());
        locked(&self.owners.0).insert(owner, notify.clone());
        Subscription { waiters: self, owner, notify }
    }

    /// Polls the stream of hints while there are waiters. On the keeper's thread.
    pub(crate) async fn listen(&self, host: &dyn Host) {
        let stream = locked(&self.stream).take();
        let mut polling = Polling { waiters: self, stream };
        let Some(stream) = polling.stream.as_mut() else { return pending().await };
        loop {
            while !self.has_waiters() {
                self.began.notified().await;
            }
            self.is_polled.store(true, Ordering::SeqCst);
            let bring = async {
                loop {
                    self.owners.notify(stream.next().await);
                }
            };
            tokio::pin!(bring);
            while self.has_waiters() {
                tokio::select! {
                    biased;
                    () = &mut bring => {}
                    () = host.sleep_until(host.now() + LINGER) => {}
                }
            }
            // A waiter that comes after this store sees it, and one that came before is seen here.
            self.is_polled.store(false, Ordering::SeqCst);
        }
    }

    /// The number of claims that wait for hints.
    pub(crate) fn len(&self) -> usize {
        locked(&self.owners.0).len()
    }

    fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.waiters.is_polled.store(false, Ordering::SeqCst);
        *locked(&self.waiters.stream) = self.stream.take();
    }
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Subscription<'_> {
    /// Waits for a hint to this owner.
    ///
    /// # Cancel safety
    /// No hint is lost: a notification stays until it is read.
    pub(crate) async fn woken(&self) {
        let waiters = self.waiters;
        waiters.waiting.fetch_add(1, Ordering::SeqCst);
        let _counted = CountedWaiter(waiters);
        if !waiters.is_polled.load(Ordering::SeqCst) {
            waiters.began.notify_one();
        }
        self.notify.notified().await;
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        locked(&self.waiters.owners.0).remove(&self.owner);
    }
}
