//! The errors, by request: `ConfigError` before anything is sent, `AcquireError`, `HoldError`, `MemoError`,
//! `ReleaseError`; and `Lost`, the error of a lease that has ended.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tenure_core::{
    BackendError, FencingToken, HolderView, LockName, NameError, OwnerId, TimingError, WaiterView,
};

/// A setting that is not valid, found before anything is sent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A ttl outside 100 ms to 24 h.
    #[error(transparent)]
    Ttl(#[from] TimingError),
    /// A ttl above the maximum of the backend.
    #[error("{backend} accepts a ttl of {max:?} at most{}", parameter.map_or(String::new(), |p| format!("; raise it with ?{p}=")))]
    TtlAboveMaximum {
        /// The backend.
        backend: &'static str,
        /// Its maximum.
        max: Duration,
        /// The parameter of its URL that raises it, if there is one.
        parameter: Option<&'static str>,
    },
    /// A semaphore without a slot.
    #[error("a semaphore must have at least one slot")]
    NoSlots,
    /// More slots than the backend allows.
    #[error("a semaphore on {backend} has {most} slots at most")]
    TooManySlots {
        /// The backend.
        backend: &'static str,
        /// Its maximum.
        most: u32,
    },
    /// No permit, or more than the semaphore has.
    #[error("a claim takes 1 to {slots} permits of this semaphore, not {permits}")]
    PermitsOutOfRange {
        /// What was asked for.
        permits: u32,
        /// How many there are.
        slots: u32,
    },
    /// Permits of a lock that is no semaphore.
    #[error("only a semaphore has permits to take")]
    NoPermits,
    /// Several permits where each is a mutex.
    #[error("a claim takes one slot of a semaphore on {backend}: each is a mutex of its own")]
    OnePermit {
        /// The backend.
        backend: &'static str,
    },
    /// A mode that the backend does not have.
    #[error("{backend} has mutexes only: neither read locks nor semaphores")]
    NotShared {
        /// The backend.
        backend: &'static str,
    },
    /// A read lock on a backend that has other shared locks.
    #[error(
        "{backend} has no read locks: servers that each count readers would grant a writer at the same time; use a mutex"
    )]
    NoReadLocks {
        /// The backend.
        backend: &'static str,
    },
    /// This lock, or this store, cannot keep an idle lease.
    #[error("{backend}: a lease is not kept idle here: {why}; leave `keep_idle` out")]
    NotIdle {
        /// The backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// This lock, or this store, does not know which waiter is the newest.
    #[error(
        "{backend}: only the newest waits where waiters of a mutex have an order: {why}; leave `latest` and `replace` out"
    )]
    NotNewest {
        /// The backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// This lock, or this store, has no classes of waiters.
    #[error("{backend}: a priority is refused here: {why}; leave `priority` out")]
    NoPriority {
        /// The backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// An owner was chosen on a backend that makes a new owner for each claim.
    #[error("{backend} chooses the owner of each claim; leave the owner out")]
    OwnerNotChosen {
        /// The backend.
        backend: &'static str,
    },
    /// The owner that was chosen has another lease in this process, or one that is being released in the background, or was
    /// chosen for several.
    #[error(
        "the owner {owner} has another lease in this process, or one that is being released; an owner is for one lease: choose \
         another one"
    )]
    OwnerInUse {
        /// The owner.
        owner: OwnerId,
    },
    /// A lease that ends with the process that took it cannot be attached to.
    #[error("a lease of {backend} ends with the process that took it, so another one cannot attach to it")]
    EndsWithProcess {
        /// The backend.
        backend: &'static str,
    },
    /// A lease that ends with the process that took it cannot outlive it.
    #[error("a lease of {backend} ends with the process that took it; leave `linger` and `min_hold` out")]
    NoLinger {
        /// The backend.
        backend: &'static str,
    },
    /// A lock that would have to stay taken for longer than it may be held.
    #[error(
        "a lock cannot stay taken for {min_hold:?} (`min_hold`) and be held for {max_hold:?} at most (`max_hold`)"
    )]
    MinHoldAboveMaxHold {
        /// The least time.
        min_hold: Duration,
        /// The most time.
        max_hold: Duration,
    },
    /// Several locks were requested without a name.
    #[error("no lock is named; name at least one")]
    NoNames,
    /// Several locks were requested, with one name twice: the claim would wait for itself.
    #[error("the lock {name} is named twice; name each lock once")]
    NameTwice {
        /// The name of the lock.
        name: LockName,
    },
    /// More locks than one claim may name.
    #[error("more than {most} locks are named; name {most} at most")]
    TooManyNames {
        /// The maximum.
        most: usize,
    },
    /// An interval that is zero, or too long.
    #[error("an interval must be 1 ms to 366 days")]
    IntervalOutOfRange,
    /// A memo that is not valid.
    #[error(transparent)]
    Memo(#[from] tenure_core::InvalidMemo),
    /// A feature that needs memos, on a backend without memos.
    #[error("{backend} keeps no memos: {why}")]
    NoMemos {
        /// The backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// A URL that names no backend, or one with settings that it does not have.
    #[error("{0}")]
    Url(String),
}

impl ConfigError {
    /// The reason why a backend refused its URL.
    pub(crate) fn of_url(refused: impl fmt::Display) -> Self {
        Self::Url(refused.to_string())
    }
}

/// Why a lock was not acquired, or could not be [attached](crate::Lock::attach) to. The caller then holds nothing
/// and has no place in the queue.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Other owners held the lock, or waited for it, during the whole wait.
    #[error("not acquired within {waited:.1?}{}", HeldBy(.holder))]
    TimedOut {
        /// How long the caller waited.
        waited: Duration,
        /// How many waiters were ahead at the end of the wait, if this one had a place.
        ahead: Option<usize>,
        /// One of the holders, as last seen; it may be this process. `None` only if the store has named no holder.
        holder: Option<Box<HolderView>>,
    },
    /// The request is not valid; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, for longer than the patience or with a permanent error. If only the last request before
    /// the timeout stayed unanswered, the error is [`TimedOut`](Self::TimedOut).
    #[error("the lock store failed")]
    Store(#[from] BackendError),
    /// A newer client took its place in the queue: see [`Lock::latest`](crate::Lock::latest).
    #[error("gave way to {}, which came later", .by.who())]
    GaveWay {
        /// The newer client.
        by: Box<WaiterView>,
    },
    /// The owner does not hold the lock to attach to: the lease has expired, was broken or released, or never
    /// existed.
    #[error(
        "this owner does not hold the lock; the lease has expired or was broken, or the owner or the name is wrong"
    )]
    Gone,
    /// This process cannot start the thread that renews leases, or the thread has ended. No request was sent.
    #[error("cannot start the thread that renews leases; check the limits on processes and threads")]
    NoKeeper(#[source] Arc<io::Error>),
}

