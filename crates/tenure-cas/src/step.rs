//! `Locks`: one verb on one lock, by comparing and setting the version of its cell.
//!
//! A verb reads the cell and the store's clock, runs on the ledger here, and writes the cell if its version
//! and text are still those that were read. Nothing is locked between the two. A verb waits for another
//! client for one commit at most.
//!
//! **Why a time that was learned before the write is enough (L1, H2.2).** A verb runs at a time `now` that was read, or
//! is guessed. Perhaps another server showed it: a proxy sends readings to a replica, an address moves. So the writer's
//! clock judges it, in the step that writes: it must be between `now` and `until` (see [`Draft`]). The leases that had
//! expired at `now` have expired by that clock as well. And no lease ends too early by it. Let `waited` be what this
//! process has measured from the start of the verb until it sent the write. Then `until` is the sum of `now`, `waited`
//! and a tolerance ([`TOLERANCE`], or more if the last answer was slow). A lease ends at the sum of `now`, ttl and the
//! same tolerance: by the writer's clock no sooner than ttl − `waited` after the write, which came at least `waited`
//! after the start. Its owner treats it as held for the ttl, counted from before the start. Any write of another client
//! since the reading has changed the version, so this write fails. A write that waits for another transaction ends
//! leases early, never late.
//!
//! **A missing cell is made first, without a holder.** Each write goes on top of a version from the store, and no
//! two cells have the same first version. So a late claim, after the cell was granted to others and deleted, does
//! not find its version, and cannot be granted a token below those of the others (L2). `until` is never later than
//! [`LATE`] after `now`: a backup may have restored the cell that the write was made from.
//!
//! **The first try is blind.** It runs on the ledger that this process stored last, at a time that the
//! store's clock has surely reached. The store confirms both, as it does for a reading.
//!
//! **A write without an answer (L8, L9).** Its outcome is unknown: its answer was lost, or its future was dropped
//! ([`WriteInFlight`]). The process remembers on top of which version it was sent. The verb runs once more over a
//! new connection, as the same owner, and the cell shows the result of the first try, unless that write may still
//! come. It may come as long as the cell has that version. Then a verb writes the cell, even if it changes nothing,
//! and its answer is final, because the write that may come compares a version that is gone. So a release that
//! begins after a claim was dropped is answered only when that claim is done, or never will be. A write without a
//! comparison may come even later: its claim fails as unknown, and the engine repeats the release.
//!
//! # A place that is put into the cell without a comparison
//!
//! A holder that releases and claims again writes on top of its own last write, with one request. Another
//! claim reads first, with one more request, and so finds the cell changed each time. Therefore the store
//! itself adds the place of such a claim to the cell, in line with the other writes, without a comparison.
//!
//! **Why no owner is granted the lock twice or too early (L1, L2).** Such a place gives no right. It raises the
//! version of the cell, so that no client writes on top of a cell that it has read without this place. The next
//! write of the ledger compares as usual, and decides which owner holds, with which token.
//!
//! **Why no claim waits indefinitely (L6).** A write in line is applied after those before it: each of the other
//! clients makes one or two of them, and then reads, because its next comparison fails. The next reader of the cell
//! moves the place into the queue, hands the lock to its owner if the lock is free, and stores that with its own
//! write.
//!
//! **Why no waiter is overtaken (L7).** Places move into the queue in the order in which they were added, behind
//! those that were there. A cell that [is long](LONG) takes none: there the places next to it come first.
//!
//! **What may be left (L8).** A place that arrives after its owner has left expires, as a late claim does. It
//! arrives within [`LATE`] of its reading or not at all, and never in addition to its owner's lease or place.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_core::{Audience, BackendError, Claim, Hint, Host, LockName, Moment, OwnerId};
use tenure_ledger::{Change, Ledger, LedgerError, Place, Reliance, Rules, Unseen};

use crate::{
    beside::{FRONT, LOW, MovingUp, OwnPlaces, Snapshot},
    cell::{
        Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, NewCell, NewPlace, Newcomer,
        Patience, PlacesBeside, ReadRequest, ShownOwner, VerbError, WriteAnswer, WrittenCell, class_of_keys,
    },
    encode::{EACH, LONG, encode, encode_newcomer, encode_place, is_long},
    memory::{CellMemory, KnownCell, LATE, TOLERANCE, moment},
    tries::{NextStep, ReadingStep, Tried, Tries, VerbFailure, reliance},
    turns::{KeyedGuard, KeyedMutex},
};

/// Locks in the cells of a store. It is a [`Backend`](tenure_core::Backend).
pub struct Locks<C> {
    pub(crate) cell: Arc<C>,
    pub(crate) shared: Arc<SharedMemory>,
    /// Hints of other processes reached this handle at its last connection.
    pub(crate) is_notified: AtomicBool,
    verbs: KeyedMutex,
}

