//! Hand-offs: tasks of one process that want one lock, all the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tenure::{
    Locker,
    backend::{Host, TokioHost},
};
use tenure_testkit::etcd::EtcdServer;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::TTL;

const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(4);

/// What a hand-off took.
pub(crate) struct Seen {
    pub(crate) micros: f64,
    /// Answered requests, and messages that came over streams.
    pub(crate) requests: f64,
}

pub(crate) fn measure(runtime: &Runtime, server: &EtcdServer, waiters: usize) -> Seen {
    let (entries, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    runtime.block_on(async {
        let locks = tenure::connect(&server.url("")).await.expect("a URL");
        let mut tasks = JoinSet::new();
        // One holds, the others wait.
        for _ in 0..=waiters {
            tasks.spawn(wants(locks.clone(), entries.clone(), stop.clone()));
        }
        tokio::time::sleep(WARM_UP).await;
        let (begun, first, asked) = (TokioHost.now(), entries.load(Ordering::SeqCst), requests(server));
        tokio::time::sleep(WINDOW).await;
        let (asked, last) = (requests(server) - asked, entries.load(Ordering::SeqCst));
        let took = begun.elapsed(TokioHost.now());
        stop.store(true, Ordering::SeqCst);
        tasks.join_all().await;
        let hand_offs = (last - first) as f64;
        Seen { micros: took.as_secs_f64() * 1e6 / hand_offs, requests: asked / hand_offs }
    })
}

async fn wants(locks: Locker, entries: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let lock = locks.mutex("hand-off").ttl(TTL);
    while !stop.load(Ordering::SeqCst) {
        let guard = lock.acquire().await.expect("the server answers");
        entries.fetch_add(1, Ordering::SeqCst);
        guard.release().await.expect("it is held");
    }
}

fn requests(server: &EtcdServer) -> f64 {
    server.metric("grpc_server_msg_received_total{")
}
