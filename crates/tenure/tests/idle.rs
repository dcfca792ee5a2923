//! Leases that are kept while nobody uses them.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{sync::Arc, time::Duration};

use tenure::{AcquireError, ConfigError, Guard, Lock};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{Actor, Deaf, SOON, Stage, TTL, in_time, ms};

const IDLE: Duration = ms(1000);
/// Tokens of one lease.
const BLOCK: usize = 256;

fn idle(actor: &Actor) -> Lock {
    actor.mutex().keep_idle(IDLE)
}

/// Claims and releases that the store was asked for, since the process began.
fn asked(actor: &Actor) -> (usize, usize) {
    (actor.gates.asked(Verb::Claim) - 1, actor.gates.asked(Verb::Release) - 1)
}

/// A process that hears hints: before it does so, it keeps nothing.
async fn process(stage: &Stage) -> Actor {
    let actor = stage.actor();
    let warm = enter(actor.locks.mutex("warm")).await;
    pass(SOON).await;
    warm.release().await.unwrap();
    actor
}

async fn enter(lock: Lock) -> Guard {
    in_time(lock.acquire()).await.unwrap()
}

/// L2: no request, and a larger token each time.
#[tokio::test(start_paused = true)]
async fn who_comes_back_in_time_needs_no_request() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    // Tokens are times: as many as there are microseconds.
    pass(ms(1)).await;
    let mut last = None;
    for _ in 0..BLOCK {
        let guard = enter(idle(&actor)).await;
        guard.check().unwrap();
        assert!(last < Some(guard.token()), "L2: {last:?}, then {guard:?}");
        last = Some(guard.token());
        guard.release().await.unwrap();
        pass(ms(5)).await;
    }
    assert_eq!(asked(&actor).0, 1);
    // Its tokens are used up: the store has it again, and the next one is claimed.
    assert!(stage.is_free().await);
    let guard = enter(idle(&actor)).await;
    assert_eq!(asked(&actor), (2, 1));
    assert!(last < Some(guard.token()), "L2");
}

/// L8: after its time it is free.
#[tokio::test(start_paused = true)]
async fn it_is_given_back_after_its_time() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    enter(idle(&actor)).await.release().await.unwrap();
    pass(IDLE - SOON).await;
    assert!(!stage.is_free().await, "it is kept");
    pass(2 * SOON).await;
    assert!(stage.is_free().await);
    drop(enter(idle(&actor)).await);
    pass(SOON).await;
    assert!(!stage.is_free().await, "it is kept though its guard was dropped");
    assert_eq!(asked(&actor), (2, 1));
}

/// It is renewed meanwhile, and believed by whoever takes it.
#[tokio::test(start_paused = true)]
async fn it_may_be_kept_for_longer_than_its_ttl() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    let lock = actor.mutex().keep_idle(10 * TTL);
    enter(lock.clone()).await.release().await.unwrap();
    pass(5 * TTL).await;
    let guard = enter(lock).await;
    guard.check().unwrap();
    assert!(guard.remaining() >= TTL / 2, "{:?}", guard.remaining());
    assert_eq!(asked(&actor).0, 1);
}

/// L6: a waiter of another process tells this one, which gives it back at once.
#[tokio::test(start_paused = true)]
async fn who_waits_elsewhere_has_it_given_back() {
    let stage = Stage::new();
    let (actor, other) = (process(&stage).await, process(&stage).await);
    enter(idle(&actor)).await.release().await.unwrap();
    pass(ms(100)).await;
    let began = stage.clock();
    let guard = enter(other.mutex()).await;
    assert!(stage.clock() - began <= SOON, "{:?}", stage.clock() - began);
    // Both keep it, and both hear of each other.
    guard.release().await.unwrap();
    enter(idle(&other)).await.release().await.unwrap();
    enter(idle(&actor)).await.release().await.unwrap();
    assert!(stage.clock() - began <= 3 * SOON);
}

