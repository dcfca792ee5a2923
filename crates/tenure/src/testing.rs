//! Tools for tests of a program that uses Tenure: a clock that a test moves, and a store with faults.
//!
//! Behind the feature `testing`, for `[dev-dependencies]`. No other module depends on it: the same code as in
//! production makes the locks, leases and errors of a test.
//!
//! * [`TestStore`] is a store of locks in memory. A test lets its requests fail, hang or come late.
//! * [`TestHost`] is its clock. Under tokio's paused clock an hour of renewals takes milliseconds.
//! * [`lost`], [`timed_out`] and [`backend_error`] make values that otherwise only a failure makes, for tests of
//!   how a program maps errors.
//!
//! ```
//! use std::time::Duration;
//! use tenure::{Loss, testing::{Fault, TestStore}};
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let store = TestStore::new();
//!     let guard = store.locker().mutex("orders/42").acquire().await?;
//!     tokio::time::sleep(Duration::from_secs(3600)).await;
//!     assert!(guard.check().is_ok(), "an hour later it is still renewed");
//!
//!     store.fail(Fault::Hang);
//!     assert_eq!(guard.lost().await.cause(), Loss::Expired);
//!     Ok(())
//! }
//! ```
//!
//! # What it does not show
//! * In production a separate thread renews leases, so that a blocked runtime loses none. Here a task of the test's
//!   runtime does.
//! * How a real store behaves when it restarts or fails over. Test that with your store.

mod host;
mod store;

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, FencingToken, HolderView, Host, Outcome};

pub use host::TestHost;
pub use store::{Fault, Operation, TestStore};

use crate::{
    error::{AcquireError, Loss, Lost},
    host::TokioHost,
};

/// The loss of a lease that was detected now, as [`check`](crate::Lease::check) and [`lost`](crate::Lease::lost) of
/// a lease report it.
///
/// ```
/// use tenure::{FencingToken, HoldError, Loss, testing::lost};
///
/// let error = HoldError::Lost(lost(Loss::Expired, FencingToken::new(7)));
/// assert_eq!(error.to_string(), "the lease was lost before the work was done");
/// ```
pub fn lost(cause: Loss, token: FencingToken) -> Lost {
    Lost::new(cause, token, TokioHost.now().wall)
}

/// A wait for a lock that timed out after this time. The message names the holder if there is one.
///
/// ```
/// use std::time::Duration;
/// use tenure::{testing::timed_out, view::{HolderView, Mode}};
///
/// let error = timed_out(Duration::from_secs(2), HolderView::new("worker-7", Mode::Exclusive));
/// assert!(error.to_string().contains("worker-7"));
/// ```
pub fn timed_out(waited: Duration, holder: impl Into<Option<HolderView>>) -> AcquireError {
    AcquireError::TimedOut { waited, ahead: None, holder: holder.into().map(Box::new) }
}

/// A failure of the store of this kind. The request was certainly not done, except after a timeout: then its
/// outcome is unknown. [`BackendError::new`] makes any other.
///
/// ```
/// use tenure::{AcquireError, ErrorKind, testing::backend_error};
///
/// let error = AcquireError::from(backend_error(ErrorKind::Unavailable));
/// assert!(matches!(error, AcquireError::Store(error) if error.kind().is_transient()));
/// ```
pub fn backend_error(kind: ErrorKind) -> BackendError {
    let outcome = if kind == ErrorKind::TimedOut { Outcome::Unknown } else { Outcome::NotApplied };
    BackendError::new(kind, outcome, "the test has the store fail")
}
