//! `Promises`: what a backend promises, as data.

use std::time::Duration;

use crate::timing::Timing;

/// What ends a grant that is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndOfGrant {
    /// The requested ttl, by the server's clock.
    Ttl,
    /// The end of the session with the server: when the process ends, or one ttl after the server last received a
    /// message from it. A process cannot leave such a lease to another one, as `tenure lock` does.
    Session,
}

/// Which locks several owners can hold at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// Read-write locks and semaphores: the store counts the holders.
    Counted,
    /// Semaphores only. Each slot is a mutex, `name#1`, `name#2` …, because no node can count the holders.
    Slots {
        /// The largest number of slots; each costs a request.
        most: u32,
    },
    /// No shared locks: mutexes only.
    No,
}

/// In which order waiters are granted the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First in, first out.
    Fifo,
    /// No order is promised.
    Any,
}

/// What happens to the turn of a waiter that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absent {
    /// It is the next holder for one claim ttl, 500 ms; then the turn passes to the next waiter.
    Passed,
    /// It stays first in the queue until its place expires, like a lease that is not renewed.
    WaitedFor,
}

/// In which step a fencing token is minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Minting {
    /// When the lock is granted: a holder that repeats its claim gets a larger token. A claim may ask for a block
    /// of tokens, so that the waiters of one process share a lease.
    Entry,
    /// When the claim takes its place in the queue: a holder that repeats its claim has the same token.
    Place,
}

/// Whether a holder can store a [memo](crate::Memo) with its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memos {
    /// It can. The store keeps a memo for the given time by its own clock, and forgets it where it
    /// [forgets](Restart) leases. On a quorum, a majority keeps it.
    Kept,
    /// It cannot, for this reason.
    None(&'static str),
}

/// What happens to leases and tokens when the server restarts, or when another server replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restart {
    /// Leases may be forgotten and granted again immediately. Then only the fencing token protects the resource.
    Lost,
    /// Leases may be forgotten, but nothing is granted until every forgotten lease has expired.
    WaitedFor,
    /// Leases and tokens survive.
    Survives,
}

/// How a waiter learns of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WakeSupport {
    /// The store pushes a hint.
    Pushed,
    /// The client polls the store for hints, at least once in this period.
    Polled(Duration),
    /// No hint comes from another process. A waiter whose turn may be next repeats its claim, at least once in this
    /// period.
    Asked(Duration),
}

/// What a backend promises. A test compares the table in the README with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// The scheme of its URL.
    pub backend: &'static str,
    /// Which locks several owners can hold at the same time.
    pub sharing: Sharing,
    /// In which order waiters are granted the lock.
    pub order: Order,
    /// What happens to the turn of a waiter that died.
    pub absent: Absent,
    /// In which step a fencing token is minted.
    pub minting: Minting,
    /// What happens to leases when the server restarts.
    pub restart: Restart,
    /// What happens to leases when another server replaces a failed one; `None` where there is no other server.
    pub fail_over: Option<Restart>,
    /// The clients that share the locks, such as `one host`.
    pub reach: &'static str,
    /// What ends a grant that is not released.
    pub end: EndOfGrant,
    /// A lease can be freed as soon as the process that holds it has ended, because waiters see that process. False:
    /// such a lease lasts for the rest of its ttl, or of its session.
    pub free_at_death: bool,
    /// The caller may choose the owner of a claim. Then another process can repeat the claim after a lost answer
    /// and is granted the same lease. False where a lease ends with its process, or where a vote may need a new
    /// owner.
    pub chosen_owner: bool,
    /// Waiters of a higher [class](crate::Priority) are granted the lock first. False: the store refuses all classes but the
    /// default.
    pub classes: bool,
    /// How a waiter learns of its turn.
    pub wake: WakeSupport,
    /// The maximum number of waiters of one process for one lock with places in the store's queue at the same time.
    /// The others wait in a queue of their process, and the store sees them in the order of arrival. `None`: all
    /// have places. For a mutex it is one where tokens are minted on [entry](Minting::Entry).
    pub places: Option<usize>,
    /// Whether a holder can store a memo with its lock.
    pub memo: Memos,
    /// The longest ttl that the backend accepts.
    pub max_ttl: Duration,
    /// The longest ttl that the store grants to this client at present, as far as it knows. Shorter than
    /// [`max_ttl`](Self::max_ttl) while a larger one is rolled out.
    pub served_ttl: Duration,
    /// The parameter of the URL that raises it, if there is one.
    pub max_ttl_parameter: Option<&'static str>,
    /// The unit to which the store rounds a ttl. A database whose answers take longer than that ends a lease which is
    /// not renewed later by what an answer takes, 2 s at most.
    pub ttl_grain: Duration,
}

impl Promises {
    /// The ttl if the caller sets none: [10 s](Timing::DEFAULT_TTL), or the longest ttl that the store grants if that
    /// is shorter.
    pub fn default_ttl(&self) -> Duration {
        Timing::DEFAULT_TTL.min(self.max_ttl).min(self.served_ttl)
    }

    /// For a backend: the weakest promises, from which it raises those that it can keep.
    pub fn least(backend: &'static str) -> Self {
        Self {
            backend,
            sharing: Sharing::No,
            order: Order::Any,
            absent: Absent::WaitedFor,
            minting: Minting::Place,
            restart: Restart::Lost,
            fail_over: None,
            reach: "one process",
            end: EndOfGrant::Session,
            free_at_death: false,
            chosen_owner: false,
            classes: false,
            wake: WakeSupport::Polled(Duration::from_secs(2)),
            places: None,
            memo: Memos::None("this store keeps no memos"),
            max_ttl: Timing::MAX_TTL,
            served_ttl: Timing::MAX_TTL,
            max_ttl_parameter: None,
            ttl_grain: Duration::from_secs(2),
        }
    }
}
