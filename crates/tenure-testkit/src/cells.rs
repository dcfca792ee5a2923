//! Cells in memory: the smallest store that can compare and set, for `tenure-cas` and the simulation.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, Failure, Listed, Look, Made, NewPlace, OldPlace, Overflow, Purpose, Reading, Stored, TOLERANCE,
    Trouble, Until, Write,
};
use tenure_core::{
    Absent, Audience, BackendError, Bells, EndOfGrant, ErrorKind, Finding, Hint, Host, LockName, Memos,
    Minting, Order, Outcome, ProcessId, Promises, Restart, Sharing, WakeUp, Wakes,
};
use tokio::sync::Notify;

/// How many places beside a cell are read with it.
const FIRST: usize = 6;
/// Between the name of a lock and the number of a place beside its cell.
const BESIDE: char = '\u{1}';

/// Cells and the places beside them, as one value.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    cells: BTreeMap<LockName, Kept>,
    places: BTreeMap<LockName, BTreeMap<String, String>>,
    /// The number of the last place.
    last: u64,
}

/// A cell that is there.
#[derive(Clone, Debug)]
struct Kept {
    version: i64,
    state: String,
    is_busy: bool,
}

impl Cells {
    /// What stands in a cell; empty if there is none.
    pub fn state(&self, name: &LockName) -> &str {
        self.cells.get(name).map_or("", |kept| &kept.state)
    }

    /// All locks that have a cell.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.cells.keys()
    }

    /// Reads a cell at this time of the store's clock.
    pub fn read(&self, name: &LockName, look: &Look, now: Duration) -> Reading {
        let kept = self.cells.get(name);
        let places = || self.places.get(name).into_iter().flatten();
        let first = places().take(FIRST).map(|(key, state)| (key.clone(), state.clone())).collect();
        let own = match &look.until {
            Until::Key(key) => places().find(|(known, _)| *known == key).map(|(_, state)| state.clone()),
            Until::Nothing | Until::End => None,
        };
        let ahead = places().filter(|(key, _)| look.until.is_behind(key)).count();
        Reading {
            version: kept.map_or(0, |kept| kept.version),
            state: kept.map_or_else(String::new, |kept| kept.state.clone()),
            now,
            overflow: Some(Overflow { first, is_whole: places().count() < FIRST, own, ahead }),
        }
    }

    /// Makes a cell if there is none.
    pub fn make(&mut self, name: &LockName, state: &str, now: Duration) -> Option<Made> {
        if self.cells.contains_key(name) {
            return None;
        }
        let version = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        self.cells.insert(name.clone(), Kept { version, state: state.to_owned(), is_busy: false });
        Some(Made { version, at: now, is_ours: true })
    }

    /// Writes a cell if it is as it was, and the time is right.
    pub fn write(&mut self, name: &LockName, write: &Write<'_>, now: Duration) -> Option<Stored> {
        let kept = self.cells.get(name);
        let (version, before) = write.on;
        let is_same = kept.is_some_and(|kept| version == kept.version && before == kept.state);
        let is_time = (write.within.0..=write.within.1).contains(&now);
        let is_left = |key: &String| !write.gone.contains(key);
        let is_passed =
            write.is_last && self.places.get(name).is_some_and(|places| places.keys().any(is_left));
        if !is_same || !is_time || is_passed {
            return None;
        }
        let (version, state, is_busy) = (version + 1, write.state.to_owned(), write.is_busy);
        self.cells.insert(name.clone(), Kept { version, state, is_busy });
        for key in write.gone {
            self.places.get_mut(name).and_then(|places| places.remove(key));
        }
        Some(Stored { at: now, is_ours: true })
    }

    /// Puts a place at the end, unless it is there and may be; answers its key. None: the cell does not begin as it must.
    pub fn append(&mut self, name: &LockName, place: &NewPlace<'_>) -> Option<String> {
        let is_behind = self.state(name).starts_with(place.behind);
        let places = self.places.entry(name.clone()).or_default();
        let owner = place.owner.to_string();
        let known = places.iter().find(|(_, state)| place.may_be_there && state.contains(&owner));
        if let Some((key, _)) = known {
            return Some(key.clone());
        }
        if !is_behind {
            return None;
        }
        self.last += 1;
        let key = format!("{name}{BESIDE}{:016x}", self.last);
        places.insert(key.clone(), place.state.to_owned());
        Some(key)
    }

    /// Writes a place anew; false if it is not there.
    pub fn keep(&mut self, key: &str, state: &str) -> bool {
        let places = self.places.values_mut().find_map(|places| places.get_mut(key));
        places.map(|place| *place = state.to_owned()).is_some()
    }

    /// Takes a place away; false if it is not there.
    pub fn remove(&mut self, name: &LockName, place: &OldPlace<'_>) -> bool {
        let Some(places) = self.places.get_mut(name) else { return false };
        let (owner, before) = (place.owner.to_string(), places.len());
        places.retain(|key, state| key != place.key && !(place.may_have_another && state.contains(&owner)));
        places.len() < before
    }

    /// All places beside a cell.
    pub fn places(&self, name: &LockName) -> Vec<String> {
        self.places.get(name).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// What may be held or waited for.
    pub fn list(&self, prefix: &str, now: Duration) -> Vec<Listed> {
        let busy = self.cells.iter().filter(|(name, kept)| kept.is_busy && name.as_str().starts_with(prefix));
        let list = |(name, kept): (&LockName, &Kept)| {
            let (state, places) = (kept.state.clone(), self.places(name));
            Listed { name: name.clone(), state, places, now }
        };
        busy.map(list).collect()
    }
}

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

    /// From the next write on so many answers are lost: what was asked for is done all the same.
    pub fn lose_answers(&self, count: usize) {
        self.losing().armed = count;
    }

    /// So many removals of places are lost before they are done.
    pub fn fail_removals(&self, count: usize) {
        self.losing().removals = count;
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
