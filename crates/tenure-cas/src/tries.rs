//! `Tries`: how often a verb is tried on its cell, when the next try starts, and what its answer is worth.

use std::time::Duration;

use tenure_core::{BackendError, Moment};
use tenure_ledger::Reliance;

use crate::cell::{CellError, CellReading};

/// How one try ended.
pub(crate) enum Tried<A> {
    Done(A),
    /// Another client wrote first: read again, unless this is the cell now.
    Overtaken(Option<CellReading>),
    /// It was sent, and had no answer. It compares: it is done by now, or never.
    Lost(BackendError, A),
    /// It was sent, compares nothing, and may be done later.
    Late(BackendError),
}

/// What the verb does next.
#[derive(Debug)]
pub(crate) enum NextStep<A> {
    /// Try once more. A verb that steps back delays no other verb of its handle: it `leaves` the turn that it has.
    Again {
        leaves: bool,
    },
    Answer(A),
    Fail(VerbFailure),
}

/// Why it fails.
#[derive(Debug)]
pub(crate) enum VerbFailure {
    /// Another client was faster each time.
    Overtaken,
    /// Another transaction has the cell locked for longer than a commit takes.
    Locked,
    /// A transaction that relies on the owner is open.
    ReliedOn,
    /// It had been done, it no longer is, and it is not known whether an earlier try of this verb ended it.
    Unsettled,
    Store(BackendError),
}

/// What a reading of the cell means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadingStep {
    Continue,
    /// The client that has the cell locked commits in a moment.
    Pause,
    /// A foreign transaction has the cell locked.
    Locked,
    /// The store does not let this client change the cell.
    Swallowed,
}

/// The tries of one verb.
///
/// ```text
///          ┌──── another client wrote first, or has the cell locked: 64 and 8 times at most ────┐
///          ▼                                                                                    │
/// Guess  Read ──┬─ 5 times at one version ──────────────────────► Fail(Swallowed)               │
///   │      ▲    ├─ at one version for 50 ms, if it does not wait ► Fail(Locked)                 │
///   │      │    └─► Write ──────────────────────────────────────────────────────────────────────┤
///   └──────┼────────┤                                                                           │
///          ├────────┼─ a transaction has the row of the owner locked: 8 times ──────────────────┤
///          └────────┼─ no answer, once: its result is kept ─────────────────────────────────────┘
///                   ├─ stored ──────────────────────────────────► Answer
///                   ├─ stored, and a kept result may be the end of it ► Fail(Unsettled)
///                   └─ refused, a second time no answer, too often ───► Fail; unknown if a result is kept
/// ```
pub(crate) struct Tries<A> {
    /// It waits for the client that has the cell locked.
    waits: bool,
    begun: usize,
    /// How many tries ended without an answer.
    broken: usize,
    /// How often in a row the cell was locked for longer than a commit takes.
    locked: u32,
    /// How often a transaction had the row of the owner locked.
    relied_on: u32,
    /// How many cells it has made.
    made: usize,
    /// The results that earlier tries have, or may have.
    kept: Vec<A>,
    contention: Option<Contention>,
}

/// A cell that could not be written.
struct Contention {
    version: i64,
    /// The last moment of the write that was made from the last reading, by the store's clock.
    until: Duration,
    since: Moment,
    /// It was at another version before: others commit.
    has_moved: bool,
    /// How often it was found at this version.
    times: usize,
}

impl Contention {
    fn new(version: i64, since: Moment, has_moved: bool, times: usize) -> Self {
        Self { version, until: Duration::MAX, since, has_moved, times }
    }

    /// The write was in time, and the cell is at the same version.
    fn is_still(&self, version: i64, store_now: Duration) -> bool {
        self.version == version && store_now <= self.until
    }
}

impl<A> Tries<A> {
    pub(crate) fn new(waits: bool) -> Self {
        Self {
            waits,
            begun: 0,
            broken: 0,
            locked: 0,
            relied_on: 0,
            made: 0,
            kept: Vec::new(),
            contention: None,
        }
    }

    /// Begins a try: the first one is a guess.
    pub(crate) fn begin(&mut self) -> bool {
        self.begun += 1;
        self.begun == 1
    }

