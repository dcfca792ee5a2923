//! `Config`: which server, how to reach it, and the settings of its locks.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use tenure_client::{
    Login, Secret,
    durations::{CLAIM_TTL, CONNECT_TIMEOUT},
    tls::pair,
    url::{
        Foreign, Form, NamedHost, PASSWORD_FILE, UrlWriter, Words, bad, check_ports, encoded, named_host,
        port, shown, some,
    },
};
use tenure_ledger::Rules;

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where PostgreSQL is and how its locks behave. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The servers: a host, or the folder of a socket, which begins with a slash; and its own port.
    pub hosts: Vec<NamedHost>,
    /// The port of those that have none of their own.
    pub port: u16,
    /// User and password.
    pub login: Login,
    /// The database. Default: that of the user's name.
    pub database: Option<String>,
    /// Settings of the session. A program may have a secret there.
    pub options: Option<Secret>,
    /// What the server shows of us.
    pub application: String,
    /// Default: see [`TlsMode`].
    pub tls: Option<TlsMode>,
    /// The certificate of the authority that signed the server's; `system` stands for those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate, where the server wants to see one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// Whether the login is bound to the channel of TLS.
    pub channel_binding: ChannelBinding,
    /// A file with passwords, one line for each `host:port:database:user:password`, as libpq reads it at each connect.
    pub passfile: Option<PathBuf>,
    /// Whether a server that takes no writes is passed over; always, where there are several. Otherwise it is asked what it can
    /// answer: what is held, and not for a lock.
    pub must_write: bool,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// The table, `name` or `schema.name`.
    pub table: String,
    /// Over which connection hints come.
    pub listen: Listen,
    /// The rules of the queues.
    pub rules: Rules,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PgServer {
    Host(String, u16),
    Socket(PathBuf, u16),
}

/// As libpq means `sslmode`: without one, [`Prefer`](Self::Prefer), and [`VerifyCa`](Self::VerifyCa) if a CA is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Disable,
    /// If the server can, with whatever certificate.
    Prefer,
    /// With whatever certificate, unless a CA is named.
    Require,
    /// The CA has signed the certificate.
    VerifyCa,
    /// And it is that of the host.
    VerifyFull,
}

/// Whether the login is bound to the channel of TLS, as libpq means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server can.
    Prefer,
    /// Or there is no login.
    Require,
}

/// Over which connection hints come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// That of the verbs, if it leads to the server itself.
    Same,
    /// Over none: waiters ask again.
    Off,
    /// Another one, past the pooler.
    At(Box<Config>),
}

const FORM: Form = Form {
    store: "postgres",
    schemes: Config::SCHEMES,
    example: "postgres://127.0.0.1/db",
    settings: &[
        "table",
        "listen",
        "claim_ttl",
        "connect_timeout",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "channel_binding",
        "passfile",
        PASSWORD_FILE,
        "application_name",
        "target_session_attrs",
        "options",
        "host",
        "port",
        "user",
        "password",
        "dbname",
    ],
    aliases: &[("cert", "sslcert"), ("key", "sslkey")],
    foreign: FOREIGN,
};

