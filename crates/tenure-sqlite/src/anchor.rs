//! `Anchor`: locks of this process on an open database that it loses by no close of another descriptor.
//!
//! SQLite's own locks belong to the process, and any close of any descriptor of the file drops all of them: it is enough that
//! the program copies its database (<https://sqlite.org/howtocorrupt.html>). Another process then takes itself for the last
//! one, and deletes the log beneath us. Locks on an open file description (`F_OFD_SETLK`, Linux) have nothing to do with other
//! descriptors. So each process has a read lock on the bytes that SQLite locks to delete a log, and to begin the shared memory
//! anew; both are released only with its last connection.
//!
//! A third one says which log and which shared memory this process has open: its place is their number. A newcomer that finds
//! another number there knows that the log was deleted or replaced beneath an open connection, by `rm` or `rsync`.
//!
//! A fork shares the descriptions: the locks stay until parent and child have closed them. A command that is started gets none
//! (`O_CLOEXEC`).

use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Mutex,
};

use nix::fcntl::OFlag;
use tenure_core::{BackendError, ErrorKind, locked};

use crate::{
    error,
    file::{Facts, FileId, beside},
    names::LogFiles,
    ranges::{self, Range},
};

/// All databases that this process has open.
static ANCHORS: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// What holds one database, for all connections of this process to it.
struct Held {
    file: FileId,
    process: u32,
    connections: usize,
    database: Option<File>,
    memory: Option<File>,
    /// Which ones are open, once the locks are held.
    log_files: Option<LogFiles>,
}

/// The part that one connection has in it. Made before the connection, and dropped after it: with the last one the
/// descriptors are closed, and that close drops SQLite's locks of this process.
pub(crate) struct Anchor {
    file: FileId,
    process: u32,
}

/// Who else has a database open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Others {
    /// The number of the log and the shared memory at their names, if they are there.
    pub(crate) number: Option<u64>,
    /// A process has others open.
    pub(crate) are_elsewhere: bool,
}

impl Anchor {
    pub(crate) fn of(file: FileId) -> Self {
        let anchor = Self { file, process: std::process::id() };
        let mut all = locked(&ANCHORS);
        match all.iter_mut().find(|held| anchor.is(held)) {
            Some(held) => held.connections += 1,
            None => all.push(Held {
                file,
                process: anchor.process,
                connections: 1,
                database: None,
                memory: None,
                log_files: None,
            }),
        }
        anchor
    }

    /// Which log and shared memory this process has open of that database, if any.
    pub(crate) fn opened(file: FileId) -> Option<LogFiles> {
        let wanted = (file, std::process::id());
        locked(&ANCHORS).iter().find(|held| (held.file, held.process) == wanted)?.log_files
    }

    /// Whether others have another log or another shared memory open than those at their names. Exact unless a process opens or
    /// closes a database here at the same time.
    pub(crate) fn others(&self, path: &Path) -> Result<Others, BackendError> {
        self.with(|held| {
            // First, because one of those that it finds may be making the log just now.
            let first = match held.database(path)? {
                Some(database) => {
                    ranges::locked(database, Range::numbers()).map_err(|e| cannot_lock(path, e))?
                }
                None => None,
            };
            let number = LogFiles::of(path)?.map(LogFiles::number);
            let own = number.map(Range::number);
            let mut are_elsewhere = first.is_some() && first != own.map(|own| own.start);
            for rest in own.map(Range::around).into_iter().flatten() {
                let database = held.database(path)?;
                let there = database.map_or(Ok(None), |database| ranges::locked(database, rest));
                are_elsewhere |= there.map_err(|e| cannot_lock(path, e))?.is_some();
            }
            Ok(Others { number, are_elsewhere })
        })
    }

