//! `Slot`: the one place that a handle has among the connections of its server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, Moment, locked};
use tokio::sync::oneshot;

use crate::End;

/// The one place that a handle has among the connections of its server.
///
/// The task that has the socket owns it, from before the socket is opened until it is closed. A server that waits for a
/// lock does not notice that its client has closed the socket. So a connection that is left stays until its statement is
/// answered, and has no successor before. [`overdue`](Self::overdue) bounds that.
///
/// # Dropping
/// The place is free: the next connection may be opened.
pub struct Slot {
    slots: Arc<Slots>,
    closed: Arc<End>,
}

/// The slots that a handle has had, one after the other.
pub(crate) struct Slots {
    host: Arc<dyn Host>,
    /// Of the slot that was taken last.
    last: Mutex<Option<Arc<End>>>,
    stray: Mutex<Option<Stray>>,
}

/// A connection that was closed while a statement was under way: the server may still have it.
#[derive(Clone, Copy)]
struct Stray {
    since: Moment,
    /// How long it counts as there.
    counts: Duration,
}

impl Slot {
    /// For a connection that is no handle's.
    pub fn alone(host: Arc<dyn Host>) -> Self {
        Slots::new(host).take()
    }

    /// Runs a login in a task of its own. A server may go on with one that is given up: until another service has told it
    /// who that is, for example. So the task keeps the place until it is answered, or [`overdue`](Self::overdue).
    ///
    /// `None`: the task was ended with its runtime.
    ///
    /// # Cancel safety
    /// The login is given up.
    pub async fn log_in<T: Send + 'static>(
        self: &Arc<Self>,
        login: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (mut reply, answer) = oneshot::channel();
        let slot = self.clone();
        self.slots.host.spawn(Box::pin(async move {
            let given_up = async {
                reply.closed().await;
                slot.overdue().await;
            };
            let answer = tokio::select! {
                biased;
                answer = login => Some(answer),
                () = given_up => None,
            };
            // OK to ignore because a caller that has given up needs no answer.
            let _ = answer.map(|answer| reply.send(answer));
        }));
        answer.await.ok()
    }

    /// Waits as long as the answer may take that a connection which was left still waits for. Then its owner must close
    /// the socket.
    ///
    /// # Timing
    /// A second. But a server that keeps what its clients have closed is not filled: within 10 s after such an end the
    /// next one waits, and each in a row twice as long, 20 s at most.
    ///
    /// # Cancel safety
    /// It was answered in time: nothing is counted.
    pub async fn overdue(&self) {
        let host = &self.slots.host;
        host.sleep_until(host.now() + self.slots.patience()).await;
        self.slots.count_stray();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.closed.set();
    }
}

impl Slots {
    pub(crate) fn new(host: Arc<dyn Host>) -> Arc<Self> {
        Arc::new(Self { host, last: Mutex::default(), stray: Mutex::default() })
    }

    /// The next slot. Call [`vacated`](Self::vacated) before.
    pub(crate) fn take(self: &Arc<Self>) -> Slot {
        let closed = Arc::<End>::default();
        *locked(&self.last) = Some(closed.clone());
        Slot { slots: self.clone(), closed }
    }

    /// Waits until the last connection is closed. False if its server still has it, and may not get another one yet.
    pub(crate) async fn vacated(&self) -> bool {
        let Some(closed) = locked(&self.last).clone() else { return true };
        let patience = self.patience() + BLOCKED;
        tokio::select! {
            biased;
            () = closed.wait() => true,
            // If it has passed, the runtime that has the socket is blocked: that one has no second connection.
            () = self.host.sleep_until(self.host.now() + patience.min(WAIT)) => patience <= WAIT,
        }
    }

    fn patience(&self) -> Duration {
        let counts_still = |stray: &Stray| stray.counts.saturating_sub(stray.since.elapsed(self.host.now()));
        locked(&self.stray).as_ref().map(counts_still).unwrap_or_default().max(ANSWER)
    }

    fn count_stray(&self) {
        let mut stray = locked(&self.stray);
        let now = self.host.now();
        let in_a_row = stray.filter(|stray| stray.since.elapsed(now) < stray.counts * 2);
        let counts = in_a_row.map_or(STRAY, |stray| (stray.counts * 2).min(LONGEST));
        *stray = Some(Stray { since: now, counts });
    }
}

/// How long the answer may take that a left connection still waits for: a second is how long a statement waits for a lock.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the first connection that was closed without an answer counts as there.
const STRAY: Duration = Duration::from_secs(10);
/// The same of any: a server that is well again is asked this late at most.
const LONGEST: Duration = Duration::from_secs(20);
/// A task that has not closed its socket this long after its time does not run.
const BLOCKED: Duration = Duration::from_millis(100);
/// After this a caller is told that no other connection is opened.
const WAIT: Duration = Duration::from_secs(2);
