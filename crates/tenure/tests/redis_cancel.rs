//! Acquisitions, releases and runtimes that end halfway, on a real Redis; and many tasks that do not.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tenure::{Guard, Lock, Locker};
use tenure_testkit::{patience::eventually, polls::dropped_after, proxy::Proxy};
use tokio::runtime::{Builder, Runtime};

use crate::redis_stage::{
    LONG, NAME, PATIENCE, Stage, TOLD, acquire, connect, drained, entry, in_time, ms, name, until, waiting,
};

/// A place in the queue lives for no longer than this.
const PLACE: Duration = Duration::from_secs(6);

/// L8: what was dropped is gone as soon as it is drained. But for a claim that the machine delayed until after its
/// withdrawal (hazard 17): that is rare, and over when its lease or its place is.
async fn nothing_is_left_behind(stage: &Stage, locks: &Locker, prefix: &str, life: Duration) {
    drained(locks).await;
    let left = async || stage.watcher.list(prefix).await.unwrap().len();
    let is_clean = async |late, patience| {
        until(&format!("{late} are left of {prefix}"), patience, async || left().await <= late).await;
    };
    is_clean(1, Duration::from_millis(700)).await;
    is_clean(0, life).await;
}

/// Polls an acquisition so often and drops it, or the guard that it had by then.
async fn drop_acquisition(lock: Lock, polls: usize) -> bool {
    let acquiring = tokio::time::timeout(ms(40), lock.acquire());
    matches!(dropped_after(polls, acquiring).await, Some(Ok(_)))
}

/// L8, H1.8, hazard 33: an acquisition of a free lock may be dropped wherever it awaits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_of_a_free_lock_that_is_dropped_anywhere_leaves_nothing_behind() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    let locks = stage.locks("").await;
    let mut entered = 0;
    for round in 0..20 {
        for polls in 0..8 {
            let lock = locks.mutex(format!("free/{round}/{polls}")).ttl(ttl);
            entered += usize::from(drop_acquisition(lock, polls).await);
        }
    }
    assert!(entered > 20 && entered < 140, "{entered}");
    nothing_is_left_behind(&stage, &locks, "free/", ttl).await;
}

/// L8: so may the first one of a process, which connects, and tells the server that it listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_that_is_dropped_while_it_connects_leaves_nothing_behind() {
    let (stage, ttl) = (Stage::new().await, ms(3_000));
    for protocol in ["&protocol=3", "&protocol=2"] {
        let mut entered = 0;
        for polls in 0..24 {
            let locks = stage.locks(protocol).await;
            let key = format!("first/{polls}");
            entered += usize::from(drop_acquisition(locks.mutex(&key).ttl(ttl), polls).await);
            // Whatever was left half-done, the next one goes on with it.
            drop(acquire(locks.mutex(&key).ttl(ttl)).await);
            drained(&locks).await;
        }
        assert!(entered < 24, "{entered}");
        nothing_is_left_behind(&stage, &stage.watcher, "first/", ttl).await;
    }
}

/// L8, H1.8: the same where somebody holds, and hands the lock on to whoever waits, or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_dropped_anywhere_leaves_the_queue() {
    let (stage, ttl) = (Stage::new().await, ms(2_000));
    let (locks, other) = (stage.locks("").await, stage.locks("").await);
    for leaves in [true, false] {
        let mut guards = Vec::new();
        for polls in 0..24 {
            let key = format!("held/{leaves}/{polls}");
            let guard = acquire(other.mutex(&key).ttl(LONG)).await;
            let dropping = drop_acquisition(locks.mutex(&key).ttl(ttl), polls);
            if leaves {
                let leaving = async {
                    tokio::time::sleep(Duration::from_micros(300 * polls as u64)).await;
                    guard.release().await.unwrap();
                };
                tokio::join!(dropping, leaving);
            } else {
                assert!(!dropping.await, "L1");
                guards.push(guard);
            }
        }
        drained(&locks).await;
        until("no queue is left", PLACE + Duration::from_millis(500), async || {
            let held = stage.watcher.list(&format!("held/{leaves}/")).await.unwrap();
            held.len() == guards.len() && held.iter().all(|view| view.queue.is_empty())
        })
        .await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()), "the holder was hurt");
    }
}

