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
    url::{Foreign, Form, HostPort, Setting, UrlWriter, Words, bad, check_ports, listed, put, shown, some},
};
use tenure_ledger::Rules;

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where MariaDB or MySQL is and how its locks behave. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The servers, in the order in which they are tried.
    pub hosts: Vec<HostPort>,
    /// User and password.
    pub login: Login,
    /// The database. Default: the one that [`table`](Self::table) names.
    pub database: Option<String>,
    /// A socket of this machine, instead of the servers.
    pub socket: Option<PathBuf>,
    /// Default: see [`TlsMode`].
    pub tls: Option<TlsMode>,
    /// The certificate of the authority that signed the server's. Default: the authorities that this machine trusts.
    pub ca: Option<PathBuf>,
    /// The client certificate, if the server asks for one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// The table, `name` or `database.name`.
    pub table: String,
    /// All clients write to one server, in a cluster where several servers take writes.
    pub one_writer: bool,
    /// The rules of the queues.
    pub rules: Rules,
}

/// The modes of `--ssl-mode` of the command `mysql`. Default: [`Preferred`](Self::Preferred), or
/// [`VerifyCa`](Self::VerifyCa) if a CA is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    Disabled,
    /// TLS if the server supports it, with any certificate.
    Preferred,
    /// TLS with any certificate.
    Required,
    /// The CA has signed the certificate.
    VerifyCa,
    /// The CA has signed the certificate, and it is for the name of the host.
    VerifyIdentity,
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "mysql",
    schemes: Config::SCHEMES,
    example: "mysql://127.0.0.1/db",
    settings: SETTINGS,
    foreign: FOREIGN,
};

const SETTINGS: &[Row] = &[
    Row::text("table", |c| &mut c.table)
        .means("`name` or `database.name`; every client of a lock names the same"),
    Row::duration(CLAIM_TTL, |c| &mut c.rules.claim_ttl)
        .means("how long a waiter may take to acquire at its turn; waiters poll in fractions of it"),
    Row::duration(CONNECT_TIMEOUT, |c| &mut c.connect_timeout).means("for one server, from socket to login"),
    Row::password_file("password_file", |c| &mut c.login)
        .means("the absolute path of a file with the password, read each time that a connection is made"),
    Row::word(
        TLS.0,
        |c, text| put(&mut c.tls, TLS.read(&text.to_ascii_uppercase())),
        |c| c.tls.and_then(|mode| TLS.word(mode)),
    )
    .by_default("`PREFERRED`; `VERIFY_CA` with `ssl-ca`")
    .means(
        "`DISABLED`, `PREFERRED`, `REQUIRED`, `VERIFY_CA`, `VERIFY_IDENTITY`, as the command `mysql` \
         means them",
    ),
    Row::perhaps_file("ssl-ca", |c| &mut c.ca)
        .by_default("the system's")
        .means("file with the certificate of your CA"),
    Row::perhaps_file("ssl-cert", |c| &mut c.cert).means("file with the client's certificate, in PEM"),
    Row::perhaps_file("ssl-key", |c| &mut c.key).means("file with its key, in PEM"),
    Row::perhaps_file("socket", |c| &mut c.socket).means("in place of the host"),
    Row::word(
        ONE_WRITER.0,
        |c, text| put(&mut c.one_writer, ONE_WRITER.read(text)),
        |c| ONE_WRITER.word(c.one_writer),
    )
    .means("`yes`: all clients write to one server of the cluster"),
];

/// Parameters of ORMs and drivers.
const FOREIGN: &[Foreign] = &[
    Foreign("charset", &["utf8mb4", "utf8"], "names are sent in utf8mb4; leave it out"),
    Foreign("serverVersion", &["*"], ""),
    Foreign("connection_limit", &["*"], ""),
    Foreign("pool_timeout", &["*"], ""),
    Foreign("socket_timeout", &["*"], ""),
    Foreign("connectTimeout", &[], "write connect_timeout="),
    Foreign("sslaccept", &[], "write ssl-mode=VERIFY_IDENTITY for strict, ssl-mode=REQUIRED otherwise"),
    Foreign("sslcert", &[], "write ssl-ca= for the CA, ssl-cert= for a client's certificate"),
    Foreign("sslidentity", &[], "write ssl-cert= and ssl-key=, each the path of a file in PEM"),
    Foreign("useSSL", &["false"], "write ssl-mode=REQUIRED"),
    Foreign("requireSSL", &["false"], "write ssl-mode=REQUIRED"),
    Foreign("sslMode", &[], "write ssl-mode="),
    Foreign("ssl", &["false"], "write ssl-mode=REQUIRED"),
    Foreign("tls", &["false"], "write ssl-mode=VERIFY_IDENTITY for true, ssl-mode=REQUIRED for skip-verify"),
    Foreign("parseTime", &["*"], ""),
    Foreign("allowPublicKeyRetrieval", &["*"], ""),
];

