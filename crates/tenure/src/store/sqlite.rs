//! `SqliteStore`: a file on this machine.

use std::{path::Path, sync::Arc, time::Duration};

use tenure_core::{BackendHandle, Host};

use crate::{
    connect::{StoreSettings, sqlite::Config},
    error::ConfigError,
};

/// Locks in a file, for the processes of one machine. Its URL is `sqlite:PATH`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("locks.db");
/// let locks = tenure::store::SqliteStore::at(&path).connect().await?;
/// assert!(locks.mutex("job").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pub(super) config: Config,
}

impl SqliteStore {
    /// The file, which is created if it does not exist. Any path is valid, UTF-8 or not. A relative path starts at
    /// the working directory of the program when it connects.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self { config: Config::new(path) }
    }

    /// How long a waiter may take to acquire the lock when its turn has come: 50 ms to 6 s, 500 ms by default. Then
    /// the next one gets it. All processes should set the same value.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.config.rules.claim_ttl = claim_ttl;
        self
    }

    /// The URL with the same settings, as [`connect`](crate::connect) reads it.
    ///
    /// # Errors
    /// [`ConfigError`] if the path is not UTF-8.
    pub fn url(&self) -> Result<String, ConfigError> {
        self.config.url()
    }

    fn backend(&self, host: &Arc<dyn Host>) -> Result<BackendHandle, ConfigError> {
        self.config.clone().backend(host)
    }
}

connects!(SqliteStore, |url| Config::read(url).map(|config| Self { config }));
