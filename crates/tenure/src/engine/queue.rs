//! The waiters of this process for each lock and class, in order of arrival (L7). Only the first few ask the store.
//!
//! The store sets how many ([`Promises::places`](tenure_core::Promises::places)); for a mutex it is one, if the
//! store mints tokens in blocks ([`LocalQueueing`]). A waiter joins, is admitted, reports the store's answers, and
//! leaves when it is dropped. The lease that one of them was granted may then be passed on to the others, each with
//! its own token.
//!
//! * The store is asked in order of arrival. An admitted waiter keeps its place until it leaves; one that is not
//!   polled any more excludes no other ([`SILENCE`]).
//! * A lease is passed on only to the first of all waiters, and only while that one has not asked the store. A
//!   waiter that has asked the store is granted by the store.
//! * While a lease may still be passed on, the first waiter that accepts its terms waits for that.
//! * Each holder of a lease has a token of the block that was granted, and no other holder has it (H5.2, L2).
//! * The number and the time of the holders count from the acquisition; renewals do not reset them (H5.5). For a
//!   lease that may be kept idle only the number counts, because its process is notified that a client waits
//!   elsewhere, and then stops passing it on.
//! * A lease is registered with the keeper before its next holder sees it. If it was passed to a waiter that has
//!   left since, it is passed on again, or released.
//! * A lock has a queue here while it has waiters, or a lease that may be passed on. The map is locked before a
//!   queue, and no code awaits under either.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{
    BackendError, Claim, ErrorKind, FencingToken, Grant, HolderView, Host, Label, LockName, Mode, Moment,
    Outcome, OwnerId, Priority, Timing, locked,
};
use tokio::sync::Notify;

use crate::{
    engine::hold::HoldCell,
    error::AcquireError,
    machine::acquisition::Position,
    options::{LocalQueueing, Options, Progress, WaitStatus},
};

/// How often a lease is passed on at most: 128 times. Two requests are then shared by 129 holders.
const PASSES_MAX: u32 = 128;
/// No lease is passed on later than this after it was acquired: 10 ms. A waiter elsewhere is overtaken for no
/// longer than this and the hold that was begun.
const WITHIN: Duration = Duration::from_millis(10);
/// Tokens of a lease that may be kept idle: 256. When they are used up, the lock is acquired anew.
const IDLE_BLOCK: u32 = 256;
/// An admitted waiter that is this late with its next step is not polled any more: others are admitted in its
/// place.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a failure of the store is the answer for later waiters too. Otherwise each group of waiters would try a
/// store that is down.
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// How long an answer that named other owners stands: as long as a waiter rests before it asks again, and the time
/// of the next answer. After that a store that hangs is not taken for a busy lock.
const ANSWER_KEPT: Duration = Duration::from_secs(3);
/// How often a waiter without a hint checks whether it is the first one: the waiter before it may have got a lease
/// and not be polled.
const LOOK: Duration = Timing::RETRY_MAX;

/// The queues of all locks.
pub(crate) struct LocalQueues {
    /// How many waiters of the process may have places in the store; `None`: all.
    places: Option<usize>,
    /// The store mints a block of tokens when it grants.
    mints_blocks: bool,
    /// For each class: no waiter stands behind one of another class here. Only those of the default class share a lease.
    classes: [Mutex<Queues>; Priority::ALL.len()],
}

impl LocalQueues {
    pub(crate) fn new(places: Option<usize>, mints_blocks: bool) -> Self {
        Self { places, mints_blocks, classes: Default::default() }
    }

    /// Forgets queues that exist only for an idle lease that has ended.
    pub(crate) fn forget_ended(&self) {
        forget_ended(&mut self.lock(Priority::Normal));
    }

    /// The number of locks that have a queue here.
    pub(crate) fn len(&self) -> usize {
        Priority::ALL.into_iter().map(|class| self.lock(class).len()).sum()
    }

