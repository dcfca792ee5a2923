//! `Link`: a connection to the database, and what this process locks besides SQLite.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, config::DbConfig};
use tenure_core::BackendError;

use crate::{
    anchor::{Anchor, Others},
    folder::FolderLock,
    names::LogFiles,
};

/// A connection whose end cannot hurt another file of the same name, and which no close of another descriptor hurts.
pub(crate) struct Link {
    conn: Connection,
    database: PathBuf,
    /// Declared, and so dropped, after the connection, as is the lock.
    anchor: Anchor,
    /// Held while it is opened and while it is closed.
    lock: Option<FolderLock>,
    keeps_log: bool,
}

impl Link {
    pub(crate) fn new(conn: Connection, database: &Path, anchor: Anchor, lock: FolderLock) -> Self {
        let database = database.to_owned();
        Self { conn, database, anchor, lock: Some(lock), keeps_log: false }
    }

    /// Takes the locks that last as long as it is open. It has read something: SQLite has its log open.
    pub(crate) fn hold(&self) -> Result<LogFiles, BackendError> {
        self.anchor.hold(&self.database)
    }

    pub(crate) fn others(&self) -> Result<Others, BackendError> {
        self.anchor.others(&self.database)
    }

    /// It is open: others may come.
    pub(crate) fn opened(&mut self) {
        self.lock = None;
    }

    /// Leaves its log where it is.
    pub(crate) fn close_beside_its_log(mut self) {
        self.keeps_log = true;
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
    /// The last connection moves its log into the database and deletes it, by name. Without the lock another file may have
    /// come to life under that name since SQLite looked, and another log may stand there already: then all is left as it is.
    fn drop(&mut self) {
        self.lock = match self.lock.take() {
            Some(lock) => lock.alone(),
            None => FolderLock::exclusive(&self.database).ok(),
        };
        if self.keeps_log || self.lock.is_none() || !self.anchor.let_go(&self.database) {
            // Cannot fail: it sets a flag of an open connection.
            let _ = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}
