//! Distributed locks as leases, with fencing tokens, on a store that you already run.
//!
//! Every lock is a **lease**: it expires after its ttl (10 s by default) unless it is renewed. So a crashed process
//! blocks others for no longer. The library renews it in the background while you work.
//!
//! *A holder detects a loss by its deadline.* It counts the ttl from before its request was sent, so the deadline
//! is never later than the store's. *A former holder is harmless.* Every grant carries a [`FencingToken`], which
//! grows with every grant of that lock. A resource that checks it refuses a smaller token than it has seen.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = tenure::connect("memory:").await?;
//! let guard = locks.mutex("orders/42").acquire().await?;
//! guard.check()?;
//! println!("I hold it, with token {}", guard.token());
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # What is not promised
//! No lock service can exclude others while a process is stopped, or between a check and the write that follows it.
//! Give the token to the resource; see [`fence`]. After a release by force, the former holder may work on for a
//! moment.
//!
//! # Where to begin
//! | For | Take |
//! |---|---|
//! | a store | [`connect`] with a URL, or a builder of [`store`] |
//! | a lock | [`Locker::mutex`], [`Locker::rwlock`], [`Locker::semaphore`] |
//! | several locks | [`Locker::all`] to hold all of them, [`Locker::any`] to hold one of them |
//! | one leader of many | [`Locker::election`] |
//! | a job once per interval | [`Locker::once`] |
//! | to hold it | [`Lock::hold`] around the work, or [`Lock::acquire`] for a [`Guard`] |
//! | code that works under the lock | a [`Lease`], passed on by its caller |
//! | what the lock protects | [`fence`]: the resource refuses the token of a former holder |
//! | to observe locks | [`Locker::inspect`], [`Locker::list`], [`Locker::watch`] |
//! | a program without a runtime | [`blocking`] |
//! | a lease that outlives its process | [`manual`] |
//! | your own backend | [`backend::Backend`], for [`Locker::new`] |
//!
//! # Features
//! `sqlite`, `redis`, `redlock`, `postgres`, `mysql`, `zookeeper`, `etcd`, `memory`: one store each, none by
//! default. `serde`: names, tokens, owners, views and findings serialize to JSON, as `tenure ls --json` prints
//! them. A store is read from its URL in a settings file. `testing`: the module of that name, with a clock and a
//! store for the tests of your program. `metrics`: counters and histograms of what the locks do.
//!
//! # Observability
//! Through `tracing`: a span for each acquisition, hold and renewal at the level `DEBUG`, with its outcome. A lost
//! lease is a warning. With the feature `metrics`, through the crate of that name: waits, holds, renewals, losses
//! and queues. `docs/guides/observe.md` in the repository lists all names and labels, and what to alert on.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
pub mod election;
pub mod fence;
pub mod manual;
mod newest;
pub mod once;
pub mod ownership;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

mod attach;
mod connect;
mod engine;
mod error;
mod guard;
mod host;
mod lease;
mod lock;
mod locker;
mod machine;
mod options;
mod pace;
/// The README's program, compiled by the doc tests.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
mod readme {}
/// The programs of the tutorial, compiled and run by the doc tests.
#[cfg(all(doctest, feature = "sqlite", feature = "memory"))]
#[doc = include_str!("../../../docs/learn/first-lock-rust.md")]
mod tutorial {}
/// The examples of the page about tests, compiled and run by the doc tests.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../../docs/guides/test-your-code.md")]
mod testing_page {}
mod several;
mod verbs;
mod watch;

pub use connect::connect;
pub use error::{
    AcquireError, ConfigError, DetachError, HoldError, Loss, Lost, MemoError, OwnershipError, ReleaseError,
};
pub use guard::Guard;
pub use lease::Lease;
pub use lock::{Lock, RwLock};
pub use locker::Locker;
pub use options::{Progress, WaitStatus};
pub use several::{AllOf, AnyOf, Guards, Leases};
pub use tenure_core::{BackendError, ErrorKind, FencingToken, Label, LockName, OwnerId, Priority};

/// Views of locks, as the store reports them, and findings about the store.
pub mod view {
    pub use tenure_core::{
        Adopt, Adoption, BreakScope, Finding, HolderView, LockView, MemoView, Mode, Severity, WaiterView,
    };

    pub use crate::{machine::hold::Renewals, watch::Watch};
}

/// For authors of backends: the contract of a backend and of its host. [`Locker::new`](crate::Locker::new) takes
/// your own backend.
pub mod backend {
    pub use tenure_core::{
        Absent, Asker, Audience, Backend, BackendHandle, BoxFuture, Claim, ClaimAnswer, EndOfGrant, Exposure,
        Forward, Grant, Host, InvalidMemo, Memo, Memos, Minting, Moment, NameError, Noted, Order, Outcome,
        OwnerError, ProcessId, Promises, Released, Renewal, Restart, Sharing, Start, Timing, TimingError,
        WaitMode, WakeEvent, WakeStream, WakeSupport,
    };

    pub use crate::host::TokioHost;
}

/// For the command `tenure` only.
#[doc(hidden)]
pub mod command {
    pub use tenure_core::{HeldBack, Shown, Unstopped, shown, suspend};

    pub use crate::connect::connect_file;
    #[cfg(feature = "sqlite")]
    pub use crate::connect::sqlite::Volume;
    /// The target of the events that tell of a renewal that the store refuses.
    pub use crate::engine::hold::REFUSED;
    pub use crate::locker::this_process;
}
