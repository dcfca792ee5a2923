//! `Lines`: of the waiters of one process for one lock, only so many have places in the store; the others stand in line here.
//!
//! Some stores pay for every place at each change of owner (`Promises::places`). The order is kept: the store has not heard yet of
//! those who stand here, and hears of them in the order in which they came (L7).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tenure_core::{BackendError, HolderView, Host, LockName, Moment};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long what failed for those in front is told to those behind them: a store that is down is not found out by a few at a time.
const TROUBLE: Duration = Duration::from_secs(5);

/// Whoever stands in front asks far more often than this. If none of them has for so long, nobody drives their futures, and
/// others take their places.
const SILENCE: Duration = Duration::from_secs(60);

/// The lines of all locks.
pub(crate) struct Lines {
    places: Option<usize>,
    lines: Mutex<HashMap<LockName, Arc<Line>>>,
}

struct Line {
    /// Fair: they are let to the front as they came.
    front: Arc<Semaphore>,
    /// The numbers of those who stand here, in front or behind.
    standing: Mutex<BTreeSet<u64>>,
    heard: Mutex<Heard>,
}

/// What the store last said to somebody in front.
struct Heard {
    at: Moment,
    holder: Option<HolderView>,
    failed: Option<(Moment, BackendError)>,
}

/// Stands in a line, behind or in front. Dropped, it lets the next one to the front.
pub(crate) struct InLine<'a> {
    lines: &'a Lines,
    name: LockName,
    line: Arc<Line>,
    number: u64,
    place: Option<OwnedSemaphorePermit>,
}

impl Lines {
    /// So many of a process may have places; `None`: all.
    pub(crate) fn new(places: Option<usize>) -> Self {
        Self { places, lines: Mutex::default() }
    }

    /// Joins the line of this lock, where there are lines.
    pub(crate) fn join(&self, name: &LockName, now: Moment) -> Option<InLine<'_>> {
        let places = self.places?;
        let new = || {
            let heard = Mutex::new(Heard { at: now, holder: None, failed: None });
            Arc::new(Line { front: Arc::new(Semaphore::new(places)), standing: Mutex::default(), heard })
        };
        let line = locked(&self.lines).entry(name.clone()).or_insert_with(new).clone();
        let number = {
            let mut standing = locked(&line.standing);
            let number = standing.last().map_or(0, |last| last + 1);
            standing.insert(number);
            number
        };
        Some(InLine { lines: self, name: name.clone(), line, number, place: None })
    }
}

impl InLine<'_> {
    /// To the front, if nobody stands before it.
    pub(crate) fn is_in_front(&mut self) -> bool {
        if self.place.is_none() {
            self.place = self.line.front.clone().try_acquire_owned().ok();
        }
        self.place.is_some()
    }

    /// Waits until it is in front.
    ///
    /// # Cancel safety
    /// Whoever stops waiting leaves its turn to the next one.
    pub(crate) async fn come_to_front(&mut self, host: &dyn Host) {
        let place = self.line.front.clone().acquire_owned();
        tokio::pin!(place);
        self.place = loop {
            let silent = locked(&self.line.heard).at + SILENCE;
            tokio::select! {
                biased;
                place = &mut place => break place.ok(),
                () = host.sleep_until(silent) => self.pass_the_silent(host.now()),
            }
        };
    }

    fn pass_the_silent(&self, now: Moment) {
        let mut heard = locked(&self.line.heard);
        if heard.at.elapsed(now) >= SILENCE {
            heard.at = now;
            self.line.front.add_permits(self.lines.places.unwrap_or_default());
        }
    }

    /// Somebody in front has asked. `holder`: who holds, if the store answered.
    pub(crate) fn on_answer(&self, now: Moment, holder: Option<Option<&HolderView>>) {
        let mut heard = locked(&self.line.heard);
        heard.at = now;
        if let Some(holder) = holder {
            (heard.holder, heard.failed) = (holder.cloned(), None);
        }
    }

    /// The store failed for longer than somebody's patience.
    pub(crate) fn on_failure(&self, now: Moment, error: &BackendError) {
        if error.kind().is_transient() {
            locked(&self.line.heard).failed = Some((now, error.clone()));
        }
    }

    /// How many of this process stand before it.
    pub(crate) fn ahead(&self) -> usize {
        locked(&self.line.standing).range(..self.number).count()
    }

    /// Who holds, as was last said to somebody in front.
    pub(crate) fn holder(&self) -> Option<HolderView> {
        locked(&self.line.heard).holder.clone()
    }

    /// What failed for somebody in front a moment ago.
    pub(crate) fn failed(&self, now: Moment) -> Option<BackendError> {
        let heard = locked(&self.line.heard);
        heard
            .failed
            .as_ref()
            .filter(|(since, _)| since.elapsed(now) < TROUBLE)
            .map(|(_, error)| error.clone())
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        locked(&self.line.standing).remove(&self.number);
        let mut lines = locked(&self.lines.lines);
        // One is the map's, one is ours; others come by the map alone.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.name);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // OK because each value is whole whenever code that can panic runs.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