    /// Takes the locks. The connection must have read something: now SQLite has its log and its shared memory open.
    pub(crate) fn hold(&self, path: &Path) -> Result<LogFiles, BackendError> {
        self.with(|held| {
            let there = LogFiles::of(path)?;
            let Some(log_files) = there.filter(|there| held.log_files.is_none_or(|open| open == *there))
            else {
                return Err(error::replaced_meanwhile(path));
            };
            if held.log_files.is_none() {
                held.lock(path, log_files)?;
                held.log_files = Some(log_files);
            }
            Ok(log_files)
        })
    }

    /// Before the connection is closed: whether SQLite may delete the log after it, which takes that this is the last
    /// connection of this process, and that log the one at its name. The locks are given up then.
    pub(crate) fn let_go(&self, path: &Path) -> bool {
        if self.process != std::process::id() {
            return false;
        }
        self.with(|held| {
            let Some(log_files) = held.log_files else { return true };
            let is_last =
                held.connections == 1 && LogFiles::of(path).is_ok_and(|there| there == Some(log_files));
            if is_last {
                held.unlock(log_files);
            }
            is_last
        })
    }

    fn is(&self, held: &Held) -> bool {
        (held.file, held.process) == (self.file, self.process)
    }

    fn with<A>(&self, work: impl FnOnce(&mut Held) -> A) -> A {
        let mut all = locked(&ANCHORS);
        let held = all.iter_mut().find(|held| self.is(held));
        work(held.expect("BUG: an anchor lasts as long as its connection"))
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let mut all = locked(&ANCHORS);
        let Some(at) = all.iter().position(|held| self.is(held)) else { return };
        all[at].connections -= 1;
        if all[at].connections == 0 {
            // Closes them while no other thread opens this file.
            all.swap_remove(at);
        }
    }
}

impl Held {
    /// The description that has the locks on the database; none where there are no such locks.
    fn database(&mut self, path: &Path) -> Result<Option<&File>, BackendError> {
        if self.database.is_none() && ranges::ARE_THERE {
            self.database = Some(open_again(path, self.file)?);
        }
        Ok(self.database.as_ref())
    }

    fn lock(&mut self, path: &Path, log_files: LogFiles) -> Result<(), BackendError> {
        if !ranges::ARE_THERE {
            return Ok(());
        }
        // Kept if a lock is refused: a close would drop SQLite's own.
        if self.memory.is_none() {
            self.memory = Some(open_again(&beside(path, "-shm"), log_files.memory)?);
        }
        let number = Range::number(log_files.number());
        let Some(database) = self.database(path)? else { return Ok(()) };
        for range in [Range::SHARED, number] {
            ranges::share(database, range).map_err(|e| cannot_lock(path, e))?;
        }
        let memory = self.memory.as_ref().expect("BUG: opened above");
        ranges::share(memory, Range::MEMORY).map_err(|e| cannot_lock(path, e))
    }

    /// Not left to the close, which a forked child may delay for ever.
    fn unlock(&mut self, log_files: LogFiles) {
        // Cannot fail: the locks are ours, and it is asked for less.
        if let Some(database) = &self.database {
            let _ = ranges::unlock(database, Range::SHARED);
            let _ = ranges::unlock(database, Range::number(log_files.number()));
        }
        if let Some(memory) = &self.memory {
            let _ = ranges::unlock(memory, Range::MEMORY);
        }
    }
}

/// A description of its own of this file, if it stands at the path.
pub(crate) fn open_again(path: &Path, file: FileId) -> Result<File, BackendError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let opened = opened.and_then(|opened| Ok((Facts::from(&opened.metadata()?).file, opened)));
    match opened {
        Ok((is, opened)) if is == file => Ok(opened),
        Ok(_) => Err(error::replaced_meanwhile(path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(error::replaced_meanwhile(path)),
        Err(e) => Err(error::cannot_open(path, e)),
    }
}

fn cannot_lock(path: &Path, error: io::Error) -> BackendError {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::PermissionDenied) {
        return error::busy(path);
    }
    let message = "this file system has no locks on open file descriptions (F_OFD_SETLK); put the database on a local one";
    error::refused(path, ErrorKind::Unsupported, message).caused_by(error)
}
