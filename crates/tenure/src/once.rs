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
    /// The current slot, and the one before it.
    slot: Option<(Slot, Slot)>,
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
    /// default. It applies to the last run of any host, whatever interval that one had. Use the same on every host.
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
    /// to what an answer of the store takes, a hundredth and 1 s at most, so that requests do not move them on from run to run.
    #[must_use]
    pub fn jitter(self, early: Duration) -> Self {
        Self { jitter: Some(early), ..self }
    }

    /// How early a run may begin.
    fn early(&self) -> Duration {
        self.jitter.unwrap_or_else(|| EARLY.min(self.every / 10)).min(self.every / 2)
    }

    /// Once per slot of a calendar instead of once per interval. Takes when the current slot began and the one `before`
    /// it, since the Unix epoch. The interval is the longest slot. For the command, which knows the calendar.
    #[doc(hidden)]
    #[must_use]
    pub fn slot(self, began: Duration, before: Duration) -> Self {
        Self { slot: Some((began, before)), ..self }
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

    /// Acquires the lock, unless a run counts. For a binding, whose work is no future.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// The lock is released in the background.
    #[doc(hidden)]
    pub async fn begin(&self) -> Result<Result<(Guard, Turn), LastRun>, HoldError> {
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
    async fn turn_by(
        &self,
        ask: impl AsyncFnOnce(&Lock) -> Result<Option<MemoView>, BackendError>,
    ) -> Result<(Result<Turn, LastRun>, Option<(Slot, LastRun)>), HoldError> {
        self.check().map_err(AcquireError::from)?;
        let host = self.lock.host();
        let asked_at = host.now();
        let memo = ask(&self.lock).await.map_err(AcquireError::Store)?;
        let took = asked_at.elapsed(host.now());
        let slot = self.slot.map(|(began, _)| began);
        let mut turn = Turn { asked_at, took, early: Duration::ZERO, slot, ahead: None };
        let Some(counted) = memo.as_ref().and_then(CountedRun::read) else { return Ok((Ok(turn), None)) };
        let now = host.now().wall;
        turn.early = counted.due_in(self, now);
        if let (Counted::Slot { began, .. }, Some(asked)) = (counted.counted, slot)
            && began >= asked
            && let Some(ahead) = self.ahead_of(began, now.saturating_sub(counted.run.ago))
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
            // This clock may run faster than the store's (A1), and a store may date the memo earlier by what an answer takes.
            None if self.early().is_zero() => (self.every + turn.took * 2).checked_sub(began - began / 100),
            None => self.next_due_in(turn, began),
        };
        // A run that took longer than its interval may still count for another schedule.
        let left = left.unwrap_or_default();
        let by = self.lock.who();
        let (what, kept) = match turn.slot {
            Some(slot) => (Counted::Slot { began: slot, lasts: Some(self.every) }, left),
            // Longer than it is due: another schedule may ask for it.
            None => (Counted::Every { every: self.every, due: Some(left) }, left.saturating_add(DAY)),
        };
        let text = format!("{what} ms, after {} ms, by {by}", began.as_millis());
        let memo = Memo::new(text, kept.min(Memo::MAX_KEPT));
        let memo = memo.map_err(|error| HoldError::NotCounted(error.into()))?;
        lease.leave(&memo).await.map_err(HoldError::NotCounted)
    }

    /// From now to when the next run is due: an interval after this one was, or after it began if that was later.
    fn next_due_in(&self, turn: Turn, began: Duration) -> Option<Duration> {
        let asked = turn.asked_at.elapsed(self.lock.host().now());
        let (to_due, since_due) = (turn.early.saturating_sub(asked), asked.saturating_sub(turn.early));
        // Otherwise the time of each request would be added to the due time of each run.
        let slack = (self.every / 1000).max(turn.took.min(self.every / 100)).min(Duration::from_secs(1));
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
/// What stands behind the interval: when the next run is due, from the moment when the memo was stored. A store may keep it
/// longer than it was asked to, which would move the due time on from run to run.
const DUE: &str = " ms, due in ";
/// The beginning of that of a run in a slot.
const SLOT: &str = "ran, in the slot that began at ";
/// What stands behind that: how long the slot lasts at most.
const LASTS: &str = " ms, lasting ";

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
    age: Duration,
    left: Duration,
    run: LastRun,
}

/// For what it counts. An older client wrote no second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Every { every: Duration, due: Option<Duration> },
    Slot { began: Slot, lasts: Option<Duration> },
}

impl Counted {
    /// With what stands behind the numbers.
    fn read(text: &str) -> Option<(Self, &str)> {
        let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
        let numbers = |mark, second| {
            let (numbers, rest) = text.strip_prefix(mark)?.split_once(" ms, after ")?;
            let Some((first, second)) = numbers.split_once(second) else {
                return Some((millis(numbers)?, None, rest));
            };
            Some((millis(first)?, Some(millis(second)?), rest))
        };
        let every = numbers(MARK, DUE).map(|(every, due, rest)| (Self::Every { every, due }, rest));
        every.or_else(|| numbers(SLOT, LASTS).map(|(began, lasts, rest)| (Self::Slot { began, lasts }, rest)))
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mark, first, mark_of_second, second) = match self {
            Self::Every { every, due } => (MARK, every, DUE, due),
            Self::Slot { began, lasts } => (SLOT, began, LASTS, lasts),
        };
        write!(f, "{mark}{}", first.as_millis())?;
        second.map_or(Ok(()), |second| write!(f, "{mark_of_second}{}", second.as_millis()))
    }
}

