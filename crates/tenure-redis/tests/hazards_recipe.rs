//! Hazards of the recipe: what a client does wrong step by step, and ours in the same place. Numbers: `docs/evidence/schedules.toml`.

use std::time::Duration;

use tenure_core::{Released, Renewal};
use tenure_testkit::{
    patience::eventually,
    redis::{Recipe, Reply, Sync},
};

use crate::stage::{
    entry::{claimant, leave_at_last, look},
    frozen::{Frozen, OURS},
    naive::{COMPARE_AND_DELETE, MINUTE_MS, NAIVE, Naive},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// Hazard 1: two clients see that nobody holds, and both write their name into the lock. L1.
#[tokio::test]
async fn of_two_that_saw_nobody_one_is_let_in() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    assert_eq!((a.get(NAIVE), b.get(NAIVE)), (None, None));
    assert!(a.set(NAIVE, "a", MINUTE_MS) && b.set(NAIVE, "b", MINUTE_MS), "both are in");

    let [a, b, _] = stage.ours();
    assert!(look(&a).await.holders.is_empty() && look(&b).await.holders.is_empty());
    a.enter().await;
    assert!(!b.try_enter().await);
}

/// Hazard 2: as before with EXISTS; and of two that saw an old stamp the loser overwrites the winner's. L1, L4.
#[tokio::test]
async fn who_comes_too_late_for_an_old_lease_does_not_touch_the_new_one() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    assert!(!a.exists(NAIVE) && !b.exists(NAIVE));
    assert!(a.set(NAIVE, "a", MINUTE_MS) && b.set(NAIVE, "b", MINUTE_MS), "both are in");
    assert!(a.ask(&["SET", NAIVE, "stamp that is over"]).error().is_none());
    let seen = (a.get(NAIVE).unwrap(), b.get(NAIVE).unwrap());
    assert_eq!(a.getset(NAIVE, "stamp of a"), seen.0, "it was still there: a is in");
    assert_ne!(b.getset(NAIVE, "stamp of b"), seen.1, "it was not: b is not in");
    assert!(!a.release(NAIVE, "stamp of a"), "a cannot free what it holds");

    let [old, a, b] = stage.ours();
    old.enter().await;
    stage.end_leases();
    assert!(look(&a).await.holders.is_empty() && look(&b).await.holders.is_empty());
    let grant = a.enter().await;
    assert!(!b.try_enter().await);
    let holder = look(&b).await.holders.remove(0);
    assert_eq!((holder.owner, holder.token), (grant.owner.to_string(), Some(grant.token)));
    assert_eq!(a.leave().await, Released::Released);
}

/// Hazard 3: a client dies between taking the lock and giving it an end. L8.
#[tokio::test]
async fn the_lock_of_a_client_that_died_in_the_middle_has_an_end() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    assert!(a.setnx(NAIVE, "a"));
    drop(a);
    stage.end_leases();
    assert!(b.pttl(NAIVE) == -1 && !b.setnx(NAIVE, "b"), "blocked for ever");

    let [a, c, _] = stage.ours();
    a.enter().await;
    a.leave().await;
    stage.server().stop();
    let cut_short = tokio::time::timeout(Duration::from_millis(200), a.ask()).await;
    assert!(cut_short.is_err(), "it has asked, and does not live to hear the answer");
    drop(a);
    stage.server().resume();
    let left = eventually("the last words are heard", PATIENCE, || Some(b.pttl(OURS)).filter(|ms| *ms != -2));
    assert!((1..=MINUTE_MS).contains(&left), "{left}");
    assert!(!c.try_enter().await);
    stage.end_leases();
    c.enter().await;
}

/// Hazard 4: a value that others know lets others free the lock. L4.
#[tokio::test]
async fn nobody_frees_a_lock_by_what_can_be_guessed() {
    let stage = Frozen::new();
    let [mut a, mut b, mut c] = stage.naive();
    assert!(a.set_new(NAIVE, "locked", MINUTE_MS));
    assert!(b.release(NAIVE, "locked"), "b has the same value");
    assert!(c.set_new(NAIVE, "locked", MINUTE_MS), "c is in beside a");

    let [a, b, c] = stage.ours();
    a.enter().await;
    assert_eq!(a.claim.label, b.claim.label, "b says of itself what a does");
    assert_eq!(b.leave().await, Released::WasGone);
    assert!(!c.try_enter().await);
}

/// Hazard 5: a holder that is late deletes the lock of the next one. L4.
#[tokio::test]
async fn a_late_release_does_not_free_the_next_holder() {
    let stage = Frozen::new();
    let [mut a, mut b, mut c] = stage.naive();
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    stage.end_leases();
    assert!(b.set_new(NAIVE, "b", MINUTE_MS));
    assert!(a.del(NAIVE));
    assert!(c.set_new(NAIVE, "c", MINUTE_MS), "c is in beside b");

    let [a, b, c] = stage.ours();
    stage.overtaken(&a, &b).await;
    assert_eq!(a.leave().await, Released::WasGone);
    assert!(!c.try_enter().await);
}

