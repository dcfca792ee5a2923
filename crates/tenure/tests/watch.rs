//! Looking on while locks change.

#![allow(clippy::disallowed_methods, reason = "tests get their tasks from tokio, under paused time")]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::StreamExt;
#[cfg(feature = "testing")]
use tenure::testing::{Fault, Operation, TestStore};
use tenure::{ErrorKind, view::LockView};
use tenure_testkit::{host::pass, polls::is_pending};

use crate::stage::{Deaf, SOON, Stage, TTL, in_time, ms};

const PERIOD: Duration = Duration::from_secs(1);

fn crowd(view: &LockView) -> (usize, usize) {
    (view.holders.len(), view.queue.len())
}

/// The first view comes at once, the next ones when something has changed, in order; renewals are no change.
#[tokio::test(start_paused = true)]
async fn every_change_that_lasts_is_seen_in_order_and_nothing_else() {
    let stage = Stage::new();
    let (actor, other, onlooker) = (stage.actor(), stage.actor(), stage.actor());
    let mut watch = onlooker.locks.watch("stage");
    let began = stage.clock();
    assert_eq!(crowd(&in_time(watch.next()).await.unwrap()), (0, 0));
    assert!(stage.clock() - began < SOON, "at once");
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 60 {
            let view = in_time(watch.next()).await.unwrap();
            seen.push((view.holders.first().and_then(|held| held.token), view.queue.len()));
        }
        seen
    });
    let mut done = Vec::new();
    while done.len() < 60 {
        let guard = actor.acquire().await;
        pass(PERIOD + SOON).await;
        done.push((Some(guard.token()), 0));
        let waiting = other.waiting();
        stage.settle(1, 1).await;
        pass(PERIOD + SOON).await;
        done.push((Some(guard.token()), 1));
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap();
        pass(PERIOD + SOON).await;
        done.push((Some(guard.token()), 0));
        // It is renewed, and that is no news.
        pass(2 * TTL).await;
        guard.release().await.unwrap();
        pass(PERIOD + SOON).await;
        done.push((None, 0));
    }
    assert_eq!(seen.await.unwrap(), done[..60]);
}

/// One question for all; those that are free again are reported once.
#[tokio::test(start_paused = true)]
async fn all_locks_of_a_prefix_are_watched_by_one_question() {
    let stage = Stage::new();
    let (actor, onlooker) = (stage.actor(), stage.actor());
    let mut watch = onlooker.locks.watch_all("job/");
    assert_eq!(watch.look().await.unwrap(), []);
    let names: Vec<String> = (0..10).map(|n| format!("job/{n}")).collect();
    let guards = actor.locks.all(&names).acquire().await.unwrap();
    let other = actor.locks.mutex("other").acquire().await.unwrap();
    let changed = watch.look().await.unwrap();
    let seen: Vec<&str> = changed.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(seen, names);
    assert_eq!(watch.latest().count(), 10);
    assert_eq!(watch.look().await.unwrap(), []);
    guards.release().await.unwrap();
    let changed = watch.look().await.unwrap();
    assert!(changed.len() == 10 && changed.iter().all(|view| crowd(view) == (0, 0)), "{changed:?}");
    assert_eq!((watch.latest().count(), watch.look().await.unwrap().len()), (0, 0));
    other.release().await.unwrap();
}

/// A period counts from question to question; a future that is dropped loses nothing.
#[tokio::test(start_paused = true)]
async fn the_store_is_asked_once_in_a_period() {
    let stage = Stage::new();
    let (actor, onlooker) = (stage.actor(), stage.actor());
    let mut watch = onlooker.locks.watch("stage").poll_interval(ms(200));
    in_time(watch.next()).await.unwrap();
    let guard = actor.acquire().await;
    let began = stage.clock();
    for _ in 0..5 {
        assert!(is_pending(&mut Box::pin(watch.next())).await);
        pass(ms(10)).await;
    }
    let view = in_time(watch.next()).await.unwrap();
    assert_eq!(view.holders[0].token, Some(guard.token()));
    assert!(stage.clock() - began <= ms(200) + SOON);
    assert!(!view.holders[0].is_this_process && view.name.as_str() == "stage");
    let mut stream = actor.locks.watch("stage").poll_interval(Duration::ZERO);
    assert!(StreamExt::next(&mut stream).await.unwrap().unwrap().holders[0].is_this_process);
    guard.release().await.unwrap();
    assert_eq!(crowd(&in_time(StreamExt::next(&mut stream)).await.unwrap().unwrap()), (0, 0));
}

/// An error is told, and the watch goes on.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_told_and_asked_again() {
    let stage = Stage::new();
    let store = Deaf::new(&stage.store);
    let is_dark = store.is_dark.clone();
    is_dark.store(true, Ordering::SeqCst);
    let onlooker = stage.actor_on(Arc::new(store));
    let mut watch = onlooker.locks.watch("stage");
    for _ in 0..3 {
        assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    is_dark.store(false, Ordering::SeqCst);
    assert_eq!(crowd(&in_time(watch.next()).await.unwrap()), (0, 0));
    let mut bad = onlooker.locks.watch("");
    assert_eq!(bad.next().await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A Redis with five million other keys was walked by each look, without a pause.
#[cfg(feature = "testing")]
#[tokio::test(start_paused = true)]
async fn a_list_that_takes_long_is_asked_for_a_tenth_of_the_time() {
    let store = TestStore::new();
    let (actor, locks) = (store.other_process().locker(), store.locker());
    let guard = actor.mutex("old").acquire().await.unwrap();
    let mut watch = locks.watch_all("");
    store.fail_next_of(Operation::Inspect, 1, Fault::Delay(20 * PERIOD));
    assert_eq!(in_time(watch.look()).await.unwrap().len(), 1);
    assert_eq!(watch.list_interval(), Some(200 * PERIOD));
    let (began, new) = (tokio::time::Instant::now(), actor.mutex("new").acquire().await.unwrap());
    guard.release().await.unwrap();
    let changed = in_time(watch.look()).await.unwrap();
    assert!(changed.len() == 1 && crowd(&changed[0]) == (0, 0), "what is known is followed: {changed:?}");
    let changed = loop {
        let changed = watch.look().await.unwrap();
        if !changed.is_empty() {
            break changed;
        }
    };
    assert_eq!(changed[0].name.as_str(), "new");
    assert!(began.elapsed() >= 150 * PERIOD, "{:?}", began.elapsed());
    assert_eq!(watch.list_interval(), None, "that list was fast");
    new.release().await.unwrap();
}
