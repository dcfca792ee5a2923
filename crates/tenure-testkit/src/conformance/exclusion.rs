//! L1: two owners that exclude each other never hold at the same time.

use std::time::Duration;

use tenure_core::{Absent, ErrorKind, Sharing};

use super::Arena;
use crate::patience::slowness;

/// L1, hazards 1 and 2.
pub async fn two_exclusive_owners_never_hold_at_once(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    a.enter().await;
    assert!(!b.try_enter().await);
    assert!(!b.try_enter().await, "asking again does not help");
    a.leave().await;
    b.enter().await;
    let c = arena.player("one");
    assert!(!c.try_enter().await);
}

/// L1 for read-write locks.
pub async fn readers_hold_together_and_a_writer_alone(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let (a, b) = (arena.player("rw").reading(), arena.player_elsewhere("rw").await.reading());
    a.enter().await;
    b.enter().await;
    let writer = arena.player("rw");
    writer.queue_behind(0).await;
    a.leave().await;
    writer.queue_behind(0).await;
    b.leave().await;
    writer.enter().await;
    let late = arena.player("rw").reading();
    late.queue_behind(0).await;
}

/// L1 for semaphores.
pub async fn a_semaphore_lets_in_no_more_than_its_limit(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let mut inside = Vec::new();
    for _ in 0..3 {
        let player = arena.player_elsewhere("gpu").await.slots(3);
        player.enter().await;
        inside.push(player);
    }
    let fourth = arena.player("gpu").slots(3);
    fourth.queue_behind(0).await;
    inside[1].leave().await;
    fourth.enter().await;
}

/// Model `shared.limit of the claim only`: the limits of holders count as well.
pub async fn the_smallest_limit_counts(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let (two, nine) = (arena.player("gpu").slots(2), arena.player("gpu").slots(9));
    two.enter().await;
    nine.enter().await;
    let another = arena.player("gpu").slots(9);
    another.queue_behind(0).await;
    two.leave().await;
    another.enter().await;
}

/// L1: claims for several permits of a semaphore.
pub async fn permits_are_never_more_than_the_limit(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let (one, other) = (arena.player("gpu").taking(4, 10), arena.player_elsewhere("gpu").await.taking(4, 10));
    let (third, single) = (arena.player("gpu").taking(4, 10), arena.player_elsewhere("gpu").await.slots(10));
    one.enter().await;
    other.enter().await;
    assert!(arena.player("gpu").taking(3, 10).finds_it_busy().await);
    third.queue_behind(0).await;
    single.queue_behind(1).await;
    let view = arena.here().inspect(&one.claim.name).await.expect("the store answers");
    assert_eq!(view.holders.iter().map(|holder| holder.mode).collect::<Vec<_>>(), [one.claim.mode; 2]);
    assert_eq!(view.queue.iter().map(|place| place.mode.permits()).collect::<Vec<_>>(), [4, 1]);
    one.leave().await;
    third.enter().await;
    single.enter().await;
    assert!(arena.player("gpu").taking(2, 10).finds_it_busy().await);
    arena.player("gpu").slots(10).enter().await;
}

/// L1: an owner that the caller has chosen may claim again, but not more than it holds.
pub async fn an_owner_does_not_claim_more_than_it_holds(arena: &impl Arena) {
    let promises = arena.here().promises();
    if promises.sharing != Sharing::Counted || !promises.chosen_owner {
        return;
    }
    let (mut one, other) = (arena.player("gpu").slots(4), arena.player_elsewhere("gpu").await.taking(2, 4));
    one.enter().await;
    other.enter().await;
    let asked_for = std::mem::replace(&mut one.claim.mode, arena.player("gpu").taking(3, 4).claim.mode);
    let refused = one.backend.claim(&one.claim).await.expect_err("it holds one of four");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    one.claim.mode = asked_for;
    one.enter().await;
    assert!(arena.player("gpu").taking(2, 4).finds_it_busy().await);
    arena.player("gpu").slots(4).enter().await;
}

/// L1 and L6: a crashed holder blocks the lock for its ttl and no longer.
pub async fn a_lease_ends_on_time_and_not_before(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    a.enter().await;
    // Where the clock runs in real time, the answer must come before the end of the lease.
    let margin = Duration::from_millis(500) * slowness().min(10);
    arena.pass(arena.ttl() - margin).await;
    let retry_after = b.queue_behind(0).await;
    // In a line no waiter knows how long the one ahead stays, and each asks at least every 2 s.
    let promises = arena.here().promises();
    let waits_for_it = promises.absent == Absent::WaitedFor;
    // The lease may end later by `ttl_grain`.
    let bound = if waits_for_it { Duration::from_secs(2) } else { margin + promises.ttl_grain };
    assert!(retry_after <= bound, "{retry_after:?}");
    a.lapse(arena, margin).await;
    b.enter().await;
}

/// Names are compared as a whole, and case matters.
pub async fn locks_of_different_names_are_independent(arena: &impl Arena) {
    for name in ["n", "N", "n ", "n/1", "n%", "ñ", "n'\"\\"] {
        arena.player(name).enter().await;
    }
}
