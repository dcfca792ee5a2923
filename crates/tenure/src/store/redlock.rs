//! `RedlockStore`: a quorum of Redis servers that know nothing of each other.

use std::fmt;

use crate::{
    error::ConfigError,
    store::{connects::connects, redis::RedisStore},
};

/// Locks on a majority of Redis servers. The URL that says the same is `redlock:URL,URL,URL`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::{RedisStore, RedlockStore};
///
/// let nodes = ["a.example", "b.example", "c.example"];
/// let locks = RedlockStore::of(nodes.map(|host| RedisStore::at(host).password("secret"))).connect().await?;
/// println!("{}", locks.promises().backend);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedlockStore(Vec<RedisStore>);

impl RedlockStore {
    /// These servers: 3 to 63, an odd number. Each may have a login and a port of its own; all else, the number of the
    /// database included, is the same for all.
    pub fn of(nodes: impl IntoIterator<Item = RedisStore>) -> Self {
        Self(nodes.into_iter().collect())
    }

    /// The URL that says the same, as [`connect`](crate::connect) reads it. **It holds the passwords.**
    ///
    /// # Errors
    /// [`ConfigError`] for what no URL can say.
    pub fn url(&self) -> Result<String, ConfigError> {
        let Some(first) = self.0.first() else {
            return Err(ConfigError::Url("no server is named".into()));
        };
        let query = first.0.query();
        if self.0.iter().any(|node| node.0.query() != query) {
            return Err(ConfigError::Url("the nodes of a quorum have the same settings".into()));
        }
        let nodes = self.0.iter().map(|node| node.0.without_query()).collect::<Result<Vec<_>, _>>()?;
        let query = if query.is_empty() { query } else { format!("?{query}") };
        Ok(format!("redlock:{}{query}", nodes.join(",")))
    }
}

connects!(RedlockStore);

/// Shows no secret.
impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}
