//! All tests of this crate from outside, in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod classes;
mod conformance;
mod dead_waiters;
mod hot_cells;
mod late_writes;
mod lost_answers;
mod ownership;
mod split_clocks;
