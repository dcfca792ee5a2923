//! `FileStore`: one connection. It runs each verb on a lock as a single statement, as a read, or as a transaction.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, TryLockError, Weak},
    time::Duration,
};

use rusqlite::Connection;
use tenure_core::{
    Audience, BackendError, Claim, ClaimAnswer, ErrorKind, Host, LockName, Moment, Notifier, OwnerId,
    Priority, Unstopped, WaitMode, locked,
};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};
use tokio::sync::Notify;

use crate::{
    clock::{LeaseClock, millis},
    config::Config,
    death::Mark,
    error::{self, RowError},
    file::{FileId, FileState},
    front::{self, FAR, FIRST_LOOK, Front, LOOK_FURTHER, LedgerRow, LockQuery, WHOLE},
    guard::{self, GuardRecord},
    link::{FileConnection, FolderLock, WriteLock},
    room,
    schema::{self, OpenFile},
    sql,
    touch::touch,
    unsigned::Unsigned,
};

/// One handle of the file. The file is opened when first needed, and again when another file is in its place.
pub(crate) struct FileStore {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: LeaseClock,
    /// Of this process; `None` where its end could not be seen.
    mark: Option<Mark>,
    notifier: Notifier,
    open: Option<OpenFile>,
    /// The number of times a file was opened: hints of another file do not count.
    pub(crate) generation: u64,
    /// The open file must be opened again.
    stale: bool,
    pub(crate) places: Places,
    last: LastWritten,
    /// Notified when a place is taken: the next poll may have to be sooner.
    pub(crate) placed: Arc<Notify>,
    /// How many times in a row the file was busy.
    busy: u32,
    /// How many new rows this process made.
    inserts: u8,
}

