//! `PostgresStore`: a database.

use std::{path::Path, time::Duration};

use tenure_client::{
    Login,
    url::{bad, named_hosts, some},
};

use crate::{
    connect::postgres::{ChannelBinding, Config, Listen, TlsMode},
    store::described::{Described, is_described},
};

/// Locks in a table of PostgreSQL. Its URL begins with `postgres`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::store::{PostgresStore, PostgresTls};
///
/// let locks = PostgresStore::at("db.example")
///     .user("app")
///     .password("any text: /?#@&")
///     .database("orders")
///     .tls(PostgresTls::VerifyFull)
///     .connect()
///     .await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore(pub(super) Described<Config>);

/// The meaning of `sslmode` in libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresTls {
    /// No TLS.
    Disable,
    /// TLS if the server supports it, with any certificate: no protection against an active attacker. The default,
    /// as in libpq.
    Prefer,
    /// TLS with any certificate, unless a [`ca`](PostgresStore::ca) is named.
    Require,
    /// TLS; the authority has signed the server's certificate.
    VerifyCa,
    /// TLS; the authority has signed the server's certificate, and the certificate is for this host.
    VerifyFull,
}

/// What `channel_binding` means to libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresBinding {
    /// Never.
    Disable,
    /// Where the server can.
    Prefer,
    /// Without it there is no login.
    Require,
}

impl PostgresStore {
    /// One server; its port is 5432 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self::any_of([host])
    }

    /// The first of these servers that accepts writes.
    pub fn any_of<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Described::new(named_hosts(hosts).map(Config::new)))
    }

    /// One server on this machine, by the folder of its socket, such as `/run/postgresql`.
    pub fn socket(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref().to_str().filter(|folder| folder.starts_with('/'));
        let folder = folder.ok_or_else(|| bad("the folder of a socket is absolute and UTF-8"));
        Self(Described::new(folder.map(|folder| Config::new(vec![(folder.to_owned(), None)]))))
    }

    /// The port of all servers that were named without one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set(|config| config.port = port);
        self
    }

    /// The database. Default: the one with the user's name.
    #[must_use]
    pub fn database(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| config.database = some(name.as_ref()));
        self
    }

    /// The table of the locks, `name` or `schema.name`. Default `tenure_lock`. All clients must set the same value.
    #[must_use]
    pub fn table(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| name.as_ref().clone_into(&mut config.table));
        self
    }

    /// A server that accepts `LISTEN`, for hints past a pooler. Default: the connection of the requests, if it
    /// leads to the server itself.
    #[must_use]
    pub fn listen(mut self, past_the_pooler: &Self) -> Self {
        match past_the_pooler.0.config.clone() {
            Ok(other) => self.0.set(|config| config.listen = Listen::At(Box::new(other))),
            Err(wrong) => self.0.config = self.0.config.and(Err(wrong)),
        }
        self
    }

    /// Without hints: waiters poll.
    #[must_use]
    pub fn without_listening(mut self) -> Self {
        self.0.set(|config| config.listen = Listen::Off);
        self
    }

    /// How long a waiter may take to acquire the lock when its turn has come: 50 ms to 6 s, 500 ms by default. Then
    /// the next one gets it.
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

    /// Whether the connection is encrypted, and which certificates are trusted. Default [`PostgresTls::Prefer`],
    /// and [`PostgresTls::VerifyCa`] if a [`ca`](Self::ca) is named.
    #[must_use]
    pub fn tls(mut self, mode: PostgresTls) -> Self {
        let mode = match mode {
            PostgresTls::Disable => TlsMode::Disable,
            PostgresTls::Prefer => TlsMode::Prefer,
            PostgresTls::Require => TlsMode::Require,
            PostgresTls::VerifyCa => TlsMode::VerifyCa,
            PostgresTls::VerifyFull => TlsMode::VerifyFull,
        };
        self.0.set(|config| config.tls = Some(mode));
        self
    }

    /// This file has the certificate of the authority that signed the server's; `system` means the authorities that
    /// this machine trusts.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.0.set(|config| config.ca = Some(file.as_ref().to_owned()));
        self
    }

    /// The certificate in this file, with the key in that one, both in PEM, is shown to a server that asks.
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.0.set(|config| {
            config.cert = Some(certificate.as_ref().to_owned());
            config.key = Some(key.as_ref().to_owned());
        });
        self
    }

    /// Whether the login is bound to the channel of TLS. Default [`PostgresBinding::Prefer`].
    #[must_use]
    pub fn channel_binding(mut self, binding: PostgresBinding) -> Self {
        let binding = match binding {
            PostgresBinding::Disable => ChannelBinding::Disable,
            PostgresBinding::Prefer => ChannelBinding::Prefer,
            PostgresBinding::Require => ChannelBinding::Require,
        };
        self.0.set(|config| config.channel_binding = binding);
        self
    }

    /// A file with passwords, one line for each `host:port:database:user:password`, read at each connect where no password is
    /// set.
    #[must_use]
    pub fn passfile(mut self, file: impl AsRef<Path>) -> Self {
        self.0.set(|config| config.passfile = Some(file.as_ref().to_owned()));
        self
    }

    /// The name of this client in `pg_stat_activity`. Default `tenure`.
    #[must_use]
    pub fn application_name(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| name.as_ref().clone_into(&mut config.application));
        self
    }

    /// Accepts a server that takes no writes, such as a standby: it can show locks, and grants none. Not if several servers are
    /// named. Default: such a server is refused.
    #[must_use]
    pub fn may_only_read(mut self) -> Self {
        self.0.set(|config| config.must_write = false);
        self
    }

    /// Settings of the session, as on the command line of the server: `-c key=value`.
    #[must_use]
    pub fn options(mut self, options: impl AsRef<str>) -> Self {
        self.0.set(|config| config.options = some(options.as_ref()).map(Into::into));
        self
    }
}

is_described!(PostgresStore);
connects!(PostgresStore, |url| Described::read(url).map(Self));

fn login(config: &mut Config) -> &mut Login {
    &mut config.login
}
