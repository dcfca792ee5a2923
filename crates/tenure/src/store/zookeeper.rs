//! `ZooKeeperStore`: an ensemble.

use std::time::Duration;

use tenure_client::Login;

use crate::{
    connect::zookeeper::{Access, Config, Layout},
    store::described::{Described, is_described},
};

/// Locks in ZooKeeper. Its URL begins with `zookeeper`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::store::ZooKeeperStore::at(["a.example", "b.example", "c.example"])
///     .user("app")
///     .password("any text: /?#@&")
///     .path("locks/of/app")
///     .connect()
///     .await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ZooKeeperStore(pub(super) Described<Config>);

impl ZooKeeperStore {
    /// The members of the ensemble; their port is 2181 by default.
    pub fn at<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Described::at(hosts, Config::PORT, Config::new))
    }

    /// The port of all members. Only if no member was named with a port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set_port(|config| config.hosts.iter_mut().for_each(|(_, own)| *own = port));
        self
    }

    /// Uses TLS. This file has the certificate of the authority that signed those of the servers, in PEM.
    ///
    /// The client takes the ciphers of the process. If the program has chosen none (`CryptoProvider::install_default` of
    /// rustls), the first session chooses those of *ring*. A library that opens TLS connections with the defaults of rustls
    /// panics before that, because this feature builds in a second library of ciphers: such a program has to choose.
    #[cfg(feature = "zookeeper-tls")]
    #[must_use]
    pub fn tls(mut self, ca: impl AsRef<std::path::Path>) -> Self {
        self.0.set(|config| {
            config.tls = true;
            config.ca = Some(ca.as_ref().to_owned());
        });
        self
    }

    /// The client's certificate and its key, if the servers require one. Only with [`tls`](Self::tls).
    #[cfg(feature = "zookeeper-tls")]
    #[must_use]
    pub fn identity(
        mut self,
        certificate: impl AsRef<std::path::Path>,
        key: impl AsRef<std::path::Path>,
    ) -> Self {
        self.0.set(|config| {
            config.cert = Some(certificate.as_ref().to_owned());
            config.key = Some(key.as_ref().to_owned());
        });
        self
    }

    /// Logs in by the mechanism DIGEST-MD5 of SASL, which does not send the password. Default: digest authentication, which
    /// does.
    #[cfg(feature = "zookeeper-sasl")]
    #[must_use]
    pub fn sasl_digest_md5(mut self) -> Self {
        self.0.set(|config| config.sasl = Some(crate::connect::zookeeper::Sasl::DigestMd5));
        self
    }

    /// The parent node of the locks. Default `/tenure`. All clients must set the same value.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<str>) -> Self {
        self.0.set(|config| config.set_base(path.as_ref().trim_start_matches('/')));
        self
    }

    /// Names nodes as kazoo does, so that its `Lock` and the locks of Tenure exclude each other. Default: as Apache
    /// Curator's `InterProcessMutex` names them. All clients must set the same value.
    #[must_use]
    pub fn like_kazoo(mut self) -> Self {
        self.0.set(|config| config.layout = Layout::Kazoo);
        self
    }

    /// Creates nodes that any user may change. Default: if a user is named, only that user may.
    #[must_use]
    pub fn open_to_all(mut self) -> Self {
        self.0.set(|config| config.access = Some(Access::Open));
        self
    }

    /// The ensemble's `tickTime`: 10 ms to 1 min, 2 s by default. A session lasts 1.5 ticks longer than its ttl.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.0.set(|config| config.tick = tick);
        self
    }

    /// How long a session may take to open: 250 ms to 1 min, 3 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.connect_timeout = patience);
        self
    }
}

is_described!(ZooKeeperStore);
connects!(ZooKeeperStore, |url| Described::read(url).map(Self));

fn login(config: &mut Config) -> &mut Login {
    config.login.get_or_insert_default()
}
