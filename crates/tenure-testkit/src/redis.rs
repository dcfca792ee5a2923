//! Real Redis servers for one test, each on free ports and in its own folder. They end with the test.

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
