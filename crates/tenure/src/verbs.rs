//! The four verbs, once: `acquire`, `try_acquire`, `hold` and `try_hold` are the same for one lock, for all of
//! several and for any of several. Their futures own what they need. Only the types of this crate implement the traits.

use std::time::Duration;

use crate::error::{AcquireError, HoldError, Lost};

/// Private, so that no other crate implements a trait that has it.
#[allow(unnameable_types, reason = "that no other crate can name it is its purpose")]
pub trait Sealed {}

/// What can be acquired: one lock, all of several, or any of several. Sealed.
pub trait Acquirable: Sealed + Clone + Send + Sync + 'static {
    /// The guard that it returns.
    type Held: Held;

    /// The longest wait; `None` without a limit.
    fn limit(&self) -> Option<Duration>;

    /// The same, with another limit.
    fn with_limit(self, limit: Duration) -> Self;

    /// Waits at most this long; zero asks once.
    fn acquire_for(
        &self,
        limit: Option<Duration>,
    ) -> impl Future<Output = Result<Self::Held, AcquireError>> + Send;
}

/// Held locks, to be released. Sealed.
pub trait Held: Sealed + Send + Sync + 'static {
    /// The proof that the work receives.
    type Proof: Clone + Send + Sync + 'static;

    /// The proof that the work receives.
    fn proof(&self) -> Self::Proof;

    /// The result of `work`. If the lease is lost first, drops `work` and returns the loss.
    fn work_under<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Lost>>;

    /// Runs work that cannot be dropped, in the span of the hold.
    fn work_through<T>(&self, work: impl FnOnce() -> T) -> T;

    /// The work is done: its result counts if the lease was held until now, even if the release fails.
    fn settle(self) -> impl Future<Output = Result<(), HoldError>> + Send;
}

pub(crate) fn acquire<A: Acquirable>(
    from: &A,
) -> impl Future<Output = Result<A::Held, AcquireError>> + Send + use<A> {
    let from = from.clone();
    async move { from.acquire_for(from.limit()).await }
}

pub(crate) fn try_acquire<A: Acquirable>(
    from: &A,
) -> impl Future<Output = Result<Option<A::Held>, AcquireError>> + Send + use<A> {
    let from = from.clone();
    async move {
        match from.acquire_for(Some(Duration::ZERO)).await {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.is_busy() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn hold<A, T, F>(from: &A, work: F) -> impl Future<Output = Result<T, HoldError>> + use<A, T, F>
where
    A: Acquirable,
    F: AsyncFnOnce(<A::Held as Held>::Proof) -> T,
{
    let acquiring = acquire(from);
    async move { run(acquiring.await?, work).await }
}

pub(crate) fn try_hold<A, T, F>(
    from: &A,
    work: F,
) -> impl Future<Output = Result<Option<T>, HoldError>> + use<A, T, F>
where
    A: Acquirable,
    F: AsyncFnOnce(<A::Held as Held>::Proof) -> T,
{
    let trying = try_acquire(from);
    async move {
        match trying.await? {
            Some(held) => run(held, work).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Runs the work while the lease lasts, then releases it.
async fn run<H: Held, T>(held: H, work: impl AsyncFnOnce(H::Proof) -> T) -> Result<T, HoldError> {
    let out = held.work_under(work(held.proof())).await.map_err(HoldError::Lost)?;
    held.settle().await?;
    Ok(out)
}
