//! `EtcdStore`: a cluster.

use std::{path::Path, time::Duration};

use crate::store::{
    connects::connects,
    written::{Written, is_written},
};

/// Locks in etcd. The URL that says the same begins with `etcd`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::EtcdStore::at(["a.example", "b.example", "c.example"]).prefix("app/").connect().await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdStore(Written);

impl EtcdStore {
    /// The members of the cluster; their port is 2379 by default.
    pub fn at<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Written::at("etcd://", hosts))
    }

    /// The port of all members, of which none names its own.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Over TLS, and this file has the certificate of the authority that signed those of the members.
    #[must_use]
    pub fn tls(mut self, ca: impl AsRef<Path>) -> Self {
        self.0.scheme = "etcds://";
        self.0.set_path("ca", ca.as_ref());
        self
    }

    /// Our own certificate and its key, where the members want to see one. Only with [`tls`](Self::tls).
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.0.set_path("cert", certificate.as_ref());
        self.0.set_path("key", key.as_ref());
        self
    }

    /// What stands before the name of every lock. Default: nothing. All clients must say the same.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.0.set("prefix", prefix);
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 500 ms by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("connect_timeout", patience);
        self
    }

    /// How long an answer may take: 10 ms to 1 min, 500 ms by default.
    #[must_use]
    pub fn response_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("response_timeout", patience);
        self
    }
}

is_written!(EtcdStore);
connects!(EtcdStore);
