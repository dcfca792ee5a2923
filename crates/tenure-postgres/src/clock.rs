//! The server's clock, as it comes over the wire and goes into a statement.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time of the server, since the Unix epoch.
pub(crate) fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Between which two times the server's clock must lie.
pub(crate) fn window((from, until): (Duration, Duration)) -> (SystemTime, SystemTime) {
    (UNIX_EPOCH + from, UNIX_EPOCH + until)
}
