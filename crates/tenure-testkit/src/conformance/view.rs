//! What `inspect` and `list` show, and what `break` does.

use std::time::Duration;

use tenure_core::{BreakScope, EndOfGrant, LockName, Mode, Renewal, Sharing};

use super::Arena;

/// `inspect` shows each holder, since when it holds and how long its lease lasts, and each waiter.
pub async fn inspect_shows_holders_and_queue(arena: &impl Arena) {
    let (holder, waiter) = (arena.player("seen"), arena.player("seen"));
    let grant = holder.enter().await;
    waiter.queue_behind(0).await;
    arena.pass(Duration::from_secs(1)).await;
    let view = arena.elsewhere().await.inspect(&holder.claim.name).await.expect("the store answers");
    assert_eq!((view.holders.len(), view.queue.len()), (1, 1));
    let seen = &view.holders[0];
    assert_eq!(seen.owner, holder.claim.owner.to_string());
    assert_eq!((seen.mode, seen.token), (Mode::Exclusive, Some(grant.token)));
    assert_eq!(seen.label.as_ref(), Some(&*holder.claim.label));
    if arena.here().promises().end == EndOfGrant::Session {
        assert_eq!(seen.expires_in, None, "it lasts as long as its process is heard of");
    } else {
        let left = seen.expires_in.expect("our leases end");
        let most = arena.ttl() + arena.here().promises().ttl_grain - Duration::from_secs(1);
        assert!(left <= most && left > arena.ttl() / 2, "{left:?}");
    }
    assert!(seen.since > Some(Duration::from_secs(1_600_000_000)), "since the epoch: {:?}", seen.since);
    assert_eq!(view.queue[0].owner, waiter.claim.owner.to_string());
    assert!(view.queue[0].waiting >= Duration::from_millis(900), "{:?}", view.queue[0].waiting);
    assert!(view.fence >= grant.token);
}

/// The fence outlives the holder.
pub async fn a_free_lock_shows_its_fence(arena: &impl Arena) {
    let player = arena.player("seen");
    let grant = player.enter().await;
    player.leave().await;
    let view = arena.here().inspect(&player.claim.name).await.expect("the store answers");
    assert_eq!((view.holders.len(), view.queue.len()), (0, 0));
    assert!(view.fence >= grant.token);
}

/// `ls` shows the held locks with a prefix, in order.
pub async fn list_chooses_by_prefix_in_order(arena: &impl Arena) {
    for name in ["b/2", "b/1", "a", "b%", "b_x", "c"] {
        arena.player(name).enter().await;
    }
    let free = arena.player("b/3");
    free.enter().await;
    free.leave().await;
    let names = |views: Vec<tenure_core::LockView>| -> Vec<String> {
        views.into_iter().map(|view| view.name.to_string()).collect()
    };
    let list = arena.elsewhere().await;
    assert_eq!(names(list.list("b/").await.expect("the store answers")), ["b/1", "b/2"]);
    assert_eq!(names(list.list("b%").await.expect("the store answers")), ["b%"]);
    assert_eq!(names(list.list("").await.expect("the store answers")), ["a", "b%", "b/1", "b/2", "b_x", "c"]);
}

/// `break` while others wait.
pub async fn break_names_the_robbed_and_lets_the_next_in(arena: &impl Arena) {
    let (holder, waiter) = (arena.player("one"), arena.player("one"));
    let grant = holder.enter().await;
    waiter.queue_behind(0).await;
    let robbed = arena
        .elsewhere()
        .await
        .break_lock(&holder.claim.name, BreakScope::Leases)
        .await
        .expect("the store answers");
    assert_eq!(robbed.iter().map(|h| h.owner.clone()).collect::<Vec<_>>(), [holder.claim.owner.to_string()]);
    assert_eq!(holder.renew(&grant).await, Renewal::Gone);
    assert!(waiter.enter().await.token > grant.token);
}

/// `break` of one of several shared holders. Then `break` of an owner that no longer holds, as by an operator that
/// inspected the lock a moment ago.
pub async fn break_of_one_owner_leaves_the_others(arena: &impl Arena) {
    let operator = arena.elsewhere().await;
    let (holder, waiter) = (arena.player("two"), arena.player("two"));
    holder.enter().await;
    waiter.queue_behind(0).await;
    let robbed = operator.break_lock(&holder.claim.name, BreakScope::Owner(holder.claim.owner)).await;
    assert_eq!(robbed.expect("the store answers").len(), 1);
    waiter.enter().await;
    // On such a store each slot is a separate lock.
    if matches!(operator.promises().sharing, Sharing::Slots { .. }) {
        return;
    }
    let (one, other) = (arena.player("one").slots(2), arena.player("one").slots(2));
    let (grant, stays) = (one.enter().await, other.enter().await);
    let robbed = operator.break_lock(&one.claim.name, BreakScope::Owner(one.claim.owner)).await;
    let robbed = robbed.expect("the store answers");
    assert_eq!(robbed.iter().map(|h| h.owner.clone()).collect::<Vec<_>>(), [one.claim.owner.to_string()]);
    assert_eq!((one.renew(&grant).await, other.renew(&stays).await), (Renewal::Gone, Renewal::Renewed));
    let next = arena.player("one").slots(2).enter().await;
    assert!(next.token > grant.token);
    let robbed = operator.break_lock(&one.claim.name, BreakScope::Owner(one.claim.owner)).await;
    assert_eq!(robbed.expect("the store answers"), []);
    assert_eq!(other.renew(&stays).await, Renewal::Renewed);
}

/// `break` of a lock that has no holder.
pub async fn break_of_a_free_lock_raises_the_fence(arena: &impl Arena) {
    let name = LockName::new("never taken").expect("BUG: a good name");
    let before = arena.here().inspect(&name).await.expect("the store answers").fence;
    assert_eq!(arena.here().break_lock(&name, BreakScope::Leases).await.expect("the store answers"), []);
    let after = arena.here().inspect(&name).await.expect("the store answers").fence;
    assert!(after > before, "{after} after {before}");
    assert!(arena.player("never taken").enter().await.token > after);
}

/// A second handle, such as the watchdog's own.
pub async fn a_handle_sees_the_same_locks(arena: &impl Arena) {
    let player = arena.player("one");
    let grant = player.enter().await;
    let other = arena.here().handle().await.expect("the store answers");
    let answers = other.renew(std::slice::from_ref(&grant)).await;
    assert!(matches!(answers[..], [Ok(Renewal::Renewed)]), "{answers:?}");
}