    /// How long the next reading is delayed at most: longer each time while a foreign transaction has the cell locked,
    /// because a connection that waits for a lock cannot serve others.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let times = self.locked + self.relied_on;
        (times > 0).then(|| STEP_BACK * (1 << times.min(ASIDE)))
    }

    /// How often a transaction had the row of the owner locked.
    pub(crate) fn relied_on(&self) -> u32 {
        self.relied_on
    }

    /// The cell was read at this version.
    pub(crate) fn on_reading(&mut self, version: i64, store_now: Duration, now: Moment) -> ReadingStep {
        if self.waits {
            self.must_have_moved(version, store_now, now)
        } else {
            self.wait_for_commit(version, store_now, now)
        }
    }

    /// A write that waits for the client that has the cell locked finds it changed, or changes it. If repeated
    /// readings find the cell unchanged, the store does not let this client change it, and the answer must be an
    /// error (L1).
    fn must_have_moved(&mut self, version: i64, store_now: Duration, now: Moment) -> ReadingStep {
        let before = self.contention.as_ref();
        let same = before.filter(|cell| cell.is_still(version, store_now));
        let times = same.map_or(1, |cell| cell.times + 1);
        if times > SWALLOWED {
            return ReadingStep::Swallowed;
        }
        // A cell that was made a moment ago has not moved.
        let moves = before.is_some_and(|cell| cell.version != version && cell.version != 0);
        let has_moved = moves || before.is_some_and(|cell| cell.has_moved);
        // The client that had it locked has committed, so its transaction was not foreign.
        self.locked = if moves { 0 } else { self.locked };
        self.contention = Some(Contention::new(version, now, has_moved, times));
        ReadingStep::Continue
    }

    /// The cell was skipped, and is unchanged: another client has it locked, unless the write came too late. A
    /// client that commits is done in a moment; a foreign transaction that stays open is not waited for.
    fn wait_for_commit(&mut self, version: i64, store_now: Duration, now: Moment) -> ReadingStep {
        match &self.contention {
            Some(cell) if cell.is_still(version, store_now) => match cell.since.elapsed(now) >= COMMIT {
                true => ReadingStep::Locked,
                false => ReadingStep::Pause,
            },
            before => {
                let has_moved = before.as_ref().is_some_and(|cell| cell.version != version);
                self.contention = Some(Contention::new(version, now, has_moved, 1));
                ReadingStep::Continue
            }
        }
    }

    /// Whether it may make a cell: each one that it has made was deleted before it was written.
    pub(crate) fn on_missing(&mut self, store_now: Duration, now: Moment) -> bool {
        self.must_have_moved(0, store_now, now) == ReadingStep::Continue && self.made < SWALLOWED
    }

    pub(crate) fn on_made(&mut self) {
        self.made += 1;
    }

    /// A write was made from the last reading, for no later than this.
    pub(crate) fn on_draft(&mut self, until: Duration) {
        if let Some(cell) = &mut self.contention {
            cell.until = until;
        }
    }

    /// Keeps a result that the store may have, or get, in addition to the answer.
    pub(crate) fn keep(&mut self, answer: A) {
        self.kept.push(answer);
    }

    /// Other clients commit all the time: this verb has lost a race, and the cell is hardly ever free.
    pub(crate) fn is_contended(&self) -> bool {
        self.contention.as_ref().is_some_and(|cell| cell.has_moved)
    }

    /// `is_unsettled`: whether the answer leaves open that a kept result has ended what the verb had done.
    pub(crate) fn on_end(
        &mut self,
        end: Result<Tried<A>, CellError>,
        is_unsettled: impl Fn(&A, &A) -> bool,
    ) -> NextStep<A> {
        let failure = match end {
            Ok(Tried::Done(answer)) if self.kept.iter().any(|kept| is_unsettled(kept, &answer)) => {
                return NextStep::Fail(VerbFailure::Unsettled);
            }
            Ok(Tried::Done(answer)) => return NextStep::Answer(answer),
            // L8: the caller would get the result of another try, and no release would follow this one.
            Ok(Tried::Late(error)) => return NextStep::Fail(VerbFailure::Store(error)),
            Ok(Tried::Overtaken(_)) => return self.again(true),
            Ok(Tried::Lost(error, answer)) => {
                self.keep(answer);
                CellError::Broken(error)
            }
            Err(failure) => failure,
        };
        match failure {
            // Read back on one new connection, as the same owner.
            CellError::Broken(_) if self.broken == 0 => {
                self.broken += 1;
                self.again(false)
            }
            CellError::Overtaken => {
                self.has_lost_a_race();
                self.again(false)
            }
            // The next try waits before it reads.
            CellError::Locked if self.waits && self.locked < ASIDE => {
                self.locked += 1;
                self.has_lost_a_race();
                self.again(true)
            }
            CellError::Locked => NextStep::Fail(VerbFailure::Locked),
            // Most transactions are short.
            CellError::ReliedOn if self.relied_on < ASIDE => {
                self.relied_on += 1;
                self.has_lost_a_race();
                self.again(true)
            }
            CellError::ReliedOn => NextStep::Fail(VerbFailure::ReliedOn),
            CellError::Broken(error) | CellError::Refused(error) => NextStep::Fail(VerbFailure::Store(error)),
        }
    }

    fn again(&self, leaves: bool) -> NextStep<A> {
        if self.begun == TRIES { NextStep::Fail(VerbFailure::Overtaken) } else { NextStep::Again { leaves } }
    }

    /// The store has returned why it did not write the cell, so it does not silently drop writes.
    fn has_lost_a_race(&mut self) {
        if let Some(cell) = &mut self.contention {
            cell.times = 0;
        }
    }

    /// The error for the caller: of unknown outcome if an earlier try has done something, or may have.
    pub(crate) fn unsure(&self, error: BackendError) -> BackendError {
        if self.kept.is_empty() { error } else { error.of_unknown_outcome() }
    }
}

