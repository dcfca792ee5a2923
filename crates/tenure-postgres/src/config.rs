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
        Foreign, Form, NamedHost, Setting, UrlWriter, Words, bad, check_ports, encoded, named_host, port,
        put, shown, some,
    },
};
use tenure_ledger::Rules;

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where PostgreSQL is and how its locks behave. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The servers. Each is a host or the folder of a socket, which begins with a slash; and its own port, if it has
    /// one.
    pub hosts: Vec<NamedHost>,
    /// The port of servers that are named without one.
    pub port: u16,
    /// User and password.
    pub login: Login,
    /// The database. Default: the one with the name of the user.
    pub database: Option<String>,
    /// Settings of the session. They may contain a secret.
    pub options: Option<Secret>,
    /// The name of this client, as the server shows it.
    pub application: String,
    /// Default: see [`TlsMode`].
    pub tls: Option<TlsMode>,
    /// The certificate of the authority that signed the server's. `system` means the authorities that this machine
    /// trusts.
    pub ca: Option<PathBuf>,
    /// The client certificate, if the server asks for one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// Whether the login is bound to the channel of TLS.
    pub channel_binding: ChannelBinding,
    /// A file of passwords, one line for each `host:port:database:user:password`. It is read at each connect, as in
    /// libpq.
    pub passfile: Option<PathBuf>,
    /// Whether a server that takes no writes is refused. Among several servers such a server is always skipped. If it
    /// is accepted, it shows which locks are held, and grants none.
    pub must_write: bool,
    /// How long a server may be silent while a connection opens.
    pub connect_timeout: Duration,
    /// The table, `name` or `schema.name`.
    pub table: String,
    /// The connection over which hints arrive.
    pub listen: Listen,
    /// The rules of the queues.
    pub rules: Rules,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Host(String, u16),
    Socket(PathBuf, u16),
}

/// The modes of libpq's `sslmode`. Default: [`Prefer`](Self::Prefer), or [`VerifyCa`](Self::VerifyCa) if a CA is named,
/// or [`VerifyFull`](Self::VerifyFull) if that is `system`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server supports it, with any certificate.
    Prefer,
    /// TLS with any certificate, unless a CA is named.
    Require,
    /// The CA has signed the certificate.
    VerifyCa,
    /// The CA has signed the certificate, and it is for the name of the host.
    VerifyFull,
}

/// Whether the login is bound to the channel of TLS, as in libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If the server supports it.
    Prefer,
    /// Always: otherwise the login fails.
    Require,
}

/// The connection over which hints arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// The connection of the verbs, if it leads to the server itself.
    Same,
    /// No connection: waiters ask again.
    Off,
    /// Another connection, past the pooler.
    At(Box<Config>),
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "postgres",
    schemes: Config::SCHEMES,
    example: "postgres://127.0.0.1/db",
    settings: SETTINGS,
    foreign: FOREIGN,
};

