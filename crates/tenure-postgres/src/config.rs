//! `Config`: which server, how to reach it, and the settings of its locks; from a URL.

use std::{fmt, path::PathBuf, time::Duration};

use tenure_client::{
    Secret,
    durations::{CLAIM_TTL, CONNECT_TIMEOUT},
    url::{Form, address, bad, port, shown},
};
use tenure_ledger::Rules;

/// What is wrong with a URL.
pub use tenure_client::url::UrlError as ConfigError;

/// Where PostgreSQL is and how its locks behave.
///
/// `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) hosts: Vec<Place>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) database: Option<String>,
    pub(crate) options: Option<String>,
    pub(crate) application: String,
    pub(crate) tls: TlsMode,
    pub(crate) root_cert: Option<PathBuf>,
    /// Whether a server that takes no writes is passed over for the next one.
    pub(crate) must_write: bool,
    pub(crate) connect_timeout: Duration,
    /// The table, quoted.
    pub(crate) table: String,
    pub(crate) listen: Listen,
    pub(crate) rules: Rules,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host(String, u16),
    Socket(PathBuf, u16),
}

/// As libpq means `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
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

/// Over which connection hints come.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Listen {
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
        "application_name",
        "target_session_attrs",
        "options",
        "host",
        "port",
        "user",
        "password",
        "dbname",
    ],
};

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
        let mut config = Self::new();
        if let Some(login) = &url.login {
            config.user.clone_from(&login.user);
            config.password = login.password.clone().or(config.password);
        }
        config.database = some(url.path()?);
        let mut parts = Parts { names: url.names()?, ports: Vec::new(), tls: None, ca: None };
        for (key, value) in url.settings {
            config.set(key, value, &mut parts)?;
        }
        config.hosts = parts.places()?;
        config.checked(parts)
    }

    fn new() -> Self {
        Self {
            hosts: Vec::new(),
            user: None,
            password: std::env::var("PGPASSWORD").ok().map(Secret::from),
            database: None,
            options: None,
            application: "tenure".into(),
            tls: TlsMode::Prefer,
            root_cert: None,
            must_write: false,
            connect_timeout: Duration::from_secs(2),
            table: quoted("tenure_lock"),
            listen: Listen::Same,
            rules: Rules::default(),
        }
    }

    fn set(&mut self, key: &'static str, value: String, parts: &mut Parts) -> Result<(), ConfigError> {
        match key {
            "table" => self.table = table(&value)?,
            "listen" => self.listen = listen(&value)?,
            "claim_ttl" => {
                self.rules.claim_ttl = CLAIM_TTL.read(&value)?;
            }
            "connect_timeout" => {
                // libpq's are seconds.
                let is_bare = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
                let text = if is_bare { format!("{value}s") } else { value };
                self.connect_timeout = CONNECT_TIMEOUT.read(&text)?;
            }
            "sslmode" => parts.tls = Some(tls_mode(&value)?),
            "sslrootcert" => parts.ca = some(value),
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
            "options" => self.options = some(value),
            "host" => parts.names = value.split(',').map(str::to_owned).collect(),
            "port" => parts.ports = value.split(',').map(str::to_owned).collect(),
            "user" => self.user = some(value),
            "password" => self.password = Some(value.into()),
            _ => self.database = some(value),
        }
        Ok(())
    }

    /// # Errors
    /// If a CA is named that would not be asked.
    fn checked(mut self, parts: Parts) -> Result<Self, ConfigError> {
        use TlsMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        self.tls = match (parts.tls, parts.ca.as_deref()) {
            (Some(Disable), Some(_)) => {
                return Err(bad("sslrootcert= is for TLS, which sslmode=disable turns off"));
            }
            (None | Some(VerifyFull), Some("system")) => VerifyFull,
            (Some(_), Some("system")) => {
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
            // As libpq: a CA that is named is asked.
            (None | Some(Require), Some(_)) => VerifyCa,
            (mode, _) => mode.unwrap_or(Prefer),
        };
        self.root_cert = parts.ca.filter(|ca| ca != "system").map(PathBuf::from);
        if self.hosts.len() > 1 {
            self.must_write = true;
        }
        Ok(self)
    }

    /// For people: where it is, without a secret.
    pub fn place_name(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Place::to_string).collect();
        let database = self.database.as_ref().or(self.user.as_ref()).map_or("", String::as_str);
        format!("{}/{database}", hosts.join(","))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host, port) => f.write_str(&shown(&(host.clone(), *port))),
            Self::Socket(folder, port) => write!(f, "{}/.s.PGSQL.{port}", folder.display()),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("place", &self.place_name())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// What means something only together.
struct Parts {
    /// As in the URL, `host` or `host:port`.
    names: Vec<String>,
    /// Those of the parameter.
    ports: Vec<String>,
    tls: Option<TlsMode>,
    ca: Option<String>,
}

impl Parts {
    fn places(&self) -> Result<Vec<Place>, ConfigError> {
        let (hosts, ports) = (self.names.len(), self.ports.len());
        if ports > 1 && ports != hosts {
            return Err(bad(format!("port= has {ports} numbers for {hosts} hosts")));
        }
        let port = |at: usize| self.ports.get(if ports == 1 { 0 } else { at }).map(String::as_str);
        self.names.iter().enumerate().map(|(at, name)| parse_place(name, port(at))).collect()
    }
}