/// What else libpq knows, and what ORMs and other drivers write.
const FOREIGN: &[Foreign] = &[
    // A dead connection is left after half a second of silence, whatever these say.
    Foreign("keepalives", &["*"], ""),
    Foreign("keepalives_idle", &["*"], ""),
    Foreign("keepalives_interval", &["*"], ""),
    Foreign("keepalives_count", &["*"], ""),
    Foreign("tcp_user_timeout", &["*"], ""),
    Foreign("fallback_application_name", &["*"], ""),
    Foreign("client_encoding", &["UTF8", "UTF-8", "auto"], "text is sent in UTF8; leave it out"),
    Foreign("gssencmode", &["disable", "prefer"], "Tenure does not speak GSSAPI; write gssencmode=disable"),
    Foreign("krbsrvname", &["*"], ""),
    Foreign("gsslib", &["*"], ""),
    Foreign("gssdelegation", &["0"], "Tenure does not speak GSSAPI; leave it out"),
    Foreign("sslsni", &["1"], "the name of the host is always sent; write sslsni=1"),
    Foreign("sslcompression", &["0"], "TLS is not compressed; write sslcompression=0"),
    Foreign("sslnegotiation", &["postgres"], "write sslnegotiation=postgres"),
    Foreign("ssl_min_protocol_version", &["TLSv1", "TLSv1.1", "TLSv1.2"], "TLS is 1.2 or 1.3; write TLSv1.2"),
    Foreign("ssl_max_protocol_version", &["", "TLSv1.3"], "TLS is 1.2 or 1.3; leave it out"),
    Foreign("sslcrl", &[""], "no list of revoked certificates is read; leave it out"),
    Foreign("sslcrldir", &[""], "no list of revoked certificates is read; leave it out"),
    Foreign("sslpassword", &[], "write the key to a file without a password, which sslkey= names"),
    Foreign("sslcertmode", &["allow"], "write sslcertmode=allow"),
    Foreign("load_balance_hosts", &["disable"], "the hosts are tried in their order; leave it out"),
    Foreign("hostaddr", &[], "write the address as the host"),
    Foreign("requirepeer", &[""], "the owner of a socket is not checked; leave it out"),
    Foreign("require_auth", &[""], "channel_binding=require asks for SCRAM over TLS; leave it out"),
    Foreign("replication", &["false", "0", "no", "off"], "locks need an ordinary connection; leave it out"),
    Foreign("service", &[], "write the settings of the service into the URL"),
    Foreign("servicefile", &[], "write the settings of the service into the URL"),
    Foreign("schema", &[], "write table=SCHEMA.tenure_lock (schema= is Prisma's)"),
    Foreign("currentSchema", &[], "write table=SCHEMA.tenure_lock (currentSchema= is JDBC's)"),
    Foreign("pgbouncer", &["*"], ""),
    Foreign("connection_limit", &["*"], ""),
    Foreign("pool_timeout", &["*"], ""),
    Foreign("pool_size", &["*"], ""),
    Foreign("socket_timeout", &["*"], ""),
    Foreign("statement_cache_size", &["*"], ""),
    Foreign("prepared_statement_cache_size", &["*"], ""),
    Foreign("prepared_statements", &["*"], ""),
    Foreign("serverVersion", &["*"], ""),
    Foreign("charset", &["utf8"], "text is sent in UTF8; leave it out"),
    Foreign(
        "uselibpqcompat",
        &["true"],
        "sslmode= means what libpq means; write uselibpqcompat=true or leave it out",
    ),
    Foreign(
        "sslaccept",
        &[],
        "write sslmode=verify-full for strict, sslmode=require otherwise (sslaccept= is Prisma's)",
    ),
    Foreign("sslidentity", &[], "write sslcert= and sslkey=, each the path of a file in PEM"),
    Foreign("ssl", &["false"], "write sslmode=verify-full, or sslmode=require to check no certificate"),
];

const BINDING: Words<ChannelBinding> = Words(
    "channel_binding",
    &[
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ],
);

const TLS: Words<TlsMode> = Words(
    "sslmode",
    &[
        ("disable", TlsMode::Disable),
        ("prefer", TlsMode::Prefer),
        ("require", TlsMode::Require),
        ("verify-ca", TlsMode::VerifyCa),
        ("verify-full", TlsMode::VerifyFull),
    ],
);

/// The port of a server whose URL says none.
const PORT: u16 = 5432;

impl Config {
    /// The schemes of URLs that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];

