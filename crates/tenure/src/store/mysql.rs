//! `MysqlStore`: a database.

use std::{path::Path, time::Duration};

use tenure_client::{Login, url::some};

use crate::{
    connect::mysql::{Config, TlsMode},
    store::described::{Described, is_described},
};

/// Locks in a table of MariaDB or MySQL. The URL that says the same begins with `mysql`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::store::{MysqlStore, MysqlTls};
///
/// let locks = MysqlStore::at("db.example")
///     .user("app")
///     .password("any text: /?#@&")
///     .database("orders")
///     .tls(MysqlTls::VerifyIdentity)
///     .connect()
///     .await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MysqlStore(pub(super) Described<Config>);

/// What `--ssl-mode` means to the command `mysql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlTls {
    /// Never.
    Disabled,
    /// If the server can, with whatever certificate: it keeps no one from listening. The default, as in `mysql`.
    Preferred,
    /// With whatever certificate.
    Required,
    /// The authority has signed the server's certificate.
    VerifyCa,
    /// The authority has signed the server's certificate, and it is that of the host.
    VerifyIdentity,
}

impl MysqlStore {
    /// One server; its port is 3306 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self::any_of([host])
    }

    /// The first of these servers that takes writes. No more than one of them may take writes at a time.
    pub fn any_of<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Described::at(hosts, Config::PORT, Config::new))
    }

    /// One server on this machine, by its socket, such as `/run/mysqld/mysqld.sock`.
    pub fn socket(file: impl AsRef<Path>) -> Self {
        let mut config = Config::new(Vec::new());
        config.socket = Some(file.as_ref().to_owned());
        Self(Described::new(Ok(config)))
    }

    /// The port of all servers, where none was named with its own.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set_port(|config| config.hosts.iter_mut().for_each(|(_, own)| *own = port));
        self
    }

    /// The database. It must be named, unless the [`table`](Self::table) names one.
    #[must_use]
    pub fn database(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| config.database = some(name.as_ref()));
        self
    }

    /// The table of the locks, `name` or `database.name`. Default `tenure_lock`. All clients must say the same.
    #[must_use]
    pub fn table(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| name.as_ref().clone_into(&mut config.table));
        self
    }

    /// For how long a waiter that was handed the lock may take to enter, before the next one gets it: 50 ms to 6 s, 500 ms
    /// by default. The first waiters ask the server every two to four fifths of it.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.0.set(|config| config.rules.claim_ttl = claim_ttl);
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 2 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.connect_timeout = patience);
        self
    }

    /// Whether the connection is encrypted, and whose certificate is believed. Default [`MysqlTls::Preferred`], and
    /// [`MysqlTls::VerifyCa`] if a [`ca`](Self::ca) is named.
    ///
    /// The driver takes the cryptography of the process, `rustls::crypto::CryptoProvider::install_default`. A program that
    /// has chosen none gets that of `ring`.
    #[must_use]
    pub fn tls(mut self, mode: MysqlTls) -> Self {
        let mode = match mode {
            MysqlTls::Disabled => TlsMode::Disabled,
            MysqlTls::Preferred => TlsMode::Preferred,
            MysqlTls::Required => TlsMode::Required,
            MysqlTls::VerifyCa => TlsMode::VerifyCa,
            MysqlTls::VerifyIdentity => TlsMode::VerifyIdentity,
        };
        self.0.set(|config| config.tls = Some(mode));
        self
    }

    /// This file has the certificate of the authority that signed the server's. Default: those that this machine trusts.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.0.set(|config| config.ca = Some(file.as_ref().to_owned()));
        self
    }

    /// Our own certificate and its key, both in PEM, for a server that asks for one.
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        let identity = (certificate.as_ref().to_owned(), key.as_ref().to_owned());
        self.0.set(|config| config.identity = Some(identity));
        self
    }

    /// All clients of these locks write to one server of a Galera cluster or of a group with several primaries. Without it,
    /// such a server is refused: a lease that one server's clock ends must not be judged by the clock of another one.
    #[must_use]
    pub fn one_writer(mut self) -> Self {
        self.0.set(|config| config.one_writer = true);
        self
    }
}

is_described!(MysqlStore);
connects!(MysqlStore, |url| Described::read(url).map(Self));

fn login(config: &mut Config) -> &mut Login {
    &mut config.login
}
