//! `SqliteStore`: a file on this machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::ConfigError,
    store::connects::{connects, duration},
};

/// Locks in a file, for the processes of one machine. The URL that says the same is `sqlite:PATH`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("locks.db");
/// let locks = tenure::SqliteStore::at(&path).connect().await?;
/// assert!(locks.mutex("job").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore {
    path: PathBuf,
    claim_ttl: Option<Duration>,
}

impl SqliteStore {
    /// The file, which is made if it is not there. A relative path counts from where the program is when it connects.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), claim_ttl: None }
    }

    /// For how long a waiter that was handed the lock may take to enter, before the next one gets it: 50 ms to 6 s, 500 ms
    /// by default. All processes should say the same.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.claim_ttl = Some(claim_ttl);
        self
    }

    /// The URL that says the same, as [`connect`](crate::connect) reads it.
    ///
    /// # Errors
    /// [`ConfigError`] if the path is not UTF-8.
    pub fn url(&self) -> Result<String, ConfigError> {
        let path = self.path.to_str();
        let path = path.ok_or_else(|| ConfigError::of_url("the path of a file is not UTF-8"))?;
        // The path is not encoded, and ends at the last question mark.
        let query = self.claim_ttl.map_or_else(String::new, |ttl| format!("claim_ttl={}", duration(ttl)));
        let end = if path.contains('?') || !query.is_empty() { "?" } else { "" };
        Ok(format!("sqlite:{path}{end}{query}"))
    }
}

connects!(SqliteStore);
