//! `RunOnce`: a job that runs once per interval, on one of many hosts.

use std::{fmt, time::Duration};

use tenure_core::{BackendError, Memo, MemoView, Memos, Moment};

use crate::{
    error::{AcquireError, ConfigError, HoldError},
    guard::{Guard, held_until_its_release},
    lease::Lease,
    lock::Lock,
    verbs::Held,
};

/// A job that runs once per interval, on one of many hosts. Made by [`Locker::once`](crate::Locker::once).
///
/// It is a mutex of the same name, with a [memo](crate::Lease::set_memo) of the last run that counted. A run within
/// the interval is skipped.
///
/// # What is promised
/// The starts of two successful runs are at least one interval less its [tolerance](Self::jitter) apart, by the store's
/// clock, as long as the store keeps its memos, and n intervals hold n + 1 of them at most. A run that failed, or whose lease was lost, does not count: the job runs again.
///
/// # What is not promised
/// A store that lost its data, such as a Redis that was restarted without persistence, may let the job run again.
/// So may a successful run that was not recorded, because its process was killed first or the store did not answer.
/// A job that must never run twice checks the [token](Lease::token) where it writes. On etcd an interval is rounded
/// up to whole seconds, and may begin anew when its leader changes.
///
/// # Example: a nightly job on several hosts
/// ```
/// use std::time::Duration;
/// use tenure::once::RunOutcome;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let nightly = locks.once("nightly").interval(Duration::from_secs(23 * 3600));
/// for _host in 0..3 {
///     match nightly.run(async |_lease| Ok::<_, std::io::Error>("backed up")).await? {
///         RunOutcome::Ran(done) => println!("{}", done?),
///         RunOutcome::Skipped(last) => println!("{} did it {:?} ago", last.by, last.ago),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RunOnce {
    lock: Lock,
    every: Duration,
    /// `None`: a tenth of the interval.
    jitter: Option<Duration>,
    slot: Option<Slot>,
    even_if_failed: bool,
}

/// The outcome of one call of [`RunOnce::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome<R> {
    /// The job ran, with this result.
    Ran(R),
    /// The job did not run, because the last run is more recent than the interval.
    Skipped(LastRun),
}

impl<R> RunOutcome<R> {
    /// The result, if it ran.
    pub fn ran(self) -> Option<R> {
        match self {
            Self::Ran(result) => Some(result),
            Self::Skipped(_) => None,
        }
    }
}

/// The last run that counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// The holder that ran it, for people.
    pub by: String,
    /// How long ago it began.
    pub ago: Duration,
}

/// A run may begin: what its count needs to know.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// When the store was asked.
    asked_at: Moment,
    /// How long its answer took.
    took: Duration,
    /// How long before it was due.
    early: Duration,
    slot: Option<Slot>,
    /// The last run was counted for a slot that begins this much later than now, and does not count.
    ahead: Option<Duration>,
}

impl Turn {
    /// The last run was counted for a slot that begins this much later than the store's now: the clock of its host was
    /// wrong, and it does not count.
    #[doc(hidden)]
    pub fn ahead(&self) -> Option<Duration> {
        self.ahead
    }
}

/// When a slot of a calendar begins, since the Unix epoch.
type Slot = Duration;

