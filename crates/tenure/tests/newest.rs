//! Of the waiters that give way to a newer one, the newest goes on waiting. A holder is asked to stop, and releases by itself.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::time::Duration;

use tenure::{AcquireError, ConfigError, Guard, Lock, Loss};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::is_pending,
};
use tokio::task::JoinHandle;

use crate::stage::{Actor, Deaf, RETRY_MAX, SOON, Stage, TTL, in_time, ms};

type Waiting = JoinHandle<Result<Guard, AcquireError>>;

fn waits(lock: Lock) -> Waiting {
    tokio::spawn(async move { lock.acquire().await })
}

/// Asserts that it ends soon because a newer one has come.
async fn gives_way(waiting: Waiting) {
    let gave_way = in_time(waiting).await.unwrap().unwrap_err();
    assert!(matches!(gave_way, AcquireError::GaveWay { .. }) && !gave_way.is_busy(), "{gave_way}");
}

/// L7: a waiter that does not give way keeps its turn, before and behind those that do.
#[tokio::test(start_paused = true)]
async fn the_newest_goes_on_and_others_keep_their_turns() {
    let stage = Stage::new();
    let actors: Vec<Actor> = (0..6).map(|_| stage.actor()).collect();
    let holder = actors[0].acquire().await;
    let plain = waits(actors[1].lock());
    stage.settle(1, 1).await;
    let older = waits(actors[2].lock().latest());
    stage.settle(1, 2).await;
    let other = waits(actors[3].lock());
    stage.settle(1, 3).await;
    let newer = waits(actors[4].lock().replace());
    pass(RETRY_MAX).await;
    gives_way(older).await;
    stage.settle(1, 3).await;
    let newest = waits(actors[5].lock().latest());
    pass(RETRY_MAX).await;
    gives_way(newer).await;
    holder.release().await.unwrap();
    for next in [plain, other, newest] {
        in_time(next).await.unwrap().unwrap().release().await.unwrap();
    }
    assert!(stage.is_free().await);
}

/// A waiter whose turn comes before it has looked does not begin.
#[tokio::test(start_paused = true)]
async fn one_that_is_granted_looks_once_more() {
    let stage = Stage::new();
    let [holder, older, newer] = [0; 3].map(|_| stage.actor());
    let guard = holder.acquire().await;
    let older = waits(older.lock().latest());
    stage.settle(1, 1).await;
    pass(SOON).await;
    let newer = waits(newer.lock().latest());
    stage.settle(1, 2).await;
    guard.release().await.unwrap();
    gives_way(older).await;
    in_time(newer).await.unwrap().unwrap().release().await.unwrap();
    assert!(stage.is_free().await);
}

/// L1: the holder has the lock for as long as it likes, and learns who asks.
#[tokio::test(start_paused = true)]
async fn a_holder_is_asked_and_stops_by_itself() {
    let stage = Stage::new();
    let [holder, latest, newer] = [0; 3].map(|_| stage.actor());
    let guard = holder.acquire().await;
    let lease = guard.lease();
    let mut asked = Box::pin(lease.asked_to_stop());
    assert!(is_pending(&mut asked).await);
    // One that only waits asks nothing of the holder.
    let latest = waits(latest.lock().latest());
    pass(TTL).await;
    assert!(is_pending(&mut asked).await);
    let newer = waits(newer.lock().replace());
    let by = in_time(&mut asked).await.unwrap();
    assert!(by.label.is_some_and(|label| label.replaces));
    gives_way(latest).await;
    pass(3 * TTL).await;
    guard.check().unwrap();
    // Asked again, for as long as the other waits.
    in_time(guard.asked_to_stop()).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(lease.asked_to_stop().await.unwrap_err().cause(), Loss::Released);
    in_time(newer).await.unwrap().unwrap().release().await.unwrap();
}

