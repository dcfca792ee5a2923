//! `connect`: from a URL to a `Locker`; and from settings to a backend. The only file that names backends.

use std::{path::Path, sync::Arc};

#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
use tenure_client::Login;
use tenure_core::{BackendHandle, Host};
#[cfg(feature = "etcd")]
pub(crate) use tenure_etcd as etcd;
#[cfg(feature = "mysql")]
pub(crate) use tenure_mysql as mysql;
#[cfg(feature = "postgres")]
pub(crate) use tenure_postgres as postgres;
#[cfg(feature = "redis")]
pub(crate) use tenure_redis as redis;
#[cfg(feature = "sqlite")]
pub(crate) use tenure_sqlite as sqlite;
#[cfg(feature = "zookeeper")]
pub(crate) use tenure_zookeeper as zookeeper;

use crate::{error::ConfigError, host::TokioHost, locker::Locker};

/// Connects to the store that a URL names.
///
/// | URL | Feature |
/// |---|---|
/// | `memory:` | `memory` |
/// | `sqlite:PATH` | `sqlite` |
/// | `redis://HOST`, `rediss://HOST`, `redis+unix:///PATH`, `redis-sentinel://HOST,HOST?master=NAME`, `redis-cluster://HOST,HOST` | `redis` |
/// | `redlock:URL,URL,URL` | `redlock` |
/// | `postgres://USER@HOST/DATABASE` | `postgres` |
/// | `mysql://USER@HOST/DATABASE`, `mariadb://USER@HOST/DATABASE` | `mysql` |
/// | `zookeeper://HOST,HOST/PATH` | `zookeeper` |
/// | `zookeepers://HOST,HOST/PATH?ca=FILE` | `zookeeper-tls` |
/// | `etcd://HOST,HOST` | `etcd` |
///
/// The README of each backend lists its parameters. In a user or a password write `/` as `%2F`, `?` as `%3F` and
/// `@` as `%40`, or use the builder of the store. Blanks and line ends around a URL are no part of it. Most backends
/// send nothing yet: the first request then detects a store that is down.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// println!("{} keeps locks for {}", locks.promises().backend, locks.promises().reach);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ConfigError`] if the URL has settings that its store does not know, or names a store that is not in this
/// build. The message names the missing feature. A build without a feature has no store.
///
/// # Cancel safety
/// Nothing is left behind.
pub async fn connect(url: &str) -> Result<Locker, ConfigError> {
    locker(|host| backend(url, None, host))
}

/// The locks of a backend on the host of this process.
pub(crate) fn locker(
    backend: impl FnOnce(&Arc<dyn Host>) -> Result<BackendHandle, ConfigError>,
) -> Result<Locker, ConfigError> {
    let host: Arc<dyn Host> = Arc::new(TokioHost);
    Ok(Locker::new(backend(&host)?, host))
}

/// Connects to the store of a URL in a file. Each later connection reads the passwords from the file again.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Nothing is left behind.
pub async fn connect_file(url: &str, file: Option<&Path>) -> Result<Locker, ConfigError> {
    locker(|host| backend(url, file, host))
}

/// The store of a URL. Passwords are read again from the file of the URL, if it was in one.
#[allow(unused_variables, reason = "a build without a server has no password to read")]
pub(crate) fn backend(
    url: &str,
    file: Option<&Path>,
    host: &Arc<dyn Host>,
) -> Result<BackendHandle, ConfigError> {
    // From a variable or a file: with a CR or a blank at its end it would name another file.
    let url = url.trim();
    let scheme = scheme(url);
    match scheme {
        #[cfg(feature = "memory")]
        "memory" if url == "memory:" => Ok(Arc::new(tenure_memory::Memory::new(host.clone()))),
        #[cfg(feature = "memory")]
        "memory" => Err(ConfigError::Url("memory: takes no path and no parameters".into())),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::Config::read(url)?.backend(host),
        #[cfg(feature = "redis")]
        _ if redis::Config::SCHEMES.contains(&scheme) => {
            in_file::settings::<redis::Config>(url, file)?.backend(host)
        }
        #[cfg(feature = "redlock")]
        "redlock" => redlock(nodes_in_file(url, file)?, host),
        #[cfg(feature = "postgres")]
        _ if postgres::Config::SCHEMES.contains(&scheme) => {
            in_file::settings::<postgres::Config>(url, file)?.backend(host)
        }
        #[cfg(feature = "mysql")]
        _ if mysql::Config::SCHEMES.contains(&scheme) => {
            in_file::settings::<mysql::Config>(url, file)?.backend(host)
        }
        #[cfg(feature = "zookeeper")]
        _ if zookeeper::Config::SCHEMES.contains(&scheme) => {
            in_file::settings::<zookeeper::Config>(url, file)?.backend(host)
        }
        #[cfg(feature = "etcd")]
        _ if etcd::Config::SCHEMES.contains(&scheme) => {
            in_file::settings::<etcd::Config>(url, file)?.backend(host)
        }
        _ => Err(unknown(url, host)),
    }
}

