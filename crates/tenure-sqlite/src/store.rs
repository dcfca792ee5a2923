//! `Store`: one connection, and a transaction per verb.

use std::{sync::Arc, time::Duration};

use rusqlite::{Connection, OptionalExtension};
use tenure_core::{Audience, BackendError, Bells, ErrorKind, Host, LockName, Moment, OwnerId};
use tenure_ledger::{Change, Ledger, Rules};

use crate::{
    clock::LeaseClock,
    config::Config,
    error,
    file::FileId,
    folder::FolderLock,
    guard::Guard,
    schema::{self, Open},
    sql,
};

/// A free row is swept when it was not used for this long.
const KEEP_FREE: Duration = Duration::from_secs(3600);
/// One in so many new rows pays for looking at 256 old ones.
const SWEEP_EVERY: u8 = 32;

/// One way to the file; opened when first needed, and again when another file stands in its place.
pub(crate) struct Store {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: LeaseClock,
    bells: Bells,
    open: Option<Open>,
    /// How often a file was opened: hints of another one mean nothing.
    pub(crate) generation: u64,
    /// What is open must be opened anew.
    stale: bool,
    inserts: u8,
}

/// A transaction under way.
pub(crate) struct Tx<'a> {
    pub(crate) now: Moment,
    store: &'a mut Store,
    wakes: Vec<(Audience, OwnerId)>,
}

impl Store {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>, bells: Bells) -> Self {
        // By chance, so that processes which make a single row each pay their share of the sweeping.
        let mut chance = [0];
        host.random(&mut chance);
        let inserts = chance[0] % SWEEP_EVERY;
        Self {
            config,
            host,
            clock: LeaseClock::new(),
            bells,
            open: None,
            generation: 0,
            stale: false,
            inserts,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now(&*self.host)
    }

    /// Opens the file if it is not, or is no longer the one at the path. False if there is none and it may not be made.
    pub(crate) fn reach(&mut self, may_create: bool) -> Result<bool, BackendError> {
        let there = FileId::with_change(&self.config.path)?;
        match (&mut self.open, there) {
            (Some(open), Some((file, changed))) if open.file == file && !self.stale => {
                // It may have been away: what is remembered beside it says so.
                open.is_unsure |= open.changed != changed;
                open.changed = changed;
            }
            _ => (self.open, self.stale) = (None, false),
        }
        if self.open.is_none() {
            let opened = schema::open(&self.config, &*self.host, &self.clock, may_create);
            self.open = opened.map_err(|error| self.jittered(error))?;
            self.generation += u64::from(self.open.is_some());
        }
        Ok(self.open.is_some())
    }

    /// Whether the file at the path is the one that is open.
    pub(crate) fn is_in_place(&self) -> bool {
        let is_other =
            |open: &Open| FileId::of(&self.config.path).is_ok_and(|there| there != Some(open.file));
        !self.open.as_ref().is_some_and(is_other)
    }

    /// For reading; `None` before the file is there.
    pub(crate) fn conn(&self) -> Option<&Connection> {
        self.open.as_ref().map(|open| &*open.conn)
    }

    fn opened(&self) -> &Open {
        self.open.as_ref().expect("BUG: a transaction runs on an open file")
    }

