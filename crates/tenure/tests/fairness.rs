//! Who asks for a lock is not passed by one that asks again immediately: on every store, on servers that are set as by default, where a
//! commit waits for the disk.

#![allow(clippy::disallowed_methods, reason = "a server lives in real time")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::try_join_all;
use tenure::{Lock, Locker, ReleaseError, backend::TokioHost};
use tenure_memory::Memory;
use tenure_testkit::patience::{becomes, slowness};

const LOCKERS: [usize; 4] = [2, 3, 4, 16];
/// Of all lockers together, at least.
const TURNS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);
/// How often one locker may enter between asking and entering of another one, where the store keeps a queue. Before the store has
/// heard of that one a few turns may pass; afterwards one.
const QUEUED: usize = 20;
/// The same where the store promises no order, or lets one of its clients write for some milliseconds while others sleep.
const UNORDERED: usize = 500;

async fn enters(lock: &Lock) -> tenure::Guard {
    lock.clone().within(PATIENCE * slowness()).acquire().await.unwrap()
}

/// Each of the lockers takes the lock, gives it back and takes it again, until all have had their turns.
async fn nobody_is_passed(locks: &[Lock], most: usize) {
    // A locker that has been in has its connections.
    for lock in locks {
        enters(lock).await.release().await.unwrap();
    }
    let (turns, each) = (Arc::new(Mutex::new(vec![0_usize; locks.len()])), TURNS.div_ceil(locks.len()));
    let passes = |(at, lock): (usize, &Lock)| {
        let (lock, turns) = (lock.clone(), turns.clone());
        // In a task of its own, or one that finds all ready would keep the others from running.
        tokio::spawn(async move {
            let had = || turns.lock().unwrap().clone();
            while had().iter().any(|turns| *turns < each) {
                // Tokio makes a task give way after 128 operations: not between `asked` and the claim, which would count turns of
                // others that came before it.
                if had()[at].is_multiple_of(32) {
                    tokio::task::yield_now().await;
                }
                let asked = had();
                let guard = enters(&lock).await;
                let now = had();
                for other in (0..now.len()).filter(|other| *other != at) {
                    let passed = now[other] - asked[other];
                    let is_fair = passed <= most * usize::try_from(slowness()).unwrap();
                    assert!(is_fair, "{at} was passed by {other} {passed} times: {now:?}");
                }
                turns.lock().unwrap()[at] += 1;
                // On a busy machine a release may be sent twice, and then it is not known which one found the lease.
                if let Err(error) = guard.release().await {
                    assert!(matches!(error, ReleaseError::Unknown(_)), "{error}");
                }
            }
        })
    };
    // The first one that fails ends all.
    try_join_all(locks.iter().enumerate().map(passes)).await.unwrap();
}

/// One holds, the others come one after the other, and enter in that order.
async fn all_enter_in_their_order(lockers: &[Locker]) {
    let name = format!("order/{}", lockers.len());
    let entered = Arc::new(Mutex::new(Vec::new()));
    let held = enters(&lockers[0].mutex(&name)).await;
    let mut waiters = Vec::new();
    for (at, locker) in lockers.iter().enumerate().skip(1) {
        let (lock, entered) = (locker.mutex(&name), entered.clone());
        waiters.push(tokio::spawn(async move {
            let guard = enters(&lock).await;
            entered.lock().unwrap().push(at);
            guard.release().await.unwrap();
        }));
        let waits = async || (lockers[0].inspect(&name).await.unwrap().queue.len() == at).then_some(());
        becomes("it has its place", PATIENCE, waits).await;
    }
    held.release().await.unwrap();
    try_join_all(waiters).await.unwrap();
    assert_eq!(*entered.lock().unwrap(), (1..lockers.len()).collect::<Vec<_>>());
}

/// L6, L7. On PostgreSQL one of two lockers had 345 turns and the other one 7, and of a reader and a writer 617 and 2: a claim that came
/// lost every comparison to the one that came again. All tests of an order had servers that wait for no disk.
async fn is_fair(connect: impl AsyncFn() -> Locker, most: usize, is_ordered: bool) {
    let mut all = Vec::new();
    for _ in 0..LOCKERS.into_iter().max().unwrap() {
        all.push(connect().await);
    }
    for count in LOCKERS {
        let lockers = &all[..count];
        let locks = |lock: fn(usize, &Locker) -> Lock| -> Vec<Lock> {
            lockers.iter().enumerate().map(|(at, locker)| lock(at, locker)).collect()
        };
        nobody_is_passed(&locks(|_, locker| locker.mutex("hot")), most).await;
        if is_ordered {
            all_enter_in_their_order(lockers).await;
        }
        // A quorum has no read locks.
        if is_ordered && count < 16 {
            let mixed = |at: usize, locker: &Locker| match locker.rwlock("mixed") {
                lock if at.is_multiple_of(2) => lock.read(),
                lock => lock.write(),
            };
            nobody_is_passed(&locks(mixed), most).await;
        }
    }
}

#[tokio::test]
async fn memory_is_fair() {
    let host = Arc::new(TokioHost);
    let store = Memory::new(host.clone());
    is_fair(async || Locker::new(Arc::new(store.clone()), host.clone()), QUEUED, true).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_is_fair() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/locks.db?claim_ttl=6s", folder.path().display());
    is_fair(async || tenure::connect(&url).await.unwrap(), UNORDERED, true).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_is_fair() {
    let server = tenure_testkit::redis::RedisServer::start();
    let url = server.url("?guard=off&claim_ttl=6s");
    is_fair(async || tenure::connect(&url).await.unwrap(), QUEUED, true).await;
}

#[cfg(feature = "redlock")]
#[tokio::test]
async fn a_quorum_is_fair() {
    let servers: Vec<_> = (0..5).map(|_| tenure_testkit::redis::RedisServer::start()).collect();
    let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
    let url = format!("redlock:{}?guard=off", nodes.join(","));
    is_fair(async || tenure::connect(&url).await.unwrap(), UNORDERED, false).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres_is_fair() {
    let server = tenure_testkit::postgres::Recipe::new().durable().start();
    let url = server.url("?claim_ttl=6s");
    is_fair(async || tenure::connect(&url).await.unwrap(), QUEUED, true).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn mysql_is_fair() {
    let server = tenure_testkit::mysql::Recipe::new().durable().start();
    let url = server.url("?claim_ttl=6s");
    is_fair(async || tenure::connect(&url).await.unwrap(), QUEUED, true).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn zookeeper_is_fair() {
    let server = tenure_testkit::zookeeper::ZooKeeperServer::durable();
    let url = server.url("");
    is_fair(async || tenure::connect(&url).await.unwrap(), QUEUED, true).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn etcd_is_fair() {
    let server = tenure_testkit::etcd::Recipe::new().durable().start();
    let url = server.url("");
    is_fair(async || tenure::connect(&url).await.unwrap(), QUEUED, true).await;
}