/// The common state of all handles of one process.
pub(crate) struct SharedMemory {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) rules: Rules,
    pub(crate) memory: CellMemory,
    pub(crate) own_places: OwnPlaces,
}

impl<C: Cell> Locks<C> {
    /// Locks in these cells, with these durations of the queue.
    pub fn new(cell: C, host: Arc<dyn Host>, rules: Rules) -> Self {
        let (memory, own_places) = (CellMemory::default(), OwnPlaces::default());
        Self::sharing(cell, Arc::new(SharedMemory { host, rules, memory, own_places }))
    }

    /// Another handle of this process.
    pub(crate) fn sharing(cell: C, shared: Arc<SharedMemory>) -> Self {
        let (cell, is_notified) = (Arc::new(cell), AtomicBool::new(true));
        Self { cell, shared, is_notified, verbs: KeyedMutex::default() }
    }

    pub(crate) async fn connect(&self, purpose: ConnectionPurpose) -> Result<C::Connection, BackendError> {
        let Connected { over, is_notified } = self.cell.connect(purpose).await?;
        if purpose == ConnectionPurpose::Wait {
            self.is_notified.store(is_notified, Ordering::Relaxed);
        }
        Ok(over)
    }

    /// Called only if a reading had places next to the cell.
    pub(crate) fn beside(&self) -> &dyn PlacesBeside<C::Connection> {
        self.cell.beside().expect("BUG: a cell that is read with places beside it has some")
    }

    /// Runs a verb on a lock.
    pub(crate) async fn step<V: CellVerb>(
        &self,
        name: &LockName,
        verb: &V,
    ) -> Result<V::Answer, BackendError> {
        let turn = if V::IN_TURN { Some(self.verbs.lock(name, &*self.shared.host).await) } else { None };
        let begun = self.shared.host.now();
        VerbRun { locks: self, name, verb, begun, tries: Tries::new(V::WAITS), found: None, ended: None }
            .run(turn)
            .await
    }
}

/// The start of a verb.
pub(crate) struct StepStart {
    /// Lengthened by the tolerance.
    pub(crate) rules: Rules,
    pub(crate) now: Moment,
    /// How far the writer's clock may be ahead of `now`, in addition to what the verb has waited.
    pub(crate) tolerance: Duration,
    /// How often a transaction was found that had a row of the owner locked.
    pub(crate) relied_on: u32,
}

impl StepStart {
    fn new(rules: &Rules, now: Duration, tolerance: Duration, relied_on: u32) -> Self {
        let (claim_ttl, place_ttl) = (rules.claim_ttl + tolerance, rules.place_ttl + tolerance);
        Self {
            rules: Rules { claim_ttl, place_ttl, rare_turns: RARE_TURNS, ..*rules },
            now: moment(now),
            tolerance,
            relied_on,
        }
    }
}

/// One verb.
pub(crate) trait CellVerb: Sync {
    /// The answer to the caller.
    type Answer: Send + Sync;

    /// Whether the cell is made if it does not exist.
    const CREATES: bool;

    /// Whether it waits for the client that has the cell locked.
    const WAITS: bool = true;

    /// How long its writes wait for that, at first.
    const PATIENCE: Patience = if Self::WAITS { Patience::Any } else { Patience::None };

    /// Whether it waits for other verbs of this handle on the lock, so that they do not race each other. A holder's
    /// verb does not.
    const IN_TURN: bool = false;

    /// Whether it ends a lease that has not expired.
    const ENDS_LEASES: bool = false;

    /// Runs on a ledger: every lease that it grants is longer by the tolerance.
    fn run(&self, ledger: &mut Ledger, at: &StepStart) -> Result<Change<Self::Answer>, LedgerError>;

    /// The claim, if this verb waits for a place or the lock.
    fn claim(&self) -> Option<&Claim> {
        None
    }

