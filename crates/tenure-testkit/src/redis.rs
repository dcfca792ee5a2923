//! Real Redis servers for one test: on free ports, in folders of their own, gone with the test.

mod certificates;
mod cluster;
mod raw;
mod recipe;
mod reply;
mod sentinels;
mod server;

pub use certificates::Certificates;
pub use cluster::{Cluster, Move};
pub use raw::{Raw, request};
pub use recipe::{Recipe, Sync};
pub use reply::Reply;
pub use sentinels::{SentinelRecipe, Sentinels};
pub use server::RedisServer;
