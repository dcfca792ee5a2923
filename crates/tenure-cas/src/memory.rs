//! `Memory`: what this process saw last of the locks and of the store's clock, and which of its own writes are unacknowledged.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, locked};
use tenure_ledger::Ledger;

/// How far the store's clock may be ahead of what we take it for. A lease in the store may last that much longer than the ttl,
/// never shorter.
pub const TOLERANCE: Duration = Duration::from_millis(100);

/// How late a write may come, counted from its reading. What was forgotten in between, by a fail-over behind a pooler or a backup that was
/// restored, may have had tokens that the reader knows nothing of: of that time and later (L2). A write that comes later reads again.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// Locks that are remembered; more, and all are forgotten.
const NAMES_MAX: usize = 4096;

/// What was stored so long ago is likely to be as it was, also where many wait.
const FRESH: Duration = Duration::from_millis(10);

/// What saves a round trip. It is never trusted: the store compares the version, the state, and the time. The version alone is not
/// enough: after a fail-over or a backup that was restored it counts again from where it was, with another history.
#[derive(Default)]
pub(crate) struct Memory {
    seen: Mutex<HashMap<LockName, Seen>>,
    /// Versions on top of which something of ours may have been written, or may still be.
    unacknowledged: Mutex<HashMap<LockName, i64>>,
    clock: Mutex<Option<Reading>>,
}

/// A lock as it was stored.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) version: i64,
    /// As it is in the cell.
    pub(crate) state: String,
    pub(crate) ledger: Ledger,
    /// Places may stand beside the cell.
    pub(crate) is_long: bool,
    pub(crate) at: Moment,
}

/// What the store's clock showed, and when we learned of it.
#[derive(Clone, Copy)]
struct Reading {
    store: Duration,
    learned: Moment,
}

/// A store has one clock, and a lease ends by it.
pub(crate) fn moment(store: Duration) -> Moment {
    Moment { boot: store, wall: store }
}

impl Seen {
    /// So lately that nobody else is likely to have been there since.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.at.elapsed(now) < FRESH
    }
}

impl Memory {
    pub(crate) fn seen(&self, name: &LockName) -> Option<Seen> {
        // One that is in doubt is read first.
        if locked(&self.unacknowledged).contains_key(name) {
            return None;
        }
        locked(&self.seen).get(name).cloned()
    }

    /// What was stored; an older sight than the one there is is no news.
    pub(crate) fn remember(&self, name: &LockName, sight: Seen) {
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
        *locked(&self.clock) = Some(Reading { store, learned: now });
    }

    /// A time that the store's clock has reached: it showed the reading before we learned of it, and it runs no slower than ours
    /// by more than a thousandth. A clock that was set back since is found out by the store, which compares.
    pub(crate) fn store_time(&self, now: Moment) -> Option<Duration> {
        let reading = (*locked(&self.clock))?;
        let elapsed = reading.learned.elapsed(now);
        Some(reading.store + (elapsed - elapsed / 1000))
    }

    /// A write on top of `version` was sent, and nobody knows what became of it.
    pub(crate) fn doubt(&self, name: &LockName, version: i64) {
        let mut doubts = locked(&self.unacknowledged);
        if doubts.len() >= NAMES_MAX {
            doubts.clear();
        }
        let doubted = doubts.entry(name.clone()).or_insert(version);
        *doubted = (*doubted).max(version);
    }

    /// The lock was seen at this version: nothing can be written on top of an older one any more. True if something may still
    /// be written on top of this one.
    ///
    /// OK because in one history of the cell a version never comes back: it grows with every write, and a new cell begins at the
    /// store's time in µs. Should that be the smaller one, it stays in doubt, which costs a write. After a fail-over a version may come
    /// back, with another state, which every write compares as well.
    pub(crate) fn is_in_doubt(&self, name: &LockName, version: i64) -> bool {
        let mut doubts = locked(&self.unacknowledged);
        match doubts.get(name) {
            Some(doubted) if *doubted < version => {
                doubts.remove(name);
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

    fn seen(version: i64) -> Seen {
        Seen { version, state: String::new(), ledger: Ledger::new(0), is_long: false, at: at(0) }
    }

    /// H6.3: what we take the store's time for is never ahead of it.
    #[test]
    fn the_stores_time_is_taken_for_a_thousandth_less() {
        let memory = Memory::default();
        assert_eq!(memory.store_time(at(5)), None);
        memory.learn(Duration::from_secs(1000), at(5));
        assert_eq!(memory.store_time(at(5)), Some(Duration::from_secs(1000)));
        assert_eq!(memory.store_time(at(10_005)), Some(Duration::from_millis(1_009_990)));
    }

    /// L9: what may still be written is not overlooked, and is over as soon as the cell has moved on.
    #[test]
    fn a_write_without_an_answer_is_in_doubt_until_the_version_has_moved_on() {
        let memory = Memory::default();
        memory.remember(&name(), seen(7));
        memory.doubt(&name(), 7);
        assert!(memory.seen(&name()).is_none());
        assert!(memory.is_in_doubt(&name(), 7));
        assert!(!memory.is_in_doubt(&name(), 8));
        assert!(memory.seen(&name()).is_some());
    }

    #[test]
    fn an_older_sight_is_no_news() {
        let memory = Memory::default();
        for (version, expected) in [(5, 5), (4, 5), (6, 6)] {
            memory.remember(&name(), seen(version));
            assert_eq!(memory.seen(&name()).unwrap().version, expected);
        }
    }
}
