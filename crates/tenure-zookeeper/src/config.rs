//! `Config`: which servers, under which path, and how nodes are named; from a URL.

use std::{fmt, time::Duration};

use tenure_client::{
    Secret,
    durations::{CONNECT_TIMEOUT, TICK},
    url::{Address, Form, bad, shown},
};

/// Why a URL is refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where ZooKeeper is and how its locks look there.
///
/// `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) hosts: Vec<Address>,
    /// Where the locks are: an absolute path without a slash at its end.
    pub(crate) base: String,
    pub(crate) login: Option<Login>,
    pub(crate) layout: Layout,
    pub(crate) access: Access,
    /// The servers' `tickTime`.
    pub(crate) tick: Duration,
    pub(crate) connect_timeout: Duration,
}

/// User and password for digest authentication.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

/// The library whose node names are used, so that its locks and ours exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `InterProcessMutex` of Apache Curator.
    Curator,
    /// `Lock` of kazoo.
    Kazoo,
}

/// The access rights of our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Everybody anything.
    Open,
    /// All rights for the user that made the node, none for others.
    Creator,
}

const FORM: Form = Form {
    store: "zookeeper",
    schemes: Config::SCHEMES,
    example: "zookeeper://127.0.0.1:2181/tenure",
    settings: &["layout", "tick", "acl", "connect_timeout"],
};
const PORT: u16 = 2181;
/// A server is asked again and again meanwhile.
const LEAST_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

impl Config {
    /// The schemes that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &[&str] = &["zookeeper"];

    /// Reads `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?parameters]`.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong; never shows the password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let url = FORM.read(url)?;
        let login = url.login.clone().map(Login::of).transpose()?;
        let mut config = Self {
            hosts: url.hosts(PORT)?,
            base: parse_base(&url.path()?)?,
            access: if login.is_some() { Access::Creator } else { Access::Open },
            login,
            layout: Layout::Curator,
            tick: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(3),
        };
        for (key, value) in url.settings {
            config.set(key, &value)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), ConfigError> {
        match (key, value) {
            ("layout", "curator") => self.layout = Layout::Curator,
            ("layout", "kazoo") => self.layout = Layout::Kazoo,
            ("layout", _) => return Err(bad("layout= is curator or kazoo")),
            ("acl", "open") => self.access = Access::Open,
            ("acl", "creator") if self.login.is_some() => self.access = Access::Creator,
            ("acl", "creator") => {
                return Err(bad("acl=creator needs a user: begin the URL with zookeeper://user:password@"));
            }
            ("acl", _) => return Err(bad("acl= is open or creator")),
            ("tick", _) => self.tick = TICK.read(value)?,
            _ => self.connect_timeout = CONNECT_TIMEOUT.at_least(LEAST_CONNECT_TIMEOUT).read(value)?,
        }
        Ok(())
    }

    /// For people: which servers, without a secret.
    pub fn place_name(&self) -> String {
        self.hosts.iter().map(shown).collect::<Vec<_>>().join(",")
    }

    /// How much longer than its ttl a session is asked for: see [`Pulse`](crate::pulse::Pulse).
    pub(crate) fn slack(&self) -> Duration {
        self.tick * 3 / 2
    }

    /// How often the ensemble hears of a session.
    pub(crate) fn beat(&self) -> Duration {
        self.tick / 4
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("place", &self.place_name())
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl Login {
    fn of(login: tenure_client::Login) -> Result<Self, ConfigError> {
        let (user, password) = login.whole()?;
        if user.contains(':') {
            return Err(bad("the user has no colon: digest authentication knows none"));
        }
        Ok(Self { user, password })
    }
}

fn parse_base(path: &str) -> Result<String, ConfigError> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok("/tenure".into());
    }
    let is_bad = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
    if path.split('/').any(is_bad) {
        return Err(bad(
            "this is not a path of ZooKeeper: a part of it is empty, is . or .., or has control characters",
        ));
    }
    if path.split('/').next() == Some("zookeeper") {
        return Err(bad("/zookeeper belongs to ZooKeeper itself; choose another path"));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn a_url_names_servers_path_login_and_settings() {
        let c = read("zookeeper://app:p%40ss@a,b:5,[::1]:6/locks/mine/?layout=kazoo&tick=500ms");
        assert_eq!(c.place_name(), "a:2181,b:5,[::1]:6");
        assert_eq!((c.base.as_str(), c.layout, c.access), ("/locks/mine", Layout::Kazoo, Access::Creator));
        assert_eq!(c.tick, Duration::from_millis(500));
        assert!(c.login == Some(Login { user: "app".into(), password: "p@ss".into() }));
        let plain = read("zookeeper://h");
        assert_eq!(
            (plain.base.as_str(), plain.layout, plain.access),
            ("/tenure", Layout::Curator, Access::Open)
        );
        assert_eq!(plain.tick, Duration::from_secs(2), "ZooKeeper's own default");
        assert_eq!(read("zookeeper://u:p@h/?acl=open").access, Access::Open);
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("zookeeper:h", "zookeeper://"),
            ("zookeeper://", "a host is missing"),
            ("zookeeper://a,,b", "a host is missing"),
            ("zookeeper://h:0", "a port is"),
            ("zookeeper://h:x", "a port is"),
            ("zookeeper://u@h", "needs a password"),
            ("zookeeper://:p@h", "needs a user"),
            ("zookeeper://a%3Ab:p@h", "no colon"),
            ("zookeeper://h/a//b", "not a path"),
            ("zookeeper://h/../b", "not a path"),
            ("zookeeper://h/zookeeper/x", "belongs to ZooKeeper"),
            ("zookeeper://h?nope=1", "does not know parameter 1"),
            ("zookeeper://h?layout=x", "layout="),
            ("zookeeper://h?acl=x", "acl="),
            ("zookeeper://h?acl=creator", "needs a user"),
            ("zookeeper://h?tick=soon", "tick= is no duration"),
            ("zookeeper://h?tick=1ms", "outside"),
            ("zookeeper://h?connect_timeout=1h", "outside"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    /// No secret is ever printed.
    #[test]
    fn nothing_shows_a_password() {
        let config = read("zookeeper://u:secret1@h");
        assert!(!format!("{config:?} {}", config.place_name()).contains("secret"));
        let error = Config::from_url("zookeeper://u:secret1@h:x/?a=b").unwrap_err();
        assert!(!error.to_string().contains("secret"));
    }
}
