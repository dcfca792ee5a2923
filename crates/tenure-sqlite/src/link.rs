//! `FileConnection`: a connection to the database, and the locks of this process other than SQLite's.
//!
//! `Anchor`: locks of this process on an open database. No close of another descriptor drops them.
//!
//! SQLite's own locks belong to the process, and any close of any descriptor of the file drops all of them. It is enough
//! that the program copies its database (<https://sqlite.org/howtocorrupt.html>). Another process then treats itself as the
//! last one, and deletes the log that this process has open. Locks on an open file description (`F_OFD_SETLK`, Linux) do not
//! depend on other descriptors. So each process has read locks on the bytes that SQLite locks to delete a log, and to
//! restart the shared memory. Both are released only with its last connection.
//!
//! A third lock shows which log and which shared memory this process has open: its offset is their number. If a newcomer
//! finds another number there, the log was deleted or replaced under an open connection, by `rm` or `rsync`.
//!
//! A fourth lock shows that this process lives: its offset is the process id ([`crate::death`]).
//!
//! A fork shares the descriptions: the locks stay until parent and child have closed them. A command that is started gets
//! none (`O_CLOEXEC`).

use std::{
    fs::{self, File, TryLockError},
    io,
    ops::Deref,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nix::fcntl::OFlag;
use rusqlite::{Connection, config::DbConfig};
use tenure_core::{BackendError, ErrorKind, locked};

use crate::{
    error,
    file::{FileFacts, FileId, LogFiles, beside},
    sql,
};

/// A connection. Its close does not harm another file of the same name, and no close of another descriptor harms it.
pub(crate) struct FileConnection {
    conn: Connection,
    database: PathBuf,
    /// The log, to be locked by each transaction that writes.
    log: Option<Arc<File>>,
    /// Declared, and so dropped, after the connection, as is `lock`.
    anchor: Anchor,
    /// Held while the connection is opened and while it is closed.
    lock: Option<FolderLock>,
    keeps_log: bool,
}

impl FileConnection {
    pub(crate) fn new(conn: Connection, database: &Path, anchor: Anchor, lock: FolderLock) -> Self {
        let database = database.to_owned();
        Self { conn, database, log: None, anchor, lock: Some(lock), keeps_log: false }
    }

    /// Takes the locks that last as long as the connection. It must have read something, so that SQLite has its log open.
    pub(crate) fn hold(&mut self) -> Result<LogFiles, BackendError> {
        let log_files = self.anchor.hold(&self.database)?;
        // SQLite has no locks on this file, so it may be closed at any time.
        self.log = Some(Arc::new(open_again(&beside(&self.database, "-wal"), log_files.log)?));
        Ok(log_files)
    }

    pub(crate) fn others(&self) -> Result<Others, BackendError> {
        self.anchor.others(&self.database)
    }

    /// Whether another process has this database open that has this id, or is a child of a fork of such a process. True if
    /// that cannot be known.
    pub(crate) fn is_open_in(&self, pid: u32) -> bool {
        self.anchor.is_open_in(pid, &self.database)
    }

    /// Taken before a transaction that writes begins. Never waits; `None` while another transaction writes.
    pub(crate) fn write_lock(&self) -> Option<WriteLock> {
        let log = self.log.clone().expect("BUG: nothing is written before the locks are held");
        log.try_lock().is_ok().then(|| WriteLock(log))
    }

    /// Moves the log into the database, so that the next transaction restarts the log. False if a reader still needs it, or
    /// if it cannot be moved. No process writes during that time.
    pub(crate) fn move_log(&self, _lock: &WriteLock) -> bool {
        self.move_pages()
    }

    /// The same, but other processes can write during the move. It flushes twice, and a flush may take longer than a lease.
    /// SQLite before [`MOVES_BESIDE_WRITERS`] may lose what is written at the same time (`README.md`). With such a version,
    /// the move stops writers, or is left out while another process writes.
    ///
    /// If nothing was committed during the move, the next commit restarts the log, and flushes its header under the lock. A
    /// lease that is renewed at least once in that time never meets this flush. One that is renewed more rarely has a ttl of
    /// three times the move.
    pub(crate) fn move_log_beside_writers(&self) {
        let is_safe = rusqlite::version_number() >= MOVES_BESIDE_WRITERS;
        let lock = if is_safe { None } else { self.write_lock() };
        if is_safe || lock.is_some() {
            self.move_pages();
        }
    }

    /// Afterwards, what this connection has committed is on the disk. Holds no lock.
    ///
    /// Proof. The commit wrote its frames into this very file, which no process deletes while it is held.
    /// * If the log was not restarted since, its header was flushed before its first frame was written. So was its name: the
    ///   first flush of a log by a connection of SQLite flushes the directory. This flush adds all frames up to the commit.
    /// * If it was restarted: SQLite does that only when each frame is in the database. It records that (`nBackfill`) only
    ///   after it has flushed log and database, as each connection of Tenure does (`synchronous=NORMAL`, not `OFF`).
    pub(crate) fn flush_log(&self) -> io::Result<()> {
        self.log.as_ref().expect("BUG: nothing is written before the locks are held").sync_data()
    }

    fn move_pages(&self) -> bool {
        let moved =
            self.conn.query_row(sql::MOVE_LOG, [], |row| Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?));
        moved.unwrap_or(false)
    }

    /// Ends the opening: other processes may open the file.
    pub(crate) fn opened(&mut self) {
        self.lock = None;
    }

    /// Closes the connection, and leaves its log where it is.
    pub(crate) fn close_beside_its_log(mut self) {
        self.keeps_log = true;
    }

    /// Whether no other process makes, opens or closes a database here.
    pub(crate) fn is_alone(&self) -> bool {
        self.lock.as_ref().is_some_and(FolderLock::is_exclusive)
    }
}