const SETTINGS: &[Row] = &[
    Row::text("table", |c| &mut c.table)
        .means("`name` or, better, `schema.name`; every client of a lock names the same"),
    Row::own("listen", Config::read_listen, Config::written_listen)
        .is_url()
        .by_default("the same connection")
        .means("`off`, or a URL for hints, with every `&` in it as `%26`"),
    Row::duration(CLAIM_TTL, |c| &mut c.rules.claim_ttl)
        .means("how long a waiter may take to acquire at its turn"),
    Row::duration(CONNECT_TIMEOUT.bare_seconds(), |c| &mut c.connect_timeout).means(
        "how long one server may be silent while a connection opens; with TLS and a password that \
         takes some eight answers, and as many times this at most; a bare number is seconds",
    ),
    Row::word(TLS.0, Config::read_tls, |c| c.tls.and_then(|mode| TLS.word(mode)))
        .by_default("`prefer`; `verify-ca` with `sslrootcert`")
        .means("`disable`, `prefer`, `require`, `verify-ca`, `verify-full`, as libpq means them"),
    Row::perhaps_file("sslrootcert", |c| &mut c.ca)
        .by_default("the system's for `verify-full`, else none")
        .means(
            "file with the certificate of your CA, or `system`, which means `verify-full`; refused where \
             it would not be used or cannot be read",
        ),
    Row::perhaps_file("sslcert", |c| &mut c.cert)
        .or(&["cert"])
        .means("file with a client certificate in PEM, for `clientcert=` of the server"),
    Row::perhaps_file("sslkey", |c| &mut c.key)
        .or(&["key"])
        .means("file with its key in PEM; one with a password is refused"),
    Row::password_file("password_file", |c| &mut c.login)
        .means("the absolute path of a file with the password, read each time that a connection is made"),
    Row::word(
        BINDING.0,
        |c, text| put(&mut c.channel_binding, BINDING.read(text)),
        |c| BINDING.word(c.channel_binding),
    )
    .means("`disable`, `prefer`, `require`: whether the login is bound to the channel of TLS"),
    Row::perhaps_file("passfile", |c| &mut c.passfile).means(
        "file with lines `host:port:database:user:password` and mode 0600, read at each connect where \
         no password is set",
    ),
    Row::word("target_session_attrs", Config::read_writes, |c| (!c.must_write).then_some("any"))
        .by_default("`read-write`")
        .means(
            "a server that takes no writes is refused, or skipped where several are named; `any`: one \
             such server is accepted and shows locks",
        ),
    Row::text("application_name", |c| &mut c.application).means("as `pg_stat_activity` shows it"),
    Row::own(
        "options",
        |c, text| put(&mut c.options, Ok(some(text).map(Secret::from))),
        |c| Ok(c.options.as_ref().and_then(Secret::word).map(str::to_owned)),
    )
    .means("settings of the session, as in `options=-c%20search_path=app`"),
    Row::of_address("host", |c, text| c.set_hosts(text.split(',')))
        .means("instead of the servers of the URL; a folder is that of a socket"),
    Row::own("port", Config::read_ports, Config::written_ports)
        .by_default("5432")
        .means("of servers without one: one number for all, or one for each"),
    Row::of_address("user", |c, text| put(&mut c.login.user, Ok(some(text))))
        .means("instead of that in front of the servers"),
    Row::of_address("password", |c, text| put(&mut c.login.password, Ok(Some(text.into()))))
        .means("instead of that in front of the servers; `PGPASSWORD` is read as well"),
    Row::of_address("dbname", |c, text| put(&mut c.database, Ok(some(text))))
        .by_default("that of the user's name")
        .means("instead of the path of the URL"),
];

