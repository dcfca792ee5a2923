//! `FolderLock`: the right to make, adopt or tidy a database in a directory.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use tenure_core::{BackendError, ErrorKind};

use crate::error;

/// A lock on the directory itself, in which SQLite keeps its log.
///
/// SQLite finds its log by name, so a file that takes another's place could be given the wrong one. A lock on the file
/// does not help: each of the two has its own. Under this one, nobody of us makes a file, remembers one, or lets SQLite
/// delete a log by its name while somebody else does.
pub(crate) struct FolderLock {
    folder: File,
    is_exclusive: bool,
}

impl FolderLock {
    /// For opening a file that is there and known. Never waits.
    pub(crate) fn shared(database: &Path) -> Result<Self, BackendError> {
        Self::take(database, false)
    }

    /// For every change of the file at the path, or of files beside it. Never waits.
    pub(crate) fn exclusive(database: &Path) -> Result<Self, BackendError> {
        Self::take(database, true)
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    fn take(database: &Path, is_exclusive: bool) -> Result<Self, BackendError> {
        // SQLite's log lies where a link leads to.
        let real = fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
        let folder = real.parent().unwrap_or(&real);
        let folder = File::open(folder).map_err(|e| error::cannot_lock(database, e))?;
        let taken = if is_exclusive { folder.try_lock() } else { folder.try_lock_shared() };
        match taken {
            Ok(()) => Ok(Self { folder, is_exclusive }),
            Err(TryLockError::WouldBlock) => {
                let message = "another process is opening a database in this directory";
                Err(error::refused(database, ErrorKind::Throttled, message))
            }
            Err(TryLockError::Error(e)) => Err(error::cannot_lock(database, e)),
        }
    }

    /// The same lock, exclusive, if it is free.
    pub(crate) fn alone(self) -> Option<Self> {
        let is_alone = self.is_exclusive || self.folder.try_lock().is_ok();
        is_alone.then_some(self)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Not left to the close: a process that is being started may have a copy of the descriptor for a moment.
        let _ = self.folder.unlock();
    }
}
