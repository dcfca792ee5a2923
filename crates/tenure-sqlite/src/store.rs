//! `Store`: one connection, and a transaction per verb.

use std::{
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, TryLockError, Weak},
    time::Duration,
};

use rusqlite::Connection;
use tenure_core::{Audience, BackendError, Bells, ErrorKind, Host, Moment, OwnerId, Unstopped, locked};
use tokio::sync::Notify;

use crate::{
    clock::LeaseClock,
    config::Config,
    error,
    file::FileId,
    folder::FolderLock,
    link::WriteLock,
    lost_log,
    names::Standing,
    places::Places,
    schema::{self, Open},
    sql,
    touch::touch,
    written::LastWritten,
};

/// So often a holder asks for the write lock in a row, before it lets its timer ask: a transaction takes some 50 µs, a try one.
const HOLDERS_TRIES: u32 = 320;
/// So often a waiter does: a client that takes and releases a lock all the time leaves the write lock free for some µs only.
const WAITERS_TRIES: u32 = 16;
/// Pauses of those who wait double so often, up to 96 ms.
const DOUBLINGS: u32 = 5;

/// The handles of this process, with their paths.
static HANDLES: Mutex<Vec<(PathBuf, Weak<Mutex<Store>>)>> = Mutex::new(Vec::new());

/// One way to the file; opened when first needed, and again when another file stands in its place.
pub(crate) struct Store {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: LeaseClock,
    bells: Bells,
    pub(crate) open: Option<Open>,
    /// The number of times a file was opened: hints of another file do not count.
    pub(crate) generation: u64,
    /// The open file must be opened again.
    pub(crate) stale: bool,
    pub(crate) places: Places,
    pub(crate) last: LastWritten,
    /// Notified when a place is taken: the poll may have to look sooner.
    pub(crate) placed: Arc<Notify>,
    /// How often in a row the file was busy with others.
    pub(crate) busy: u32,
    /// How many new rows this process made.
    pub(crate) inserts: u8,
}

/// The priority of a request for SQLite's write lock, which has no queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Perhaps one of many: it comes back later and later while the file is busy.
    Waiter,
    /// A holder, a release, or a waiter whose turn it is: all others wait for these (L6).
    Holder,
}

/// A transaction under way.
pub(crate) struct Tx<'a> {
    pub(crate) now: Moment,
    pub(crate) store: &'a mut Store,
    pub(crate) wakes: Vec<(Audience, OwnerId)>,
}

/// The file of a handle, while nobody else of this process has it, and while this process does not suspend itself.
pub(crate) struct InUse<'a> {
    store: MutexGuard<'a, Store>,
    _unstopped: Unstopped,
}

impl<'a> InUse<'a> {
    pub(crate) fn of(store: &'a Mutex<Store>) -> Self {
        let _unstopped = Unstopped::begin();
        // OK because a transaction that panics is rolled back when its connection is used or closed.
        Self { store: locked(store), _unstopped }
    }

    /// Not while another thread has it.
    pub(crate) fn unless_busy(store: &'a Mutex<Store>) -> Option<Self> {
        let _unstopped = Unstopped::begin();
        let store = match store.try_lock() {
            Ok(store) => store,
            // OK as above.
            Err(TryLockError::Poisoned(store)) => store.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Self { store, _unstopped })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing the last connection deletes the log.
        let _unstopped = Unstopped::begin();
        self.open = None;
    }
}