/// L8: so may a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_dropped_anywhere_leaves_nothing_behind() {
    let (stage, ttl) = (Stage::new().await, LONG);
    let locks = stage.locks("").await;
    let mut done = 0;
    for polls in 0..12 {
        let guard = acquire(locks.mutex(format!("release/{polls}")).ttl(ttl)).await;
        done += usize::from(dropped_after(polls, guard.release()).await.is_some());
    }
    assert!(done > 0 && done < 12, "{done}");
    drained(&locks).await;
    until("all are free", PATIENCE, async || stage.watcher.list("release/").await.unwrap().is_empty()).await;
}

/// Chance from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// Up to so many ms.
    fn pause(&mut self, ms: u64) -> Duration {
        Duration::from_micros(self.below(ms * 1_000))
    }
}

/// L8, L1, hazard 33: many at once, each dropped at a moment that nobody chose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_and_releases_that_are_dropped_at_any_time_leave_nothing_behind() {
    let (stage, ttl) = (Stage::new().await, ms(2_000));
    let processes = [stage.locks("").await, stage.locks("").await];
    let holding: Arc<[AtomicU64; 3]> = Arc::default();
    let visitors: Vec<_> = (0..60)
        .map(|seed| {
            let (locks, holding) = (processes[seed % 2].clone(), holding.clone());
            tokio::spawn(async move {
                let (mut dice, mut entered) = (Dice(seed as u64 * 7_919 + 1), 0);
                for _ in 0..5 {
                    entered += usize::from(visit(&locks, &holding[..], &mut dice, ttl).await);
                }
                entered
            })
        })
        .collect();
    let mut entered = 0;
    for visitor in visitors {
        entered += in_time(visitor).await.unwrap();
    }
    assert!(entered > 0 && entered < 300, "{entered} of 300 have entered");
    // Each still gives back what it was granted.
    for locks in &processes {
        drained(locks).await;
    }
    for locks in &processes {
        nothing_is_left_behind(&stage, locks, "random/", ttl.max(PLACE)).await;
    }
}

