//! Settings of a lock, and the progress of its wait.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{BackendError, HolderView, Label, LockName, Moment, OwnerId, Priority, locked};

/// How long the store may fail in a row while a caller waits without a limit: 30 s, longer than a failover and
/// shorter than a person waits without news.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How the waiters of one process queue for a lock where the store mints tokens in blocks. Such a store also grants
/// tokens for the waiters behind the first one, so that they can share its lease. Only the first needs a place in
/// the store's queue. Where a token belongs to a place ([`Minting::Place`](tenure_core::Minting::Place)), each
/// waiter needs its own place and its own lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalQueueing {
    /// No local queue: each waiter asks the store, which has places for all.
    Off,
    /// Only the first waiter asks the store.
    Fifo,
    /// The same, and a holder passes its lease on to the next waiter.
    HandOver,
}

/// Settings of a lock. Every default has its reason.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// `None`: [`Promises::default_ttl`](tenure_core::Promises::default_ttl).
    pub(crate) ttl: Option<Duration>,
    /// Never: work ends when it ends.
    pub(crate) max_hold: Option<Duration>,
    /// How long the lock stays taken after a guard that was dropped; `None`: it is released.
    pub(crate) linger: Option<Duration>,
    /// How long the lock stays taken from when it was acquired, even if it is released before.
    pub(crate) min_hold: Option<Duration>,
    /// How long to wait; `None`: without a limit.
    pub(crate) within: Option<Duration>,
    /// `None`: as long as the caller waits, and [`PATIENCE`] if it waits without a limit.
    pub(crate) patience: Option<Duration>,
    pub(crate) label: Arc<Label>,
    pub(crate) progress: Option<Progress>,
    pub(crate) queueing: LocalQueueing,
    /// How long an idle lease is kept; `None`: not at all.
    pub(crate) idle: Option<Duration>,
    /// `None`: a new one for every claim.
    pub(crate) owner: Option<OwnerId>,
    /// Its class in the queue.
    pub(crate) priority: Priority,
    /// Whether it gives way to a newer client; `None`: it does not.
    pub(crate) newest: Option<Newest>,
    /// Where the store can see it: waiters see the process, so they need not wait for the ttl.
    pub(crate) free_at_death: bool,
}

impl Options {
    pub(crate) fn new(label: Arc<Label>) -> Self {
        Self {
            ttl: None,
            max_hold: None,
            linger: None,
            min_hold: None,
            within: None,
            patience: None,
            label,
            progress: None,
            queueing: LocalQueueing::Off,
            owner: None,
            idle: None,
            priority: Priority::Normal,
            newest: None,
            free_at_death: true,
        }
    }

    /// A lease with a chosen owner is for any process that knows the owner, and one that lingers outlives its process.
    pub(crate) fn ends_with_process(&self) -> bool {
        self.free_at_death && self.owner.is_none() && self.linger.is_none()
    }

    /// Sets the marks of the label by these options. Other processes read them.
    pub(crate) fn mark_label(&mut self) {
        let marked = |label: &Label| {
            let (latest, replaces) = (self.newest.is_some(), self.newest == Some(Newest::Replaces));
            label.clone().idling(self.idle.is_some()).giving_way(latest, replaces)
        };
        let label = marked(&self.label);
        if label != *self.label {
            self.label = Arc::new(label);
        }
    }
}

/// What a client that gives way to a newer one does about the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newest {
    /// Waits for it.
    Waits,
    /// Asks it to stop.
    Replaces,
}

/// The last answer to a waiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitStatus {
    /// How many waiters are ahead in the queue; `None` before the first answer.
    pub ahead: Option<usize>,
    /// One of the holders.
    pub holder: Option<HolderView>,
    /// The error, if the store is failing at present.
    pub failing: Option<BackendError>,
}

/// Shows the progress of a wait. Pass it to [`Lock::progress`](crate::Lock::progress), and read it from another
/// task.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = tenure::connect("memory:").await?;
/// let guard = locks.mutex("nightly").acquire().await?;
/// let progress = tenure::Progress::new();
/// let refused = locks.mutex("nightly").progress(&progress).within(Duration::from_millis(20)).acquire().await;
/// assert!(refused.is_err() && progress.latest().is_some_and(|waiting| waiting.holder.is_some()));
/// # guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<ProgressState>>);

#[derive(Debug, Default)]
struct ProgressState {
    name: Option<LockName>,
    latest: Option<WaitStatus>,
    unanswered_since: Option<Moment>,
}

impl Progress {
    /// Shows no wait yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The last answer to the waiter; `None` before it has had to wait.
    pub fn latest(&self) -> Option<WaitStatus> {
        locked(&self.0).latest.clone()
    }

    /// The lock of the last request, which is one of [several](crate::Locker::all); `None` before the first
    /// request.
    pub fn name(&self) -> Option<LockName> {
        locked(&self.0).name.clone()
    }

    /// When the oldest request without an answer was sent, or the first of those that failed in a row; `None` while
    /// the store answers. It shows a store that hangs before the request times out.
    pub fn unanswered_since(&self) -> Option<Moment> {
        locked(&self.0).unanswered_since
    }

    /// Shows the answer of the store, or that it failed once more.
    pub(crate) fn show(&self, waiting: WaitStatus) {
        let mut state = locked(&self.0);
        if waiting.failing.is_none() {
            state.unanswered_since = None;
        }
        state.latest = Some(waiting);
    }

    /// An acquisition begins: earlier requests without an answer do not count.
    pub(crate) fn begin(&self, name: &LockName) {
        let mut state = locked(&self.0);
        (state.name, state.unanswered_since) = (Some(name.clone()), None);
        state.latest.iter_mut().for_each(|latest| latest.failing = None);
    }

    /// A request was sent.
    pub(crate) fn on_sent(&self, now: Moment) {
        locked(&self.0).unanswered_since.get_or_insert(now);
    }

    /// The request has no answer yet, because of this error.
    pub(crate) fn on_trouble(&self, error: &BackendError) {
        let nothing = || WaitStatus { ahead: None, holder: None, failing: None };
        locked(&self.0).latest.get_or_insert_with(nothing).failing = Some(error.clone());
    }
}