/// Hazard 6: between the look at the value and the DEL the lock changes hands. L4.
#[tokio::test]
async fn a_release_compares_and_deletes_in_one_step() {
    let stage = Frozen::new();
    let [mut a, mut b, mut c] = stage.naive();
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    assert_eq!(a.get(NAIVE).as_deref(), Some("a"), "a may delete");
    stage.end_leases();
    assert!(b.set_new(NAIVE, "b", MINUTE_MS));
    assert!(a.del(NAIVE));
    assert!(c.set_new(NAIVE, "c", MINUTE_MS), "c is in beside b");

    let [a, b, c] = stage.ours();
    let grant = stage.overtaken(&a, &b).await;
    assert_eq!(a.backend.release(&grant.name, grant.owner).await.unwrap(), Released::WasGone);
    assert!(!c.try_enter().await);
    assert_eq!(b.leave().await, Released::Released);
}

/// Hazard 7: WATCH after the look, or on another connection than the transaction, watches nothing. L4.
#[tokio::test]
async fn a_release_rests_on_no_state_of_its_connection() {
    let stage = Frozen::new();
    let [mut a, mut b, mut pooled] = stage.naive();
    for is_pooled in [false, true] {
        assert!(a.set_new(NAIVE, "a", MINUTE_MS));
        if is_pooled {
            a.watch(NAIVE);
        }
        assert_eq!(a.get(NAIVE).as_deref(), Some("a"), "a may delete");
        stage.end_leases();
        assert!(b.set_new(NAIVE, "b", MINUTE_MS));
        if !is_pooled {
            a.watch(NAIVE);
        }
        let connection = if is_pooled { &mut pooled } else { &mut a };
        assert!(connection.del_in_transaction(NAIVE) && !b.exists(NAIVE), "b holds no more");
    }

    let [a, b, c] = stage.ours();
    let pooled = a.backend.handle().await.unwrap();
    stage.overtaken(&a, &b).await;
    assert_eq!(pooled.release(&a.claim.name, a.claim.owner).await.unwrap(), Released::WasGone);
    assert!(!c.try_enter().await);
    let pooled = b.backend.handle().await.unwrap();
    assert_eq!(pooled.release(&b.claim.name, b.claim.owner).await.unwrap(), Released::Released);
}

/// Hazard 23: a watchdog that is late extends the next holder's lease, or takes its lock. L4, L5.
#[tokio::test]
async fn a_late_renewal_neither_extends_nor_overwrites_nor_makes_a_lease() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    stage.end_leases();
    assert!(b.set_new(NAIVE, "b", 1000));
    assert!(a.pexpire(NAIVE, MINUTE_MS) && b.pttl(NAIVE) > 1000, "a was told that it holds");
    assert!(a.set_existing(NAIVE, "a", MINUTE_MS) && !b.release(NAIVE, "b"), "and now it does");

    let [a, mut next, c] = stage.ours();
    next.claim.ttl = Duration::from_secs(1);
    let lost = stage.overtaken(&a, &next).await;
    assert_eq!(a.renew(&lost).await, Renewal::Gone);
    assert!(b.pttl(OURS) <= 1000 && !c.try_enter().await);
    assert_eq!(next.leave().await, Released::Released);
    assert_eq!(a.renew(&lost).await, Renewal::Gone);
    assert!(!b.exists(OURS), "nothing was made");
}

/// Hazard 29: a server that has forgotten the scripts refuses a call by hash, and the lock stays.
#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let server = Recipe::new().persistent(Sync::Always).start();
    let mut a = Naive::of(&server);
    let hash = a.ask(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]).text();
    let by_hash = ["EVALSHA", &hash, "1", NAIVE, "a"];
    let is_refused = |answer: Reply| answer.error().is_some_and(|error| error.starts_with("NOSCRIPT"));
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    let player = claimant(&server.url("?guard=off"), OURS);

    a.ask(&["SCRIPT", "FLUSH"]);
    assert!(is_refused(a.ask(&by_hash)) && a.exists(NAIVE), "not released");
    let grant = player.enter().await;
    a.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(player.renew(&grant).await, Renewal::Renewed);
    a.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(player.leave().await, Released::Released);

    player.enter().await;
    server.kill();
    server.start_again();
    let mut a = Naive::of(&server);
    assert!(is_refused(a.ask(&by_hash)) && a.exists(NAIVE) && a.exists(OURS), "not released");
    assert_eq!(leave_at_last(&player).await, Released::Released);
    assert!(!a.exists(OURS));
}
