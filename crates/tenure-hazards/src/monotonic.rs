//! The clock that all processes of this machine share, and that no scene steps.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Since the machine was started; the same in every process.
pub(crate) fn now() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).expect("BUG: this clock is always there"))
}
