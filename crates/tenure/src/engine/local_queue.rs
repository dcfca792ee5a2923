//! `LocalQueues`: the waiters of this process that the store has not heard of yet.
//!
//! Some stores pay for each place at each change of owner. There only so many waiters of one process have a place in the
//! store's queue for a lock (`Promises::places`). The others wait in a queue of the process, and the store hears of
//! them in the order in which they came (L7).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{BackendError, HolderView, Host, LockName, Moment, locked};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For so long a failure is told to those who come next: otherwise a store that is down would be tried by a few waiters at
/// a time.
const TROUBLE: Duration = Duration::from_secs(5);

/// An admitted waiter asks the store far more often than this. If none has asked for so long, their futures are not polled
/// any more, and others are admitted.
const SILENCE: Duration = Duration::from_secs(60);

/// The queues of all locks.
pub(crate) struct LocalQueues {
    places: Option<usize>,
    queues: Mutex<HashMap<LockName, Arc<Queue>>>,
}

struct Queue {
    /// As many permits as there may be places in the store. Fair: waiters are admitted as they came.
    admission: Arc<Semaphore>,
    /// The numbers of all waiters of this process, admitted or not.
    waiters: Mutex<BTreeSet<u64>>,
    heard: Mutex<Heard>,
}

/// What the store last said to an admitted waiter.
struct Heard {
    at: Moment,
    holder: Option<HolderView>,
    failed: Option<(Moment, BackendError)>,
}

/// One waiter in a local queue. When it is dropped, the next one is admitted.
pub(crate) struct LocalWaiter<'a> {
    queues: &'a LocalQueues,
    name: LockName,
    queue: Arc<Queue>,
    number: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl LocalQueues {
    /// So many waiters of the process may have places in the store; `None`: all.
    pub(crate) fn new(places: Option<usize>) -> Self {
        Self { places, queues: Mutex::default() }
    }

    /// Joins the queue of this lock, where the store wants one.
    pub(crate) fn join(&self, name: &LockName, now: Moment) -> Option<LocalWaiter<'_>> {
        let places = self.places?;
        let new = || {
            let heard = Mutex::new(Heard { at: now, holder: None, failed: None });
            Arc::new(Queue { admission: Arc::new(Semaphore::new(places)), waiters: Mutex::default(), heard })
        };
        let queue = locked(&self.queues).entry(name.clone()).or_insert_with(new).clone();
        let number = {
            let mut waiters = locked(&queue.waiters);
            let number = waiters.last().map_or(0, |last| last + 1);
            waiters.insert(number);
            number
        };
        Some(LocalWaiter { queues: self, name: name.clone(), queue, number, permit: None })
    }
}

impl LocalWaiter<'_> {
    /// Admitted at once, if there is a place left and no other waiter is before it.
    pub(crate) fn is_admitted(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.queue.admission.clone().try_acquire_owned().ok();
        }
        self.permit.is_some()
    }

    /// Waits until it is admitted.
    ///
    /// # Cancel safety
    /// A waiter that stops waiting leaves its turn to the next one.
    pub(crate) async fn admitted(&mut self, host: &dyn Host) {
        let permit = self.queue.admission.clone().acquire_owned();
        tokio::pin!(permit);
        self.permit = loop {
            let silent = locked(&self.queue.heard).at + SILENCE;
            tokio::select! {
                biased;
                permit = &mut permit => break permit.ok(),
                () = host.sleep_until(silent) => self.admit_more_if_silent(host.now()),
            }
        };
    }

    fn admit_more_if_silent(&self, now: Moment) {
        let mut heard = locked(&self.queue.heard);
        if heard.at.elapsed(now) >= SILENCE {
            heard.at = now;
            self.queue.admission.add_permits(self.queues.places.unwrap_or_default());
        }
    }

    /// An admitted waiter has asked. `holder`: who holds, if the store answered.
    pub(crate) fn on_answer(&self, now: Moment, holder: Option<Option<&HolderView>>) {
        let mut heard = locked(&self.queue.heard);
        heard.at = now;
        if let Some(holder) = holder {
            (heard.holder, heard.failed) = (holder.cloned(), None);
        }
    }

    /// The store failed for longer than a waiter's patience.
    pub(crate) fn on_failure(&self, now: Moment, error: &BackendError) {
        if error.kind().is_transient() {
            locked(&self.queue.heard).failed = Some((now, error.clone()));
        }
    }

    /// How many waiters of this process are before it.
    pub(crate) fn ahead(&self) -> usize {
        locked(&self.queue.waiters).range(..self.number).count()
    }

    /// Who holds, as the store last said to an admitted waiter.
    pub(crate) fn holder(&self) -> Option<HolderView> {
        locked(&self.queue.heard).holder.clone()
    }

    /// What failed for an admitted waiter a moment ago.
    pub(crate) fn failed(&self, now: Moment) -> Option<BackendError> {
        let heard = locked(&self.queue.heard);
        heard
            .failed
            .as_ref()
            .filter(|(since, _)| since.elapsed(now) < TROUBLE)
            .map(|(_, error)| error.clone())
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        locked(&self.queue.waiters).remove(&self.number);
        let mut queues = locked(&self.queues.queues);
        // One is the map's, one is ours; others come by the map alone.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.name);
        }
    }
}
