//! A claim that can be repeated, and a lease that another process goes on with.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::sync::Arc;

use tenure::{
    AcquireError, ConfigError, Loss,
    backend::{Backend, EndOfGrant},
    fence::Pass,
};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{CLAIM_TTL, Deaf, SOON, Stage, TTL, VALIDITY, in_time, ms};

/// L2, L3: the lease goes on past its end, with its token, which passes where the other process has been; and the guard gives
/// it back.
#[tokio::test(start_paused = true)]
async fn attach_goes_on_where_another_process_left() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let guard = one.acquire().await;
    let mark = guard.pass().judge(0).unwrap();
    let left = guard.detach().await.unwrap();
    let (owner, token) = (left.owner(), left.token().unwrap());
    pass(TTL / 2).await;
    let guard = in_time(other.mutex().attach(owner)).await.unwrap();
    assert_eq!((guard.owner(), guard.token()), (owner, token));
    assert_eq!(guard.pass().judge(mark).unwrap(), mark, "L3: it passes");
    assert!(guard.remaining() <= VALIDITY && guard.remaining() > VALIDITY - SOON);
    pass(5 * TTL).await;
    guard.check().unwrap();
    assert_eq!(stage.crowd().await, (1, 0));
    guard.release().await.unwrap();
    assert!(stage.is_free().await);
    let later = one.acquire().await;
    assert!(later.pass().judge(mark).is_ok() && later.token() > token, "L2");
    assert!(Pass::exclusive(token).judge(later.token().get()).is_err(), "L3");
}

/// L4, L5: what is gone is not taken anew, and another owner's lease is left alone.
#[tokio::test(start_paused = true)]
async fn what_is_gone_is_not_attached_to() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let gone = |attached| matches!(attached, Err(AcquireError::Gone));
    let owner = one.acquire().await.detach().await.unwrap().owner();
    pass(TTL + SOON).await;
    assert!(gone(other.mutex().attach(owner).await) && stage.is_free().await);
    let owner = one.acquire().await.detach().await.unwrap().owner();
    stage.break_lock().await;
    assert!(gone(other.locks.mutex("stage").attach(owner).await) && stage.is_free().await);
    let held = one.acquire().await;
    assert!(gone(other.mutex().attach(owner).await));
    assert!(gone(other.mutex().attach(other.locks.new_owner()).await));
    held.check().unwrap();
    // A waiter that was handed the lock and has not entered holds nothing yet.
    let waiting = other.waiting();
    stage.settle(1, 1).await;
    let waiter = stage.view().await.queue[0].owner.parse().unwrap();
    assert!(gone(one.mutex().attach(waiter).await));
    other.set(Verb::Claim, Gate::Hang);
    held.release().await.unwrap();
    assert!(gone(one.mutex().attach(waiter).await));
    waiting.abort();
    pass(CLAIM_TTL + SOON).await;
}

/// L4: of one lease there is one guard.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_here_is_not_attached_to() {
    let stage = Stage::new();
    let actor = stage.actor();
    let held_here = |attached| matches!(attached, Err(AcquireError::Config(ConfigError::OwnerInUse { .. })));
    let guard = actor.acquire().await;
    assert!(held_here(actor.mutex().attach(guard.owner()).await));
    guard.release().await.unwrap();
    // One that is passed on from guard to guard: those who wait together share it.
    let before = stage.actor().acquire().await;
    let [first, next] = [actor.mutex(), actor.mutex()]
        .map(|lock| tokio::spawn(async move { in_time(lock.acquire()).await.unwrap() }));
    stage.settle(1, 1).await;
    before.release().await.unwrap();
    let first = first.await.unwrap();
    let owner = stage.holder().await;
    assert!(held_here(actor.mutex().attach(owner).await));
    first.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(stage.holder().await, owner, "it was passed on");
    assert!(held_here(actor.mutex().attach(owner).await));
    let owner = next.detach().await.unwrap().owner();
    // Twice at the same time: one of them has it.
    let (lock, other) = (actor.mutex(), actor.mutex());
    let (one, other) = tokio::join!(lock.attach(owner), other.attach(owner));
    assert_eq!(one.is_ok() as u8 + other.is_ok() as u8, 1, "{one:?} and {other:?}");
    assert!(held_here(one.and(other)));
    pass(2 * TTL).await;
    assert!(actor.locks.flush(TTL).await);
    assert!(stage.is_free().await, "L8: its guard was dropped");
}