/// The settings of a store, filled by a URL or by a builder.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
pub(crate) trait StoreSettings: Sized {
    /// The settings of a URL.
    fn read(url: &str) -> Result<Self, ConfigError>;

    /// The URL with the same settings.
    fn url(&self) -> Result<String, ConfigError>;

    /// Users and passwords, always as many and in this order.
    #[allow(dead_code, reason = "a build without a server has no password to read")]
    fn logins(&mut self) -> Vec<&mut Login>;

    /// The store with these settings, if all of them are valid.
    fn backend(self, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError>;
}

#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "zookeeper"
))]
macro_rules! settings_of {
    ($store:ident, $new:expr, $logins:expr) => {
        impl StoreSettings for $store::Config {
            fn read(url: &str) -> Result<Self, ConfigError> {
                Self::from_url(url).map_err(ConfigError::of_url)
            }

            fn url(&self) -> Result<String, ConfigError> {
                self.to_url().map_err(ConfigError::of_url)
            }

            fn logins(&mut self) -> Vec<&mut Login> {
                let logins: fn(&mut Self) -> Vec<&mut Login> = $logins;
                logins(self)
            }

            fn backend(self, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
                self.validate().map_err(ConfigError::of_url)?;
                Ok(Arc::new($new(self, host.clone())))
            }
        }
    };
}

#[cfg(feature = "etcd")]
settings_of!(etcd, etcd::Etcd::new, |it| it.login.iter_mut().collect());
#[cfg(feature = "mysql")]
settings_of!(mysql, mysql::backend, |it| vec![&mut it.login]);
#[cfg(feature = "postgres")]
settings_of!(postgres, postgres::backend, |it| vec![&mut it.login]);
#[cfg(feature = "redis")]
settings_of!(redis, redis::Redis::new, |it| vec![&mut it.login, &mut it.sentinel_login]);
#[cfg(feature = "sqlite")]
settings_of!(sqlite, sqlite::Sqlite::new, |_| Vec::new());
#[cfg(feature = "zookeeper")]
settings_of!(zookeeper, zookeeper::ZooKeeper::new, |it| it.login.iter_mut().collect());

/// URLs in files, for the stores that have passwords.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod in_file {
    use std::{fs, io, path::Path};

    use tenure_client::Secret;

    use super::StoreSettings;
    use crate::ConfigError;

    pub(super) fn settings<C: StoreSettings + 'static>(
        url: &str,
        file: Option<&Path>,
    ) -> Result<C, ConfigError> {
        let mut settings = C::read(url)?;
        if let Some(file) = file {
            read_anew(&mut settings, file, C::read);
        }
        Ok(settings)
    }

    /// Reads the passwords of a URL from its file again at each connect; `read` returns the settings of the URL.
    pub(super) fn read_anew<C: StoreSettings + 'static>(
        settings: &mut C,
        file: &Path,
        read: impl Fn(&str) -> Result<C, ConfigError> + Clone + Send + Sync + 'static,
    ) {
        let words = settings
            .logins()
            .into_iter()
            .enumerate()
            .filter_map(|(at, login)| Some((at, login.password.as_mut()?)));
        for (at, password) in words.filter(|(_, password)| password.word().is_some()) {
            let (file, read) = (file.to_owned(), read.clone());
            *password = Secret::in_line(move || {
                let url = fs::read_to_string(&file)?;
                let mut settings = read(url.trim()).map_err(io::Error::other)?;
                let login = settings.logins().into_iter().nth(at);
                let word = login.and_then(|login| Some(login.password.as_ref()?.word()?.to_owned()));
                word.ok_or_else(|| io::Error::other("the URL in the file has no password any more"))
            });
        }
    }
}

