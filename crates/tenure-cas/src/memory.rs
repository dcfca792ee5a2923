//! `CellMemory`: the last known state of the locks and of the store's clock in one process, and which of its own
//! writes are unacknowledged. It never decides which owner holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, locked};
use tenure_ledger::Ledger;

/// How far the clock of a store that is not slow may be ahead of the estimate. A lease in the store may last that much
/// longer than the ttl, never shorter.
pub const TOLERANCE: Duration = Duration::from_millis(100);

/// The longest time of an answer for which a first try allows.
const SLOWEST: Duration = Duration::from_secs(2);

/// How late a write may come at most, counted from its reading. In between, a failover behind a pooler or a restored
/// backup may lose tokens that the reader does not know. They are of that time and later (L2). A later write reads
/// again.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// The maximum number of remembered locks; with more, all are forgotten.
const NAMES_MAX: usize = 4096;

/// A state stored this recently is likely unchanged, even with many waiters.
const FRESH: Duration = Duration::from_millis(10);

/// Saves a round trip. It is never trusted: the store compares the version, the state, and the time. The version
/// alone is not enough: after a failover or a restored backup it counts again from where it was, with another
/// history.
#[derive(Default)]
pub(crate) struct CellMemory {
    seen: Mutex<HashMap<LockName, KnownCell>>,
    /// Versions on top of which a write of this process may have been applied, or may still be.
    unacknowledged: Mutex<HashMap<LockName, i64>>,
    clock: Mutex<Option<ClockReading>>,
}

/// A lock as it was stored.
#[derive(Clone)]
pub(crate) struct KnownCell {
    pub(crate) version: i64,
    /// As it is in the cell.
    pub(crate) state: String,
    pub(crate) ledger: Ledger,
    /// There may be places next to the cell.
    pub(crate) is_long: bool,
    /// There can be places next to it.
    pub(crate) has_beside: bool,
    pub(crate) at: Moment,
}

/// The time of the store's clock, and when this process learned it.
#[derive(Clone, Copy)]
struct ClockReading {
    store: Duration,
    learned: Moment,
    /// How long the answer took.
    took: Duration,
}

/// A store has one clock, which ends leases.
pub(crate) fn moment(store: Duration) -> Moment {
    Moment { boot: store, wall: store }
}

impl KnownCell {
    /// So recent that no other client is likely to have written it since.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.at.elapsed(now) < FRESH
    }
}

impl CellMemory {
    pub(crate) fn seen(&self, name: &LockName) -> Option<KnownCell> {
        // A lock with an unacknowledged write is read first.
        if locked(&self.unacknowledged).contains_key(name) {
            return None;
        }
        locked(&self.seen).get(name).cloned()
    }

    /// The stored state; an older state than the known one is ignored.
    pub(crate) fn remember(&self, name: &LockName, sight: KnownCell) {
        let mut seen = locked(&self.seen);
        if let Some(known) = seen.get_mut(name) {
            if known.version <= sight.version {
                *known = sight;
            }
            return;
        }
        if seen.len() >= NAMES_MAX {
            seen.clear();
        }
        seen.insert(name.clone(), sight);
    }

    pub(crate) fn forget(&self, name: &LockName) {
        locked(&self.seen).remove(name);
    }

    /// The store's clock showed this time with a write that was sent at `sent`, which this process learned now: that of
    /// a reading may be another server's.
    pub(crate) fn learn(&self, store: Duration, (sent, now): (Moment, Moment)) {
        *locked(&self.clock) = Some(ClockReading { store, learned: now, took: sent.elapsed(now) });
    }

    /// How far the store's clock may be ahead of the estimate at the next write. It is ahead by the time of the last
    /// answer on its way back and of the next request on its way there: the last write shows how long these are.
    /// Otherwise a store that needs more than [`TOLERANCE`] for an answer would refuse each first try.
    pub(crate) fn tolerance(&self) -> Duration {
        let took = locked(&self.clock).map_or(Duration::ZERO, |reading| reading.took);
        if took <= TOLERANCE { TOLERANCE } else { TOLERANCE + took.min(SLOWEST) }
    }