    /// # Errors
    /// If it was cancelled, and must stop.
    fn must_be_wanted(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Whether this answer is confirmed by a write although it changes nothing: the reading may be older than what
    /// it denies. `may_move`: another client may move up a place that it has read next to the cell before.
    fn is_confirmed(&self, _answer: &Self::Answer, _may_move: bool) -> bool {
        false
    }

    /// The answer, if none must be written.
    fn answer_unwritten(&self, _ledger: &Ledger, _rules: &Rules, _now: Moment) -> Option<Self::Answer> {
        None
    }

    /// The store's time after which it must not be written; `None` without a limit.
    fn latest(&self, _ledger: &Ledger) -> Option<Duration> {
        None
    }

    /// It may be tried later, so that the holder and the next one win the races for the cell (L6).
    fn yields(&self, _answer: &Self::Answer) -> bool {
        false
    }

    /// It did what was requested, so that the stored state is worth a try without a reading: the store compares.
    fn is_plain(&self, answer: &Self::Answer) -> bool;

    /// Whether `answer` leaves open that an earlier try of this client, with the answer `maybe`, has done it.
    fn is_unsettled(&self, maybe: &Self::Answer, answer: &Self::Answer) -> bool;
}

/// The more waiters are ahead, the less often a waiter asks, and the longer its place lasts without a claim (L6).
pub(crate) fn crowded(rules: &Rules, waiting: usize) -> Rules {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let retry_max =
        (Duration::from_secs(1) * waiting / ASKS).clamp(rules.retry_max, rules.retry_max * ASKS_LESS);
    Rules { retry_max, place_ttl: rules.place_ttl.max(retry_max * 3), ..*rules }
}

/// How many claim ttls the waiter gets that has waited longest: where no hint reaches it, it asks every 2 s.
const RARE_TURNS: u32 = 4;
/// A waiter waits one second longer for each 50 that are ahead.
const ASKS: u32 = 50;
/// A waiter asks at most this many times less often than by the rules: every 10 s instead of 2 s.
const ASKS_LESS: u32 = 5;

/// One verb in progress: does what its [`Tries`] decide.
struct VerbRun<'a, C: Cell, V: CellVerb> {
    locks: &'a Locks<C>,
    name: &'a LockName,
    verb: &'a V,
    begun: Moment,
    tries: Tries<V::Answer>,
    /// The cell as an earlier write found it, in place of the next reading.
    found: Option<CellReading>,
    /// The answer of the try that has ended a lease, and left its owner to a transaction.
    ended: Option<V::Answer>,
}