/// A quorum of these servers.
#[cfg(feature = "redlock")]
pub(crate) fn redlock(nodes: Vec<redis::Config>, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
    let many = nodes.len();
    let node = |config: redis::Config| {
        let config = config.validate().and_then(|()| config.in_quorum(many)).map_err(of_node)?;
        Ok((config.place_name(), Arc::new(redis::Redis::new(config, host.clone()))))
    };
    let nodes = nodes.into_iter().map(node).collect::<Result<_, ConfigError>>()?;
    let quorum = tenure_redlock::Redlock::new(nodes, host.clone()).map_err(ConfigError::of_url)?;
    Ok(Arc::new(quorum))
}

/// The servers of a URL of `redlock:`.
#[cfg(feature = "redlock")]
pub(crate) fn nodes_of_redlock(url: &str) -> Result<Vec<redis::Config>, ConfigError> {
    let urls = tenure_redlock::Config::from_url(url).map_err(ConfigError::of_url)?.nodes;
    urls.iter().map(|url| redis::Config::from_url(url).map_err(of_node)).collect()
}

#[cfg(feature = "redlock")]
fn nodes_in_file(url: &str, file: Option<&Path>) -> Result<Vec<redis::Config>, ConfigError> {
    let mut nodes = nodes_of_redlock(url)?;
    for (at, node) in nodes.iter_mut().enumerate() {
        let gone = || ConfigError::of_url("the URL in the file has fewer nodes than before");
        let read = move |url: &str| nodes_of_redlock(url)?.into_iter().nth(at).ok_or_else(gone);
        if let Some(file) = file {
            in_file::read_anew(node, file, read);
        }
    }
    Ok(nodes)
}

#[cfg(feature = "redlock")]
fn of_node(error: redis::ConfigError) -> ConfigError {
    ConfigError::of_url(format!("redlock: {error}"))
}

/// The stores: the feature of each, whether this build has it, and its URLs.
const STORES: &[(&str, bool, &[&str])] = &[
    ("sqlite", cfg!(feature = "sqlite"), &["sqlite:PATH"]),
    (
        "redis",
        cfg!(feature = "redis"),
        &[
            "redis://HOST",
            "rediss://HOST",
            "redis+unix:///PATH",
            "unix:///PATH",
            "redis+socket:///PATH",
            "valkey://HOST",
            "valkeys://HOST",
            "redis-sentinel://HOST,HOST?master=NAME",
            "rediss-sentinel://HOST,HOST?master=NAME",
            "redis-cluster://HOST,HOST",
            "rediss-cluster://HOST,HOST",
        ],
    ),
    ("redlock", cfg!(feature = "redlock"), &["redlock:redis://HOST,redis://HOST,redis://HOST"]),
    (
        "postgres",
        cfg!(feature = "postgres"),
        &["postgres://USER@HOST/DATABASE", "postgresql://USER@HOST/DATABASE"],
    ),
    ("mysql", cfg!(feature = "mysql"), &["mysql://USER@HOST/DATABASE", "mariadb://USER@HOST/DATABASE"]),
    ("zookeeper", cfg!(feature = "zookeeper"), &["zookeeper://HOST,HOST"]),
    ("zookeeper-tls", cfg!(feature = "zookeeper-tls"), &["zookeepers://HOST,HOST"]),
    ("etcd", cfg!(feature = "etcd"), &["etcd://HOST,HOST", "etcds://HOST,HOST"]),
    ("memory", cfg!(feature = "memory"), &["memory:"]),
];

