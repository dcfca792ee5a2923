//! `EtcdStore`: a cluster.

use std::{path::Path, time::Duration};

use tenure_client::Login;

use crate::{
    connect::etcd::Config,
    store::described::{Described, is_described},
};

/// Locks in etcd. Its URL begins with `etcd`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::store::EtcdStore::at(["a.example", "b.example", "c.example"]).prefix("app/").connect().await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdStore(pub(super) Described<Config>);

impl EtcdStore {
    /// The members of the cluster; their port is 2379 by default.
    pub fn at<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Described::at(hosts, Config::PORT, Config::new))
    }

    /// The port of all members. Only if no member was named with a port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set_port(|config| config.members.iter_mut().for_each(|(_, own)| *own = port));
        self
    }

    /// Uses TLS. This file has the certificate of the authority that signed those of the members.
    #[must_use]
    pub fn tls(mut self, ca: impl AsRef<Path>) -> Self {
        self.0.set(|config| {
            config.tls = true;
            config.ca = Some(ca.as_ref().to_owned());
        });
        self
    }

    /// The client's certificate and its key, if the members require one. Only with [`tls`](Self::tls).
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.0.set(|config| {
            config.cert = Some(certificate.as_ref().to_owned());
            config.key = Some(key.as_ref().to_owned());
        });
        self
    }

    /// The prefix of the key of every lock. Default: none. All clients must set the same value.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.0.set(|config| prefix.as_ref().clone_into(&mut config.prefix));
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 500 ms by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.connect_timeout = patience);
        self
    }

    /// How long an answer may take: 10 ms to 1 min, 500 ms by default.
    #[must_use]
    pub fn response_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.response_timeout = patience);
        self
    }
}

is_described!(EtcdStore);
connects!(EtcdStore, |url| Described::read(url).map(Self));

fn login(config: &mut Config) -> &mut Login {
    config.login.get_or_insert_default()
}
