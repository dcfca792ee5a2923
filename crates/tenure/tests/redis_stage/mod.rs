//! The stage for the tests on a real Redis: a server, processes that use it, and a bad network between them.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

pub(crate) mod naive;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tenure::{AcquireError, FencingToken, Guard, Lock, LockName, Locker};
use tenure::{BackendError, view::LockView};
use tenure_testkit::{
    patience::{self, eventually, slowness, stretch},
    proxy::Proxy,
    redis::{Raw, RedisServer, Reply},
};
use tokio::task::JoinHandle;

pub(crate) use naive::Naive;
pub(crate) use tenure_testkit::patience::until;

/// The lock that everybody here wants.
pub(crate) const NAME: &str = "stage";
/// No test waits for the end of such a lease.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// For what must happen at last; multiplied by the slowness.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Who enters within this was told: by itself a waiter asks again 2 s after the last answer only.
pub(crate) const TOLD: Duration = Duration::from_millis(1_700);

/// So many ms on a fast machine.
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms) * stretch()
}

/// One server, and somebody who only looks.
pub(crate) struct Stage {
    pub(crate) server: RedisServer,
    pub(crate) watcher: Locker,
    raw: Mutex<Raw>,
}

/// A process behind a network of its own: connected, subscribed, and known to the server.
pub(crate) struct Far {
    pub(crate) proxy: Proxy,
    pub(crate) locks: Locker,
}

/// What the plain key of a lock says of an exclusive holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) owner: String,
    /// `None` if it was handed the lock and has not entered.
    pub(crate) token: Option<FencingToken>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let server = RedisServer::start();
        let (watcher, raw) = (connect(server.port(), "").await, Mutex::new(server.raw()));
        Self { server, watcher, raw }
    }

    /// A process of its own.
    pub(crate) async fn locks(&self, query: &str) -> Locker {
        connect(self.server.port(), query).await
    }

    /// A process behind a proxy, which has held a lock before.
    pub(crate) async fn far(&self, query: &str) -> Far {
        let proxy = Proxy::to(self.server.port(), 1);
        let locks = connect(proxy.port(), query).await;
        let warm_up = in_time(locks.mutex("warm-up").ttl(LONG).acquire()).await.unwrap();
        self.hears_of_robbery(&warm_up);
        in_time(warm_up.release()).await.unwrap();
        Far { proxy, locks }
    }

    /// Asks the server over a connection that knows nothing of us.
    pub(crate) fn ask(&self, words: &[&str]) -> Reply {
        self.raw.lock().unwrap().command(words)
    }

    /// What a key holds.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        match self.ask(&["GET", key]) {
            Reply::Nil => None,
            value => Some(value.text()),
        }
    }

    /// Who holds the lock, by its plain key.
    pub(crate) fn held(&self) -> Option<Held> {
        let value = self.value(NAME)?;
        let mut parts = value.split(':');
        let (owner, token) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
        Some(Held { owner: owner.into(), token: (token > 0).then(|| FencingToken::new(token)) })
    }

    /// How much the server gives the lease; zero if there is none.
    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.ask(&["PTTL", NAME]).int().try_into().unwrap_or(0))
    }

    /// L1, H2.2: nobody believes for longer than the server keeps others out. Holds for every moment at which it is
    /// called, however slowly it runs.
    pub(crate) fn assert_no_belief_beyond_the_server(&self, guard: &Guard) {
        let (began, before) = (Instant::now(), self.left());
        let believed = guard.remaining();
        let after = self.left() + began.elapsed();
        let most = before.max(after) + Duration::from_millis(1);
        assert!(believed <= most, "believed for {believed:?}, the server gives {before:?} or {after:?}");
    }

    /// Waits until the keeper of a holder listens for robberies.
    pub(crate) fn hears_of_robbery(&self, guard: &Guard) {
        let channel = format!("tenure:h:{}", process_of(guard));
        eventually("the keeper listens", PATIENCE, || (self.listeners(&channel) == 1).then_some(()));
    }

    pub(crate) fn listeners(&self, channel: &str) -> i64 {
        self.ask(&["PUBSUB", "NUMSUB", channel]).list().pop().unwrap().int()
    }

    pub(crate) async fn view(&self) -> Result<LockView, BackendError> {
        self.watcher.inspect(&name(NAME)).await
    }

    /// Waits until so many hold and wait, as `inspect` tells.
    pub(crate) async fn settle(&self, holding: usize, waiting: usize) {
        let what = format!("{holding} hold and {waiting} wait");
        until(&what, PATIENCE, async || {
            self.view().await.is_ok_and(|view| (view.holders.len(), view.queue.len()) == (holding, waiting))
        })
        .await;
    }
}

/// A handle as one process has it. The guard is not the point here: a young server grants at once.
pub(crate) async fn connect(port: u16, query: &str) -> Locker {
    tenure::connect(&format!("redis://127.0.0.1:{port}/?guard=off{query}")).await.unwrap()
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// The process in the owner of a guard, as it stands in the names of channels.
pub(crate) fn process_of(guard: &Guard) -> String {
    guard.owner().to_string()[..16].to_owned()
}

/// A task that waits for the lock.
pub(crate) fn waiting(locks: &Locker, ttl: Duration) -> JoinHandle<Result<Guard, AcquireError>> {
    let lock = locks.mutex(NAME).ttl(ttl);
    tokio::spawn(async move { in_time(lock.acquire()).await })
}

/// Acquires the lock that is free, or soon will be.
pub(crate) async fn acquire(lock: Lock) -> Guard {
    in_time(lock.acquire()).await.unwrap()
}

/// Waits for what was to come, so that a test fails and does not hang.
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    patience::in_time("it ends", PATIENCE, future).await
}

/// Waits for a guard, and says how long it took.
pub(crate) async fn entry(waiting: JoinHandle<Result<Guard, AcquireError>>) -> (Guard, Duration) {
    let began = Instant::now();
    let guard = in_time(waiting).await.unwrap().unwrap();
    guard.check().unwrap();
    (guard, began.elapsed())
}

/// Waits until a lease was renewed.
pub(crate) fn renewed(guard: &Guard) {
    let mut last = guard.remaining();
    eventually("it is renewed", PATIENCE, || {
        let left = guard.remaining();
        let is_renewed = left > last;
        last = left;
        is_renewed.then_some(())
    });
}

/// Waits until everything that was dropped has been released.
pub(crate) async fn drained(locks: &Locker) {
    assert!(locks.flush(PATIENCE * slowness()).await, "releases are under way for ever");
}

/// True once it was dropped.
#[derive(Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    /// A look at it from elsewhere.
    pub(crate) fn was_dropped(&self) -> impl Fn() -> bool + use<> {
        let dropped = self.0.clone();
        move || dropped.load(Ordering::SeqCst)
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
