//! `LocalQueues`: the waiters of this process that the store has not heard of yet.
//!
//! Only so many waiters of one process have a place in the store's queue for a lock: where places are dear, as many as the
//! store says ([`Promises::places`](tenure_core::Promises::places)), and of a mutex one. The others wait here, in order of
//! arrival (L7). While a lease of this process may still be passed on, the first of them waits for that, and asks the
//! store when it can no longer come: so whoever has asked the store is granted by the store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tenure_core::{BackendError, Grant, HolderView, Host, Label, LockName, Moment, OwnerId, Timing, locked};
use tokio::sync::Notify;

use crate::{
    engine::{Engine, cell::HoldCell},
    machine::turns::{Turns, block_for},
    options::{Options, Together},
};

/// For so long a failure is told to those who come next: otherwise a store that is down would be tried by a few waiters at
/// a time.
const TROUBLE: Duration = Duration::from_secs(5);

/// An admitted waiter asks the store far more often than this. If none has asked for so long, their futures are not polled
/// any more, and others are admitted.
const SILENCE: Duration = Duration::from_secs(60);

/// A waiter that is not rung looks so often whether it is the first one: somebody before it may have been passed a lease,
/// and not be polled.
const LOOK: Duration = Timing::RETRY_MAX;

/// The queues of all locks.
pub(crate) struct LocalQueues {
    /// How many waiters of the process may have places in the store; `None`: all.
    places: Option<usize>,
    /// The store mints a block of tokens when it grants.
    mints_blocks: bool,
    queues: Mutex<HashMap<LockName, Arc<Queue>>>,
}

struct Queue(Mutex<State>);

struct State {
    /// How many may be admitted at once.
    places: usize,
    admitted: usize,
    arrivals: u64,
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
    passing: Option<Passing>,
    heard: Heard,
}

struct Waiter {
    is: Standing,
    /// The lease that it would be content with; `None` if it wants one of its own.
    wanted: Option<Wanted>,
    bell: Arc<Notify>,
}

/// The lease of this process that may be passed on.
struct Passing {
    owner: OwnerId,
    is: Wanted,
    turns: Turns,
}

/// What must be the same for a lease to be passed on.
#[derive(Clone, PartialEq, Eq)]
struct Wanted {
    ttl: Duration,
    label: Arc<Label>,
}

enum Standing {
    /// The store has not heard of it.
    Waiting,
    /// It may ask the store.
    Admitted,
    /// A lease was passed to it, which it has not seen yet.
    Passed(Arc<HoldCell>),
}

/// What the store last said to an admitted waiter.
struct Heard {
    at: Moment,
    /// How many were before the first of all waiters.
    ahead: usize,
    holder: Option<HolderView>,
    failed: Option<(Moment, BackendError)>,
}

/// A waiter at the head of the local queue.
pub(crate) enum Turn {
    /// It asks the store.
    Store,
    /// It was passed this lease, which may have been lost meanwhile.
    Passed(Arc<HoldCell>),
}

/// One waiter in a local queue. When it is dropped, the next one is admitted.
pub(crate) struct LocalWaiter<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    queue: Arc<Queue>,
    number: u64,
    bell: Arc<Notify>,
}

