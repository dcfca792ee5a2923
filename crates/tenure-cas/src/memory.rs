//! What one process remembers: what it saw last of the locks and of the store's clock, and which of its own writes are unacknowledged
//! ([`Memory`]); and where beside the cells the places of its waiters may be ([`OwnPlaces`]). None of it says who holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, OwnerId, locked};
use tenure_ledger::Ledger;

use crate::cell::Until;

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

/// The waiters of all locks. Only a memory: it says where to look, never who holds.
#[derive(Default)]
pub(crate) struct OwnPlaces(Mutex<HashMap<LockName, Vec<Waiter>>>);

struct Waiter {
    owner: OwnerId,
    asked: Moment,
    /// It was told where it stands.
    was_told: bool,
    /// The key of its place beside the cell.
    key: Option<String>,
    /// Such a place was to be made, and nobody knows whether it was.
    is_doubted: bool,
    /// Such a place was taken away.
    had_one: bool,
}

/// Where to look for a place beside the cell of a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnPlace {
    /// Its key; empty if that is not known.
    pub(crate) key: String,
    /// It may be there under another key.
    pub(crate) is_doubted: bool,
    /// It was taken away, by an earlier release.
    pub(crate) had_one: bool,
}

impl OwnPlaces {
    /// The owner is about to ask.
    pub(crate) fn ask(&self, name: &LockName, owner: OwnerId, now: Moment) {
        self.entry(name, owner, now, |waiter| waiter.asked = now);
    }

    fn entry<A>(
        &self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
        run: impl FnOnce(&mut Waiter) -> A,
    ) -> A {
        let mut waiting = locked(&self.0);
        let is_here = |waiter: &Waiter| waiter.owner == owner || waiter.asked.elapsed(now) < AWAY;
        if waiting.len() >= AWAY_NAMES_MAX {
            waiting.retain(|_, waiters| waiters.iter().any(is_here));
        }
        let waiters = waiting.entry(name.clone()).or_default();
        waiters.retain(is_here);
        let at = waiters.iter().position(|waiter| waiter.owner == owner).unwrap_or_else(|| {
            let (was_told, key, is_doubted, had_one) = (false, None, false, false);
            waiters.push(Waiter { owner, asked: now, was_told, key, is_doubted, had_one });
            waiters.len() - 1
        });
        run(&mut waiters[at])
    }

    fn with<A>(&self, name: &LockName, owner: OwnerId, run: impl FnOnce(&mut Waiter) -> A) -> Option<A> {
        let mut waiting = locked(&self.0);
        let waiter = waiting.get_mut(name)?.iter_mut().find(|waiter| waiter.owner == owner)?;
        Some(run(waiter))
    }

    /// The store told it where it stands.
    pub(crate) fn told(&self, name: &LockName, owner: OwnerId) {
        self.with(name, owner, |waiter| waiter.was_told = true);
    }

    /// How far places are counted for this owner: to its own, or to the end where it was never told where it stands.
    pub(crate) fn until(&self, name: &LockName, owner: OwnerId) -> Until {
        let until = |waiter: &mut Waiter| match &waiter.key {
            Some(key) => Until::Key(key.clone()),
            None if waiter.was_told => Until::Nothing,
            None => Until::End,
        };
        self.with(name, owner, until).unwrap_or_default()
    }

    /// The key of its place beside the cell, as far as that is known.
    pub(crate) fn key(&self, name: &LockName, owner: OwnerId) -> String {
        self.with(name, owner, |waiter| waiter.key.clone()).flatten().unwrap_or_default()
    }

    /// A place beside the cell is about to be made, even if its owner has been released since it asked: the next release finds it. True
    /// if there may be one.
    pub(crate) fn doubt(&self, name: &LockName, owner: OwnerId, now: Moment) -> bool {
        self.entry(name, owner, now, |waiter| std::mem::replace(&mut waiter.is_doubted, true))
    }

    /// It has this key.
    pub(crate) fn stands(&self, name: &LockName, owner: OwnerId, key: String, now: Moment) {
        self.entry(name, owner, now, |waiter| (waiter.key, waiter.is_doubted) = (Some(key), false));
    }

    /// Where a place of it may be left.
    pub(crate) fn find(&self, name: &LockName, owner: OwnerId) -> Option<OwnPlace> {
        let found = |waiter: &mut Waiter| {
            let (key, is_doubted, had_one) = (waiter.key.clone(), waiter.is_doubted, waiter.had_one);
            (key.is_some() || is_doubted).then(|| OwnPlace {
                key: key.unwrap_or_default(),
                is_doubted,
                had_one,
            })
        };
        self.with(name, owner, found).flatten()
    }

    /// Its place was taken away.
    pub(crate) fn taken(&self, name: &LockName, owner: OwnerId) {
        self.with(name, owner, |waiter| waiter.had_one = true);
    }

    /// It waits no more.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId) {
        let mut waiting = locked(&self.0);
        let Some(waiters) = waiting.get_mut(name) else { return };
        waiters.retain(|waiter| waiter.owner != owner);
        if waiters.is_empty() {
            waiting.remove(name);
        }
    }
}

/// Who has not asked for so long has gone without a word.
const AWAY: Duration = Duration::from_secs(40);

/// Names of which all waiters that have gone are forgotten only when their name is asked for; of more they are immediately.
const AWAY_NAMES_MAX: usize = 4096;

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
    /// L8: a release came while the claim was on its way, and forgot where its place would be. The one behind the claim left it there.
    #[test]
    fn a_place_that_is_made_after_a_release_is_found_by_the_next_one() {
        let places = OwnPlaces::default();
        let (name, now) = (LockName::new("one").unwrap(), Moment { boot: AWAY, wall: AWAY });
        let owner: OwnerId = "0000000000000009000000000000000000000000000000aa".parse().unwrap();
        places.ask(&name, owner, now);
        places.leave(&name, owner);
        places.doubt(&name, owner, now);
        assert!(places.find(&name, owner).is_some_and(|own| own.is_doubted));
        places.leave(&name, owner);
        places.stands(&name, owner, "key".to_owned(), now);
        assert_eq!(places.find(&name, owner).map(|own| own.key).as_deref(), Some("key"));
        places.leave(&name, owner);
        assert!(places.find(&name, owner).is_none());
    }
}
