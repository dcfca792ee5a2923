//! `Waiters`: brings hints to those who wait.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{Audience, Backend, Host, OwnerId, ProcessId, Wake, Wakes, locked};
use tokio::sync::Notify;

/// The stream is polled for so long after the last waiter has gone: one that comes soon wakes no thread.
const LINGER: Duration = Duration::from_secs(1);

/// The waiters of one process. The task that receives a hint notifies its waiter; no waiter depends on another one. What a store
/// finds only by looking, the keeper's thread looks for while there are waiters.
pub(crate) struct Waiters {
    bells: Arc<Bells>,
    /// Until the keeper's thread takes it, and where it puts it back.
    stream: Mutex<Option<Box<dyn Wakes>>>,
    waiting: AtomicUsize,
    /// The stream is polled.
    is_polled: AtomicBool,
    began: Notify,
}

#[derive(Default)]
struct Bells(Mutex<HashMap<OwnerId, Arc<Notify>>>);

/// Where the hints for one waiter arrive; it ends when it is dropped.
pub(crate) struct Subscription<'a> {
    waiters: &'a Waiters,
    owner: OwnerId,
    bell: Arc<Notify>,
}

/// Counts as a waiter.
struct Waiting<'a>(&'a Waiters);

/// The stream, in the hands of the keeper's thread.
struct Polling<'a> {
    waiters: &'a Waiters,
    stream: Option<Box<dyn Wakes>>,
}

impl Bells {
    fn notify(&self, wake: Wake) {
        // OK because a map is whole whenever code that can panic runs.
        let bells = locked(&self.0);
        match wake {
            Wake::Owner(woken) => bells.get(&woken).into_iter().for_each(|bell| bell.notify_one()),
            Wake::All => bells.values().for_each(|bell| bell.notify_one()),
        }
    }
}

impl Waiters {
    pub(crate) fn new(backend: &dyn Backend, process: ProcessId) -> Self {
        let bells = Arc::<Bells>::default();
        let mut stream = backend.wakes(process, Audience::Waiters);
        stream.forward(Arc::new({
            let bells = bells.clone();
            move |wake| bells.notify(wake)
        }));
        Self {
            bells,
            stream: Mutex::new(Some(stream)),
            waiting: AtomicUsize::new(0),
            is_polled: AtomicBool::new(false),
            began: Notify::new(),
        }
    }

    /// To be made before the claim is sent, so that no hint comes too early.
    pub(crate) fn subscribe(&self, owner: OwnerId) -> Subscription<'_> {
        let bell = Arc::new(Notify::new());
        locked(&self.bells.0).insert(owner, bell.clone());
        Subscription { waiters: self, owner, bell }
    }

    /// Polls the stream of hints while somebody waits. On the keeper's thread.
    pub(crate) async fn listen(&self, host: &dyn Host) {
        let stream = locked(&self.stream).take();
        let mut polling = Polling { waiters: self, stream };
        let Some(stream) = polling.stream.as_mut() else { return pending().await };
        loop {
            while !self.is_anybody_waiting() {
                self.began.notified().await;
            }
            self.is_polled.store(true, Ordering::SeqCst);
            let bring = async {
                loop {
                    self.bells.notify(stream.next().await);
                }
            };
            tokio::pin!(bring);
            while self.is_anybody_waiting() {
                tokio::select! {
                    biased;
                    () = &mut bring => {}
                    () = host.sleep_until(host.now() + LINGER) => {}
                }
            }
            // A waiter that comes from here on sees it, and one that came before is seen.
            self.is_polled.store(false, Ordering::SeqCst);
        }
    }

    fn is_anybody_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.waiters.is_polled.store(false, Ordering::SeqCst);
        *locked(&self.waiters.stream) = self.stream.take();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Subscription<'_> {
    /// Waits for a hint to this owner.
    ///
    /// # Cancel safety
    /// No hint is lost: a bell that was rung stays rung.
    pub(crate) async fn woken(&self) {
        let waiters = self.waiters;
        waiters.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(waiters);
        if !waiters.is_polled.load(Ordering::SeqCst) {
            waiters.began.notify_one();
        }
        self.bell.notified().await;
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        locked(&self.waiters.bells.0).remove(&self.owner);
    }
}
