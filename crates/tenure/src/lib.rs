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
//! [`connect`] → [`Locker`] → [`Lock`] → [`Guard`]; [`blocking`] for programs without a runtime; [`fence`] for what the
//! lock protects. A backend of your own implements [`Backend`] and goes into [`Locker::new`].

pub mod blocking;
pub mod fence;

mod connect;
mod engine;
mod error;
mod guard;
mod host;
mod label;
mod lease;
mod lock;
mod locker;
mod machine;
mod options;
#[cfg(all(doctest, feature = "sqlite"))]
mod readme;
mod rwlock;
mod store;

pub use connect::connect;
pub use error::{AcquireError, ConfigError, HoldError, Loss, Lost, ReleaseError};
pub use guard::Guard;
pub use host::TokioHost;
pub use label::this_process;
pub use lease::Lease;
pub use lock::Lock;
pub use locker::Locker;
pub use options::{Progress, Waiting};
pub use rwlock::RwLock;
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
    EndOfGrant, ErrorKind, FencingToken, Finding, Grant, HolderView, Host, Label, LockName, LockView,
    Minting, Mode, Moment, NameError, Order, Outcome, OwnerError, OwnerId, ProcessId, Promises, Released,
    Renewal, Restart, Severity, Sharing, Shown, Start, Timing, TimingError, Wait, WaiterView, Wake, WakeUp,
    Wakes, shown,
};
