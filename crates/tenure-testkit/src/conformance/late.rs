//! L4 and L5: late calls are harmless, and a lost lease never comes back.

use std::time::Duration;

use tenure_core::{Released, Renewal};

use super::Arena;

/// L4, hazards 5, 6 and 44.
pub async fn a_late_release_does_not_free_the_next_holder(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    a.enter().await;
    a.lapse(arena, arena.ttl()).await;
    b.enter().await;
    assert_eq!(a.leave().await, Released::WasGone);
    assert!(!arena.player("one").try_enter().await);
}

/// L4, L5, hazard 23: a renewal after the end neither extends the next holder's lease nor brings the former one back.
pub async fn a_late_renewal_changes_nothing(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    let grant = a.enter().await;
    // The client may count a thousandth less time than has passed on the store's clock.
    a.lapse(arena, arena.ttl() + arena.ttl() / 200).await;
    assert_eq!(a.renew(&grant).await, Renewal::Gone, "nobody holds, and nobody is brought back");
    b.enter().await;
    arena.pass(arena.ttl() / 2).await;
    assert_eq!(a.renew(&grant).await, Renewal::Gone);
    b.lapse(arena, arena.ttl() / 2).await;
    arena.player("one").enter().await;
}

/// A renewal extends a lease to its full ttl.
pub async fn a_lease_is_renewed_by_its_ttl(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    let grant = a.enter().await;
    for _ in 0..5 {
        arena.pass(arena.ttl() * 2 / 3).await;
        assert_eq!(a.renew(&grant).await, Renewal::Renewed);
    }
    assert!(!b.try_enter().await);
    a.lapse(arena, arena.ttl()).await;
    b.enter().await;
}

/// H2.4: extending by less than what is left changes nothing.
pub async fn a_renewal_never_shortens(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    let mut grant = a.enter().await;
    grant.ttl = Duration::from_millis(100);
    assert_eq!(a.renew(&grant).await, Renewal::Renewed);
    arena.pass(arena.ttl() / 2).await;
    assert!(!b.try_enter().await);
}

/// L9: a release reports what happened.
pub async fn release_is_truthful(arena: &impl Arena) {
    let (a, b) = (arena.player("one"), arena.player_elsewhere("one").await);
    // Another owner: on a quorum, an owner that has left does not come back (H3.4).
    assert_eq!(arena.player("one").leave().await, Released::WasGone);
    a.enter().await;
    b.queue_behind(0).await;
    assert_eq!(b.leave().await, Released::Released, "a place is left as well");
    assert_eq!(b.leave().await, Released::WasGone);
    assert_eq!(a.leave().await, Released::Released);
    assert_eq!(
        a.leave().await,
        Released::WasGone,
        "hazard 15: a retried release is no loss of somebody else's"
    );
}

/// One answer per grant, in order.
pub async fn many_leases_are_renewed_at_once(arena: &impl Arena) {
    let mut grants = Vec::new();
    for n in 0..20 {
        grants.push(arena.player(&format!("many/{n}")).enter().await);
    }
    arena.here().release(&grants[7].name, grants[7].owner).await.expect("the store answers");
    let answers = arena.here().renew(&grants).await;
    let answers: Vec<Renewal> =
        answers.into_iter().map(|answer| answer.expect("the store answers")).collect();
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, if n == 7 { Renewal::Gone } else { Renewal::Renewed }, "{n}");
    }
    assert_eq!(answers.len(), grants.len());
}
