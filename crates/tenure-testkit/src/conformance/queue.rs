//! L6, L7, L8: each waiter is granted the lock, in order, and nothing is left behind.

use std::time::Duration;

use tenure_core::{Absent, ClaimAnswer, ErrorKind, Order, Priority, Renewal, Sharing, WaitMode};

use super::{
    Arena,
    player::{Player, TTL},
};
use crate::patience::slowness;

async fn crowd(arena: &impl Arena, count: usize) -> Vec<Player> {
    let mut waiters = Vec::new();
    for _ in 0..count {
        let waiter = arena.player_elsewhere("one").await;
        // Connects. Only then all waiters come: a busy server takes longer for its sessions than the place of the
        // first one lasts.
        waiter.backend.inspect(&waiter.claim.name).await.expect("the store answers");
        waiters.push(waiter);
    }
    for (n, waiter) in waiters.iter().enumerate() {
        waiter.queue_behind(n).await;
    }
    waiters
}

/// L7.
pub async fn waiters_enter_in_the_order_they_came(arena: &impl Arena) {
    if arena.here().promises().order != Order::Fifo {
        return;
    }
    let holder = arena.player("one");
    holder.enter().await;
    let waiters = crowd(arena, 5).await;
    holder.leave().await;
    for (n, waiter) in waiters.iter().enumerate() {
        for later in waiters[n + 1..].iter().rev() {
            assert!(!later.try_enter().await, "a later one got in before number {n}");
        }
        assert!(!arena.player("one").waiting(WaitMode::No).try_enter().await, "a newcomer barged in");
        waiter.enter().await;
        waiter.leave().await;
    }
}

/// H1.1: a waiter that is handed the lock does not hold it yet. In a line its place holds the lock, and the owner
/// detects that.
pub async fn a_waiter_enters_only_by_its_own_claim(arena: &impl Arena) {
    let holder = arena.player("one");
    let grant = holder.enter().await;
    let waiters = crowd(arena, 1).await;
    holder.leave().await;
    let mut handed = grant.clone();
    handed.owner = waiters[0].claim.owner;
    assert_eq!(waiters[0].renew(&handed).await, Renewal::Gone, "a renewal does not let in");
    let entered = waiters[0].enter().await;
    assert!(entered.token > grant.token);
}

/// L6, hazard 33: a dead waiter delays others by a claim ttl, or for as long as its place lasts.
pub async fn a_dead_waiter_delays_no_longer_than_promised(arena: &impl Arena) {
    if arena.here().promises().order != Order::Fifo {
        return;
    }
    let holder = arena.player("one");
    holder.enter().await;
    let waiters = crowd(arena, 2).await;
    holder.leave().await;
    if arena.here().promises().absent == Absent::WaitedFor {
        assert!(!waiters[1].try_enter().await, "the first place is still there");
        for _ in 0..4 {
            arena.pass(arena.ttl() / 4).await;
            waiters[1].ask().await;
        }
        waiters[0].lapse(arena, Duration::ZERO).await;
        waiters[1].enter().await;
        return;
    }
    let turn = arena.turn() + arena.here().promises().ttl_grain;
    let mut wait = turn.max(waiters[1].queue_behind(0).await);
    let mut waited = Duration::ZERO;
    // A slow store may add the time that its last answers took: the wait that it returns may grow.
    while waited + wait <= turn * slowness() {
        arena.pass(wait).await;
        waited += wait;
        match waiters[1].ask().await {
            ClaimAnswer::Granted(_) => return,
            ClaimAnswer::Queued { retry_after, .. } => wait = retry_after,
            other => panic!("{other:?}"),
        }
    }
    panic!("still queued after {waited:?} of {turn:?}, for another {wait:?}");
}

/// L8, H1.8.
pub async fn a_withdrawn_waiter_is_passed(arena: &impl Arena) {
    let holder = arena.player("one");
    holder.enter().await;
    let waiters = crowd(arena, 3).await;
    waiters[0].leave().await;
    waiters[2].queue_behind(1).await;
    holder.leave().await;
    waiters[1].leave().await;
    waiters[2].enter().await;
}

/// L8: a place that its waiter does not keep expires.
pub async fn a_place_is_lost_when_it_is_not_kept(arena: &impl Arena) {
    let holder = arena.player("one");
    let grant = holder.enter().await;
    let waiters = crowd(arena, 2).await;
    // A place lasts at most 6 s, or at most as long as a lease where it is one.
    let is_lease = arena.here().promises().absent == Absent::WaitedFor;
    let (times, pause) =
        if is_lease { (6, arena.ttl() * 19 / 100) } else { (4, Duration::from_millis(1900)) };
    for _ in 0..times {
        arena.pass(pause).await;
        holder.renew(&grant).await;
        waiters[1].ask().await;
    }
    waiters[1].queue_behind(0).await;
    holder.leave().await;
    waiters[1].enter().await;
}

/// L8: `WaitMode::No` leaves no trace.
pub async fn busy_leaves_no_trace(arena: &impl Arena) {
    let holder = arena.player("one");
    holder.enter().await;
    let passer = arena.player("one").waiting(WaitMode::No);
    match passer.ask().await {
        ClaimAnswer::Busy { holder: Some(seen), retry_after } => {
            assert_eq!(seen.owner, holder.claim.owner.to_string());
            assert_eq!(seen.label.expect("one of ours").command, "player");
            assert!(retry_after <= TTL);
        }
        other => panic!("{other:?}"),
    }
    let view = arena.here().inspect(&passer.claim.name).await.expect("the store answers");
    assert_eq!(view.queue, []);
    holder.leave().await;
    arena.player("one").enter().await;
}

