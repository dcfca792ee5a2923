//! `Written`: a URL that is being written, piece by piece.

use std::{fmt, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{error::ConfigError, store::connects};

/// What needs no encoding anywhere in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A URL in pieces. `Debug` shows the scheme, the servers and the names of the settings, and no value that may be a secret.
#[derive(Clone, Default)]
pub(super) struct Written {
    /// With what follows it, as in `redis://`.
    pub(super) scheme: &'static str,
    user: Option<String>,
    password: Option<String>,
    pub(super) servers: Vec<Server>,
    pub(super) port: Option<u16>,
    /// Behind the servers, encoded.
    pub(super) path: String,
    settings: Vec<(&'static str, String)>,
    /// What no URL can say.
    wrong: Option<&'static str>,
}

/// A server as it stands in a URL.
#[derive(Clone)]
pub(super) struct Server(String);

impl Written {
    pub(super) fn new(scheme: &'static str) -> Self {
        Self { scheme, ..Self::default() }
    }

    /// On these servers, each `host` or `host:port`.
    pub(super) fn at<H: AsRef<str>>(scheme: &'static str, hosts: impl IntoIterator<Item = H>) -> Self {
        let mut written = Self::new(scheme);
        for host in hosts {
            let host = host.as_ref();
            // A host is not decoded by who reads it: what is none must not become another part of the URL.
            if host.is_empty() || !host.chars().all(is_of_a_host) {
                written.refuse("a host is a name or a number, with its port behind a colon if need be");
                // It may be a URL with a password, and servers are shown.
                continue;
            }
            let is_bare_v6 = host.matches(':').count() > 1 && !host.starts_with('[');
            written.servers.push(Server(if is_bare_v6 { format!("[{host}]") } else { host.to_owned() }));
        }
        if written.servers.is_empty() {
            written.refuse("no server is named");
        }
        written
    }

    /// Remembers the first thing that cannot be written; it is said when the store is connected.
    pub(super) fn refuse(&mut self, why: &'static str) {
        self.wrong.get_or_insert(why);
    }

    pub(super) fn user(&mut self, user: &str) {
        self.user = Some(encoded(user));
    }

    pub(super) fn password(&mut self, password: &str) {
        self.password = Some(encoded(password));
    }

    /// The last word on a setting counts.
    pub(super) fn set(&mut self, key: &'static str, value: impl AsRef<str>) {
        self.settings.retain(|(known, _)| *known != key);
        self.settings.push((key, encoded(value.as_ref())));
    }

    pub(super) fn set_duration(&mut self, key: &'static str, value: Duration) {
        self.set(key, connects::duration(value));
    }

    #[cfg(any(feature = "redis", feature = "postgres", feature = "etcd"))]
    pub(super) fn set_path(&mut self, key: &'static str, path: &std::path::Path) {
        match path.to_str() {
            Some(path) => self.set(key, path),
            None => self.refuse("the path of a file is not UTF-8"),
        }
    }

    /// What stands behind the `?`.
    pub(super) fn query(&self) -> String {
        let mut pairs: Vec<String> =
            self.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        // In one order, whatever the order of the calls: the nodes of a quorum are compared by it.
        pairs.sort_unstable();
        pairs.join("&")
    }

    /// The URL without what stands behind the `?`.
    pub(super) fn without_query(&self) -> Result<String, ConfigError> {
        if let Some(wrong) = self.wrong {
            return Err(ConfigError::Url(wrong.into()));
        }
        let login = match (&self.user, &self.password) {
            (None, None) => String::new(),
            (user, None) => format!("{}@", user.as_deref().unwrap_or_default()),
            (user, Some(password)) => format!("{}:{password}@", user.as_deref().unwrap_or_default()),
        };
        let servers =
            self.servers.iter().map(|server| self.with_port(server)).collect::<Result<Vec<_>, _>>()?;
        Ok(format!("{}{login}{}{}", self.scheme, servers.join(","), self.path))
    }

    fn with_port(&self, Server(server): &Server) -> Result<String, ConfigError> {
        let Some(port) = self.port else { return Ok(server.clone()) };
        if server.rsplit_once(']').map_or(server.as_str(), |(_, rest)| rest).contains(':') {
            return Err(ConfigError::Url("a port is said twice: with its host, and for all servers".into()));
        }
        Ok(format!("{server}:{port}"))
    }

    pub(super) fn url(&self) -> Result<String, ConfigError> {
        let (url, query) = (self.without_query()?, self.query());
        Ok(if query.is_empty() { url } else { format!("{url}?{query}") })
    }
}

impl Server {
    /// A name that is decoded by who reads it.
    #[cfg(feature = "postgres")]
    pub(super) fn encoded(name: &str) -> Self {
        Self(encoded(name))
    }
}

fn is_of_a_host(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%' | '[' | ']')
}

pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.servers.iter().map(|Server(server)| server.as_str()).collect();
        let settings: Vec<&str> = self.settings.iter().map(|(key, _)| *key).collect();
        f.debug_struct("Store")
            .field("scheme", &self.scheme)
            .field("servers", &servers)
            .field("settings", &settings)
            .finish_non_exhaustive()
    }
}

/// What every builder over [`Written`] has.
macro_rules! is_written {
    ($store:ident) => {
        impl $store {
            /// The URL that says the same, as [`connect`](crate::connect) reads it. **It holds the password.**
            ///
            /// # Errors
            /// [`ConfigError`](crate::ConfigError) for what no URL can say.
            pub fn url(&self) -> Result<String, crate::ConfigError> {
                self.0.url()
            }

            /// The user. Default: none is named.
            #[must_use]
            pub fn user(mut self, user: impl AsRef<str>) -> Self {
                self.0.user(user.as_ref());
                self
            }

            /// The password, as it is: it is encoded here. Default: none.
            #[must_use]
            pub fn password(mut self, password: impl AsRef<str>) -> Self {
                self.0.password(password.as_ref());
                self
            }
        }

        /// Shows no secret: which servers, and the names of the settings.
        impl std::fmt::Debug for $store {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

pub(super) use is_written;
