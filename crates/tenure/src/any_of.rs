//! `AnyOf`: several locks, of which one is to be held.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_all;

use crate::{
    engine::Engine,
    error::{AcquireError, ConfigError, HoldError},
    guard::Guard,
    lease::Lease,
    lock::{Lock, run},
    several,
};

/// Several mutexes, of which the first that is free is taken. Made by [`Locker::any`](crate::Locker::any).
///
/// For things of which one is as good as the other, and each has a name: machines, ports, licences. Where they need no
/// names, take a [semaphore](crate::Locker::semaphore). [`Lease::name`] says which one it is, and its token is one of that
/// lock.
///
/// The free ones are tried in the order in which they were named. If none is free, it waits in all queues at the same time;
/// when it gets one lock, its places in the other queues are withdrawn.
///
/// # Example: a free machine
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let one = locks.any(["gpu0", "gpu1"]).acquire().await?;
/// let other = locks.any(["gpu0", "gpu1"]).acquire().await?;
/// assert_eq!((one.name().as_str(), other.name().as_str()), ("gpu0", "gpu1"));
/// # one.release().await?; other.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AnyOf {
    engine: Arc<Engine>,
    /// In the order in which they were named.
    locks: Result<Vec<Lock>, ConfigError>,
}

impl AnyOf {
    pub(crate) fn new(engine: Arc<Engine>, locks: Vec<Lock>) -> Self {
        Self { engine, locks: several::checked(locks) }
    }

    /// With settings, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    #[must_use]
    pub fn with(self, set: impl Fn(Lock) -> Lock) -> Self {
        let set_all = |locks: Vec<Lock>| several::checked(locks.into_iter().map(set).collect());
        Self { locks: self.locks.and_then(set_all), ..self }
    }

    /// Waits until this process holds one of the locks.
    ///
    /// # Timing
    /// Waits for ever, in all queues at the same time. For an instant another lock may be granted as well; it is given back at
    /// once, in the background.
    ///
    /// # Errors
    /// As [`Lock::acquire`], once none of the locks can be had any more; an error of some of them is logged.
    /// [`ConfigError::NameTwice`] and the like before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`], for every queue.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.acquire_for(None).await
    }

    /// Asks once for each, one after the other; `None` if other owners hold all of them, or wait for them. Leaves no place in
    /// a queue.
    ///
    /// # Timing
    /// One request for each, up to the first that is free.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        AcquireError::if_free(self.acquire_for(Some(Duration::ZERO)).await)
    }

    /// Waits for at most `patience`; zero asks once for each.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`AcquireError::TimedOut`], with a holder of one of the locks; nothing is held or
    /// queued then.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, patience: Duration) -> Result<Guard, AcquireError> {
        self.acquire_for(Some(patience)).await
    }

    /// Runs `work` while one of the locks is held, then gives it back; see [`Lock::hold`].
    ///
    /// # Errors
    /// As [`Lock::hold`].
    ///
    /// # Cancel safety
    /// As [`Lock::hold`].
    pub async fn hold<T>(&self, work: impl AsyncFnOnce(Lease) -> T) -> Result<T, HoldError> {
        run(self.acquire().await?, work).await
    }

    /// As [`hold`](Self::hold), if one of the locks is free; `None` if none is, and the work never begins.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), but without patience for a store that fails.
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub async fn try_hold<T>(&self, work: impl AsyncFnOnce(Lease) -> T) -> Result<Option<T>, HoldError> {
        match self.try_acquire().await? {
            Some(guard) => run(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`hold`](Self::hold), but waits for a lock for at most `patience`; zero asks once for each.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), and [`AcquireError::TimedOut`] in [`HoldError::Acquire`].
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub async fn hold_within<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(Lease) -> T,
    ) -> Result<T, HoldError> {
        run(self.acquire_within(patience).await?, work).await
    }

    async fn acquire_for(&self, budget: Option<Duration>) -> Result<Guard, AcquireError> {
        let locks = self.locks.as_ref().map_err(Clone::clone)?;
        locks.iter().try_for_each(Lock::validate)?;
        let began = self.engine.host.now();
        // First without a place: who waits for all at once is granted all that are free.
        let waited = || began.elapsed(self.engine.host.now());
        let refused = match try_each(locks).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let left = budget.map(|budget| budget.saturating_sub(waited()));
        let acquired = if left.is_some_and(|left| left.is_zero()) {
            Err(refused)
        } else {
            wait_for_all(locks, left).await
        };
        acquired.map_err(|error| several::of_all(error, waited()))
    }
}

/// Asks for one after the other; why none was granted.
async fn try_each(locks: &[Lock]) -> Result<Guard, AcquireError> {
    let mut refused = None;
    for lock in locks {
        match lock.acquire_for(Some(Duration::ZERO)).await {
            Ok(guard) => return Ok(guard),
            Err(error) => {
                // The others are on the same store: what fails there for now fails for them.
                let is_over = matches!(&error, AcquireError::Backend(error) if error.kind().is_transient());
                refused = Some(graver(refused, error));
                if is_over {
                    break;
                }
            }
        }
    }
    Err(refused.expect("BUG: at least one was named"))
}

/// Waits in all queues. Those that are left when one has granted are dropped, and so withdrawn.
async fn wait_for_all(locks: &[Lock], budget: Option<Duration>) -> Result<Guard, AcquireError> {
    let mut waiting: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire_for(budget))).collect();
    let mut refused = None;
    loop {
        let (answer, _, others) = select_all(waiting).await;
        let error = match answer {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        if !matches!(error, AcquireError::TimedOut { .. }) && !others.is_empty() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "one of several locks cannot be had; the others are waited for");
        }
        refused = Some(graver(refused, error));
        if others.is_empty() {
            return Err(refused.expect("BUG: just set"));
        }
        waiting = others;
    }
}

/// Of two refusals the one to tell: a time-out is an answer, and means that another may still be had.
fn graver(one: Option<AcquireError>, other: AcquireError) -> AcquireError {
    match (one, other) {
        (Some(timed_out @ AcquireError::TimedOut { .. }), _) => timed_out,
        (_, timed_out @ AcquireError::TimedOut { .. }) => timed_out,
        (Some(error), _) => error,
        (None, error) => error,
    }
}