    /// Joins the queue of this lock, where there is one. `release` is for a lease that was passed on to this waiter
    /// and not taken: it passes the lease on, or releases it.
    pub(crate) fn join<'a>(
        &'a self,
        name: &'a LockName,
        options: &Options,
        timing: Timing,
        release: &'a ReleaseLease<'a>,
    ) -> Option<LocalWaiter<'a>> {
        let class = options.priority;
        let is_one = options.queueing != LocalQueueing::Off && self.mints_blocks;
        let places = if is_one { 1 } else { self.places? };
        // A cap counts from the acquisition of the first holder.
        let hands_over = options.queueing == LocalQueueing::HandOver && class.is_normal();
        let shares = is_one && hands_over && options.max_hold.is_none();
        let terms = || LeaseTerms {
            ttl: timing.ttl(),
            label: options.label.clone(),
            idle: options.idle,
            ends_with_process: options.ends_with_process(),
        };
        let notify = Arc::new(Notify::new());
        let waiter = QueuedWaiter {
            state: WaiterState::Waiting,
            places,
            terms: shares.then(terms),
            notify: notify.clone(),
        };
        let mut queues = self.lock(class);
        let queue = match queues.get(name) {
            Some(queue) => queue.clone(),
            None => {
                sweep(&mut queues);
                queues.entry(name.clone()).or_default().clone()
            }
        };
        // Before the map is unlocked, because a queue without waiters is removed from it.
        let number = locked(&queue).add(waiter);
        Some(LocalWaiter { queues: self, name, class, queue, number, notify, release })
    }

    /// Passes a lease on to the first waiter, if that waiter accepts its terms and may have it; `keep` sees it
    /// before it can be taken. Otherwise the lease must be released, and is passed on no more.
    pub(crate) fn pass_on(&self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        self.with_lease(cell, |queue| queue.pass_on(cell, now, keep))
    }

    /// The lease is passed on no more.
    pub(crate) fn stop_passing_on(&self, cell: &HoldCell) {
        self.with_lease(cell, |_| false);
    }

    /// Whether the lease of this owner may be passed on.
    pub(crate) fn is_shared(&self, name: &LockName, owner: OwnerId) -> bool {
        let queues = self.lock(Priority::Normal);
        queues
            .get(name)
            .is_some_and(|queue| locked(queue).lease.as_ref().is_some_and(|lease| lease.owner == owner))
    }

    fn with_lease(&self, cell: &HoldCell, is_passed: impl FnOnce(&mut LocalQueue) -> bool) -> bool {
        let name = &cell.grant().name;
        let mut queues = self.lock(Priority::Normal);
        let Some(queue) = queues.get(name).cloned() else { return false };
        let mut queue = locked(&queue);
        if queue.lease.as_ref().is_none_or(|lease| lease.owner != cell.owner()) {
            return false;
        }
        if is_passed(&mut queue) {
            return true;
        }
        queue.lease = None;
        queue.notify_first();
        if queue.waiters.is_empty() {
            queues.remove(name);
        }
        false
    }

    fn lock(&self, class: Priority) -> MutexGuard<'_, Queues> {
        // OK because a map is consistent whenever code that can panic runs.
        locked(&self.classes[class as usize])
    }
}

type Queues = HashMap<LockName, Arc<Mutex<LocalQueue>>>;

/// Forgets queues without waiters whose idle lease has ended; only now and then, because it checks each of them.
fn sweep(queues: &mut Queues) {
    const FEW: usize = 64;
    if queues.len() >= FEW && queues.len().is_power_of_two() {
        forget_ended(queues);
    }
}

fn forget_ended(queues: &mut Queues) {
    queues.retain(|_, queue| {
        let queue = locked(queue);
        let idle = queue.lease.as_ref().and_then(|lease| lease.idle.as_ref());
        !queue.waiters.is_empty() || idle.is_none_or(|idle| idle.remaining() > Duration::ZERO)
    });
}

/// The waiter may do nothing yet, and checks again at this moment at the latest.
struct LookAgain(Moment);

/// Passes a lease on, or releases it.
pub(crate) type ReleaseLease<'a> = dyn Fn(&HoldCell) + Send + Sync + 'a;

/// What the first waiter may do.
pub(crate) enum Admission {
    /// It holds this lease, which was passed on to it.
    Lease(Arc<HoldCell>),
    /// It asks the store from this moment. Another owner may have had the lock while it waited here.
    AskStore { at: Moment, was_busy: bool },
}

/// One waiter in a local queue. When it is dropped, the next one is notified.
pub(crate) struct LocalWaiter<'a> {
    queues: &'a LocalQueues,
    name: &'a LockName,
    class: Priority,
    queue: Arc<Mutex<LocalQueue>>,
    number: u64,
    notify: Arc<Notify>,
    release: &'a ReleaseLease<'a>,
}

