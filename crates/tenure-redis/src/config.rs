//! `Config`: which servers, how to reach them, and the settings that all clients must share; from a URL.

use std::{fmt, path::PathBuf, time::Duration};

use tenure_client::{
    Login,
    durations::{CLAIM_TTL, CONNECT_TIMEOUT, MAX_TTL, RESPONSE_TIMEOUT, RETRY_MAX},
    url::{Address, Form, Url, bad, shown},
};
use tenure_core::Timing;

use crate::keys::{Counting, ONE, QUORUM};

/// Why a URL is refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where Redis is and how its locks behave.
///
/// `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) place: Place,
    pub(crate) tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) login: Login,
    /// For the Sentinels themselves.
    pub(crate) sentinel_login: Login,
    pub(crate) db: i64,
    /// `%s` is the name of the lock.
    pub(crate) key: String,
    pub(crate) guard: GuardMode,
    pub(crate) max_ttl: Duration,
    /// Whether RESP3 may be spoken; without it, hints come over a connection of their own.
    pub(crate) resp3: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) claim_ttl: Duration,
    pub(crate) place_ttl: Duration,
    pub(crate) retry_max: Duration,
    /// How many nodes the quorum has of which this server is one.
    pub(crate) quorum: Option<usize>,
}

/// Which servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host(String, u16),
    Socket(PathBuf),
    Sentinel { sentinels: Vec<Address>, master: String },
    Cluster(Vec<Address>),
}

/// What a server that may have forgotten locks is allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMode {
    /// It grants nothing until every lease it may have forgotten is over.
    On,
    /// It grants at once: two holders may be there after a restart or a fail-over.
    Off,
}

const FORM: Form = Form {
    store: "redis",
    schemes: Config::SCHEMES,
    example: "redis://127.0.0.1:6379/",
    settings: &[
        "key",
        "guard",
        "max_ttl",
        "claim_ttl",
        "connect_timeout",
        "response_timeout",
        "retry_max",
        "ca",
        "protocol",
        "db",
        "master",
        "sentinel_user",
        "sentinel_password",
    ],
};

