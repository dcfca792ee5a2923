//! `Link`: a connection to the database, and what this process locks besides SQLite.

use std::{
    fs::File,
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, config::DbConfig};
use tenure_core::BackendError;

use crate::{
    anchor::{Anchor, Others, open_again},
    file::beside,
    folder::FolderLock,
    names::LogFiles,
};

/// A connection whose end cannot hurt another file of the same name, and which no close of another descriptor hurts.
pub(crate) struct Link {
    conn: Connection,
    database: PathBuf,
    /// The log, to be locked by each transaction that writes.
    log: Option<Arc<File>>,
    /// Declared, and so dropped, after the connection, as is the lock.
    anchor: Anchor,
    /// Held while it is opened and while it is closed.
    lock: Option<FolderLock>,
    keeps_log: bool,
}

/// The right to write. SQLite's own lock for it is dropped if the program closes a descriptor of the shared memory:
/// the next process wrote at the same time, and the first one's commit was gone. So there is another one, on the log
/// (`flock`), which belongs to the description of this connection.
pub(crate) struct WriteLock(Arc<File>);

impl Link {
    pub(crate) fn new(conn: Connection, database: &Path, anchor: Anchor, lock: FolderLock) -> Self {
        let database = database.to_owned();
        Self { conn, database, log: None, anchor, lock: Some(lock), keeps_log: false }
    }

    /// Takes the locks that last as long as it is open. It has read something: SQLite has its log open.
    pub(crate) fn hold(&mut self) -> Result<LogFiles, BackendError> {
        let log_files = self.anchor.hold(&self.database)?;
        // SQLite locks nothing of this file: it may be closed at any time.
        self.log = Some(Arc::new(open_again(&beside(&self.database, "-wal"), log_files.log)?));
        Ok(log_files)
    }

    pub(crate) fn others(&self) -> Result<Others, BackendError> {
        self.anchor.others(&self.database)
    }

    /// Taken before a transaction that writes begins. Never waits; `None` while another one writes.
    pub(crate) fn write_lock(&self) -> Option<WriteLock> {
        let log = self.log.clone().expect("BUG: nothing is written before the locks are held");
        log.try_lock().is_ok().then(|| WriteLock(log))
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

impl Drop for WriteLock {
    fn drop(&mut self) {
        // Not left to the close: a forked child has a copy of the descriptor.
        let _ = self.0.unlock();
    }
}