impl LocalWaiter<'_> {
    fn lock(&self) -> MutexGuard<'_, LocalQueue> {
        // OK because the numbers agree whenever code that can panic runs.
        locked(&self.queue)
    }

    /// Waits, from `began` on and within the budget, until it is the first one and gets a lease or may ask the
    /// store.
    ///
    /// # Errors
    /// If the budget is used up, or the store has failed for the waiters before it for longer than the patience.
    ///
    /// # Cancel safety
    /// A waiter that stops waiting leaves its turn to the next one.
    pub(crate) async fn admit(
        &self,
        host: &dyn Host,
        began: Moment,
        (budget, patience): (Option<Duration>, Duration),
        progress: Option<&Progress>,
    ) -> Result<Admission, AcquireError> {
        let timed_out = async {
            match budget {
                Some(budget) => host.sleep_until(began + budget).await,
                None => pending().await,
            }
        };
        tokio::pin!(timed_out);
        let mut now = began;
        loop {
            let admission = self.lock().look(self.number, now);
            let until = match admission {
                Ok(Admission::Lease(cell)) if cell.take(now).is_err() => {
                    // It came too late to be valid: the store may still count this process as a holder until the
                    // ttl ends.
                    (self.release)(&cell);
                    continue;
                }
                Ok(Admission::AskStore { at, .. }) => {
                    let queue = self.lock();
                    let was_busy = queue.was_busy_since(began);
                    return queue
                        .failure(at, patience)
                        .map_or(Ok(Admission::AskStore { at, was_busy }), |error| {
                            Err(AcquireError::Store(error))
                        });
                }
                Ok(lease) => return Ok(lease),
                Err(LookAgain(until)) => until,
            };
            if let Some(progress) = progress {
                progress.show(self.lock().shown_to(self.number));
            }
            tokio::select! {
                biased;
                () = self.notify.notified() => now = host.now(),
                () = host.sleep_until(until) => {
                    now = host.now();
                    self.lock().pass_over_the_first(self.number, now);
                }
                () = &mut timed_out => {
                    let (now, mut queue) = (host.now(), self.lock());
                    return match queue.refuse(self.number, began, now) {
                        // Only the store knows, and one that asks once has not asked it yet.
                        Err(_) if budget.is_some_and(|budget| budget.is_zero()) => {
                            queue.admit(self.number, now);
                            Ok(Admission::AskStore { at: now, was_busy: false })
                        }
                        Err(error) => Err(AcquireError::Store(error)),
                        Ok(busy) => Err(busy),
                    };
                }
            }
        }
    }

    /// How many tokens to ask for: for the waiters behind it that accept its lease, up to the first that does not.
    pub(crate) fn block(&self) -> u32 {
        let queue = self.lock();
        let Some(own) = queue.waiters.get(&self.number).and_then(|waiter| waiter.terms.as_ref()) else {
            return 1;
        };
        let behind = queue.waiters.range(self.number + 1..);
        let behind = behind.take_while(|(_, waiter)| waiter.terms.as_ref() == Some(own)).count();
        if own.idle.is_some() { IDLE_BLOCK } else { block_for(behind) }
    }

    /// At this moment at the latest, it asks the store or gets an answer.
    pub(crate) fn on_due(&self, due: Moment) {
        if let Some(known) = self.lock().admitted.get_mut(&self.number) {
            *known = due;
        }
    }

    /// The holder, as last seen.
    pub(crate) fn holder(&self) -> Option<HolderView> {
        self.lock().shown_to(self.number).holder
    }

    /// How many waiters are ahead of it; `None` if that is not known.
    pub(crate) fn ahead(&self) -> Option<usize> {
        let ahead = self.lock().ahead_of(self.number);
        (ahead > 0).then_some(ahead)
    }

    /// The answer of the store: how many are ahead, and the holder; or its failure.
    pub(crate) fn on_answer(&self, now: Moment, answer: Result<Position<'_>, &BackendError>) {
        let mut queue = self.lock();
        let is_first = queue.waiters.keys().next() == Some(&self.number);
        let last = &mut queue.last;
        match answer {
            Ok(Position { ahead, holder }) => {
                (last.holder, last.failure) = (holder.cloned(), None);
                last.busy_until = Some(now + ANSWER_KEPT);
                if is_first {
                    last.ahead = ahead.unwrap_or(0);
                }
            }
            Err(error) if error.kind().is_transient() => {
                let lasting =
                    last.failure.as_ref().filter(|failure| failure.last.elapsed(now) < FAILURE_KEPT);
                let since = lasting.map_or(now, |failure| failure.since);
                last.failure = Some(StoreFailure { since, last: now, error: error.clone() });
            }
            Err(_) => {}
        }
    }

    /// The requested lease was granted, and may be passed on to the waiters behind it.
    pub(crate) fn on_granted(&self, now: Moment, cell: &Arc<HoldCell>, claim: &Claim) {
        let grant = cell.grant();
        let mut queue = self.lock();
        (queue.last.ahead, queue.last.holder, queue.last.busy_until) = (0, None, Some(now));
        queue.last.own = Some(OwnHolder {
            cell: Arc::downgrade(cell),
            owner: grant.owner,
            mode: claim.mode,
            label: claim.label.clone(),
            since: now.wall,
        });
        let terms = queue.waiters.get(&self.number).and_then(|waiter| waiter.terms.clone());
        queue.lease = terms.and_then(|terms| SharedLease::of(now, grant, terms));
    }
}