/// No store of this build takes the URL.
fn unknown(url: &str, _host: &Arc<dyn Host>) -> ConfigError {
    let scheme = scheme(url);
    // Shows only a known scheme, because unknown text may be a password.
    if let Some((feature, ..)) =
        STORES.iter().find(|(.., urls)| urls.iter().any(|url| self::scheme(url) == scheme))
    {
        let needs = if *feature == "etcd" { " (needs protoc)" } else { "" };
        return ConfigError::of_url(format!(
            "this build has no {feature} support; rebuild with --features {feature}{needs}"
        ));
    }
    if scheme == "jdbc" {
        return ConfigError::of_url(
            "this is a URL of JDBC; leave out jdbc: and write USER:PASSWORD@ before the host",
        );
    }
    if let Some(plain) = of_a_driver(scheme) {
        return ConfigError::of_url(format!(
            "this URL names a driver of another program; begin it with {plain}://"
        ));
    }
    let known: Vec<&str> =
        STORES.iter().filter(|(_, is_built, _)| *is_built).flat_map(|(.., urls)| *urls).copied().collect();
    if known.is_empty() {
        let features: Vec<&str> = STORES.iter().map(|(feature, ..)| *feature).collect();
        let what = "this build has no store; rebuild with --features and one of";
        return ConfigError::of_url(format!("{what} {}", features.join(", ")));
    }
    let has_one = url.find(':').is_some_and(|at| at > 0);
    let what = if has_one { "unknown URL scheme" } else { "a URL without a scheme" };
    ConfigError::of_url(format!("{what}; use one of: {}", known.join(", ")))
}

/// The scheme to write for one that names a driver too, as SQLAlchemy's do. What stands behind the `+` may be a password: no
/// word of it is shown.
fn of_a_driver(scheme: &str) -> Option<&'static str> {
    let (base, _) = scheme.split_once('+')?;
    ["postgresql", "postgres", "mysql", "mariadb", "rediss", "redis"].into_iter().find(|known| *known == base)
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(url: &str) -> String {
        let host: Arc<dyn Host> = Arc::new(TokioHost);
        unknown(url, &host).to_string()
    }

    /// L1: `docker --env-file` leaves a CR.
    #[cfg(feature = "memory")]
    #[test]
    fn what_is_around_a_url_is_no_part_of_it() {
        let host: Arc<dyn Host> = Arc::new(TokioHost);
        assert!(backend(" memory:\r\n", None, &host).is_ok());
    }

    #[test]
    fn a_url_of_a_store_that_is_not_in_this_build_names_its_feature() {
        for (url, part) in [
            ("sqlite:locks.db", "this build has no sqlite support; rebuild with --features sqlite"),
            ("memory:", "--features memory"),
            ("rediss-cluster://host", "--features redis"),
            ("postgresql://host/db", "--features postgres"),
            ("redlock:redis://a,redis://b,redis://c", "--features redlock"),
            (
                "zookeepers://a",
                "this build has no zookeeper-tls support; rebuild with --features zookeeper-tls",
            ),
        ] {
            assert!(said(url).contains(part), "{}", said(url));
        }
    }

    #[test]
    fn a_url_of_another_program_is_told_how_to_begin() {
        for (url, part) in [
            ("postgresql+asyncpg://hunter2", "begin it with postgresql://"),
            ("rediss+hunter2://h", "begin it with rediss://"),
            ("jdbc:postgresql://hunter2", "leave out jdbc:"),
        ] {
            assert!(said(url).contains(part) && !said(url).contains("hunter2"), "{}", said(url));
        }
    }

    #[test]
    fn each_store_of_this_build_is_reached_by_all_of_its_schemes() {
        let host: Arc<dyn Host> = Arc::new(TokioHost);
        for (feature, is_built, urls) in STORES {
            for url in *urls {
                let is_missing =
                    backend(url, None, &host).is_err_and(|e| e.to_string().contains("this build has no"));
                assert_eq!(is_missing, !is_built, "{feature}: {url}");
            }
        }
    }

    #[test]
    fn every_scheme_of_a_backend_is_one_whose_feature_can_be_named() {
        let schemes: &[&[&str]] = &[
            #[cfg(feature = "redis")]
            redis::Config::SCHEMES,
            #[cfg(feature = "postgres")]
            postgres::Config::SCHEMES,
            #[cfg(feature = "mysql")]
            mysql::Config::SCHEMES,
            #[cfg(feature = "zookeeper")]
            zookeeper::Config::SCHEMES,
            #[cfg(feature = "etcd")]
            etcd::Config::SCHEMES,
        ];
        for scheme in schemes.iter().copied().flatten() {
            assert!(said(&format!("{scheme}://host")).contains("rebuild with --features"), "{scheme}");
        }
    }
}
