//! Real etcd servers, each on free ports and in its own folder. They end with the test, or with the run that shares
//! them.

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
/// Each of the other two is needed, and on a busy machine either may get no processor for a second. That must not
/// cause an election: until it ends no client gets an answer, and a new leader starts all leases again. With a longer
/// election timeout, a lease of 1 s would last longer than the minimum of 2 s that etcd has by default.
///
/// # Panics
/// If they do not start.
pub fn shared_with_one_hung() -> Shared {
    let start = || {
        let patient = ["--heartbeat-interval", "100", "--election-timeout", "1300", "--pre-vote=true"];
        let cluster = Recipe::new().args(&patient).start_cluster(3);
        cluster.member(0).stop();
        cluster.leader(&[1, 2]);
        cluster
    };
    Shared::server("etcd-cluster", start, EtcdCluster::address)
}