impl LocalQueues {
    pub(crate) fn new(places: Option<usize>, mints_blocks: bool) -> Self {
        Self { places, mints_blocks, queues: Mutex::default() }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Queue>>> {
        // OK because a map is whole whenever code that can panic runs.
        locked(&self.queues)
    }

    /// Passes a lease on to the first waiter, if that wants one like this and may have it. Otherwise it is to be given back
    /// to the store, and is passed on no more.
    pub(crate) fn pass_on(&self, cell: &HoldCell, now: Moment) -> bool {
        self.with_lease(cell, |state| state.pass_on(cell, now))
    }

    /// The lease is passed on no more.
    pub(crate) fn keep_back(&self, cell: &HoldCell) {
        self.with_lease(cell, |_| false);
    }

    fn with_lease(&self, cell: &HoldCell, is_passed: impl FnOnce(&mut State) -> bool) -> bool {
        let name = &cell.grant().name;
        let mut queues = self.queues();
        let Some(queue) = queues.get(name).cloned() else { return false };
        let mut state = queue.state();
        if state.passing.as_ref().is_none_or(|passing| passing.owner != cell.owner()) {
            return false;
        }
        if is_passed(&mut state) {
            return true;
        }
        state.passing = None;
        state.ring_first();
        if state.waiters.is_empty() {
            queues.remove(name);
        }
        false
    }
}

impl Queue {
    fn new(places: usize, now: Moment) -> Self {
        let heard = Heard { at: now, ahead: 0, holder: None, failed: None };
        let waiters = BTreeMap::new();
        Self(Mutex::new(State { places, admitted: 0, arrivals: 0, waiters, passing: None, heard }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // OK because the numbers agree whenever code that can panic runs.
        locked(&self.0)
    }
}

impl State {
    fn add(&mut self, waiter: Waiter) -> u64 {
        self.arrivals += 1;
        self.waiters.insert(self.arrivals, waiter);
        self.arrivals
    }

    /// The first of those that the store has not heard of.
    fn first(&mut self) -> Option<(u64, &mut Waiter)> {
        let waiting = |waiter: &Waiter| matches!(waiter.is, Standing::Waiting);
        self.waiters.iter_mut().find(|(_, waiter)| waiting(waiter)).map(|(number, waiter)| (*number, waiter))
    }

    fn ring_first(&mut self) {
        if let Some((_, first)) = self.first() {
            first.bell.notify_one();
        }
    }

    /// To the first one, unless somebody before it has asked the store.
    fn pass_on(&mut self, cell: &HoldCell, now: Moment) -> bool {
        let first = self.waiters.values_mut().next();
        let (Some(first), Some(passing)) = (first, &mut self.passing) else { return false };
        if !matches!(first.is, Standing::Waiting) || first.wanted.as_ref() != Some(&passing.is) {
            return false;
        }
        let token = passing.turns.next(now);
        let Some(passed) = token.and_then(|token| cell.pass_on(now, token)) else { return false };
        first.is = Standing::Passed(Arc::new(passed));
        first.bell.notify_one();
        true
    }

    /// Whoever may ask does not: their futures are not polled any more. Others are let by.
    fn admit_more_if_silent(&mut self, now: Moment) {
        if self.heard.at.elapsed(now) < SILENCE {
            return;
        }
        self.heard.at = now;
        while self.admitted < self.places
            && let Some((_, first)) = self.first()
        {
            first.is = Standing::Admitted;
            first.bell.notify_one();
            self.admitted += 1;
        }
        self.places += 1;
        self.ring_first();
    }

    /// What this waiter may do now; until when it waits at most, if it is the first one.
    fn look(&mut self, number: u64, now: Moment) -> Result<Turn, Option<Moment>> {
        let is_first = self.first().is_some_and(|(first, _)| first == number);
        let open = self.passing.as_ref().and_then(|passing| passing.turns.open_until(now));
        let Some(waiter) = self.waiters.get_mut(&number) else { return Err(None) };
        match &waiter.is {
            Standing::Admitted => Ok(Turn::Store),
            Standing::Passed(cell) => {
                let cell = cell.clone();
                waiter.is = Standing::Waiting;
                Ok(Turn::Passed(cell))
            }
            Standing::Waiting if is_first && open.is_some() => Err(open),
            Standing::Waiting if is_first && self.admitted < self.places => {
                waiter.is = Standing::Admitted;
                self.admitted += 1;
                self.ring_first();
                Ok(Turn::Store)
            }
            Standing::Waiting => Err(None),
        }
    }
}

impl<'a> LocalWaiter<'a> {
    /// Joins the queue of this lock, where there is one.
    pub(crate) fn join(
        engine: &'a Engine,
        name: &'a LockName,
        options: &Options,
        timing: Timing,
        now: Moment,
    ) -> Option<Self> {
        let LocalQueues { places, mints_blocks, .. } = engine.local_queues;
        let is_one = options.together != Together::No && mints_blocks;
        let places = if is_one { 1 } else { places? };
        // A cap counts from the first holder's entry.
        let takes_turns = is_one && options.together == Together::Turns && options.max_hold.is_none();
        let wanted = takes_turns.then(|| Wanted { ttl: timing.ttl(), label: options.label.clone() });
        let bell = Arc::new(Notify::new());
        let mut queues = engine.local_queues.queues();
        let queue = match queues.get(name) {
            Some(queue) => queue.clone(),
            None => {
                let queue = Arc::new(Queue::new(places, now));
                queues.insert(name.clone(), queue.clone());
                queue
            }
        };
        // Before the map is free again: a queue without waiters is removed from it.
        let number = queue.state().add(Waiter { is: Standing::Waiting, wanted, bell: bell.clone() });
        Some(Self { engine, name, queue, number, bell })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.queue.state()
    }

    /// What it may do now, if it is the first one.
    pub(crate) fn turn_now(&self, now: Moment) -> Option<Turn> {
        self.state().look(self.number, now).ok()
    }

    /// Waits until it is the first one, and is passed a lease or may ask the store.
    ///
    /// # Cancel safety
    /// A waiter that stops waiting leaves its turn to the next one.
    pub(crate) async fn turn(&self, host: &dyn Host) -> Turn {
        loop {
            let until = {
                let now = host.now();
                let mut state = self.state();
                match state.look(self.number, now) {
                    Ok(turn) => return turn,
                    Err(until) => until.unwrap_or(now + LOOK),
                }
            };
            tokio::select! {
                biased;
                () = self.bell.notified() => {}
                () = host.sleep_until(until) => self.state().admit_more_if_silent(host.now()),
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
        block_for(behind.take_while(|(_, waiter)| waiter.wanted.as_ref() == Some(own)).count())
    }

    /// The lease that it asked for is there, and those behind it may have their turns.
    pub(crate) fn on_granted(&self, now: Moment, grant: &Grant) {
        let mut state = self.state();
        state.heard.at = now;
        let wanted = state.waiters.get(&self.number).and_then(|waiter| waiter.wanted.clone());
        let turns = Turns::of(now, grant);
        state.passing = wanted.zip(turns).map(|(is, turns)| Passing { owner: grant.owner, is, turns });
    }

    /// An admitted waiter has asked. `standing`: how many are ahead and who holds, if the store answered.
    pub(crate) fn on_answer(&self, now: Moment, standing: Option<(Option<usize>, Option<&HolderView>)>) {
        let mut state = self.state();
        let is_first = state.waiters.keys().next() == Some(&self.number);
        let heard = &mut state.heard;
        heard.at = now;
        if let Some((ahead, holder)) = standing {
            (heard.holder, heard.failed) = (holder.cloned(), None);
            if is_first {
                heard.ahead = ahead.unwrap_or(0);
            }
        }
    }

    /// The store failed for longer than a waiter's patience.
    pub(crate) fn on_failure(&self, now: Moment, error: &BackendError) {
        if error.kind().is_transient() {
            self.state().heard.failed = Some((now, error.clone()));
        }
    }

    /// How many are before it: waiters of this process, and those before the first of them in the store.
    pub(crate) fn ahead(&self) -> usize {
        let state = self.state();
        state.waiters.range(..self.number).count() + state.heard.ahead
    }

    /// Who holds, as the store last said to an admitted waiter.
    pub(crate) fn holder(&self) -> Option<HolderView> {
        self.state().heard.holder.clone()
    }

    /// What failed for an admitted waiter a moment ago.
    pub(crate) fn failed(&self, now: Moment) -> Option<BackendError> {
        let state = self.state();
        let fresh = state.heard.failed.as_ref().filter(|(since, _)| since.elapsed(now) < TROUBLE);
        fresh.map(|(_, error)| error.clone())
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.engine.local_queues.queues();
        let mut state = self.queue.state();
        let was = state.waiters.remove(&self.number).map(|waiter| waiter.is);
        if matches!(was, Some(Standing::Admitted)) {
            state.admitted -= 1;
        }
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