/// L1: a lease that was attached to ends as any other does.
#[tokio::test(start_paused = true)]
async fn an_attached_lease_is_lost_like_any_other() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let owner = one.acquire().await.detach().await.unwrap().owner();
    let guard = other.mutex().attach(owner).await.unwrap();
    stage.break_lock().await;
    let began = stage.clock();
    assert_eq!(in_time(guard.lost()).await.cause(), Loss::Taken);
    assert!(stage.clock() - began <= TTL / 3 + SOON, "at the next renewal");
    drop(guard);
    let owner = one.acquire().await.detach().await.unwrap().owner();
    let guard = other.mutex().max_hold(ms(700)).attach(owner).await.unwrap();
    let began = stage.clock();
    assert_eq!(in_time(guard.lost()).await.cause(), Loss::MaxHold);
    assert!(stage.clock() - began <= ms(700) + SOON);
    drop(guard);
    assert!(other.locks.flush(TTL).await && stage.is_free().await);
    // Belief counts from before the renewal was sent (H1.1).
    let owner = one.acquire().await.detach().await.unwrap().owner();
    other.gates.plan(Verb::Renew, &[Gate::Slow(ms(900))], Gate::Hang);
    let guard = other.mutex().attach(owner).await.unwrap();
    assert!(guard.remaining() <= VALIDITY - ms(900));
    assert_eq!(in_time(guard.lost()).await.cause(), Loss::Expired);
}

/// H1.2: the claim was done and its answer lost; asked again by another process, it is the same lease.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_asked_again_by_another_process() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let owner = one.locks.new_owner();
    one.set(Verb::Claim, Gate::Hang);
    one.gates.plan(Verb::Claim, &[Gate::Late(ms(1))], Gate::Hang);
    let lock = one.mutex().owner(owner);
    let asking = tokio::spawn(async move { lock.acquire().await });
    stage.settle(1, 0).await;
    one.die();
    asking.abort();
    let first = stage.view().await.holders[0].clone();
    assert_eq!(first.owner, owner.to_string());
    pass(TTL / 2).await;
    let guard = in_time(other.mutex().owner(owner).acquire()).await.unwrap();
    assert_eq!(guard.owner(), owner);
    assert!(first.token.is_some_and(|token| token < guard.token()), "L2: it entered again");
    let view = stage.view().await;
    assert_eq!((view.holders.len(), view.queue.len()), (1, 0));
    assert_eq!(view.holders[0].since, first.since, "the same lease");
    pass(3 * TTL).await;
    guard.check().unwrap();
    let refused = other.mutex().owner(owner).try_acquire().await.map(drop).unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::OwnerInUse { .. })), "{refused}");
    let several = other.locks.all(["a", "b"]).with(|lock| lock.owner(owner)).acquire().await.unwrap_err();
    assert!(matches!(several, AcquireError::Config(ConfigError::OwnerInUse { .. })), "{several}");
    guard.release().await.unwrap();
    assert!(stage.is_free().await);
}

/// L4, H3.4: an owner that the caller chose holds no lease of another one, and its own is not passed on.
#[tokio::test(start_paused = true)]
async fn a_chosen_owner_takes_no_turns() {
    let stage = Stage::new();
    let actor = stage.actor();
    let first = in_time(actor.mutex().acquire()).await.unwrap();
    let owner = actor.locks.new_owner();
    let mine = actor.mutex().owner(owner);
    let mine = tokio::spawn(async move { in_time(mine.acquire()).await.unwrap() });
    let last = actor.mutex();
    let last = tokio::spawn(async move { in_time(last.acquire()).await.unwrap() });
    pass(ms(20)).await;
    first.release().await.unwrap();
    let mine = mine.await.unwrap();
    assert_eq!(mine.owner(), owner);
    mine.release().await.unwrap();
    let last = last.await.unwrap();
    assert_ne!(last.owner(), owner);
    last.release().await.unwrap();
    assert!(stage.is_free().await);
}

/// H3.4: an owner of which a grant came too late is spent, and there is no other one to go on with.
#[tokio::test(start_paused = true)]
async fn a_chosen_owner_that_is_granted_too_late_fails() {
    let stage = Stage::new();
    let actor = stage.actor();
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(110))], Gate::Open);
    let owner = actor.locks.new_owner();
    let refused = in_time(actor.mutex().ttl(ms(100)).owner(owner).acquire()).await.unwrap_err();
    assert!(refused.to_string().contains("failed"), "{refused}");
    assert_eq!(actor.gates.asked(Verb::Claim), 1);
    assert!(stage.is_free().await, "L8");
}

