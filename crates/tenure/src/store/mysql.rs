//! `MysqlStore`: a database.

use std::{path::Path, time::Duration};

use tenure_client::{Login, url::some};

use crate::{
    connect::mysql::{Config, TlsMode},
    store::described::{Described, is_described},
};

/// Locks in a table of MariaDB or MySQL. Its URL begins with `mysql`.
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

/// The meaning of `--ssl-mode` in the command `mysql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlTls {
    /// No TLS.
    Disabled,
    /// TLS if the server supports it, with any certificate: no protection against an active attacker. The default,
    /// as in `mysql`.
    Preferred,
    /// TLS with any certificate.
    Required,
    /// TLS; the authority has signed the server's certificate.
    VerifyCa,
    /// TLS; the authority has signed the server's certificate, and the certificate is for this host.
    VerifyIdentity,
}

impl MysqlStore {
    /// One server; its port is 3306 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self::any_of([host])
    }

    /// The first of these servers that accepts writes. At most one of them may accept writes at a time.
    pub fn any_of<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Described::at(hosts, Config::PORT, Config::new))
    }

    /// One server on this machine, by its socket, such as `/run/mysqld/mysqld.sock`.
    pub fn socket(file: impl AsRef<Path>) -> Self {
        let mut config = Config::new(Vec::new());
        config.socket = Some(file.as_ref().to_owned());
        Self(Described::new(Ok(config)))
    }

    /// The port of all servers. Only if no server was named with a port.
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

    /// The table of the locks, `name` or `database.name`. Default `tenure_lock`. All clients must set the same
    /// value.
    #[must_use]
    pub fn table(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| name.as_ref().clone_into(&mut config.table));
        self
    }

    /// How long a waiter may take to acquire the lock when its turn has come: 50 ms to 6 s, 500 ms by default. Then
    /// the next one gets it. The first waiters poll the server at intervals of two to four fifths of it.
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

    /// Whether the connection is encrypted, and which certificates are trusted. Default [`MysqlTls::Preferred`],
    /// and [`MysqlTls::VerifyCa`] if a [`ca`](Self::ca) is named.
    ///
    /// The driver uses the cryptography of the process, `rustls::crypto::CryptoProvider::install_default`. A
    /// program that has set none gets that of `ring`.
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

    /// This file has the certificate of the authority that signed the server's. Default: the authorities that this
    /// machine trusts.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.0.set(|config| config.ca = Some(file.as_ref().to_owned()));
        self
    }

    /// The client's certificate and its key, both in PEM, for a server that requires one.
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.0.set(|config| {
            config.cert = Some(certificate.as_ref().to_owned());
            config.key = Some(key.as_ref().to_owned());
        });
        self
    }

    /// All clients of these locks write to one server of a Galera cluster or of a group with several primaries.
    /// Without this setting, such a server is refused: a lease must expire by the clock of one server only.
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