impl Drop for LocalWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.lock(self.class);
        let mut queue = self.lock();
        let state = queue.waiters.remove(&self.number).map(|waiter| waiter.state);
        queue.admitted.remove(&self.number);
        if queue.waiters.is_empty() && queue.lease.is_none() {
            queues.remove(self.name);
        } else {
            queue.notify_first();
        }
        drop((queue, queues));
        if let Some(WaiterState::PassedOn(unseen)) = state {
            (self.release)(&unseen);
        }
    }
}

/// The queue of one lock.
#[derive(Default)]
struct LocalQueue {
    /// The waiters that may ask the store, with the time of the next request or answer of each.
    admitted: BTreeMap<u64, Moment>,
    arrivals: u64,
    /// By arrival.
    waiters: BTreeMap<u64, QueuedWaiter>,
    lease: Option<SharedLease>,
    last: LastStoreAnswer,
}

struct QueuedWaiter {
    state: WaiterState,
    /// How many waiters may be admitted at the same time, itself included.
    places: usize,
    /// The terms of a lease that it accepts; `None` if it needs a separate lease.
    terms: Option<LeaseTerms>,
    notify: Arc<Notify>,
}

enum WaiterState {
    /// It has not asked the store.
    Waiting,
    /// It may ask the store.
    Admitted,
    /// A lease was passed on to it, and it has not seen the lease yet.
    PassedOn(Arc<HoldCell>),
}

/// The terms that must be equal for a lease to be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseTerms {
    ttl: Duration,
    label: Arc<Label>,
    /// How long it is kept when idle.
    idle: Option<Duration>,
    ends_with_process: bool,
}

/// The store's last answer to an admitted waiter.
#[derive(Default)]
struct LastStoreAnswer {
    /// How many were ahead of the first of all waiters.
    ahead: usize,
    holder: Option<HolderView>,
    /// Until when the lock is taken for busy: for a while after each answer that said so, and while this process has
    /// a lease.
    busy_until: Option<Moment>,
    /// The lease that a waiter of this queue got last.
    own: Option<OwnHolder>,
    failure: Option<StoreFailure>,
}

/// A holder of this process. Its view costs texts, and mostly nobody asks for it.
struct OwnHolder {
    cell: Weak<HoldCell>,
    owner: OwnerId,
    mode: Mode,
    label: Arc<Label>,
    since: Duration,
}

impl OwnHolder {
    /// As it is shown while it holds, or after that.
    fn view(&self) -> HolderView {
        let mut view = HolderView::new(self.owner.to_string(), self.mode);
        (view.label, view.since, view.is_this_process) =
            (Some((*self.label).clone()), Some(self.since), true);
        view
    }
}

/// Since when the store fails without a break, the last failure, and its error.
struct StoreFailure {
    since: Moment,
    last: Moment,
    error: BackendError,
}

impl LocalQueue {
    fn add(&mut self, waiter: QueuedWaiter) -> u64 {
        self.arrivals += 1;
        self.waiters.insert(self.arrivals, waiter);
        self.arrivals
    }

