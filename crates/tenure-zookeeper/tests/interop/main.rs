//! Locks of kazoo and ours on the same path, in both directions. `cargo xtask test` installs kazoo.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]
#![allow(clippy::disallowed_methods, reason = "real servers and processes live in real time")]

mod contention;
mod program;
mod stage;

use std::time::{Duration, Instant};

use program::Kazoo;
use stage::{NAME, PATH, Stage};
use tenure::{
    backend::Released,
    view::{BreakScope, Mode},
};
use tenure_testkit::patience::slowness;

/// After which one of our waiters asks again at the latest.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Theirs is held for all that we have, is shown as somebody's of whom we know nothing, and stays as it is while we wait.
/// Their release wakes us.
#[test]
fn its_lock_is_held_for_us() {
    let stage = Stage::new();
    let mut kazoo = Kazoo::start(&stage.server.address());
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held");
    let theirs = stage.only_node();
    assert!(stage.try_acquire().is_none());
    assert!(stage.wait(stage.locks.rwlock(NAME).read().try_acquire()).unwrap().is_none());
    assert!(stage.wait(stage.locks.semaphore(NAME, 3).try_acquire()).unwrap().is_none());
    assert_eq!(stage.only_node(), theirs, "and nothing was left behind");
    let view = stage.view();
    let holder = &view.holders[0];
    assert_eq!((holder.owner.as_str(), holder.mode), (theirs.0.as_str(), Mode::Exclusive));
    assert_eq!((holder.token, &holder.label, holder.since, holder.expires_in), (None, &None, None, None));

    let waiter = stage.waiter(stage.lock());
    stage.queued(1);
    let released = Instant::now();
    assert_eq!(kazoo.ask("unlock"), "done");
    let guard = stage.wait(waiter).unwrap();
    assert!(released.elapsed() < RETRY_MAX * slowness(), "told, and not found out: {:?}", released.elapsed());
    stage.release(guard);
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held");
}

#[test]
fn our_lock_is_held_for_it_and_our_release_wakes_it() {
    let stage = Stage::new();
    let mut kazoo = Kazoo::start(&stage.server.address());
    let guard = stage.try_acquire().unwrap();
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "busy");
    kazoo.tell(&format!("wait {PATH}"));
    stage.queued(1);
    guard.check().unwrap();
    stage.release(guard);
    assert_eq!(kazoo.answer(Duration::ZERO), "held");
    assert!(stage.try_acquire().is_none());
}

/// It counts our shared nodes as contenders like any other.
#[test]
fn our_readers_keep_it_out_to_the_last() {
    let stage = Stage::new();
    let mut kazoo = Kazoo::start(&stage.server.address());
    let read = stage.locks.rwlock(NAME).read();
    let [first, last] = [(); 2].map(|()| stage.wait(read.try_acquire()).unwrap().unwrap());
    assert_eq!(stage.view().holders.len(), 2);
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "busy");
    stage.release(first);
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "busy", "one is still reading");
    stage.release(last);
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held");
}

/// L7: one line for both.
#[test]
fn all_enter_in_the_order_in_which_they_came() {
    let stage = Stage::new();
    let (mut one, mut two) = (Kazoo::start(&stage.server.address()), Kazoo::start(&stage.server.address()));
    let guard = stage.try_acquire().unwrap();
    one.tell(&format!("wait {PATH}"));
    stage.queued(1);
    let ours = stage.waiter(stage.lock());
    stage.queued(2);
    two.tell(&format!("wait {PATH}"));
    stage.queued(3);
    stage.release(guard);
    assert_eq!(one.answer(Duration::ZERO), "held");
    assert!(!ours.is_finished());
    assert_eq!(one.ask("unlock"), "done");
    let guard = stage.wait(ours).unwrap();
    assert_eq!(stage.view().queue.len(), 1);
    stage.release(guard);
    assert_eq!(two.answer(Duration::ZERO), "held");
}

