//! The stage: one server, one lock, Tenure on it, and a plain look at the key.

use std::time::Duration;

use tenure::{
    Guard, Lock, LockName, Locker,
    view::{HolderView, LockView, Mode},
};
use tenure_testkit::{
    patience::{eventually, in_time},
    redis::RedisServer,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A lease that nobody sees the end of.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// A lease whose end is waited for.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// After which one of our waiters asks again at the latest.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(2);
/// The lock that everybody here wants: the key has the same name.
pub(crate) const NAME: &str = "orders/42";

pub(crate) struct Stage {
    pub(crate) runtime: Runtime,
    pub(crate) locks: Locker,
    pub(crate) server: RedisServer,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With more settings of our client, each as `&key=value`.
    pub(crate) fn with(settings: &str) -> Self {
        let server = RedisServer::start();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let locks = runtime.block_on(connect(&server, settings));
        Self { runtime, locks, server }
    }

    /// Waits for something that must not take for ever.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(in_time("it ends", PATIENCE, future))
    }

    /// As a writer, whose process has a place for each waiter.
    pub(crate) fn lock(&self) -> Lock {
        self.locks.rwlock(NAME).write().ttl(LONG)
    }

    pub(crate) fn reader(&self) -> Lock {
        self.locks.rwlock(NAME).read().ttl(LONG)
    }

    pub(crate) fn try_acquire(&self) -> Option<Guard> {
        self.wait(self.lock().try_acquire()).unwrap()
    }

    /// A task that waits for the lock.
    pub(crate) fn waiter(&self, lock: Lock) -> JoinHandle<Guard> {
        self.runtime.spawn(async move { lock.acquire().await.unwrap() })
    }

    /// Waits until so many stand in our queue.
    pub(crate) fn queued(&self, count: usize) {
        eventually(&format!("{count} wait"), PATIENCE, || (self.view().queue.len() == count).then_some(()));
    }

    pub(crate) fn entered(&self, waiter: JoinHandle<Guard>) -> Guard {
        self.wait(waiter).unwrap()
    }

    pub(crate) fn release(&self, guard: Guard) {
        self.wait(guard.release()).unwrap();
    }

    pub(crate) fn view(&self) -> LockView {
        self.wait(self.locks.inspect(&name())).unwrap()
    }

    /// What a walk over the server's keys shows: ours, and theirs that ours wait for.
    pub(crate) fn listed(&self) -> Vec<LockView> {
        self.wait(self.locks.list("orders/")).unwrap()
    }

    pub(crate) fn holder(&self) -> HolderView {
        let view = self.view();
        assert_eq!(view.holders.len(), 1, "one holder: {view:?}");
        view.holders.into_iter().next().unwrap()
    }

    fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = redis::Client::open(self.server.url("")).unwrap().get_connection().unwrap();
        let mut request = redis::cmd(command[0]);
        request.arg(&command[1..]).query(&mut connection).unwrap()
    }

    /// What stands in the key, byte by byte.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        self.ask(&["GET", NAME])
    }

    /// What is left of it in ms; -1 is for ever.
    pub(crate) fn pttl(&self) -> i64 {
        self.ask(&["PTTL", NAME])
    }

    /// Somebody without manners.
    pub(crate) fn delete(&self) {
        assert_eq!(self.ask::<i64>(&["DEL", NAME]), 1);
    }

    /// How many scripts the server has run.
    pub(crate) fn scripts_run(&self) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval"));
        let calls =
            calls.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok());
        calls.sum()
    }

    /// Waits until our waiters have asked again `times` times.
    pub(crate) fn asked_again(&self, times: u64) {
        let before = self.scripts_run();
        eventually("the waiters ask again", PATIENCE, || {
            (self.scripts_run() >= before + times).then_some(())
        });
    }
}

/// A client of ours with a connection and a watchdog of its own. Without the guard, because nothing here restarts.
pub(crate) async fn connect(server: &RedisServer, settings: &str) -> Locker {
    tenure::connect(&server.url(&format!("?guard=off{settings}"))).await.unwrap()
}

pub(crate) fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

/// A holder of whom we know nothing but what stands in the key.
#[track_caller]
pub(crate) fn assert_foreign(holder: &HolderView, value: &[u8]) {
    assert!(holder.is_foreign() && !holder.owner.contains(&*String::from_utf8_lossy(value)), "{holder:?}");
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!((holder.token, &holder.label, holder.since), (None, &None, None), "{holder:?}");
}