impl FileStore {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>, notifier: Notifier) -> Self {
        // Random, so that processes which make a single row each do their share of the sweeping.
        let mut chance = [0];
        host.random(&mut chance);
        let clock = LeaseClock::new();
        Self {
            config,
            host,
            mark: Mark::own(clock.id()),
            clock,
            notifier,
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
    pub(crate) fn shared(config: Config, host: Arc<dyn Host>, notifier: Notifier) -> Arc<Mutex<Self>> {
        let path = config.path.clone();
        let store = Arc::new(Mutex::new(Self::new(config, host, notifier)));
        // A program that forks waits for this, or its child would find the list locked.
        let _unstopped = Unstopped::begin();
        let mut handles = locked(&HANDLES);
        handles.retain(|(_, handle)| handle.strong_count() > 0);
        handles.push((path, Arc::downgrade(&store)));
        drop(handles);
        store
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now(&*self.host)
    }

    /// The answer to a waiter's claim, if a read is enough: its turn has not come, and its place lasts longer than its next
    /// sleep. If not, the claim must be made, with this haste.
    pub(crate) fn still_waits(&mut self, claim: &Claim) -> Result<ClaimAnswer, Haste> {
        if claim.wait == WaitMode::No || !self.places.has(&claim.name, claim.owner) {
            return Err(Haste::Waiter);
        }
        let rules = self.config.rules;
        let keep = self.keeps_place_at(&rules);
        let own = self.mark.clone();
        let seen = self.glance(|conn, now| {
            let look = LockQuery {
                name: &claim.name,
                asker: Some((claim.owner, claim.priority)),
                now,
                rules: &rules,
                places: FIRST_LOOK,
            };
            let front = Front::read(conn, &look).ok()?;
            let mut after = front.ledger.clone();
            let is_dead = |mark: &str| own.as_ref().is_some_and(|own| own.sees_end_of(mark, conn));
            let _ = after.end_dead(now, &rules, is_dead);
            let answer = after.claim(now, &rules, claim).ok()?.answer;
            if matches!(answer, ClaimAnswer::Granted(_)) {
                return Some(Err(Haste::Holder));
            }
            let suffices = front.suffices(&after);
            let left = Duration::from_micros(front.left_of_place(&front.edits(after), claim.owner, now)?);
            match answer {
                ClaimAnswer::Queued { ahead, retry_after, holder } if suffices => {
                    let fresh = left.checked_sub(keep).filter(|fresh| !fresh.is_zero())?;
                    Some(Ok(ClaimAnswer::Queued { ahead, retry_after: retry_after.min(fresh), holder }))
                }
                _ => None,
            }
        });
        seen.unwrap_or(Err(Haste::Waiter))
    }

    /// A place is extended when it has no more than this left: half of its ttl, less a random part. So many waiters do not
    /// write at the same time. It is more than a sleep between two claims.
    fn keeps_place_at(&self, rules: &Rules) -> Duration {
        let mut chance = [0];
        self.host.random(&mut chance);
        rules.place_ttl / 2 - rules.place_ttl * u32::from(chance[0]) / (8 * 256)
    }

    /// Makes the claim, in a single statement or in a transaction.
    pub(crate) fn claim(&mut self, claim: &Claim, haste: Haste) -> Result<ClaimAnswer, BackendError> {
        let mark = self.mark.as_ref().filter(|mark| claim.ends_with_process && mark.is_ours());
        let mark = mark.map(Mark::to_string);
        let verb = |ledger: &mut Ledger, now, rules: &Rules| {
            let change = ledger.claim(now, rules, claim);
            if matches!(&change, Ok(Change { answer: ClaimAnswer::Granted(_), .. })) {
                ledger.tie(claim.owner, mark.as_deref());
            }
            change
        };
        if let Some(answer) = self.at_once(&claim.name, Some(claim.ttl), verb)? {
            return Ok(answer);
        }
        let answer = self.transact(true, haste, |tx| {
            tx.must_be_open()?;
            let asker = (claim.wait != WaitMode::No).then_some((claim.owner, claim.priority));
            let answer = tx.step(&claim.name, asker, verb)?;
            if matches!(answer, ClaimAnswer::Granted(_)) {
                tx.remember_ttl(claim.ttl)?;
            }
            Ok(answer)
        })?;
        Ok(answer.expect("BUG: a claim makes the file"))
    }

    /// Runs a verb on the row as this handle wrote it last. Writes the change if the row is unchanged and there is no
    /// waiter. A single statement: nothing is read, and there is no transaction around it
    /// (`docs/decisions/sqlite-driver.md`). `None` if the verb needs a transaction. `grants` is the ttl of the lease that it
    /// grants.
    ///
    /// A row has all of its lock but the queue: its counter of tokens, and each lease. The clock is read before SQLite's
    /// write lock is acquired. So the early reading makes no lease end later in the file, and a lease that is treated as
    /// expired has expired.
    pub(crate) fn at_once<A>(
        &mut self,
        name: &LockName,
        grants: Option<Duration>,
        verb: impl Fn(&mut Ledger, Moment, &Rules) -> Result<Change<A>, LedgerError>,
    ) -> Result<Option<A>, BackendError> {
        let Some(LedgerRow { mut ledger, state: before }) = self.last.take(name) else { return Ok(None) };
        if !self.reach(false)? {
            return Ok(None);
        }
        let now = self.now();
        let open = self.opened();
        let may_grant =
            |ttl| !open.names.is_unsure && open.guard.covers(ttl) && schema::until_open(open, now).is_none();
        if !grants.is_none_or(may_grant) || !open.conn.is_autocommit() {
            return Ok(None);
        }
        let done = verb(&mut ledger, now, &self.config.rules);
        let Ok(Change { answer, wakes, changed: true }) = done else { return Ok(None) };
        if !wakes.is_empty() || ledger.waiting() > 0 {
            return Ok(None);
        }
        let is_busy = !ledger.is_free();
        let after = LedgerRow::new(ledger);
        let Ok(mut write) = open.conn.prepare_cached(sql::WRITE_LOCK_AT_ONCE) else { return Ok(None) };
        let Some(lock) = open.conn.write_lock() else { return Ok(None) };
        let used = Unsigned(now.wall.as_secs());
        let written = write.execute((name.as_str(), is_busy, used, &after.state, before));
        drop((write, lock));
        match written {
            Ok(0) => Ok(None),
            Ok(_) => {
                self.busy = 0;
                self.last.remember(name, Some(after));
                let is_late = grants.is_some() && (now + PROMPT).is_over(self.now());
                if is_late { Err(error::late(&self.config.path)) } else { Ok(Some(answer)) }
            }
            // The transaction that follows reports the cause, or how long to wait.
            Err(error) if error::is_refusal(&error) => Ok(None),
            Err(error) => Err(error::at_commit(&self.config.path, error)),
        }
    }

    /// Remembers a waiter: its next claim begins with a read, and the poll for hints adapts to its place.
    pub(crate) fn remember_place(&mut self, claim: &Claim, answer: &ClaimAnswer) {
        match answer {
            ClaimAnswer::Queued { ahead, .. } => {
                let now = self.now();
                // A waiter that may acquire together with others must poll as often as one of them that is near.
                let is_near = !self.config.rules.is_far(claim.mode, *ahead);
                let ahead = if is_near { (*ahead).min(FAR - 1) } else { *ahead };
                if self.places.take((&claim.name, claim.owner), ahead, now, self.config.rules.place_ttl) {
                    self.placed.notify_one();
                }
            }
            _ => self.places.leave(&claim.name, claim.owner),
        }
    }

    /// Runs `read` on one snapshot of the file, and writes nothing. `None` if there is no file, or if nothing may be
    /// granted. Does not check whether the file was away in between: nothing is granted here.
    fn glance<A>(&mut self, read: impl FnOnce(&FileConnection, Moment) -> Option<A>) -> Option<A> {
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
        work: impl Fn(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Option<A>, BackendError> {
        if !self.reach_for_writing(may_create)? {
            return Ok(None);
        }
        let lock = self.lock(haste)?;
        let done = self.run(&lock, haste, &work);
        match &done {
            Ok(done) if done.is_tight => room::add_pages(&self.opened().conn, lock),
            _ => drop(lock),
        }
        done.map(|done| Some(self.give_hints(done)))
    }

    /// The same for a change that must outlast a power cut: it is on the disk before the answer. Others may read it before
    /// that. It is flushed even if it was there: an attempt whose flush failed may have left it. It is also moved out of the
    /// log, if no reader needs the log. If a log is deleted, its leases are waited for, but no process could know what else
    /// was in it.
    ///
    /// No process waits for these flushes: the lock that all writers need is free (L6).
    pub(crate) fn transact_flushed<A>(
        &mut self,
        haste: Haste,
        work: impl Fn(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Option<A>, BackendError> {
        let answer = self.transact(false, haste, work)?;
        if answer.is_some() {
            self.opened().conn.flush_log().map_err(|e| error::not_flushed(&self.config.path, e))?;
            if self.is_in_place() {
                self.opened().conn.move_log_beside_writers();
            }
        }
        Ok(answer)
    }

    fn reach_for_writing(&mut self, may_create: bool) -> Result<bool, BackendError> {
        let is_there = self.reach(may_create)?;
        if is_there && !self.opened().conn.is_autocommit() {
            // A panic left a transaction open.
            self.roll_back();
        }
        Ok(is_there)
    }

    /// The lock comes first. Otherwise another process could overwrite what the transaction has read.
    fn lock(&mut self, haste: Haste) -> Result<WriteLock, BackendError> {
        let tries = if haste == Haste::Holder { HOLDERS_TRIES } else { WAITERS_TRIES };
        let lock = (0..tries).find_map(|_| {
            let lock = self.opened().conn.write_lock();
            if lock.is_none() {
                std::thread::yield_now();
            }
            lock
        });
        lock.ok_or_else(|| self.jittered(error::busy(&self.config.path), haste))
    }

    /// Tries once more if the disk is full and the log could be moved: the log then restarts, in the room that it has.
    fn run<A>(
        &mut self,
        lock: &WriteLock,
        haste: Haste,
        work: &impl Fn(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Done<A>, BackendError> {
        let mut done = self.attempt(haste, work);
        if done.as_ref().is_err_and(error::lacks_room) && self.opened().conn.move_log(lock) {
            done = self.attempt(haste, work);
        }
        done
    }

    fn attempt<A>(
        &mut self,
        haste: Haste,
        work: &impl Fn(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Done<A>, BackendError> {
        self.begin().map_err(|error| self.jittered(error, haste))?;
        self.busy = 0;
        let now = self.now();
        let mut tx = Tx { now, store: self, wakes: Vec::new(), is_tight: false };
        let done = work(&mut tx).and_then(|answer| Ok((answer, tx.leave_hints()?)));
        let (wakes, is_tight) = (tx.wakes, tx.is_tight);
        let done = done.and_then(|done| self.commit().map(|()| done));
        let (answer, is_left) = done.inspect_err(|_| self.roll_back())?;
        Ok(Done { answer, wakes, is_left, is_tight })
    }

    fn give_hints<A>(&self, done: Done<A>) -> A {
        if done.is_left {
            touch(&self.config.path);
        }
        for (audience, owner) in done.wakes {
            self.notifier.notify(audience, owner);
        }
        done.answer
    }

    fn begin(&self) -> Result<(), BackendError> {
        let said = self.opened().conn.prepare_cached(sql::BEGIN).and_then(|mut s| s.execute([]));
        said.map(drop).map_err(|e| error::before_commit(&self.config.path, e))
    }

    fn commit(&self) -> Result<(), BackendError> {
        let said = self.opened().conn.prepare_cached(sql::COMMIT).and_then(|mut s| s.execute([]));
        said.map(drop).map_err(|e| error::at_commit(&self.config.path, e))
    }

    fn roll_back(&self) {
        // Fails only if SQLite has rolled back already.
        let _ = self.opened().conn.execute_batch(sql::ROLLBACK);
    }

    /// When to try a busy file again: after a random 1 to 4 ms, so that many processes do not ask in step. A waiter's pauses
    /// grow, up to 97 ms, so that many waiters do not keep a holder out. A holder's pause is always 1 to 2 ms.
    fn jittered(&mut self, error: BackendError, haste: Haste) -> BackendError {
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

    /// Opens the file if it is not open, or not the one at the path. False if there is no file and it may not be made.
    pub(crate) fn reach(&mut self, may_create: bool) -> Result<bool, BackendError> {
        if self.standing()? == Some(FileState::Ours) && !self.stale {
            return Ok(true);
        }
        self.leave_lost_log()?;
        (self.open, self.stale) = (None, false);
        let opened = schema::open(&self.config, &*self.host, &self.clock, may_create);
        self.open = opened.map_err(|error| self.jittered(error, Haste::Waiter))?;
        self.generation += u64::from(self.open.is_some());
        Ok(self.open.is_some())
    }

    /// What is at the names of the open file, if one is open.
    fn standing(&mut self) -> Result<Option<FileState>, BackendError> {
        self.open.as_mut().map(|open| open.names.look()).transpose()
    }

    /// Whether the file at the path is the one that is open, with its log.
    pub(crate) fn is_in_place(&mut self) -> bool {
        self.standing().map_or(true, |standing| standing.is_none_or(|standing| standing == FileState::Ours))
    }

    /// Closes all connections of this process to the file if the log at its name is not the one that they have open. If one
    /// of them stayed open, SQLite would give a new connection their shared memory.
    fn leave_lost_log(&mut self) -> Result<(), BackendError> {
        let path = self.config.path.clone();
        let Some(file) = FileId::of(&path)? else { return Ok(()) };
        if !guard::is_other_log_open(&path, file)? {
            return Ok(());
        }
        let _lock = FolderLock::exclusive(&path).map_err(|e| self.jittered(e, Haste::Waiter))?;
        // Looked at again: a connection of another thread may have been about to close, which deletes the log under this lock.
        if !guard::is_other_log_open(&path, file)? {
            return Ok(());
        }
        guard::remember_lost_log(&path, file, &*self.host, &self.clock)?;
        self.open = None;
        let is_here = |path: &Path| FileId::of(path).is_ok_and(|there| there == Some(file));
        let handles = locked(&HANDLES);
        let others: Vec<_> =
            handles.iter().filter(|(path, _)| is_here(path)).map(|(_, store)| store.clone()).collect();
        drop(handles);
        for other in others.iter().filter_map(Weak::upgrade) {
            // A handle that is in use detects this when it is used next.
            let Ok(mut store) = other.try_lock() else { continue };
            store.open.take_if(|open| open.names.file == file);
        }
        Ok(())
    }

    /// Whether the process with this mark has ended, for certain.
    pub(crate) fn is_dead(&self, mark: &str) -> bool {
        let (Some(own), Some(open)) = (&self.mark, &self.open) else { return false };
        own.sees_end_of(mark, &open.conn)
    }

    /// For reading; `None` while no file is open.
    pub(crate) fn conn(&self) -> Option<&Connection> {
        self.open.as_ref().map(|open| &*open.conn)
    }

    fn opened(&self) -> &OpenFile {
        self.open.as_ref().expect("BUG: a transaction runs on an open file")
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // Closing the last connection deletes the log.
        let _unstopped = Unstopped::begin();
        self.open = None;
    }
}

/// The file of a handle, while no other thread of this process uses it, and while this process does not suspend itself.
pub(crate) struct InUse<'a> {
    store: MutexGuard<'a, FileStore>,
    _unstopped: Unstopped,
}

impl<'a> InUse<'a> {
    pub(crate) fn of(store: &'a Mutex<FileStore>) -> Self {
        let _unstopped = Unstopped::begin();
        // OK because a transaction that panics is rolled back when its connection is used or closed.
        Self { store: locked(store), _unstopped }
    }

    /// `None` while another thread uses it.
    pub(crate) fn unless_busy(store: &'a Mutex<FileStore>) -> Option<Self> {
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

impl Deref for InUse<'_> {
    type Target = FileStore;

    fn deref(&self) -> &FileStore {
        &self.store
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut FileStore {
        &mut self.store
    }
}

/// The priority of a request for SQLite's write lock, which has no queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Perhaps one of many: its pauses grow while the file is busy.
    Waiter,
    /// A holder, a release, or a waiter whose turn it is: all others wait for these (L6).
    Holder,
}

/// A transaction that was committed.
struct Done<A> {
    answer: A,
    wakes: Vec<(Audience, OwnerId)>,
    /// Hints for other processes are in the file.
    is_left: bool,
    is_tight: bool,
}

/// An open transaction.
pub(crate) struct Tx<'a> {
    now: Moment,
    store: &'a mut FileStore,
    pub(crate) wakes: Vec<(Audience, OwnerId)>,
    /// The file has few free pages.
    is_tight: bool,
}

impl Tx<'_> {
    /// Runs one verb of a ledger and writes the change. `asker` is the owner whose place the verb needs, if any, and its class.
    pub(crate) fn step<A>(
        &mut self,
        name: &LockName,
        asker: Option<(OwnerId, Priority)>,
        verb: impl Fn(&mut Ledger, Moment, &Rules) -> Result<Change<A>, LedgerError>,
    ) -> Result<A, BackendError> {
        let rules = self.store.config.rules;
        let mut look = LockQuery { name, asker, now: self.now, rules: &rules, places: FIRST_LOOK };
        loop {
            let front = Front::read(self.conn(), &look).map_err(|e| self.row_failed(e))?;
            let mut after = front.ledger.clone();
            let dead = after.end_dead(self.now, &rules, |mark| self.store.is_dead(mark));
            let change = verb(&mut after, self.now, &rules);
            if !front.suffices(&after) {
                look.places = if after.has_compared_all() { WHOLE } else { look.places * LOOK_FURTHER };
                continue;
            }
            let change = change.map_err(|e| error::ledger(self.path(), e))?;
            let has_changed = change.changed || dead.changed;
            if has_changed {
                let edits = front.edits(after);
                edits.write(self.conn(), name, self.now).map_err(|e| self.failed(e))?;
                self.store.last.remember(name, edits.alone());
            }
            self.wakes.extend(dead.wakes.into_iter().chain(change.wakes));
            if has_changed && !front.is_there {
                self.sweep_now_and_then()?;
                self.must_have_room()?;
            }
            return Ok(change.answer);
        }
    }

    /// Refuses while leases of an earlier file at this path may be valid.
    fn must_be_open(&mut self) -> Result<(), BackendError> {
        self.be_sure()?;
        let Some(left) = schema::until_open(self.store.opened(), self.now) else { return Ok(()) };
        let message = format!(
            "the database file or its log was deleted or replaced; nothing is granted for another {left:.1?}, until \
             every lease in the old one has expired",
        );
        Err(error::refused(self.path(), ErrorKind::Unavailable, message).retry_after(left))
    }

    /// Records the longest ttl that is granted, in case the file vanishes. Before the grant is committed.
    pub(crate) fn remember_ttl(&mut self, ttl: Duration) -> Result<(), BackendError> {
        self.be_sure()?;
        if self.store.opened().guard.covers(ttl) {
            return Ok(());
        }
        let ttl_ms = millis(ttl);
        let path = self.path().to_owned();
        // Under it no process writes the guard of another file that has taken the place of this one.
        let _lock = FolderLock::exclusive(&path).map_err(|e| self.store.jittered(e, Haste::Waiter))?;
        self.must_stand()?;
        let remembered = GuardRecord::read(&path)?;
        let host = self.store.host.clone();
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        if remembered.as_ref().is_some_and(|remembered| !remembered.is_of(&open.guard)) {
            return Err(self.must_reopen());
        }
        let guard = remembered.unwrap_or_else(|| GuardRecord { max_ttl_ms: 0, ..open.guard.clone() });
        let guard = GuardRecord { max_ttl_ms: guard.max_ttl_ms.max(ttl_ms), ..guard };
        guard.write(&path, &*host)?;
        // Only after the write has succeeded.
        open.guard = guard;
        // A process that opens a replacement from here on finds this ttl. One that was put there before must be detected.
        self.must_stand()
    }

    /// Reads `meta` and the guard again, if the file or its log may have been away. Another process may have been the first
    /// to open it since.
    fn be_sure(&mut self) -> Result<(), BackendError> {
        if !self.store.opened().names.is_unsure {
            return Ok(());
        }
        let guard = GuardRecord::read(self.path())?;
        let meta = schema::read_meta(self.conn()).map_err(|e| self.failed(e))?;
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        let number = open.names.log_files.number();
        let is_ours = |guard: &GuardRecord| guard.is_of(&open.guard) && guard.knows_log(number);
        if meta.world != open.guard.world || !guard.as_ref().is_none_or(is_ours) {
            return Err(self.must_reopen());
        }
        // If the guard was removed on purpose, the next grant writes a new one.
        open.guard.max_ttl_ms = guard.map_or(0, |guard| guard.max_ttl_ms);
        (open.opens_us, open.names.is_unsure) = (meta.opens_us, false);
        Ok(())
    }

    fn must_stand(&mut self) -> Result<(), BackendError> {
        let is_ours = self.store.standing()? == Some(FileState::Ours);
        if is_ours { Ok(()) } else { Err(self.must_reopen()) }
    }

    /// The open file is not the one at the path: nothing was done, try again.
    fn must_reopen(&mut self) -> BackendError {
        self.store.stale = true;
        let message = "the database file was replaced; try again";
        let error = error::refused(self.path(), ErrorKind::Throttled, message);
        self.store.jittered(error, Haste::Waiter)
    }

    /// Deletes rows that were not used for an hour, a few at a time; the floor keeps their fences (H6.4).
    fn sweep_now_and_then(&mut self) -> Result<(), BackendError> {
        self.store.inserts = self.store.inserts.wrapping_add(1);
        if !self.store.inserts.is_multiple_of(SWEEP_EVERY) {
            return Ok(());
        }
        sweep(self.conn(), self.now).map_err(|e| self.row_failed(e))
    }

    /// Refuses a new row if the next ones would need pages that cannot be made: held locks need those that are left.
    fn must_have_room(&mut self) -> Result<(), BackendError> {
        self.is_tight = room::is_tight(self.conn()).map_err(|e| self.failed(e))?;
        if self.is_tight && room::is_full(self.conn(), self.path()).map_err(|e| self.failed(e))? {
            return Err(error::disk_full(self.path()));
        }
        Ok(())
    }

    /// Writes hints for other processes into the file. Those for this process are delivered after the commit. True if there
    /// are any for others.
    fn leave_hints(&mut self) -> Result<bool, BackendError> {
        // Observers are in every process; an owner is in one.
        let is_elsewhere = |&(whom, owner): &(Audience, OwnerId)| {
            whom == Audience::Observers || !self.store.notifier.reaches(whom, owner)
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

    fn path(&self) -> &Path {
        &self.store.config.path
    }

    fn conn(&self) -> &Connection {
        &self.store.opened().conn
    }

    fn failed(&self, error: rusqlite::Error) -> BackendError {
        error::before_commit(self.path(), error)
    }

    fn row_failed(&self, error: RowError) -> BackendError {
        error::row(self.path(), error)
    }
}

fn sweep(conn: &Connection, now: Moment) -> Result<(), RowError> {
    let old = now.wall.saturating_sub(KEEP_FREE).as_secs();
    let mut next = conn.prepare_cached(sql::SWEEP_NEXT)?;
    let rows = next.query_map([], |row| Ok((front::name(row)?, row.get(1)?, row.get(2)?)))?;
    let rows = rows.collect::<rusqlite::Result<Vec<(Option<String>, bool, Unsigned<u64>)>>>()?;
    let last = rows.last().and_then(|row| row.0.as_deref());
    let reached = if rows.len() < 256 { "" } else { last.unwrap_or_default() };
    let mut floor = 0;
    for (name, is_busy, _) in rows.iter().filter(|(_, _, Unsigned(used))| *used < old) {
        let Some(Ok(name)) = name.as_ref().map(LockName::new) else { continue };
        let ledger = match front::whole(conn, &name) {
            Ok(ledger) => ledger,
            // A client that asks for that lock gets the error; other locks are not affected.
            Err(RowError::Ledger(_)) => continue,
            Err(error) => return Err(error),
        };
        let view = ledger.view(name.clone(), now);
        // A busy row may have neither: its clients have died, and no client has asked for it since.
        let is_asleep = !*is_busy || view.holders.is_empty() && view.queue.is_empty();
        if !is_asleep || view.memo.is_some() {
            continue;
        }
        floor = floor.max(ledger.fence());
        conn.execute(sql::SWEEP_ONE, [name.as_str()])?;
        conn.execute(sql::SWEEP_PLACES, [name.as_str()])?;
    }
    conn.execute(sql::SWEPT, (reached, Unsigned(floor)))?;
    Ok(())
}

/// The rows of locks that have no waiter. Only a cache: others may have written since, or the transaction was rolled back.
#[derive(Default)]
struct LastWritten(HashMap<LockName, LedgerRow>);

impl LastWritten {
    /// Remembers the row that the lock has now; with `None`, forgets its row.
    fn remember(&mut self, name: &LockName, row: Option<LedgerRow>) {
        let Some(row) = row else { return drop(self.take(name)) };
        if self.0.len() >= MANY {
            self.0.clear();
        }
        self.0.insert(name.clone(), row);
    }

    /// Forgets the row, too: a caller that writes it calls `remember` again.
    fn take(&mut self, name: &LockName) -> Option<LedgerRow> {
        self.0.remove(name)
    }
}

/// The places of this process. Only a cache: it decides what is read first and how often, never which owner holds.
pub(crate) struct Places {
    places: HashMap<(LockName, OwnerId), KnownPlace>,
    /// The number of answers since expired places were removed, and the number at which they are removed again.
    taken: usize,
    bound: usize,
    /// How many places were ahead of the foremost one, when that was last asked.
    least: usize,
}

struct KnownPlace {
    /// The largest possible number of places ahead: the number that was last read. No place passes another.
    ahead: usize,
    /// The number of the place, if it was read.
    number: Option<i64>,
    until: Moment,
}

impl Default for Places {
    fn default() -> Self {
        Self { places: HashMap::new(), taken: 0, bound: 0, least: usize::MAX }
    }
}

impl Places {
    /// The owner waits, by an answer of the store, and its place lasts for `left` at most. True if it is nearer to the front
    /// than all known places.
    fn take(
        &mut self,
        (name, owner): (&LockName, OwnerId),
        ahead: usize,
        now: Moment,
        left: Duration,
    ) -> bool {
        self.taken += 1;
        if self.taken >= self.bound.max(FEW) {
            self.forget_old(now);
        }
        let place = self.places.entry((name.clone(), owner)).or_insert(KnownPlace {
            ahead,
            number: None,
            until: now,
        });
        // More are ahead only if the place was lost and taken again, under another number.
        let number = place.number.filter(|_| ahead <= place.ahead);
        *place = KnownPlace { ahead, number, until: now + left };
        ahead < self.least
    }

    /// Removes expired places: a dropped waiter leaves through another handle, which does not report that here.
    fn forget_old(&mut self, now: Moment) {
        self.places.retain(|_, place| !place.until.is_over(now));
        (self.taken, self.bound) = (0, self.places.len() * 2);
    }

    /// The owner does not wait, as far as this process knows.
    pub(crate) fn leave(&mut self, name: &LockName, owner: OwnerId) {
        self.places.remove(&(name.clone(), owner));
    }

    fn has(&self, name: &LockName, owner: OwnerId) -> bool {
        self.places.contains_key(&(name.clone(), owner))
    }

    /// Notes how many places are ahead at most, by the rows.
    pub(crate) fn advance(&mut self, place: &Foremost) {
        if let Some(known) = self.places.get_mut(&(place.name.clone(), place.owner)) {
            (known.ahead, known.number) = (known.ahead.min(place.ahead), place.number);
        }
    }

    /// The place whose turn comes first, as far as is known.
    pub(crate) fn foremost(&mut self, now: Moment) -> Option<Foremost> {
        let live = self.places.iter().filter(|(_, place)| !place.until.is_over(now));
        let first = live.min_by_key(|(_, place)| place.ahead);
        self.least = first.map_or(usize::MAX, |(_, place)| place.ahead);
        let ((name, owner), place) = first?;
        Some(Foremost { name: name.clone(), owner: *owner, ahead: place.ahead, number: place.number })
    }
}

/// The place of this process that is nearest to the front of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foremost {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) ahead: usize,
    pub(crate) number: Option<i64>,
}

/// The handles of this process, with their paths.
static HANDLES: Mutex<Vec<(PathBuf, Weak<Mutex<FileStore>>)>> = Mutex::new(Vec::new());

/// How many times in a row a holder tries the write lock before it pauses. A transaction takes some 50 µs, a try 1 µs.
const HOLDERS_TRIES: u32 = 320;
/// The same for a waiter. A client that acquires and releases a lock in a loop leaves the write lock free for only some µs.
const WAITERS_TRIES: u32 = 16;
/// How many times the pauses of a waiter double: up to 96 ms.
const DOUBLINGS: u32 = 5;
/// A token that was drawn this long before its write is not granted: an older copy may have been put back since (L2).
const PROMPT: Duration = Duration::from_secs(1);
/// A row without a holder, waiter or memo is deleted when it was not used for this long.
const KEEP_FREE: Duration = Duration::from_secs(3600);
/// One in this many new rows also checks 256 old ones.
const SWEEP_EVERY: u8 = 32;
/// How many rows are remembered; before one more, all are forgotten.
const MANY: usize = 256;
/// After this many answers or more, expired places are removed.
const FEW: usize = 64;

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

    use tempfile::TempDir;
    use tenure_core::{Outcome, suspend};
    use tenure_testkit::{conformance::player::Player, host::PausedHost};

    use super::*;
    use crate::{backend::Sqlite, file::beside};

    /// L1: SQLite's own lock is dropped by a close of the shared memory.
    #[tokio::test(start_paused = true)]
    async fn a_transaction_has_a_lock_that_no_close_loses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let mut store = FileStore::new(Config::new(&path), PausedHost::new(1), Notifier::default());
        let is_free = || File::open(beside(&path, "-wal")).unwrap().try_lock().is_ok();
        let written = store.transact(true, Haste::Waiter, |_| {
            drop(File::open(beside(&path, "-shm")).unwrap());
            assert!(!is_free());
            Ok(())
        });
        assert!(written.unwrap().is_some() && is_free());
    }

    /// L6: `tenure run` was suspended while its keeper opened the file, and no other process could open it until `fg`.
    #[tokio::test(start_paused = true)]
    async fn a_process_is_not_suspended_in_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path().join("locks.db"));
        let store = Mutex::new(FileStore::new(config, PausedHost::new(1), Notifier::default()));
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

    struct Stage {
        host: Arc<PausedHost>,
        claim: Claim,
        store: FileStore,
        _folder: TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (config, host) = (Config::new(folder.path().join("locks.db")), PausedHost::new(1));
            let claim = Player::new(Arc::new(Sqlite::new(config.clone(), host.clone())), "one").claim;
            Self {
                store: FileStore::new(config, host.clone(), Notifier::default()),
                host,
                claim,
                _folder: folder,
            }
        }

        /// A claim for a lease of `ttl`. `delay` passes between the reading of the clock and the write.
        fn enter(&mut self, ttl: Duration, delay: Duration) -> Result<Option<ClaimAnswer>, BackendError> {
            let (claim, host) = (&self.claim, &self.host);
            let verb = |ledger: &mut Ledger, now, rules: &Rules| {
                host.suspend(delay);
                ledger.claim(now, rules, claim)
            };
            self.store.at_once(&claim.name, Some(ttl), verb)
        }

        fn leave(&mut self) -> bool {
            let owner = self.claim.owner;
            let verb = |ledger: &mut Ledger, now, rules: &Rules| Ok(ledger.release(now, rules, owner));
            self.store.at_once(&self.claim.name, None, verb).unwrap().is_some()
        }

        /// Twice, so that the file is known to be the one at the path.
        fn enter_and_leave(&mut self) {
            for _ in 0..2 {
                self.store.claim(&self.claim, Haste::Waiter).unwrap();
                assert!(self.leave());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_this_handle_wrote_last_is_not_read_again() {
        let mut stage = Stage::new();
        let ttl = stage.claim.ttl;
        assert!(stage.enter(ttl, Duration::ZERO).unwrap().is_none(), "it wrote nothing yet");
        stage.enter_and_leave();
        assert!(matches!(stage.enter(ttl, Duration::ZERO), Ok(Some(ClaimAnswer::Granted(_)))));
        assert!(
            stage.enter(ttl * 2, Duration::ZERO).unwrap().is_none(),
            "longer than any that is remembered"
        );
    }

    /// L2: the file may have been put back since. L9: the owner is in the file.
    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_drawn_long_before_it_was_written_is_not_granted() {
        let mut stage = Stage::new();
        let ttl = stage.claim.ttl;
        stage.enter_and_leave();
        let error = stage.enter(ttl, PROMPT).unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::TimedOut, Outcome::Unknown), "{error}");
        let granted = stage.store.claim(&stage.claim, Haste::Waiter).unwrap();
        assert!(matches!(granted, ClaimAnswer::Granted(_)), "it asks again, and gets another one");
    }
}
