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
/// Each of the other two is needed, and on a busy machine either may have no processor for a second. That is no reason to choose
/// a leader: until there is one nobody is answered, and a new one has all leases begin again. With more patience than this a lease
/// would last longer than 2 s at least, which is what etcd promises of one of 1 s.
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
