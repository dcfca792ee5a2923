//! One verb on one lock, by comparing and setting the version of its cell.
//!
//! A verb reads the cell and the store's clock, runs on the ledger here, and writes it if version and text are still those that
//! were read. Nothing is locked between the two, and nobody is waited for longer than one commit.
//!
//! **Why a time that was read before the write will do.** Let `now` be that time. It lies after the request was sent, so a lease
//! that ends at `now` + ttl ends no sooner than what its owner believes in, which counts from before that (L3, H2.2). What was over
//! at `now` is over at the write. And whatever anybody else has done since then has changed the version, so that this write does
//! not happen. A write that waits for a stranger's transaction ends leases early, as seen from when it happens, never late.
//!
//! **Where there is no cell, one is made first, which nobody holds.** A write is always on top of a version that the store gave, and
//! cells that were made one after the other never have the same: so a claim that comes late, after the cell was granted to others
//! and deleted, does not find what it was made from, and cannot be granted a token below theirs (L2). A write that comes later
//! than [`LATE`] after its reading is refused as well, and reads again: what it was made from may have come back, from a backup.
//!
//! **The first try is blind.** It runs on the ledger that this process stored last, at a time that the store's clock has surely
//! reached, and the store itself confirms both: it writes if the cell is the same and its clock is at most [`TOLERANCE`] further.
//! The leases given are longer by the tolerance, so that they last the ttl at least, counted from the store's own time.
//!
//! **What is not known is asked again.** After a lost answer the verb runs once more over a new connection, as the same owner. What
//! it finds says what became of the first try, except where a write may still come: that one is barred by writing on top of the
//! version that it compares.
//!
//! [`LATE`]: crate::memory::LATE
//! [`TOLERANCE`]: crate::memory::TOLERANCE

use std::time::Duration;

use tenure_core::{BackendError, LockName, Moment};
use tenure_ledger::Ledger;

use crate::{
    cell::{Cell, Failure, Look, Made, Patience, Purpose, Trouble},
    keyed_mutex::KeyedGuard,
    locks::Locks,
    memory::{LATE, moment},
    snapshot::{MovingUp, Snapshot},
    text::encode,
    verb::Verb,
    write::Tried,
};

/// How often a verb reads again after somebody else was faster. Each time that happens somebody else has made progress.
const TRIES: usize = 64;

/// One verb on its way.
struct Step<'a, C: Cell, V: Verb> {
    locks: &'a Locks<C>,
    name: &'a LockName,
    verb: &'a V,
    contention: Option<Contention>,
    /// What an earlier try has done, or may have.
    maybe: Option<V::Answer>,
    /// How often the cell was locked for longer than a commit takes.
    locked: u32,
    /// How many cells it has made.
    made: usize,
}

/// A cell that was to be written, and was not.
struct Contention {
    version: i64,
    /// When it was read last, by the store's clock.
    read: Duration,
    since: Moment,
    /// It was at another version before: others commit.
    has_moved: bool,
    /// How often it was found at this version.
    times: usize,
}

impl Contention {
    /// It was written in time, and is at the same version.
    fn is_still(&self, version: i64, now: Duration) -> bool {
        self.version == version && now <= self.read + LATE
    }
}

impl<C: Cell> Locks<C> {
    /// Runs a verb on a lock.
    pub(crate) async fn step<V: Verb>(&self, name: &LockName, verb: &V) -> Result<V::Answer, BackendError> {
        let turn = if V::IN_TURN { Some(self.verbs.lock(name, &*self.shared.host).await) } else { None };
        Step { locks: self, name, verb, contention: None, maybe: None, locked: 0, made: 0 }.run(turn).await
    }
}

