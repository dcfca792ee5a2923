//! `LocalWaiter`: one waiter in a queue of its process.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tenure_core::{BackendError, Claim, HolderView, Host, LockName, Moment, Timing};
use tokio::sync::Notify;

use crate::{
    engine::{
        Engine,
        cell::HoldCell,
        local_queue::{Failed, Heard, LocalQueues, Passing, Queue, Standing, State, Turn, Waiter, Wanted},
    },
    machine::turns::{IDLE_BLOCK, Turns, block_for},
    options::{Options, Together},
};

/// For so long a failure is told to those who come next: otherwise a store that is down would be tried by a few waiters at
/// a time.
const TROUBLE: Duration = Duration::from_secs(5);

/// A waiter that is not rung looks so often whether it is the first one: somebody before it may have been passed a lease,
/// and not be polled.
const LOOK: Duration = Timing::RETRY_MAX;

/// One waiter in a local queue. When it is dropped, the next one is admitted.
pub(crate) struct LocalWaiter<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    queue: Arc<Queue>,
    number: u64,
    bell: Arc<Notify>,
}

impl<'a> LocalWaiter<'a> {
    /// Joins the queue of this lock, where there is one.
    pub(crate) fn join(
        engine: &'a Engine,
        name: &'a LockName,
        options: &Options,
        timing: Timing,
    ) -> Option<Self> {
        let LocalQueues { places, mints_blocks, .. } = engine.local_queues;
        let is_one = options.together != Together::No && mints_blocks;
        let places = if is_one { 1 } else { places? };
        // A cap counts from the first holder's entry.
        let takes_turns = is_one && options.together == Together::Turns && options.max_hold.is_none();
        let (ttl, label, idle) = (timing.ttl(), options.label.clone(), options.idle);
        let wanted = takes_turns.then_some(Wanted { ttl, label, idle });
        let bell = Arc::new(Notify::new());
        let mut queues = engine.local_queues.queues();
        let queue = match queues.get(name) {
            Some(queue) => queue.clone(),
            None => {
                engine.local_queues.sweep(&mut queues);
                let queue = Arc::new(Queue::new());
                queues.insert(name.clone(), queue.clone());
                queue
            }
        };
        // Before the map is free again: a queue without waiters is removed from it.
        let number = queue.state().add(Waiter { is: Standing::Waiting, places, wanted, bell: bell.clone() });
        Some(Self { engine, name, queue, number, bell })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.queue.state()
    }

    /// What it may do now, if it is the first one.
    pub(crate) fn turn_now(&self, now: Moment) -> Option<Turn> {
        self.state().look(self.number, now).ok()
    }

    /// Waits from now on until it is the first one, and is passed a lease or may ask the store; and when that was.
    ///
    /// # Cancel safety
    /// A waiter that stops waiting leaves its turn to the next one.
    pub(crate) async fn turn(&self, host: &dyn Host, mut now: Moment) -> (Turn, Moment) {
        loop {
            let until = match self.state().look(self.number, now) {
                Ok(turn) => return (turn, now),
                Err(until) => until.unwrap_or(now + LOOK),
            };
            let is_rung = tokio::select! {
                biased;
                () = self.bell.notified() => true,
                () = host.sleep_until(until) => false,
            };
            now = host.now();
            if !is_rung {
                self.state().pass_over_the_first(self.number, now);
            }
        }
    }

    /// How many tokens to ask for: for those behind it who would be content with its lease, up to the first who would not.
    pub(crate) fn block(&self) -> u32 {
        let state = self.state();
        let Some(own) = state.waiters.get(&self.number).and_then(|waiter| waiter.wanted.as_ref()) else {
            return 1;
        };
        let behind = state.waiters.range(self.number + 1..);
        let behind = behind.take_while(|(_, waiter)| waiter.wanted.as_ref() == Some(own)).count();
        if own.idle.is_some() { IDLE_BLOCK } else { block_for(behind) }
    }

