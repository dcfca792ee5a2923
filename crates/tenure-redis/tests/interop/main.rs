//! Real clients of other libraries on the same lock, in both directions: `redis-py`, `rslock`, node `redlock`.
//!
//! `cargo xtask test` installs those that are not in Rust. Each case runs with each library, against a server of its own.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]
#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

mod client;
mod contention;
mod exclusion;
mod program;
mod respect;
mod stage;

use client::Library::{RedisPy, Redlock, Rslock};

macro_rules! with_each_library {
    ($($room:ident::$case:ident)*) => {
        mod redis_py { $(#[test] fn $case() { crate::$room::$case(crate::RedisPy) })* }
        mod rslock { $(#[test] fn $case() { crate::$room::$case(crate::Rslock) })* }
        mod redlock { $(#[test] fn $case() { crate::$room::$case(crate::Redlock) })* }
    };
}

with_each_library! {
    contention::there_are_never_two_holders
    exclusion::its_lock_is_held_for_us
    exclusion::our_lock_is_held_for_it
    exclusion::our_readers_keep_it_out_to_the_last
    exclusion::it_does_not_get_between_our_holder_and_our_waiter
    respect::its_value_stays_as_it_is_while_we_queue
    respect::its_late_release_does_not_free_ours
    respect::our_late_release_does_not_free_its_lock
    respect::a_robbed_guard_leaves_its_lock_alone
    respect::its_lock_is_broken_only_if_that_is_asked_for
}

/// The only one of the three that has such locks.
#[test]
fn a_lock_of_redis_py_without_an_end_is_waited_for() {
    respect::its_lock_without_an_end_is_waited_for(RedisPy);
}
