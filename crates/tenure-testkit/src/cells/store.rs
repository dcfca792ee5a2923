//! `CellStore`: a handle to cells in memory, as one process has it.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, Listed, NewCell, NewPlace,
    Newcomer, OldPlace, PlacesBeside, ReadRequest, VerbError, WriteAnswer, promises,
};
use tenure_core::{
    Audience, BackendError, ErrorKind, Hint, Host, LockName, Notifier, Outcome, Ownership, ProcessId,
    Promises, Restart, SqlOwnership, WakeStream, WakeSupport,
};
use tokio::sync::Notify;

use crate::cells::value::Cells;

/// The error that a store in memory reports for this trouble.
pub fn words(trouble: &VerbError) -> BackendError {
    let (kind, outcome) = match trouble {
        VerbError::Overtaken => (ErrorKind::Throttled, Outcome::NotApplied),
        VerbError::Unsettled => (ErrorKind::Unavailable, Outcome::Unknown),
        VerbError::Locked | VerbError::ReliedOn(_) => (ErrorKind::Unavailable, Outcome::NotApplied),
        VerbError::Swallowed => (ErrorKind::Corrupt, Outcome::NotApplied),
        VerbError::Altered => (ErrorKind::Corrupt, Outcome::Unknown),
        VerbError::Ledger(_) => (ErrorKind::Unavailable, Outcome::NotApplied),
    };
    BackendError::new(kind, outcome, format!("{trouble:?}"))
}

fn lost() -> CellError {
    CellError::Broken(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "the connection broke"))
}

/// A handle to cells in memory, as one process has it.
#[derive(Clone)]
pub struct CellStore {
    host: Arc<dyn Host>,
    world: Arc<Mutex<CellWorld>>,
    notifier: Notifier,
    losing: Arc<Mutex<Losing>>,
    has_beside: bool,
    may_begin: bool,
}

/// What is lost, and how often.
#[derive(Default)]
struct Losing {
    /// Answers that are lost from the next write on.
    armed: usize,
    /// Answers that are lost from now on.
    left: usize,
    /// Removals that are lost.
    removals: usize,
    /// Writes that another writer overtakes.
    races: usize,
}

/// The cells, and the notifiers of all processes.
#[derive(Default)]
struct CellWorld {
    cells: Cells,
    notifier: Vec<Notifier>,
    /// What the next write waits for on its way.
    late: Option<Arc<Notify>>,
    /// How far the clock of readings is ahead of that of writes, in ms; negative: behind.
    split_ms: i64,
    /// What readings show instead of the cells.
    replica: Option<Cells>,
}

impl CellStore {
    /// A new store, whose clock is that of the host.
    pub fn new(host: Arc<dyn Host>) -> Self {
        let (world, notifier, losing) = (Arc::default(), Notifier::default(), Arc::default());
        Self { host, world, notifier, losing, has_beside: true, may_begin: true }.elsewhere()
    }

    /// A handle to the same cells, as another process has it.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let notifier = Notifier::default();
        self.world().notifier.push(notifier.clone());
        Self { notifier, ..self.clone() }
    }

    /// The same with all places in the cells.
    #[must_use]
    pub fn without_places_beside(self) -> Self {
        Self { has_beside: false, ..self }
    }

    /// The same for a user that may not delete places.
    #[must_use]
    pub fn without_deletes(self) -> Self {
        Self { may_begin: false, ..self }
    }

    /// Loses `count` answers, from the next write on: the writes are done.
    pub fn lose_answers(&self, count: usize) {
        self.losing().armed = count;
    }

    /// So many removals of places fail before they are done.
    pub fn fail_removals(&self, count: usize) {
        self.losing().removals = count;
    }

    /// Another writer overtakes the next `count` writes, and leaves the cell as it was.
    pub fn lose_races(&self, count: usize) {
        self.losing().races = count;
    }

    fn race(&self) -> Result<(), CellError> {
        let mut losing = self.losing();
        let is_lost = losing.races > 0;
        losing.races = losing.races.saturating_sub(1);
        if is_lost { Err(CellError::Overtaken) } else { Ok(()) }
    }

    /// The next write arrives when the returned value is notified.
    pub fn delay_write(&self) -> Arc<Notify> {
        self.world().late.insert(Arc::default()).clone()
    }

    /// Readings come from a server whose clock is ahead of the writer's by `ahead_ms`, or behind if that is negative.
    pub fn split_clock(&self, ahead_ms: i64) {
        self.world().split_ms = ahead_ms;
    }

    /// Readings come from a replica from now on, and it receives no new writes.
    pub fn fall_behind(&self) {
        let mut world = self.world();
        world.replica = Some(world.cells.clone());
    }

    /// The replica has caught up.
    pub fn catch_up(&self) {
        self.world().replica = None;
    }

    /// A transaction relies on an owner: see [`Cells::rely`].
    pub fn rely(&self, transaction: u64, ownership: &Ownership) -> bool {
        let sql = ownership.sql().expect("BUG: cells have rows");
        self.world().cells.rely(transaction, sql.row(), sql.proof())
    }

    /// A transaction ends.
    pub fn end(&self, transaction: u64) {
        self.world().cells.end(transaction);
    }

    /// The cells as they are.
    pub fn copy(&self) -> Cells {
        self.world().cells.clone()
    }

    /// A loss of data: everything is again as in the copy.
    pub fn restore(&self, copy: Cells) {
        self.world().cells = copy;
    }

    /// The answer on its way back, or an error if it is lost.
    fn answer<A>(&self, is_write: bool, answer: A) -> Result<A, CellError> {
        let mut losing = self.losing();
        if is_write {
            losing.left += std::mem::take(&mut losing.armed);
        }
        if losing.left == 0 {
            return Ok(answer);
        }
        losing.left -= 1;
        Err(lost())
    }

    fn losing(&self) -> MutexGuard<'_, Losing> {
        tenure_core::locked(&self.losing)
    }

    fn world(&self) -> MutexGuard<'_, CellWorld> {
        tenure_core::locked(&self.world)
    }

    fn now(&self) -> Duration {
        self.host.now().wall
    }
}