/// No writer starves: a reader that comes after a waiting writer waits behind it.
pub async fn a_writer_is_not_starved_by_readers(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let reader = arena.player("rw").reading();
    reader.enter().await;
    let writer = arena.player_elsewhere("rw").await;
    writer.queue_behind(0).await;
    let later = arena.player("rw").reading();
    later.queue_behind(1).await;
    reader.leave().await;
    assert!(!later.try_enter().await);
    writer.enter().await;
    writer.leave().await;
    later.enter().await;
}

/// L7: the first waiter keeps what it needs, however many claims for less come.
pub async fn a_claim_for_many_permits_is_not_starved(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let singles = [0, 1, 2].map(|_| arena.player("gpu").slots(3));
    for single in &singles {
        single.enter().await;
    }
    let large = arena.player_elsewhere("gpu").await.taking(2, 3);
    large.queue_behind(0).await;
    singles[0].leave().await;
    let late = arena.player("gpu").slots(3);
    late.queue_behind(1).await;
    assert!(
        arena.player("gpu").slots(3).finds_it_busy().await,
        "one permit is kept free for the first waiter"
    );
    large.queue_behind(0).await;
    singles[1].leave().await;
    large.enter().await;
    late.queue_behind(0).await;
    singles[2].leave().await;
    late.enter().await;
}

/// L7: by class, and by arrival within a class. A claim that does not wait passes lower classes only.
pub async fn waiters_of_a_higher_class_come_first(arena: &impl Arena) {
    if !arena.here().promises().classes {
        return;
    }
    let holder = arena.player("job");
    holder.enter().await;
    let low = arena.player("job").classed(Priority::Low);
    low.queue_behind(0).await;
    let normal = arena.player_elsewhere("job").await;
    normal.queue_behind(0).await;
    let urgent = arena.player("job").classed(Priority::Urgent);
    urgent.queue_behind(0).await;
    let second = arena.player_elsewhere("job").await.classed(Priority::Urgent);
    second.queue_behind(1).await;
    low.queue_behind(3).await;
    let view = arena.here().inspect(&low.claim.name).await.expect("the store answers");
    let classes: Vec<_> = view.queue.iter().map(|waiter| waiter.priority).collect();
    assert_eq!(classes, [Priority::Urgent, Priority::Urgent, Priority::Normal, Priority::Low]);
    let mut last = holder;
    for next in [urgent, second, normal, low] {
        last.leave().await;
        assert!(arena.player("job").classed(Priority::Low).finds_it_busy().await);
        next.enter().await;
        last = next;
    }
}

/// L7: so no waiter waits indefinitely, whatever comes.
pub async fn one_grant_of_nine_goes_to_the_longest_waiter(arena: &impl Arena) {
    if !arena.here().promises().classes {
        return;
    }
    let mut holder = arena.player("job");
    holder.enter().await;
    let low = arena.player_elsewhere("job").await.classed(Priority::Low);
    low.queue_behind(0).await;
    for passed in 0..Priority::PASSED_MAX {
        let urgent = arena.player("job").classed(Priority::Urgent);
        urgent.queue_behind(0).await;
        holder.leave().await;
        urgent.enter().await;
        holder = urgent;
        assert!(matches!(low.ask().await, ClaimAnswer::Queued { .. }), "after {passed}");
    }
    let urgent = arena.player("job").classed(Priority::Urgent);
    assert!(matches!(urgent.ask().await, ClaimAnswer::Queued { .. }));
    holder.leave().await;
    low.enter().await;
    urgent.queue_behind(0).await;
    low.leave().await;
    urgent.enter().await;
}

/// A handoff grants the lock to all leading waiters that fit, and to no others.
pub async fn leading_readers_enter_together(arena: &impl Arena) {
    if arena.here().promises().sharing != Sharing::Counted {
        return;
    }
    let writer = arena.player("rw");
    writer.enter().await;
    let readers = [0, 1, 2].map(|_| arena.player("rw").reading());
    for (n, reader) in readers.iter().enumerate() {
        reader.queue_behind(n).await;
    }
    let second_writer = arena.player("rw");
    second_writer.queue_behind(3).await;
    let last = arena.player("rw").reading();
    last.queue_behind(4).await;
    writer.leave().await;
    for reader in readers.iter().rev() {
        reader.enter().await;
    }
    second_writer.queue_behind(0).await;
    last.queue_behind(1).await;
}

/// `WaitMode::Wake` (S3.3 g): such a place never holds without its own claim, and blocks no other claim.
pub async fn a_place_without_a_turn_never_holds(arena: &impl Arena) {
    let holder = arena.player("one");
    holder.enter().await;
    let waker = arena.player("one").waiting(WaitMode::Wake);
    if arena.here().promises().absent == Absent::WaitedFor {
        let refused = waker.backend.claim(&waker.claim).await.expect_err("in a line every place has a turn");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(arena.here().inspect(&waker.claim.name).await.expect("the store answers").queue, []);
        return;
    }
    assert!(matches!(waker.ask().await, ClaimAnswer::Queued { .. }));
    holder.leave().await;
    arena.player("one").enter().await;
    assert!(!waker.try_enter().await);
}
