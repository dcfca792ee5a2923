//! `RunOnce`: a job that runs once per interval, on one of many hosts.

use std::time::Duration;

use tenure_core::{Memo, MemoView, Memos};

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
/// The starts of two successful runs are at least one interval apart, by the store's clock, as long as the store
/// keeps its memos. A run that failed, or whose lease was lost, does not count: the job runs again.
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

impl RunOnce {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock: lock.fifo(), every: Duration::ZERO, even_if_failed: false }
    }

    /// The interval, from the start of one run that counts to the start of the next: 1 ms to 366 days. There is no
    /// default. Use the same interval on every host; of two different ones the shorter one applies.
    #[must_use]
    pub fn interval(self, every: Duration) -> Self {
        Self { every, ..self }
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
        let guard = match self.begin().await? {
            Ok(guard) => guard,
            Err(last) => return Ok(RunOutcome::Skipped(last)),
        };
        let host = self.lock.host();
        let started = host.now();
        let out = guard.work_under(work(guard.lease())).await.map_err(HoldError::Lost)?;
        self.end(guard, out.is_ok(), started.elapsed(host.now())).await?;
        Ok(RunOutcome::Ran(out))
    }

    /// Acquires the lock, unless a run counts.
    pub(crate) async fn begin(&self) -> Result<Result<Guard, LastRun>, HoldError> {
        if let Some(last) = self.last().await? {
            return Ok(Err(last));
        }
        let guard = self.lock.acquire().await?;
        // Another client may have run it during the wait.
        if let Some(last) = self.last().await? {
            guard.give_up().await;
            return Ok(Err(last));
        }
        if self.even_if_failed {
            self.count(&guard, Duration::ZERO).await?;
        }
        Ok(Ok(guard))
    }

    /// Ends a run that took this long: counts it if it succeeded, and releases the lock.
    pub(crate) async fn end(&self, guard: Guard, is_success: bool, took: Duration) -> Result<(), HoldError> {
        guard.check().map_err(HoldError::Lost)?;
        if is_success && !self.even_if_failed {
            self.count(&guard, took).await?;
        }
        held_until_its_release(guard.release().await).map_err(HoldError::Lost)
    }

    /// The last run that counts, if it began within the interval: then the job is not due. For a program that
    /// acquires the lock itself. Such a program calls this again while it holds the lock, because then no other run
    /// can begin before its release.
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
    pub async fn last(&self) -> Result<Option<LastRun>, HoldError> {
        self.check().map_err(AcquireError::from)?;
        let view = self.lock.inspect().await.map_err(AcquireError::Store)?;
        Ok(view.memo.as_ref().and_then(CountedRun::read).and_then(|counted| counted.within(self.every)))
    }

    /// Counts a run that began this long ago: the counterpart of [`last`](Self::last). The lease must be of the
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
    pub async fn count(&self, lease: &Lease, began: Duration) -> Result<(), HoldError> {
        // This clock may run faster than the store's (A1).
        let Some(left) = self.every.checked_sub(began - began / 100).filter(|left| !left.is_zero()) else {
            return Ok(());
        };
        let by = self.lock.who();
        let text = format!("{MARK}{} ms, after {} ms, by {by}", self.every.as_millis(), began.as_millis());
        let memo = Memo::new(text, left).map_err(|error| HoldError::NotCounted(error.into()))?;
        lease.leave(&memo).await.map_err(HoldError::NotCounted)
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

/// A run that counts, from its memo.
struct CountedRun {
    every: Duration,
    run: LastRun,
}

impl CountedRun {
    /// `None` for a memo of another program.
    fn read(memo: &MemoView) -> Option<Self> {
        let (every, rest) = memo.text.strip_prefix(MARK)?.split_once(" ms, after ")?;
        let (began, by) = rest.split_once(" ms, by ")?;
        let [every, began] = [every, began].map(|ms| ms.parse().ok().map(Duration::from_millis));
        let run = LastRun { by: by.to_owned(), ago: began?.saturating_add(memo.age) };
        Some(Self { every: every?, run })
    }

    /// The store deletes a memo after the interval that it was written with. A shorter interval is applied here.
    fn within(self, every: Duration) -> Option<LastRun> {
        (every >= self.every || self.run.ago < every).then_some(self.run)
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
        for other in ["", "10.0.0.7:80", "ran, once every x ms, after 1 ms, by y", "ran, once every 1 ms"] {
            assert!(counted(other, 0).is_none(), "{other}");
        }
    }

    /// A run counts for the shorter of its own interval and the other one.
    #[test]
    fn of_two_intervals_the_shorter_one_counts() {
        let text = "ran, once every 10000 ms, after 1000 ms, by x";
        let within = |every, age| counted(text, age).unwrap().within(Duration::from_millis(every)).is_some();
        assert!(within(10_000, 8000) && within(10_000, 9500), "the store says that it is not over");
        assert!(within(60_000, 8000));
        assert!(within(5000, 3999) && !within(5000, 4000));
    }
}