    /// The first waiter that has not asked the store.
    fn first(&mut self) -> Option<(u64, &mut QueuedWaiter)> {
        let is_waiting = |waiter: &QueuedWaiter| matches!(waiter.state, WaiterState::Waiting);
        self.waiters
            .iter_mut()
            .find(|(_, waiter)| is_waiting(waiter))
            .map(|(number, waiter)| (*number, waiter))
    }

    fn notify_first(&mut self) {
        if let Some((_, first)) = self.first() {
            first.notify.notify_one();
        }
    }

    /// What this waiter may do now.
    fn look(&mut self, number: u64, now: Moment) -> Result<Admission, LookAgain> {
        let is_first = self.first().is_some_and(|(first, _)| first == number);
        self.see_whether_busy(now);
        let (open, busy) = (self.open_until(now), self.busy(now));
        let Some(waiter) = self.waiters.get_mut(&number) else { return Err(LookAgain(now + LOOK)) };
        match &waiter.state {
            WaiterState::Admitted => return Ok(Admission::AskStore { at: now, was_busy: false }),
            WaiterState::PassedOn(cell) => {
                let cell = cell.clone();
                waiter.state = WaiterState::Waiting;
                return Ok(Admission::Lease(cell));
            }
            WaiterState::Waiting if !is_first => return Err(LookAgain(now + LOOK)),
            WaiterState::Waiting => {}
        }
        let is_content = |lease: &SharedLease| waiter.terms.as_ref() == Some(&lease.terms);
        if let Some(lease) = &mut self.lease
            && let Some(idle) = lease.idle.take()
        {
            if is_content(lease) && idle.may_be_taken(now) {
                lease.on_holder(now);
                return Ok(Admission::Lease(idle));
            }
            idle.on_wanted(now);
            self.lease = None;
        }
        if let Some(open) = open.filter(|_| self.lease.as_ref().is_some_and(is_content)) {
            return Err(LookAgain(open));
        }
        if busy >= waiter.places {
            return Err(LookAgain(now + LOOK));
        }
        self.admit(number, now);
        self.notify_first();
        Ok(Admission::AskStore { at: now, was_busy: false })
    }