impl RunOnce {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock: lock.fifo(), every: Duration::ZERO, jitter: None, slot: None, even_if_failed: false }
    }

    /// The interval, from the start of one run that counts to the start of the next: 1 ms to 366 days. There is no
    /// default. Use the same interval on every host; of two different ones the shorter one applies.
    #[must_use]
    pub fn interval(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Lets a run begin this much before it is due, for a scheduler whose period is the interval: it never starts a job to the
    /// millisecond. The next run is due an interval after that due time, not after the early start, so n intervals hold n + 1
    /// runs at most. Default: a tenth of the interval, at most 60 s, as in `tenure run --every`; zero is exact. More than half
    /// of the interval counts as half of it. Give the same one everywhere.
    ///
    /// # Timing
    /// A run that begins late is due again an interval after its start. Due times are kept to a thousandth of the interval, or
    /// to what an answer of the store takes, at most 1 s, so that requests do not move them on from run to run.
    #[must_use]
    pub fn jitter(self, early: Duration) -> Self {
        Self { jitter: Some(early), ..self }
    }

    /// How early a run may begin.
    fn early(&self) -> Duration {
        self.jitter.unwrap_or_else(|| EARLY.min(self.every / 10)).min(self.every / 2)
    }

    /// Instead of once per interval: once in a slot of a calendar, which began then, since the Unix epoch. The interval is how
    /// long it lasts at most. For a program that knows the calendar.
    #[doc(hidden)]
    #[must_use]
    pub fn slot(self, began: Duration) -> Self {
        Self { slot: Some(began), ..self }
    }

    /// Counts a run from its start, even if it fails: at most one *start* per interval. For work that is better
    /// skipped than repeated.
    #[must_use]
    pub fn even_if_failed(self) -> Self {
        Self { even_if_failed: true, ..self }
    }

    /// Sets options of the lock: `once.with(|lock| lock.ttl(…).label(…))`. Defaults are those of
    /// [`Locker::mutex`](crate::Locker::mutex).
    #[must_use]
    pub fn with(self, set: impl FnOnce(Lock) -> Lock) -> Self {
        Self { lock: set(self.lock).fifo(), ..self }
    }

    /// Runs `work` under the lock, unless a run that counts began within the interval. If another host is running
    /// the job, it waits for the end of that run and checks again.
    ///
    /// # Timing
    /// A skip is one request. Waits for the lock as [`Lock::acquire`] does.
    ///
    /// # Errors
    /// [`HoldError::Acquire`] if the work never began. [`HoldError::Lost`] if the lease was lost before it was
    /// done, as in [`Lock::hold`]; then the run does not count. [`HoldError::NotCounted`] if it is done, but the
    /// store did not take the memo: it may run again within the interval. A `work` that returns `Err` has failed,
    /// and the result is [`RunOutcome::Ran`] with its error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then the guard; the run does not count.
    pub async fn run<T, E>(
        &self,
        work: impl AsyncFnOnce(Lease) -> Result<T, E>,
    ) -> Result<RunOutcome<Result<T, E>>, HoldError> {
        let (guard, turn) = match self.begin().await? {
            Ok(begun) => begun,
            Err(last) => return Ok(RunOutcome::Skipped(last)),
        };
        let host = self.lock.host();
        let started = host.now();
        let out = guard.work_under(work(guard.lease())).await.map_err(HoldError::Lost)?;
        self.end((guard, turn), out.is_ok(), started.elapsed(host.now())).await?;
        Ok(RunOutcome::Ran(out))
    }

    /// Acquires the lock, unless a run counts.
    pub(crate) async fn begin(&self) -> Result<Result<(Guard, Turn), LastRun>, HoldError> {
        if let Err(last) = self.turn().await? {
            return Ok(Err(last));
        }
        let guard = self.lock.acquire().await?;
        // Another client may have run it during the wait.
        let turn = match self.turn_held().await? {
            Ok(turn) => turn,
            Err(last) => {
                guard.give_up().await;
                return Ok(Err(last));
            }
        };
        if self.even_if_failed {
            self.count(&guard, turn, Duration::ZERO).await?;
        }
        Ok(Ok((guard, turn)))
    }

    /// Ends a run that took this long: counts it if it succeeded, and releases the lock.
    pub(crate) async fn end(
        &self,
        (guard, turn): (Guard, Turn),
        is_success: bool,
        took: Duration,
    ) -> Result<(), HoldError> {
        guard.check().map_err(HoldError::Lost)?;
        if is_success && !self.even_if_failed {
            self.count(&guard, turn, took).await?;
        }
        held_until_its_release(guard.release().await).map_err(HoldError::Lost)
    }

    /// The last run that counts, if it began within the interval: then the job is not due, and a program that
    /// acquires the lock itself need not acquire it. This decides no run: see [`turn_held`](Self::turn_held).
    ///
    /// # Timing
    /// One request, up to 5 s.
    ///
    /// # Errors
    /// [`HoldError::Acquire`] for an interval or a name that is not valid, for a store without memos, and for the
    /// store's errors.
    ///
    /// # Cancel safety
    /// Changes nothing.
    #[doc(hidden)]
    pub async fn turn(&self) -> Result<Result<Turn, LastRun>, HoldError> {
        // One that is held decides whether a slot that is ahead counts.
        let (turn, _) = self.turn_by(async |lock| Ok(lock.inspect().await?.memo)).await?;
        Ok(turn)
    }

    /// The same for a program that holds the lock: it decides whether the job runs. Another client may have run it
    /// before the grant, and none can before the release. What a proxy or a replica showed is not enough: the store
    /// confirms the memo as it confirms a grant.
    ///
    /// # Timing
    /// As [`turn`](Self::turn).
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    ///
    /// # Cancel safety
    /// Changes nothing.
    #[doc(hidden)]
    pub async fn turn_held(&self) -> Result<Result<Turn, LastRun>, HoldError> {
        let (turn, counted) = self.turn_by(async |lock| lock.memo().await).await?;
        let (Ok(Turn { ahead: Some(_), .. }), Some((began, run))) = (&turn, counted) else { return Ok(turn) };
        // Two clocks of three must say so, those of the store and of this host: one that is late would run the job again.
        let view = self.lock.inspect().await.map_err(AcquireError::Store)?;
        let now = view.holders.iter().filter_map(|holder| holder.since).max();
        Ok(match now.and_then(|now| self.ahead_of(began, now)) {
            Some(ahead) => turn.map(|turn| Turn { ahead: Some(ahead), ..turn }),
            None => Err(run),
        })
    }

    /// Whether it may run, and what it knows of a run in a slot that lies ahead.
    #[expect(clippy::type_complexity, reason = "a turn, and what its second look needs")]
    async fn turn_by(
        &self,
        ask: impl AsyncFnOnce(&Lock) -> Result<Option<MemoView>, BackendError>,
    ) -> Result<(Result<Turn, LastRun>, Option<(Slot, LastRun)>), HoldError> {
        self.check().map_err(AcquireError::from)?;
        let host = self.lock.host();
        let asked_at = host.now();
        let memo = ask(&self.lock).await.map_err(AcquireError::Store)?;
        let took = asked_at.elapsed(host.now());
        let mut turn = Turn { asked_at, took, early: Duration::ZERO, slot: self.slot, ahead: None };
        let Some(counted) = memo.as_ref().and_then(CountedRun::read) else { return Ok((Ok(turn), None)) };
        turn.early = counted.due_in(self);
        if let (Counted::Slot(began), true) = (counted.counted, turn.early == Duration::MAX)
            && let Some(ahead) = self.ahead_of(began, host.now().wall.saturating_sub(counted.run.ago))
        {
            turn = Turn { early: Duration::ZERO, ahead: Some(ahead), ..turn };
            return Ok((Ok(turn), Some((began, counted.run))));
        }
        Ok(match turn.early > self.early() {
            true => (Err(counted.run), None),
            false => (Ok(turn), None),
        })
    }

    /// By how much a slot begins later than that, if clocks that differ a little do not explain it.
    fn ahead_of(&self, began: Slot, at: Duration) -> Option<Duration> {
        let ahead = began.checked_sub(at)?;
        (ahead > (self.every / 10).clamp(DIFFER_LEAST, DIFFER_MOST)).then_some(ahead)
    }

    /// The last run that counts, if it is not time yet.
    ///
    /// # Timing
    /// As [`turn`](Self::turn).
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    ///
    /// # Cancel safety
    /// Nothing is changed.
    #[doc(hidden)]
    pub async fn last(&self) -> Result<Option<LastRun>, HoldError> {
        Ok(self.turn().await?.err())
    }

    /// Counts a run that began this long ago: the counterpart of [`turn_held`](Self::turn_held). The lease must be of the
    /// lock of this name.
    ///
    /// # Timing
    /// One or more requests, up to 5 s.
    ///
    /// # Errors
    /// [`HoldError::NotCounted`]: the run may be repeated within the interval.
    ///
    /// # Cancel safety
    /// The run may or may not count.
    #[doc(hidden)]
    pub async fn count(&self, lease: &Lease, turn: Turn, began: Duration) -> Result<(), HoldError> {
        let left = match turn.slot {
            // A client whose clock is late asks for a slot that has ended.
            Some(_) => Some(self.every.saturating_mul(2).saturating_add(DAY)),
            // This clock may run faster than the store's (A1).
            None if self.early().is_zero() => self.every.checked_sub(began - began / 100),
            None => self.next_due_in(turn, began),
        };
        let Some(left) = left.filter(|left| !left.is_zero()) else { return Ok(()) };
        let (by, what) = (self.lock.who(), Counted::of(self.every, turn.slot));
        // A store may keep the memo longer, which would move the due time on from run to run.
        let due = turn.slot.map_or_else(|| format!("{DUE}{}", left.as_millis()), |_| String::new());
        let text = format!("{what}{due} ms, after {} ms, by {by}", began.as_millis());
        let memo = Memo::new(text, left.min(Memo::MAX_KEPT));
        let memo = memo.map_err(|error| HoldError::NotCounted(error.into()))?;
        lease.leave(&memo).await.map_err(HoldError::NotCounted)
    }

    /// From now to when the next run is due: an interval after this one was, or after it began if that was later.
    fn next_due_in(&self, turn: Turn, began: Duration) -> Option<Duration> {
        let asked = turn.asked_at.elapsed(self.lock.host().now());
        let (to_due, since_due) = (turn.early.saturating_sub(asked), asked.saturating_sub(turn.early));
        // Otherwise the time of each request would be added to the due time of each run.
        let slack = (self.every / 1000).max(turn.took.min(self.every / 20)).min(Duration::from_secs(1));
        let every = self.every - slack;
        (every + to_due).checked_sub(since_due.min(began))
    }

    /// Finds wrong settings before anything is sent.
    fn check(&self) -> Result<(), ConfigError> {
        Memo::new("", self.every).map_err(|_| ConfigError::IntervalOutOfRange)?;
        let promises = self.lock.promises();
        match promises.memo {
            Memos::None(why) => Err(ConfigError::NoMemos { backend: promises.backend, why }),
            _ => Ok(()),
        }
    }
}