impl<C: Cell, V: CellVerb> VerbRun<'_, C, V> {
    async fn run(mut self, mut turn: Option<KeyedGuard<'_>>) -> Result<V::Answer, BackendError> {
        loop {
            let may_guess = self.tries.begin();
            let mut end = self.attempt(may_guess).await;
            if let Ok(Tried::Overtaken(found)) = &mut end {
                self.found = found.take();
            }
            match self.tries.on_end(end, |kept, answer| self.verb.is_unsettled(kept, answer)) {
                NextStep::Again { leaves: true } => drop(turn.take()),
                NextStep::Again { leaves: false } => {}
                NextStep::Answer(answer) => return Ok(self.ended.take().unwrap_or(answer)),
                NextStep::Fail(failure) => {
                    let error = self.error(failure).await;
                    return Err(self.tries.unsure(error));
                }
            }
        }
    }

    async fn error(&self, failure: VerbFailure) -> BackendError {
        let cell = &self.locks.cell;
        match failure {
            VerbFailure::Overtaken => cell.error(VerbError::Overtaken).retry_after(PAUSE),
            VerbFailure::Locked => cell.error(VerbError::Locked),
            VerbFailure::ReliedOn if !V::ENDS_LEASES => cell.error(VerbError::Locked),
            VerbFailure::ReliedOn => {
                let by = match self.locks.connect(ConnectionPurpose::Keep).await {
                    Ok(over) => cell.relying(&over).await,
                    Err(_) => String::new(),
                };
                // It has ended the lease.
                cell.error(VerbError::ReliedOn(by)).of_unknown_outcome()
            }
            VerbFailure::Unsettled => cell.error(VerbError::Unsettled),
            VerbFailure::Store(error) => error,
        }
    }

    /// Runs the verb once, on the state stored last or on a new reading.
    async fn attempt(&mut self, may_guess: bool) -> Result<Tried<V::Answer>, CellError> {
        let (locks, name, verb) = (self.locks, self.name, self.verb);
        let over = &locks.connect(self.purpose()).await.map_err(CellError::Refused)?;
        verb.must_be_wanted().map_err(CellError::Refused)?;
        let guess = if may_guess { locks.guess(name, verb, self.begun) } else { None };
        if let Some(draft) = guess {
            return locks.write(over, name, draft).await;
        }
        self.step_back().await;
        let (snapshot, up) = self.look(over).await?;
        verb.must_be_wanted().map_err(CellError::Refused)?;
        self.on_reading(snapshot.version, snapshot.now).await?;
        let has_lost = self.tries.is_contended();
        let Some((place, answer)) = locks.newcomer(verb, (&snapshot, up.as_ref()), has_lost) else {
            return self.attempt_on(over, (snapshot, up)).await;
        };
        match locks.enqueue(over, (name, place), &snapshot).await {
            Ok(Some(now)) => {
                self.tries.keep(answer);
                self.attempt_on(over, (now, None)).await
            }
            Ok(None) => self.attempt_on(over, (snapshot, up)).await,
            // L9: it may have its place, or get it later.
            Err(CellError::Broken(error)) => Ok(Tried::Late(error.of_unknown_outcome())),
            Err(failure) => Err(failure),
        }
    }

    /// Runs the verb on a reading.
    async fn attempt_on(
        &mut self,
        over: &C::Connection,
        (mut snapshot, up): (Snapshot, Option<MovingUp>),
    ) -> Result<Tried<V::Answer>, CellError> {
        let (locks, name, verb) = (self.locks, self.name, self.verb);
        let is_unacknowledged = locks.shared.memory.settle_below(name, snapshot.version);
        if !is_unacknowledged
            && !up.as_ref().is_some_and(|up| up.is_advanced)
            && snapshot.wakes.is_empty()
            && let Some(answer) =
                verb.answer_unwritten(&snapshot.ledger, &locks.shared.rules, moment(snapshot.now))
        {
            return Ok(Tried::Done(answer));
        }
        let is_full = snapshot.is_full(up.as_ref());
        let stands = verb.claim().filter(|claim| is_full && !snapshot.ledger.knows(claim.owner));
        let is_advanced = up.as_ref().is_some_and(|up| up.is_advanced);
        let is_first_of_classes =
            |claim: &Claim| !claim.priority.is_normal() && !snapshot.ledger.counts_grants();
        let must_write = is_advanced || stands.is_some_and(is_first_of_classes);
        let own = snapshot.beside.as_mut().and_then(|beside| beside.own.take());
        let (is_there, may_move) = (snapshot.version != 0, snapshot.may_move);
        let named = |error: BackendError| CellError::Refused(error.with("lock", name));
        let mut draft =
            locks.draft((snapshot, up), verb, (self.begun, self.tries.relied_on())).map_err(named)?;
        self.tries.on_draft(draft.until);
        let yields = verb.yields(&draft.change.answer);
        if let Some(claim) = stands.filter(|_| yields)
            && let Some(place) = draft.ledger.take_place(claim.owner)
        {
            return locks.stand_beside(over, claim, (own, place, must_write), draft).await;
        }
        draft.patience = self.patience(yields);
        // A write of this process that may still come is barred by one more: only then the answer is final. Where
        // there is no cell any more, none can come.
        let is_written =
            draft.change.changed || is_advanced || verb.is_confirmed(&draft.change.answer, may_move);
        if is_there && (is_written || is_unacknowledged) {
            let is_kept = reliance(self.tries.relied_on()) == Reliance::Found
                && draft.ledger.shows_an_expired_owner(moment(draft.now));
            return match locks.write(over, name, draft).await? {
                // The lease has ended, and the lock is not free.
                Tried::Done(answer) if is_kept && V::ENDS_LEASES => {
                    self.ended = Some(answer);
                    Err(CellError::ReliedOn)
                }
                end => Ok(end),
            };
        }
        Ok(Tried::Done(draft.change.answer))
    }

    fn purpose(&self) -> ConnectionPurpose {
        match self.verb.claim() {
            Some(_) => ConnectionPurpose::Wait,
            None if V::CREATES => ConnectionPurpose::Use,
            None => ConnectionPurpose::Keep,
        }
    }

    /// The present cell, with the first places next to it moved up.
    async fn look(&mut self, over: &C::Connection) -> Result<(Snapshot, Option<MovingUp>), CellError> {
        let (locks, claim) = (self.locks, self.verb.claim());
        let until =
            claim.map(|claim| locks.shared.own_places.until(self.name, (claim.owner, claim.priority)));
        let mut look = ReadRequest { until: until.unwrap_or_default(), creates: V::CREATES, whole: false };
        // The answer to a write has no places next to the cell. Only a renewal does not need them.
        let mut reading = match self.found.take().filter(|_| !V::WAITS) {
            Some(found) => found,
            None => locks.cell.read(over, self.name, &look).await?,
        };
        if V::CREATES && reading.version == 0 {
            if !self.tries.on_missing(reading.now, locks.shared.host.now()) {
                return Err(CellError::Refused(locks.cell.error(VerbError::Swallowed)));
            }
            reading.state = encode(&Ledger::new(0), false);
            let made = locks.cell.make(over, self.name, &reading.state).await?;
            let NewCell { version, at, is_ours } = made.ok_or(CellError::Overtaken)?;
            if !is_ours {
                return Err(CellError::Refused(locks.cell.error(VerbError::Altered)));
            }
            self.tries.on_made();
            (reading.version, reading.now) = (version, at);
        }
        let mut snapshot =
            Snapshot::of(reading, &locks.shared.rules).map_err(|error| locks.unreadable(error))?;
        let may_move = V::WAITS && snapshot.version != 0;
        if may_move && snapshot.needs_all() {
            look.whole = true;
            let reading = locks.cell.read(over, self.name, &look).await?;
            if reading.version == 0 {
                return Err(CellError::Overtaken);
            }
            snapshot = Snapshot::of(reading, &locks.shared.rules).map_err(|error| locks.unreadable(error))?;
        }
        let asker = claim.map(|claim| (claim, &look.until));
        let up = if may_move { snapshot.move_up(asker, &locks.shared.rules) } else { None };
        Ok((snapshot, up))
    }

    /// How long a write waits for the client that has the cell locked; `yields`: it may be written later.
    fn patience(&self, yields: bool) -> Patience {
        // If others commit all the time, the cell is hardly ever free: a renewal waits in line.
        let is_hot = self.tries.is_contended();
        if yields || (!V::WAITS && is_hot) { Patience::Brief } else { V::PATIENCE }
    }

    /// The cell was read at this version: waits for a client that commits, and is an error if none will.
    async fn on_reading(&mut self, version: i64, store_now: Duration) -> Result<(), CellError> {
        let Locks { cell, shared, .. } = self.locks;
        let is_unacknowledged = !V::WAITS && shared.memory.settle_below(self.name, version);
        match self.tries.on_reading(version, store_now, shared.host.now()) {
            ReadingStep::Continue => Ok(()),
            ReadingStep::Pause => {
                shared.host.sleep_until(shared.host.now() + PAUSE).await;
                Ok(())
            }
            ReadingStep::Locked => {
                let error = cell.error(VerbError::Locked);
                Err(CellError::Refused(if is_unacknowledged { error.of_unknown_outcome() } else { error }))
            }
            ReadingStep::Swallowed => Err(CellError::Refused(cell.error(VerbError::Swallowed))),
        }
    }

    /// Waits a random part of the delay.
    async fn step_back(&self) {
        let Some(most) = self.tries.delay() else { return };
        let host = &self.locks.shared.host;
        let mut chance = [0; 2];
        host.random(&mut chance);
        host.sleep_until(host.now() + most * u32::from(u16::from_be_bytes(chance)) / (1 << 16)).await;
    }
}

