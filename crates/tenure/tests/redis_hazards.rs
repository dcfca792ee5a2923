//! Hazards of holding a lock in Redis: first the lock that everybody writes, which they break, then ours.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tenure::ErrorKind;
use tenure::{AcquireError, Guard, Locker, ReleaseError};
use tenure_testkit::{patience::eventually, proxy::Proxy, redis::Raw};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::redis_stage::{
    self, LONG, NAME, Naive, PATIENCE, Stage, acquire, drained, in_time, ms, naive, until, waiting,
};

/// Hazard 12, L1: the reply comes when somebody else holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_comes_when_another_holds_is_not_believed() {
    let stage = Stage::new().await;
    two_naive_holders(&stage);

    let far = stage.far("").await;
    far.proxy.hold_replies();
    let late = waiting(&far.locks, ms(1_000));
    stage.settle(1, 0).await;
    let other = acquire(stage.locks("").await.mutex(NAME).ttl(LONG)).await;
    far.proxy.release();
    // It hears that it was granted, and asks again.
    stage.settle(1, 1).await;
    assert!(!late.is_finished(), "L1");
    assert_eq!(other.check(), Ok(()));
    let token = other.token();
    other.release().await.unwrap();
    let guard = in_time(late).await.unwrap().unwrap();
    assert!(guard.token() > token, "L2");
    stage.assert_no_belief_beyond_the_server(&guard);
}

fn two_naive_holders(stage: &Stage) {
    let proxy = Proxy::to(stage.server.port(), 1);
    let mut late = Naive::to(proxy.port(), "late");
    proxy.hold_replies();
    let late = thread::spawn(move || late.acquire(ms(300)) && late.believes());
    eventually("the first is granted", PATIENCE, || stage.value(naive::KEY));
    let mut next = Naive::to(stage.server.port(), "next");
    eventually("its lease is over", PATIENCE, || next.acquire(LONG).then_some(()));
    proxy.release();
    assert!(late.join().unwrap() && next.believes(), "both believe");
}

/// Hazard 12, H1.1, L1: the reply comes when a part of the lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_believed_from_before_its_request_was_sent() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    let far = stage.far("").await;
    far.proxy.hold_replies();
    let late = waiting(&far.locks, ttl);
    eventually("it is granted", PATIENCE, || stage.held());
    eventually("time passes", PATIENCE, || (stage.left() < ttl - ms(300)).then_some(()));
    far.proxy.release();
    let guard = in_time(late).await.unwrap().unwrap();
    stage.assert_no_belief_beyond_the_server(&guard);
    assert_eq!(guard.check(), Ok(()));
}

/// Hazard 12, hazard 60: the server takes its time before it grants, and the reply comes when nothing may be believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_too_late_to_be_believed_is_given_back() {
    let (stage, pause) = (Stage::new().await, Duration::from_millis(150));
    let far = stage.far("").await;
    let began = Instant::now();
    stage.ask(&["CLIENT", "PAUSE", &naive::millis(pause), "WRITE"]);
    let lock = far.locks.mutex(NAME).ttl(Duration::from_millis(100));
    match in_time(lock.acquire()).await {
        Ok(guard) => stage.assert_no_belief_beyond_the_server(&guard),
        // A busy machine may be too slow for so short a lease three times in a row (hazard 41).
        Err(AcquireError::Store(error)) if error.kind() == ErrorKind::Invalid => {}
        Err(error) => panic!("{error:?}"),
    }
    assert!(began.elapsed() + Duration::from_millis(5) >= pause, "the server did not pause");
    drained(&far.locks).await;
    stage.settle(0, 0).await;
}

/// Hazard 14, H1.2, H1.3, L2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_reply_was_lost_does_not_wait_for_itself() {
    let stage = Stage::new().await;
    let mut naive = Naive::to(stage.server.port(), "me");
    naive.acquire_unheard(LONG);
    assert!(!naive.acquire(LONG), "it takes itself for somebody else");
    assert_eq!(stage.value(naive::KEY).as_deref(), Some("me"));

    let far = stage.far("&response_timeout=300ms&connect_timeout=300ms").await;
    far.proxy.drop_replies();
    let again = waiting(&far.locks, LONG);
    let first = eventually("it is granted", PATIENCE, || stage.held());
    // Those that were made until now stay silent.
    far.proxy.pass_new();
    let guard = in_time(again).await.unwrap().unwrap();
    assert_eq!(guard.owner().to_string(), first.owner);
    assert!(Some(guard.token()) > first.token, "granted again, with a token of its own");
    assert_eq!(stage.held().unwrap().token, Some(guard.token()));
    stage.assert_no_belief_beyond_the_server(&guard);
}