    fn admit(&mut self, number: u64, now: Moment) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.state = WaiterState::Admitted;
            self.admitted.insert(number, now);
        }
    }

    /// How many may ask the store, and are polled.
    fn busy(&self, now: Moment) -> usize {
        self.admitted.values().filter(|due| !(**due + SILENCE).is_over(now)).count()
    }

    /// The first one was notified and has not come: it is admitted, and is not waited for.
    fn pass_over_the_first(&mut self, but: u64, now: Moment) {
        let (is_open, busy) = (self.open_until(now).is_some(), self.busy(now));
        if let Some((first, waiter)) = self.first()
            && first != but
            && !is_open
            && busy < waiter.places
        {
            waiter.notify.notify_one();
            self.admit(first, now);
        }
    }

    /// Until when the lease of this process may be passed on.
    fn open_until(&self, now: Moment) -> Option<Moment> {
        self.lease.as_ref().and_then(|lease| lease.open_until(now))
    }

    /// Passes it to the first one, unless a waiter before that one has asked the store. Without waiters it may be
    /// kept idle.
    fn pass_on(&mut self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        let Some(lease) = &mut self.lease else { return false };
        let Some(first) = self.waiters.values_mut().next() else { return lease.keep_idle(cell, now, keep) };
        if !matches!(first.state, WaiterState::Waiting) || first.terms.as_ref() != Some(&lease.terms) {
            return false;
        }
        let token = lease.next(now);
        let Some(passed) = token.and_then(|token| cell.pass_on(now, token, None)) else { return false };
        lease.on_holder(now);
        let passed = Arc::new(passed);
        if let Some(own) = &mut self.last.own {
            own.cell = Arc::downgrade(&passed);
        }
        keep(passed.clone());
        first.state = WaiterState::PassedOn(passed);
        first.notify.notify_one();
        true
    }

    /// How many waiters are ahead of it, in this process and ahead of the first of them in the store.
    fn ahead_of(&self, number: u64) -> usize {
        self.waiters.range(..number).count() + self.last.ahead
    }

    /// The status of this waiter: how many are ahead, and the holder. The holder is this process, if known, or the
    /// one in the store's last answer.
    fn shown_to(&self, number: u64) -> WaitStatus {
        let own = self.last.own.as_ref().and_then(|own| {
            let (cell, mut view) = (own.cell.upgrade()?, own.view());
            let left = cell.remaining();
            (view.token, view.expires_in) = (Some(cell.grant().token), Some(left));
            (!left.is_zero()).then_some(view)
        });
        // Between two turns the last holder of this process is shown: an old name is better than none.
        let former = || {
            let mut view = self.last.own.as_ref()?.view();
            view.expires_in = Some(Duration::ZERO);
            Some(view)
        };
        let holder = own.or_else(|| self.last.holder.clone()).or_else(former);
        WaitStatus { ahead: Some(self.ahead_of(number)), holder, failing: None }
    }

    /// Notes whether this process has the lock now. What the store has said is not made younger by a look.
    fn see_whether_busy(&mut self, now: Moment) {
        let own = self.last.own.as_ref().and_then(|own| own.cell.upgrade());
        if own.is_some_and(|own| own.is_valid(now)) {
            self.last.busy_until = Some(self.last.busy_until.map_or(now, |until| until.later(now)));
        }
    }

    /// The lock was not free at some time since then.
    fn was_busy_since(&self, began: Moment) -> bool {
        self.last.busy_until.is_some_and(|until| until.boot >= began.boot)
    }

    /// A waiter that has waited here since `began` gets nothing, because other owners had the lock.
    ///
    /// # Errors
    /// If the store fails, or has answered no waiter for so long that nothing is known.
    fn refuse(&mut self, number: u64, began: Moment, now: Moment) -> Result<AcquireError, BackendError> {
        self.see_whether_busy(now);
        let waited = began.elapsed(now);
        if let Some(error) = self.failure(now, Duration::ZERO) {
            return Err(error);
        }
        if !self.was_busy_since(began) {
            let message = format!("the store answered no waiter ahead within {waited:.1?}");
            return Err(BackendError::new(ErrorKind::TimedOut, Outcome::NotApplied, message));
        }
        let WaitStatus { ahead, holder, .. } = self.shown_to(number);
        Ok(AcquireError::TimedOut { waited, ahead, holder: holder.map(Box::new) })
    }

    /// The error, if the store has failed for admitted waiters for at least `patience`, until a moment ago.
    fn failure(&self, now: Moment, patience: Duration) -> Option<BackendError> {
        let failure = self.last.failure.as_ref();
        let lasts = failure.filter(|failure| failure.since.elapsed(now) >= patience);
        lasts.filter(|failure| failure.last.elapsed(now) < FAILURE_KEPT).map(|failure| failure.error.clone())
    }
}

/// The lease of this process that may be passed on.
#[derive(Clone)]
struct SharedLease {
    owner: OwnerId,
    terms: LeaseTerms,
    /// The token of the next holder.
    next: FencingToken,
    /// How many more holders there may be.
    left: u32,
    /// Until this moment, waiting for the holder is worthwhile.
    until: Moment,
    /// It is kept without a holder, for the next waiter.
    idle: Option<Arc<HoldCell>>,
}

impl SharedLease {
    /// For a grant that was acquired now; `None` if it has a token for its first holder only.
    fn of(now: Moment, grant: &Grant, terms: LeaseTerms) -> Option<Self> {
        let most = if terms.idle.is_some() { IDLE_BLOCK - 1 } else { PASSES_MAX };
        let left = grant.block.saturating_sub(1).min(most);
        (left > 0).then_some(Self {
            owner: grant.owner,
            terms,
            next: FencingToken::new(grant.token.get() + 1),
            left,
            until: now + WITHIN,
            idle: None,
        })
    }

    /// Until when waiting for the holder is worthwhile: it passes the lease on, or, after the last time, releases
    /// it immediately.
    fn open_until(&self, now: Moment) -> Option<Moment> {
        (!self.until.is_over(now)).then_some(self.until)
    }

    /// The token of the next holder, if there may be one.
    fn next(&mut self, now: Moment) -> Option<FencingToken> {
        let is_open = self.terms.idle.is_some() || self.open_until(now).is_some();
        if !is_open || self.left == 0 {
            return None;
        }
        let token = self.next;
        self.next = FencingToken::new(token.get() + 1);
        self.left -= 1;
        Some(token)
    }

    /// A lease that may be kept idle has a new holder, and waiters wait as long for it as for a first one.
    fn on_holder(&mut self, now: Moment) {
        if self.terms.idle.is_some() {
            self.until = now + WITHIN;
        }
    }