impl Config {
    /// The schemes of URLs that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &'static [&'static str] = &[
        "redis",
        "rediss",
        "redis+unix",
        "redis-sentinel",
        "rediss-sentinel",
        "redis-cluster",
        "rediss-cluster",
    ];

    /// Reads `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://…?master=` and `redis-cluster://`; with two
    /// `s`, over TLS.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let url = FORM.read(url)?;
        let place = Place::of(&url)?;
        let login = url.login.clone().unwrap_or_default();
        let mut config = Self::at(place, url.scheme.starts_with("rediss"), login);
        let path = url.path()?;
        if !matches!(config.place, Place::Socket(_)) && !path.is_empty() {
            config.db = parse_db(&path)?;
        }
        for (key, value) in url.settings {
            config.set(key, &value)?;
        }
        config.checked()
    }

    fn at(place: Place, tls: bool, login: Login) -> Self {
        Self {
            place,
            tls,
            ca: None,
            login,
            sentinel_login: Login::default(),
            db: 0,
            key: "%s".into(),
            guard: GuardMode::On,
            // As long as the default ttl: every server without a record waits for that long, once.
            max_ttl: Timing::DEFAULT_TTL,
            resp3: true,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            claim_ttl: Timing::CLAIM_TTL,
            place_ttl: Timing::PLACE_TTL,
            retry_max: Timing::RETRY_MAX,
            quorum: None,
        }
    }

    /// The same server as one of a quorum of so many nodes: with a record of its own, which says how many there are, and a
    /// token counter per lock, so that the nodes count alike.
    ///
    /// # Errors
    /// [`ConfigError`] for whatever is not one server.
    pub fn in_quorum(mut self, nodes: usize) -> Result<Self, ConfigError> {
        let why = match &self.place {
            Place::Host(..) | Place::Socket(_) => {
                self.quorum = Some(nodes);
                return Ok(self);
            }
            Place::Sentinel { .. } => {
                "Sentinel puts another server in its place, and the nodes of a quorum are always the same ones"
            }
            Place::Cluster(_) => {
                "a Cluster keeps no record by which a server that forgot its locks would wait"
            }
        };
        let place = self.place_name();
        Err(bad(format!(
            "{place} cannot be a node of a quorum, which is one server, as in redis://host: {why}"
        )))
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), ConfigError> {
        match key {
            "key" if value.matches("%s").count() == 1 => self.key = value.into(),
            "key" => return Err(bad("key= is a template with one %s for the name, as in key=lock:%25s")),
            "guard" => {
                self.guard = match value {
                    "on" => GuardMode::On,
                    "off" => GuardMode::Off,
                    _ => return Err(bad("guard= is on or off")),
                }
            }
            "max_ttl" => self.max_ttl = MAX_TTL.read(value)?,
            "claim_ttl" => self.claim_ttl = CLAIM_TTL.read(value)?,
            "connect_timeout" => self.connect_timeout = CONNECT_TIMEOUT.read(value)?,
            "response_timeout" => self.response_timeout = RESPONSE_TIMEOUT.read(value)?,
            "retry_max" => self.retry_max = RETRY_MAX.read(value)?,
            "ca" if self.tls => self.ca = Some(value.into()),
            "ca" => return Err(bad("ca= is for TLS: begin the URL with rediss")),
            "protocol" => {
                self.resp3 = match value {
                    "3" => true,
                    "2" => false,
                    _ => return Err(bad("protocol= is 3, or 2 for a server that does not know RESP3")),
                }
            }
            "db" => self.db = parse_db(value)?,
            _ => return self.set_sentinel(key, value),
        }
        Ok(())
    }

    fn set_sentinel(&mut self, key: &'static str, value: &str) -> Result<(), ConfigError> {
        let Place::Sentinel { master, .. } = &mut self.place else {
            return Err(bad(format!("{key}= is for redis-sentinel://")));
        };
        match key {
            "master" => *master = value.into(),
            "sentinel_user" => self.sentinel_login.user = Some(value.into()),
            _ => self.sentinel_login.password = Some(value.into()),
        }
        Ok(())
    }

    fn checked(mut self) -> Result<Self, ConfigError> {
        match &self.place {
            Place::Sentinel { master, .. } if master.is_empty() => {
                return Err(bad("redis-sentinel:// needs the name of the master, as in ?master=mymaster"));
            }
            Place::Cluster(_) if self.db != 0 => return Err(bad("a Redis Cluster has the database 0 only")),
            _ => {}
        }
        // Without a guard nothing waits for the longest ttl.
        if self.is_cluster() || self.guard == GuardMode::Off {
            self.max_ttl = Timing::MAX_TTL;
        }
        Ok(self)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    pub(crate) fn counting(&self) -> Counting {
        match self.quorum {
            Some(_) => Counting::Quorum,
            None if self.is_cluster() => Counting::Own,
            None => Counting::One,
        }
    }

    /// The key of the record, where there is one.
    pub(crate) fn record(&self) -> &'static str {
        if self.quorum.is_some() { QUORUM } else { ONE }
    }

    /// For people: where it is, without a secret.
    pub fn place_name(&self) -> String {
        let list = |hosts: &[Address]| hosts.iter().map(shown).collect::<Vec<_>>().join(",");
        match &self.place {
            Place::Host(host, port) => shown(&(host.clone(), *port)),
            Place::Socket(path) => path.display().to_string(),
            Place::Sentinel { sentinels, master } => format!("{master} of {}", list(sentinels)),
            Place::Cluster(nodes) => list(nodes),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("place", &self.place_name())
            .field("db", &self.db)
            .finish_non_exhaustive()
    }
}

impl Place {
    fn of(url: &Url<'_>) -> Result<Self, ConfigError> {
        match url.scheme {
            "redis+unix" => match url.path()? {
                path if url.is_hostless() && !path.is_empty() => Ok(Self::Socket(format!("/{path}").into())),
                _ => Err(bad("redis+unix: needs a path, as in redis+unix:///run/redis.sock")),
            },
            "redis-sentinel" | "rediss-sentinel" => {
                Ok(Self::Sentinel { sentinels: url.hosts(26379)?, master: String::new() })
            }
            "redis-cluster" | "rediss-cluster" => Ok(Self::Cluster(url.hosts(6379)?)),
            _ => {
                let mut hosts = url.hosts(6379)?;
                if hosts.len() != 1 {
                    return Err(bad(
                        "redis:// names one server; several are redis-cluster:// or redis-sentinel://",
                    ));
                }
                let (host, port) = hosts.remove(0);
                Ok(Self::Host(host, port))
            }
        }
    }
}