/// The operations on the cell.
impl<C: Cell> Locks<C> {
    /// The verb on the state stored last, if that has the requested effect or was stored just now.
    pub(crate) fn guess<V: CellVerb>(
        &self,
        name: &LockName,
        verb: &V,
        begun: Moment,
    ) -> Option<Draft<V::Answer>> {
        let now = self.shared.memory.store_time(self.shared.host.now())?;
        let tolerance = self.shared.memory.tolerance();
        let seen = self.shared.memory.seen(name)?;
        let is_fresh = seen.is_fresh(self.shared.host.now());
        let mut ledger = seen.ledger;
        ledger.leave_out(Unseen { is_partial: seen.is_long, ..Unseen::default() });
        ledger.rely(Reliance::Unknown);
        let (shown, is_over) = (ledger.shown(), ledger.shows_an_expired_owner(moment(now)));
        // A claim must see the places next to the cell, and so must a verb that moves them up.
        let moves_up = ledger.waiting() <= LOW || ledger.needs_whole_queue();
        if seen.is_long && (verb.claim().is_some() || moves_up) {
            return None;
        }
        let change = verb.run(&mut ledger, &StepStart::new(&self.shared.rules, now, tolerance, 0)).ok()?;
        let is_likely = change.changed && (is_fresh || verb.is_plain(&change.answer));
        let has_beside = seen.has_beside;
        let is_long = seen.is_long || has_beside && ledger.waiting() >= FRONT;
        let until = self.until((verb, &ledger), now, begun, tolerance);
        let draft = Draft {
            version: seen.version,
            before: seen.state,
            shown: changed(shown, ledger.shown()),
            is_over,
            ledger,
            is_long,
            has_beside,
            gone: Vec::new(),
            change,
            patience: V::PATIENCE,
            now,
            until,
        };
        is_likely.then_some(draft)
    }

    /// The verb on a reading, after the places that move up.
    pub(crate) fn draft<V: CellVerb>(
        &self,
        (snapshot, up): (Snapshot, Option<MovingUp>),
        verb: &V,
        (begun, relied_on): (Moment, u32),
    ) -> Result<Draft<V::Answer>, BackendError> {
        let has_beside = snapshot.may_begin();
        let Snapshot { version, state: before, mut ledger, is_long: was_long, wakes, now, .. } = snapshot;
        let tolerance = self.shared.memory.tolerance();
        let (shown, is_over) = (ledger.shown(), ledger.shows_an_expired_owner(moment(now)));
        if up.is_none() && was_long {
            ledger.leave_out(Unseen { is_partial: true, ..Unseen::default() });
        }
        ledger.rely(reliance(relied_on));
        let change = verb.run(&mut ledger, &StepStart::new(&self.shared.rules, now, tolerance, relied_on));
        let mut change = change.map_err(|error| self.cell.error(VerbError::Ledger(error)))?;
        let is_more = up.as_ref().map_or(was_long, |up| up.is_more);
        // Where no place can be next to the cell, no client would detect that none is left there. Then the cell would
        // be long, and so busy, indefinitely.
        let is_long = is_more || has_beside && ledger.waiting() >= FRONT;
        let gone = up.map_or_else(Vec::new, |up| up.gone);
        change.wakes.splice(0..0, wakes);
        let until = self.until((verb, &ledger), now, begun, tolerance);
        Ok(Draft {
            version,
            before,
            shown: changed(shown, ledger.shown()),
            is_over,
            ledger,
            is_long,
            has_beside,
            gone,
            change,
            patience: V::PATIENCE,
            now,
            until,
        })
    }