    fn keep_idle(&mut self, cell: &HoldCell, now: Moment, keep: impl FnOnce(Arc<HoldCell>)) -> bool {
        let Some(time) = self.terms.idle else { return false };
        let token = self.next(now);
        let Some(kept) = token.and_then(|token| cell.pass_on(now, token, Some(time))) else { return false };
        let kept = Arc::new(kept);
        keep(kept.clone());
        self.idle = Some(kept);
        true
    }
}

/// How many tokens to ask for, with `behind` waiters behind: one for the first holder, and two for each waiter,
/// because a task that has held the lock may ask again.
fn block_for(behind: usize) -> u32 {
    let passes = u32::try_from(behind).unwrap_or(PASSES_MAX).saturating_mul(2);
    1 + passes.min(PASSES_MAX)
}

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    fn at(millis: u64) -> Moment {
        let time = Duration::from_millis(millis);
        Moment { boot: time, wall: time }
    }

    /// A timeout names a holder whenever one is known: between two turns of this process it named none.
    #[test]
    fn between_two_turns_the_last_holder_is_shown_and_a_known_one_before_it() {
        let theirs = HolderView::new("2".repeat(48), Mode::Exclusive);
        let ours = grant(1).owner;
        let mut queue = LocalQueue::default();
        assert!(queue.shown_to(0).holder.is_none());
        queue.last.own = Some(OwnHolder {
            cell: Weak::new(),
            owner: ours,
            mode: Mode::Exclusive,
            label: Arc::default(),
            since: Duration::ZERO,
        });
        let shown = queue.shown_to(0).holder.unwrap();
        assert_eq!((shown.owner, shown.expires_in), (ours.to_string(), Some(Duration::ZERO)));
        queue.last.holder = Some(theirs.clone());
        assert_eq!(queue.shown_to(0).holder, Some(theirs));
    }

    fn grant(block: u32) -> Grant {
        Grant::new(
            LockName::new("a").unwrap(),
            OwnerId::from_random(ProcessId::from_random([1; 8]), [2; 16]),
            FencingToken::new(100),
            Duration::from_secs(10),
        )
        .with_block(block)
    }

    fn shared(block: u32, idle: Option<Duration>) -> Option<SharedLease> {
        let terms =
            LeaseTerms { ttl: Duration::from_secs(10), label: Arc::default(), idle, ends_with_process: true };
        SharedLease::of(at(0), &grant(block), terms)
    }

    /// H5.2: never more tokens than were granted, each once, and all above the first holder's.
    #[test]
    fn a_lease_is_passed_on_as_often_as_its_block_has_tokens() {
        assert!(shared(1, None).is_none());
        let mut lease = shared(4, None).unwrap();
        let tokens: Vec<u64> = std::iter::from_fn(|| lease.next(at(1))).map(FencingToken::get).collect();
        assert_eq!(tokens, [101, 102, 103]);
    }

    /// H5.5: a larger block does not make more holders, and time does not begin anew with a holder.
    #[test]
    fn passing_on_ends_by_number_and_by_time_since_the_acquisition() {
        let mut lease = shared(1000, None).unwrap();
        assert_eq!(std::iter::from_fn(|| lease.next(at(0))).count(), 128);
        let mut lease = shared(129, None).unwrap();
        assert!(lease.next(at(9)).is_some());
        assert_eq!((lease.next(at(10)), lease.open_until(at(10))), (None, None));
    }

    /// A lease that may be kept idle is passed on at any time, at most as often as it has tokens. Waiters wait for
    /// its holder no longer than for any.
    #[test]
    fn passing_on_of_a_lease_that_is_kept_ends_by_number_alone() {
        let mut lease = shared(1000, Some(Duration::from_secs(60))).unwrap();
        assert_eq!(std::iter::from_fn(|| lease.next(at(60_000))).count(), 255);
        assert_eq!(lease.open_until(at(60_000)), None);
        lease.on_holder(at(60_000));
        assert_eq!(lease.open_until(at(60_009)), Some(at(60_010)));
    }

    /// The claim asks for as many tokens as may be used, and one for the first holder.
    #[test]
    fn a_block_has_two_tokens_for_each_waiter_behind() {
        assert_eq!([0, 1, 63, 64, 65, usize::MAX].map(block_for), [1, 3, 127, 129, 129, 129]);
    }
}