    /// A time that the store's clock has reached. It showed the reading before this process learned it, and it runs
    /// slower than the local clock by at most a thousandth. If the clock was set back since, the store detects
    /// that, because it compares.
    pub(crate) fn store_time(&self, now: Moment) -> Option<Duration> {
        let reading = (*locked(&self.clock))?;
        let elapsed = reading.learned.elapsed(now);
        Some(reading.store + (elapsed - elapsed / 1000))
    }

    /// A write on top of `version` was sent, and its outcome is unknown.
    pub(crate) fn add_unacknowledged(&self, name: &LockName, version: i64) {
        let mut unacknowledged = locked(&self.unacknowledged);
        if unacknowledged.len() >= NAMES_MAX {
            unacknowledged.clear();
        }
        let last = unacknowledged.entry(name.clone()).or_insert(version);
        *last = (*last).max(version);
    }

    /// The lock was seen at this version: no write on top of an older one can be applied any more. True if a write
    /// may still be applied on top of this one.
    ///
    /// OK because in one history of the cell a version never comes back: it grows with every write, and a new cell
    /// begins at the store's time in µs. If that is the smaller one, it stays unacknowledged, which costs a write.
    /// After a failover a version may come back, with another state, which every write compares as well.
    pub(crate) fn settle_below(&self, name: &LockName, version: i64) -> bool {
        let mut unacknowledged = locked(&self.unacknowledged);
        match unacknowledged.get(name) {
            Some(last) if *last < version => {
                unacknowledged.remove(name);
                false
            }
            found => found.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> LockName {
        LockName::new("one").unwrap()
    }

    fn at(ms: u64) -> Moment {
        Moment { boot: Duration::from_millis(ms), wall: Duration::ZERO }
    }

    fn seen(version: i64) -> KnownCell {
        KnownCell {
            version,
            state: String::new(),
            ledger: Ledger::new(0),
            is_long: false,
            has_beside: true,
            at: at(0),
        }
    }

    /// H6.3: the estimate of the store's time is never ahead of it.
    #[test]
    fn the_stores_time_is_taken_for_a_thousandth_less() {
        let memory = CellMemory::default();
        assert_eq!(memory.store_time(at(5)), None);
        assert_eq!(memory.tolerance(), TOLERANCE);
        memory.learn(Duration::from_secs(1000), (at(0), at(5)));
        assert_eq!(memory.tolerance(), TOLERANCE);
        assert_eq!(memory.store_time(at(5)), Some(Duration::from_secs(1000)));
        assert_eq!(memory.store_time(at(10_005)), Some(Duration::from_millis(1_009_990)));
    }

    /// L6: a store that needed 500 ms for an answer refused each first try. So a renewal took three answers, and leases
    /// were lost.
    #[test]
    fn a_slow_store_is_allowed_what_its_last_answer_took() {
        for (took, tolerance) in [(99, 100), (500, 600), (9_000, 2_100)] {
            let memory = CellMemory::default();
            memory.learn(Duration::from_secs(1000), (at(0), at(took)));
            assert_eq!(memory.tolerance(), Duration::from_millis(tolerance));
        }
    }

    /// L9: a write that may still be applied is taken into account, until the cell has another version.
    #[test]
    fn a_write_without_an_answer_is_unacknowledged_until_the_version_has_moved_on() {
        let memory = CellMemory::default();
        memory.remember(&name(), seen(7));
        memory.add_unacknowledged(&name(), 7);
        assert!(memory.seen(&name()).is_none());
        assert!(memory.settle_below(&name(), 7));
        assert!(!memory.settle_below(&name(), 8));
        assert!(memory.seen(&name()).is_some());
    }

    #[test]
    fn an_older_sight_is_no_news() {
        let memory = CellMemory::default();
        for (version, expected) in [(5, 5), (4, 5), (6, 6)] {
            memory.remember(&name(), seen(version));
            assert_eq!(memory.seen(&name()).unwrap().version, expected);
        }
    }
}
