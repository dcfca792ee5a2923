//! `Config`: which servers, under which path, and how nodes are named.

use std::{path::PathBuf, time::Duration};

use tenure_client::{
    Login,
    durations::{CONNECT_TIMEOUT, Span, TICK},
    url::{Form, HostPort, Setting, UrlWriter, Words, bad, check_ports, listed, put},
};

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where ZooKeeper is and how its locks look there. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The members of the ensemble.
    pub hosts: Vec<HostPort>,
    /// Where the locks are: an absolute path without a slash at its end. See [`set_base`](Self::set_base).
    pub base: String,
    /// Whether they are reached over TLS.
    pub tls: bool,
    /// The certificate of the authority that signed those of the servers.
    pub ca: Option<PathBuf>,
    /// The client certificate, where servers ask for one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// User and password for digest authentication; both, if any.
    pub login: Option<Login>,
    /// How they log in. Default: in ZooKeeper's own way, which sends the password.
    pub sasl: Option<Sasl>,
    /// How nodes are named.
    pub layout: Layout,
    /// The access rights of Tenure's nodes; by default those of the user, if there is one.
    pub access: Option<Access>,
    /// The servers' `tickTime`.
    pub tick: Duration,
    /// How long a session may take to open.
    pub connect_timeout: Duration,
}

/// The library whose node names are used, so that its locks and Tenure's exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `InterProcessMutex` of Apache Curator.
    Curator,
    /// `Lock` of kazoo.
    Kazoo,
}

/// A mechanism of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sasl {
    /// Answers a challenge of the server, which has a user of this name in the section `Server` of its JAAS file.
    DigestMd5,
}

/// The access rights of Tenure's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Every client has all rights.
    Open,
    /// All rights for the user that made the node, none for others.
    Creator,
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "zookeeper",
    schemes: Config::SCHEMES,
    example: "zookeeper://127.0.0.1:2181/tenure",
    settings: SETTINGS,
    foreign: &[],
};

const SETTINGS: &[Row] = &[
    Row::word(LAYOUT.0, |c, text| put(&mut c.layout, LAYOUT.read(text)), |c| LAYOUT.word(c.layout))
        .means("the names of nodes: `curator` or `kazoo`"),
    Row::duration(TICK, |c| &mut c.tick).means("the servers' `tickTime`"),
    Row::word(
        ACCESS.0,
        |c, text| put(&mut c.access, ACCESS.read(text)),
        |c| c.access.and_then(|access| ACCESS.word(access)),
    )
    .by_default("`creator` with a login, else `open`")
    .means("who may access Tenure's nodes; `creator` is also possible with `cert=`"),
    Row::file("ca", |c| &mut c.ca).means(
        "with `zookeepers://`: the file of the authority that signed the servers' certificates, in \
         PEM; required",
    ),
    Row::file("cert", |c| &mut c.cert)
        .means("with `zookeepers://`: the file of the client certificate, in PEM"),
    Row::file("key", |c| &mut c.key).means("with `zookeepers://`: the file of its key, in PEM"),
    Row::word(
        SASL.0,
        |c, text| put(&mut c.sasl, SASL.read(text)),
        |c| c.sasl.and_then(|sasl| SASL.word(sasl)),
    )
    .means("`digest-md5`: log in by SASL, as a user of the section `Server` of the servers' JAAS file"),
    Row::password_file("password_file", |c| c.login.get_or_insert_default())
        .means("the absolute path of a file with the password of the login, read for each new session"),
    Row::duration(CONNECT, |c| &mut c.connect_timeout)
        .means("how long a server may be silent before another one is tried; at most ¼ of the ttl"),
];

const LAYOUT: Words<Layout> = Words("layout", &[("curator", Layout::Curator), ("kazoo", Layout::Kazoo)]);
const SASL: Words<Sasl> = Words("sasl", &[("digest-md5", Sasl::DigestMd5)]);
const ACCESS: Words<Access> = Words("acl", &[("open", Access::Open), ("creator", Access::Creator)]);
/// A server is asked repeatedly during this time.
const CONNECT: Span = CONNECT_TIMEOUT.at_least(Duration::from_millis(250));
const BASE: &str = "/tenure";