impl CountedRun {
    /// `None` for a memo of another program.
    fn read(memo: &MemoView) -> Option<Self> {
        let (counted, rest) = Counted::read(&memo.text)?;
        let (began, by) = rest.split_once(" ms, by ")?;
        let began = Duration::from_millis(began.parse().ok()?);
        let run = LastRun { by: by.to_owned(), ago: began.saturating_add(memo.age) };
        Some(Self { counted, age: memo.age, left: memo.left, run })
    }

    /// When the next run is due, at this time of the clock on the wall. The schedule of the last run may have been another
    /// one: then it counts for the slot in which it began, or for an interval from its start.
    fn due_in(&self, once: &RunOnce, now: Duration) -> Duration {
        let began = now.saturating_sub(self.run.ago);
        let is_in = |slot: Slot| if began >= slot { Duration::MAX } else { Duration::ZERO };
        match (self.counted, once.slot) {
            (Counted::Every { every, due: Some(due) }, None) => {
                (due + once.every).saturating_sub(every + self.age)
            }
            (Counted::Every { every, due: None }, None) => (self.left + once.every).saturating_sub(every),
            (Counted::Slot { .. }, None) => once.every.saturating_sub(self.run.ago),
            (Counted::Every { .. }, Some((asked, _))) => is_in(asked),
            // A client whose clock is ahead ran in a later slot.
            (Counted::Slot { began, .. }, Some((asked, _))) if began >= asked => Duration::MAX,
            // The slot before this one, in the same calendar. The time when the run began does not decide, because the
            // clock of its host may differ.
            (Counted::Slot { began, lasts }, Some((_, before)))
                if began == before && lasts.is_none_or(|lasts| lasts == once.every) =>
            {
                Duration::ZERO
            }
            (Counted::Slot { .. }, Some((asked, _))) => is_in(asked),
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
        let ms = Duration::from_millis;
        for what in [
            Counted::Every { every: ms(7), due: None },
            Counted::Every { every: ms(7), due: Some(ms(5)) },
            Counted::Slot { began: ms(1_795_824_000_000), lasts: None },
            Counted::Slot { began: ms(1_795_824_000_000), lasts: Some(ms(93_600_000)) },
        ] {
            let text = format!("{what} ms, after 3 ms, by x");
            assert_eq!(counted(&text, 0).unwrap().counted, what, "{text}");
        }
        for other in ["", "10.0.0.7:80", "ran, once every x ms, after 1 ms, by y", "ran, once every 1 ms"] {
            assert!(counted(other, 0).is_none(), "{other}");
        }
    }

    /// A store of rows keeps a memo 100 ms longer than it was asked to: each run was due that much later, and of 30 slots of a
    /// second 17 ran.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn a_run_is_due_when_it_was_due_however_long_the_memo_is_kept() {
        let run = counted("ran, once every 1000 ms, due in 990 ms, after 3 ms, by x", 500).unwrap();
        let run = CountedRun { left: Duration::from_secs(86_400), ..run };
        let locks = crate::connect("memory:").await.unwrap();
        let once = locks.once("x").interval(Duration::from_secs(1));
        assert_eq!(run.due_in(&once, DAY), Duration::from_millis(490));
        assert_eq!(
            run.due_in(&once.clone().interval(Duration::from_secs(3)), DAY),
            Duration::from_millis(2490)
        );
        assert_eq!(run.due_in(&once.interval(Duration::from_millis(500)), DAY), Duration::ZERO);
    }

    /// A deployment that changed the schedule ran the job twice: in a slot that had had its run, or just after it.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn a_run_counts_for_another_schedule_from_its_start() {
        let hour = |hours| DAY / 24 * hours;
        let (now, locks) = (hour(240) + hour(14) + hour(1) / 2, crate::connect("memory:").await.unwrap());
        let [day, hours] = [26, 3].map(|longest| locks.once("x").interval(hour(longest)));
        let due = |text: &str, minutes: u64, once: &RunOnce| {
            let text = format!("{text} ms, after 0 ms, by x");
            counted(&text, minutes * 60_000).unwrap().due_in(once, now)
        };
        let (today, this_hour) = (day.clone().slot(hour(240), hour(217)), hours.slot(hour(254), hour(253)));
        let every = "ran, once every 2000 ms, due in 2000";
        assert_eq!((due(every, 20, &today), due(every, 20 * 60, &today)), (Duration::MAX, Duration::ZERO));
        let daily = Counted::Slot { began: hour(240), lasts: Some(hour(26)) }.to_string();
        assert_eq!(
            (due(&daily, 20, &this_hour), due(&daily, 40, &this_hour)),
            (Duration::MAX, Duration::ZERO)
        );
        assert_eq!(due(&daily, 60, &day), hour(25));
        // The same in another zone; and the slot of yesterday, whose run began late.
        for began in [239, 218, 216] {
            let elsewhere = Counted::Slot { began: hour(began), lasts: Some(hour(26)) }.to_string();
            assert_eq!(due(&elsewhere, 20, &today), Duration::MAX, "{began}");
        }
        let yesterday = Counted::Slot { began: hour(217), lasts: Some(hour(26)) }.to_string();
        assert_eq!(due(&yesterday, 14 * 60 + 29, &today), Duration::ZERO);
    }
}
