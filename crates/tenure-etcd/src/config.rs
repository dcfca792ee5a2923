//! `Config`: members, login, and prefix of the keys, from a URL.

use std::{fmt, path::PathBuf, time::Duration};

use tenure_client::{
    Login, Secret,
    durations::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT},
    url::{Form, bad, shown},
};

/// Why a URL is refused.
pub use tenure_client::url::UrlError as ConfigError;

/// Where etcd is and how it is spoken to.
///
/// `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `host:port` of each member.
    pub(crate) members: Vec<String>,
    pub(crate) tls: Option<Tls>,
    /// User and password.
    pub(crate) login: Option<(String, Secret)>,
    /// Before the name of every lock.
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

/// Files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The certificate of the authority that signed the members' certificates.
    pub(crate) ca: PathBuf,
    /// Our own certificate and its key, where members want to see one.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

const FORM: Form = Form {
    store: "etcd",
    schemes: Config::SCHEMES,
    example: "etcd://127.0.0.1:2379",
    settings: &["prefix", "connect_timeout", "response_timeout", "ca", "cert", "key"],
};

/// The default port of a member.
const PORT: u16 = 2379;

impl Config {
    /// The schemes of URLs that [`from_url`](Self::from_url) reads; the second one with TLS.
    pub const SCHEMES: &'static [&'static str] = &["etcd", "etcds"];

    /// Reads `etcd://[user:password@]host[:2379][,host…]?…`, or `etcds://…?ca=FILE` with TLS.
    ///
    /// # Errors
    /// [`ConfigError`] names the part that is wrong, and never a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let url = FORM.read(url)?;
        if !url.path()?.is_empty() {
            return Err(bad("an etcd URL has no path; set the prefix of the keys with ?prefix="));
        }
        let mut config = Self {
            members: url.hosts(PORT)?.iter().map(shown).collect(),
            tls: (url.scheme == "etcds").then(Tls::default),
            login: url.login.clone().map(Login::whole).transpose()?,
            prefix: String::new(),
            connect_timeout: Duration::from_millis(500),
            response_timeout: Duration::from_millis(500),
        };
        let mut own = (None, None);
        for (key, value) in url.settings {
            config.set(key, &value, &mut own)?;
        }
        config.checked(own)
    }

    fn set(
        &mut self,
        key: &'static str,
        value: &str,
        own: &mut (Option<PathBuf>, Option<PathBuf>),
    ) -> Result<(), ConfigError> {
        match (key, &mut self.tls) {
            ("prefix", _) => value.clone_into(&mut self.prefix),
            ("connect_timeout", _) => self.connect_timeout = CONNECT_TIMEOUT.read(value)?,
            ("ca", Some(tls)) => tls.ca = value.into(),
            ("cert", Some(_)) => own.0 = Some(value.into()),
            ("key", Some(_)) => own.1 = Some(value.into()),
            ("ca" | "cert" | "key", None) => return Err(bad(format!("{key}= is for etcds://"))),
            _ => self.response_timeout = RESPONSE_TIMEOUT.read(value)?,
        }
        Ok(())
    }

    fn checked(mut self, own: (Option<PathBuf>, Option<PathBuf>)) -> Result<Self, ConfigError> {
        if let Some(tls) = &mut self.tls {
            if tls.ca.as_os_str().is_empty() {
                return Err(bad("etcds:// needs the certificate of the cluster's CA, as in ?ca=/etc/ca.pem"));
            }
            tls.identity = match own {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                _ => return Err(bad("cert= and key= are needed together")),
            };
        }
        Ok(self)
    }

    /// For people: where it is, without a secret.
    pub fn place_name(&self) -> String {
        self.members.join(",")
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("place", &self.place_name())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Config {
        Config::from_url(url).unwrap()
    }

    #[test]
    fn a_url_names_members_login_and_settings() {
        let c = read(
            "etcds://app:p%40ss@a:1,b,[::1]:7/?prefix=locks/&ca=/ca.pem&cert=/c&key=/k&response_timeout=2s",
        );
        assert_eq!(c.members, ["a:1", "b:2379", "[::1]:7"]);
        assert_eq!(c.login, Some(("app".into(), "p@ss".into())));
        assert_eq!((c.prefix.as_str(), c.response_timeout), ("locks/", Duration::from_secs(2)));
        let identity = Some(("/c".into(), "/k".into()));
        assert_eq!(c.tls, Some(Tls { ca: "/ca.pem".into(), identity }));
        let plain = read("etcd://h");
        assert_eq!((plain.members, plain.tls, plain.login), (vec!["h:2379".to_owned()], None, None));
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