fn parse_db(text: &str) -> Result<i64, ConfigError> {
    text.parse()
        .ok()
        .filter(|db| *db >= 0)
        .ok_or_else(|| bad("the database is a number, as in redis://host/2"))
}

#[cfg(test)]
mod tests {
    use tenure_client::Secret;

    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn a_url_names_servers_login_and_settings() {
        let c = read(
            "rediss://app:p%40ss@db.example:7000/3?key=lock:%25s&guard=off&guard=on&max_ttl=1m&ca=/ca.pem",
        );
        assert_eq!((c.place, c.db, c.tls), (Place::Host("db.example".into(), 7000), 3, true));
        assert_eq!(
            (c.login.user.as_deref(), c.login.password.as_ref().map(Secret::expose)),
            (Some("app"), Some("p@ss"))
        );
        assert_eq!((c.key.as_str(), c.guard, c.max_ttl), ("lock:%s", GuardMode::On, Duration::from_secs(60)));
        assert_eq!(read("redis://h").place, Place::Host("h".into(), 6379));
        assert_eq!(read("redis://[::1]:7/").place, Place::Host("::1".into(), 7));
        assert_eq!(read("redis://:pw@h").login.user, None);
        assert_eq!(read("redis+unix:///run/r.sock?db=1").place, Place::Socket("/run/r.sock".into()));
        let sentinels = vec![("a".into(), 26379), ("b".into(), 5)];
        assert_eq!(
            read("redis-sentinel://a,b:5/0?master=m").place,
            Place::Sentinel { sentinels, master: "m".into() }
        );
        assert_eq!(
            read("redis-cluster://a,b").place,
            Place::Cluster(vec![("a".into(), 6379), ("b".into(), 6379)])
        );
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("redis:h", "redis://"),
            ("redis://", "a host is missing"),
            ("redis://a,b", "names one server"),
            ("redis://h:0", "a port is"),
            ("redis://h:x", "a port is"),
            ("redis://h/x", "database"),
            ("redis://h?nope=1", "does not know parameter 1"),
            ("redis://h?key=x", "template"),
            ("redis://h?guard=maybe", "guard="),
            ("redis://h?max_ttl=11m", "outside"),
            ("redis://h?max_ttl=soon", "max_ttl= is no duration"),
            ("redis://h?ca=/x", "rediss"),
            ("redis://h?protocol=4", "protocol="),
            ("redis://h?master=m", "redis-sentinel"),
            ("redis-sentinel://h", "?master="),
            ("redis-cluster://h/1", "database 0"),
            ("redis+unix://x", "needs a path"),
            ("ftp://x", "unknown scheme"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    /// H3.5: a vote is that of one server.
    #[test]
    fn only_one_server_is_a_node_of_a_quorum() {
        for url in ["redis://h/2", "rediss://h?guard=off", "redis+unix:///run/r.sock"] {
            let config = read(url).in_quorum(5).unwrap();
            assert_eq!((config.counting(), config.record()), (Counting::Quorum, "tenure:quorum"), "{url}");
        }
        let refused = |url| read(url).in_quorum(3).unwrap_err().to_string();
        assert!(refused("redis-sentinel://a?master=m").contains("m of a:26379 cannot be a node"));
        assert!(refused("redis-cluster://a").contains("keeps no record"));
        assert_eq!((read("redis://h").counting(), read("redis://h").record()), (Counting::One, "tenure:one"));
        assert_eq!(read("redis-cluster://h").counting(), Counting::Own);
    }

    /// No secret is ever printed.
    #[test]
    fn nothing_shows_a_password() {
        let config = read("redis-sentinel://u:secret1@h?master=m&sentinel_password=secret2");
        assert!(!format!("{config:?} {}", config.place_name()).contains("secret"));
        let error = Config::from_url("redis://u:secret1@h:x/?a=b").unwrap_err();
        assert!(!error.to_string().contains("secret"));
    }
}