    /// The lease that it asked for is there, and those behind it may have their turns.
    pub(crate) fn on_granted(&self, now: Moment, cell: &Arc<HoldCell>, claim: &Claim) {
        let grant = cell.grant();
        let mut state = self.state();
        let mut own = HolderView::new(grant.owner.to_string(), claim.mode);
        (own.label, own.since, own.is_this_process) = (Some((*claim.label).clone()), Some(now.wall), true);
        (state.heard.ahead, state.heard.holder) = (0, None);
        state.heard.own = Some((Arc::downgrade(cell), own));
        let wanted = state.waiters.get(&self.number).and_then(|waiter| waiter.wanted.clone());
        let idles = wanted.as_ref().is_some_and(|wanted| wanted.idle.is_some());
        let turns = Turns::of(now, grant, idles);
        let owner = grant.owner;
        state.passing = wanted.zip(turns).map(|(is, turns)| Passing { owner, is, turns, idle: None });
    }

    /// It asks the store, or is answered, then at the latest.
    pub(crate) fn on_due(&self, due: Moment) {
        if let Some(known) = self.state().admitted.get_mut(&self.number) {
            *known = due;
        }
    }

    /// The store has answered an admitted waiter: how many are ahead, and who holds.
    pub(crate) fn on_answer(&self, standing: (Option<usize>, Option<&HolderView>)) {
        let mut state = self.state();
        let is_first = state.waiters.keys().next() == Some(&self.number);
        let heard = &mut state.heard;
        let (ahead, holder) = standing;
        (heard.holder, heard.failed) = (holder.cloned(), None);
        if is_first {
            heard.ahead = ahead.unwrap_or(0);
        }
    }

    /// The store has failed an admitted waiter.
    pub(crate) fn on_failure(&self, now: Moment, error: &BackendError) {
        let heard = &mut self.state().heard;
        if error.kind().is_transient() {
            let lasting = heard.failed.as_ref().filter(|failed| failed.last.elapsed(now) < TROUBLE);
            let since = lasting.map_or(now, |failed| failed.since);
            heard.failed = Some(Failed { since, last: now, error: error.clone() });
        }
    }

    /// How many are before it: waiters of this process, and those before the first of them in the store.
    pub(crate) fn ahead(&self) -> usize {
        let state = self.state();
        state.waiters.range(..self.number).count() + state.heard.ahead
    }

    /// Who holds: this process, as far as it knows, or as the store last said to an admitted waiter.
    pub(crate) fn holder(&self) -> Option<HolderView> {
        let state = self.state();
        let Heard { holder, own, .. } = &state.heard;
        let own = own.as_ref().and_then(|(cell, view)| {
            let (cell, mut view) = (cell.upgrade().filter(|cell| cell.check().is_ok())?, view.clone());
            (view.token, view.expires_in) = (Some(cell.grant().token), Some(cell.remaining()));
            Some(view)
        });
        own.or_else(|| holder.clone())
    }

    /// How the store has failed admitted waiters for so long at least, until a moment ago.
    pub(crate) fn failed(&self, now: Moment, patience: Duration) -> Option<BackendError> {
        let state = self.state();
        let is_told =
            |failed: &&Failed| failed.since.elapsed(now) >= patience && failed.last.elapsed(now) < TROUBLE;
        state.heard.failed.as_ref().filter(is_told).map(|failed| failed.error.clone())
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.engine.local_queues.queues();
        let mut state = self.queue.state();
        let was = state.waiters.remove(&self.number).map(|waiter| waiter.is);
        state.admitted.remove(&self.number);
        if state.waiters.is_empty() && state.passing.is_none() {
            queues.remove(self.name);
        } else {
            state.ring_first();
        }
        drop((state, queues));
        if let Some(Standing::Passed(unseen)) = was {
            self.engine.give_away(&unseen);
        }
    }
}
