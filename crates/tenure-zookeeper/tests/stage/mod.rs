//! What the tests of the ZooKeeper backend share: handles, lockers, a referee, and a look at the nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tenure::{Guard, Lock, Locker, backend::TokioHost};
use tenure_core::BackendHandle;
use tenure_testkit::patience::{self, in_time};
use tenure_zookeeper::{Config, ZooKeeper};
use tokio::time::sleep;
use zookeeper_client::Client;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A handle as one process has it.
pub(crate) fn zookeeper(url: &str) -> BackendHandle {
    Arc::new(ZooKeeper::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

/// The same, with a session: a member of an ensemble may need its time to begin one on a busy machine.
pub(crate) async fn connected(url: &str) -> BackendHandle {
    let backend = zookeeper(url);
    let any = "any".parse().unwrap();
    until("it is connected", async || backend.inspect(&any).await.is_ok()).await;
    backend
}

/// A process with its own sessions.
pub(crate) async fn locker(url: &str) -> Locker {
    tenure::connect(url).await.unwrap()
}

/// A client that knows nothing of us.
pub(crate) async fn raw(address: &str) -> Client {
    Client::connect(address).await.unwrap()
}

/// Waits for something that must not take for ever.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    in_time(what, PATIENCE, future).await
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    patience::until(what, PATIENCE, is_so).await;
}

/// Waits until a lease was renewed so many times from now on. False if it was lost before that.
pub(crate) async fn renewed(guard: &Guard, times: usize) -> bool {
    for _ in 0..times {
        let mut left = guard.remaining();
        until("it is renewed", async || {
            let before = std::mem::replace(&mut left, guard.remaining());
            left > before || left.is_zero()
        })
        .await;
    }
    guard.check().is_ok()
}

/// The names of the nodes that want a lock.
pub(crate) async fn contenders(client: &Client, path: &str) -> Vec<String> {
    client.list_children(path).await.unwrap_or_default()
}

/// A task that waits for a lock and says when it was let in.
pub(crate) fn waiter(lock: Lock) -> tokio::task::JoinHandle<(Instant, Guard)> {
    tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        (Instant::now(), guard)
    })
}

/// Counts who is inside, and which tokens they had.
#[derive(Default)]
pub(crate) struct Referee {
    inside: AtomicUsize,
    newest: AtomicU64,
    pub(crate) entries: AtomicUsize,
}

impl Referee {
    /// L1 and L2: one holder at a time, each with a larger token. Whoever has lost its lease does not count as inside.
    pub(crate) async fn visit(&self, guard: &Guard, stay: Duration) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
        let token = guard.token().get();
        let before = self.newest.fetch_max(token, Ordering::SeqCst);
        assert!(before < token, "{token} after {before}");
        tokio::select! {
            () = sleep(stay) => {}
            _ = guard.lost() => {}
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.entries.fetch_add(1, Ordering::SeqCst);
    }
}