impl Config {
    /// The schemes that [`from_url`](Self::from_url) reads.
    #[cfg(not(feature = "tls"))]
    pub const SCHEMES: &[&str] = &["zookeeper"];
    /// The schemes that [`from_url`](Self::from_url) reads.
    #[cfg(feature = "tls")]
    pub const SCHEMES: &[&str] = &["zookeeper", "zookeepers"];
    /// The default port of a server.
    pub const PORT: u16 = 2181;

    /// An ensemble, with defaults.
    pub fn new(hosts: Vec<HostPort>) -> Self {
        Self {
            hosts,
            base: BASE.into(),
            tls: false,
            ca: None,
            cert: None,
            key: None,
            login: None,
            sasl: None,
            layout: Layout::Curator,
            access: None,
            tick: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(3),
        }
    }

    /// Reads `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?parameters]`, or `zookeepers://…?ca=FILE` with TLS.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong; never shows the password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let (url, given) = FORM.read(url)?;
        let mut config = Self::new(url.hosts(Self::PORT)?);
        config.set_base(&url.path()?);
        config.tls = url.scheme == "zookeepers";
        config.login = url.login;
        given.fill(&mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// Sets the node under which the locks are, without its first slash; `/tenure`, if it is empty.
    pub fn set_base(&mut self, path: &str) {
        let path = path.trim_end_matches('/');
        self.base = if path.is_empty() { BASE.into() } else { format!("/{path}") };
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong; never shows the password.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_ports(self.hosts.iter().map(|(_, port)| *port))?;
        let login = self.login.as_ref().map(Login::whole).transpose()?;
        if login.is_some_and(|(user, _)| user.contains(':')) {
            return Err(bad("the user has no colon: digest authentication knows none"));
        }
        let mut parts = self.base.split('/').skip(1);
        let is_bad = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
        if parts.clone().any(is_bad) {
            return Err(bad(
                "this is not a path of ZooKeeper: a part of it is empty, is . or .., or has control characters",
            ));
        }
        if parts.next() == Some("zookeeper") {
            return Err(bad("/zookeeper belongs to ZooKeeper itself; choose another path"));
        }
        if self.access == Some(Access::Creator) && login.is_none() && self.cert.is_none() {
            return Err(bad(
                "acl=creator needs a user: begin the URL with zookeeper://user:password@, or name a certificate with cert=",
            ));
        }
        if self.sasl.is_some() {
            if cfg!(not(feature = "sasl")) {
                return Err(bad(
                    "this build has no zookeeper-sasl support; rebuild with --features zookeeper-sasl",
                ));
            }
            if login.is_none() {
                return Err(bad("sasl= needs a user: begin the URL with zookeeper://user:password@"));
            }
        }
        self.check_tls()?;
        FORM.check(self)
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        if !self.tls {
            let files = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
            let odd = files.into_iter().find(|(_, file)| file.is_some());
            return odd.map_or(Ok(()), |(key, _)| Err(bad(format!("{key}= is for zookeepers://"))));
        }
        if self.ca.is_none() {
            return Err(bad("zookeepers:// needs the certificate of the servers' CA, as in ?ca=/etc/ca.pem"));
        }
        #[cfg(feature = "tls")]
        {
            self.identity()?;
            // The driver would panic.
            let is_nameless =
                |(host, _): &HostPort| rustls::pki_types::ServerName::try_from(&host[..]).is_err();
            match self.hosts.iter().any(is_nameless) {
                true => Err(bad("over TLS a host is a name or an address that a certificate can have")),
                false => Ok(()),
            }
        }
        #[cfg(not(feature = "tls"))]
        Err(bad("this build has no zookeeper-tls support; rebuild with --features zookeeper-tls"))
    }

    /// The URL with the same settings. **It holds the password.**
    ///
    /// # Errors
    /// If the path of a file is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let path = if self.base == BASE { "" } else { self.base.trim_start_matches('/') };
        let scheme = if self.tls { "zookeepers" } else { "zookeeper" };
        let login = self.login.clone().unwrap_or_default();
        let url = UrlWriter::new(scheme, &login, &listed(&self.hosts)).path(path);
        FORM.written(url, self, &Self::new(Vec::new()))
    }

    /// The access rights of Tenure's nodes.
    pub(crate) fn access(&self) -> Access {
        let default = || if self.login.is_some() { Access::Creator } else { Access::Open };
        self.access.unwrap_or_else(default)
    }

