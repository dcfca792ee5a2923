//! `PostgresStore`: a database.

use std::{path::Path, time::Duration};

use crate::store::{
    connects::connects,
    written::{Server, Written, encoded, is_written},
};

/// Locks in a table of PostgreSQL. The URL that says the same begins with `postgres`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::{PostgresStore, PostgresTls};
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
pub struct PostgresStore(Written);

/// What `sslmode` means to libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresTls {
    /// Never.
    Disable,
    /// If the server can, with whatever certificate: nobody is kept from listening. The default, as in libpq.
    Prefer,
    /// With whatever certificate, unless a [`ca`](PostgresStore::ca) is named.
    Require,
    /// The authority has signed the server's certificate.
    VerifyCa,
    /// The authority has signed the server's certificate, and it is that of the host.
    VerifyFull,
}

impl PostgresStore {
    /// One server; its port is 5432 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self(Written::at("postgres://", [host]))
    }

    /// The first of these servers that takes writes.
    pub fn any_of<H: AsRef<str>>(hosts: impl IntoIterator<Item = H>) -> Self {
        Self(Written::at("postgres://", hosts))
    }

    /// One server on this machine, by the folder of its socket, such as `/run/postgresql`.
    pub fn socket(folder: impl AsRef<Path>) -> Self {
        let mut written = Written::new("postgres://");
        match folder.as_ref().to_str().filter(|folder| folder.starts_with('/')) {
            Some(folder) => written.servers = vec![Server::encoded(folder)],
            None => written.refuse("the folder of a socket is absolute and UTF-8"),
        }
        Self(written)
    }

    /// The port of all servers that were named without one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set("port", port.to_string());
        self
    }

    /// The database. Default: that of the user's name.
    #[must_use]
    pub fn database(mut self, name: impl AsRef<str>) -> Self {
        self.0.path = format!("/{}", encoded(name.as_ref()));
        self
    }

    /// The table of the locks, `name` or `schema.name`. Default `tenure_lock`. All clients must say the same.
    #[must_use]
    pub fn table(mut self, name: impl AsRef<str>) -> Self {
        self.0.set("table", name);
        self
    }

    /// Past the pooler, for hints: a server that lets us `LISTEN`. Default: the connection of the requests is used, if it leads
    /// to the server itself.
    #[must_use]
    pub fn listen(mut self, past_the_pooler: &Self) -> Self {
        match past_the_pooler.url() {
            Ok(url) => self.0.set("listen", url),
            Err(_) => self.0.refuse("the server to listen at cannot be written as a URL"),
        }
        self
    }

    /// Without hints: waiters ask again.
    #[must_use]
    pub fn without_listening(mut self) -> Self {
        self.0.set("listen", "off");
        self
    }

    /// For how long a waiter that was handed the lock may take to enter, before the next one gets it: 50 ms to 6 s, 500 ms
    /// by default.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.0.set_duration("claim_ttl", claim_ttl);
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 2 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set_duration("connect_timeout", patience);
        self
    }

    /// Whether the connection is encrypted, and whose certificate is believed. Default [`PostgresTls::Prefer`], and
    /// [`PostgresTls::VerifyCa`] if a [`ca`](Self::ca) is named.
    #[must_use]
    pub fn tls(mut self, mode: PostgresTls) -> Self {
        let mode = match mode {
            PostgresTls::Disable => "disable",
            PostgresTls::Prefer => "prefer",
            PostgresTls::Require => "require",
            PostgresTls::VerifyCa => "verify-ca",
            PostgresTls::VerifyFull => "verify-full",
        };
        self.0.set("sslmode", mode);
        self
    }

    /// This file has the certificate of the authority that signed the server's; `system` stands for those that this machine
    /// trusts.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.0.set_path("sslrootcert", file.as_ref());
        self
    }

    /// What the server shows of us in `pg_stat_activity`. Default `tenure`.
    #[must_use]
    pub fn application_name(mut self, name: impl AsRef<str>) -> Self {
        self.0.set("application_name", name);
        self
    }

    /// Whether a server that takes no writes is passed over. Default: where several are named.
    #[must_use]
    pub fn must_write(mut self, must_write: bool) -> Self {
        self.0.set("target_session_attrs", if must_write { "read-write" } else { "any" });
        self
    }

    /// Settings of the session, as on the command line of the server: `-c key=value`.
    #[must_use]
    pub fn options(mut self, options: impl AsRef<str>) -> Self {
        self.0.set("options", options);
        self
    }
}

is_written!(PostgresStore);
connects!(PostgresStore);
