//! The holder's runtime is blocked or gone: real time and real threads.

#![allow(clippy::disallowed_methods, reason = "these tests are about blocking a thread in real time")]

use std::{sync::Arc, time::Duration};

use tenure::{LockName, Locker, backend::TokioHost};
use tenure::{backend::Backend, view::LockView};
use tenure_memory::Memory;
use tenure_testkit::patience::{eventually, stretch};
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(10);

/// A runtime that has no thread but the caller's.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn process(store: &Memory) -> Locker {
    Locker::new(Arc::new(store.clone()), Arc::new(TokioHost))
}

fn view(store: &Memory) -> LockView {
    runtime().block_on(store.inspect(&LockName::new("x").unwrap())).unwrap()
}

/// L1, H2.5, hazard 24: the leases are renewed on a thread of their own.
#[test]
fn a_runtime_that_is_blocked_for_longer_than_the_ttl_does_not_cost_the_lease() {
    let store = Memory::new(Arc::new(TokioHost));
    let ttl = Duration::from_secs(1) * stretch();
    runtime().block_on(async {
        let guard = process(&store).mutex("x").ttl(ttl).acquire().await.unwrap();
        std::thread::sleep(2 * ttl);
        assert_eq!(guard.check(), Ok(()));
        assert!(process(&store).mutex("x").try_acquire().await.unwrap().is_none());
    });
}

/// L8, hazard 63.
#[test]
fn a_guard_that_is_dropped_after_its_runtime_is_released() {
    let store = Memory::new(Arc::new(TokioHost));
    let runtime = runtime();
    let guard = runtime.block_on(process(&store).mutex("x").ttl(LONG).acquire()).unwrap();
    drop(runtime);
    assert_eq!((guard.check(), view(&store).holders.len()), (Ok(()), 1));
    drop(guard);
    eventually("the lock is free", PATIENCE, || view(&store).holders.is_empty().then_some(()));
}

/// L8, H1.8, hazard 63: the runtime drops the waiting task when it ends.
#[test]
fn a_waiter_that_ends_with_its_runtime_leaves_the_queue() {
    let store = Memory::new(Arc::new(TokioHost));
    let guard = runtime().block_on(process(&store).mutex("x").ttl(LONG).acquire()).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lock = process(&store).mutex("x").ttl(LONG);
    let waiting = runtime.spawn(async move { lock.acquire().await.map(drop) });
    eventually("it has a place", PATIENCE, || (view(&store).queue.len() == 1).then_some(()));
    drop(runtime);
    assert!(waiting.is_finished());
    // A place is kept for 6 s: shorter than that is by withdrawal.
    eventually("it has left", Duration::from_secs(3), || view(&store).queue.is_empty().then_some(()));
    assert_eq!(guard.check(), Ok(()));
}
