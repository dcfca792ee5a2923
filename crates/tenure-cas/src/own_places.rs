//! `OwnPlaces`: where beside the cells the places of this process's waiters may be. Only a memory: it says where to look, never who holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, OwnerId, locked};

use crate::cell::Until;

/// Who has not asked for so long has gone without a word.
const AWAY: Duration = Duration::from_secs(40);

/// Names of which all waiters that have gone are forgotten only when their name is asked for; of more they are immediately.
const NAMES_MAX: usize = 4096;

/// The waiters of all locks.
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
        if waiting.len() >= NAMES_MAX {
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

#[cfg(test)]
mod tests {
    use super::*;

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
