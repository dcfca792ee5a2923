//! `Config`: which servers, how to reach them, and the settings that all clients must share.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tenure_client::{
    Login, Secret,
    durations::{CLAIM_TTL, CONNECT_TIMEOUT, MAX_TTL, RESPONSE_TIMEOUT, RETRY_MAX},
    tls::pair,
    url::{
        Foreign, Form, HostPort, Setting, Url, UrlWriter, Words, bad, check_ports, listed, named_host,
        path_text, put, shown, some,
    },
};
use tenure_core::Timing;

use crate::keys::{Counting, ONE, QUORUM};

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where Redis is and how its locks behave. A URL or a program fills it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which servers.
    pub topology: Topology,
    /// Whether they are reached over TLS.
    pub tls: bool,
    /// The certificate of the authority that signed the server's. Default: those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// The client certificate, where servers require one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub cert_key: Option<PathBuf>,
    /// The name that the certificates of the servers are for, where it is not that of the host.
    pub tls_name: Option<String>,
    /// Addresses that Sentinels name, and where they are reached from here.
    pub map: Vec<(HostPort, HostPort)>,
    /// User and password.
    pub login: Login,
    /// For the Sentinels themselves.
    pub sentinel_login: Login,
    /// The number of the database.
    pub db: i64,
    /// The key of a lock; `%s` is its name.
    pub key: String,
    /// What a server that may have forgotten locks is allowed to do.
    pub guard: GuardMode,
    /// The longest lease, where there is a guard that waits for it: see [`max_ttl`](Self::max_ttl).
    pub guarded_ttl: Duration,
    /// Whether RESP3 may be used; without it, hints come over a separate connection.
    pub resp3: bool,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub response_timeout: Duration,
    /// How long a waiter may take to acquire when its turn has come.
    pub claim_ttl: Duration,
    pub(crate) place_ttl: Duration,
    /// How long a waiter sleeps at most before it asks again.
    pub retry_max: Duration,
    /// How many nodes the quorum has of which this server is one.
    pub(crate) quorum: Option<usize>,
}

/// Which servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Host(String, u16),
    /// One server on this machine.
    Socket(PathBuf),
    /// The master of this name, as these Sentinels know it.
    Sentinel {
        /// The Sentinels.
        sentinels: Vec<HostPort>,
        /// The name of the master.
        master: String,
    },
    /// A Cluster, of which these nodes are asked for the others.
    Cluster(Vec<HostPort>),
}

/// What a server that may have forgotten locks is allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMode {
    /// It grants nothing until every lease that it may have forgotten has expired.
    On,
    /// It grants immediately: after a restart or a failover there may be two holders.
    Off,
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "redis",
    schemes: Config::SCHEMES,
    example: "redis://127.0.0.1:6379/",
    settings: SETTINGS,
    foreign: FOREIGN,
};

