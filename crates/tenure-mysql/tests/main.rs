//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod conformance;
mod faults;
mod foreign_sessions;
mod hints;
mod names;
mod pooled;
mod rights;
mod stage;
mod strangers;
mod sweeping;
mod tls;
