//! Builders: a store configured by method calls instead of by a URL.
//!
//! Both fill the same settings, whose rules are checked when the store is connected.

/// The common part of each builder: to connect it, and to read it from a URL. `$read` makes one from a URL.
#[allow(unused_macros, reason = "a program may leave out all stores that have a builder")]
macro_rules! connects {
    ($store:ident, $read:expr) => {
        /// Reads the URL with the same settings, as [`connect`](crate::connect) does.
        impl std::str::FromStr for $store {
            type Err = crate::ConfigError;

            fn from_str(url: &str) -> Result<Self, Self::Err> {
                $read(url)
            }
        }

        /// From its URL, as one line of a settings file. It is never written, because it may hold a password.
        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $store {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let url = <String as serde::Deserialize>::deserialize(deserializer)?;
                url.parse().map_err(serde::de::Error::custom)
            }
        }

        impl $store {
            /// Connects to the store, as [`connect`](crate::connect) does; most backends send nothing yet.
            ///
            /// # Errors
            /// [`ConfigError`](crate::ConfigError) names the wrong setting, and never a password.
            ///
            /// # Cancel safety
            /// Dropping the future leaves no trace.
            pub async fn connect(&self) -> Result<crate::Locker, crate::ConfigError> {
                crate::connect::locker(|host| self.backend(host))
            }

            /// Connects to the store for a program without a runtime.
            ///
            /// # Errors
            /// As [`connect`](Self::connect), and if no thread can be started.
            pub fn connect_blocking(&self) -> Result<crate::blocking::Locker, crate::ConfigError> {
                crate::blocking::connected(self.connect())
            }
        }
    };
}

#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "zookeeper",
    feature = "etcd"
))]
#[cfg_attr(
    not(any(feature = "redis", feature = "mysql", feature = "zookeeper", feature = "etcd")),
    allow(dead_code, reason = "PostgreSQL has an order of hosts and ports of its own")
)]
mod described;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(all(
    test,
    feature = "redlock",
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "zookeeper-sasl",
    feature = "zookeeper-tls"
))]
mod tests;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(feature = "etcd")]
pub use etcd::EtcdStore;
#[cfg(feature = "mysql")]
pub use mysql::{MysqlStore, MysqlTls};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresBinding, PostgresStore, PostgresTls};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "redlock")]
pub use redlock::RedlockStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
#[cfg(feature = "zookeeper")]
pub use zookeeper::ZooKeeperStore;
