//! Hints in rows of the table: holders hear of a break elsewhere, and what is left does not pile up.

use std::time::{Duration, Instant};

use tenure_core::{Audience, BreakScope, WakeEvent};
use tenure_testkit::{clock::Clock, conformance::player::Player, mysql::Recipe, patience::slowness};

use crate::stage::{mysql, player, soon, until};

/// The rows of hints, and how many hints each has.
const ROWS: &str = "SELECT LENGTH(state) DIV 48 FROM tenure_lock WHERE name >= X'01' AND name < X'02'";

/// A holder reads what was left for its process once a second.
#[tokio::test]
async fn a_break_elsewhere_is_heard_within_two_seconds() {
    let server = Recipe::new().start();
    let (a, b) = (player(&server.url(""), "one"), mysql(&server.url("")));
    a.enter().await;
    let mut wakes = a.backend.wakes(a.claim.owner.process(), Audience::Holders);
    for _ in 0..2 {
        let begun = Instant::now();
        assert_eq!(b.break_lock(&a.claim.name, BreakScope::Leases).await.unwrap().len(), 1);
        assert_eq!(soon(wakes.next()).await, WakeEvent::Owner(a.claim.owner));
        assert!(begun.elapsed() < Duration::from_secs(2) * slowness(), "{:?}", begun.elapsed());
        a.enter().await;
    }
}

/// The same through the engine: the guard says that it lost, long before its lease would have ended.
#[tokio::test]
async fn a_guard_hears_that_its_lock_was_broken() {
    let server = Recipe::new().start();
    let locker = tenure::connect(&server.url("")).await.unwrap();
    let held = locker.mutex("one").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    mysql(&server.url("")).break_lock(&"one".parse().unwrap(), BreakScope::Leases).await.unwrap();
    until("it is told", async || held.check().is_err()).await;
}

/// Of a process that nobody listens in, 64 hints are kept; one that listens late is told that it missed some.
#[tokio::test]
async fn hints_are_bounded_and_those_that_are_over_are_said_to_be_missed() {
    let server = Recipe::new().start();
    let (a, b) = (player(&server.url(""), "one"), mysql(&server.url("")));
    let break_it = async || {
        a.enter().await;
        b.break_lock(&a.claim.name, BreakScope::Leases).await.unwrap();
    };
    for _ in 0..70 {
        break_it().await;
    }
    assert_eq!(server.sql(ROWS), "64");
    let mut wakes = a.backend.wakes(a.claim.owner.process(), Audience::Holders);
    assert_eq!(soon(wakes.next()).await, WakeEvent::All, "70 are more than it can know of");
    break_it().await;
    // Behind what was told of those before.
    while soon(wakes.next()).await != WakeEvent::Owner(a.claim.owner) {}
    assert_eq!(server.sql(ROWS), "64");
}

#[tokio::test]
async fn hints_of_a_day_ago_are_swept() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let (a, b) = (player(&server.url(""), "one"), mysql(&server.url("")));
    a.enter().await;
    b.break_lock(&a.claim.name, BreakScope::Leases).await.unwrap();
    assert_eq!(server.sql(ROWS), "1");
    clock.advance(Duration::from_secs(25 * 3600));
    let mut count = 0;
    until("the hints are swept", async || {
        // One new name in 64 sweeps.
        for _ in 0..10 {
            Player::new(b.clone(), &format!("new/{count}")).enter().await;
            count += 1;
        }
        server.sql(ROWS).is_empty()
    })
    .await;
    assert!(b.list("").await.unwrap().iter().all(|view| view.name.as_str().starts_with("new/")));
}
