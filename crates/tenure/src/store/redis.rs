//! `RedisStore`: a server, a master that Sentinel names, or a Cluster.

use std::{path::Path, time::Duration};

use crate::store::{
    connects::connects,
    written::{Written, encoded, is_written},
};

/// Locks in Redis or Valkey. The URLs that say the same begin with `redis`.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::RedisStore::at("db.example")
///     .user("app")
///     .password("any text: /?#@&")
///     .tls()
///     .max_ttl(Duration::from_secs(30))
///     .connect()
///     .await?;
/// println!("leases of up to {:?}", locks.promises().max_ttl);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore(pub(super) Written);

impl RedisStore {
    /// One server; its port is 6379 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self(Written::at("redis://", [host]))
    }

    /// One server on this machine, by the path of its socket.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        let mut written = Written::new("redis+unix://");
        match path.as_ref().to_str().and_then(|path| path.strip_prefix('/')) {
            Some(path) => written.path = format!("/{}", encoded(path)),
            None => written.refuse("the path of a socket is absolute and UTF-8"),
        }
        Self(written)
    }

    /// The master of this name, as the Sentinels at these hosts know it; their port is 26379 by default.
    pub fn sentinel<H: AsRef<str>>(sentinels: impl IntoIterator<Item = H>, master: impl AsRef<str>) -> Self {
        let mut written = Written::at("redis-sentinel://", sentinels);
        written.set("master", master);
        Self(written)
    }

    /// A Cluster, of which these nodes are asked for the others; their port is 6379 by default.
    pub fn cluster<H: AsRef<str>>(nodes: impl IntoIterator<Item = H>) -> Self {
        Self(Written::at("redis-cluster://", nodes))
    }

    /// The port of all servers, of which none names its own.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Over TLS. The server's certificate must be signed by an authority that this machine trusts, or by [`ca`](Self::ca).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.0.scheme = match self.0.scheme {
            "redis://" => "rediss://",
            "redis-sentinel://" => "rediss-sentinel://",
            "redis-cluster://" => "rediss-cluster://",
            "redis+unix://" => {
                self.0.refuse("a socket on this machine is not reached over TLS");
                "redis+unix://"
            }
            over_tls => over_tls,
        };
        self
    }

    /// Over TLS, and this file has the certificate of the authority that signed the server's.
    #[must_use]
    pub fn ca(self, file: impl AsRef<Path>) -> Self {
        let mut store = self.tls();
        store.0.set_path("ca", file.as_ref());
        store
    }

    /// The number of the database. Default 0. A Cluster has no other.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.0.set("db", number.to_string());
        self
    }

    /// The key of a lock, with `%s` for its name, as in `lock:%s`. Default `%s`. All clients must say the same.
    #[must_use]
    pub fn key(mut self, template: impl AsRef<str>) -> Self {
        self.0.set("key", template);
        self
    }

    /// Whether a server that may have forgotten locks grants nothing until all of them are over. Default: it does so.
    /// `false` lets two holders in after a restart or a fail-over, and is for tests. All clients must say the same.
    #[must_use]
    pub fn guard(mut self, is_on: bool) -> Self {
        self.0.set("guard", if is_on { "on" } else { "off" });
        self
    }

    /// The longest lease: 1 s to 10 min, 10 s by default, because a server without a record waits for so long. All clients must
    /// say the same.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.0.set_duration("max_ttl", max_ttl);
        self
    }

    /// For how long a waiter that was handed the lock may take to enter, before the next one gets it: 50 ms to 6 s, 500 ms
    /// by default.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.0.set_duration("claim_ttl", claim_ttl);
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 1 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("connect_timeout", patience);
        self
    }

    /// How long an answer may take: 10 ms to 1 min, 1 s by default.
    #[must_use]
    pub fn response_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("response_timeout", patience);
        self
    }

    /// How long a waiter waits at most before it asks again: 10 ms to 2 s, 2 s by default.
    #[must_use]
    pub fn retry_max(mut self, pause: Duration) -> Self {
        self.0.set_duration("retry_max", pause);
        self
    }

    /// Whether RESP3 may be spoken. Default: yes. `false` is for servers and proxies that do not know it.
    #[must_use]
    pub fn resp3(mut self, is_known: bool) -> Self {
        self.0.set("protocol", if is_known { "3" } else { "2" });
        self
    }

    /// The user at the Sentinels themselves. Default: none.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl AsRef<str>) -> Self {
        self.0.set("sentinel_user", user);
        self
    }

    /// The password at the Sentinels themselves. Default: none.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl AsRef<str>) -> Self {
        self.0.set("sentinel_password", password);
        self
    }
}

is_written!(RedisStore);
connects!(RedisStore);
