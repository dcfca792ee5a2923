//! `CellMemory`: what one process saw last of the locks and of the store's clock, and which of its own writes
//! are unacknowledged. None of it says which owner holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, locked};
use tenure_ledger::Ledger;

/// How far the store's clock may be ahead of what we take it for. A lease in the store may last that much
/// longer than the ttl, never shorter.
pub const TOLERANCE: Duration = Duration::from_millis(100);

/// How late a write may come, counted from its reading. What was forgotten in between, by a fail-over behind
/// a pooler or a backup that was restored, may have had tokens that the reader knows nothing of: of that time
/// and later (L2). A write that comes later reads again.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// Locks that are remembered; more, and all are forgotten.
const NAMES_MAX: usize = 4096;

/// What was stored so long ago is likely to be as it was, also where many wait.
const FRESH: Duration = Duration::from_millis(10);

/// What saves a round trip. It is never trusted: the store compares the version, the state, and the time. The
/// version alone is not enough: after a fail-over or a backup that was restored it counts again from where it
/// was, with another history.
#[derive(Default)]
pub(crate) struct CellMemory {
    seen: Mutex<HashMap<LockName, KnownCell>>,
    /// Versions on top of which something of ours may have been written, or may still be.
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
    /// Places may stand beside the cell.
    pub(crate) is_long: bool,
    /// There can be places beside it.
    pub(crate) has_beside: bool,
    pub(crate) at: Moment,
}

/// What the store's clock showed, and when we learned of it.
#[derive(Clone, Copy)]
struct ClockReading {
    store: Duration,
    learned: Moment,
}

/// A store has one clock, and a lease ends by it.
pub(crate) fn moment(store: Duration) -> Moment {
    Moment { boot: store, wall: store }
}

impl KnownCell {
    /// So lately that no other client is likely to have written it since.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.at.elapsed(now) < FRESH
    }
}

impl CellMemory {
    pub(crate) fn seen(&self, name: &LockName) -> Option<KnownCell> {
        // One with an unacknowledged write is read first.
        if locked(&self.unacknowledged).contains_key(name) {
            return None;
        }
        locked(&self.seen).get(name).cloned()
    }

    /// What was stored; an older sight than the one there is is no news.
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

    /// The store's clock showed this, and we learn of it now.
    pub(crate) fn learn(&self, store: Duration, now: Moment) {
        *locked(&self.clock) = Some(ClockReading { store, learned: now });
    }

    /// A time that the store's clock has reached: it showed the reading before we learned of it, and it runs
    /// no slower than ours by more than a thousandth. A clock that was set back since is found out by the
    /// store, which compares.
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

    /// The lock was seen at this version: nothing can be written on top of an older one any more. True if
    /// something may still be written on top of this one.
    ///
    /// OK because in one history of the cell a version never comes back: it grows with every write, and a new
    /// cell begins at the store's time in µs. Should that be the smaller one, it stays unacknowledged, which
    /// costs a write. After a fail-over a version may come back, with another state, which every write
    /// compares as well.
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

    /// H6.3: what we take the store's time for is never ahead of it.
    #[test]
    fn the_stores_time_is_taken_for_a_thousandth_less() {
        let memory = CellMemory::default();
        assert_eq!(memory.store_time(at(5)), None);
        memory.learn(Duration::from_secs(1000), at(5));
        assert_eq!(memory.store_time(at(5)), Some(Duration::from_secs(1000)));
        assert_eq!(memory.store_time(at(10_005)), Some(Duration::from_millis(1_009_990)));
    }

    /// L9: what may still be written is not overlooked, and cannot be any more as soon as the cell has
    /// another version.
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