    /// Reads `postgres://user:password@host:5432/database?table=…`.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let url = FORM.read(url)?;
        let (mut names, mut ports) = (url.names()?, Vec::new());
        let mut config = Self::new(Vec::new());
        config.database = some(url.path()?);
        config.login = url.login.unwrap_or_default();
        for (key, value) in url.settings {
            match key {
                "host" => names = value.split(',').map(str::to_owned).collect(),
                "port" => ports = value.split(',').map(str::to_owned).collect(),
                _ => config.set(key, value)?,
            }
        }
        config.set_hosts(&names, &ports)?;
        config.validate()?;
        Ok(config)
    }

    /// These servers, with defaults.
    pub fn new(hosts: Vec<NamedHost>) -> Self {
        Self {
            hosts,
            port: PORT,
            login: Login::default(),
            database: None,
            options: None,
            application: "tenure".into(),
            tls: None,
            ca: None,
            cert: None,
            key: None,
            channel_binding: ChannelBinding::Prefer,
            passfile: None,
            must_write: true,
            connect_timeout: Duration::from_secs(2),
            table: "tenure_lock".into(),
            listen: Listen::Same,
            rules: Rules::default(),
        }
    }

    fn set(&mut self, key: &'static str, value: String) -> Result<(), ConfigError> {
        match key {
            "table" => self.table = value,
            "listen" if value == "off" => self.listen = Listen::Off,
            "listen" => {
                let other = Self::from_url(&value).map_err(not_past_the_pooler)?;
                self.listen = Listen::At(Box::new(other));
            }
            "claim_ttl" => self.rules.claim_ttl = CLAIM_TTL.read(&value)?,
            "connect_timeout" => {
                // libpq's are seconds.
                let is_bare = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
                let text = if is_bare { format!("{value}s") } else { value };
                self.connect_timeout = CONNECT_TIMEOUT.read(&text)?;
            }
            // It is at least as good, and what libpq's default is.
            "sslmode" if value == "allow" => self.tls = Some(TlsMode::Prefer),
            "sslmode" if value == "no-verify" => {
                return Err(bad("sslmode=no-verify is node-postgres's word for sslmode=require; write that"));
            }
            "sslmode" => self.tls = Some(TLS.read(&value)?),
            "sslcert" => self.cert = some(value).map(PathBuf::from),
            "sslkey" => self.key = some(value).map(PathBuf::from),
            "channel_binding" => self.channel_binding = BINDING.read(&value)?,
            "passfile" => self.passfile = some(value).map(PathBuf::from),
            "sslrootcert" => self.ca = some(value).map(PathBuf::from),
            "application_name" => self.application = value,
            "target_session_attrs" => {
                self.must_write = match value.as_str() {
                    "any" => false,
                    "read-write" | "primary" => true,
                    _ => {
                        return Err(bad(
                            "target_session_attrs= is any, read-write or primary: locks are written",
                        ));
                    }
                }
            }
            "options" => self.options = some(value).map(Secret::from),
            "user" => self.login.user = some(value),
            "password" => self.login.password = Some(value.into()),
            _ => self.database = some(value),
        }
        Ok(())
    }

    /// The servers of a URL, each `host`, `host:port` or a folder, and what the parameter `port` has for them.
    fn set_hosts(&mut self, names: &[String], ports: &[String]) -> Result<(), ConfigError> {
        let said = |port: &String| if port.is_empty() { Ok(None) } else { self::port(port).map(Some) };
        let ports = ports.iter().map(said).collect::<Result<Vec<_>, _>>()?;
        let (hosts, many) = (names.len(), ports.len());
        if many > 1 && many != hosts {
            return Err(bad(format!("port= has {many} numbers for {hosts} hosts")));
        }
        if let [port] = ports[..] {
            self.port = port.unwrap_or(PORT);
        }
        let host = |(at, name): (usize, &String)| {
            let is_folder = name.starts_with('/');
            let (host, own) = if is_folder { (name.clone(), None) } else { named_host(name, FORM.example)? };
            Ok((host, own.or_else(|| ports.get(at).filter(|_| many > 1).copied().flatten())))
        };
        self.hosts = names.iter().enumerate().map(host).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, and never a password.
    pub fn validate(&self) -> Result<(), ConfigError> {
        use TlsMode::{Disable, Prefer, VerifyCa, VerifyFull};
        check_ports(self.hosts.iter().filter_map(|(_, port)| *port).chain([self.port]))?;
        if self.identity()?.is_some() && self.tls == Some(Disable) {
            return Err(bad("sslcert= is for TLS, which sslmode=disable turns off"));
        }
        match (self.tls, &self.ca) {
            (Some(Disable), Some(_)) => {
                return Err(bad("sslrootcert= is for TLS, which sslmode=disable turns off"));
            }
            (Some(mode), Some(ca)) if ca == SYSTEM && mode != VerifyFull => {
                return Err(bad(
                    "sslrootcert=system needs sslmode=verify-full: a public CA certifies anybody",
                ));
            }
            (Some(Prefer), Some(_)) => {
                return Err(bad("sslmode=prefer asks no CA; with sslrootcert= use verify-ca or verify-full"));
            }
            (Some(VerifyCa), None) => {
                return Err(bad(
                    "sslmode=verify-ca needs the file of your CA, as in sslrootcert=/etc/ca.pem",
                ));
            }
            _ => {}
        }
        let parts: Vec<&str> = self.table.split('.').collect();
        // PostgreSQL cuts longer names silently, so that two of them would be one table.
        let is_name =
            |part: &&str| !part.is_empty() && part.len() <= 63 && !part.chars().any(char::is_control);
        if parts.len() > 2 || !parts.iter().all(is_name) {
            return Err(bad("table= is name or schema.name, each of 1 to 63 bytes, as in table=app.locks"));
        }
        // It is that of one session, which no other client sees.
        if parts.len() == 2 && parts[0].starts_with("pg_temp") {
            return Err(bad("table= is in a schema that all clients see, which pg_temp is not"));
        }
        if let Listen::At(other) = &self.listen {
            other.validate().map_err(not_past_the_pooler)?;
        }
        CLAIM_TTL.check(self.rules.claim_ttl)?;
        CONNECT_TIMEOUT.check(self.connect_timeout)
    }

    /// The URL that says the same. **It holds the password.**
    ///
    /// # Errors
    /// If the path of a file is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let plain = Self::new(Vec::new());
        let server = |(host, own): &NamedHost| match own {
            _ if host.starts_with('/') => encoded(host),
            // The servers of this URL are decoded, which their names are not meant to be.
            Some(port) => shown(&(host.clone(), *port)).replace('%', "%25"),
            None if host.contains(':') => format!("[{host}]").replace('%', "%25"),
            None => host.replace('%', "%25"),
        };
        let servers = self.hosts.iter().map(server).collect::<Vec<_>>().join(",");
        // Behind a folder there is no port.
        let own = |(_, own): &NamedHost| own.map(|port| port.to_string()).unwrap_or_default();
        let ports = if self.hosts.iter().any(|(host, own)| host.starts_with('/') && own.is_some()) {
            Some(self.hosts.iter().map(own).collect::<Vec<_>>().join(","))
        } else {
            (self.port != PORT).then(|| self.port.to_string())
        };
        let listen = match &self.listen {
            Listen::Same => None,
            Listen::Off => Some("off".to_owned()),
            Listen::At(other) => Some(other.to_url()?),
        };
        UrlWriter::new("postgres", &self.login, &servers)
            .path(self.database.as_deref().unwrap_or_default())
            .set("port", ports.as_deref())
            .set("sslmode", self.tls.and_then(|mode| TLS.word(mode)))
            .file("sslrootcert", self.ca.as_deref())
            .file("sslcert", self.cert.as_deref())
            .file("sslkey", self.key.as_deref())
            .set(
                "channel_binding",
                BINDING.word(self.channel_binding).filter(|_| self.channel_binding != plain.channel_binding),
            )
            .file("passfile", self.passfile.as_deref())
            .set("target_session_attrs", (!self.must_write).then_some("any"))
            .set("application_name", Some(&*self.application).filter(|name| *name != plain.application))
            .set("options", self.options.as_ref().and_then(Secret::word))
            .set("table", Some(&*self.table).filter(|table| *table != plain.table))
            .set("listen", listen.as_deref())
            .duration(CLAIM_TTL, self.rules.claim_ttl, plain.rules.claim_ttl)
            .duration(CONNECT_TIMEOUT, self.connect_timeout, plain.connect_timeout)
            .secret(PASSWORD_FILE, self.login.password.as_ref())
            .finish()
    }

    /// The servers, in the order in which they are tried.
    pub(crate) fn servers(&self) -> Vec<PgServer> {
        let server = |(host, own): &NamedHost| {
            let port = own.unwrap_or(self.port);
            if host.starts_with('/') {
                PgServer::Socket(host.into(), port)
            } else {
                PgServer::Host(host.clone(), port)
            }
        };
        self.hosts.iter().map(server).collect()
    }

    /// As libpq: a CA that is named is asked.
    pub(crate) fn tls_mode(&self) -> TlsMode {
        match (self.tls, &self.ca) {
            (None, Some(ca)) if ca == SYSTEM => TlsMode::VerifyFull,
            (None | Some(TlsMode::Require), Some(_)) => TlsMode::VerifyCa,
            (mode, _) => mode.unwrap_or(TlsMode::Prefer),
        }
    }

    /// Our certificate and its key.
    pub(crate) fn identity(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        pair(("sslcert", self.cert.as_deref()), ("sslkey", self.key.as_deref()))
    }

    /// The file of the CA.
    pub(crate) fn root_cert(&self) -> Option<&Path> {
        self.ca.as_deref().filter(|ca| *ca != SYSTEM)
    }

    /// Whether a server that takes no writes is passed over for the next one.
    pub(crate) fn needs_writes(&self) -> bool {
        self.must_write || self.hosts.len() > 1
    }

    /// With the password of the environment, where none is said. Once: a program may remove it from there.
    pub(crate) fn with_password(mut self) -> Self {
        let of_environment = || std::env::var("PGPASSWORD").ok().map(Secret::from);
        self.login.password = self.login.password.or_else(of_environment);
        if let Listen::At(config) = self.listen {
            self.listen = Listen::At(Box::new(config.with_password()));
        }
        self
    }

    /// The schema of the table, where one is named, and its name in there.
    pub(crate) fn table_parts(&self) -> (Option<&str>, &str) {
        self.table.split_once('.').map_or((None, &*self.table), |(schema, name)| (Some(schema), name))
    }

    /// For people: where it is, without a secret.
    pub fn place_name(&self) -> String {
        let hosts: Vec<String> = self.servers().iter().map(PgServer::to_string).collect();
        let database = self.database.as_ref().or(self.login.user.as_ref()).map_or("", String::as_str);
        format!("{}/{database}", hosts.join(","))
    }
}