/// L6: who waits does not wait for the answer to its hint, which the holder has heard.
#[tokio::test(start_paused = true)]
async fn a_hint_whose_answer_is_late_keeps_nobody_waiting() {
    let stage = Stage::new();
    let (actor, other) = (process(&stage).await, process(&stage).await);
    other.gates.plan(Verb::Tell, &[], Gate::Slow(ms(1000)));
    enter(idle(&actor)).await.release().await.unwrap();
    pass(ms(100)).await;
    let began = stage.clock();
    let _guard = enter(other.mutex()).await;
    assert_eq!(other.gates.asked(Verb::Tell), 1);
    assert!(stage.clock() - began <= SOON, "{:?}", stage.clock() - began);
}

/// L6: also after a moment in which this process held nothing. The keeper had stopped listening then until its next look, up to a
/// third of the ttl later.
#[tokio::test(start_paused = true)]
async fn who_waits_elsewhere_is_heard_each_time() {
    let stage = Stage::new();
    let (actor, other) = (process(&stage).await, process(&stage).await);
    for visit in 0..4 {
        enter(idle(&actor)).await.release().await.unwrap();
        // Tokens are made by the clock.
        pass(ms(1)).await;
        assert!(!stage.is_free().await, "visit {visit}: it is not kept");
        let began = stage.clock();
        enter(other.mutex()).await.release().await.unwrap();
        let waited = stage.clock() - began;
        assert!(waited <= SOON, "visit {visit}: {waited:?}");
        pass(ms(1)).await;
    }
}

/// L7: once somebody elsewhere waits, no waiter of this process is passed the lease.
#[tokio::test(start_paused = true)]
async fn who_waits_elsewhere_is_not_passed_by_those_who_come_later() {
    let stage = Stage::new();
    let (actor, other) = (process(&stage).await, process(&stage).await);
    let guard = enter(idle(&actor)).await;
    let lock = other.mutex();
    let elsewhere = tokio::spawn(enter(lock));
    stage.settle(1, 1).await;
    let lock = idle(&actor);
    let here = tokio::spawn(enter(lock));
    pass(SOON).await;
    guard.release().await.unwrap();
    let guard = in_time(elsewhere).await.unwrap();
    assert!(!here.is_finished());
    guard.release().await.unwrap();
    in_time(here).await.unwrap().release().await.unwrap();
}

/// L6: the hint is lost, and the lease ends with its time.
#[tokio::test(start_paused = true)]
async fn a_lost_hint_costs_the_time_that_it_is_kept() {
    let stage = Stage::new();
    let mut deaf = Deaf::new(&stage.store);
    deaf.hears = true;
    let (actor, other) = (process(&stage).await, stage.actor_on(Arc::new(deaf)));
    enter(idle(&actor)).await.release().await.unwrap();
    let began = stage.clock();
    drop(enter(other.mutex()).await);
    let waited = stage.clock() - began;
    assert!(waited <= IDLE + SOON, "{waited:?}");
}

/// Whoever does not wait takes what is kept here; elsewhere it finds the lock held, and has it given back.
#[tokio::test(start_paused = true)]
async fn who_does_not_wait_takes_it_too() {
    let stage = Stage::new();
    let (actor, other) = (process(&stage).await, process(&stage).await);
    idle(&actor).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let guard = idle(&actor).try_acquire().await.unwrap().unwrap();
    assert_eq!(asked(&actor), (1, 0));
    assert!(idle(&actor).try_acquire().await.unwrap().is_none(), "it is held");
    guard.release().await.unwrap();
    assert!(other.mutex().try_acquire().await.unwrap().is_none(), "it is kept");
    pass(SOON).await;
    assert!(other.mutex().try_acquire().await.unwrap().is_some(), "the holder was told");
}

/// Another kind of lock of the same name in this process waits like a stranger, and has it given back.
#[tokio::test(start_paused = true)]
async fn a_lock_with_other_settings_has_it_given_back() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    for lock in [actor.mutex(), actor.mutex().keep_idle(2 * IDLE), idle(&actor).ttl(2 * TTL), actor.lock()] {
        enter(idle(&actor)).await.release().await.unwrap();
        let began = stage.clock();
        enter(lock).await.release().await.unwrap();
        assert!(stage.clock() - began <= SOON, "{:?}", stage.clock() - began);
    }
}