/// `port` is that of the parameter, for a name that says none.
fn parse_place(text: &str, said: Option<&str>) -> Result<Place, ConfigError> {
    let default = port(said.filter(|port| !port.is_empty()), PORT)?;
    if text.starts_with('/') {
        return Ok(Place::Socket(text.into(), default));
    }
    let (host, port) = address(text, default, FORM.example)?;
    Ok(Place::Host(host, port))
}

fn listen(value: &str) -> Result<Listen, ConfigError> {
    if value == "off" {
        return Ok(Listen::Off);
    }
    let config = Config::from_url(value);
    config.map(|config| Listen::At(Box::new(config))).map_err(|error| {
        bad(format!("listen= is off, or a URL that leads past the pooler, with every & as %26: {error}"))
    })
}

/// `name` or `schema.name`, quoted.
fn table(value: &str) -> Result<String, ConfigError> {
    let parts: Vec<&str> = value.split('.').collect();
    // PostgreSQL cuts longer names without a word, so that two of them would be one table.
    let is_name = |part: &&str| !part.is_empty() && part.len() <= 63 && !part.chars().any(char::is_control);
    if parts.len() > 2 || !parts.iter().all(is_name) {
        return Err(bad("table= is name or schema.name, each of 1 to 63 bytes, as in table=app.locks"));
    }
    Ok(parts.into_iter().map(quoted).collect::<Vec<_>>().join("."))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn tls_mode(value: &str) -> Result<TlsMode, ConfigError> {
    match value {
        "disable" => Ok(TlsMode::Disable),
        "prefer" => Ok(TlsMode::Prefer),
        "require" => Ok(TlsMode::Require),
        "verify-ca" => Ok(TlsMode::VerifyCa),
        "verify-full" => Ok(TlsMode::VerifyFull),
        _ => Err(bad("sslmode= is disable, prefer, require, verify-ca or verify-full")),
    }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

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
        assert_eq!(c.hosts, [Place::Host("db.example".into(), 7000)]);
        assert_eq!((c.user.as_deref(), c.password.as_ref().map(Secret::expose)), (Some("app"), Some("p@ss")));
        assert_eq!((c.database.as_deref(), c.tls), (Some("shop"), TlsMode::Require));
        assert_eq!((c.table.as_str(), c.rules.claim_ttl), ("\"app\".\"my\"\"lock\"", Duration::from_secs(1)));
        assert_eq!(read("postgresql://h").hosts, [Place::Host("h".into(), 5432)]);
        assert_eq!(read("postgres://[::1]:7/d").hosts, [Place::Host("::1".into(), 7)]);
        assert_eq!(read("postgres://u@/d?host=/run/pg&port=6").hosts, [Place::Socket("/run/pg".into(), 6)]);
        assert_eq!(read("postgres://%2Frun%2Fpg/d").hosts, [Place::Socket("/run/pg".into(), 5432)]);
        assert_eq!(read("postgres://h/d?connect_timeout=10").connect_timeout, Duration::from_secs(10));
        assert_eq!(read("postgres://h/d?sslmode=require&sslrootcert=/ca").tls, TlsMode::VerifyCa);
    }

    #[test]
    fn of_several_servers_the_first_that_takes_writes_is_taken() {
        let c = read("postgres://a,b:6000/d?target_session_attrs=any");
        assert_eq!(c.hosts, [Place::Host("a".into(), 5432), Place::Host("b".into(), 6000)]);
        assert!(c.must_write);
        assert!(!read("postgres://a/d").must_write);
        assert!(read("postgres://a/d?target_session_attrs=read-write").must_write);
    }

    #[test]
    fn hints_may_come_past_the_pooler() {
        let c = read("postgres://pooler/d?listen=postgres://u:secret@db/d?sslmode=disable%26port=7");
        let Listen::At(direct) = c.listen else { panic!("a URL") };
        assert_eq!((&direct.hosts[..], direct.tls), (&[Place::Host("db".into(), 7)][..], TlsMode::Disable));
        assert!(matches!(read("postgres://h/d?listen=off").listen, Listen::Off));
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
            ("postgres://h/d?table=", "table="),
            ("postgres://h/d?table=a.b.c", "table="),
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
            (plain.password.as_ref().map(Secret::expose), plain.place_name().as_str()),
            (Some("p#q:r"), "h:5432/d")
        );
    }

    /// A CA that was named was not asked where the mode was a weak one, and nobody said so.
    #[test]
    fn a_ca_that_is_named_is_asked() {
        let tls = |query: &str| {
            let config = read(&format!("postgres://h/d{query}"));
            (config.tls, config.root_cert.is_some())
        };
        assert_eq!(tls(""), (TlsMode::Prefer, false));
        assert_eq!(tls("?sslrootcert=system"), (TlsMode::VerifyFull, false));
        assert_eq!(tls("?sslmode=verify-full&sslrootcert=system"), (TlsMode::VerifyFull, false));
        assert_eq!(tls("?sslrootcert=/ca"), (TlsMode::VerifyCa, true));
        assert_eq!(tls("?sslrootcert=/ca&sslmode=require"), (TlsMode::VerifyCa, true));
        assert_eq!(tls("?sslmode=verify-full&sslrootcert=/ca"), (TlsMode::VerifyFull, true));
    }
}
