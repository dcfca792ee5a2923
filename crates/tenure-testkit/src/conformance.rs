//! The conformance suite: the laws that can be tested on a backend alone, one file per subject.

pub mod exclusion;
pub mod late;
pub mod memo;
pub mod player;
pub mod queue;
pub mod tokens;
pub mod view;
pub mod wake;

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::BackendHandle;

use player::{Player, TTL};

/// A store under test. Each case gets its own empty store.
#[async_trait]
pub trait Arena: Send + Sync {
    /// A handle, as one process has it.
    fn here(&self) -> BackendHandle;

    /// A handle to the same store, as another process has it. Where possible, the two handles share nothing in
    /// memory.
    async fn elsewhere(&self) -> BackendHandle;

    /// Lets this much time pass on the server's clock.
    async fn pass(&self, d: Duration);

    /// The ttl of all claims. A store with a server may need longer leases: each step of a case takes time, and less
    /// of the lease is left.
    fn ttl(&self) -> Duration {
        TTL
    }

    /// A claimant of the lock `name` in this process: exclusive, with `WaitMode::Turn`.
    fn player(&self, name: &str) -> Player {
        Player::new(self.here(), name).lasting(self.ttl())
    }

    /// The same in another process.
    async fn player_elsewhere(&self, name: &str) -> Player {
        Player::new(self.elsewhere().await, name).lasting(self.ttl())
    }

    /// The claim ttl, and a little more. A server in real time gives its waiters the longest claim ttl. With the
    /// usual one, a waiter that gets no processor for half a second loses its turn, and others enter first.
    fn turn(&self) -> Duration {
        Duration::from_millis(510)
    }
}

/// What [`Arena::turn`] returns for a store whose URL has `claim_ttl=6s`.
pub const LONG_TURN: Duration = Duration::from_millis(6_010);

/// Runs every case of the suite against the arenas that a function `async fn() -> impl Arena` makes. The cases run
/// under tokio's paused clock, or in `real_time` for a store with a server and its own clock.
///
/// No backend can omit a case: the list is here, and a test of the testkit compares it with the sources.
#[macro_export]
macro_rules! conformance {
    ($arena:ident) => {
        $crate::conformance!(@list $arena, (start_paused = true));
    };
    ($arena:ident, real_time) => {
        $crate::conformance!(@list $arena, (flavor = "current_thread"));
    };
    (@list $arena:ident, $runtime:tt) => {
        $crate::conformance!(@cases $arena, $runtime,
            exclusion: two_exclusive_owners_never_hold_at_once, readers_hold_together_and_a_writer_alone,
                a_semaphore_lets_in_no_more_than_its_limit, the_smallest_limit_counts,
                permits_are_never_more_than_the_limit, an_owner_does_not_claim_more_than_it_holds,
                a_lease_ends_on_time_and_not_before, locks_of_different_names_are_independent;
            tokens: tokens_grow_over_release_expiry_and_break, a_retried_claim_is_granted_anew,
                a_block_of_tokens_lies_above_all_earlier_ones,
                a_lease_is_the_same_under_every_token_of_its_block, shared_holders_have_tokens_of_their_own;
            late: a_late_release_does_not_free_the_next_holder, a_late_renewal_changes_nothing,
                a_lease_is_renewed_by_its_ttl, a_renewal_never_shortens, release_is_truthful,
                many_leases_are_renewed_at_once;
            queue: waiters_enter_in_the_order_they_came, a_waiter_enters_only_by_its_own_claim,
                a_dead_waiter_delays_no_longer_than_promised, a_withdrawn_waiter_is_passed,
                a_place_is_lost_when_it_is_not_kept, busy_leaves_no_trace, a_writer_is_not_starved_by_readers,
                leading_readers_enter_together, a_claim_for_many_permits_is_not_starved,
                waiters_of_a_higher_class_come_first, one_grant_of_nine_goes_to_the_longest_waiter,
                a_place_without_a_turn_never_holds;
            wake: a_release_wakes_the_next_waiter, a_release_elsewhere_wakes_the_next_waiter,
                a_break_elsewhere_wakes_the_robbed, a_holder_is_told_that_somebody_waits, observers_are_told_wherever_they_are,
                one_change_of_owner_wakes_few;
            view: inspect_shows_holders_and_queue, a_free_lock_shows_its_fence, list_chooses_by_prefix_in_order,
                break_names_the_robbed_and_lets_the_next_in, break_of_one_owner_leaves_the_others, break_of_a_free_lock_raises_the_fence,
                a_handle_sees_the_same_locks;
            memo: a_memo_is_seen_by_all_and_outlives_its_lease, a_memo_ends_when_its_time_is_over,
                only_a_holder_leaves_a_memo, a_waiter_leaves_no_memo_before_it_has_entered,
                a_memo_does_not_replace_one_of_a_larger_token, a_memo_is_any_text,
                one_of_many_holders_leaves_a_memo;
        );
    };
    (@cases $arena:ident, $runtime:tt, $($file:ident: $($case:ident),+;)+) => {
        $(mod $file {
            $($crate::conformance!(@case $arena, $runtime, $file, $case);)+
        })+
    };
    (@case $arena:ident, ($($runtime:tt)+), $file:ident, $case:ident) => {
        #[tokio::test($($runtime)+)]
        async fn $case() {
            $crate::conformance::$file::$case(&super::$arena().await).await;
        }
    };
}