/// L1, H5.1: what could not be renewed is not taken.
#[tokio::test(start_paused = true)]
async fn what_is_not_renewed_is_not_taken() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    let lock = actor.mutex().keep_idle(10 * TTL);
    enter(lock.clone()).await.release().await.unwrap();
    actor.set(Verb::Renew, Gate::Refuse);
    pass(TTL / 2).await;
    let guard = enter(lock).await;
    assert!(asked(&actor).0 > 1, "the store was asked");
    guard.check().unwrap();
}

/// L2: the lock was broken, and whoever comes back has a token above that.
#[tokio::test(start_paused = true)]
async fn what_was_broken_is_not_taken() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    let guard = enter(idle(&actor)).await;
    let token = guard.token();
    guard.release().await.unwrap();
    stage.break_lock().await;
    pass(SOON).await;
    let guard = enter(idle(&actor)).await;
    assert!(guard.token().get() >= token.get() + u64::try_from(BLOCK).unwrap(), "{token}, then {guard:?}");
    assert_eq!(asked(&actor).0, 2);
}

/// L6: as long as hints cannot be heard, nothing is kept.
#[tokio::test(start_paused = true)]
async fn a_process_that_hears_nothing_yet_keeps_nothing() {
    let stage = Stage::new();
    let actor = stage.actor();
    enter(idle(&actor)).await.release().await.unwrap();
    pass(SOON).await;
    assert!(stage.is_free().await);
}

/// L8: the process ends, or says that it will.
#[tokio::test(start_paused = true)]
async fn a_process_that_ends_gives_it_back() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    enter(idle(&actor)).await.release().await.unwrap();
    assert!(actor.locks.flush(TTL).await);
    assert!(stage.is_free().await);
    enter(idle(&actor)).await.release().await.unwrap();
    drop(actor);
    pass(SOON).await;
    assert!(stage.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_kept_says_so() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    let refused = async |lock: Lock| match lock.keep_idle(IDLE).acquire().await {
        Err(AcquireError::Config(ConfigError::NotIdle { why, .. })) => why,
        other => panic!("{other:?}"),
    };
    let turns = "only a mutex without `fifo` passes its lease on";
    assert_eq!(refused(actor.locks.semaphore("stage", 3)).await, turns);
    assert_eq!(refused(actor.lock()).await, turns);
    assert_eq!(refused(actor.mutex().fifo()).await, turns);
    assert_eq!(refused(actor.mutex().max_hold(TTL)).await, "a hold that is bounded ends its lease");
    assert_eq!(asked(&actor), (0, 0));
    enter(actor.mutex().keep_idle(Duration::ZERO)).await.release().await.unwrap();
    assert!(stage.is_free().await, "no time is none");
}

/// An idle lease that no client wants ends, and `drain` forgets that there was one.
#[tokio::test(start_paused = true)]
async fn an_idle_lease_that_has_ended_is_forgotten() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    drop(enter(idle(&actor)).await);
    pass(TTL * 2).await;
    assert!(actor.locks.flush(TTL).await);
    let shown = format!("{:?}", actor.locks);
    assert!(shown.contains("leases: 0, local_queues: 0"), "{shown}");
}

/// One that asks once is behind a waiter of its process, whose claim is not answered yet: the lock is busy, and the store has not failed.
#[tokio::test(start_paused = true)]
async fn who_asks_once_behind_a_claim_that_is_under_way_is_refused() {
    let stage = Stage::new();
    let actor = process(&stage).await;
    actor.gates.plan(Verb::Claim, &[Gate::Slow(ms(100))], Gate::Open);
    let lock = idle(&actor);
    let first = tokio::spawn(async move { lock.acquire().await.unwrap() });
    pass(ms(10)).await;
    assert!(idle(&actor).try_acquire().await.unwrap().is_none());
    first.await.unwrap().release().await.unwrap();
}
