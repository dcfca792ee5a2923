//! Distributed locks as leases, with fencing tokens, on what you already run.
//!
//! A lock here is a **lease**: a right with an end. Two promises come with it. *A holder knows*: from a clock
//! reading taken before its request left, it knows until when it may believe, and hears of a loss at that instant
//! at the latest. *A former holder is harmless*: every grant carries a [`FencingToken`] that grows with every grant
//! of that lock, for the resource to check.
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
//! Exclusion while a process is stopped, or between a check and the write that follows it, cannot be had from any
//! lock service: give the token to the resource, see [`fence`]. A holder whose lock was released by force may still work for a
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
//! | to look on | [`Locker::inspect`], [`Locker::list`], [`Locker::watch`] |
//! | a program without a runtime | [`blocking`] |
//! | a lease that outlives its process | [`manual`] |
//! | a backend of your own | [`backend::Backend`], which goes into [`Locker::new`] |
//!
//! # Features
//! `sqlite`, `redis`, `redlock`, `postgres`, `mysql`, `zookeeper`, `etcd`, `memory`: a store each, none on by default. `serde`: names,
//! tokens, owners, views and findings can be written as JSON, in the shapes that `tenure ls --json` prints, and a store is
//! read from its URL in a file of settings. `testing`:
//! the module of that name, a clock and a store for the tests of your program. `metrics`:
//! what happens is counted.
//!
//! # Observability
//! Through `tracing`: a span for each acquisition, hold and renewal, which says how it ended, at the level `DEBUG`; and a
//! warning of each lease that was lost. With the feature `metrics`, through the crate of that name: waits, holds, renewals,
//! losses and queues. `docs/guides/observe.md` in the repository has all names and labels, and what to alert on.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
pub mod election;
pub mod fence;
pub mod manual;
pub mod once;
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
pub use error::{AcquireError, ConfigError, HoldError, Loss, Lost, MemoError, ReleaseError};
pub use guard::Guard;
pub use lease::Lease;
pub use lock::{Lock, RwLock};
pub use locker::Locker;
pub use options::{Progress, WaitStatus};
pub use several::{AllOf, AnyOf, Guards, Leases};
pub use tenure_core::{BackendError, ErrorKind, FencingToken, Label, LockName, OwnerId};

/// What the store shows of locks, and what a person should know of the store.
pub mod view {
    pub use tenure_core::{
        Adoption, BreakScope, Finding, HolderView, LockView, MemoView, Mode, Severity, WaiterView,
    };

    pub use crate::{machine::hold::Renewals, watch::Watch};
}

/// For authors of backends: the contract of a backend and of its host. [`Locker::new`](crate::Locker::new) takes a backend of
/// your own.
pub mod backend {
    pub use tenure_core::{
        Absent, Asker, Audience, Backend, BackendHandle, BoxFuture, Claim, ClaimAnswer, EndOfGrant, Forward,
        Grant, Host, InvalidMemo, Memo, Memos, Minting, Moment, NameError, Noted, Order, Outcome, OwnerError,
        ProcessId, Promises, Released, Renewal, Restart, Sharing, Start, Timing, TimingError, WaitMode,
        WakeEvent, WakeStream, WakeSupport,
    };

    pub use crate::host::TokioHost;
}

/// For the command `tenure` only.
#[doc(hidden)]
pub mod command {
    pub use tenure_core::{Shown, Unstopped, shown, suspend};

    pub use crate::locker::this_process;
}