/// Other parameters of libpq, and parameters of ORMs and other drivers.
const FOREIGN: &[Foreign] = &[
    // A dead connection is abandoned after half a second of silence, whatever these settings are.
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

/// The port of a server that is named without one.
const PORT: u16 = 5432;

impl Config {
    /// The schemes of URLs that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];

    /// Reads `postgres://user:password@host:5432/database?table=…`.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let (url, given) = FORM.read(url)?;
        let mut config = Self::new(Vec::new());
        config.database = some(url.path()?);
        if !url.is_hostless() && !given.has("host") {
            config.set_hosts(url.names()?.iter().map(String::as_str))?;
        }
        config.login = url.login.unwrap_or_default();
        given.fill(&mut config)?;
        if config.hosts.is_empty() {
            return Err(bad(format!("a host is missing, as in {}", FORM.example)));
        }
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

    fn read_listen(&mut self, text: &str) -> Result<(), ConfigError> {
        self.listen = match text {
            "off" => Listen::Off,
            url => Listen::At(Box::new(Self::from_url(url).map_err(not_past_the_pooler)?)),
        };
        Ok(())
    }

    fn written_listen(&self) -> Result<Option<String>, ConfigError> {
        match &self.listen {
            Listen::Same => Ok(None),
            Listen::Off => Ok(Some("off".to_owned())),
            Listen::At(other) => other.to_url().map(Some),
        }
    }

    fn read_tls(&mut self, text: &str) -> Result<(), ConfigError> {
        self.tls = Some(match text {
            // `Prefer` is at least as good as `allow`, and it is the default of libpq.
            "allow" => TlsMode::Prefer,
            "no-verify" => {
                return Err(bad("sslmode=no-verify is node-postgres's word for sslmode=require; write that"));
            }
            mode => TLS.read(mode)?,
        });
        Ok(())
    }

    fn read_writes(&mut self, text: &str) -> Result<(), ConfigError> {
        self.must_write = match text {
            "any" => false,
            "read-write" | "primary" => true,
            _ => {
                return Err(bad("target_session_attrs= is any, read-write or primary: locks are written"));
            }
        };
        Ok(())
    }

    /// The servers, each `host`, `host:port` or a folder.
    fn set_hosts<'h>(&mut self, names: impl Iterator<Item = &'h str>) -> Result<(), ConfigError> {
        let host = |name: &'h str| match name.starts_with('/') {
            true => Ok((name.to_owned(), None)),
            false => named_host(name, FORM.example),
        };
        self.hosts = names.map(host).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// One port for all servers, or one for each. A port that is named with its server takes precedence.
    fn read_ports(&mut self, text: &str) -> Result<(), ConfigError> {
        let given = |text: &str| if text.is_empty() { Ok(None) } else { port(text).map(Some) };
        let ports = text.split(',').map(given).collect::<Result<Vec<_>, _>>()?;
        let (hosts, many) = (self.hosts.len(), ports.len());
        match ports[..] {
            [one] => self.port = one.unwrap_or(PORT),
            _ if many == hosts => {
                for ((_, own), port) in self.hosts.iter_mut().zip(ports) {
                    *own = own.or(port);
                }
            }
            _ => return Err(bad(format!("port= has {many} numbers for {hosts} hosts"))),
        }
        Ok(())
    }

    fn written_ports(&self) -> Result<Option<String>, ConfigError> {
        // In the URL a folder cannot be followed by a port.
        let own = |(_, own): &NamedHost| own.map(|port| port.to_string()).unwrap_or_default();
        if self.hosts.iter().any(|(host, own)| host.starts_with('/') && own.is_some()) {
            return Ok(Some(self.hosts.iter().map(own).collect::<Vec<_>>().join(",")));
        }
        Ok((self.port != PORT).then(|| self.port.to_string()))
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
        // PostgreSQL silently cuts longer names, so two names could mean one table.
        let is_name =
            |part: &&str| !part.is_empty() && part.len() <= 63 && !part.chars().any(char::is_control);
        if parts.len() > 2 || !parts.iter().all(is_name) {
            return Err(bad("table= is name or schema.name, each of 1 to 63 bytes, as in table=app.locks"));
        }
        // `pg_temp` is the schema of one session: no other client sees it.
        if parts.len() == 2 && parts[0].starts_with("pg_temp") {
            return Err(bad("table= is in a schema that all clients see, which pg_temp is not"));
        }
        if let Listen::At(other) = &self.listen {
            other.validate().map_err(not_past_the_pooler)?;
        }
        FORM.check(self)
    }

    /// The URL with the same settings. **It contains the password.**
    ///
    /// # Errors
    /// If the path of a file is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let server = |(host, own): &NamedHost| match own {
            _ if host.starts_with('/') => encoded(host),
            // Reading the URL decodes its servers, so a `%` of a name is encoded here.
            Some(port) => shown(&(host.clone(), *port)).replace('%', "%25"),
            None if host.contains(':') => format!("[{host}]").replace('%', "%25"),
            None => host.replace('%', "%25"),
        };
        let servers = self.hosts.iter().map(server).collect::<Vec<_>>().join(",");
        let path = self.database.as_deref().unwrap_or_default();
        let url = UrlWriter::new("postgres", &self.login, &servers).path(path);
        FORM.written(url, self, &Self::new(Vec::new()))
    }

    /// The servers, in the order in which they are tried.
    pub(crate) fn servers(&self) -> Vec<Server> {
        let server = |(host, own): &NamedHost| {
            let port = own.unwrap_or(self.port);
            if host.starts_with('/') {
                Server::Socket(host.into(), port)
            } else {
                Server::Host(host.clone(), port)
            }
        };
        self.hosts.iter().map(server).collect()
    }

    /// As in libpq: if a CA is named, certificates are checked against it.
    pub(crate) fn tls_mode(&self) -> TlsMode {
        match (self.tls, &self.ca) {
            (None, Some(ca)) if ca == SYSTEM => TlsMode::VerifyFull,
            (None | Some(TlsMode::Require), Some(_)) => TlsMode::VerifyCa,
            (mode, _) => mode.unwrap_or(TlsMode::Prefer),
        }
    }

    /// The client certificate and its key.
    pub(crate) fn identity(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        pair(("sslcert", self.cert.as_deref()), ("sslkey", self.key.as_deref()))
    }

    /// The file of the CA.
    pub(crate) fn root_cert(&self) -> Option<&Path> {
        self.ca.as_deref().filter(|ca| *ca != SYSTEM)
    }

    /// Whether a server that takes no writes is skipped.
    pub(crate) fn needs_writes(&self) -> bool {
        self.must_write || self.hosts.len() > 1
    }

    /// With the password of the environment, if none is set. It is read once, because a program may remove it from
    /// there.
    pub(crate) fn with_password(mut self) -> Self {
        let of_environment = || std::env::var("PGPASSWORD").ok().map(Secret::from);
        self.login.password = self.login.password.or_else(of_environment);
        if let Listen::At(config) = self.listen {
            self.listen = Listen::At(Box::new(config.with_password()));
        }
        self
    }

    /// The schema of the table, if one is named, and the name of the table in it.
    pub(crate) fn table_parts(&self) -> (Option<&str>, &str) {
        self.table.split_once('.').map_or((None, &*self.table), |(schema, name)| (Some(schema), name))
    }

    /// For people: where the locks are, without a secret.
    pub fn place_name(&self) -> String {
        let hosts: Vec<String> = self.servers().iter().map(Server::to_string).collect();
        let database = self.database.as_ref().or(self.login.user.as_ref()).map_or("", String::as_str);
        format!("{}/{database}", hosts.join(","))
    }
}

