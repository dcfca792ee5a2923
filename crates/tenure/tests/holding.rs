//! A lease that is passed on, and work that is run under a lock.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tenure::{AcquireError, Guard, HoldError, Lease, Loss, blocking};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
};

use crate::stage::{Stage, TTL, in_time, ms};

/// What is told to somebody who still has a lease.
async fn told(lease: &Lease) -> Loss {
    in_time(lease.renewal_failing()).await;
    let lost = in_time(lease.lost()).await;
    assert_eq!(lease.check(), Err(lost));
    assert!(in_time(lease.expires_within(TTL)).await.is_err());
    assert_eq!(lease.remaining(), Duration::ZERO);
    lost.cause()
}

/// L1, L5: a lease that was passed on is over when its guard gives the lock back, *before* the store hears of it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_outlives_its_guard_says_that_it_was_released() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = actor.acquire().await;
    let (lease, token) = (guard.lease(), guard.token());
    assert_eq!((lease.check(), lease.token(), lease.owner()), (Ok(()), token, guard.owner()));
    actor.set(Verb::Release, Gate::Hang);
    let waiting = tokio::spawn({
        let lease = lease.clone();
        async move { told(&lease).await }
    });
    pass(ms(1)).await;
    let began = stage.clock();
    let releasing = tokio::spawn(guard.release());
    assert_eq!(in_time(waiting).await.unwrap(), Loss::Released);
    assert!(stage.clock() - began <= ms(1), "it was told by a timer");
    assert!(!stage.is_free().await, "the store has not heard of it");
    assert!(in_time(releasing).await.unwrap().is_err());

    let guard = other.acquire().await;
    let lease = guard.lease();
    drop(guard);
    assert_eq!(told(&lease).await, Loss::Released);
    assert_eq!(lease.clone().check().unwrap_err().token(), lease.token());
}

/// L1: whoever detaches a lease goes by the clock.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_detached_guard_lasts_as_long_as_its_ttl() {
    let stage = Stage::new();
    let guard = stage.actor().acquire().await;
    let lease = guard.lease();
    guard.detach().await.unwrap();
    pass(TTL / 2).await;
    assert_eq!(lease.check(), Ok(()));
    assert_eq!(told(&lease).await, Loss::Expired);
}

/// L8: the guard belongs to `hold` alone. A clone of the lease that lived on kept the guard in it from being given back.
#[tokio::test(start_paused = true)]
async fn hold_gives_the_lock_back_though_a_lease_lives_on() {
    let stage = Stage::new();
    let actor = stage.actor();
    let lease = actor.lock().hold(async |lease| lease).await.unwrap();
    assert!(stage.is_free().await, "its answer is waited for");
    assert_eq!(told(&lease).await, Loss::Released);
    assert_eq!(actor.gates.asked(Verb::Release), 1);
}

/// L1: work that was asked for with `try_hold` begins only under the lock.
#[tokio::test(start_paused = true)]
async fn try_hold_works_if_the_lock_is_free_and_only_then() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let mut worked = Vec::new();
    let guard = other.acquire().await;
    assert_eq!(actor.lock().try_hold(async |_| worked.push("beside")).await.unwrap(), None);
    guard.release().await.unwrap();
    assert_eq!(actor.lock().try_hold(async |_| worked.push("alone")).await.unwrap(), Some(()));
    assert_eq!(worked, ["alone"]);
    assert!(stage.is_free().await);
}

/// L8: whoever gives up in time leaves no place behind, and the work does not begin.
#[tokio::test(start_paused = true)]
async fn work_that_waits_for_its_lock_gives_up_in_time() {
    let stage = Stage::new();
    let (actor, other) = (stage.actor(), stage.actor());
    let guard = other.acquire().await;
    let began = AtomicBool::new(false);
    let work = async |_: Lease| began.store(true, Ordering::SeqCst);
    let refused = actor.lock().within(ms(300)).hold(work).await.unwrap_err();
    assert!(matches!(refused, HoldError::Acquire(AcquireError::TimedOut { .. })), "{refused:?}");
    assert!(!began.load(Ordering::SeqCst));
    assert_eq!(stage.crowd().await, (1, 0));
    let work = async |lease: Lease| {
        pass(2 * TTL).await;
        lease.check()
    };
    let lock = actor.lock();
    let (held, ()) = tokio::join!(lock.clone().within(TTL).hold(work), async {
        pass(ms(100)).await;
        guard.release().await.unwrap();
    });
    assert_eq!(held.unwrap(), Ok(()), "the patience is for the wait and not for the work");
}