    /// The latest time for a write of a verb that began at `begun` and runs at `now`.
    fn until<V: CellVerb>(
        &self,
        (verb, ledger): (&V, &Ledger),
        now: Duration,
        begun: Moment,
        tolerance: Duration,
    ) -> Duration {
        let waited = begun.elapsed(self.shared.host.now());
        let until = now + (waited + tolerance).min(LATE);
        verb.latest(ledger).map_or(until, |latest| latest.min(until))
    }

    /// The place of a claim that would wait, or that `has_lost` a race, and its answer; `None` if it must not be
    /// put into the cell.
    fn newcomer<V: CellVerb>(
        &self,
        verb: &V,
        (snapshot, up): (&Snapshot, Option<&MovingUp>),
        has_lost: bool,
    ) -> Option<(Place, V::Answer)> {
        let (ledger, rules) = (&snapshot.ledger, &self.shared.rules);
        let claim = verb.claim().filter(|claim| !ledger.knows(claim.owner))?;
        if snapshot.version == 0 || snapshot.is_long || snapshot.is_full(up) {
            return None;
        }
        let change =
            verb.run(&mut ledger.clone(), &StepStart::new(rules, snapshot.now, TOLERANCE, 0)).ok()?;
        // A write of the ledger notifies the owner whose turn has come (L6).
        let is_quiet = snapshot.wakes.is_empty() && change.wakes.is_empty();
        let waits = is_quiet && verb.yields(&change.answer);
        let place = || Place::of(claim, moment(snapshot.now), rules, ledger.waiting());
        (waits || has_lost).then(|| (place(), change.answer))
    }

    /// Puts a place into a cell; returns the new cell, `None` if the cell did not take it.
    async fn enqueue(
        &self,
        over: &C::Connection,
        (name, place): (&LockName, Place),
        before: &Snapshot,
    ) -> Result<Option<Snapshot>, CellError> {
        let newcomer = Newcomer {
            owner: place.owner(),
            state: &encode_newcomer(&place),
            long: LONG,
            each: EACH,
            most: if before.may_begin() { FRONT } else { self.shared.rules.places_max },
            within: on_time(before.now),
        };
        let Some(reading) = self.cell.enqueue(over, name, &newcomer).await? else { return Ok(None) };
        self.shared.memory.forget(name);
        Snapshot::of(reading, &self.shared.rules).map(Some).map_err(|error| self.unreadable(error))
    }

    /// For a claim that gets no place in the cell: it was taken out of the draft.
    async fn stand_beside<A: Send + Sync>(
        &self,
        over: &C::Connection,
        claim: &Claim,
        (own, place, must_write): (Option<Place>, Place, bool),
        mut draft: Draft<A>,
    ) -> Result<Tried<A>, CellError> {
        // In four cases the cell is written before the waiter is answered. The turn of another owner has come (L6).
        // The cell has no owner left, and the owners of the first places next to it have left without a release: no
        // other client writes the cell then, and the waiters behind them would wait indefinitely. Or there are places
        // next to the cell without a mark in its text, because an older version of Tenure wrote it. Or grants are counted
        // from now on, because this waiter is of another class than those before; or the one that has waited longest has moved.
        let is_stuck = draft.ledger.is_deserted() && !draft.gone.is_empty();
        if !draft.change.wakes.is_empty() || is_stuck || must_write || !draft.was_long() {
            draft.patience = Patience::Brief;
            let written = self.write(over, &claim.name, draft).await?;
            return Ok(if let Tried::Done(_) = written { Tried::Overtaken(None) } else { written });
        }
        let is_there = match own {
            Some(own) => self.keep(over, claim, (own, place, draft.now), &draft.ledger).await,
            None => self.stand_at_the_end(over, claim, (&place, draft.now)).await,
        };
        match is_there {
            Ok(true) => Ok(Tried::Done(draft.change.answer)),
            Ok(false) => Ok(Tried::Overtaken(None)),
            // L9: it may be there, or will be.
            Err(CellError::Broken(error)) => Ok(Tried::Late(error.of_unknown_outcome())),
            Err(failure) => Err(failure),
        }
    }