impl AcquireError {
    /// True if another owner has the lock: a later attempt may succeed. False if the store or the request is at
    /// fault, and if this client [gave way](Self::GaveWay).
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }

    /// The error of the store, if it has failed: a later attempt may succeed.
    pub fn store_error(&self) -> Option<&BackendError> {
        if let Self::Store(error) = self { Some(error) } else { None }
    }

    /// The holder of the lock, as last seen.
    pub fn holder(&self) -> Option<&HolderView> {
        if let Self::TimedOut { holder, .. } = self { holder.as_deref() } else { None }
    }
}

struct HeldBy<'a>(&'a Option<Box<HolderView>>);

impl fmt::Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = self.0 else { return Ok(()) };
        write!(f, ": held by {}", holder.who())?;
        match holder.expires_in {
            Some(Duration::ZERO) => f.write_str(", which has expired"),
            Some(left) => write!(f, ", expires in {left:.1?} unless renewed"),
            None => f.write_str(", does not expire"),
        }
    }
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its validity ended without a renewal.
    Expired,
    /// The store reports that another owner may have it: it was broken, or the store was replaced.
    Taken,
    /// `max_hold` has passed.
    MaxHold,
    /// This process is a fork of the holder.
    Forked,
    /// Its guard released it. Only [leases](crate::Lease) that outlive their guard report this.
    Released,
}

/// A lease that has ended, and why. A former holder detects it when its validity ends, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    cause: Loss,
    token: FencingToken,
    at: Duration,
}

impl Lost {
    pub(crate) fn new(cause: Loss, token: FencingToken, at: Duration) -> Self {
        Self { cause, token, at }
    }

    /// How it was lost.
    pub fn cause(&self) -> Loss {
        self.cause
    }

