//! Where no thread can be started: nothing is held, and it is said.

#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

mod stage;

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use stage::{Stage, in_time, ms, name};
use tenure::core::{Backend, BoxFuture, Host, Moment, Start};
use tenure::{AcquireError, Locker};
use tenure_testkit::host::PausedHost;

/// A host that has so many threads left to give.
struct Threadless {
    host: Arc<PausedHost>,
    left: AtomicUsize,
}

impl Host for Threadless {
    fn now(&self) -> Moment {
        self.host.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        self.host.sleep_until(until)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.host.spawn(task);
    }

    fn spawn_apart(&self, name: &'static str, start: Start) -> io::Result<()> {
        let fewer = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer) {
            Ok(_) => self.host.spawn_apart(name, start),
            Err(_) => Err(io::Error::other("no thread is left")),
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        self.host.random(bytes);
    }
}

/// H2.5, L8: in a container whose number of processes was at its bound the thread that renews could not be started. Only a
/// log line said so; the lock was granted, never renewed, and never given back.
#[tokio::test(start_paused = true)]
async fn without_a_thread_that_renews_nothing_is_granted() {
    let stage = Stage::new();
    let host = Arc::new(Threadless { host: stage.host.clone(), left: AtomicUsize::new(0) });
    let lock = Locker::new(Arc::new(stage.store.clone()), host.clone()).mutex(name().as_str());
    let began = stage.clock();
    let refused = [
        in_time(lock.acquire()).await.map(drop).unwrap_err(),
        in_time(lock.acquire_within(ms(500))).await.map(drop).unwrap_err(),
        in_time(lock.try_acquire()).await.map(drop).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, AcquireError::NoKeeper(_)), "{error:?}");
        assert_eq!(error.source().unwrap().to_string(), "no thread is left");
    }
    assert_eq!(stage.clock(), began, "at once");
    assert!(stage.is_free().await, "nothing was left behind");
    assert_eq!(stage.store.inspect(&name()).await.unwrap().fence.get(), 0, "nothing was even asked for");
    // It is no matter for ever.
    host.left.store(1, Ordering::SeqCst);
    let guard = in_time(lock.acquire()).await.unwrap();
    guard.release().await.unwrap();
}
