//! Real etcd servers: on free ports, in folders of their own. They go with the test, or with the run that shares them.

mod cluster;
mod recipe;
mod server;

pub use cluster::EtcdCluster;
pub use recipe::Recipe;
pub use server::EtcdServer;

use crate::shared::Shared;

/// The server of this run, for tests that do not harm it.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Shared {
    Shared::server("etcd", EtcdServer::start, EtcdServer::address)
}

/// Three servers of this run, of which the first one hangs.
///
/// # Panics
/// If they do not start.
pub fn shared_with_one_hung() -> Shared {
    let start = || {
        let cluster = EtcdCluster::start(3);
        cluster.member(0).stop();
        cluster.leader(&[1, 2]);
        cluster
    };
    Shared::server("etcd-cluster", start, EtcdCluster::address)
}
