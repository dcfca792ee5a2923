//! `LocalQueues`: the waiters of this process that the store has not heard of yet.
//!
//! Only so many waiters of one process have a place in the store's queue for a lock: where places are dear, as many as the
//! store says ([`Promises::places`](tenure_core::Promises::places)), and of a mutex one. The others wait here, in order of
//! arrival (L7). While a lease of this process may still be passed on, the first of them waits for that, and asks the
//! store when it can no longer come: so whoever has asked the store is granted by the store.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{BackendError, HolderView, Label, LockName, Moment, OwnerId, locked};
use tokio::sync::Notify;

use crate::{engine::cell::HoldCell, machine::turns::Turns};

/// An admitted waiter that was to do something so long ago, and has not, is not polled any more: others are admitted in its
/// place.
const SILENCE: Duration = Duration::from_secs(1);

/// The queues of all locks.
pub(crate) struct LocalQueues {
    /// How many waiters of the process may have places in the store; `None`: all.
    pub(super) places: Option<usize>,
    /// The store mints a block of tokens when it grants.
    pub(super) mints_blocks: bool,
    queues: Mutex<HashMap<LockName, Arc<Queue>>>,
}

pub(super) struct Queue(Mutex<State>);

pub(super) struct State {
    /// Those that may ask the store, and when each is to ask or to be answered next.
    pub(super) admitted: BTreeMap<u64, Moment>,
    pub(super) arrivals: u64,
    /// By arrival.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    pub(super) passing: Option<Passing>,
    pub(super) heard: Heard,
}

pub(super) struct Waiter {
    pub(super) is: Standing,
    /// How many may be admitted beside it, and with it.
    pub(super) places: usize,
    /// The lease that it would be content with; `None` if it wants one of its own.
    pub(super) wanted: Option<Wanted>,
    pub(super) bell: Arc<Notify>,
}

/// The lease of this process that may be passed on.
pub(super) struct Passing {
    pub(super) owner: OwnerId,
    pub(super) is: Wanted,
    pub(super) turns: Turns,
    /// It is kept while nobody here wants it, for whoever comes.
    pub(super) idle: Option<Arc<HoldCell>>,
}

/// What must be the same for a lease to be passed on.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) ttl: Duration,
    pub(super) label: Arc<Label>,
    /// How long it is kept when it has nothing to do.
    pub(super) idle: Option<Duration>,
}

pub(super) enum Standing {
    /// The store has not heard of it.
    Waiting,
    /// It may ask the store.
    Admitted,
    /// A lease was passed to it, which it has not seen yet.
    Passed(Arc<HoldCell>),
}

/// What the store last said to an admitted waiter.
#[derive(Default)]
pub(super) struct Heard {
    /// How many were before the first of all waiters.
    pub(super) ahead: usize,
    pub(super) holder: Option<HolderView>,
    /// The lease that a waiter of this queue was granted or passed last, and how it is shown.
    pub(super) own: Option<(Weak<HoldCell>, HolderView)>,
    pub(super) failed: Option<Failed>,
}

/// Since when the store fails without a break, when it did last, and how.
pub(super) struct Failed {
    pub(super) since: Moment,
    pub(super) last: Moment,
    pub(super) error: BackendError,
}

/// A waiter at the head of the local queue.
pub(crate) enum Turn {
    /// It asks the store.
    Store,
    /// It was passed this lease, which may have been lost meanwhile.
    Passed(Arc<HoldCell>),
}

impl LocalQueues {
    pub(crate) fn new(places: Option<usize>, mints_blocks: bool) -> Self {
        Self { places, mints_blocks, queues: Mutex::default() }
    }

    /// Forgets queues that nobody is in and whose idle lease was given back meanwhile; now and then, for each of them costs a look.
    pub(super) fn sweep(&self, queues: &mut HashMap<LockName, Arc<Queue>>) {
        const FEW: usize = 64;
        if queues.len() < FEW || !queues.len().is_power_of_two() {
            return;
        }
        queues.retain(|_, queue| {
            let state = queue.state();
            let idle = state.passing.as_ref().and_then(|passing| passing.idle.as_ref());
            !state.waiters.is_empty() || idle.is_none_or(|idle| idle.remaining() > Duration::ZERO)
        });
    }