/// Hazard 15, L4, L9: nobody can say whether it was released; the next holder is safe all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_is_unknown_and_frees_nobody_else() {
    let stage = Stage::new().await;
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|owner| Naive::to(stage.server.port(), owner));
    assert!(a.acquire(LONG));
    a.release_unheard();
    eventually("the next one enters", PATIENCE, || b.acquire(LONG).then_some(()));
    assert!(!a.release(), "it is told that it has lost what it has released");
    a.raw.command(&["DEL", naive::KEY]);
    assert!(c.acquire(LONG) && b.believes(), "a plain DEL, tried again, frees the next holder");

    let mut tries = 0;
    let (far, releasing) = loop {
        let far = stage.far("").await;
        let guard = acquire(far.locks.mutex(NAME).ttl(LONG)).await;
        far.proxy.drop_replies();
        let releasing = tokio::spawn(async move { in_time(guard.release()).await });
        while stage.held().is_some() && !releasing.is_finished() {
            tokio::time::sleep(ms(5)).await;
        }
        if stage.held().is_none() {
            break (far, releasing);
        }
        // A busy machine has cost the connection, and no other is made without replies: nothing was released. Then once more.
        tries += 1;
        assert!(tries < 10, "no release gets there");
        far.proxy.heal();
        drained(&far.locks).await;
    };
    let next = acquire(stage.locks("").await.mutex(NAME).ttl(LONG)).await;
    eventually("the reply was dropped", PATIENCE, || (far.proxy.traffic().dropped > 0).then_some(()));
    far.proxy.heal();
    let answer = releasing.await.unwrap();
    assert!(matches!(answer, Err(ReleaseError::Unknown(_))), "{answer:?}");
    // Tried again in the background.
    drained(&far.locks).await;
    assert_eq!(stage.held().unwrap().owner, next.owner().to_string());
    assert_eq!(next.check(), Ok(()));
}

/// Hazard 16, H2.2, L1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_whose_reply_is_slow_counts_from_before_it_was_sent() {
    let stage = Stage::new().await;
    one_naive_holder_too_long(&stage);

    let (ttl, delay) = (ms(3_000), Duration::from_millis(100));
    let far = stage.far("").await;
    let guard = acquire(far.locks.mutex(NAME).ttl(ttl)).await;
    far.proxy.delay(delay..=delay);
    let most = ttl - ttl / 100 - 2 * delay;
    let (mut last, mut renewals) = (guard.remaining(), 0);
    eventually("three renewals were answered", PATIENCE, || {
        let left = guard.remaining();
        if left > last {
            renewals += 1;
            assert!(left <= most, "{left:?} are believed after a round trip of {:?}", 2 * delay);
        }
        last = left;
        stage.assert_no_belief_beyond_the_server(&guard);
        (renewals == 3).then_some(())
    });
    assert_eq!(guard.check(), Ok(()));
}

fn one_naive_holder_too_long(stage: &Stage) {
    let proxy = Proxy::to(stage.server.port(), 1);
    let mut naive = Naive::to(proxy.port(), "me");
    assert!(naive.acquire(LONG));
    proxy.hold_replies();
    let renewing = thread::spawn(move || naive.extend(LONG).then(|| naive.until().unwrap()));
    eventually("it was answered", PATIENCE, || (proxy.traffic().held_replies > 0).then_some(()));
    let left = || Duration::from_millis(stage.ask(&["PTTL", naive::KEY]).int().try_into().unwrap());
    eventually("time passes", PATIENCE, || (left() < LONG - ms(300)).then_some(()));
    proxy.release();
    let until = renewing.join().unwrap().expect("it was extended");
    assert!(until > Instant::now() + left(), "it believes for longer than the server keeps others out");
}

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

/// Blocks all workers of a runtime for so long, as a loop without an await does.
fn block(runtime: &Runtime, workers: usize, time: Duration) {
    let barrier = Arc::new(Barrier::new(workers + 1));
    for _ in 0..workers {
        let barrier = barrier.clone();
        runtime.spawn(async move {
            barrier.wait();
            thread::sleep(time);
            barrier.wait();
        });
    }
    barrier.wait();
    barrier.wait();
}

/// Hazard 24, H2.5, L1: the leases are renewed on a thread of their own.
#[test]
fn a_runtime_that_is_blocked_for_longer_than_the_ttl_does_not_cost_the_lease() {
    let (busy, calm, ttl) = (runtime(2), runtime(1), ms(3_000));
    let stage = calm.block_on(Stage::new());
    let mut naive = Naive::to(stage.server.port(), "me");
    assert!(naive.acquire(ttl));
    let renewing = busy.spawn(async move {
        while naive.extend(ttl) {
            tokio::time::sleep(ttl / 3).await;
        }
    });
    let guard = busy.block_on(async {
        let locks = stage.locks("").await;
        acquire(locks.mutex(NAME).ttl(ttl)).await
    });
    block(&busy, 2, 2 * ttl);
    assert_eq!(stage.value(naive::KEY), None, "lost, and its task has not even run");
    assert_eq!(guard.check(), Ok(()));
    assert_eq!(stage.held().unwrap().token, Some(guard.token()));
    let other = calm.block_on(async { stage.locks("").await.mutex(NAME).try_acquire().await });
    assert!(other.unwrap().is_none());
    calm.block_on(renewing).unwrap();
}

