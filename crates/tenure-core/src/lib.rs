//! The types of Tenure, and the contract between its parts.
//!
//! This crate has no I/O, reads no clock and depends on no runtime. A backend depends on this crate, on its driver
//! and on the shared crates. The engine in the crate `tenure` drives every backend through the traits here. Read
//! [`Backend`] first: the conformance suite checks its `# Contract` lists on every backend.

#![cfg_attr(docsrs, feature(doc_cfg))]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod backend;
mod error;
mod host;
mod label;
mod mode;
mod moment;
mod name;
mod notify;
mod owner;
mod ownership;
mod priority;
mod promises;
mod shown;
mod suspend;
mod timing;
mod token;
mod view;

pub use backend::{
    Asker, Backend, BackendHandle, BreakScope, Claim, ClaimAnswer, Grant, InvalidMemo, Memo, Noted,
    QuorumNode, Raised, Released, Renewal, WaitMode,
};
pub use error::{BackendError, ErrorKind, FOREIGN_HOLDER, Outcome};
pub use host::{BoxFuture, Host, Start};
pub use label::Label;
pub use mode::{Mode, OtherMode};
pub use moment::Moment;
pub use name::{LockName, NameError};
pub use notify::{Audience, Forward, Hint, Notifications, Notifier, WakeEvent, WakeStream};
pub use owner::{OwnerError, OwnerId, ProcessId};
pub use ownership::{Exposure, Ownership, RedisOwnership, SqlOwnership, no_single_owner};
pub use priority::{Priority, PriorityError};
pub use promises::{Absent, EndOfGrant, Memos, Minting, Order, Promises, Restart, Sharing, WakeSupport};
pub use shown::{Shown, shown};
pub use suspend::{HeldBack, Unstopped, suspend};
pub use timing::{Timing, TimingError};
pub use token::FencingToken;
pub use view::{Adopt, Adoption, Finding, HolderView, LockView, MemoView, Severity, WaiterView};

/// Locks it, even if a thread panicked while it held it.
///
/// Only for data that no code that can panic leaves half changed.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