    pub(super) fn queues(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Queue>>> {
        // OK because a map is whole whenever code that can panic runs.
        locked(&self.queues)
    }

    /// Passes a lease on to the first waiter, if that wants one like this and may have it; `keep` sees it before anybody can
    /// take it. Otherwise it is to be given back to the store, and is passed on no more.
    pub(crate) fn pass_on(&self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        self.with_lease(cell, |state| state.pass_on(cell, now, keep))
    }

    /// The lease is passed on no more.
    pub(crate) fn keep_back(&self, cell: &HoldCell) {
        self.with_lease(cell, |_| false);
    }

    /// Whether this lease is passed on.
    pub(crate) fn is_shared(&self, name: &LockName, owner: OwnerId) -> bool {
        let queues = self.queues();
        queues.get(name).is_some_and(|queue| queue.state().passing.as_ref().is_some_and(|p| p.owner == owner))
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

impl Passing {
    fn keep_idle(&mut self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        let Some(time) = self.is.idle else { return false };
        let token = self.turns.next(now);
        let Some(kept) = token.and_then(|token| cell.pass_on(now, token, Some(time))) else { return false };
        let kept = Arc::new(kept);
        keep(kept.clone());
        self.idle = Some(kept);
        true
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        let (waiters, heard) = (BTreeMap::new(), Heard::default());
        Self(Mutex::new(State { admitted: BTreeMap::new(), arrivals: 0, waiters, passing: None, heard }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // OK because the numbers agree whenever code that can panic runs.
        locked(&self.0)
    }
}

impl State {
    pub(super) fn add(&mut self, waiter: Waiter) -> u64 {
        self.arrivals += 1;
        self.waiters.insert(self.arrivals, waiter);
        self.arrivals
    }

    /// The first of those that the store has not heard of.
    fn first(&mut self) -> Option<(u64, &mut Waiter)> {
        let waiting = |waiter: &Waiter| matches!(waiter.is, Standing::Waiting);
        self.waiters.iter_mut().find(|(_, waiter)| waiting(waiter)).map(|(number, waiter)| (*number, waiter))
    }

    pub(super) fn ring_first(&mut self) {
        if let Some((_, first)) = self.first() {
            first.bell.notify_one();
        }
    }

    /// To the first one, unless somebody before it has asked the store; where nobody waits it may be kept.
    fn pass_on(&mut self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        let Some(passing) = &mut self.passing else { return false };
        let Some(first) = self.waiters.values_mut().next() else { return passing.keep_idle(cell, now, keep) };
        if !matches!(first.is, Standing::Waiting) || first.wanted.as_ref() != Some(&passing.is) {
            return false;
        }
        let token = passing.turns.next(now);
        let Some(passed) = token.and_then(|token| cell.pass_on(now, token, None)) else { return false };
        passing.turns.on_holder(now);
        let passed = Arc::new(passed);
        if let Some((own, _)) = &mut self.heard.own {
            *own = Arc::downgrade(&passed);
        }
        keep(passed.clone());
        first.is = Standing::Passed(passed);
        first.bell.notify_one();
        true
    }

    /// How many may ask the store, and are polled.
    fn busy(&self, now: Moment) -> usize {
        self.admitted.values().filter(|due| !(**due + SILENCE).is_over(now)).count()
    }

    fn admit(&mut self, number: u64, now: Moment) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.is = Standing::Admitted;
            self.admitted.insert(number, now);
        }
    }

    /// The first one was rung and has not come: it is admitted, and will not be waited for.
    pub(super) fn pass_over_the_first(&mut self, but: u64, now: Moment) {
        let (is_open, busy) = (self.open_until(now).is_some(), self.busy(now));
        if let Some((first, waiter)) = self.first()
            && first != but
            && !is_open
            && busy < waiter.places
        {
            waiter.bell.notify_one();
            self.admit(first, now);
        }
    }

    /// Until when the lease of this process may be passed on.
    fn open_until(&self, now: Moment) -> Option<Moment> {
        self.passing.as_ref().and_then(|passing| passing.turns.open_until(now))
    }

    /// What this waiter may do now; until when it waits at most, if it is the first one.
    pub(super) fn look(&mut self, number: u64, now: Moment) -> Result<Turn, Option<Moment>> {
        let is_first = self.first().is_some_and(|(first, _)| first == number);
        let (open, busy) = (self.open_until(now), self.busy(now));
        let Some(waiter) = self.waiters.get_mut(&number) else { return Err(None) };
        match &waiter.is {
            Standing::Admitted => Ok(Turn::Store),
            Standing::Passed(cell) => {
                let cell = cell.clone();
                waiter.is = Standing::Waiting;
                Ok(Turn::Passed(cell))
            }
            Standing::Waiting if !is_first => Err(None),
            Standing::Waiting => {
                if let Some(passing) = &mut self.passing
                    && let Some(idle) = passing.idle.take()
                {
                    if waiter.wanted.as_ref() == Some(&passing.is) && idle.may_be_taken(now) {
                        passing.turns.on_holder(now);
                        return Ok(Turn::Passed(idle));
                    }
                    idle.on_wanted(now);
                    self.passing = None;
                }
                let may_have_it =
                    self.passing.as_ref().is_some_and(|p| waiter.wanted.as_ref() == Some(&p.is));
                if may_have_it && open.is_some() {
                    return Err(open);
                }
                if busy >= waiter.places {
                    return Err(None);
                }
                self.admit(number, now);
                self.ring_first();
                Ok(Turn::Store)
            }
        }
    }
}
