//! `Config`: members, login, and prefix of the keys.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tenure_client::{
    Login,
    durations::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT},
    tls::pair,
    url::{Form, HostPort, Setting, UrlWriter, bad, check_ports, listed},
};

/// Why settings are refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where etcd is and how to connect to it. A URL fills it, or a program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its members.
    pub members: Vec<HostPort>,
    /// Whether they are reached over TLS.
    pub tls: bool,
    /// The certificate of the authority that signed the members' certificates.
    pub ca: Option<PathBuf>,
    /// The client certificate, where members ask for one.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// User and password; both, if any.
    pub login: Option<Login>,
    /// Before the name of every lock.
    pub prefix: String,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub response_timeout: Duration,
}

/// A setting of [`Config`].
type Row = Setting<Config>;

const FORM: Form<Config> = Form {
    store: "etcd",
    schemes: Config::SCHEMES,
    example: "etcd://127.0.0.1:2379",
    settings: SETTINGS,
    foreign: &[],
};

const SETTINGS: &[Row] = &[
    Row::text("prefix", |c| &mut c.prefix).by_default("empty").means("is put before the name of every lock"),
    Row::duration(RESPONSE_TIMEOUT, |c| &mut c.response_timeout)
        .means("after that the next member is asked as well"),
    Row::duration(CONNECT_TIMEOUT, |c| &mut c.connect_timeout)
        .means("for one attempt to connect, and four times as long with a login"),
    Row::password_file("password_file", |c| c.login.get_or_insert_default())
        .means("the absolute path of a file with the password, read each time that a connection is made"),
    Row::file("ca", |c| &mut c.ca)
        .by_default("none; needed for `etcds`")
        .means("file with the certificate of the cluster's authority"),
    Row::file("cert", |c| &mut c.cert).means("file with the client's certificate, where members want one"),
    Row::file("key", |c| &mut c.key).means("file with the key of `cert`"),
];

impl Config {
    /// The schemes of URLs that [`from_url`](Self::from_url) reads; the second one with TLS.
    pub const SCHEMES: &'static [&'static str] = &["etcd", "etcds"];
    /// The default port of a member.
    pub const PORT: u16 = 2379;

    /// A cluster, with defaults.
    pub fn new(members: Vec<HostPort>) -> Self {
        Self {
            members,
            tls: false,
            ca: None,
            cert: None,
            key: None,
            login: None,
            prefix: String::new(),
            connect_timeout: Duration::from_millis(500),
            response_timeout: Duration::from_millis(500),
        }
    }

    /// Reads `etcd://[user:password@]host[:2379][,host…]?…`, or `etcds://…?ca=FILE` with TLS.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let (url, given) = FORM.read(url)?;
        if !url.path()?.is_empty() {
            return Err(bad("an etcd URL has no path; set the prefix of the keys with ?prefix="));
        }
        let members = url.hosts(Self::PORT)?;
        let mut config = Self { tls: url.scheme == "etcds", login: url.login, ..Self::new(members) };
        given.fill(&mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// # Errors
    /// [`ConfigError`] names the setting that is wrong, and never a password.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_ports(self.members.iter().map(|(_, port)| *port))?;
        self.login.as_ref().map(Login::whole).transpose()?;
        FORM.check(self)?;
        if !self.tls {
            let files = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
            let odd = files.into_iter().find(|(_, file)| file.is_some());
            return odd.map_or(Ok(()), |(key, _)| Err(bad(format!("{key}= is for etcds://"))));
        }
        if self.ca.as_ref().is_none_or(|ca| ca.as_os_str().is_empty()) {
            return Err(bad("etcds:// needs the certificate of the cluster's CA, as in ?ca=/etc/ca.pem"));
        }
        self.identity().map(drop)
    }

    /// The client certificate and its key.
    pub(crate) fn identity(&self) -> Result<Option<(&Path, &Path)>, ConfigError> {
        pair(("cert", self.cert.as_deref()), ("key", self.key.as_deref()))
    }

    /// The URL with the same settings. **It holds the password.**
    ///
    /// # Errors
    /// If the path of a file is not UTF-8.
    pub fn to_url(&self) -> Result<String, ConfigError> {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        let login = self.login.clone().unwrap_or_default();
        let url = UrlWriter::new(scheme, &login, &listed(&self.members));
        FORM.written(url, self, &Self::new(Vec::new()))
    }

    /// The members, for messages, without a secret.
    pub fn place_name(&self) -> String {
        listed(&self.members)
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
    fn a_url_names_members_login_and_settings() {
        let c = read(
            "etcds://app:p%40ss@a:1,b,[::1]:7/?prefix=locks/&ca=/ca.pem&cert=/c&key=/k&response_timeout=2s",
        );
        assert_eq!(c.place_name(), "a:1,b:2379,[::1]:7");
        let login = Login { user: Some("app".into()), password: Some("p@ss".into()) };
        assert_eq!(c.login, Some(login));
        assert_eq!((c.prefix.as_str(), c.response_timeout), ("locks/", Duration::from_secs(2)));
        assert_eq!((c.tls, c.ca.clone(), c.cert.clone()), (true, Some("/ca.pem".into()), Some("/c".into())));
        assert_eq!((c.key.clone(), read(&c.to_url().unwrap())), (Some("/k".into()), c));
        assert_eq!(read("etcd://h"), Config::new(vec![("h".into(), 2379)]));
    }

    #[test]
    fn bad_urls_name_what_is_wrong() {
        let cases = [
            ("etcd:h", "etcd://"),
            ("http://h", "unknown scheme"),
            ("etcd://", "a host is missing"),
            ("etcd://a,,b", "a host is missing"),
            ("etcd://h:0", "a port is"),
            ("etcd://h:x", "a port is"),
            ("etcd://h/locks", "?prefix="),
            ("etcd://h:1/locks", "?prefix="),
            ("etcd://u@h", "needs a password"),
            ("etcd://:p@h", "needs a user"),
            ("etcd://@h", "needs a user"),
            ("etcd://h?nope=1", "does not know parameter 1"),
            ("etcd://h?ca=/x", "etcds"),
            ("etcds://h", "?ca="),
            ("etcds://h?ca=/x&cert=/y", "needed together"),
            ("etcd://h?response_timeout=soon", "response_timeout= is no duration"),
            ("etcd://h?connect_timeout=2h", "outside"),
        ];
        for (url, part) in cases {
            let error = Config::from_url(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }

    /// No secret is ever printed.
    #[test]
    fn nothing_shows_a_password() {
        let config = read("etcd://u:secret1@h");
        assert!(!format!("{config:?} {}", config.place_name()).contains("secret"));
        for url in ["etcd://u:secret1@h:x", "etcd://u:secret1@h?a=b", "etcd://u:secret1@/"] {
            let error = Config::from_url(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