#[async_trait]
impl Cell for CellStore {
    type Connection = ();

    fn promises(&self) -> Promises {
        let mut promises = promises("cells");
        promises.restart = Restart::Lost;
        promises.reach = "one test";
        promises.wake = WakeSupport::Pushed;
        promises
    }

    async fn connect(&self, _purpose: ConnectionPurpose) -> Result<Connected<()>, BackendError> {
        Ok(Connected { over: (), is_notified: true })
    }

    async fn read(&self, _over: &(), name: &LockName, look: &ReadRequest) -> Result<CellReading, CellError> {
        let now = self.now();
        let mut reading = {
            let world = self.world();
            let by = Duration::from_millis(world.split_ms.unsigned_abs());
            let shown = if world.split_ms < 0 { now.saturating_sub(by) } else { now + by };
            world.replica.as_ref().unwrap_or(&world.cells).read(name, look, shown)
        };
        reading.overflow = reading.overflow.filter(|_| self.has_beside);
        reading.overflow.iter_mut().for_each(|overflow| overflow.may_begin = self.may_begin);
        self.answer(false, reading)
    }

    async fn make(&self, _over: &(), name: &LockName, state: &str) -> Result<Option<NewCell>, CellError> {
        let made = self.world().cells.make(name, state, self.now());
        self.answer(true, made)
    }

    async fn write(
        &self,
        _over: &(),
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<WriteAnswer, CellError> {
        let late = self.world().late.take();
        if let Some(late) = late {
            late.notified().await;
        }
        self.race()?;
        let now = self.now();
        let mut world = self.world();
        let stored = world.cells.write(name, write, now);
        if matches!(stored, WriteAnswer::Done(_)) {
            for (hint, notifier) in
                write.hints.iter().flat_map(|hint| world.notifier.iter().map(move |b| (hint, b)))
            {
                notifier.notify(hint.audience, hint.owner);
            }
        }
        self.answer(true, stored)
    }

    async fn enqueue(
        &self,
        _over: &(),
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        self.race()?;
        let now = self.now();
        let reading = self.world().cells.enqueue(name, place, now);
        self.answer(true, reading)
    }

    async fn ownership(
        &self,
        _over: &(),
        row: &str,
        proof: &str,
        _rest: Duration,
    ) -> Result<Ownership, CellError> {
        Ok(Ownership::Sql(SqlOwnership::new("rely", (row, proof), "rely")))
    }

    async fn stop_relying(
        &self,
        _over: &(),
        name: &LockName,
        write: &CellWrite<'_>,
        text: &str,
    ) -> Result<(), CellError> {
        let now = self.now();
        self.world().cells.stop_relying(name, write, text, now);
        Ok(())
    }

    async fn list(&self, _over: &(), prefix: &str) -> Result<Vec<Listed>, CellError> {
        Ok(self.world().cells.list(prefix, self.now()))
    }

    fn beside(&self) -> Option<&dyn PlacesBeside<()>> {
        self.has_beside.then_some(self as _)
    }

    fn error(&self, trouble: VerbError) -> BackendError {
        words(&trouble)
    }

    async fn notify(&self, _over: &(), hint: Hint) -> Result<(), CellError> {
        for notifier in &self.world().notifier {
            notifier.notify(hint.audience, hint.owner);
        }
        Ok(())
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.notifier.reaches(hint.audience, hint.owner)
    }

    fn deliver(&self, hint: Hint) {
        self.notifier.notify(hint.audience, hint.owner);
    }

    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(self.notifier.subscribe(process, audience))
    }
}

#[async_trait]
impl PlacesBeside<()> for CellStore {
    async fn put(
        &self,
        _over: &(),
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, CellError> {
        if let Some(key) = place.key {
            let now = self.now();
            let is_kept = self.world().cells.keep((key, place.state), place.within, now);
            return Ok(is_kept.then(|| key.to_owned()));
        }
        let now = self.now();
        let key = self.world().cells.append(name, place, now);
        self.answer(true, key)
    }

    async fn remove(&self, _over: &(), name: &LockName, place: &OldPlace<'_>) -> Result<bool, CellError> {
        {
            let mut losing = self.losing();
            if losing.removals > 0 {
                losing.removals -= 1;
                return Err(lost());
            }
        }
        Ok(self.world().cells.remove(name, place))
    }

    async fn all(&self, _over: &(), name: &LockName) -> Result<Vec<String>, CellError> {
        Ok(self.world().cells.places(name))
    }
}
