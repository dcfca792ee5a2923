//! A program may have several runtimes. What all of them rely on lives in none of them.

use std::{
    thread,
    time::{Duration, Instant},
};

use tenure::Locker;
use tenure_testkit::{etcd::EtcdServer, patience::slowness};
use tokio::runtime::{Builder, Runtime};

use crate::stage::locker;

/// A waiter without hints asks again after up to 2 s.
const SOON: Duration = Duration::from_millis(700);

/// What becomes of the runtime whose task was the first to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Ends,
    /// It exists, and no thread drives it.
    Rests,
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A task of another runtime was the first one that waited; it gave up.
fn somebody_has_waited(locks: &Locker, fate: Fate) -> Option<Runtime> {
    let first = match fate {
        Fate::Ends => runtime(),
        Fate::Rests => Builder::new_current_thread().enable_all().build().unwrap(),
    };
    let waiting = async { locks.mutex("first").within(Duration::from_millis(300)).acquire().await.map(drop) };
    first.block_on(waiting).unwrap_err();
    (fate == Fate::Rests).then_some(first)
}

/// How long after its release a lock is entered by a waiter of the other process.
fn takes(runtime: &Runtime, (holder, waiter): (&Locker, &Locker), name: &str) -> Duration {
    let held = runtime.block_on(holder.mutex(name).acquire()).unwrap();
    let lock = waiter.mutex(name);
    let waiting = runtime.spawn(async move {
        let guard = lock.acquire().await.unwrap();
        let entered = Instant::now();
        guard.release().await.unwrap();
        entered
    });
    while runtime.block_on(holder.inspect(name)).unwrap().queue.is_empty() {
        thread::yield_now();
    }
    // It listens by then, where it does.
    thread::sleep(Duration::from_millis(200));
    let released = Instant::now();
    runtime.block_on(held.release()).unwrap();
    runtime.block_on(waiting).unwrap().saturating_duration_since(released)
}

/// The task that reads the stream of changes belonged to the runtime of the first waiter: when that one ended or rested, no waiter of
/// the process heard of a release, and each one asked again after up to 2 s. L6.
#[test]
fn a_runtime_that_ends_or_rests_leaves_no_other_waiter_deaf() {
    let server = EtcdServer::start();
    let others = runtime();
    for fate in [Fate::Ends, Fate::Rests] {
        let (holder, waiter) = (locker(&server.url("")), locker(&server.url("")));
        // Its connection is made in a runtime that goes on.
        others.block_on(waiter.inspect("warm")).unwrap();
        let held = others.block_on(holder.mutex("first").acquire()).unwrap();
        let _resting = somebody_has_waited(&waiter, fate);
        others.block_on(held.release()).unwrap();
        let took: Vec<_> =
            (0..3).map(|n| takes(&others, (&holder, &waiter), &format!("{fate:?}{n}"))).collect();
        assert!(took.iter().all(|took| *took < SOON * slowness()), "{fate:?}: {took:?}");
    }
}