    /// Keeps the place next to the cell. False if it has moved up since.
    async fn keep(
        &self,
        over: &C::Connection,
        claim: &Claim,
        (own, place, now): (Place, Place, Duration),
        ledger: &Ledger,
    ) -> Result<bool, CellError> {
        let rules = crowded(&self.shared.rules, ledger.waiting());
        if !own.is_over(moment(now + rules.retry_max * 3 / 2)) {
            return Ok(true);
        }
        let key = self.shared.own_places.key(&claim.name, claim.owner);
        let state = encode_place(&own.lasting_as(&place));
        let place = NewPlace {
            key: Some(key.as_str()),
            owner: claim.owner,
            class: class_of_keys(place.priority()),
            state: &state,
            may_be_there: true,
            behind: LONG,
            within: on_time(now),
        };
        Ok(self.beside().put(over, &claim.name, &place).await?.is_some())
    }

    async fn stand_at_the_end(
        &self,
        over: &C::Connection,
        claim: &Claim,
        (place, now): (&Place, Duration),
    ) -> Result<bool, CellError> {
        let (own_places, name, owner) = (&self.shared.own_places, &claim.name, claim.owner);
        let state = encode_place(place);
        let may_be_there = own_places.send(name, owner, self.shared.host.now());
        let within = on_time(now);
        let class = class_of_keys(place.priority());
        let place = NewPlace { key: None, owner, class, state: &state, may_be_there, behind: LONG, within };
        let Some(key) = self.beside().put(over, name, &place).await? else { return Ok(false) };
        own_places.stands(name, owner, key, self.shared.host.now());
        Ok(true)
    }

    /// Stores a draft if no other client wrote since, notifies other processes with the same write, and this one
    /// after it.
    async fn write<A: Send + Sync>(
        &self,
        over: &C::Connection,
        name: &LockName,
        draft: Draft<A>,
    ) -> Result<Tried<A>, CellError> {
        let (state, hints) = (draft.text(), draft.hints());
        let away = self.elsewhere(&hints);
        let sent = WriteInFlight::new(self, name, draft.version, hints);
        let sent_at = self.shared.host.now();
        let write = draft.write(&state, &away);
        let answer = self.cell.write(over, name, &write).await;
        if let Err(CellError::Broken(error)) = answer {
            return Ok(Tried::Lost(error.of_unknown_outcome(), draft.change.answer));
        }
        let hints = sent.settle();
        let WrittenCell { at, is_ours } = match answer? {
            WriteAnswer::Done(written) => written,
            WriteAnswer::Locked(_) if draft.shown.is_some() => {
                self.shared.memory.forget(name);
                self.stop_relying(over, name, &write, draft.ended()).await;
                return Err(CellError::ReliedOn);
            }
            WriteAnswer::Changed(found) | WriteAnswer::Locked(found) => {
                self.shared.memory.forget(name);
                return Ok(Tried::Overtaken(found));
            }
        };
        if !is_ours {
            self.shared.memory.forget(name);
            return Err(CellError::Refused(self.cell.error(VerbError::Altered)));
        }
        self.shared.memory.learn(at, (sent_at, self.shared.host.now()));
        Ok(Tried::Done(self.stored(name, draft, state, &hints)))
    }

    /// The owner that this write would end is no longer one on which a transaction begins to rely. Not before its lease has
    /// ended: a holder that is renewed can write, even if the verb that would end it does not come to its end.
    // L6, L8.
    async fn stop_relying(
        &self,
        over: &C::Connection,
        name: &LockName,
        write: &CellWrite<'_>,
        ended: Option<&str>,
    ) {
        let Some(former) = ended else { return };
        // OK to ignore because it stops only who begins: those who rely on it are found by the next try.
        if let Err(failure) = self.cell.stop_relying(over, name, write, former).await {
            tracing::debug!(?failure, "transactions may still begin to rely on an owner");
        }
    }

    /// A write succeeded: no older one can any more.
    pub(crate) fn stored<A>(&self, name: &LockName, draft: Draft<A>, state: String, hints: &[Hint]) -> A {
        let (version, memory) = (draft.version + 1, &self.shared.memory);
        let Draft { ledger, is_long, has_beside, change, .. } = draft;
        // An unacknowledged write below it can no longer be applied; whether there was one changes nothing here.
        let _ = memory.settle_below(name, version);
        let at = self.shared.host.now();
        memory.remember(name, KnownCell { version, state, ledger, is_long, has_beside, at });
        self.deliver(hints);
        change.answer
    }

    /// The hints for other processes.
    pub(crate) fn elsewhere(&self, hints: &[Hint]) -> Vec<Hint> {
        hints.iter().copied().filter(|hint| !self.cell.reaches(*hint)).collect()
    }

    fn deliver(&self, hints: &[Hint]) {
        hints.iter().for_each(|hint| self.cell.deliver(*hint));
    }

    pub(crate) fn unreadable(&self, error: LedgerError) -> CellError {
        CellError::Refused(self.cell.error(VerbError::Ledger(error)))
    }
}

