//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod access;
mod conformance;
mod hazards_cluster;
mod hazards_line;
mod hostile;
mod interop;
mod ownership;
mod regressions;
mod runtimes;
mod stage;