/// What a ledger is told after the row of its owner was found locked this often.
pub(crate) fn reliance(times: u32) -> Reliance {
    match times {
        0 => Reliance::Unknown,
        1 => Reliance::Found,
        _ => Reliance::Open,
    }
}

/// How often a verb reads again after another client was faster. Each time another client has made progress.
const TRIES: usize = 64;
/// How long a commit may take before the lock on the cell counts as foreign.
const COMMIT: Duration = Duration::from_millis(50);
/// The longest time for which a waiter steps back after it has found the cell locked; doubled each time.
const STEP_BACK: Duration = Duration::from_millis(2);
/// How often a verb finds the cell, or the row of the owner, locked by a foreign transaction before it returns an error. It
/// steps back for a second in all, at most.
const ASIDE: u32 = 8;
/// How often a cell may be read at one version. Once or twice there may be another reason: a connection that broke,
/// or a cell that was deleted in between. The same number of cells may be made and deleted before they are written.
const SWALLOWED: usize = 5;

#[cfg(test)]
mod tests {
    use tenure_core::{ErrorKind, Outcome};

    use super::*;

    fn error() -> BackendError {
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "no answer")
    }

    fn at(millis: u64) -> Moment {
        let since = Duration::from_millis(millis);
        Moment { boot: since, wall: since }
    }

    /// A verb with answers that are numbers, of which only equal ones are settled.
    fn end(tries: &mut Tries<u8>, end: Result<Tried<u8>, CellError>) -> NextStep<u8> {
        tries.on_end(end, |kept, answer| kept != answer)
    }

    fn is_again(step: &NextStep<u8>, expected: bool) -> bool {
        matches!(step, NextStep::Again { leaves } if *leaves == expected)
    }

    #[test]
    fn the_first_try_alone_is_a_guess() {
        let mut tries = Tries::<u8>::new(true);
        assert!(tries.begin() && !tries.begin());
    }

    /// L9: a result that a lost try may have is not hidden by the answer of a later one.
    #[test]
    fn a_lost_try_is_asked_for_once_and_its_result_is_kept() {
        let mut tries = Tries::new(true);
        tries.begin();
        assert!(is_again(&end(&mut tries, Ok(Tried::Lost(error(), 1))), false));
        assert_eq!(tries.unsure(error()).outcome(), Outcome::Unknown);
        assert!(matches!(end(&mut tries, Ok(Tried::Done(1))), NextStep::Answer(1)));
        assert!(matches!(end(&mut tries, Ok(Tried::Done(2))), NextStep::Fail(VerbFailure::Unsettled)));
        let twice = end(&mut tries, Ok(Tried::Lost(error(), 1)));
        assert!(matches!(twice, NextStep::Fail(VerbFailure::Store(_))), "{twice:?}");
    }

    /// L8: the caller releases what a try without a comparison may do later.
    #[test]
    fn a_late_try_is_not_repeated() {
        let late = end(&mut Tries::new(true), Ok(Tried::Late(error())));
        assert!(matches!(late, NextStep::Fail(VerbFailure::Store(_))), "{late:?}");
    }

    #[test]
    fn a_verb_that_is_always_overtaken_gives_up_without_having_done_anything() {
        let mut tries = Tries::new(true);
        for _ in 1..TRIES {
            tries.begin();
            assert!(is_again(&end(&mut tries, Ok(Tried::Overtaken(None))), true));
        }
        tries.begin();
        let last = end(&mut tries, Err(CellError::Overtaken));
        assert!(matches!(last, NextStep::Fail(VerbFailure::Overtaken)), "{last:?}");
        assert_eq!(tries.unsure(error()).outcome(), Outcome::NotApplied);
    }

    /// L1: a store that confirms writes and does not make them grants nothing.
    #[test]
    fn a_cell_that_stays_as_it_is_after_each_write_is_an_error() {
        let mut tries = Tries::<u8>::new(true);
        for millis in 0..SWALLOWED as u64 {
            assert_eq!(tries.on_reading(7, Duration::ZERO, at(millis)), ReadingStep::Continue);
            tries.on_draft(Duration::from_secs(1));
        }
        assert_eq!(tries.on_reading(7, Duration::ZERO, at(9)), ReadingStep::Swallowed);
        // A write that came too late was rightly not made.
        assert_eq!(tries.on_reading(7, Duration::from_secs(2), at(9)), ReadingStep::Continue);
        assert_eq!(tries.on_reading(8, Duration::ZERO, at(9)), ReadingStep::Continue);
        assert!(tries.is_contended());
    }

    #[test]
    fn a_store_that_says_why_it_did_not_write_drops_nothing() {
        let mut tries = Tries::new(true);
        for millis in 0..20 {
            tries.begin();
            assert_eq!(tries.on_reading(7, Duration::ZERO, at(millis)), ReadingStep::Continue);
            end(&mut tries, Err(CellError::Overtaken));
        }
    }

    /// A claim waits behind a transaction from the second try on; a release fails, with the reason.
    #[test]
    fn a_transaction_that_relies_on_the_owner_is_looked_for_again_before_a_verb_fails() {
        let mut tries = Tries::new(true);
        assert_eq!(reliance(tries.relied_on()), Reliance::Unknown);
        for times in 0..ASIDE {
            assert_eq!(tries.relied_on(), times);
            assert!(is_again(&end(&mut tries, Err(CellError::ReliedOn)), true));
            assert!(tries.delay().is_some());
            let next = if times == 0 { Reliance::Found } else { Reliance::Open };
            assert_eq!(reliance(tries.relied_on()), next);
        }
        let last = end(&mut tries, Err(CellError::ReliedOn));
        assert!(matches!(last, NextStep::Fail(VerbFailure::ReliedOn)), "{last:?}");
    }

    #[test]
    fn a_waiter_steps_back_further_each_time_and_then_gives_up() {
        let mut tries = Tries::new(true);
        assert_eq!(tries.delay(), None);
        let mut before = Duration::ZERO;
        for _ in 0..ASIDE {
            assert!(is_again(&end(&mut tries, Err(CellError::Locked)), true));
            let delay = tries.delay().unwrap();
            assert!(delay > before, "{delay:?}");
            before = delay;
        }
        assert!(matches!(end(&mut tries, Err(CellError::Locked)), NextStep::Fail(VerbFailure::Locked)));
        // A commit of the client that had it locked ends this.
        tries.on_reading(7, Duration::ZERO, at(0));
        tries.on_reading(8, Duration::ZERO, at(1));
        assert_eq!(tries.delay(), None);
    }

    #[test]
    fn a_verb_that_does_not_wait_gives_a_commit_50_ms() {
        let mut tries = Tries::<u8>::new(false);
        assert_eq!(tries.on_reading(7, Duration::ZERO, at(0)), ReadingStep::Continue);
        assert_eq!(tries.on_reading(7, Duration::ZERO, at(49)), ReadingStep::Pause);
        assert_eq!(tries.on_reading(7, Duration::ZERO, at(50)), ReadingStep::Locked);
        assert_eq!(tries.on_reading(8, Duration::ZERO, at(51)), ReadingStep::Continue);
        assert!(tries.is_contended());
        let locked = tries.on_end(Err(CellError::Locked), |_, _| false);
        assert!(matches!(locked, NextStep::Fail(VerbFailure::Locked)), "{locked:?}");
    }

    #[test]
    fn few_cells_are_made_that_are_deleted_before_they_are_written() {
        let mut tries = Tries::<u8>::new(true);
        for millis in 0..SWALLOWED as u64 {
            assert!(tries.on_missing(Duration::from_secs(millis), at(millis)));
            tries.on_made();
            tries.on_reading(millis as i64 + 1, Duration::ZERO, at(millis));
        }
        assert!(!tries.on_missing(Duration::ZERO, at(9)));
    }
}
