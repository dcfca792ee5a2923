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
//! lock service: give the token to the resource, see [`fence`]. A holder that was robbed by `break` may still work for a
//! moment.
//!
//! # Where to begin
//! | For | Take |
//! |---|---|
//! | a store | [`connect`] with a URL, or its builder: `SqliteStore`, `RedisStore`, `RedlockStore`, `PostgresStore`, `ZooKeeperStore`, `EtcdStore` |
//! | a lock | [`Locker::mutex`], [`Locker::rwlock`], [`Locker::semaphore`] |
//! | several locks | [`Locker::all`] to hold all of them, [`Locker::any`] to hold one of them |
//! | one leader of many | [`Locker::election`] |
//! | a job once per interval | [`Locker::once`] |
//! | to hold it | [`Lock::hold`] around the work, or [`Lock::acquire`] for a [`Guard`] |
//! | code that works under the lock | a [`Lease`], passed on by its caller |
//! | what the lock protects | [`fence`]: the resource refuses the token of a former holder |
//! | to look on | [`Locker::inspect`], [`Locker::list`], [`Locker::watch`] |
//! | a program without a runtime | [`blocking`] |
//! | a backend of your own | [`Backend`], which goes into [`Locker::new`] |
//!
//! # Features
//! `memory` and `sqlite` (on by default), `redis`, `redlock`, `postgres`, `zookeeper`, `etcd`: a store each. `serde`: names,
//! tokens, owners, views and findings can be written as JSON, in the shapes that `tenure ls --json` prints.
//!
//! # What is seen of it
//! Through `tracing`: a span `acquire` for each acquisition, `hold` for as long as there is a guard, `renewal` for each
//! renewal, all with the fields `lock`, `owner`, `token` and `backend`, at the level `DEBUG`. Warnings tell of renewals and
//! releases that failed, and of a task that waits for a lock that its own process holds.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
pub mod fence;

mod connect;
mod election;
mod engine;
mod error;
mod guard;
mod host;
mod lease;
mod lock;
mod locker;
mod machine;
mod once;
mod options;
mod pace;
/// The README's program, compiled by the doc tests.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
mod readme {}
mod several;
mod store;
mod watch;

pub use connect::connect;
pub use election::{Election, Leader, Leadership, Observer, Term};
pub use error::{
    AcquireError, AttachError, ConfigError, HoldError, Loss, Lost, NoteError, OnceError, ReleaseError,
};
pub use guard::Guard;
pub use host::TokioHost;
pub use lease::Lease;
pub use lock::{Lock, RwLock};
pub use locker::{Locker, this_process};
pub use machine::hold::Renewals;
pub use once::{LastRun, Once, OnceOutcome};
pub use options::{Progress, Waiting};
pub use several::{AllOf, AnyOf, Guards, Leases};
#[cfg(feature = "etcd")]
pub use store::EtcdStore;
#[cfg(feature = "redis")]
pub use store::RedisStore;
#[cfg(feature = "redlock")]
pub use store::RedlockStore;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
#[cfg(feature = "zookeeper")]
pub use store::ZooKeeperStore;
#[cfg(feature = "postgres")]
pub use store::{PostgresStore, PostgresTls};
pub use tenure_core::{
    Absent, Adoption, Audience, Backend, BackendError, BackendHandle, BoxFuture, Claim, ClaimAnswer,
    EndOfGrant, ErrorKind, FencingToken, Finding, Grant, HolderView, Host, Label, LockName, LockView, Memo,
    MemoError, MemoView, Memos, Minting, Mode, Moment, NameError, Noted, Order, Outcome, OwnerError, OwnerId,
    ProcessId, Promises, Released, Renewal, Restart, Severity, Sharing, Shown, Start, Timing, TimingError,
    Wait, WaiterView, Wake, WakeUp, Wakes, shown, suspend,
};
pub use watch::Watch;