    /// The token, which is no longer valid.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// When this process noticed the loss, on this machine's wall clock. For logs: that clock never decides whether
    /// a lease is lost.
    pub fn at(&self) -> SystemTime {
        // OK because a clock that shows a time past the end of `SystemTime` is no use for a log either.
        SystemTime::UNIX_EPOCH.checked_add(self.at).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cause {
            Loss::Expired => "the lease was lost: no renewal succeeded in time",
            Loss::Taken => "the lease was lost: tenure break or unlock ended it, or the store lost its data",
            Loss::Forked => "the lease belongs to the process that this one was forked from",
            Loss::MaxHold => "the lease was lost: max_hold was reached",
            Loss::Released => "the lease was released by its guard",
        })
    }
}

impl std::error::Error for Lost {}

/// Why a release did not end a lease.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It had ended before.
    #[error("the lease had ended before the release")]
    AlreadyLost(#[source] Lost),
    /// It is not known whether the store received the release. It is repeated in the background; the ttl ends the
    /// lease in any case. Only a transaction that relies on its [ownership](crate::ownership) keeps the lock until it has ended.
    #[error("the store has not confirmed the release; the lock is free after its ttl at the latest")]
    Unknown(#[source] BackendError),
}

/// Why a lease was not [detached](crate::Guard::detach): the store has not confirmed that it outlives this process. Its guard is
/// in the error, and still holds it unless it was lost.
#[derive(thiserror::Error)]
#[error("the lease was not detached: the store has not confirmed that it outlives this process")]
pub struct DetachError<G = crate::Guard> {
    guard: Box<G>,
    source: BackendError,
}

impl<G> DetachError<G> {
    pub(crate) fn new(guard: G, source: BackendError) -> Self {
        Self { guard: Box::new(guard), source }
    }

    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> DetachError<H> {
        DetachError::new(wrap(*self.guard), self.source)
    }

    /// The guard, to try again or to release it.
    pub fn into_guard(self) -> G {
        *self.guard
    }

    /// The error of the store.
    pub fn store_error(&self) -> &BackendError {
        &self.source
    }
}

impl<G> fmt::Debug for DetachError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachError").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Why work under a lock has no result: the error of [`Lock::hold`](crate::Lock::hold) and
/// [`RunOnce::run`](crate::once::RunOnce::run).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The work never began.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost before the work was done: the work was cancelled, or it finished too late and its result
    /// was discarded.
    #[error("the lease was lost before the work was done")]
    Lost(#[source] Lost),
    /// The store did not record the run of a job that runs once per interval, so it may run again within the
    /// interval. With [`even_if_failed`](crate::once::RunOnce::even_if_failed) the work did not start; otherwise it
    /// has finished.
    #[error("the run was not counted: the job may run again within its interval")]
    NotCounted(#[source] MemoError),
}

impl HoldError {
    /// True if another owner has the lock: a later attempt may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_busy())
    }

    /// The error of the store, if it failed before the work began.
    pub fn store_error(&self) -> Option<&BackendError> {
        if let Self::Acquire(error) = self { error.store_error() } else { None }
    }

    /// The holder of the lock, as last seen.
    pub fn holder(&self) -> Option<&HolderView> {
        if let Self::Acquire(error) = self { error.holder() } else { None }
    }
}

/// Why a memo was not stored.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MemoError {
    /// The memo is not valid, or this store has no memos; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The lease was lost: the memo was not stored.
    #[error("the lease was lost before the memo was stored")]
    Lost(#[source] Lost),
    /// The store failed. The memo may have been stored if the [outcome](BackendError::outcome) is unknown.
    #[error("the memo was not stored")]
    Store(#[source] BackendError),
}

/// Why a transaction cannot rely on a lease.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OwnershipError {
    /// The lease has ended, or was passed on.
    #[error("the lease was lost before a transaction could rely on it")]
    Lost(#[source] Lost),
    /// The store failed, or its transactions cannot rely on the owner of this lock
    /// ([`Unsupported`](crate::ErrorKind::Unsupported)).
    #[error("no transaction can rely on the lease")]
    Store(#[source] BackendError),
}

impl From<Lost> for OwnershipError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<Lost> for MemoError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<tenure_core::InvalidMemo> for MemoError {
    fn from(refused: tenure_core::InvalidMemo) -> Self {
        Self::Config(refused.into())
    }
}
