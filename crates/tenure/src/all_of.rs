//! `AllOf`: several locks, to be held at once.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use tenure_core::Moment;

use crate::{
    engine::Engine,
    error::{AcquireError, ConfigError, HoldError},
    guard::Guard,
    guards::Guards,
    leases::{Leases, first},
    lock::Lock,
    several,
};

/// Several mutexes, to be held at once: all or none. Made by [`Locker::all`](crate::Locker::all).
///
/// They are taken one after the other, in the order of their names. Every process that takes several locks this way takes
/// them in the same order, so that none of them waits for another that waits for it. A program that holds one of the locks
/// and then asks for several breaks that order: it should name all of them at once.
///
/// While it waits for one lock it holds those before it, and others wait for those.
///
/// # Example: money goes from one account to another
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let both = locks.all(["account/7", "account/3"]);
/// let moved = both
///     .hold(async |leases| {
///         // Each account refuses the tokens of its own former holders.
///         leases.iter().map(|lease| lease.token()).collect::<Vec<_>>()
///     })
///     .await?;
/// assert_eq!(moved.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AllOf {
    engine: Arc<Engine>,
    /// In the order in which they are taken.
    locks: Result<Vec<Lock>, ConfigError>,
}

impl AllOf {
    pub(crate) fn new(engine: Arc<Engine>, locks: Vec<Lock>) -> Self {
        Self { engine, locks: several::in_order(locks) }
    }

    /// With settings, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    /// [`max_hold`](Lock::max_hold) counts from when all are held.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let both = locks.all(["a", "b"]).with(|lock| lock.ttl(Duration::from_secs(30)));
    /// # both.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with(self, set: impl Fn(Lock) -> Lock) -> Self {
        let set_all = |locks: Vec<Lock>| several::in_order(locks.into_iter().map(set).collect());
        Self { locks: self.locks.and_then(set_all), ..self }
    }

    /// Waits until this process holds all of the locks.
    ///
    /// If one that it holds already is lost while it waits for another, it gives back what it has and begins anew.
    ///
    /// # Timing
    /// Waits for ever, in each lock's queue in turn. One lock costs one request at least.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; nothing is held then. [`ConfigError::NameTwice`] and the like before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]; what was held already is released in the background.
    pub async fn acquire(&self) -> Result<Guards, AcquireError> {
        self.acquire_for(None).await
    }

    /// Asks once for each; `None` if another owner holds one of them, or waits for it. Leaves no place in a queue.
    ///
    /// # Timing
    /// One request for each, as [`Lock::try_acquire`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guards>, AcquireError> {
        AcquireError::if_free(self.acquire_for(Some(Duration::ZERO)).await)
    }

    /// Waits for at most `patience` for all of them together; zero asks once for each.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`AcquireError::TimedOut`], with a holder of the lock that was not to be had. What
    /// was held already has been given back then, if the store answers.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, patience: Duration) -> Result<Guards, AcquireError> {
        self.acquire_for(Some(patience)).await
    }

    /// Runs `work` while all locks are held, then gives them back. The future that `work` makes is dropped as soon as one of
    /// the leases is lost; see [`Lock::hold`].
    ///
    /// # Timing
    /// Waits for the locks as [`acquire`](Self::acquire) does: for ever.
    ///
    /// # Errors
    /// As [`Lock::hold`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then the guards.
    pub async fn hold<T>(&self, work: impl AsyncFnOnce(Leases) -> T) -> Result<T, HoldError> {
        run(self.acquire().await?, work).await
    }

    /// As [`hold`](Self::hold), if all locks are free; `None` if one is not, and the work never begins.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), but without patience for a store that fails.
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub async fn try_hold<T>(&self, work: impl AsyncFnOnce(Leases) -> T) -> Result<Option<T>, HoldError> {
        match self.try_acquire().await? {
            Some(guards) => run(guards, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`hold`](Self::hold), but waits for the locks for at most `patience`; zero asks once for each.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), and [`AcquireError::TimedOut`] in [`HoldError::Acquire`].
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub async fn hold_within<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(Leases) -> T,
    ) -> Result<T, HoldError> {
        run(self.acquire_within(patience).await?, work).await
    }

    async fn acquire_for(&self, budget: Option<Duration>) -> Result<Guards, AcquireError> {
        let locks = self.locks.as_ref().map_err(Clone::clone)?;
        locks.iter().try_for_each(Lock::validate)?;
        let began = self.engine.host.now();
        loop {
            let mut held = Vec::with_capacity(locks.len());
            let gathered = self.gather(locks, &mut held, began, budget).await;
            let guards = Guards::new(held);
            if gathered.is_ok() && guards.check().is_ok() {
                locks.iter().zip(guards.iter()).for_each(|(lock, lease)| lock.cap(lease.cell()));
                return Ok(guards);
            }
            // Not in the background: who is told that it has nothing has left nothing behind (L8).
            let _ = guards.release().await;
            gathered?;
            let waited = began.elapsed(self.engine.host.now());
            if budget.is_some_and(|budget| waited >= budget) {
                return Err(AcquireError::TimedOut { waited, ahead: None, holder: None });
            }
        }
    }

    /// Takes one after the other, until all are held or one of them is lost.
    async fn gather(
        &self,
        locks: &[Lock],
        held: &mut Vec<Guard>,
        began: Moment,
        budget: Option<Duration>,
    ) -> Result<(), AcquireError> {
        for lock in locks {
            let waited = || began.elapsed(self.engine.host.now());
            let next = {
                let next = pin!(lock.acquire_uncapped(budget.map(|budget| budget.saturating_sub(waited()))));
                let lost = pin!(first(held.iter().map(|guard| guard.lost())));
                match select(next, lost).await {
                    Either::Left((next, _)) => next,
                    Either::Right(_) => return Ok(()),
                }
            };
            held.push(next.map_err(|error| several::of_all(error, waited()))?);
        }
        Ok(())
    }
}

/// Works under guards for as long as all leases last, then gives them back.
async fn run<T>(guards: Guards, work: impl AsyncFnOnce(Leases) -> T) -> Result<T, HoldError> {
    let out = {
        let work = work(guards.leases());
        tokio::select! {
            biased;
            lost = guards.lost() => return Err(HoldError::Lost(lost)),
            out = work => out,
        }
    };
    guards.settle().await?;
    Ok(out)
}