/// What a store does not promise is refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_owners_refuses() {
    let stage = Stage::new();
    let mut store = Deaf::new(&stage.store);
    store.promises.end = EndOfGrant::Session;
    store.promises.chosen_owner = false;
    assert!(stage.store.promises().chosen_owner);
    let actor = stage.actor_on(Arc::new(store));
    let owner = actor.locks.new_owner();
    let refused = actor.mutex().attach(owner).await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::EndsWithProcess { .. })), "{refused}");
    let refused = actor.mutex().owner(owner).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Config(ConfigError::OwnerNotChosen { .. })), "{refused}");
    assert_eq!((actor.gates.asked(Verb::Claim), actor.gates.asked(Verb::Renew)), (0, 0));
}

/// L1: a guard of the same owner whose lease was lost is dropped only after the lease was attached to, or claimed again. It ended
/// the new lease: nobody renewed it, and it was released in the store under the work of its guard.
#[tokio::test(start_paused = true)]
async fn a_lost_guard_that_is_dropped_late_does_not_end_the_lease_of_its_owner() {
    let stage = Stage::new();
    let actor = stage.actor();
    let owner = actor.locks.new_owner();
    let capped = || actor.mutex().max_hold(ms(1000)).owner(owner);
    for again in [false, true] {
        let lost = capped().acquire().await.unwrap();
        pass(ms(1000) + SOON).await;
        assert_eq!(lost.check().unwrap_err().cause(), Loss::MaxHold);
        let guard = if again {
            in_time(actor.mutex().owner(owner).acquire()).await.unwrap()
        } else {
            in_time(actor.mutex().attach(owner)).await.unwrap()
        };
        if again {
            assert!(lost.release().await.is_err());
        } else {
            drop(lost);
        }
        pass(5 * TTL).await;
        guard.check().unwrap();
        assert_eq!(stage.crowd().await, (1, 0), "L1: it is held in the store");
        guard.release().await.unwrap();
        assert!(stage.is_free().await);
    }
}

/// The same while the attachment is on its way.
#[tokio::test(start_paused = true)]
async fn a_lost_guard_that_is_dropped_meanwhile_does_not_end_what_is_on_its_way() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lost = in_time(actor.mutex().max_hold(ms(1000)).acquire()).await.unwrap();
    let owner = lost.owner();
    pass(ms(1000) + SOON).await;
    assert!(lost.check().is_err());
    actor.gates.plan(Verb::Renew, &[Gate::Slow(ms(200))], Gate::Open);
    let lock = actor.mutex();
    let attaching = tokio::spawn(async move { lock.attach(owner).await });
    pass(ms(100)).await;
    drop(lost);
    let guard = in_time(attaching).await.unwrap().unwrap();
    pass(5 * TTL).await;
    guard.check().unwrap();
    assert_eq!(stage.crowd().await, (1, 0), "L1: it is held in the store");
}

/// L3: a lease that tasks share has more tokens than one, and the store knows the last of them only. That is the one of the guard
/// that attached, and of what was detached. The first process remembered that of its guard, and went back to it after another
/// one had shown the last one: the resource refused the holder.
#[tokio::test(start_paused = true)]
async fn the_token_after_attach_is_the_one_that_was_detached_and_never_goes_back() {
    let stage = Stage::new();
    let (one, other) = (stage.actor(), stage.actor());
    let idle = one.mutex().keep_idle(ms(60_000));
    for holders in 1..=3 {
        // A token is never ahead of the clock: without time there is no block of them.
        pass(ms(10)).await;
        for _ in 1..holders {
            idle.acquire().await.unwrap().release().await.unwrap();
        }
        let guard = idle.acquire().await.unwrap();
        let mut mark = guard.pass().judge(0).unwrap();
        let left = guard.detach().await.unwrap();
        let (mut owner, token) = (left.owner(), left.token().unwrap());
        assert!(token.get() > mark, "{token} of holder {holders}");
        for actor in [&one, &other, &one, &other] {
            let again = actor.mutex().attach(owner).await.unwrap();
            assert_eq!(again.token(), token, "holder {holders}");
            mark = again.pass().judge(mark).unwrap();
            again.set_memo("it is mine", TTL).await.unwrap();
            let left = again.detach().await.unwrap();
            assert_eq!(left.token(), Some(token));
            owner = left.owner();
        }
        one.mutex().attach(owner).await.unwrap().release().await.unwrap();
        let later = one.acquire().await;
        assert!(later.token() > token, "L2");
        later.release().await.unwrap();
    }
}
