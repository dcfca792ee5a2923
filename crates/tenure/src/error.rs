//! What goes wrong, by what was asked for: `ConfigError` before anything is sent, `AcquireError`, `HoldError`, `MemoError` and
//! `ReleaseError`; and `Lost`, which is what a lease says once it has ended.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tenure_core::{BackendError, FencingToken, HolderView, LockName, NameError, OwnerId, TimingError};

/// A setting that cannot be honoured; found before anything is sent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A bad name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A ttl outside 100 ms to 24 h.
    #[error(transparent)]
    Ttl(#[from] TimingError),
    /// A ttl above what the backend accepts.
    #[error("{backend} accepts a ttl of {max:?} at most{}", parameter.map_or(String::new(), |p| format!("; raise it with ?{p}=")))]
    TtlAboveMaximum {
        /// Which backend.
        backend: &'static str,
        /// Its maximum.
        max: Duration,
        /// The parameter of its URL that raises it, if there is one.
        parameter: Option<&'static str>,
    },
    /// A semaphore without a single slot.
    #[error("a semaphore must have at least one slot")]
    NoSlots,
    /// More slots than the backend can ask for.
    #[error("a semaphore on {backend} has {most} slots at most")]
    TooManySlots {
        /// Which backend.
        backend: &'static str,
        /// Its maximum.
        most: u32,
    },
    /// A mode that the backend does not have.
    #[error("{backend} has mutexes only: neither read locks nor semaphores")]
    NotShared {
        /// Which backend.
        backend: &'static str,
    },
    /// A read lock on a backend that has other shared locks.
    #[error(
        "{backend} has no read locks: servers that each count readers would grant a writer at the same time; use a mutex"
    )]
    NoReadLocks {
        /// Which backend.
        backend: &'static str,
    },
    /// This lock, or this store, cannot keep a lease while it is not used.
    #[error("{backend}: a lease is not kept idle here: {why}; leave `keep_idle` out")]
    NotIdle {
        /// Which backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// An owner was chosen on a backend that gives each claim one of its own.
    #[error("{backend} chooses the owner of each claim; leave the owner out")]
    OwnerNotChosen {
        /// Which backend.
        backend: &'static str,
    },
    /// The owner that was chosen has another lease in this process, or was chosen for several.
    #[error(
        "the owner {owner} has another lease in this process; an owner is for one lease: choose another one"
    )]
    OwnerInUse {
        /// Which owner.
        owner: OwnerId,
    },
    /// A lease that ends with the process that took it cannot be attached to.
    #[error("a lease of {backend} ends with the process that took it, so another one cannot attach to it")]
    EndsWithProcess {
        /// Which backend.
        backend: &'static str,
    },
    /// Several locks were asked for, and none was named.
    #[error("no lock is named; name at least one")]
    NoNames,
    /// Several locks were asked for, and one was named twice: it would wait for itself.
    #[error("the lock {name} is named twice; name each lock once")]
    NameTwice {
        /// Which lock.
        name: LockName,
    },
    /// More locks than one claim may name.
    #[error("more than {most} locks are named; name {most} at most")]
    TooManyNames {
        /// How many may be named.
        most: usize,
    },
    /// An interval that is zero, or too long.
    #[error("an interval must be 1 ms to 366 days")]
    IntervalOutOfRange,
    /// A memo that no store takes.
    #[error(transparent)]
    Memo(#[from] tenure_core::InvalidMemo),
    /// What needs memos, on a backend that has none.
    #[error("{backend} keeps no memos: {why}")]
    NoMemos {
        /// Which backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// A URL that names no backend, or one with settings that it does not have.
    #[error("{0}")]
    Url(String),
}

impl ConfigError {
    /// What a backend said of its URL.
    pub(crate) fn of_url(refused: impl fmt::Display) -> Self {
        Self::Url(refused.to_string())
    }
}

/// Why a lock was not acquired, or could not be [attached](crate::Lock::attach) to. The caller holds nothing then, and has no
/// place in the queue.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Other owners held it all the time, or waited for it.
    #[error("not acquired within {waited:.1?}{}", HeldBy(.holder))]
    TimedOut {
        /// How long we waited.
        waited: Duration,
        /// How many were ahead of us when we gave up, if we had a place.
        ahead: Option<usize>,
        /// One of the holders, as last seen, which may be this process. None only if the store has named none.
        holder: Option<Box<HolderView>>,
    },
    /// The request cannot be honoured at all; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, for longer than our patience or for good. A store that missed only the last question of a caller who
    /// ran out of time has not failed: that is [`TimedOut`](Self::TimedOut).
    #[error("the lock store failed")]
    Store(#[from] BackendError),
    /// The owner does not hold the lock that was to be attached to: the lease has expired, was broken or released, or never was.
    #[error(
        "this owner does not hold the lock; the lease has expired or was broken, or the owner or the name is wrong"
    )]
    Gone,
    /// This process cannot start the thread that renews leases, or it has ended. Nothing was asked of the store.
    #[error("cannot start the thread that renews leases; check the limits on processes and threads")]
    NoKeeper(#[source] Arc<io::Error>),
}

impl AcquireError {
    /// Another owner has the lock: asking again later may succeed. False if the store or the request is at fault.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }

    /// The error of the store, if that has failed: asking again later may succeed.
    pub fn store_error(&self) -> Option<&BackendError> {
        if let Self::Store(error) = self { Some(error) } else { None }
    }

    /// Who has the lock, as last seen.
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
    /// The store says that another owner may have it: it was broken, or the store was replaced.
    Taken,
    /// `max_hold` has passed.
    MaxHold,
    /// This process is a fork of the one that holds it.
    Forked,
    /// Its guard released it. Only the [leases](crate::Lease) that outlive their guard are told so.
    Released,
}

/// A lease that has ended, and why. A former holder knows it at the latest when its validity ends.
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

    /// The token that is now worth nothing.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// When this process noticed, on this machine's wall clock. For a log: whether a lease is lost is never decided by it.
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
    /// It could not be said whether the store heard of it. It is tried again in the background; the ttl ends it in any case.
    #[error("the store has not confirmed the release; the lock is free after its ttl at the latest")]
    Unknown(#[source] BackendError),
}

/// Why work under a lock has no result to give: that of [`Lock::hold`](crate::Lock::hold) and [`RunOnce::run`](crate::once::RunOnce::run).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The work never began.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost before the work was done: it was dropped, or its result came too late.
    #[error("the lease was lost before the work was done")]
    Lost(#[source] Lost),
    /// Of a job that is to run once per interval: the store was not told, so it may run again within the interval. With
    /// [`even_if_failed`](crate::once::RunOnce::even_if_failed) the work did not start; otherwise it has finished.
    #[error("the run was not counted: the job may run again within its interval")]
    NotCounted(#[source] MemoError),
}

impl HoldError {
    /// Another owner has the lock: asking again later may succeed.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_busy())
    }

    /// The error of the store, if that has failed before the work began.
    pub fn store_error(&self) -> Option<&BackendError> {
        if let Self::Acquire(error) = self { error.store_error() } else { None }
    }

    /// Who has the lock, as last seen.
    pub fn holder(&self) -> Option<&HolderView> {
        if let Self::Acquire(error) = self { error.holder() } else { None }
    }
}

/// Why a memo was not left.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MemoError {
    /// No store takes such a memo, or this one takes none; nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The lease was lost: the memo is not there.
    #[error("the lease was lost before the memo was stored")]
    Lost(#[source] Lost),
    /// The store failed. The memo may be there if the [outcome](BackendError::outcome) is unknown.
    #[error("the memo was not stored")]
    Store(#[source] BackendError),
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