/// Hazard 25: a watchdog outlives the work, unless it is told for how long that may last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_was_leaked_blocks_for_max_hold_and_one_ttl_at_most() {
    let (stage, ttl) = (Stage::new().await, ms(2_000));
    let mut naive = Naive::to(stage.server.port(), "leaked");
    let over = Arc::new(AtomicBool::new(false));
    assert!(naive.acquire(ttl));
    let watchdog = thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::SeqCst) && naive.extend(ttl) {
                thread::sleep(ttl / 10);
            }
        }
    });
    let (began, max_hold) = (Instant::now(), 3 * ttl);
    let lock = stage.locks("").await.mutex(NAME).ttl(ttl).max_hold(max_hold);
    std::mem::forget(acquire(lock).await);
    let next = acquire(stage.locks("").await.mutex(NAME).ttl(ttl)).await;
    let blocked = began.elapsed();
    assert!(blocked > max_hold - ttl, "it was renewed as long as it may be: {blocked:?}");
    assert!(blocked < max_hold + ttl + ms(1_000), "{blocked:?}");
    assert_eq!(next.check(), Ok(()));
    assert_eq!(stage.value(naive::KEY).as_deref(), Some("leaked"), "and for ever");
    over.store(true, Ordering::SeqCst);
    watchdog.join().unwrap();
}

/// Hazard 41, L8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_is_shorter_than_the_round_trip_is_an_error_and_no_livelock() {
    let stage = Stage::new().await;
    let (ttl, delay) = (Duration::from_millis(100), Duration::from_millis(70));
    let far = stage.far("").await;
    let mut naive = Naive::to(far.proxy.port(), "me");
    far.proxy.delay(delay..=delay);
    for round in 0..6 {
        let began = Instant::now();
        assert!(naive.acquire(ttl));
        assert!(began.elapsed() > ttl, "round {round}: granted, too late, and round again");
        naive.release();
    }
    let answer = in_time(far.locks.mutex(NAME).ttl(ttl).acquire()).await;
    let Err(AcquireError::Store(error)) = &answer else { panic!("{answer:?}") };
    assert_eq!(error.kind(), ErrorKind::Invalid, "{answer:?}");
    assert!(error.to_string().contains("longer ttl"), "{error}");
    stage.settle(0, 0).await;
}

/// A guard as many write it: its release is a task.
struct TaskedGuard(Option<Naive>);

impl Drop for TaskedGuard {
    fn drop(&mut self) {
        let mut naive = self.0.take().unwrap();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || naive.release());
        }
    }
}

fn held_on(runtime: &Runtime, stage: &Stage) -> (Locker, Guard) {
    runtime.block_on(async {
        let locks = stage.locks("").await;
        let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
        (locks, guard)
    })
}

/// Hazard 63, L8: dropped by a thread that knows no runtime, after its own was shut down, or by the shutdown itself.
#[test]
fn a_guard_that_is_dropped_without_a_runtime_is_released() {
    let calm = runtime(1);
    let stage = calm.block_on(Stage::new());
    let mut naive = Naive::to(stage.server.port(), "me");
    assert!(naive.acquire(LONG));
    drop(TaskedGuard(Some(naive)));
    let is_free = || stage.held().is_none().then_some(());

    let (_locks, guard) = held_on(&calm, &stage);
    thread::spawn(move || drop(guard)).join().unwrap();
    eventually("a thread has released it", PATIENCE, is_free);

    let gone = runtime(1);
    let (locks, guard) = held_on(&gone, &stage);
    drop((gone, locks));
    assert_eq!(guard.check(), Ok(()));
    drop(guard);
    eventually("it is released after its runtime", PATIENCE, is_free);

    let gone = runtime(1);
    let (_locks, guard) = held_on(&gone, &stage);
    gone.spawn(async move {
        std::future::pending::<()>().await;
        drop(guard);
    });
    drop(gone);
    eventually("it is released by the end of its runtime", PATIENCE, is_free);
    assert_eq!(stage.value(naive::KEY).as_deref(), Some("me"), "nobody has released that of the naive one");
}

/// Hazards 5 and 23, L4: a holder of before comes back and releases, renews, and is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_holder_neither_frees_nor_extends_the_next_one() {
    let stage = Stage::new().await;
    let mut raw = Raw::connect(stage.server.port());
    let former = acquire(stage.locks("").await.mutex(NAME).ttl(LONG)).await;
    let (owner, token) = (former.owner(), former.token());
    raw.command(&["DEL", NAME]);
    let locks = stage.locks("").await;
    let next = acquire(locks.mutex(NAME).ttl(ms(5_000))).await;
    assert!(next.token() > token, "L2");
    let answer = former.release().await;
    assert!(matches!(answer, Err(ReleaseError::AlreadyLost(_))), "{answer:?}");
    let renewed = locks.detached(redis_stage::name(NAME), owner).unwrap().renew(LONG).await.unwrap();
    assert_eq!(renewed, tenure::backend::Renewal::Gone);
    assert!(stage.left() <= ms(5_000));
    assert_eq!(stage.held().unwrap().token, Some(next.token()));
    until("the next one is alone", PATIENCE, async || stage.view().await.unwrap().holders.len() == 1).await;
}
