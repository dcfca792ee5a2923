//! `AcquireError`, `ReleaseError`, `HoldError`, `Lost`: one small answer per verb.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tenure_core::{
    BackendError, FencingToken, HolderView, LockName, MemoError, NameError, OwnerId, TimingError,
};

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
    #[error("a semaphore has at least one slot")]
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
        "{backend} has no read locks: several servers that each count readers would let in a writer beside them"
    )]
    NoReadLocks {
        /// Which backend.
        backend: &'static str,
    },
    /// This lock, or this store, cannot keep a lease while nobody uses it.
    #[error("{backend}: a lease is not kept idle here: {why}; leave `idle` out")]
    NotIdle {
        /// Which backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// An owner was chosen on a backend that gives each claim one of its own.
    #[error("{backend} gives each claim an owner of its own; leave the owner out")]
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
    /// A lease that ends with the process that took it cannot be gone on with.
    #[error("a lease of {backend} ends with the process that took it, so another one cannot go on with it")]
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
    #[error("an interval is 1 ms to 366 days")]
    Every,
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

/// Why a lock was not acquired. The caller holds nothing then, and has no place in the queue.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Other owners held it all the time.
    #[error("not acquired within {waited:.1?}{}", Held(.holder))]
    TimedOut {
        /// How long we waited.
        waited: Duration,
        /// How many were ahead of us when we gave up, if we had a place.
        ahead: Option<usize>,
        /// One of the holders, as last seen.
        holder: Option<Box<HolderView>>,
    },
    /// The request cannot be honoured at all.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed, for longer than our patience or for good.
    #[error("the store of locks failed")]
    Backend(#[from] BackendError),
    /// This process cannot start the thread that renews leases, or it has ended. Nothing was asked of the store.
    #[error("the thread that renews leases cannot be started")]
    NoKeeper(#[source] Arc<io::Error>),
}

impl AcquireError {
    /// What a try answers: that another owner has it is no error.
    pub(crate) fn if_free<G>(tried: Result<G, Self>) -> Result<Option<G>, Self> {
        match tried {
            Ok(held) => Ok(Some(held)),
            Err(Self::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

struct Held<'a>(&'a Option<Box<HolderView>>);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = self.0 else { return Ok(()) };
        write!(f, ": held by {}", holder.who())?;
        match holder.expires_in {
            Some(left) => write!(f, ", {left:.1?} left"),
            None => f.write_str(", without an end"),
        }
    }
}

/// Why this process could not go on with a lease. What the store has of it stays as it is, or was renewed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The owner does not hold the lock: the lease has ended, was broken or given back, or never was.
    #[error("this owner does not hold the lock; the lease has ended or was broken")]
    Gone,
    /// A guard of this process has the lease, and renews it.
    #[error("a guard of this process holds this lease already")]
    HeldHere,
    /// The request cannot be honoured at all.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store failed; asking again is safe.
    #[error("the store of locks failed")]
    Backend(#[from] BackendError),
    /// This process cannot start the thread that renews leases, or it has ended. Nothing was asked of the store.
    #[error("the thread that renews leases cannot be started")]
    NoKeeper(#[source] Arc<io::Error>),
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its validity ended without a renewal.
    Expired,
    /// The store says that somebody else may have it: it was broken, or the store was replaced.
    Taken,
    /// `max_hold` is over.
    MaxHold,
    /// This process is a fork of the one that holds it (hazard 27).
    Forked,
    /// Its guard gave it back. Only the [leases](crate::Lease) that outlive their guard are told so.
    Released,
}

/// A lease that ended without our release. A former holder knows it at the latest when its validity ends.
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
            Loss::Expired => "the lease was lost: it could not be renewed in time",
            Loss::Taken => "the lease was lost: it was broken, or the store forgot it",
            Loss::Forked => "the lease belongs to the process that this one was forked from",
            Loss::MaxHold => "the lease was lost: it was held for as long as max_hold allows",
            Loss::Released => "the lease was given back by its guard",
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
    /// It could not be said whether the store heard of it. It is tried again in the background; the ttl ends it at last.
    #[error("it is not known whether the lock was released; it is free after its ttl at the latest")]
    Unknown(#[source] BackendError),
}

/// Why `hold` has no result of the work.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The work never began.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost before the work was done: it was dropped, or its result came too late.
    #[error("the lease was lost before the work was done")]
    Lost(#[source] Lost),
}

/// Why a memo was not left.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// No store takes such a memo; nothing was sent.
    #[error(transparent)]
    Memo(#[from] MemoError),
    /// This store takes no memos; nothing was sent.
    #[error("{backend} keeps no memos: {why}")]
    NotKept {
        /// Which backend.
        backend: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The lease was lost: the memo is not there.
    #[error("the lease was lost before the memo was left")]
    Lost(#[source] Lost),
    /// The store failed. The memo may be there if the [outcome](BackendError::outcome) is unknown.
    #[error("the memo could not be left")]
    Store(#[source] BackendError),
}

impl From<Lost> for NoteError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Why a job that is to run once per interval has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The job never began.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost before the job was done: it was dropped, and does not count.
    #[error("the lease was lost before the job was done; it does not count")]
    Lost(#[source] Lost),
    /// The store was not told: the job may run again within the interval. Where a failed run counts it never began; otherwise
    /// it is done.
    #[error("the run could not be counted: the job may run again within its interval")]
    NotNoted(#[source] NoteError),
}
