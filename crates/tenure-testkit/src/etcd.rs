//! Real etcd servers for one test: on free ports, in folders of their own, gone with the test.

mod cluster;
mod recipe;
mod server;

pub use cluster::EtcdCluster;
pub use recipe::Recipe;
pub use server::EtcdServer;