    /// The client certificate and its key.
    #[cfg(feature = "tls")]
    pub(crate) fn identity(&self) -> Result<Option<(&std::path::Path, &std::path::Path)>, ConfigError> {
        tenure_client::tls::pair(("cert", self.cert.as_deref()), ("key", self.key.as_deref()))
    }

    /// The servers, for messages, without a secret.
    pub fn place_name(&self) -> String {
        listed(&self.hosts)
    }

    /// How much longer than the ttl the requested session is: see [`Pulse`](crate::pulse::Pulse).
    pub(crate) fn slack(&self) -> Duration {
        self.tick * 3 / 2
    }

    /// How often a session sends a beat to the ensemble.
    pub(crate) fn beat(&self) -> Duration {
        self.tick / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn the_readme_has_the_settings() {
        let table = FORM.table(&Config::new(Vec::new())).unwrap();
        tenure_testkit::readme::assert_has_settings(env!("CARGO_MANIFEST_DIR"), &table);
    }

    #[test]
    fn a_url_names_servers_path_login_and_settings() {
        let c = read("zookeeper://app:p%40ss@a,b:5,[::1]:6/locks/mine/?layout=kazoo&tick=500ms");
        assert_eq!(c.place_name(), "a:2181,b:5,[::1]:6");
        assert_eq!((c.base.as_str(), c.layout, c.access()), ("/locks/mine", Layout::Kazoo, Access::Creator));
        assert_eq!(c.tick, Duration::from_millis(500));
        assert_eq!(c.login, Some(Login { user: Some("app".into()), password: Some("p@ss".into()) }));
        assert_eq!(read(&c.to_url().unwrap()), c);
        let plain = read("zookeeper://h");
        assert_eq!(
            (plain.base.as_str(), plain.layout, plain.access()),
            ("/tenure", Layout::Curator, Access::Open)
        );
        assert_eq!(plain.tick, Duration::from_secs(2), "ZooKeeper's own default");
        assert_eq!(read("zookeeper://u:p@h/?acl=open").access(), Access::Open);
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
            ("zookeeper://@h", "needs a user"),
            ("zookeeper://a%3Ab:p@h", "no colon"),
            ("zookeeper://h/a//b", "not a path"),
            ("zookeeper://h//b", "not a path"),
            ("zookeeper://h/../b", "not a path"),
            ("zookeeper://h/zookeeper/x", "belongs to ZooKeeper"),
            ("zookeeper://h?nope=1", "does not know parameter 1"),
            ("zookeeper://h?layout=x", "layout="),
            ("zookeeper://h?acl=x", "acl="),
            ("zookeeper://h?acl=creator", "needs a user"),
            ("zookeeper://h?sasl=plain", "sasl= is"),
            ("zookeeper://h?ca=/x", "ca= is for zookeepers://"),
            ("zookeeper://h?cert=/x", "cert= is for zookeepers://"),
            ("zookeeper://h?tick=soon", "tick= is no duration"),
            ("zookeeper://h?tick=1ms", "outside"),
            ("zookeeper://h?connect_timeout=1h", "outside"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    #[cfg(feature = "sasl")]
    #[test]
    fn a_login_may_be_by_sasl() {
        let c = read("zookeeper://app:pw@h/?sasl=digest-md5");
        assert_eq!((c.sasl, c.access()), (Some(Sasl::DigestMd5), Access::Creator));
        assert_eq!(read(&c.to_url().unwrap()), c);
        let no_user = Config::from_url("zookeeper://h?sasl=digest-md5").unwrap_err().to_string();
        assert!(no_user.contains("sasl= needs a user"), "{no_user}");
    }

    #[cfg(not(feature = "sasl"))]
    #[test]
    fn a_build_without_sasl_says_so() {
        let refused = Config::from_url("zookeeper://u:p@h?sasl=digest-md5").unwrap_err().to_string();
        assert!(refused.contains("--features zookeeper-sasl"), "{refused}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn over_tls_the_ca_is_named() {
        let c = read("zookeepers://a,[::1]:6/?ca=/ca.pem&cert=/c&key=/k");
        assert_eq!((c.tls, c.identity().unwrap()), (true, Some(("/c".as_ref(), "/k".as_ref()))));
        assert_eq!(read(&c.to_url().unwrap()), c);
        for (url, part) in [
            ("zookeepers://h", "?ca="),
            ("zookeepers://h?ca=/x&cert=/y", "needed together"),
            ("zookeepers://h,a%25b?ca=/x", "that a certificate can have"),
        ] {
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
