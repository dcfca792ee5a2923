//! The reports of an acquisition while it waits.

use std::{sync::Arc, time::Duration};

use tenure_core::{BackendError, Claim, HolderView, LockName, Moment, OwnerId};
use tracing::field;

use crate::{
    engine::{hold::HoldCell, queue::LocalWaiter, telemetry::AcquireRecord},
    machine::acquisition::Position,
    options::{Progress, WaitStatus},
};

/// Reports each step of one acquisition: to the program, in its trace and its `Progress`, and to the other waiters
/// of the lock in this process.
pub(crate) struct Reporter<'a> {
    lock: &'a LockName,
    record: &'a AcquireRecord<'a>,
    progress: Option<&'a Progress>,
    /// In the queue of this process, where the store accepts only a few waiters of one process.
    pub(crate) queued: Option<LocalWaiter<'a>>,
    self_wait: SelfWait,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(
        lock: &'a LockName,
        record: &'a AcquireRecord<'a>,
        progress: Option<&'a Progress>,
        queued: Option<LocalWaiter<'a>>,
    ) -> Self {
        Self { lock, record, progress, queued, self_wait: SelfWait::default() }
    }

    /// Requests use this owner from now on.
    pub(crate) fn on_owner(&self, owner: OwnerId) {
        self.record.span.record("owner", field::display(owner));
    }

    pub(crate) fn on_sent(&self, sent_at: Moment, timeout: Duration) {
        self.on_wait(sent_at + timeout);
        self.progress.iter().for_each(|progress| progress.on_sent(sent_at));
    }

    /// Nothing is sent until then.
    pub(crate) fn on_wait(&self, until: Moment) {
        self.queued.iter().for_each(|queued| queued.on_due(until));
    }

    /// The store is overloaded, perhaps for long: the claim is repeated without an answer.
    pub(crate) fn on_retry(&self, error: &BackendError) {
        self.progress.iter().for_each(|progress| progress.on_trouble(error));
    }

    pub(crate) fn on_answer(&mut self, now: Moment, is_granted: bool, position: Position<'_>) {
        if !is_granted {
            self.self_wait.on_holder(now, self.lock, position.holder);
            self.record.on_queue(|| position.ahead);
        }
        self.queued.iter().for_each(|queued| queued.on_answer(now, Ok(position)));
        self.show(position, None);
    }

    /// A request that its caller's time cut short tells the other waiters nothing of the store.
    pub(crate) fn on_failure(
        &self,
        now: Moment,
        error: &BackendError,
        is_cut_short: bool,
        position: Position<'_>,
    ) {
        tracing::debug!(lock = %self.lock, %error, "a claim failed");
        let queued = self.queued.iter().filter(|_| !is_cut_short);
        queued.for_each(|queued| queued.on_answer(now, Err(error)));
        self.show(position, Some(error.clone()));
    }

    pub(crate) fn on_granted(&self, now: Moment, cell: &Arc<HoldCell>, claim: &Claim) {
        self.record.span.record("token", field::display(cell.grant().token));
        self.queued.iter().for_each(|queued| queued.on_granted(now, cell, claim));
    }

    fn show(&self, Position { ahead, holder }: Position<'_>, failing: Option<BackendError>) {
        let Some(progress) = self.progress else { return };
        progress.show(WaitStatus { ahead, holder: holder.cloned(), failing });
    }
}

/// The holders of its own process that one waiter has seen: detects that it waits for itself.
#[derive(Default)]
pub(crate) struct SelfWait {
    /// The owner, and since when.
    seen: Option<(String, Moment)>,
    is_warned: bool,
}

impl SelfWait {
    /// The store has returned this holder. Warns once, when it has been the same owner of this process for 1 s.
    pub(crate) fn on_holder(&mut self, now: Moment, lock: &LockName, holder: Option<&HolderView>) {
        let Some(holder) = holder.filter(|holder| holder.is_this_process) else {
            self.seen = None;
            return;
        };
        match &self.seen {
            Some((owner, since)) if *owner == holder.owner => {
                if since.elapsed(now) >= WORTH_A_WORD && !self.is_warned {
                    self.is_warned = true;
                    tracing::warn!(
                        %lock,
                        owner = holder.owner,
                        "held by this process already; if the same task is waiting, it deadlocks: pass the `Lease` on \
                         instead"
                    );
                }
            }
            _ => self.seen = Some((holder.owner.clone(), now)),
        }
    }
}

/// From this time on, a wait for the own process is reported. Most end sooner, when another task has done its work.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