const SETTINGS: &[Row] = &[
    Row::own("key", Config::read_key, |c| Ok(Some(c.key.clone())))
        .means("template of the key; `%s` is the name (`%25s` in a URL)"),
    Row::word(GUARD.0, |c, text| put(&mut c.guard, GUARD.read(text)), |c| GUARD.word(c.guard))
        .means("`off`: two may hold after a restart"),
    Row::duration(MAX_TTL, |c| &mut c.guarded_ttl).means("the longest ttl, and the pause after a restart"),
    Row::duration(CONNECT_TIMEOUT, |c| &mut c.connect_timeout)
        .means("for one connection to one server: a node, a master or a Sentinel; four times as long in all"),
    Row::duration(RESPONSE_TIMEOUT, |c| &mut c.response_timeout).means("after that a connection is dropped"),
    Row::duration(CLAIM_TTL, |c| &mut c.claim_ttl).means("how long a waiter may take to acquire at its turn"),
    Row::duration(RETRY_MAX, |c| &mut c.retry_max).means("the longest pause between two polls of a waiter"),
    Row::file("ca", |c| &mut c.ca)
        .or(&["ssl_ca_certs"])
        .by_default("the system's")
        .means("file with the certificate of your CA, for `rediss`"),
    Row::file("cert", |c| &mut c.cert).or(&["ssl_certfile", "sslcert"]).means(
        "file with a client certificate in PEM, for servers that ask (`tls-auth-clients yes` is \
         Redis's default)",
    ),
    Row::file("cert_key", |c| &mut c.cert_key)
        .or(&["ssl_keyfile", "sslkey"])
        .means("file with its key in PEM, as `key=` with the path of a file"),
    Row::perhaps("tls_name", |c| &mut c.tls_name).by_default("the host").means(
        "the name that the server's certificate is for, as where Sentinel names a master by its \
         number. Not for a Cluster",
    ),
    Row::own("map", |c, text| put(&mut c.map, read_map(text)), |c| Ok(some(written_map(&c.map)))).means(
        "for Sentinel: `inner:port,outer:port`, and more pairs: where an address that a Sentinel \
         names is reached from here",
    ),
    Row::password_file("password_file", |c| &mut c.login)
        .means("the absolute path of a file with the password, read each time that a connection is made"),
    Row::word(RESP3.0, |c, text| put(&mut c.resp3, RESP3.read(text)), |c| RESP3.word(c.resp3))
        .means("`2` for servers that do not know RESP3; hints come over a second connection then"),
    Row::own("db", |c, text| put(&mut c.db, parse_db(text)), |c| Ok(Some(c.db.to_string())))
        .means("the number of the database, instead of the path of the URL"),
    Row::own("master", Config::read_master, |c| Ok(c.master().map(str::to_owned)))
        .means("for Sentinel: the name of the master"),
    Row::perhaps("sentinel_user", |c| &mut c.sentinel_login.user).means("for Sentinel: the user there"),
    Row::own(
        "sentinel_password",
        |c, text| put(&mut c.sentinel_login.password, Ok(Secret::from(text))),
        |c| Ok(c.sentinel_login.password.as_ref().and_then(Secret::word).map(str::to_owned)),
    )
    .means("for Sentinel: the password there"),
    Row::password_file("sentinel_password_file", |c| &mut c.sentinel_login)
        .means("for Sentinel: the absolute path of a file with that password"),
];

/// What the clients of other languages write.
const FOREIGN: &[Foreign] = &[
    Foreign(
        "ssl_cert_reqs",
        &["required", "CERT_REQUIRED"],
        "over TLS the certificate is checked; name its CA with ca=",
    ),
    Foreign("ssl_check_hostname", &["true", "1"], "over TLS the name is checked; name the CA with ca="),
    Foreign("ssl", &["false"], "begin the URL with rediss://"),
    Foreign("tls", &["false"], "begin the URL with rediss://"),
    Foreign("timeout", &[], "write connect_timeout= and response_timeout="),
    Foreign("socket_timeout", &[], "write response_timeout="),
    Foreign("socket_connect_timeout", &[], "write connect_timeout="),
    Foreign("virtual_host", &[], "write db="),
    Foreign("decode_responses", &["*"], ""),
    Foreign("max_connections", &["*"], ""),
    Foreign("health_check_interval", &["*"], ""),
    Foreign("retry_on_timeout", &["*"], ""),
    Foreign("family", &["*"], ""),
];

const GUARD: Words<GuardMode> = Words("guard", &[("on", GuardMode::On), ("off", GuardMode::Off)]);

const RESP3: Words<bool> = Words("protocol", &[("3", true), ("2", false)]);

impl Config {
    /// The default port of a server.
    pub const PORT: u16 = 6379;
    /// The default port of a Sentinel.
    pub const SENTINEL_PORT: u16 = 26379;

