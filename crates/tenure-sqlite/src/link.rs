//! `Link`: a connection to the database.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, config::DbConfig};

use crate::folder::FolderLock;

/// A connection whose end cannot hurt another file of the same name.
pub(crate) struct Link {
    conn: Connection,
    database: PathBuf,
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

impl Deref for Link {
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
