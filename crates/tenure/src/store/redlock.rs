//! `RedlockStore`: a quorum of independent Redis servers.

use std::{fmt, sync::Arc};

use tenure_core::{BackendHandle, Host};

use crate::{
    connect::{StoreSettings, nodes_of_redlock, redis::Config, redlock},
    error::ConfigError,
    store::{described::Described, redis::RedisStore},
};

/// Locks on a quorum of Redis servers. Its URL is `redlock:URL,URL,URL`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::store::{RedisStore, RedlockStore};
///
/// let nodes = ["a.example", "b.example", "c.example"];
/// let locks = RedlockStore::of(nodes.map(|host| RedisStore::at(host).password("secret"))).connect().await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedlockStore(Vec<RedisStore>);

impl RedlockStore {
    /// These servers: 3 to 63, an odd number. Each may have its own login and port; all other settings, including
    /// the number of the database, are the same for all.
    pub fn of(nodes: impl IntoIterator<Item = RedisStore>) -> Self {
        Self(nodes.into_iter().collect())
    }

    /// The URL with the same settings, as [`connect`](crate::connect) reads it. **It holds the passwords.**
    ///
    /// # Errors
    /// [`ConfigError`] if a URL cannot express a setting.
    pub fn url(&self) -> Result<String, ConfigError> {
        let urls = self.nodes()?.iter().map(StoreSettings::url).collect::<Result<Vec<_>, _>>()?;
        let nodes: Vec<&str> = urls.iter().map(|url| url.split('?').next().unwrap_or(url)).collect();
        let parameters = urls[0].strip_prefix(nodes[0]).unwrap_or_default();
        Ok(format!("redlock:{}{parameters}", nodes.join(",")))
    }

    pub(super) fn nodes(&self) -> Result<Vec<Config>, ConfigError> {
        let nodes = self.0.iter().map(|node| node.0.config.clone()).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = nodes.first() else {
            return Err(ConfigError::Url("no server is named".into()));
        };
        let like_first = |node: &Config| {
            let mut node = node.clone();
            (node.topology, node.tls) = (first.topology.clone(), first.tls);
            node.login = first.login.clone();
            node
        };
        if nodes.iter().any(|node| like_first(node) != *first) {
            return Err(ConfigError::Url("the nodes of a quorum have the same settings".into()));
        }
        Ok(nodes)
    }

    fn backend(&self, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
        redlock(self.nodes()?, host)
    }
}

connects!(RedlockStore, |url| {
    let nodes = nodes_of_redlock(url)?.into_iter().map(|config| RedisStore(Described::of_url(config)));
    Ok(Self(nodes.collect()))
});

/// Shows no secret.
impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}
