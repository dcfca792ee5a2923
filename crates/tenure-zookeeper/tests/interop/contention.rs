//! Three of theirs and three of ours want one lock for ten seconds, and a referee sees who is inside.
//!
//! The referee is a node beside the lock, made and deleted over other connections than those that lock: whoever enters must
//! find none, whoever leaves must find its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tenure::Locker;
use tokio::time::sleep;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{
    program::Kazoo,
    stage::{NAME, PATH, Stage},
};

/// Given, not awaited: for so long they contend.
const ROUND: Duration = Duration::from_secs(10);
/// Of each side.
const CONTENDERS: usize = 3;
/// So many entries of each side, or it was no contention.
const ENOUGH: u64 = 10;
const INSIDE: &str = "/inside";

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    entries: u64,
    violations: u64,
}

/// L1, L2.
#[test]
fn there_are_never_two_holders() {
    let stage = Stage::new();
    let mut theirs: Vec<_> = (0..CONTENDERS).map(|_| Kazoo::start(&stage.server.address())).collect();
    let newest = Arc::new(AtomicU64::new(0));
    let start = |_| {
        let (locks, client) = (stage.another(), stage.raw());
        stage.runtime.spawn(contend(locks, client, newest.clone()))
    };
    let ours: Vec<_> = (0..CONTENDERS).map(start).collect();
    for program in &mut theirs {
        program.tell(&format!("contend {PATH} {} {INSIDE}", ROUND.as_millis()));
    }
    let ours = sum(ours.into_iter().map(|task| stage.wait(task).unwrap()));
    let theirs = sum(theirs.iter().map(|program| {
        let answer = program.answer(ROUND);
        let (entries, violations) = answer.split_once(' ').expect("two numbers");
        Tally { entries: entries.parse().unwrap(), violations: violations.parse().unwrap() }
    }));
    println!("ours {ours:?}, theirs {theirs:?}");
    assert_eq!((ours.violations, theirs.violations), (0, 0));
    assert!(ours.entries >= ENOUGH && theirs.entries >= ENOUGH, "{ours:?} {theirs:?}");
    let view = stage.view();
    assert!(view.holders.is_empty() && view.queue.is_empty(), "in the end nobody holds: {view:?}");
}

fn sum(tallies: impl Iterator<Item = Tally>) -> Tally {
    tallies.fold(Tally::default(), |all, one| Tally {
        entries: all.entries + one.entries,
        violations: all.violations + one.violations,
    })
}

async fn contend(locks: Locker, referee: Client, newest: Arc<AtomicU64>) -> Tally {
    let (lock, mut tally, started) = (locks.mutex(NAME), Tally::default(), Instant::now());
    while started.elapsed() < ROUND {
        let guard = lock.acquire().await.unwrap();
        // L2: also with strangers in between, every token is larger than all before.
        let token = guard.token().get();
        assert!(newest.fetch_max(token, Ordering::SeqCst) < token);
        let open = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        tally.violations += u64::from(referee.create(INSIDE, b"", &open).await.is_err());
        sleep(Duration::from_millis(1 + tally.entries % 5)).await;
        tally.violations += u64::from(referee.delete(INSIDE, None).await.is_err());
        tally.entries += 1;
        guard.release().await.unwrap();
        sleep(Duration::from_millis(tally.entries * 7 % 21)).await;
    }
    tally
}
