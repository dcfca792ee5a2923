//! Real ZooKeeper servers: alone or as an ensemble, on free ports. They end with the test, or with the run that
//! shares them.

mod classes;
mod ensemble;
mod server;
mod words;

pub use ensemble::Ensemble;
pub use server::{TICK, ZooKeeperServer};

use crate::shared::Shared;

/// The server of this run, for tests that do not harm it.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Shared {
    Shared::server("zookeeper", ZooKeeperServer::start, ZooKeeperServer::address)
}

/// Three servers of this run, of which one hangs: it accepts connections and answers nothing.
///
/// # Panics
/// If they do not start.
pub fn shared_with_one_hung() -> Shared {
    let start = || {
        let ensemble = Ensemble::start(3);
        ensemble.member(ensemble.followers()[0]).stop();
        ensemble
    };
    Shared::server("ensemble", start, Ensemble::address)
}