/// Tasks of a runtime with many threads pass leases on, and hold.
#[tokio::test(start_paused = true)]
async fn a_lease_and_a_hold_can_be_sent_to_another_task() {
    fn shared<T: Send + Sync + Clone + 'static>(it: &T) -> T {
        it.clone()
    }
    let stage = Stage::new();
    let lock = stage.actor().lock();
    let held = tokio::spawn(async move {
        let by_whom = String::from("a task");
        lock.hold(async |lease| {
            let lease = shared(&lease);
            let inner = tokio::spawn(async move { lease.check().is_ok() });
            (by_whom.len(), inner.await.unwrap())
        })
        .await
    });
    assert_eq!(held.await.unwrap().unwrap(), (6, true));
}

/// The verbs of threads are those of tasks.
#[test]
fn threads_hold_as_tasks_do() {
    let locks = blocking::connect("memory:").unwrap();
    let lock = locks.mutex("stage");
    let (lease, inside) = lock.hold(|lease| (lease.clone(), lock.try_hold(|_| ()).unwrap())).unwrap();
    assert_eq!(inside, None);
    assert_eq!((lease.lost().cause(), lease.remaining()), (Loss::Released, Duration::ZERO));
    lease.renewal_failing();
    assert!(lease.expires_within(Duration::ZERO).is_err());

    let guard: blocking::Guard = lock.acquire().unwrap();
    let refused = lock.clone().within(ms(20)).hold(|_| ()).unwrap_err();
    assert!(matches!(refused, HoldError::Acquire(AcquireError::TimedOut { .. })), "{refused:?}");
    assert_eq!((guard.check(), guard.lease().token()), (Ok(()), guard.token()));
    drop(guard);
    assert!(locks.flush(TTL));
    assert_eq!(lock.clone().within(TTL).hold(|lease| lease.check()).unwrap(), Ok(()));
    assert_eq!(lock.try_hold(|lease| lease.name().to_string()).unwrap().unwrap(), "stage");
    let view = locks.inspect("stage").unwrap();
    assert!(view.holders.is_empty() && view.queue.is_empty(), "{view:?}");
}

/// A thread cannot be stopped: what it made of a lost lease is not handed out.
#[test]
fn the_result_of_a_thread_whose_lease_was_lost_is_not_handed_out() {
    let locks = blocking::connect("memory:").unwrap();
    let lock = locks.mutex("stage").with(|lock| lock.max_hold(ms(50)));
    let held = lock.hold(|lease| lease.lost().cause());
    assert!(matches!(held, Err(HoldError::Lost(lost)) if lost.cause() == Loss::MaxHold), "{held:?}");
}

/// A guard is a lease wherever one is asked for.
#[tokio::test(start_paused = true)]
async fn a_guard_passes_for_a_lease() {
    fn token(lease: &Lease) -> u64 {
        lease.token().get()
    }
    let guard: Guard = Stage::new().actor().acquire().await;
    assert_eq!(token(&guard), guard.pass().token().get());
}

/// L1, L9: work whose lease had been broken, and was held by another one since, counted as done under the lock: that the store said so
/// at the release was only logged.
#[tokio::test(start_paused = true)]
async fn work_whose_lease_is_gone_at_its_release_does_not_count() {
    let stage = Stage::new();
    let actor = stage.actor();
    // No hint has arrived when the work is done.
    let lost = async |done: Result<(), HoldError>| match done {
        Err(HoldError::Lost(lost)) => assert_eq!(lost.cause(), Loss::Taken),
        other => panic!("{other:?}"),
    };
    lost(actor.lock().hold(async |_| stage.break_lock().await).await).await;
    lost(actor.locks.all(["stage", "other"]).hold(async |_| stage.break_lock().await).await).await;
    lost(actor.locks.any(["stage"]).hold(async |_| stage.break_lock().await).await).await;
    let once = actor.locks.once("stage").interval(TTL).even_if_failed();
    let run = once.run(async |_| -> Result<(), ()> {
        stage.break_lock().await;
        Ok(())
    });
    let run = run.await;
    assert!(matches!(run, Err(HoldError::Lost(lost)) if lost.cause() == Loss::Taken), "{run:?}");
    let mut terms = 0;
    let election = actor.locks.election("stage");
    let led = election.lead(async |term| {
        terms += 1;
        if terms == 1 {
            stage.break_lock().await;
        }
        (terms - 1, term.token())
    });
    assert_eq!(in_time(led).await.unwrap().0, 1, "the first term ended without the lead");
}
