//! The stage: one server, one lock, Tenure on it, and a plain look at the nodes.

use std::time::Duration;

use tenure::{Guard, Lock, Locker, view::LockView};
use tenure_testkit::{
    patience::{eventually, in_time},
    zookeeper::ZooKeeperServer,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use zookeeper_client::Client;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The lock that everybody here wants.
pub(crate) const NAME: &str = "orders-42";
/// And its path, which is what kazoo calls it.
pub(crate) const PATH: &str = "/tenure/orders-42";

pub(crate) struct Stage {
    pub(crate) runtime: Runtime,
    pub(crate) locks: Locker,
    pub(crate) client: Client,
    pub(crate) server: ZooKeeperServer,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let server = ZooKeeperServer::start();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let locks = runtime.block_on(tenure::connect(&server.url("layout=kazoo"))).unwrap();
        let client = runtime.block_on(Client::connect(&server.address())).unwrap();
        Self { runtime, locks, client, server }
    }

    /// Another process of ours.
    pub(crate) fn another(&self) -> Locker {
        self.runtime.block_on(tenure::connect(&self.server.url("layout=kazoo"))).unwrap()
    }

    /// A client that knows nothing of us.
    pub(crate) fn raw(&self) -> Client {
        self.runtime.block_on(Client::connect(&self.server.address())).unwrap()
    }

    /// Waits for something that must not take for ever.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(in_time("it ends", PATIENCE, future))
    }

    pub(crate) fn lock(&self) -> Lock {
        self.locks.mutex(NAME)
    }

    pub(crate) fn try_acquire(&self) -> Option<Guard> {
        self.wait(self.lock().try_acquire()).unwrap()
    }

    pub(crate) fn waiter(&self, lock: Lock) -> JoinHandle<Guard> {
        self.runtime.spawn(async move { lock.acquire().await.unwrap() })
    }

    pub(crate) fn release(&self, guard: Guard) {
        self.wait(guard.release()).unwrap();
    }

    pub(crate) fn view(&self) -> LockView {
        self.wait(self.locks.inspect(NAME)).unwrap()
    }

    /// Waits until so many stand in the line behind those who hold.
    pub(crate) fn queued(&self, count: usize) {
        eventually(&format!("{count} wait"), PATIENCE, || (self.view().queue.len() == count).then_some(()));
    }

    /// The only node there, its data and its version.
    pub(crate) fn only_node(&self) -> (String, Vec<u8>, i32) {
        let names = self.wait(self.client.list_children(PATH)).unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
        let (data, stat) = self.wait(self.client.get_data(&format!("{PATH}/{}", names[0]))).unwrap();
        (names[0].clone(), data, stat.version)
    }
}
