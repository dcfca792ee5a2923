//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

#[cfg(target_os = "linux")]
mod anchors;
mod at_once;
mod conformance;
mod diagnosis;
mod differential;
mod far_waiters;
mod full_disk;
mod many_waiters;
mod opening;
mod refusals;
mod stage;
mod sweeping;
mod touches;
mod vanishing;