    /// Runs `work` as one transaction; `None` if there is no file and it may not be made.
    pub(crate) fn transact<A>(
        &mut self,
        may_create: bool,
        work: impl FnOnce(&mut Tx<'_>) -> Result<A, BackendError>,
    ) -> Result<Option<A>, BackendError> {
        if !self.reach(may_create)? {
            return Ok(None);
        }
        if !self.opened().conn.is_autocommit() {
            // A panic left a transaction open.
            self.roll_back();
        }
        self.say(sql::BEGIN)?;
        let now = self.now();
        let mut tx = Tx { now, store: self, wakes: Vec::new() };
        let done = work(&mut tx).and_then(|answer| tx.leave_hints().map(|()| answer));
        let wakes = tx.wakes;
        let done = done.and_then(|answer| self.commit().map(|()| answer));
        let answer = done.inspect_err(|_| self.roll_back())?;
        for (audience, owner) in wakes {
            self.bells.ring(audience, owner);
        }
        Ok(Some(answer))
    }

    fn say(&self, statement: &str) -> Result<(), BackendError> {
        let said = self.opened().conn.prepare_cached(statement).and_then(|mut s| s.execute([]));
        said.map(drop).map_err(|e| self.jittered(error::before_commit(&self.config.path, e)))
    }

    fn commit(&self) -> Result<(), BackendError> {
        let said = self.opened().conn.prepare_cached(sql::COMMIT).and_then(|mut s| s.execute([]));
        said.map(drop).map_err(|e| error::at_commit(&self.config.path, e))
    }

    fn roll_back(&self) {
        // Fails only if SQLite has rolled back already.
        let _ = self.opened().conn.execute_batch(sql::ROLLBACK);
    }

    /// When a busy file is worth asking again: 1 to 4 ms, so that many processes do not ask in step.
    fn jittered(&self, error: BackendError) -> BackendError {
        if error.kind() != ErrorKind::Throttled {
            return error;
        }
        let mut chance = [0];
        self.host.random(&mut chance);
        error.retry_after(Duration::from_micros(1000 + u64::from(chance[0]) * 12))
    }
}

impl Tx<'_> {
    fn path(&self) -> &std::path::Path {
        &self.store.config.path
    }

    fn conn(&self) -> &Connection {
        &self.store.opened().conn
    }

    /// Refuses while leases of a file that stood here before may be alive; also if this one was away meanwhile.
    pub(crate) fn must_be_open(&mut self) -> Result<(), BackendError> {
        if self.store.opened().is_unsure {
            self.adjust_to_guard()?;
        }
        let Some(left) = schema::until_open(self.store.opened(), self.now) else { return Ok(()) };
        let message = format!(
            "the database file was deleted or replaced; nothing is granted for another {left:.1?}, until every lease \
             that was forgotten is over",
        );
        Err(error::refused(self.path(), ErrorKind::Unavailable, message).retry_after(left))
    }

    /// What is remembered beside the file may be another one in its place, or a longer ttl.
    fn adjust_to_guard(&mut self) -> Result<(), BackendError> {
        let guard = Guard::read(self.path())?;
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        match guard {
            Some(guard) if !guard.is_of(&open.guard) => Err(self.must_reopen()),
            // If it was removed on purpose, the next grant writes it anew.
            guard => {
                open.guard.max_ttl_ms = guard.map_or(0, |guard| guard.max_ttl_ms);
                open.is_unsure = false;
                Ok(())
            }
        }
    }

    /// The file that is open is not the one that stands at the path: nothing was done, ask again.
    fn must_reopen(&mut self) -> BackendError {
        self.store.stale = true;
        let message = "the database file was replaced meanwhile";
        self.store.jittered(error::refused(self.path(), ErrorKind::Throttled, message))
    }

