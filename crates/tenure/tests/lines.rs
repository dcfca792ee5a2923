//! Lines in the process: where a store takes only a few waiters of one process, the others stand behind them.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::sync::{Arc, Mutex};

use tenure::{AcquireError, ErrorKind};
use tenure_testkit::{
    gate::{Gate, Verb},
    host::pass,
    polls::is_pending,
};
use tokio::task::JoinHandle;

use crate::stage::{Actor, Deaf, SOON, Stage, TTL, in_time, ms};

/// Places that a process has in the store.
const PLACES: usize = 3;

/// A process on a store that takes only so many waiters of it.
fn crowded(stage: &Stage) -> Actor {
    let mut store = Deaf::new(&stage.store);
    (store.promises.places, store.hears) = (Some(PLACES), true);
    stage.actor_on(Arc::new(store))
}

/// Waits, notes its number, and leaves.
fn visitor(actor: &Actor, number: usize, order: &Arc<Mutex<Vec<usize>>>) -> JoinHandle<()> {
    let (lock, order) = (actor.lock(), order.clone());
    tokio::spawn(async move {
        let guard = in_time(lock.acquire()).await.unwrap();
        order.lock().unwrap().push(number);
        guard.release().await.unwrap();
    })
}

/// L6, L7: with 4096 tasks of 16 processes, etcd answered nobody, and the holder lost its lease: each of them had a place, and
/// each place was read by all others. All are served in their order, and the store never hears of more than a few.
#[tokio::test(start_paused = true)]
async fn a_crowd_is_served_in_its_order_and_few_have_places() {
    let stage = Stage::new();
    let (actor, order) = (crowded(&stage), Arc::default());
    let guard = actor.acquire().await;
    let mut visitors = Vec::new();
    for number in 0..40 {
        visitors.push(visitor(&actor, number, &order));
        pass(ms(1)).await;
    }
    assert_eq!(stage.crowd().await, (1, PLACES));
    visitors[1].abort();
    visitors[20].abort();
    stage.settle(1, PLACES).await;
    guard.release().await.unwrap();
    for (number, visitor) in visitors.into_iter().enumerate() {
        assert!(stage.crowd().await.1 <= PLACES);
        assert_eq!(visitor.await.is_err(), matches!(number, 1 | 20));
    }
    let expected: Vec<usize> = (0..40).filter(|number| !matches!(number, 1 | 20)).collect();
    assert_eq!(*order.lock().unwrap(), expected);
    assert!(actor.locks.flush(TTL).await && stage.is_free().await);
}

/// L9: who only asks once asks the store, however many stand in line.
#[tokio::test(start_paused = true)]
async fn who_does_not_wait_stands_in_no_line() {
    let stage = Stage::new();
    let actor = crowded(&stage);
    let guard = actor.acquire().await;
    let waiting: Vec<_> = (0..PLACES + 2).map(|_| actor.waiting()).collect();
    stage.settle(1, PLACES).await;
    let asked = actor.gates.asked(Verb::Claim);
    assert!(actor.lock().try_acquire().await.unwrap().is_none());
    assert_eq!(actor.gates.asked(Verb::Claim), asked + 1);
    waiting.iter().for_each(JoinHandle::abort);
    drop(guard);
}

/// A wait in the line lasts as long as was asked, says who holds, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_wait_in_the_line_ends_in_time() {
    let stage = Stage::new();
    let actor = crowded(&stage);
    let guard = actor.acquire().await;
    let waiting: Vec<_> = (0..PLACES).map(|_| actor.waiting()).collect();
    stage.settle(1, PLACES).await;
    let (asked, began) = (actor.gates.asked(Verb::Claim), stage.clock());
    let answer = actor.lock().within(ms(1_500)).acquire().await;
    assert!(stage.clock() - began >= ms(1_500) && stage.clock() - began < ms(1_500) + SOON);
    let Err(AcquireError::TimedOut { waited, ahead, holder: Some(holder) }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((waited.as_millis() / 100, holder.owner), (15, guard.owner().to_string()));
    assert_eq!(ahead, Some(PLACES));
    assert_eq!(actor.gates.asked(Verb::Claim), asked, "it was not asked for");
    assert_eq!(actor.gates.asked(Verb::Release), 0, "whoever was never heard of leaves without the store");
    waiting.iter().for_each(JoinHandle::abort);
}

/// A store that is down is found out once: who stands behind does not try it for another patience each.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_down_for_those_behind() {
    let stage = Stage::new();
    let actor = crowded(&stage);
    let guard = actor.acquire().await;
    let tasks: Vec<JoinHandle<_>> = (0..20)
        .map(|_| {
            let lock = actor.lock();
            tokio::spawn(async move { in_time(lock.acquire()).await })
        })
        .collect();
    stage.settle(1, PLACES).await;
    let began = stage.clock();
    actor.set(Verb::Claim, Gate::Refuse);
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(&error, AcquireError::Store(e) if e.kind() == ErrorKind::Unavailable), "{error:?}");
    }
    assert!(
        stage.clock() - began < ms(40_000),
        "one patience of 30 s, not one after the other: {:?}",
        stage.clock() - began
    );
    // Soon after it serves again, it is tried again.
    actor.set(Verb::Claim, Gate::Open);
    guard.release().await.unwrap();
    pass(ms(5_000)).await;
    actor.acquire().await.release().await.unwrap();
}

/// L6: futures that nobody drives any more do not bar those behind them for ever.
#[tokio::test(start_paused = true)]
async fn who_is_not_driven_any_more_is_passed() {
    let stage = Stage::new();
    let actor = crowded(&stage);
    let guard = actor.acquire().await;
    let lock = actor.lock();
    let mut stuck = Vec::new();
    for _ in 0..PLACES {
        let mut future = Box::pin(lock.acquire());
        assert!(is_pending(&mut future).await);
        stuck.push(future);
    }
    let behind = actor.waiting();
    guard.release().await.unwrap();
    let next = in_time(behind).await.unwrap();
    assert_eq!(next.check(), Ok(()));
    drop(stuck);
}
