//! Builders: a store that is described by calls instead of by a URL.
//!
//! A builder writes the URL and has it read by the backend: each setting has one meaning, one range and one refusal,
//! whichever way it is said (decision 0042). What is written is percent-encoded, so that a password may be any text.

#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "zookeeper",
    feature = "etcd",
    feature = "sqlite"
))]
mod connects;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "redis", feature = "postgres", feature = "zookeeper", feature = "etcd"))]
mod written;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(feature = "etcd")]
pub use etcd::EtcdStore;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStore, PostgresTls};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "redlock")]
pub use redlock::RedlockStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
#[cfg(feature = "zookeeper")]
pub use zookeeper::ZooKeeperStore;