/// A hint makes the holder look; without one, it looks once in a third of its ttl.
#[tokio::test(start_paused = true)]
async fn a_holder_is_asked_soon_and_looks_rarely() {
    let stage = Stage::new();
    let [holder, newer] = [0; 2].map(|_| stage.actor());
    let guard = holder.acquire().await;
    let mut asked = Box::pin(guard.asked_to_stop());
    assert!(is_pending(&mut asked).await);
    let before = holder.gates.asked(Verb::Inspect);
    let minute = Duration::from_secs(60);
    for _ in 0..600 {
        pass(minute / 600).await;
        assert!(is_pending(&mut asked).await);
    }
    let looks = holder.gates.asked(Verb::Inspect) - before;
    assert!((15..=21).contains(&looks), "{looks} in a minute, with a ttl of 10 s");
    let began = stage.clock();
    let newer = waits(newer.lock().replace());
    in_time(&mut asked).await.unwrap();
    assert!(stage.clock() - began < ms(100), "by a hint, and not after a third of the ttl");
    newer.abort();
}

/// L8: a caller that leaves during the last look leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_drop_during_the_last_look_releases_the_lock() {
    let stage = Stage::new();
    let [holder, waiter] = [0; 2].map(|_| stage.actor());
    let guard = holder.acquire().await;
    let lock = waiter.lock().latest();
    let waiting = waits(lock);
    stage.settle(1, 1).await;
    pass(SOON).await;
    waiter.gates.plan(Verb::Inspect, &[], Gate::Hang);
    guard.release().await.unwrap();
    pass(ms(100)).await;
    assert_eq!(stage.crowd().await, (1, 0), "granted, and looking");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert!(waiter.locks.flush(TTL).await && stage.is_free().await);
}

/// A store that hangs after the grant does not keep the caller for longer than it would wait, nor until the lease is lost.
#[tokio::test(start_paused = true)]
async fn the_last_look_is_short() {
    let stage = Stage::new();
    for (within, most) in [(None, ms(1_100)), (Some(ms(500)), ms(501))] {
        let [holder, waiter] = [0; 2].map(|_| stage.actor());
        let guard = holder.acquire().await;
        let lock = waiter.lock().latest();
        let waiting = waits(within.map_or_else(|| lock.clone(), |within| lock.clone().within(within)));
        let began = stage.clock();
        stage.settle(1, 1).await;
        pass(SOON).await;
        waiter.gates.plan(Verb::Inspect, &[], Gate::Hang);
        guard.release().await.unwrap();
        let next = in_time(waiting).await.unwrap().unwrap();
        assert!(stage.clock() - began <= most, "{:?}", stage.clock() - began);
        next.check().unwrap();
        next.release().await.unwrap();
    }
}

/// L6: a store that shows nothing lets both work: no lock depends on what a client wants.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_keeps_nobody_from_the_lock() {
    let stage = Stage::new();
    let [holder, waiter] = [0; 2].map(|_| stage.actor());
    let guard = holder.acquire().await;
    [&holder, &waiter].iter().for_each(|actor| actor.gates.plan(Verb::Inspect, &[], Gate::Refuse));
    let mut asked = Box::pin(guard.asked_to_stop());
    let waiter = waits(waiter.lock().replace());
    pass(TTL).await;
    assert!(is_pending(&mut asked).await);
    drop(asked);
    guard.release().await.unwrap();
    in_time(waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// Where a claim that asks once leaves no place, there is nothing to give way to.
#[tokio::test(start_paused = true)]
async fn what_has_no_newest_is_refused() {
    let stage = Stage::new();
    let actor = stage.actor();
    let locks = &actor.locks;
    let refused = |error: AcquireError| matches!(error, AcquireError::Config(ConfigError::NotNewest { .. }));
    for lock in [
        locks.rwlock("stage").read().latest(),
        locks.semaphore("stage", 2).replace(),
        locks.mutex("stage").keep_idle(TTL).latest(),
        locks.mutex("stage").owner(locks.new_owner()).replace(),
    ] {
        assert!(refused(lock.acquire().await.unwrap_err()));
    }
    assert!(refused(locks.all(["a", "b"]).with(Lock::latest).acquire().await.unwrap_err()));
    assert!(refused(locks.any(["a", "b"]).with(Lock::replace).acquire().await.unwrap_err()));
    let mut unordered = Deaf::new(&stage.store);
    unordered.promises.order = tenure::backend::Order::Any;
    let unordered = stage.actor_on(std::sync::Arc::new(unordered));
    assert!(refused(unordered.lock().latest().acquire().await.unwrap_err()));
    let guard = actor.lock().replace().try_acquire().await.unwrap().unwrap();
    assert!(stage.actor().lock().latest().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}