/// The beginning of the memo of a run.
const MARK: &str = "ran, once every ";
/// What stands behind the interval: when the next run is due, from the moment when the memo was stored.
const DUE: &str = " ms, due in ";
/// The beginning of that of a run in a slot.
const SLOT: &str = "ran, in the slot that began at ";

const DAY: Duration = Duration::from_secs(24 * 3600);
/// How early a run may begin at most, if nothing else is said: schedulers have the period of the interval, and start
/// nothing to the millisecond.
const EARLY: Duration = Duration::from_secs(60);
/// By how much clocks may differ before one is called wrong: a tenth of the slot, but no less and no more than this.
const DIFFER_LEAST: Duration = Duration::from_secs(60);
const DIFFER_MOST: Duration = Duration::from_secs(3600);

/// A run that counts, from its memo.
struct CountedRun {
    counted: Counted,
    /// From the moment when it was stored.
    due: Option<Duration>,
    age: Duration,
    left: Duration,
    run: LastRun,
}

/// For what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Every(Duration),
    Slot(Slot),
}

impl Counted {
    fn of(every: Duration, slot: Option<Slot>) -> Self {
        slot.map_or(Self::Every(every), Self::Slot)
    }

    /// With its due time, and what stands behind the numbers.
    fn read(text: &str) -> Option<(Self, Option<Duration>, &str)> {
        let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
        let numbers = |mark| text.strip_prefix(mark)?.split_once(" ms, after ");
        if let Some((numbers, rest)) = numbers(MARK) {
            // An older client writes no due time.
            let (every, due) = numbers.split_once(DUE).map_or((numbers, None), |(every, due)| (every, Some(due)));
            return Some((Self::Every(millis(every)?), due.map(millis).unwrap_or_default(), rest));
        }
        let (began, rest) = numbers(SLOT)?;
        Some((Self::Slot(millis(began)?), None, rest))
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mark, number) = match self {
            Self::Every(every) => (MARK, every),
            Self::Slot(began) => (SLOT, began),
        };
        write!(f, "{mark}{}", number.as_millis())
    }
}