    /// The schemes of URLs that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &'static [&'static str] = &[
        "redis",
        "rediss",
        "redis+unix",
        // As redis-py, other clients and Valkey's write the same.
        "unix",
        "redis+socket",
        "valkey",
        "valkeys",
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
        let (url, given) = FORM.read(url)?;
        let mut config = Self::new(Topology::of(&url)?);
        config.tls = url.scheme.starts_with("rediss") || url.scheme == "valkeys";
        let path = url.path()?;
        if !matches!(config.topology, Topology::Socket(_)) && !path.is_empty() {
            config.db = parse_db(&path)?;
        }
        config.login = url.login.unwrap_or_default();
        given.fill(&mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// These servers, with defaults.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            tls: false,
            ca: None,
            cert: None,
            cert_key: None,
            tls_name: None,
            map: Vec::new(),
            login: Login::default(),
            sentinel_login: Login::default(),
            db: 0,
            key: "%s".into(),
            guard: GuardMode::On,
            // As long as the default ttl: every server without a record waits for that long, once.
            guarded_ttl: Timing::DEFAULT_TTL,
            resp3: true,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
            claim_ttl: Timing::CLAIM_TTL,
            place_ttl: Timing::PLACE_TTL,
            retry_max: Timing::RETRY_MAX,
            quorum: None,
        }
    }

    /// The same server as one of so many nodes of a quorum: with its own record, which has the number of nodes, and a token
    /// counter per lock, so that the nodes count alike.
    ///
    /// # Errors
    /// [`ConfigError`] for anything but one server.
    pub fn in_quorum(mut self, nodes: usize) -> Result<Self, ConfigError> {
        let why = match &self.topology {
            Topology::Host(..) | Topology::Socket(_) => {
                self.quorum = Some(nodes);
                return Ok(self);
            }
            Topology::Sentinel { .. } => {
                "Sentinel puts another server in its place, and the nodes of a quorum are always the same ones"
            }
            Topology::Cluster(_) => {
                "a Cluster keeps no record by which a server that forgot its locks would wait"
            }
        };
        let place = self.place_name();
        Err(bad(format!(
            "{place} cannot be a node of a quorum, which is one server, as in redis://host: {why}"
        )))
    }

    fn read_key(&mut self, text: &str) -> Result<(), ConfigError> {
        // A template has a %s, and a key of a certificate is a file.
        if text.starts_with('/') && !text.contains("%s") {
            self.cert_key = Some(text.into());
        } else {
            text.clone_into(&mut self.key);
        }
        Ok(())
    }

    fn read_master(&mut self, text: &str) -> Result<(), ConfigError> {
        match &mut self.topology {
            Topology::Sentinel { master, .. } => text.clone_into(master),
            _ => return Err(bad("master= is for redis-sentinel://")),
        }
        Ok(())
    }

    fn master(&self) -> Option<&str> {
        if let Topology::Sentinel { master, .. } = &self.topology { Some(master) } else { None }
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, and never a password.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.scheme()?;
        let for_tls = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("cert_key", self.cert_key.is_some()),
            ("tls_name", self.tls_name.is_some()),
        ];
        if let Some((key, _)) = for_tls.into_iter().find(|(_, is_said)| *is_said && !self.tls) {
            return Err(bad(format!("{key}= is for TLS: begin the URL with rediss")));
        }
        self.identity()?;
        if self.is_cluster() && self.tls_name.is_some() {
            return Err(bad("tls_name= is not for a Cluster: its nodes have the names that they announce"));
        }
        if !self.map.is_empty() && !matches!(self.topology, Topology::Sentinel { .. }) {
            return Err(bad("map= is for redis-sentinel://"));
        }
        check_ports(self.map.iter().flat_map(|(inner, outer)| [inner.1, outer.1]))?;
        match &self.topology {
            Topology::Host(_, port) => check_ports([*port])?,
            Topology::Socket(path) if !path.is_absolute() => {
                return Err(bad("the path of a socket is absolute"));
            }
            Topology::Socket(_) => {}
            Topology::Sentinel { master, .. } if master.is_empty() => {
                return Err(bad("redis-sentinel:// needs the name of the master, as in ?master=mymaster"));
            }
            Topology::Cluster(_) if self.db != 0 => {
                return Err(bad("a Redis Cluster has the database 0 only"));
            }
            Topology::Sentinel { sentinels: hosts, .. } | Topology::Cluster(hosts) => {
                check_ports(hosts.iter().map(|(_, port)| *port))?;
            }
        }
        if !matches!(self.topology, Topology::Sentinel { .. }) {
            let Login { user, password } = &self.sentinel_login;
            let odd = [("sentinel_user", user.is_some()), ("sentinel_password", password.is_some())];
            if let Some((key, _)) = odd.into_iter().find(|(_, is_said)| *is_said) {
                return Err(bad(format!("{key}= is for redis-sentinel://")));
            }
        }
        if self.key.matches("%s").count() != 1 {
            return Err(bad("key= is a template with one %s for the name, as in key=lock:%25s"));
        }
        FORM.check(self)
    }

    /// The URL with the same settings. **It contains the passwords.**
    ///
    /// # Errors
    /// If a path is not UTF-8, or there is no such URL.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let (servers, path) = match &self.topology {
            Topology::Host(host, port) => (shown(&(host.clone(), *port)), ""),
            Topology::Socket(path) => match path_text(path)?.strip_prefix('/') {
                Some(path) => (String::new(), path),
                None => return Err(bad("the path of a socket is absolute")),
            },
            Topology::Sentinel { sentinels, .. } => (listed(sentinels), ""),
            Topology::Cluster(nodes) => (listed(nodes), ""),
        };
        let url = UrlWriter::new(self.scheme()?, &self.login, &servers).path(path);
        FORM.written(url, self, &Self::new(Topology::Cluster(Vec::new())))
    }

    fn scheme(&self) -> Result<&'static str, ConfigError> {
        Ok(match (&self.topology, self.tls) {
            (Topology::Host(..), false) => "redis",
            (Topology::Host(..), true) => "rediss",
            (Topology::Sentinel { .. }, false) => "redis-sentinel",
            (Topology::Sentinel { .. }, true) => "rediss-sentinel",
            (Topology::Cluster(_), false) => "redis-cluster",
            (Topology::Cluster(_), true) => "rediss-cluster",
            (Topology::Socket(_), false) => "redis+unix",
            (Topology::Socket(_), true) => {
                return Err(bad("a socket on this machine is not reached over TLS"));
            }
        })
    }

    /// The client certificate and its key.
    pub(crate) fn identity(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        pair(("cert", self.cert.as_deref()), ("cert_key", self.cert_key.as_deref()))
    }

    /// Where an address is reached that a Sentinel named.
    pub(crate) fn mapped(&self, host: String, port: u16) -> HostPort {
        let inner = (host, port);
        let outer = self.map.iter().find(|(named, _)| *named == inner);
        outer.map_or(inner, |(_, outer)| outer.clone())
    }

    /// The port of all servers.
    pub fn set_port(&mut self, port: u16) {
        match &mut self.topology {
            Topology::Host(_, own) => *own = port,
            Topology::Socket(_) => {}
            Topology::Sentinel { sentinels: hosts, .. } | Topology::Cluster(hosts) => {
                hosts.iter_mut().for_each(|(_, own)| *own = port);
            }
        }
    }

    /// The longest lease. Without a guard nothing waits for it, and it is the longest lease that Tenure allows.
    pub fn max_ttl(&self) -> Duration {
        if self.is_cluster() || self.guard == GuardMode::Off { Timing::MAX_TTL } else { self.guarded_ttl }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
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
        match &self.topology {
            Topology::Host(host, port) => shown(&(host.clone(), *port)),
            Topology::Socket(path) => path.display().to_string(),
            Topology::Sentinel { sentinels, master } => format!("{master} of {}", listed(sentinels)),
            Topology::Cluster(nodes) => listed(nodes),
        }
    }
}