impl Deref for InUse<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl Store {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>, bells: Bells) -> Self {
        // By chance, so that processes which make a single row each pay their share of the sweeping.
        let mut chance = [0];
        host.random(&mut chance);
        Self {
            config,
            host,
            clock: LeaseClock::new(),
            bells,
            open: None,
            generation: 0,
            stale: false,
            places: Places::default(),
            last: LastWritten::default(),
            placed: Arc::default(),
            busy: 0,
            inserts: chance[0],
        }
    }

    /// The store of a handle.
    pub(crate) fn shared(config: Config, host: Arc<dyn Host>, bells: Bells) -> Arc<Mutex<Self>> {
        let path = config.path.clone();
        let store = Arc::new(Mutex::new(Self::new(config, host, bells)));
        let mut handles = locked(&HANDLES);
        handles.retain(|(_, handle)| handle.strong_count() > 0);
        handles.push((path, Arc::downgrade(&store)));
        drop(handles);
        store
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now(&*self.host)
    }

    /// Opens the file if it is not, or is no longer the one at the path. False if there is none and it may not be made.
    pub(crate) fn reach(&mut self, may_create: bool) -> Result<bool, BackendError> {
        if self.standing()? == Some(Standing::Ours) && !self.stale {
            return Ok(true);
        }
        self.leave_lost_log()?;
        (self.open, self.stale) = (None, false);
        let opened = schema::open(&self.config, &*self.host, &self.clock, may_create);
        self.open = opened.map_err(|error| self.jittered(error, Haste::Waiter))?;
        self.generation += u64::from(self.open.is_some());
        Ok(self.open.is_some())
    }

    /// What stands at the names of the open file, if one is open.
    pub(crate) fn standing(&mut self) -> Result<Option<Standing>, BackendError> {
        self.open.as_mut().map(|open| open.names.look()).transpose()
    }

    /// Whether the file at the path is the one that is open, beside its log.
    pub(crate) fn is_in_place(&mut self) -> bool {
        self.standing().map_or(true, |standing| standing.is_none_or(|standing| standing == Standing::Ours))
    }

    /// Closes all connections of this process to the file if another log is beside it than theirs: with one of them left,
    /// SQLite would give a new one their shared memory.
    fn leave_lost_log(&mut self) -> Result<(), BackendError> {
        let path = self.config.path.clone();
        let Some(file) = FileId::of(&path)? else { return Ok(()) };
        if !lost_log::is_open_here(&path, file)? {
            return Ok(());
        }
        let _lock = FolderLock::exclusive(&path).map_err(|e| self.jittered(e, Haste::Waiter))?;
        lost_log::remember(&path, file, &*self.host, &self.clock)?;
        self.open = None;
        let is_here = |path: &Path| FileId::of(path).is_ok_and(|there| there == Some(file));
        let handles = locked(&HANDLES);
        let others: Vec<_> =
            handles.iter().filter(|(path, _)| is_here(path)).map(|(_, store)| store.clone()).collect();
        drop(handles);
        for other in others.iter().filter_map(Weak::upgrade) {
            // One that is in use finds out when it is used next.
            let Ok(mut store) = other.try_lock() else { continue };
            store.open.take_if(|open| open.names.file == file);
        }
        Ok(())
    }

    /// For reading; `None` before the file is there.
    pub(crate) fn conn(&self) -> Option<&Connection> {
        self.open.as_ref().map(|open| &*open.conn)
    }

    pub(crate) fn opened(&self) -> &Open {
        self.open.as_ref().expect("BUG: a transaction runs on an open file")
    }

    /// Runs `read` on one snapshot of the file, and writes nothing; `None` if there is no file, or if it may grant
    /// nothing.
    /// Whether the file was away meanwhile is not asked: nothing is granted here.
    pub(crate) fn glance<A>(&mut self, read: impl FnOnce(&Connection, Moment) -> Option<A>) -> Option<A> {
        if !self.reach(false).is_ok_and(|is_there| is_there) {
            return None;
        }
        let now = self.now();
        let open = self.opened();
        if schema::until_open(open, now).is_some() || !open.conn.is_autocommit() {
            return None;
        }
        open.conn.prepare_cached(sql::BEGIN_READING).and_then(|mut s| s.execute([])).ok()?;
        let answer = read(&open.conn, now);
        self.roll_back();
        answer
    }

    /// Runs `work` as one transaction; `None` if there is no file and it may not be made.
    pub(crate) fn transact<A>(
        &mut self,
        may_create: bool,
        haste: Haste,
        work: impl FnOnce(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Option<A>, BackendError> {
        if !self.reach(may_create)? {
            return Ok(None);
        }
        if !self.opened().conn.is_autocommit() {
            // A panic left a transaction open.
            self.roll_back();
        }
        let lock = self.begin(haste)?;
        let now = self.now();
        let mut tx = Tx { now, store: self, wakes: Vec::new() };
        let done = work(&mut tx).and_then(|answer| Ok((answer, tx.leave_hints()?)));
        let wakes = tx.wakes;
        let done = done.and_then(|done| self.commit().map(|()| done));
        let done = done.inspect_err(|_| self.roll_back());
        drop(lock);
        let (answer, is_left) = done?;
        if is_left {
            touch(&self.config.path);
        }
        for (audience, owner) in wakes {
            self.bells.ring(audience, owner);
        }
        Ok(Some(answer))
    }

    /// The lock comes first: what a transaction has read before it could be written over.
    fn begin(&mut self, haste: Haste) -> Result<WriteLock, BackendError> {
        let tries = if haste == Haste::Holder { HOLDERS_TRIES } else { WAITERS_TRIES };
        let lock = (0..tries).find_map(|_| {
            let lock = self.opened().conn.write_lock();
            if lock.is_none() {
                std::thread::yield_now();
            }
            lock
        });
        let begun = lock.ok_or_else(|| error::busy(&self.config.path)).and_then(|lock| {
            let said = self.opened().conn.prepare_cached(sql::BEGIN).and_then(|mut s| s.execute([]));
            said.map(|_| lock).map_err(|e| error::before_commit(&self.config.path, e))
        });
        let lock = begun.map_err(|error| self.jittered(error, haste))?;
        self.busy = 0;
        Ok(lock)
    }

    fn commit(&self) -> Result<(), BackendError> {
        let said = self.opened().conn.prepare_cached(sql::COMMIT).and_then(|mut s| s.execute([]));
        said.map(drop).map_err(|e| error::at_commit(&self.config.path, e))
    }

    fn roll_back(&self) {
        // Fails only if SQLite has rolled back already.
        let _ = self.opened().conn.execute_batch(sql::ROLLBACK);
    }

    /// When a busy file is worth asking again: after 1 to 4 ms, so that many processes do not ask in step. Who waits
    /// comes
    /// back ever later, up to 97 ms, so that many do not keep a holder out; who holds, after 1 to 2 ms each time.
    pub(crate) fn jittered(&mut self, error: BackendError, haste: Haste) -> BackendError {
        if error.kind() != ErrorKind::Throttled {
            return error;
        }
        let longest_us = match haste {
            Haste::Holder => 1000,
            Haste::Waiter => 3000 << self.busy,
        };
        self.busy = (self.busy + 1).min(DOUBLINGS);
        let mut chance = [0; 2];
        self.host.random(&mut chance);
        let part_us = (longest_us * u64::from(u16::from_be_bytes(chance))) >> 16;
        error.retry_after(Duration::from_micros(1000 + part_us))
    }
}

impl Tx<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.store.config.path
    }

    pub(crate) fn conn(&self) -> &Connection {
        &self.store.opened().conn
    }

    /// Hints for other processes go into the file; those for this one are given after the commit. True if there are any for others.
    fn leave_hints(&mut self) -> Result<bool, BackendError> {
        // Observers are everywhere; an owner is in one process.
        let is_elsewhere = |&(whom, owner): &(Audience, OwnerId)| {
            whom == Audience::Observers || !self.store.bells.reach(whom, owner)
        };
        let elsewhere: Vec<_> = self.wakes.iter().copied().filter(is_elsewhere).collect();
        if elsewhere.is_empty() {
            return Ok(false);
        }
        let write = || -> rusqlite::Result<()> {
            let mut add = self.conn().prepare_cached(sql::ADD_WAKE)?;
            for (audience, owner) in &elsewhere {
                add.execute((owner.process().to_string(), *audience as u8, owner.to_string()))?;
            }
            self.conn().prepare_cached(sql::TRIM_WAKES)?.execute([]).map(drop)
        };
        write().map_err(|e| self.failed(e))?;
        Ok(true)
    }

    pub(crate) fn failed(&self, error: rusqlite::Error) -> BackendError {
        error::before_commit(self.path(), error)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "threads are watched in real time")]