impl CountedRun {
    /// `None` for a memo of another program.
    fn read(memo: &MemoView) -> Option<Self> {
        let (counted, due, rest) = Counted::read(&memo.text)?;
        let (began, by) = rest.split_once(" ms, by ")?;
        let began = Duration::from_millis(began.parse().ok()?);
        let run = LastRun { by: by.to_owned(), ago: began.saturating_add(memo.age) };
        Some(Self { counted, due, age: memo.age, left: memo.left, run })
    }

    /// A memo is there until the next run is due, or longer: exact is what the store still keeps it.
    fn left(&self, once: &RunOnce) -> Duration {
        match self.due {
            Some(due) if !once.early().is_zero() => due.saturating_sub(self.age).min(self.left),
            _ => self.left,
        }
    }

    /// When the next run is due.
    fn due_in(&self, once: &RunOnce) -> Duration {
        match (self.counted, once.slot) {
            // With a shorter interval it is due sooner.
            (Counted::Every(every), None) => self.left(once).saturating_sub(every.saturating_sub(once.every)),
            // A client whose clock is ahead ran in a later slot.
            (Counted::Slot(began), Some(asked)) if began >= asked => Duration::MAX,
            // The plan of the job was changed: it is due anew.
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::FencingToken;

    use super::*;

    fn counted(text: &str, age_ms: u64) -> Option<CountedRun> {
        let (age, left) = (Duration::from_millis(age_ms), Duration::from_secs(1));
        CountedRun::read(&MemoView::new(text, ("x", FencingToken::new(1)), age, left))
    }

    #[test]
    fn a_run_reads_back_and_what_is_none_does_not() {
        let text = "ran, once every 10000 ms, after 1500 ms, by web-3 pid 7 a b, by c";
        let run = counted(text, 200).unwrap().run;
        assert_eq!((run.by.as_str(), run.ago), ("web-3 pid 7 a b, by c", Duration::from_millis(1700)));
        for what in
            [Counted::Every(Duration::from_millis(7)), Counted::Slot(Duration::from_secs(1_795_824_000))]
        {
            let text = format!("{what} ms, after 3 ms, by x");
            assert_eq!(counted(&text, 0).unwrap().counted, what, "{text}");
        }
        let due = counted("ran, once every 7 ms, due in 5 ms, after 3 ms, by x", 0).unwrap();
        assert_eq!((due.counted, due.due), (Counted::Every(Duration::from_millis(7)), Some(Duration::from_millis(5))));
        for other in ["", "10.0.0.7:80", "ran, once every x ms, after 1 ms, by y", "ran, once every 1 ms"] {
            assert!(counted(other, 0).is_none(), "{other}");
        }
    }

    /// A store of rows keeps a memo 100 ms longer than it was asked to: each run was due that much later, and of 30 slots of a
    /// second 17 ran.
    #[test]
    fn a_run_is_due_when_it_was_due_however_long_the_memo_is_kept() {
        let run = counted("ran, once every 1000 ms, due in 990 ms, after 3 ms, by x", 500).unwrap();
        let run = CountedRun { left: Duration::from_millis(600), ..run };
        let locks = crate::testing::TestStore::new();
        let once = locks.locker().once("x").interval(Duration::from_secs(1));
        assert_eq!(run.due_in(&once), Duration::from_millis(490));
        assert_eq!(run.due_in(&once.jitter(Duration::ZERO)), Duration::from_millis(600));
    }
}