impl Deref for FileConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

impl Drop for FileConnection {
    /// The last connection moves its log into the database and deletes the log, by name. Without the lock, another file may
    /// have appeared at that name since SQLite checked it, perhaps with another log. Then all files are left as they are.
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

/// The right to write. SQLite's own lock for it is dropped if the program closes a descriptor of the shared memory. Then the
/// next process writes at the same time, and the commit of the first one is lost. So there is another lock, on the log
/// (`flock`), which belongs to the description of this connection.
pub(crate) struct WriteLock(Arc<File>);

impl Drop for WriteLock {
    fn drop(&mut self) {
        // Not left to the close: a forked child has a copy of the descriptor.
        let _ = self.0.unlock();
    }
}

/// The share of one connection in an [`OpenDatabase`]. Made before the connection, and dropped after it. The last one closes
/// the descriptors, and that close drops SQLite's locks of this process.
pub(crate) struct Anchor {
    file: FileId,
    process: u32,
}

impl Anchor {
    pub(crate) fn of(file: FileId) -> Self {
        let anchor = Self { file, process: std::process::id() };
        let mut all = locked(&ANCHORS);
        match all.iter_mut().find(|held| anchor.is(held)) {
            Some(held) => held.connections += 1,
            None => all.push(OpenDatabase {
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

    /// The log and the shared memory of that database that this process has open, if any.
    pub(crate) fn opened(file: FileId) -> Option<LogFiles> {
        let wanted = (file, std::process::id());
        locked(&ANCHORS).iter().find(|held| (held.file, held.process) == wanted)?.log_files
    }

    /// Whether other processes have another log or another shared memory open than those at their names. Exact unless a
    /// process opens or closes a database here at the same time.
    pub(crate) fn others(&self, path: &Path) -> Result<Others, BackendError> {
        self.with(|held| {
            // First, because a process that this finds may be making the log at this moment.
            let first = match held.database(path)? {
                Some(database) => {
                    platform::locked(database, Range::numbers()).map_err(|e| cannot_lock(path, e))?
                }
                None => None,
            };
            let number = LogFiles::of(path)?.map(LogFiles::number);
            let own = number.map(Range::number);
            let mut are_elsewhere = first.is_some() && first != own.map(|own| own.start);
            for rest in own.map(Range::around).into_iter().flatten() {
                let database = held.database(path)?;
                let there = database.map_or(Ok(None), |database| platform::locked(database, rest));
                are_elsewhere |= there.map_err(|e| cannot_lock(path, e))?.is_some();
            }
            Ok(Others { number, are_elsewhere })
        })
    }

    fn is_open_in(&self, pid: u32, path: &Path) -> bool {
        self.with(|held| {
            let Ok(Some(database)) = held.database(path) else { return true };
            platform::locked(database, Range::process(pid)).map_or(true, |locked| locked.is_some())
        })
    }

    /// Takes the locks. The connection must have read something, so that SQLite has its log and its shared memory open.
    fn hold(&self, path: &Path) -> Result<LogFiles, BackendError> {
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

    /// Before the connection is closed: whether SQLite may delete the log after it. This must be the last connection of this
    /// process, and that log the one at its name. Then the locks are released.
    fn let_go(&self, path: &Path) -> bool {
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

    fn is(&self, held: &OpenDatabase) -> bool {
        (held.file, held.process) == (self.file, self.process)
    }

    fn with<A>(&self, work: impl FnOnce(&mut OpenDatabase) -> A) -> A {
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
            // Closes the descriptors while no other thread opens this file.
            all.swap_remove(at);
        }
    }
}

/// The first SQLite without its WAL-reset bug.
const MOVES_BESIDE_WRITERS: i32 = 3_051_003;

/// What other processes have open of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Others {
    /// The number of the log and the shared memory at their names, if they are there.
    pub(crate) number: Option<u64>,
    /// A process has another log or another shared memory open.
    pub(crate) are_elsewhere: bool,
}

/// The descriptors with the locks on one database, for all connections of this process to it.
struct OpenDatabase {
    file: FileId,
    process: u32,
    connections: usize,
    database: Option<File>,
    memory: Option<File>,
    /// The log and the shared memory that are open, once the locks are held.
    log_files: Option<LogFiles>,
}

/// All databases that this process has open.
static ANCHORS: Mutex<Vec<OpenDatabase>> = Mutex::new(Vec::new());

impl OpenDatabase {
    /// The description that has the locks on the database; `None` where there are no such locks.
    fn database(&mut self, path: &Path) -> Result<Option<&File>, BackendError> {
        if self.database.is_none() && platform::ARE_THERE {
            self.database = Some(open_again(path, self.file)?);
        }
        Ok(self.database.as_ref())
    }

    fn lock(&mut self, path: &Path, log_files: LogFiles) -> Result<(), BackendError> {
        if !platform::ARE_THERE {
            return Ok(());
        }
        // Kept open if a lock is refused, because a close would drop SQLite's own locks.
        if self.memory.is_none() {
            self.memory = Some(open_again(&beside(path, "-shm"), log_files.memory)?);
        }
        let number = Range::number(log_files.number());
        let Some(database) = self.database(path)? else { return Ok(()) };
        // Never unlocked, only closed: a child of a fork keeps this lock.
        for range in [Range::SHARED, number, Range::process(std::process::id())] {
            platform::share(database, range).map_err(|e| cannot_lock(path, e))?;
        }
        let memory = self.memory.as_ref().expect("BUG: opened above");
        platform::share(memory, Range::MEMORY).map_err(|e| cannot_lock(path, e))
    }

    /// Not left to the close, which a forked child may delay indefinitely.
    fn unlock(&mut self, log_files: LogFiles) {
        // Cannot fail: this process has the locks, and needs no more than those.
        if let Some(database) = &self.database {
            let _ = platform::unlock(database, Range::SHARED);
            let _ = platform::unlock(database, Range::number(log_files.number()));
        }
        if let Some(memory) = &self.memory {
            let _ = platform::unlock(memory, Range::MEMORY);
        }
    }
}

/// A separate description of this file, if it is at the path.
fn open_again(path: &Path, file: FileId) -> Result<File, BackendError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let opened = opened.and_then(|opened| Ok((FileFacts::from(&opened.metadata()?).file, opened)));
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

/// A lock on the directory itself, in which SQLite keeps its log.
///
/// SQLite finds its log by name, so a file that takes the place of another one could get the wrong log. A lock on the file
/// does not help: each of the two has its own. Under this lock, no process of Tenure makes a file, writes its guard, or lets
/// SQLite delete a log by name while another one does.
pub(crate) struct FolderLock {
    folder: File,
    is_exclusive: bool,
}

impl FolderLock {
    /// For opening a file that exists and is known. Never waits.
    pub(crate) fn shared(database: &Path) -> Result<Self, BackendError> {
        Self::take(database, false)
    }

    /// For every change of the file at the path, or of the files next to it. Never waits.
    pub(crate) fn exclusive(database: &Path) -> Result<Self, BackendError> {
        Self::take(database, true)
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    fn take(database: &Path, is_exclusive: bool) -> Result<Self, BackendError> {
        // SQLite puts its log next to the target of a link.
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

/// Bytes of a file. They need not exist to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: i64,
    length: i64,
}

impl Range {
    /// SQLite has a read lock on these bytes of a database that it has open. To delete its log it locks them exclusively
    /// (`SHARED_FIRST`, `SHARED_SIZE`).
    const SHARED: Self = Self { start: 0x4000_0002, length: 510 };
    /// The same for the shared memory: a process that finds no lock there restarts it (`UNIX_SHM_DMS`).
    const MEMORY: Self = Self { start: 128, length: 1 };

    /// All numbers.
    fn numbers() -> Self {
        Self { start: NUMBERS, length: COUNT }
    }

    /// The place of a number, which is neither of the two ends.
    fn number(number: u64) -> Self {
        let place = number % (COUNT.unsigned_abs() - 2) + 1;
        Self { start: NUMBERS.saturating_add_unsigned(place), length: 1 }
    }

    /// The place of a process. Two processes in different namespaces of process ids may share one.
    fn process(pid: u32) -> Self {
        Self { start: PROCESSES + i64::from(pid), length: 1 }
    }

    /// All places but this one.
    fn around(self) -> [Self; 2] {
        let behind = self.start + 1;
        [
            Self { start: NUMBERS, length: self.start - NUMBERS },
            Self { start: behind, length: NUMBERS + COUNT - behind },
        ]
    }
}

/// Where numbers begin: SQLite locks no bytes at such offsets.
const NUMBERS: i64 = 1 << 62;
const COUNT: i64 = 1 << 61;
/// Where process ids begin, below the numbers.
const PROCESSES: i64 = 1 << 60;

/// Locks on an open file description.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod platform {
    use std::{fs::File, io};

    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc::{self, c_int},
    };

    use super::Range;

    pub(super) const ARE_THERE: bool = true;

    /// A read lock. Never waits.
    pub(super) fn share(file: &File, range: Range) -> io::Result<()> {
        set(file, range, libc::F_RDLCK)
    }

    pub(super) fn unlock(file: &File, range: Range) -> io::Result<()> {
        set(file, range, libc::F_UNLCK)
    }

    /// Where the first lock of another description or process in this range begins.
    pub(super) fn locked(file: &File, range: Range) -> io::Result<Option<i64>> {
        let mut lock = flock(range, libc::F_WRLCK);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok((c_int::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_start))
    }

    fn set(file: &File, range: Range, kind: c_int) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&flock(range, kind)))?;
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, reason = "the kinds of locks, and SEEK_SET, are 0 to 2")]
    fn flock(range: Range, kind: c_int) -> libc::flock {
        libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: range.start,
            l_len: range.length,
            l_pid: 0,
        }
    }
}

/// Here SQLite's own locks must suffice: the program must not close the database's files.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod platform {
    use std::{fs::File, io};

    use super::Range;

    pub(super) const ARE_THERE: bool = false;

    pub(super) fn share(_file: &File, _range: Range) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn unlock(_file: &File, _range: Range) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn locked(_file: &File, _range: Range) -> io::Result<Option<i64>> {
        Ok(None)
    }
}