mod tests {
    use std::{
        fs::File,
        sync::{
            atomic::{AtomicBool, Ordering::SeqCst},
            mpsc,
        },
        thread,
    };

    use tenure_core::suspend;
    use tenure_testkit::host::PausedHost;

    use super::*;
    use crate::file::beside;

    /// L1: SQLite's own lock is dropped by a close of the shared memory.
    #[tokio::test(start_paused = true)]
    async fn a_transaction_has_a_lock_that_no_close_loses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let mut store = Store::new(Config::new(&path), PausedHost::new(1), Bells::default());
        let is_free = || File::open(beside(&path, "-wal")).unwrap().try_lock().is_ok();
        let written = store.transact(true, Haste::Waiter, |_| {
            drop(File::open(beside(&path, "-shm")).unwrap());
            assert!(!is_free());
            Ok(())
        });
        assert!(written.unwrap().is_some() && is_free());
    }

    /// L6: `tenure run` was suspended while its keeper opened the file, and nobody else could open it until `fg`.
    #[tokio::test(start_paused = true)]
    async fn a_process_is_not_suspended_in_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path().join("locks.db"));
        let store = Mutex::new(Store::new(config, PausedHost::new(1), Bells::default()));
        let (is_done, (began, begins)) = (AtomicBool::new(false), mpsc::channel());
        thread::scope(|scope| {
            scope.spawn(|| {
                let written = InUse::of(&store).transact(true, Haste::Waiter, |_| {
                    began.send(()).unwrap();
                    thread::sleep(Duration::from_millis(50));
                    is_done.store(true, SeqCst);
                    Ok(())
                });
                written.unwrap();
            });
            begins.recv().unwrap();
            suspend(|| assert!(is_done.load(SeqCst), "it holds what others wait for"));
        });
    }
}
