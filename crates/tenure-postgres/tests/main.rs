//! All tests of this crate from outside, in one program, which is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and real servers and processes live in real time"
)]

mod changes;
mod conformance;
mod crowds;
mod customs;
mod differential;
mod foreign_sessions;
mod hazards_replies;
mod hazards_transactions;
mod refusals;
mod regressions;
mod slow;
mod stage;
mod sweeping;
mod tails;
mod waiting;