/// The row that changes, of those in which transactions look for the owner, and its new text.
fn changed(before: Option<(u32, String)>, after: Option<(u32, String)>) -> Option<ShownChange> {
    match (before, after) {
        (before, after) if before == after => None,
        (Some((slot, former)), _) => Some(ShownChange { slot, former: Some(former), text: String::new() }),
        (None, after) => after.map(|(slot, text)| ShownChange { slot, former: None, text }),
    }
}

/// The row in which transactions look for the owner, as a write changes it.
#[derive(Debug)]
pub(crate) struct ShownChange {
    slot: u32,
    /// The owner that it has, and will not have any more.
    former: Option<String>,
    text: String,
}

/// The store times at which a place that was made at `now` may be stored. By a clock behind `now` it would expire too early.
fn on_time(now: Duration) -> (Duration, Duration) {
    (now, now + LATE)
}

/// A verb that was run, and must be stored.
pub(crate) struct Draft<A> {
    /// The version below it; 0: there is no cell, and nothing to store.
    pub(crate) version: i64,
    /// The text below it. After a failover another history of the cell may have reached the same version; and a
    /// pooler may send a reading and the following write to two servers.
    before: String,
    /// The row in which transactions look for the owner, if it changes.
    pub(crate) shown: Option<ShownChange>,
    /// The lease of the owner that this row had has ended.
    is_over: bool,
    ledger: Ledger,
    /// There may be places next to the cell.
    is_long: bool,
    has_beside: bool,
    /// Keys of the places that move up with this.
    gone: Vec<String>,
    pub(crate) change: Change<A>,
    patience: Patience,
    /// The time at which the verb ran: read from the store, perhaps from another server of it, or guessed.
    now: Duration,
    /// The latest time of the store's clock for the write.
    until: Duration,
}

impl<A> Draft<A> {
    /// As the cell keeps it.
    pub(crate) fn text(&self) -> String {
        encode(&self.ledger, self.is_long)
    }

    /// The write, with this text and these hints.
    pub(crate) fn write<'a>(&'a self, state: &'a str, hints: &'a [Hint]) -> CellWrite<'a> {
        CellWrite {
            on: (self.version, &self.before),
            state,
            is_busy: self.is_long || !self.ledger.is_free(),
            within: (self.now, self.until),
            patience: self.patience,
            hints,
            gone: &self.gone,
            is_last: !self.is_long && self.was_long(),
            shown: self.shown.as_ref().map(|shown| ShownOwner { slot: shown.slot, text: &shown.text }),
        }
    }

    /// The owner that it removes, as transactions look for it, if its lease has ended.
    fn ended(&self) -> Option<&str> {
        self.shown.as_ref()?.former.as_deref().filter(|_| self.is_over)
    }

    /// The text of the cell already has the mark for places next to it.
    fn was_long(&self) -> bool {
        is_long(&self.before)
    }

    /// The owners to notify, once it is stored.
    pub(crate) fn hints(&self) -> Vec<Hint> {
        let wakes = &self.change.wakes;
        let behind = self.behind();
        let hint = |&(audience, owner): &(Audience, OwnerId)| {
            let is_behind = audience == Audience::Waiters && behind == Some(owner);
            Hint { audience, owner, is_behind }
        };
        wakes.iter().map(hint).collect()
    }

    /// An owner that is notified although it was not granted: it is behind those that were, in case they are dead.
    fn behind(&self) -> Option<OwnerId> {
        // If this grants no owner, there is none to wait for.
        let [first, .., (Audience::Waiters, last)] = &self.change.wakes[..] else { return None };
        (self.ledger.holds(first.1) && !self.ledger.holds(*last)).then_some(*last)
    }
}

/// A write in flight. If it is dropped before it is settled, it is unacknowledged. The next verb on that lock then
/// determines its outcome, and the owners of this process that it may affect are notified, because no other process
/// notifies them.
pub(crate) struct WriteInFlight<'a, C: Cell> {
    locks: &'a Locks<C>,
    name: &'a LockName,
    /// The version below it.
    version: i64,
    hints: Vec<Hint>,
    is_settled: bool,
}

impl<'a, C: Cell> WriteInFlight<'a, C> {
    pub(crate) fn new(locks: &'a Locks<C>, name: &'a LockName, version: i64, hints: Vec<Hint>) -> Self {
        Self { locks, name, version, hints, is_settled: false }
    }

    /// The store has reported the outcome; returns the owners to notify.
    pub(crate) fn settle(mut self) -> Vec<Hint> {
        self.is_settled = true;
        std::mem::take(&mut self.hints)
    }
}

impl<C: Cell> Drop for WriteInFlight<'_, C> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.locks.shared.memory.add_unacknowledged(self.name, self.version);
            // A cell that it may have changed is no base for a guess.
            self.locks.shared.memory.forget(self.name);
            self.locks.deliver(&self.hints);
        }
    }
}

/// The pause before the next try of a verb that lost every race, or whose cell is locked.
const PAUSE: Duration = Duration::from_millis(5);
