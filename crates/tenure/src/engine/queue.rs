//! The queue of this process for a lock: its waiters that the store has not heard of yet.
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
use tenure_core::{BackendError, Claim, HolderView, Host, Label, LockName, Moment, OwnerId, Timing, locked};
use tokio::sync::Notify;

use crate::{
    engine::hold::HoldCell,
    machine::turns::{IDLE_BLOCK, Turns, block_for},
    options::{Options, Together},
};

/// The queues of all locks.
pub(crate) struct LocalQueues {
    /// How many waiters of the process may have places in the store; `None`: all.
    places: Option<usize>,
    /// The store mints a block of tokens when it grants.
    mints_blocks: bool,
    queues: Mutex<HashMap<LockName, Arc<Queue>>>,
}

impl LocalQueues {
    pub(crate) fn new(places: Option<usize>, mints_blocks: bool) -> Self {
        Self { places, mints_blocks, queues: Mutex::default() }
    }

    /// Joins the queue of this lock, where there is one. A lease that was passed to a waiter which has gone is `give_away`'s.
    pub(crate) fn join<'a>(
        &'a self,
        name: &'a LockName,
        options: &Options,
        timing: Timing,
        give_away: &'a GiveAway<'a>,
    ) -> Option<LocalWaiter<'a>> {
        let is_one = options.together != Together::No && self.mints_blocks;
        let places = if is_one { 1 } else { self.places? };
        // A cap counts from the first holder's entry.
        let takes_turns = is_one && options.together == Together::Turns && options.max_hold.is_none();
        let (ttl, label, idle) = (timing.ttl(), options.label.clone(), options.idle);
        let wanted = takes_turns.then_some(Wanted { ttl, label, idle });
        let bell = Arc::new(Notify::new());
        let mut queues = self.queues();
        let queue = match queues.get(name) {
            Some(queue) => queue.clone(),
            None => {
                self.sweep(&mut queues);
                let queue = Arc::new(Queue::new());
                queues.insert(name.clone(), queue.clone());
                queue
            }
        };
        // Before the map is free again: a queue without waiters is removed from it.
        let number = queue.state().add(Waiter { is: Standing::Waiting, places, wanted, bell: bell.clone() });
        Some(LocalWaiter { queues: self, give_away, name, queue, number, bell })
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

    /// Forgets queues that nobody is in and whose idle lease was given back meanwhile; now and then, for each of them costs a look.
    fn sweep(&self, queues: &mut HashMap<LockName, Arc<Queue>>) {
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

    fn queues(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Queue>>> {
        // OK because a map is whole whenever code that can panic runs.
        locked(&self.queues)
    }
}

/// One waiter in a local queue. When it is dropped, the next one is admitted.
pub(crate) struct LocalWaiter<'a> {
    queues: &'a LocalQueues,
    give_away: &'a GiveAway<'a>,
    name: &'a LockName,
    queue: Arc<Queue>,
    number: u64,
    bell: Arc<Notify>,
}

/// Has a lease passed on, or given back.
pub(crate) type GiveAway<'a> = dyn Fn(&HoldCell) + Send + Sync + 'a;

/// A waiter at the head of the local queue.
pub(crate) enum Turn {
    /// It asks the store.
    Store,
    /// It was passed this lease, which may have been lost meanwhile.
    Passed(Arc<HoldCell>),
}

impl LocalWaiter<'_> {
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
        let mut queues = self.queues.queues();
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
            (self.give_away)(&unseen);
        }
    }
}

struct Queue(Mutex<State>);

struct State {
    /// Those that may ask the store, and when each is to ask or to be answered next.
    admitted: BTreeMap<u64, Moment>,
    arrivals: u64,
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
    passing: Option<Passing>,
    heard: Heard,
}

struct Waiter {
    is: Standing,
    /// How many may be admitted beside it, and with it.
    places: usize,
    /// The lease that it would be content with; `None` if it wants one of its own.
    wanted: Option<Wanted>,
    bell: Arc<Notify>,
}

/// The lease of this process that may be passed on.
struct Passing {
    owner: OwnerId,
    is: Wanted,
    turns: Turns,
    /// It is kept while nobody here wants it, for whoever comes.
    idle: Option<Arc<HoldCell>>,
}

/// What must be the same for a lease to be passed on.
#[derive(Clone, PartialEq, Eq)]
struct Wanted {
    ttl: Duration,
    label: Arc<Label>,
    /// How long it is kept when it has nothing to do.
    idle: Option<Duration>,
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
#[derive(Default)]
struct Heard {
    /// How many were before the first of all waiters.
    ahead: usize,
    holder: Option<HolderView>,
    /// The lease that a waiter of this queue was granted or passed last, and how it is shown.
    own: Option<(Weak<HoldCell>, HolderView)>,
    failed: Option<Failed>,
}

/// Since when the store fails without a break, when it did last, and how.
struct Failed {
    since: Moment,
    last: Moment,
    error: BackendError,
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
    fn new() -> Self {
        let (waiters, heard) = (BTreeMap::new(), Heard::default());
        Self(Mutex::new(State { admitted: BTreeMap::new(), arrivals: 0, waiters, passing: None, heard }))
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
    fn pass_over_the_first(&mut self, but: u64, now: Moment) {
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
    fn look(&mut self, number: u64, now: Moment) -> Result<Turn, Option<Moment>> {
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

/// An admitted waiter that was to do something so long ago, and has not, is not polled any more: others are admitted in its
/// place.
const SILENCE: Duration = Duration::from_secs(1);

/// For so long a failure is told to those who come next: otherwise a store that is down would be tried by a few waiters at
/// a time.
const TROUBLE: Duration = Duration::from_secs(5);

/// A waiter that is not rung looks so often whether it is the first one: somebody before it may have been passed a lease,
/// and not be polled.
const LOOK: Duration = Timing::RETRY_MAX;