impl fmt::Display for PgServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host, port) => f.write_str(&shown(&(host.clone(), *port))),
            Self::Socket(folder, port) => write!(f, "{}/.s.PGSQL.{port}", folder.display()),
        }
    }
}

fn not_past_the_pooler(error: ConfigError) -> ConfigError {
    bad(format!("listen= is off, or a URL that leads past the pooler, with every & as %26: {error}"))
}

/// As the file of a CA: those that this machine trusts.
const SYSTEM: &str = "system";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn a_url_names_server_login_and_settings() {
        let c = read(
            "postgres://app:p%40ss@db.example:7000/shop?table=app.my%22lock&sslmode=require&claim_ttl=1s",
        );
        assert_eq!(c.servers(), [PgServer::Host("db.example".into(), 7000)]);
        assert_eq!(
            (c.login.user.as_deref(), c.login.password.as_ref().and_then(Secret::word)),
            (Some("app"), Some("p@ss"))
        );
        assert_eq!((c.database.as_deref(), c.tls_mode()), (Some("shop"), TlsMode::Require));
        assert_eq!((c.table_parts(), c.rules.claim_ttl), ((Some("app"), "my\"lock"), Duration::from_secs(1)));
        assert_eq!(read("postgresql://h").servers(), [PgServer::Host("h".into(), 5432)]);
        assert_eq!(read("postgres://h/d?port=7").servers(), read("postgres://h:7/d").servers());
        assert_eq!(read("postgres://[::1]:7/d").servers(), [PgServer::Host("::1".into(), 7)]);
        assert_eq!(
            read("postgres://u@/d?host=/run/pg&port=6").servers(),
            [PgServer::Socket("/run/pg".into(), 6)]
        );
        assert_eq!(read("postgres://%2Frun%2Fpg/d").servers(), [PgServer::Socket("/run/pg".into(), 5432)]);
        assert_eq!(read("postgres://h/d?connect_timeout=10").connect_timeout, Duration::from_secs(10));
        assert_eq!(read("postgres://h/d?sslmode=require&sslrootcert=/ca").tls_mode(), TlsMode::VerifyCa);
    }

    #[test]
    fn of_several_servers_the_first_that_takes_writes_is_taken() {
        let c = read("postgres://a,b:6000/d?target_session_attrs=any");
        assert_eq!(c.servers(), [PgServer::Host("a".into(), 5432), PgServer::Host("b".into(), 6000)]);
        assert!(c.needs_writes());
        assert!(read("postgres://a/d").needs_writes());
        assert!(!read("postgres://a/d?target_session_attrs=any").needs_writes());
        assert!(read("postgres://a/d?target_session_attrs=read-write").needs_writes());
    }

    /// Whatever the parameter `port` has for hosts and folders.
    #[test]
    fn what_is_read_is_written_again() {
        for url in [
            "postgres://a,[fe80::1%25e],[::1]:5,b:6/d?port=7",
            "postgres://%2Frun%2Fpg,a,b:6/or/ders?port=7,,8",
            "postgres://u:p@/d?host=/run/a,/run/b&port=,8&target_session_attrs=any",
            "postgres://h/d?sslmode=prefer&options=-c%20a%3Db&table=a.b&listen=postgres://u:p@h%3Flisten=off",
        ] {
            let config = read(url);
            assert_eq!(read(&config.to_url().unwrap()), config, "{url}");
        }
        let c = read("postgres://%2Frun%2Fpg,a,b:6/d?port=7,,8");
        assert_eq!(c.place_name(), "/run/pg/.s.PGSQL.7,a:5432,b:6/d");
    }

    #[test]
    fn hints_may_come_past_the_pooler() {
        let c = read("postgres://pooler/d?listen=postgres://u:secret@db/d?sslmode=disable%26port=7");
        let Listen::At(direct) = c.listen else { panic!("a URL") };
        assert_eq!(
            (&direct.servers()[..], direct.tls_mode()),
            (&[PgServer::Host("db".into(), 7)][..], TlsMode::Disable)
        );
        assert!(matches!(read("postgres://h/d?listen=off").listen, Listen::Off));
    }

    /// What providers and ORMs print, and what libpq's own defaults are.
    #[test]
    fn what_changes_nothing_here_is_taken() {
        let plain = read("postgres://h/d");
        for query in [
            "keepalives=1&keepalives_idle=30&tcp_user_timeout=10000",
            "gssencmode=disable&krbsrvname=postgres&sslsni=1&client_encoding=UTF8",
            "pgbouncer=true&connection_limit=5&pool_timeout=10",
            "channel_binding=prefer&fallback_application_name=app",
        ] {
            assert_eq!(read(&format!("postgres://h/d?{query}")), plain, "{query}");
        }
        assert_eq!(read("postgres://h/d?sslmode=allow"), read("postgres://h/d?sslmode=prefer"));
        let neon = read("postgres://h/d?sslmode=require&channel_binding=require");
        assert_eq!(neon.channel_binding, ChannelBinding::Require);
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("postgres:h", "postgres://"),
            ("mysql://h/d", "unknown scheme"),
            ("postgres:///d", "a host is missing"),
            ("postgres://h:0/d", "a port is"),
            ("postgres://h:x/d", "a port is"),
            ("postgres://a,b,c/d?port=1,2", "2 numbers for 3"),
            ("postgres://h/d?nope=1", "does not know parameter 1"),
            ("postgres://h/d?schema=app", "write table=SCHEMA.tenure_lock"),
            ("postgres://h/d?gssencmode=require", "gssencmode= of the URL is not honoured"),
            ("postgres://h/d?sslcert=/c", "needed together"),
            ("postgres://h/d?cert=/c&key=/k&sslmode=disable", "sslcert= is for TLS"),
            ("postgres://h/d?service=x", "service= of the URL"),
            ("postgres://h/d?sslmode=no-verify", "sslmode=require"),
            ("postgres://h/d?channel_binding=x", "channel_binding= is"),
            ("postgres://h/d?table=", "table="),
            ("postgres://h/d?table=a.b.c", "table="),
            ("postgres://h/d?table=pg_temp.b", "that all clients see"),
            ("postgres://h/d?claim_ttl=9s", "outside"),
            ("postgres://h/d?claim_ttl=soon", "claim_ttl= is no duration"),
            ("postgres://h/d?sslmode=maybe", "sslmode="),
            ("postgres://h/d?sslmode=verify-ca", "sslrootcert="),
            ("postgres://h/d?sslmode=disable&sslrootcert=/ca", "turns off"),
            ("postgres://h/d?sslrootcert=/ca&sslmode=prefer", "asks no CA"),
            ("postgres://h/d?sslmode=require&sslrootcert=system", "verify-full"),
            ("postgres://h/d?sslmode=verify-ca&sslrootcert=system", "verify-full"),
            ("postgres://h/d?sslmode=prefer&sslrootcert=system", "verify-full"),
            ("postgres://h/d?target_session_attrs=standby", "target_session_attrs="),
            ("postgres://h/d?listen=somewhere", "listen="),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    /// No secret is ever printed.
    #[test]
    fn nothing_shows_a_password() {
        let config = read("postgres://u:secret1@h/d?listen=postgres://u:secret2@h/d");
        assert!(!format!("{config:?} {}", config.place_name()).contains("secret"));
        for url in ["postgres://u:secret@h:x/d", "postgres://h/d?listen=postgres://u:secret@h:x/d"] {
            assert!(!Config::from_url(url).unwrap_err().to_string().contains("secret"));
        }
    }

    /// A password with a character that means something in a URL was cut there, and its rest was printed, as the name of a database
    /// or of a parameter that there is not.
    #[test]
    fn nothing_shows_a_part_of_a_password_that_is_not_encoded() {
        for (url, part) in [
            ("postgres://app:half?secret@db/d", "%3F"),
            ("postgres://app:half/secret@db/d", "%2F"),
            ("postgres://app:ha?secret=lf/secret@db/d", "%3F"),
            ("postgres://db/d?user=u&password=half@secret", "%40"),
            ("postgres://db/d?user=u&password=half&secret", "%26"),
            ("postgres://db/d?user=u&password=half&claim_ttl=secret", "claim_ttl="),
            ("postgres://db/d?user=u&2secret", "parameter 2"),
            ("postgres://db/d?listen=postgres://app:half?secret@db/d", "%3F"),
        ] {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{url}: {error}");
        }
        let plain = read("postgres://app:p#q:r@h/d");
        assert_eq!(
            (plain.login.password.as_ref().and_then(Secret::word), plain.place_name().as_str()),
            (Some("p#q:r"), "h:5432/d")
        );
    }

    /// A CA that was named was not asked where the mode was a weak one, and nobody said so.
    #[test]
    fn a_ca_that_is_named_is_asked() {
        let tls = |query: &str| {
            let config = read(&format!("postgres://h/d{query}"));
            (config.tls_mode(), config.root_cert().is_some())
        };
        assert_eq!(tls(""), (TlsMode::Prefer, false));
        assert_eq!(tls("?sslmode=prefer"), tls(""));
        assert_eq!(tls("?sslrootcert=system"), (TlsMode::VerifyFull, false));
        assert_eq!(tls("?sslmode=verify-full&sslrootcert=system"), (TlsMode::VerifyFull, false));
        assert_eq!(tls("?sslrootcert=/ca"), (TlsMode::VerifyCa, true));
        assert_eq!(tls("?sslrootcert=/ca&sslmode=require"), (TlsMode::VerifyCa, true));
        assert_eq!(tls("?sslmode=verify-full&sslrootcert=/ca"), (TlsMode::VerifyFull, true));
    }
}
