//! `FolderLock`: the right to make, adopt or tidy a database in a directory.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use rusqlite::{Connection, config::DbConfig};
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
    fn alone(self) -> Option<Self> {
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

/// A connection whose end cannot hurt another file of the same name.
pub(crate) struct Link {
    conn: Connection,
    database: std::path::PathBuf,
    /// Held while it is opened and while it is closed. Declared, and so dropped, after the connection.
    lock: Option<FolderLock>,
}

impl Link {
    pub(crate) fn new(conn: Connection, database: &Path, lock: FolderLock) -> Self {
        Self { conn, database: database.to_owned(), lock: Some(lock) }
    }

    /// It is open: others may come.
    pub(crate) fn opened(&mut self) {
        self.lock = None;
    }

    /// Whether no other process makes, opens or closes a database here.
    pub(crate) fn is_alone(&self) -> bool {
        self.lock.as_ref().is_some_and(FolderLock::is_exclusive)
    }
}

impl std::ops::Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl Drop for Link {
    /// The last connection deletes its log, by name. Without the lock another file may have come to life under
    /// that name since SQLite looked; so the log is left where it is.
    fn drop(&mut self) {
        let lock = match self.lock.take() {
            Some(lock) => lock.alone(),
            None => FolderLock::exclusive(&self.database).ok(),
        };
        if lock.is_none() {
            // Cannot fail: it sets a flag of an open connection.
            let _ = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
        self.lock = lock;
    }
}
