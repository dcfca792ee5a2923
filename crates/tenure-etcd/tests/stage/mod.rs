//! What the tests of the etcd backend share: handles, lockers and what a server still has.

pub(crate) mod late;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure::{Guard, Locker, backend::TokioHost};
use tenure_core::{BackendHandle, LockName};
use tenure_etcd::{Config, Etcd};
use tenure_testkit::{etcd::EtcdServer, patience};

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// By how much etcd may be late with the end of a lease.
pub(crate) const GRAIN: Duration = Duration::from_secs(2);

/// A handle as one process has it.
pub(crate) fn etcd(url: &str) -> BackendHandle {
    Arc::new(Etcd::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

/// What a program has.
pub(crate) fn locker(url: &str) -> Locker {
    Locker::new(etcd(url), Arc::new(TokioHost))
}

pub(crate) fn named(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// Waits until `condition` answers something, and lets the tasks of the test go on meanwhile.
pub(crate) async fn becomes<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    patience::becomes(what, PATIENCE, condition).await
}

/// Waits until a lease was renewed so many times from now on, and is not lost.
pub(crate) async fn renewed(guard: &Guard, times: usize) {
    for _ in 0..times {
        let mut left = guard.remaining();
        becomes("it is renewed", async || {
            guard.check().unwrap();
            let before = std::mem::replace(&mut left, guard.remaining());
            (left > before).then_some(())
        })
        .await;
    }
}

/// The keys and the number of leases that a server has.
pub(crate) fn left(server: &EtcdServer) -> (Vec<String>, usize) {
    let keys = server.ask(&["get", "", "--prefix", "--keys-only"]);
    let keys = keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let leases = server.ask(&["lease", "list"]);
    // The first line says how many there are.
    (keys, leases.lines().count() - 1)
}

/// Waits until a server has neither keys nor leases.
pub(crate) async fn nothing_is_left(server: &EtcdServer) {
    let gone = async || {
        let left = left(server);
        if left == (Vec::new(), 0) { Ok(()) } else { Err(left) }
    };
    patience::becomes_ok("neither key nor lease is left", Duration::from_secs(5), gone).await;
}

/// Sees who is inside, and which token was the last.
#[derive(Default)]
pub(crate) struct Referee {
    inside: AtomicUsize,
    newest: AtomicU64,
    entries: AtomicUsize,
}

impl Referee {
    /// L1 and L2.
    pub(crate) fn enters(&self, token: u64) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        let before = self.newest.fetch_max(token, Ordering::SeqCst);
        assert!(token > before, "token {token} after {before}");
        self.entries.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn leaves(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries.load(Ordering::SeqCst)
    }
}