impl Topology {
    fn of(url: &Url<'_>) -> Result<Self, ConfigError> {
        match url.scheme {
            "redis+unix" | "unix" | "redis+socket" => match url.path()? {
                path if url.is_hostless() && !path.is_empty() => Ok(Self::Socket(format!("/{path}").into())),
                _ => Err(bad("redis+unix: needs a path, as in redis+unix:///run/redis.sock")),
            },
            "redis-sentinel" | "rediss-sentinel" => {
                Ok(Self::Sentinel { sentinels: url.hosts(Config::SENTINEL_PORT)?, master: String::new() })
            }
            "redis-cluster" | "rediss-cluster" => Ok(Self::Cluster(url.hosts(Config::PORT)?)),
            _ if url.is_hostless() && !url.path()?.is_empty() => Err(bad(
                "redis:// needs a host; the path of a socket is written as in redis+unix:///run/redis.sock",
            )),
            _ => {
                let mut hosts = url.hosts(Config::PORT)?;
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

/// Pairs of `inner:port,outer:port`, with commas between.
fn read_map(text: &str) -> Result<Vec<(HostPort, HostPort)>, ConfigError> {
    let bad_map = || bad("map= is pairs of addresses, as in map=10.0.0.5:6379,gateway.example:7005");
    let address = |text| match named_host(text, "redis://h") {
        Ok((host, Some(port))) => Ok((host, port)),
        _ => Err(bad_map()),
    };
    let addresses = text.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
    if addresses.len() % 2 == 1 {
        return Err(bad_map());
    }
    Ok(addresses.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

fn written_map(map: &[(HostPort, HostPort)]) -> String {
    let pair = |(inner, outer): &(HostPort, HostPort)| format!("{},{}", shown(inner), shown(outer));
    map.iter().map(pair).collect::<Vec<_>>().join(",")
}

fn parse_db(text: &str) -> Result<i64, ConfigError> {
    text.parse()
        .ok()
        .filter(|db| *db >= 0)
        .ok_or_else(|| bad("the database is a number, as in redis://host/2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn the_readme_has_the_settings() {
        let table = FORM.table(&Config::new(Topology::Cluster(Vec::new()))).unwrap();
        tenure_testkit::readme::assert_has_settings(env!("CARGO_MANIFEST_DIR"), &table);
    }

    #[test]
    fn a_url_names_servers_login_and_settings() {
        let c = read(
            "rediss://app:p%40ss@db.example:7000/3?key=lock:%25s&guard=off&guard=on&max_ttl=1m&ca=/ca.pem",
        );
        assert_eq!((c.topology.clone(), c.db, c.tls), (Topology::Host("db.example".into(), 7000), 3, true));
        assert_eq!(
            (c.login.user.as_deref(), c.login.password.as_ref().and_then(Secret::word)),
            (Some("app"), Some("p@ss"))
        );
        assert_eq!(
            (c.key.as_str(), c.guard, c.max_ttl()),
            ("lock:%s", GuardMode::On, Duration::from_secs(60))
        );
        assert_eq!(read("redis://h").topology, Topology::Host("h".into(), 6379));
        assert_eq!(read("redis://[::1]:7/").topology, Topology::Host("::1".into(), 7));
        assert_eq!(read("redis://:pw@h").login.user, None);
        assert_eq!(read("redis+unix:///run/r.sock?db=1").topology, Topology::Socket("/run/r.sock".into()));
        for socket in ["unix:///run/r.sock?db=1", "redis+socket:///run/r.sock?db=1"] {
            assert_eq!(read(socket), read("redis+unix:///run/r.sock?db=1"));
        }
        assert_eq!(read("rediss://h?cert=/c&key=/k"), read("rediss://h?ssl_certfile=/c&ssl_keyfile=/k"));
        let mapped = read("redis-sentinel://a?master=m&map=10.0.0.5:6379,gate:7005");
        assert_eq!(mapped.mapped("10.0.0.5".into(), 6379), ("gate".into(), 7005));
        assert_eq!(mapped.mapped("10.0.0.6".into(), 6379), ("10.0.0.6".into(), 6379));
        assert_eq!(read("valkeys://h?decode_responses=True"), read("rediss://h?ssl_cert_reqs=required"));
        let sentinels = vec![("a".into(), 26379), ("b".into(), 5)];
        assert_eq!(
            read("redis-sentinel://a,b:5/0?master=m").topology,
            Topology::Sentinel { sentinels, master: "m".into() }
        );
        assert_eq!(
            read("redis-cluster://a,b").topology,
            Topology::Cluster(vec![("a".into(), 6379), ("b".into(), 6379)])
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
            ("rediss://h?ca=", "ca= is the path of a file"),
            ("redis://h?protocol=4", "protocol="),
            ("redis://h?master=m", "redis-sentinel"),
            ("redis-sentinel://h", "?master="),
            ("redis-cluster://h/1", "database 0"),
            ("redis+unix://x", "needs a path"),
            ("redis:///run/r.sock", "redis+unix:///run/redis.sock"),
            ("rediss://h?ssl_cert_reqs=none", "ssl_cert_reqs= of the URL is not honoured"),
            ("rediss://h?cert=/c", "needed together"),
            ("redis://h?cert=/c&cert_key=/k", "is for TLS"),
            ("redis://h?map=a:1,b:2", "map= is for redis-sentinel"),
            ("redis-sentinel://h?master=m&map=a:1", "map= is"),
            ("rediss-cluster://h?tls_name=x", "tls_name= is not for a Cluster"),
            ("ftp://x", "unknown scheme"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn without_a_guard_any_lease_is_granted() {
        for url in ["redis://h?guard=off&max_ttl=5s", "redis-cluster://h?max_ttl=5s"] {
            assert_eq!(read(url).max_ttl(), Timing::MAX_TTL, "{url}");
            assert_eq!(read(&read(url).to_url().unwrap()), read(url));
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