/// L4: whoever was robbed leaves the lock of the next one alone.
#[test]
fn our_late_release_does_not_free_its_lock() {
    let stage = Stage::new();
    let mut kazoo = Kazoo::start(&stage.server.address());
    let guard = stage.try_acquire().unwrap();
    let owner = stage.wait(guard.detach()).unwrap().owner();
    assert_eq!(stage.wait(stage.locks.force_release(NAME)).unwrap().len(), 1);
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held");
    let theirs = stage.only_node();
    let released = stage.wait(stage.locks.detached(NAME, owner).unwrap().release()).unwrap();
    assert_eq!(released, Released::WasGone);
    assert_eq!(stage.only_node(), theirs);
    assert_eq!(kazoo.ask("unlock"), "done");
}

/// A person may take a lock of theirs away: the node is gone, and the next one enters.
#[test]
fn its_lock_can_be_broken() {
    let stage = Stage::new();
    let mut kazoo = Kazoo::start(&stage.server.address());
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held");
    let theirs = stage.only_node().0;
    let waiter = stage.waiter(stage.lock());
    stage.queued(1);
    let refused = stage.wait(stage.locks.force_release(NAME)).unwrap_err();
    assert!(refused.to_string().contains("not Tenure"), "{refused}");
    let robbed = stage.wait(stage.locks.force_release_from(NAME, BreakScope::All)).unwrap();
    assert_eq!(robbed[0].owner, theirs);
    stage.release(stage.wait(waiter).unwrap());
}

/// L1: kazoo counts only nodes that are named as its own: with the layout of Curator both sides were let in, and nothing said so.
#[test]
fn with_another_layout_its_lock_is_refused_shown_and_found() {
    let stage = Stage::new();
    let other = stage.wait(tenure::connect(&stage.server.url(""))).unwrap();
    let guard = stage.wait(other.mutex(NAME).acquire()).unwrap();
    let waiting = stage.runtime.spawn({
        let lock = other.mutex(NAME);
        async move { format!("{:?}", lock.acquire().await.map(drop).unwrap_err()) }
    });
    stage.queued(1);
    let mut kazoo = Kazoo::start(&stage.server.address());
    assert_eq!(kazoo.ask(&format!("try {PATH}")), "held", "it counts none of ours");
    let mixed =
        |words: &str| assert!(words.contains("a client with another layout uses this lock"), "{words}");
    mixed(&stage.wait(waiting).unwrap());
    for wanted in [other.mutex(NAME), other.semaphore(NAME, 3)] {
        mixed(&format!("{:?}", stage.wait(wanted.acquire()).unwrap_err()));
        mixed(&format!("{:?}", stage.wait(wanted.try_acquire()).unwrap_err()));
    }
    stage.release(guard);
    let theirs = stage.only_node().0;
    mixed(&format!("{:?}", stage.wait(other.mutex(NAME).try_acquire()).unwrap_err()));
    assert_eq!(stage.only_node().0, theirs, "and nothing was left behind");

    let shown = stage.wait(other.inspect(NAME)).unwrap().holders[0].owner.clone();
    assert_eq!(shown, format!("{theirs}, of a client with another layout, which does not wait for Tenure"));
    assert_eq!(stage.view().holders[0].owner, theirs, "with its own layout it is one like any other");
    let found = |locks: &tenure::Locker| -> Vec<String> {
        let findings = stage.wait(locks.diagnose()).unwrap();
        findings.into_iter().map(|found| format!("{:?} {}", found.severity, found.what)).collect()
    };
    let has = |lines: &[String]| {
        lines.iter().any(|line| line.contains("Problem 1 locks have nodes of clients with another layout"))
    };
    let (same, mixed) = (found(&stage.locks), found(&other));
    assert!(!has(&same) && has(&mixed), "{same:?} {mixed:?}");

    assert_eq!(kazoo.ask("unlock"), "done");
    stage.release(stage.wait(other.mutex(NAME).acquire()).unwrap());
    assert!(!has(&found(&other)));
}