impl fmt::Display for Server {
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

/// As the file of a CA, this word means the authorities that this machine trusts.
const SYSTEM: &str = "system";

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
    fn a_url_names_server_login_and_settings() {
        let c = read(
            "postgres://app:p%40ss@db.example:7000/shop?table=app.my%22lock&sslmode=require&claim_ttl=1s",
        );
        assert_eq!(c.servers(), [Server::Host("db.example".into(), 7000)]);
        assert_eq!(
            (c.login.user.as_deref(), c.login.password.as_ref().and_then(Secret::word)),
            (Some("app"), Some("p@ss"))
        );
        assert_eq!((c.database.as_deref(), c.tls_mode()), (Some("shop"), TlsMode::Require));
        assert_eq!((c.table_parts(), c.rules.claim_ttl), ((Some("app"), "my\"lock"), Duration::from_secs(1)));
        assert_eq!(read("postgresql://h").servers(), [Server::Host("h".into(), 5432)]);
        assert_eq!(read("postgres://h/d?port=7").servers(), read("postgres://h:7/d").servers());
        assert_eq!(read("postgres://[::1]:7/d").servers(), [Server::Host("::1".into(), 7)]);
        assert_eq!(
            read("postgres://u@/d?host=/run/pg&port=6").servers(),
            [Server::Socket("/run/pg".into(), 6)]
        );
        assert_eq!(read("postgres://%2Frun%2Fpg/d").servers(), [Server::Socket("/run/pg".into(), 5432)]);
        assert_eq!(read("postgres://h/d?connect_timeout=10").connect_timeout, Duration::from_secs(10));
        assert_eq!(read("postgres://h/d?sslmode=require&sslrootcert=/ca").tls_mode(), TlsMode::VerifyCa);
    }

    #[test]
    fn of_several_servers_the_first_that_takes_writes_is_taken() {
        let c = read("postgres://a,b:6000/d?target_session_attrs=any");
        assert_eq!(c.servers(), [Server::Host("a".into(), 5432), Server::Host("b".into(), 6000)]);
        assert!(c.needs_writes());
        assert!(read("postgres://a/d").needs_writes());
        assert!(!read("postgres://a/d?target_session_attrs=any").needs_writes());
        assert!(read("postgres://a/d?target_session_attrs=read-write").needs_writes());
    }

    #[test]
    fn a_parameter_takes_the_place_of_its_part_of_the_url_and_of_the_one_before_it() {
        for (url, same) in [
            ("postgres://x:bad/d?host=/run/pg", "postgres:///d?host=/run/pg"),
            ("postgres://a,b/d?port=1,2&port=3,4", "postgres://a,b/d?port=3,4"),
            ("postgres://a,b/d?port=7&port=1,", "postgres://a,b/d?port=1,"),
        ] {
            assert_eq!(read(url), read(same), "{url}");
        }
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
            (&[Server::Host("db".into(), 7)][..], TlsMode::Disable)
        );
        assert!(matches!(read("postgres://h/d?listen=off").listen, Listen::Off));
    }

    /// Parameters that providers and ORMs print, and the defaults of libpq.
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

    /// A password with a character that has a meaning in a URL was cut at that character. Its rest was printed, as the
    /// name of a database or of an unknown parameter.
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

    /// With a weak mode, certificates were silently not checked against the CA that was named.
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
