//! Real ZooKeeper servers for one test: alone or as an ensemble, on free ports, gone with the test.

mod classes;
mod ensemble;
mod server;
mod words;

pub use ensemble::Ensemble;
pub use server::{TICK, ZooKeeperServer};
