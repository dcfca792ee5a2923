//! `RedisStore`: a server, a master that Sentinel names, or a Cluster.

use std::{path::Path, time::Duration};

use tenure_client::{
    Login, Secret,
    url::{bad, named_hosts, some},
};

use crate::{
    connect::redis::{Config, GuardMode, Topology},
    store::described::{Described, is_described},
};

/// Locks in Redis or Valkey. Its URLs begin with `redis`.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::store::RedisStore::at("db.example")
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
pub struct RedisStore(pub(super) Described<Config>);

impl RedisStore {
    /// One server; its port is 6379 by default.
    pub fn at(host: impl AsRef<str>) -> Self {
        Self(Described::at([host], Config::PORT, |mut hosts| {
            let (host, port) = hosts.swap_remove(0);
            Config::new(Topology::Host(host, port))
        }))
    }

    /// One server on this machine, by the absolute path of its socket, UTF-8 or not.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        Self(Described::new(Ok(Config::new(Topology::Socket(path.as_ref().to_owned())))))
    }

    /// The master of this name, as the Sentinels at these hosts report it; their port is 26379 by default.
    pub fn sentinel<H: AsRef<str>>(sentinels: impl IntoIterator<Item = H>, master: impl AsRef<str>) -> Self {
        Self(Described::at(sentinels, Config::SENTINEL_PORT, |sentinels| {
            let master = master.as_ref().to_owned();
            Config::new(Topology::Sentinel { sentinels, master })
        }))
    }

    /// A Cluster. These nodes are asked for the others; their port is 6379 by default.
    pub fn cluster<H: AsRef<str>>(nodes: impl IntoIterator<Item = H>) -> Self {
        Self(Described::at(nodes, Config::PORT, |nodes| Config::new(Topology::Cluster(nodes))))
    }

    /// The certificate in this file, with the key in that one, both in PEM, is shown to servers that ask; with it, over TLS.
    #[must_use]
    pub fn identity(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.0.set(|config| {
            config.tls = true;
            config.cert = Some(certificate.as_ref().to_owned());
            config.cert_key = Some(key.as_ref().to_owned());
        });
        self
    }

    /// The name that the certificates of the servers are for, where it is not that of the host: as where Sentinel names a
    /// master by its number. Not for a Cluster.
    #[must_use]
    pub fn tls_name(mut self, name: impl AsRef<str>) -> Self {
        self.0.set(|config| config.tls_name = some(name.as_ref()));
        self
    }

    /// Where an address is reached from here that a Sentinel names, each `host:port`; once for each server.
    #[must_use]
    pub fn map(mut self, inner: impl AsRef<str>, outer: impl AsRef<str>) -> Self {
        let addresses = named_hosts([inner.as_ref(), outer.as_ref()]).and_then(|both| match &both[..] {
            [(inner, Some(port)), (outer, Some(to))] => Ok(((inner.clone(), *port), (outer.clone(), *to))),
            _ => Err(bad("an address of map is host:port")),
        });
        match addresses {
            Ok(pair) => self.0.set(|config| config.map.push(pair)),
            Err(wrong) => self.0.config = self.0.config.and_then(|_| Err(crate::ConfigError::of_url(wrong))),
        }
        self
    }

    /// The file of the password for the Sentinels themselves, read at each connect.
    #[must_use]
    pub fn sentinel_password_file(mut self, path: impl AsRef<Path>) -> Self {
        let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().to_owned());
        self.0.set(|config| config.sentinel_login.password = Some(Secret::in_file(path)));
        self
    }

    /// The port of all servers. Only if no server was named with a port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.0.set_port(|config| config.set_port(port));
        self
    }

    /// Uses TLS. The server's certificate must be signed by an authority that this machine trusts, or by
    /// [`ca`](Self::ca).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.0.set(|config| config.tls = true);
        self
    }

    /// Uses TLS. This file has the certificate of the authority that signed the server's.
    #[must_use]
    pub fn ca(self, file: impl AsRef<Path>) -> Self {
        let mut store = self.tls();
        store.0.set(|config| config.ca = Some(file.as_ref().to_owned()));
        store
    }

    /// The number of the database. Default 0, which is the only one of a Cluster.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.0.set(|config| config.db = number.into());
        self
    }

    /// The key of a lock, with `%s` for its name, as in `lock:%s`. Default `%s`. All clients must set the same value.
    #[must_use]
    pub fn key(mut self, template: impl AsRef<str>) -> Self {
        self.0.set(|config| template.as_ref().clone_into(&mut config.key));
        self
    }

    /// A server that may have forgotten locks grants anyway, instead of waiting until all of them have expired.
    /// That allows two holders after a restart or a failover, and is for tests. All clients must set the same
    /// value. Default: it waits.
    #[must_use]
    pub fn without_guard(mut self) -> Self {
        self.0.set(|config| config.guard = GuardMode::Off);
        self
    }

    /// The longest lease: 1 s to 10 min, 10 s by default. A new or emptied server grants nothing for this long. All
    /// clients must set the same value.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.0.set(|config| config.guarded_ttl = max_ttl);
        self
    }

    /// How long a waiter may take to acquire the lock when its turn has come: 50 ms to 6 s, 500 ms by default. Then
    /// the next one gets it.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.0.set(|config| config.claim_ttl = claim_ttl);
        self
    }

    /// How long a connection may take to open: 10 ms to 1 min, 1 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.connect_timeout = patience);
        self
    }

    /// How long an answer may take: 10 ms to 1 min, 1 s by default.
    #[must_use]
    pub fn response_timeout(mut self, patience: Duration) -> Self {
        self.0.set(|config| config.response_timeout = patience);
        self
    }

    /// The longest pause between two requests of a waiter: 10 ms to 2 s, 2 s by default.
    #[must_use]
    pub fn retry_max(mut self, pause: Duration) -> Self {
        self.0.set(|config| config.retry_max = pause);
        self
    }

    /// Uses RESP2 only, for servers and proxies without RESP3. Default: RESP3 where the server supports it.
    #[must_use]
    pub fn resp2(mut self) -> Self {
        self.0.set(|config| config.resp3 = false);
        self
    }

    /// The user at the Sentinels themselves. Default: none.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl AsRef<str>) -> Self {
        self.0.set(|config| config.sentinel_login.user = some(user.as_ref()));
        self
    }

    /// The password at the Sentinels themselves. Default: none.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl AsRef<str>) -> Self {
        self.0.set(|config| config.sentinel_login.password = Some(password.as_ref().into()));
        self
    }
}

is_described!(RedisStore);
connects!(RedisStore, |url| Described::read(url).map(Self));

fn login(config: &mut Config) -> &mut Login {
    &mut config.login
}
