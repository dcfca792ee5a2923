//! `connect`: from a URL to a `Locker`. The only file that names backends.

use std::sync::Arc;

use tenure_core::{BackendHandle, Host};

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
/// | `zookeeper://HOST,HOST/PATH` | `zookeeper` |
/// | `etcd://HOST,HOST` | `etcd` |
///
/// The README of each backend has its parameters. In a user or a password write `/` as `%2F`, `?` as `%3F` and `@` as `%40`;
/// or use the builder of the store, which does so. Nothing is sent yet where the backend can do without: a store that is
/// down is found by the first request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// println!("{} keeps locks for {}", locks.promises().backend, locks.promises().reach);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ConfigError`] if the URL names no backend that was compiled in, or has settings that it does not know.
///
/// # Cancel safety
/// Nothing is left behind.
pub async fn connect(url: &str) -> Result<Locker, ConfigError> {
    let host: Arc<dyn Host> = Arc::new(TokioHost);
    let backend = backend(url, &host)?;
    Ok(Locker::new(backend, host))
}

fn backend(url: &str, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme).unwrap_or_default();
    match scheme {
        #[cfg(feature = "memory")]
        "memory" if url == "memory:" => Ok(Arc::new(tenure_memory::Memory::new(host.clone()))),
        #[cfg(feature = "memory")]
        "memory" => Err(ConfigError::Url("memory: takes no path and no parameters".into())),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let config = tenure_sqlite::Config::from_url(url).map_err(ConfigError::of_url)?;
            Ok(Arc::new(tenure_sqlite::Sqlite::new(config, host.clone())))
        }
        #[cfg(feature = "redis")]
        _ if tenure_redis::Config::SCHEMES.contains(&scheme) => {
            let config = tenure_redis::Config::from_url(url).map_err(ConfigError::of_url)?;
            Ok(Arc::new(tenure_redis::Redis::new(config, host.clone())))
        }
        #[cfg(feature = "redlock")]
        "redlock" => redlock(url, host),
        #[cfg(feature = "postgres")]
        _ if tenure_postgres::Config::SCHEMES.contains(&scheme) => {
            let config = tenure_postgres::Config::from_url(url).map_err(ConfigError::of_url)?;
            Ok(Arc::new(tenure_postgres::backend(config, host.clone())))
        }
        #[cfg(feature = "zookeeper")]
        _ if tenure_zookeeper::Config::SCHEMES.contains(&scheme) => {
            let config = tenure_zookeeper::Config::from_url(url).map_err(ConfigError::of_url)?;
            Ok(Arc::new(tenure_zookeeper::ZooKeeper::new(config, host.clone())))
        }
        #[cfg(feature = "etcd")]
        _ if tenure_etcd::Config::SCHEMES.contains(&scheme) => {
            let config = tenure_etcd::Config::from_url(url).map_err(ConfigError::of_url)?;
            Ok(Arc::new(tenure_etcd::Etcd::new(config, host.clone())))
        }
        _ => Err(unknown(url, host)),
    }
}

#[cfg(feature = "redlock")]
fn redlock(url: &str, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
    let urls = tenure_redlock::Config::from_url(url).map_err(ConfigError::of_url)?.nodes;
    let node = |url: &String| {
        let config = tenure_redis::Config::from_url(url).and_then(|config| config.in_quorum(urls.len()));
        let config = config.map_err(|error| ConfigError::of_url(format!("redlock: {error}")))?;
        Ok((config.place_name(), Arc::new(tenure_redis::Redis::new(config, host.clone()))))
    };
    let nodes = urls.iter().map(node).collect::<Result<_, ConfigError>>()?;
    let quorum = tenure_redlock::Redlock::new(nodes, host.clone()).map_err(ConfigError::of_url)?;
    Ok(Arc::new(quorum))
}

fn unknown(url: &str, _host: &Arc<dyn Host>) -> ConfigError {
    let known: &[&str] = &[
        #[cfg(feature = "sqlite")]
        "sqlite:PATH",
        #[cfg(feature = "redis")]
        "redis://HOST",
        #[cfg(feature = "redis")]
        "rediss://HOST",
        #[cfg(feature = "redis")]
        "redis+unix:///PATH",
        #[cfg(feature = "redis")]
        "redis-sentinel://HOST,HOST?master=NAME",
        #[cfg(feature = "redis")]
        "redis-cluster://HOST,HOST",
        #[cfg(feature = "redlock")]
        "redlock:redis://HOST,redis://HOST,redis://HOST",
        #[cfg(feature = "postgres")]
        "postgres://USER@HOST/DATABASE",
        #[cfg(feature = "zookeeper")]
        "zookeeper://HOST,HOST/PATH",
        #[cfg(feature = "etcd")]
        "etcd://HOST,HOST",
        #[cfg(feature = "memory")]
        "memory:",
    ];
    // Not even what stands where the scheme belongs is shown: where there is none, it may be a password.
    let has_one = url.find(':').is_some_and(|at| at > 0);
    let what = if has_one { "unknown URL scheme" } else { "a URL without a scheme" };
    ConfigError::of_url(format!("{what}; use one of: {}", known.join(", ")))
}