const TLS: Words<TlsMode> = Words(
    "ssl-mode",
    &[
        ("DISABLED", TlsMode::Disabled),
        ("PREFERRED", TlsMode::Preferred),
        ("REQUIRED", TlsMode::Required),
        ("VERIFY_CA", TlsMode::VerifyCa),
        ("VERIFY_IDENTITY", TlsMode::VerifyIdentity),
    ],
);

const ONE_WRITER: Words<bool> = Words("one_writer", &[("no", false), ("yes", true)]);

impl Config {
    /// The port of a server that is named without one.
    pub const PORT: u16 = 3306;
    /// The schemes of URLs that [`from_url`](Self::from_url) reads.
    pub const SCHEMES: &'static [&'static str] = &["mysql", "mariadb"];

    /// Reads `mysql://user:password@host:3306/database?table=…`.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let (url, given) = FORM.read(url)?;
        let mut config = Self::new(Vec::new());
        config.database = some(url.path()?);
        config.login = url.login.clone().unwrap_or_default();
        given.fill(&mut config)?;
        if !(url.is_hostless() && config.socket.is_some()) {
            config.hosts = url.hosts(Self::PORT)?;
        }
        config.validate()?;
        Ok(config)
    }

    /// These servers, with defaults.
    pub fn new(hosts: Vec<HostPort>) -> Self {
        Self {
            hosts,
            login: Login::default(),
            database: None,
            socket: None,
            tls: None,
            ca: None,
            cert: None,
            key: None,
            connect_timeout: Duration::from_secs(2),
            table: "tenure_lock".into(),
            one_writer: false,
            rules: Rules::default(),
        }
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, and never a password.
    pub fn validate(&self) -> Result<(), ConfigError> {
        use TlsMode::{Disabled, Preferred, Required};
        check_ports(self.hosts.iter().map(|(_, port)| *port))?;
        if self.socket.is_some() && !self.hosts.is_empty() {
            return Err(bad(
                "socket= is a server of this machine: leave out the host, as in mysql:///db?socket=…",
            ));
        }
        let identity = self.identity()?;
        if matches!(self.tls, Some(Disabled)) && (self.ca.is_some() || identity.is_some()) {
            return Err(bad("ssl-ca= and ssl-cert= are for TLS, which ssl-mode=DISABLED turns off"));
        }
        if matches!(self.tls, Some(Preferred | Required)) && self.ca.is_some() {
            return Err(bad("this ssl-mode= asks no CA; with ssl-ca= use VERIFY_CA or VERIFY_IDENTITY"));
        }
        let parts: Vec<&str> = self.table.split('.').collect();
        let is_name = |part: &&str| {
            !part.is_empty() && part.chars().count() <= 64 && !part.chars().any(char::is_control)
        };
        if parts.len() > 2 || !parts.iter().all(is_name) {
            return Err(bad(
                "table= is name or database.name, each of 1 to 64 characters, as in table=app.locks",
            ));
        }
        if parts.len() == 1 && self.database.is_none() {
            return Err(bad("a database is missing, as in mysql://127.0.0.1/db"));
        }
        FORM.check(self)
    }

    /// The URL with the same settings. **It contains the password.**
    ///
    /// # Errors
    /// If the path of a file is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let path = self.database.as_deref().unwrap_or_default();
        let url = UrlWriter::new("mysql", &self.login, &listed(&self.hosts)).path(path);
        FORM.written(url, self, &Self::new(Vec::new()))
    }

    /// The servers, in the order in which they are tried.
    pub(crate) fn servers(&self) -> Vec<Server> {
        if let Some(socket) = &self.socket {
            return vec![Server::Socket(socket.clone())];
        }
        self.hosts.iter().map(|host| Server::Host(host.clone())).collect()
    }

    /// The client certificate and its key.
    pub(crate) fn identity(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        pair(("ssl-cert", self.cert.as_deref()), ("ssl-key", self.key.as_deref()))
    }

    /// As in the command `mysql`: if a CA is named, certificates are checked against it.
    pub(crate) fn tls_mode(&self) -> TlsMode {
        let default = if self.ca.is_some() { TlsMode::VerifyCa } else { TlsMode::Preferred };
        self.tls.unwrap_or(default)
    }

    /// With the password of the environment, if none is set. It is read once, because a program may remove it from
    /// there.
    pub(crate) fn with_password(mut self) -> Self {
        let of_environment = || std::env::var("MYSQL_PWD").ok().map(Secret::from);
        self.login.password = self.login.password.or_else(of_environment);
        self
    }

    /// The database of the table, if one is named with it, and the name of the table in it.
    pub(crate) fn table_parts(&self) -> (Option<&str>, &str) {
        self.table.split_once('.').map_or((None, &*self.table), |(schema, name)| (Some(schema), name))
    }

    /// The table, quoted.
    pub(crate) fn quoted_table(&self) -> String {
        self.table.split('.').map(quoted).collect::<Vec<_>>().join(".")
    }

    /// The same with its database, for a connection that may have another one.
    pub(crate) fn whole_table(&self) -> String {
        match (&self.database, self.table_parts()) {
            (Some(database), (None, table)) => format!("{}.{}", quoted(database), quoted(table)),
            _ => self.quoted_table(),
        }
    }

    /// For people: where the locks are, without a secret.
    pub fn place_name(&self) -> String {
        let servers: Vec<String> = self.servers().iter().map(Server::to_string).collect();
        let database = self.table_parts().0.or(self.database.as_deref()).unwrap_or_default();
        format!("{}/{database}", servers.join(","))
    }
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Host(HostPort),
    Socket(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => f.write_str(&shown(host)),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        Config::from_url(url).unwrap_err().to_string()
    }

    #[test]
    fn the_readme_has_the_settings() {
        let table = FORM.table(&Config::new(Vec::new())).unwrap();
        tenure_testkit::readme::assert_has_settings(env!("CARGO_MANIFEST_DIR"), &table);
    }

    #[test]
    fn a_url_names_servers_login_and_settings() {
        let url = "mariadb://app:p%40ss@db.example:7000,[::1]/shop?table=app.my`lock&ssl-mode=required&\
                   claim_ttl=1s&one_writer=yes&ssl-cert=/c.pem&ssl-key=/k.pem";
        let config = Config::from_url(url).unwrap();
        let servers = [Server::Host(("db.example".into(), 7000)), Server::Host(("::1".into(), 3306))];
        assert_eq!(config.servers(), servers);
        assert_eq!(config.login.password.as_ref().and_then(Secret::word), Some("p@ss"));
        assert_eq!((config.database.as_deref(), config.tls_mode()), (Some("shop"), TlsMode::Required));
        assert_eq!((&*config.quoted_table(), config.one_writer), ("`app`.`my``lock`", true));
        assert_eq!(config.table_parts(), (Some("app"), "my`lock"));
        assert_eq!(config.place_name(), "db.example:7000,[::1]:3306/app");
        assert_eq!(config.rules.claim_ttl, Duration::from_secs(1));
        assert_eq!(Config::from_url(&config.to_url().unwrap()).unwrap(), config);
    }

    #[test]
    fn a_socket_needs_no_host() {
        let config = Config::from_url("mysql://root@/db?socket=/run/mysqld/mysqld.sock").unwrap();
        assert_eq!(config.servers(), [Server::Socket("/run/mysqld/mysqld.sock".into())]);
        assert_eq!(config.place_name(), "/run/mysqld/mysqld.sock/db");
        assert_eq!(Config::from_url(&config.to_url().unwrap()).unwrap(), config);
        assert!(refusal("mysql://host/db?socket=/s").contains("leave out the host"));
    }

    #[test]
    fn a_ca_that_is_named_is_asked() {
        let mode = |query: &str| Config::from_url(&format!("mysql://h/db{query}")).unwrap().tls_mode();
        assert_eq!(mode(""), TlsMode::Preferred);
        assert_eq!(mode("?ssl-ca=/ca.pem"), TlsMode::VerifyCa);
        assert_eq!(mode("?ssl-mode=VERIFY_IDENTITY"), TlsMode::VerifyIdentity);
        assert!(refusal("mysql://h/db?ssl-mode=REQUIRED&ssl-ca=/ca.pem").contains("VERIFY_IDENTITY"));
        assert!(refusal("mysql://h/db?ssl-mode=DISABLED&ssl-ca=/ca.pem").contains("turns off"));
        assert!(refusal("mysql://h/db?ssl-mode=maybe").contains("ssl-mode= is DISABLED, "));
        assert!(refusal("mysql://h/db?ssl-cert=/c.pem").contains("needed together"));
    }

    #[test]
    fn what_is_wrong_is_named_without_a_secret() {
        for (url, part) in [
            ("mysql://u:hush@h", "a database is missing"),
            ("mysql://u:hush@h/db?table=a.b.c", "table= is name or database.name"),
            ("mysql://u:hush@h/db?claim_ttl=1ms", "claim_ttl= lies outside"),
            ("mysql://u:hush@/db", "a host is missing, as in mysql://127.0.0.1/db"),
            ("mysql://u:hush@h:0/db", "a port is no number"),
            ("mysql://u:hush@h/db?ssl=1", "write ssl-mode=REQUIRED"),
        ] {
            let refusal = refusal(url);
            assert!(refusal.contains(part) && !refusal.contains("hush"), "{url}: {refusal}");
        }
        assert!(Config::from_url("mysql://h?table=app.locks").is_ok(), "the table says where it is");
    }
}
