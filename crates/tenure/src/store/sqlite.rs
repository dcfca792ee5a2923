//! `SqliteStore`: a file on this machine.

use std::{path::Path, time::Duration};

use crate::store::written::{Written, connects};

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
#[derive(Clone)]
pub struct SqliteStore(Written);

impl SqliteStore {
    /// The file, which is made if it is not there. A relative path counts from where the program is when it connects.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(Written::file("sqlite:", path.as_ref()))
    }

    /// For how long a waiter that was handed the lock may take to enter, before the next one gets it: 50 ms to 6 s, 500 ms
    /// by default. All processes should say the same.
    #[must_use]
    pub fn claim_ttl(mut self, claim_ttl: Duration) -> Self {
        self.0.set_duration("claim_ttl", claim_ttl);
        self
    }
}

connects!(SqliteStore);
