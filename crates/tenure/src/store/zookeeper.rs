//! `ZooKeeperStore`: an ensemble.

use std::time::Duration;

use crate::store::{
    connects::connects,
    written::{Written, encoded, is_written},
};

/// Locks in ZooKeeper. The URL that says the same begins with `zookeeper`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::ZooKeeperStore::at(["a.example", "b.example", "c.example"])
///     .user("app")
///     .password("any text: /?#@&")
///     .path("locks/of/app")
///     .connect()
///     .await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ZooKeeperStore(Written);

impl ZooKeeperStore {
    /// The members of the ensemble; their port is 2181 by default.
    pub fn at<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Written::at("zookeeper://", hosts))
    }

    /// The port of all members, of which none names its own.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Under which node the locks are. Default `/tenure`. All clients must say the same.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<str>) -> Self {
        let parts: Vec<String> = path.as_ref().trim_start_matches('/').split('/').map(encoded).collect();
        self.0.path = format!("/{}", parts.join("/"));
        self
    }

    /// With nodes named as kazoo names them, so that its `Lock` and ours exclude each other. Default: as Apache Curator's
    /// `InterProcessMutex` names them. All clients must say the same.
    #[must_use]
    pub fn like_kazoo(mut self) -> Self {
        self.0.set("layout", "kazoo");
        self
    }

    /// With nodes that anybody may change. Default: where a user is named, only that user may.
    #[must_use]
    pub fn open_to_all(mut self) -> Self {
        self.0.set("acl", "open");
        self
    }

    /// The ensemble's `tickTime`: 10 ms to 1 min, 2 s by default. A session lasts longer than its ttl by one and a half of it.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.0.set_duration("tick", tick);
        self
    }

    /// How long a session may take to open: 250 ms to 1 min, 3 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("connect_timeout", patience);
        self
    }
}

is_written!(ZooKeeperStore);
connects!(ZooKeeperStore);
