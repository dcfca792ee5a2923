//! `CellStore`: a handle to cells in memory, as one process has it.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, Failure, Listed, Look, Made, NewPlace, Newcomer, OldPlace, Purpose, Reading, Stored, TOLERANCE,
    Trouble, Write,
};
use tenure_core::{
    Absent, Audience, BackendError, Bells, EndOfGrant, ErrorKind, Finding, Hint, Host, LockName, Memos,
    Minting, Order, Outcome, ProcessId, Promises, Restart, Sharing, WakeUp, Wakes,
};
use tokio::sync::Notify;

use crate::cells::value::Cells;

/// An error in the words of a store in memory.
pub fn words(trouble: &Trouble) -> BackendError {
    let (kind, outcome) = match trouble {
        Trouble::Overtaken => (ErrorKind::Throttled, Outcome::NotApplied),
        Trouble::Unsettled => (ErrorKind::Unavailable, Outcome::Unknown),
        Trouble::Locked => (ErrorKind::Unavailable, Outcome::NotApplied),
        Trouble::Swallowed => (ErrorKind::Corrupt, Outcome::NotApplied),
        Trouble::Altered => (ErrorKind::Corrupt, Outcome::Unknown),
        Trouble::Ledger(_) => (ErrorKind::Unavailable, Outcome::NotApplied),
    };
    BackendError::new(kind, outcome, format!("{trouble:?}"))
}

fn lost() -> Failure {
    Failure::Broken(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "the connection broke"))
}

/// A handle to cells in memory, as one process has it.
#[derive(Clone)]
pub struct CellStore {
    host: Arc<dyn Host>,
    world: Arc<Mutex<CellWorld>>,
    bells: Bells,
    losing: Arc<Mutex<Losing>>,
}

/// Answers that are lost.
#[derive(Default)]
struct Losing {
    /// From the next write on.
    armed: usize,
    /// From now on.
    left: usize,
    /// Removals that are lost.
    removals: usize,
    /// Writes for which another writer is faster.
    races: usize,
}

/// The cells, and the bells of all processes.
#[derive(Default)]
struct CellWorld {
    cells: Cells,
    bells: Vec<Bells>,
    /// For whom the next write waits on its way.
    late: Option<Arc<Notify>>,
}

impl CellStore {
    /// A store of its own, whose clock is that of the host.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host, world: Arc::default(), bells: Bells::default(), losing: Arc::default() }.elsewhere()
    }

    /// A handle to the same cells as another process has it.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let bells = Bells::default();
        self.world().bells.push(bells.clone());
        Self { bells, ..self.clone() }
    }

    /// How many answers are lost, from the next write on: the writes are done.
    pub fn lose_answers(&self, count: usize) {
        self.losing().armed = count;
    }

    /// So many removals of places are lost before they are done.
    pub fn fail_removals(&self, count: usize) {
        self.losing().removals = count;
    }

    /// For how many writes another writer is faster, and leaves the cell as it was.
    pub fn lose_races(&self, count: usize) {
        self.losing().races = count;
    }

    fn race(&self) -> Result<(), Failure> {
        let mut losing = self.losing();
        let is_lost = losing.races > 0;
        losing.races = losing.races.saturating_sub(1);
        if is_lost { Err(Failure::Overtaken) } else { Ok(()) }
    }

    /// The next write arrives when that is notified.
    pub fn delay_write(&self) -> Arc<Notify> {
        self.world().late.insert(Arc::default()).clone()
    }

    /// The cells as they are.
    pub fn copy(&self) -> Cells {
        self.world().cells.clone()
    }

    /// A loss of data: everything is as in a copy.
    pub fn restore(&self, copy: Cells) {
        self.world().cells = copy;
    }

    /// An answer on its way back.
    fn answer<A>(&self, is_write: bool, answer: A) -> Result<A, Failure> {
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
        let mut promises = Promises::least("cells");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Lost;
        promises.reach = "one test";
        promises.end = EndOfGrant::Ttl;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.ttl_grain = TOLERANCE;
        promises
    }

    async fn another(&self) -> Result<Self, BackendError> {
        Ok(self.clone())
    }

    async fn connect(&self, _purpose: Purpose) -> Result<(), BackendError> {
        Ok(())
    }

    async fn read(&self, _over: &(), name: &LockName, look: &Look) -> Result<Reading, Failure> {
        let reading = self.world().cells.read(name, look, self.now());
        self.answer(false, reading)
    }

    async fn make(&self, _over: &(), name: &LockName, state: &str) -> Result<Option<Made>, Failure> {
        let made = self.world().cells.make(name, state, self.now());
        self.answer(true, made)
    }

    async fn write(&self, _over: &(), name: &LockName, write: &Write<'_>) -> Result<Option<Stored>, Failure> {
        let late = self.world().late.take();
        if let Some(late) = late {
            late.notified().await;
        }
        self.race()?;
        let now = self.now();
        let mut world = self.world();
        let stored = world.cells.write(name, write, now);
        if stored.is_some() {
            for (hint, bells) in
                write.hints.iter().flat_map(|hint| world.bells.iter().map(move |b| (hint, b)))
            {
                bells.ring(hint.audience, hint.owner);
            }
        }
        self.answer(true, stored)
    }

    async fn enqueue(
        &self,
        _over: &(),
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, Failure> {
        self.race()?;
        let now = self.now();
        let reading = self.world().cells.enqueue(name, place, now);
        self.answer(true, reading)
    }

    async fn list(&self, _over: &(), prefix: &str) -> Result<Vec<Listed>, Failure> {
        Ok(self.world().cells.list(prefix, self.now()))
    }

    fn error(&self, trouble: Trouble) -> BackendError {
        words(&trouble)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(Vec::new())
    }

    async fn tell(&self, _over: &(), hint: Hint) -> Result<(), Failure> {
        for bells in &self.world().bells {
            bells.ring(hint.audience, hint.owner);
        }
        Ok(())
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.bells.reach(hint.audience, hint.owner)
    }

    fn ring(&self, hint: Hint) {
        self.bells.ring(hint.audience, hint.owner);
    }

    fn wakes(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(self.bells.listen(process, audience))
    }

    fn batch(&self) -> usize {
        128
    }

    async fn append_place(
        &self,
        _over: &(),
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, Failure> {
        let key = self.world().cells.append(name, place);
        self.answer(true, key)
    }

    async fn keep_place(&self, _over: &(), key: &str, state: &str) -> Result<bool, Failure> {
        Ok(self.world().cells.keep(key, state))
    }

    async fn remove_place(&self, _over: &(), name: &LockName, place: &OldPlace<'_>) -> Result<bool, Failure> {
        {
            let mut losing = self.losing();
            if losing.removals > 0 {
                losing.removals -= 1;
                return Err(lost());
            }
        }
        Ok(self.world().cells.remove(name, place))
    }

    async fn places(&self, _over: &(), name: &LockName) -> Result<Vec<String>, Failure> {
        Ok(self.world().cells.places(name))
    }
}