    /// Remembers the longest ttl that is granted, in case the file vanishes. Before the grant is committed.
    pub(crate) fn remember_ttl(&mut self, ttl: Duration) -> Result<(), BackendError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if ttl_ms <= self.store.opened().guard.max_ttl_ms {
            return Ok(());
        }
        let path = self.path().to_owned();
        // Under it nobody remembers another file that has taken the place of this one.
        let _lock = FolderLock::exclusive(&path).map_err(|e| self.store.jittered(e))?;
        if !self.store.is_in_place() {
            return Err(self.must_reopen());
        }
        let remembered = Guard::read(&path)?;
        let host = self.store.host.clone();
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        if remembered.as_ref().is_some_and(|remembered| !remembered.is_of(&open.guard)) {
            return Err(self.must_reopen());
        }
        let known = remembered.map_or(0, |guard| guard.max_ttl_ms);
        let guard = Guard { max_ttl_ms: known.max(ttl_ms), ..open.guard.clone() };
        guard.write(&path, &*host)?;
        // Only what is written is known.
        open.guard = guard;
        // Whoever replaces the file from here on finds this ttl; whoever did so before must not be overlooked.
        if FileId::of(&path)? != Some(open.file) {
            return Err(self.must_reopen());
        }
        Ok(())
    }

    /// Runs one verb of a ledger and stores what it changed.
    pub(crate) fn step<A>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Ledger, Moment, &Rules) -> Result<Change<A>, BackendError>,
    ) -> Result<A, BackendError> {
        let (mut ledger, is_new) = self.load(name)?;
        let rules = self.store.config.rules;
        let change = verb(&mut ledger, self.now, &rules)?;
        self.wakes.extend(change.wakes);
        if change.changed {
            self.store(name, &ledger)?;
            if is_new {
                self.sweep_now_and_then()?;
            }
        }
        Ok(change.answer)
    }

    fn load(&self, name: &LockName) -> Result<(Ledger, bool), BackendError> {
        let read = |statement: &str| self.conn().prepare_cached(statement);
        let state = read(sql::READ_LOCK)
            .and_then(|mut s| s.query_row([name.as_str()], |row| row.get::<_, String>(0)).optional());
        match state.map_err(|e| self.failed(e))? {
            Some(state) => Ok((self.decode(&state)?, false)),
            None => {
                let floor = read(sql::READ_FLOOR).and_then(|mut s| s.query_row([], |row| row.get(0)));
                Ok((Ledger::new(floor.map_err(|e| self.failed(e))?), true))
            }
        }
    }

    fn store(&self, name: &LockName, ledger: &Ledger) -> Result<(), BackendError> {
        let row = (name.as_str(), !ledger.is_free(), self.now.wall.as_secs(), ledger.encode());
        let written = self.conn().prepare_cached(sql::WRITE_LOCK).and_then(|mut s| s.execute(row));
        written.map(drop).map_err(|e| self.failed(e))
    }

    /// Hints for other processes go into the file; those for this one are given after the commit.
    fn leave_hints(&mut self) -> Result<(), BackendError> {
        let (here, elsewhere): (Vec<_>, Vec<_>) = std::mem::take(&mut self.wakes)
            .into_iter()
            .partition(|&(audience, owner)| self.store.bells.reach(audience, owner));
        self.wakes = here;
        if elsewhere.is_empty() {
            return Ok(());
        }
        let write = || -> rusqlite::Result<()> {
            let mut add = self.conn().prepare_cached(sql::ADD_WAKE)?;
            for (audience, owner) in &elsewhere {
                add.execute((owner.process().to_string(), *audience as u8, owner.to_string()))?;
            }
            self.conn().prepare_cached(sql::TRIM_WAKES)?.execute([]).map(drop)
        };
        write().map_err(|e| self.failed(e))
    }

    /// Deletes free rows that nobody used for an hour, a few at a time; their fences live on in the floor (H6.4).
    fn sweep_now_and_then(&mut self) -> Result<(), BackendError> {
        self.store.inserts = (self.store.inserts + 1) % SWEEP_EVERY;
        if self.store.inserts != 0 {
            return Ok(());
        }
        let sweep = || -> rusqlite::Result<Vec<(String, bool, u64, String)>> {
            let mut next = self.conn().prepare_cached(sql::SWEEP_NEXT)?;
            let rows = next.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
            rows.collect()
        };
        let rows = sweep().map_err(|e| self.failed(e))?;
        let reached = if rows.len() < 256 { "" } else { rows.last().map_or("", |row| row.0.as_str()) };
        let old = self.now.wall.saturating_sub(KEEP_FREE).as_secs();
        let mut floor = 0;
        for (name, _, _, state) in rows.iter().filter(|(_, busy, used, _)| !busy && *used < old) {
            floor = floor.max(self.decode(state)?.fence());
            self.conn().execute(sql::SWEEP_ONE, [name]).map_err(|e| self.failed(e))?;
        }
        self.conn().execute(sql::SWEPT, (reached, floor)).map(drop).map_err(|e| self.failed(e))
    }

    fn decode(&self, state: &str) -> Result<Ledger, BackendError> {
        Ledger::decode(state).map_err(|e| error::ledger(self.path(), e))
    }

    fn failed(&self, error: rusqlite::Error) -> BackendError {
        error::before_commit(self.path(), error)
    }
}