async fn visit(locks: &Locker, holding: &[AtomicU64], dice: &mut Dice, ttl: Duration) -> bool {
    let which = dice.below(3);
    let lock = locks.mutex(format!("random/{which}")).ttl(ttl);
    let Ok(answer) = tokio::time::timeout(dice.pause(200), lock.acquire()).await else { return false };
    let guard = answer.unwrap();
    let inside = &holding[usize::try_from(which).unwrap()];
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "L1");
    tokio::time::sleep(dice.pause(2)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    match dice.below(3) {
        0 => drop(guard),
        1 => drop(tokio::time::timeout(dice.pause(2), guard.release()).await),
        _ => guard.release().await.unwrap(),
    }
    true
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A connection of a runtime that is gone is replaced: a Locker outlives runtimes.
#[test]
fn a_locker_works_on_one_runtime_after_another() {
    let calm = runtime();
    let stage = calm.block_on(Stage::new());
    for protocol in ["&protocol=3", "&protocol=2"] {
        let locks = calm.block_on(stage.locks(protocol));
        let held = calm.block_on(acquire(stage.watcher.mutex("kept").ttl(LONG)));
        for round in 0..3 {
            let runtime = runtime();
            runtime.block_on(async {
                let began = Instant::now();
                let guard = acquire(locks.mutex(NAME).ttl(LONG)).await;
                assert!(began.elapsed() < ms(1_500), "{protocol}, round {round}: {:?}", began.elapsed());
                let next = waiting(&locks, LONG);
                stage_settles(&stage).await;
                guard.release().await.unwrap();
                let (next, took) = entry(next).await;
                assert!(took < TOLD, "{protocol}, round {round}: {took:?}");
                next.release().await.unwrap();
            });
        }
        assert_eq!(held.check(), Ok(()), "renewed by the keeper, whatever the runtimes do");
        drop(held);
        eventually("it is released", PATIENCE, || stage.value("kept").is_none().then_some(()));
    }
}

/// One holds and one waits, as the raw keys tell: the watcher belongs to another runtime.
async fn stage_settles(stage: &Stage) {
    let queue = format!("tenure:{{{NAME}}}:queue:{NAME}");
    until("one waits", PATIENCE, async || stage.ask(&["ZCARD", &queue]).int() == 1).await;
}

/// For programs without a runtime.
#[test]
fn blocking_locks_exclude_and_are_released() {
    let stage = runtime().block_on(Stage::new());
    let url = stage.server.url("?guard=off");
    let (locks, other) = (tenure::blocking::connect(&url).unwrap(), tenure::blocking::connect(&url).unwrap());
    let lock = |locks: &tenure::blocking::Locker| locks.mutex(NAME).with(|lock| lock.ttl(LONG));
    let guard = lock(&locks).acquire().unwrap();
    assert!(lock(&other).try_acquire().unwrap().is_none());
    assert!(lock(&other).within(Duration::from_millis(50)).acquire().is_err());
    let waiting = thread::spawn({
        let lock = lock(&other);
        move || lock.acquire().unwrap()
    });
    let queue = format!("tenure:{{{NAME}}}:queue:{NAME}");
    eventually("it waits", PATIENCE, || (stage.ask(&["ZCARD", &queue]).int() == 1).then_some(()));
    let (token, began) = (guard.token(), Instant::now());
    guard.release().unwrap();
    let next = waiting.join().unwrap();
    assert!(began.elapsed() < TOLD, "{:?}", began.elapsed());
    assert!(next.token() > token, "L2");
    drop(next);
    eventually("a dropped guard is released", PATIENCE, || stage.held().is_none().then_some(()));
}

/// L1: thirty tasks of two processes add to a counter that nothing else protects, a hundred times each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_of_an_unprotected_counter_is_lost_under_the_lock() {
    let stage = Stage::new().await;
    let processes = [stage.locks("").await, stage.locks("").await];
    let counter = Arc::<AtomicU64>::default();
    let tasks: Vec<_> = (0..30)
        .map(|number| {
            let (lock, counter) = (processes[number % 2].mutex(NAME), counter.clone());
            tokio::spawn(async move {
                for _ in 0..100 {
                    let guard: Guard = lock.acquire().await.unwrap();
                    let seen = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 3_000);
    assert!(stage.watcher.inspect(&name(NAME)).await.unwrap().holders.is_empty());
}

/// Hazard 17, H1.9: the network delivers a claim after the withdrawal that came over another connection. Nothing can prevent
/// that; it costs one ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_arrives_after_its_withdrawal_blocks_for_one_ttl_at_most() {
    let (stage, ttl) = (Stage::new().await, ms(1_000));
    // Its connection is there, the server knows the scripts, and nothing was ever released in the background.
    acquire(stage.watcher.mutex(NAME)).await.release().await.unwrap();
    let proxy = Proxy::to(stage.server.port(), 1);
    let locks = connect(proxy.port(), "").await;
    locks.inspect(&name(NAME)).await.unwrap();
    proxy.hold_requests();
    proxy.pass_new();
    let lock = locks.mutex(NAME).ttl(ttl);
    let claim = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
    eventually("it is on its way", PATIENCE, || (proxy.traffic().held_requests > 0).then_some(()));
    claim.abort();
    assert!(claim.await.unwrap_err().is_cancelled());
    drained(&locks).await;
    proxy.release();
    stage.settle(1, 0).await;
    let arrived = Instant::now();
    assert!(stage.left() <= ttl);
    let next = acquire(stage.locks("").await.mutex(NAME)).await;
    assert!(arrived.elapsed() <= ttl + ms(500), "{:?}", arrived.elapsed());
    assert_eq!(next.check(), Ok(()));
}