impl<C: Cell, V: Verb> Step<'_, C, V> {
    async fn run(mut self, mut turn: Option<KeyedGuard<'_>>) -> Result<V::Answer, BackendError> {
        let cell = &self.locks.cell;
        let mut breaks = 0;
        let unsure = |error: BackendError, maybe: &Option<V::Answer>| {
            if maybe.is_some() { error.of_unknown_outcome() } else { error }
        };
        for count in 0..TRIES {
            let failure = match self.attempt(count == 0).await {
                Ok(Tried::Done(answer)) => {
                    let is_unsettled =
                        self.maybe.is_some_and(|maybe| self.verb.is_unsettled(&maybe, &answer));
                    return if is_unsettled { Err(cell.error(Trouble::Unsettled)) } else { Ok(answer) };
                }
                Ok(Tried::Overtaken) => {
                    // Whoever steps back keeps nobody waiting.
                    drop(turn.take());
                    continue;
                }
                Ok(Tried::Lost(error, answer)) => {
                    self.maybe = Some(answer);
                    Failure::Broken(error)
                }
                // L8: another try would tell the caller how that one ended, and no release would come behind this one.
                Ok(Tried::Late(error)) => return Err(error),
                Err(failure) => failure,
            };
            match failure {
                // Read back on one new connection, as the same owner.
                Failure::Broken(_) if breaks == 0 => breaks += 1,
                Failure::Overtaken => self.is_told(),
                // The next try waits before it reads.
                Failure::Locked if V::WAITS && self.locked < ASIDE => {
                    drop(turn.take());
                    self.locked += 1;
                    self.is_told();
                }
                Failure::Locked => return Err(unsure(cell.error(Trouble::Locked), &self.maybe)),
                Failure::Broken(error) | Failure::Refused(error) => return Err(unsure(error, &self.maybe)),
            }
        }
        Err(unsure(cell.error(Trouble::Overtaken).retry_after(PAUSE), &self.maybe))
    }

    /// Runs the verb once, on what was stored last or on what is read now.
    async fn attempt(&mut self, may_guess: bool) -> Result<Tried<V::Answer>, Failure> {
        let (locks, name, verb) = (self.locks, self.name, self.verb);
        let over = &locks.cell.connect(self.purpose()).await.map_err(Failure::Refused)?;
        verb.must_be_wanted().map_err(Failure::Refused)?;
        let guess = if may_guess { locks.guess(name, verb, locks.store_time()) } else { None };
        if let Some(draft) = guess {
            return locks.write(over, name, draft).await;
        }
        if self.locked > 0 {
            self.step_back().await;
        }
        let (snapshot, up) = self.look(over).await?;
        verb.must_be_wanted().map_err(Failure::Refused)?;
        if V::WAITS {
            self.must_have_moved(snapshot.version, snapshot.now)?;
        } else {
            let is_doubted = locks.shared.memory.is_in_doubt(name, snapshot.version);
            self.wait_for_commit((snapshot.version, snapshot.now), is_doubted).await?;
        }
        let has_lost = self.contention.as_ref().is_some_and(|cell| cell.has_moved);
        let Some((place, answer)) = locks.newcomer(verb, (&snapshot, up.as_ref()), has_lost) else {
            return self.attempt_on(over, (snapshot, up)).await;
        };
        match locks.enqueue(over, (name, place), &snapshot).await {
            Ok(Some(now)) => {
                self.maybe = Some(answer);
                self.attempt_on(over, (now, None)).await
            }
            Ok(None) => self.attempt_on(over, (snapshot, up)).await,
            // L9: it may have its place, or get it later.
            Err(Failure::Broken(error)) => Ok(Tried::Late(error.of_unknown_outcome())),
            Err(failure) => Err(failure),
        }
    }

    /// Runs the verb on what was read.
    async fn attempt_on(
        &mut self,
        over: &C::Connection,
        (mut snapshot, up): (Snapshot, Option<MovingUp>),
    ) -> Result<Tried<V::Answer>, Failure> {
        let (locks, name, verb) = (self.locks, self.name, self.verb);
        let is_doubted = locks.shared.memory.is_in_doubt(name, snapshot.version);
        if !is_doubted
            && snapshot.news.is_empty()
            && let Some(answer) = verb.glance(&snapshot.ledger, &locks.shared.rules, moment(snapshot.now))
        {
            return Ok(Tried::Done(answer));
        }
        let is_full = snapshot.is_full(up.as_ref());
        let stands = verb.claim().filter(|claim| is_full && !snapshot.ledger.knows(claim.owner));
        let own = snapshot.beside.as_mut().and_then(|beside| beside.own.take());
        let (is_there, may_move) = (snapshot.version != 0, snapshot.may_move);
        let named = |error: BackendError| Failure::Refused(error.with("lock", name));
        let mut draft = locks.draft((snapshot, up), verb).map_err(named)?;
        let yields = verb.yields(&draft.change.answer);
        if let Some(claim) = stands.filter(|_| yields)
            && let Some(place) = draft.ledger.take_last()
        {
            return locks.stand_beside(over, claim, (own, place), draft).await;
        }
        draft.patience = self.patience(yields);
        // A write of ours that may still come is barred by one more: only then the answer is final. Where there is no cell any more,
        // none can come.
        if is_there && (draft.change.changed || is_doubted || (verb.bars() && may_move)) {
            return locks.write(over, name, draft).await;
        }
        Ok(Tried::Done(draft.change.answer))
    }

    fn purpose(&self) -> Purpose {
        match self.verb.claim() {
            Some(_) => Purpose::Wait,
            None if V::CREATES => Purpose::Use,
            None => Purpose::Keep,
        }
    }

    /// The cell as it is now, with those who stand first beside it moved up.
    async fn look(&mut self, over: &C::Connection) -> Result<(Snapshot, Option<MovingUp>), Failure> {
        let (locks, claim) = (self.locks, self.verb.claim());
        let until = claim.map(|claim| locks.shared.own_places.until(self.name, claim.owner));
        let look = Look { until: until.unwrap_or_default(), creates: V::CREATES };
        let mut reading = locks.cell.read(over, self.name, &look).await?;
        if V::CREATES && reading.version == 0 {
            self.must_have_moved(0, reading.now)?;
            if self.made == SWALLOWED {
                return Err(Failure::Refused(locks.cell.error(Trouble::Swallowed)));
            }
            reading.state = encode(&Ledger::new(0), false);
            let made = locks.cell.make(over, self.name, &reading.state).await?;
            let Made { version, at, is_ours } = made.ok_or(Failure::Overtaken)?;
            if !is_ours {
                return Err(Failure::Refused(locks.cell.error(Trouble::Altered)));
            }
            self.made += 1;
            (reading.version, reading.now) = (version, at);
        }
        locks.shared.memory.learn(reading.now, locks.shared.host.now());
        let mut snapshot =
            Snapshot::of(reading, &locks.shared.rules).map_err(|error| locks.unreadable(error))?;
        let asker = claim.map(|claim| (claim.owner, &look.until));
        let may_move = V::WAITS && snapshot.version != 0;
        let up = if may_move { snapshot.move_up(asker, &locks.shared.rules) } else { None };
        Ok((snapshot, up))
    }

    /// How long a write waits for who has the cell locked; `yields`: it may be written later.
    fn patience(&self, yields: bool) -> Patience {
        // Where others commit all the time, the cell is hardly ever free: a renewal gets in line.
        let is_hot = self.contention.as_ref().is_some_and(|cell| cell.has_moved);
        if yields || (!V::WAITS && is_hot) { Patience::Brief } else { V::PATIENCE }
    }

    /// The cell was skipped, and is as it was: somebody has it locked, unless the write came too late. Whoever commits is done in a
    /// moment; a stranger that stays in its transaction is not waited for.
    async fn wait_for_commit(
        &mut self,
        (version, now): (i64, Duration),
        is_doubted: bool,
    ) -> Result<(), Failure> {
        let host = &self.locks.shared.host;
        match &mut self.contention {
            Some(cell) if cell.is_still(version, now) => {
                if cell.since.elapsed(host.now()) >= COMMIT {
                    let error = self.locks.cell.error(Trouble::Locked);
                    let error = if is_doubted { error.of_unknown_outcome() } else { error };
                    return Err(Failure::Refused(error));
                }
                cell.read = now;
                host.sleep_until(host.now() + PAUSE).await;
            }
            other => {
                let has_moved = other.as_ref().is_some_and(|cell| cell.version != version);
                let since = host.now();
                self.contention = Some(Contention { version, read: now, since, has_moved, times: 1 });
            }
        }
        Ok(())
    }

    /// A write that waits for whoever has the cell locked finds it changed, or changes it. A cell that is read again and again as it
    /// was is one that the store does not let us change, and no answer but an error may come of it (L1).
    fn must_have_moved(&mut self, version: i64, now: Duration) -> Result<(), Failure> {
        let same = self.contention.as_ref().filter(|cell| cell.is_still(version, now));
        let times = same.map_or(1, |cell| cell.times + 1);
        if times > SWALLOWED {
            return Err(Failure::Refused(self.locks.cell.error(Trouble::Swallowed)));
        }
        let since = self.locks.shared.host.now();
        // One that was made a moment ago has not.
        let moves = self.contention.as_ref().is_some_and(|cell| cell.version != version && cell.version != 0);
        // Who had it locked has committed: that was no stranger.
        self.locked = if moves { 0 } else { self.locked };
        let has_moved = moves || self.contention.as_ref().is_some_and(|cell| cell.has_moved);
        self.contention = Some(Contention { version, read: now, since, has_moved, times });
        Ok(())
    }

    /// The store has said why it did not write the cell: it is none that drops what is written.
    fn is_told(&mut self) {
        self.contention.iter_mut().for_each(|cell| cell.times = 0);
    }

    /// While a stranger has the cell locked, for a time that chance chooses, longer each time: a connection that waits for a lock is
    /// of no use to others.
    async fn step_back(&self) {
        let host = &self.locks.shared.host;
        let mut chance = [0; 2];
        host.random(&mut chance);
        let most = STEP_BACK * (1 << self.locked.min(ASIDE));
        host.sleep_until(host.now() + most * u32::from(u16::from_be_bytes(chance)) / (1 << 16)).await;
    }
}

/// How long a commit may take before the cell counts as locked by a stranger.
const COMMIT: Duration = Duration::from_millis(50);
/// How long a waiter steps back at most after it has found the cell locked; doubled with each time.
const STEP_BACK: Duration = Duration::from_millis(2);
/// How often a waiter finds the cell locked by a stranger before it says so.
const ASIDE: u32 = 8;
/// How often a cell may be read at one version. Once or twice it may be so for another reason: a connection that broke, a cell that
/// was deleted in between. And so many cells may be made that are gone when they are written.
const SWALLOWED: usize = 5;
/// Before the next try of a verb that lost every race, or whose cell is locked.
const PAUSE: Duration = Duration::from_millis(5);
