//! `OwnPlaces`: where beside the cells the places of this process's waiters may be. Only a memory: it says where to look, never who holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, OwnerId, locked};

use crate::cell::Until;

/// Who has not asked for so long has gone without a word.
const AWAY: Duration = Duration::from_secs(40);

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
}

/// Where to look for a place beside the cell of a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnPlace {
    /// Its key; empty if that is not known.
    pub(crate) key: String,
    /// It may be there under another key.
    pub(crate) is_doubted: bool,
}

impl OwnPlaces {
    /// The owner is about to ask.
    pub(crate) fn ask(&self, name: &LockName, owner: OwnerId, now: Moment) {
        let mut waiting = locked(&self.0);
        let waiters = waiting.entry(name.clone()).or_default();
        waiters.retain(|waiter| waiter.owner == owner || waiter.asked.elapsed(now) < AWAY);
        match waiters.iter_mut().find(|waiter| waiter.owner == owner) {
            Some(waiter) => waiter.asked = now,
            None => {
                let (was_told, key, is_doubted) = (false, None, false);
                waiters.push(Waiter { owner, asked: now, was_told, key, is_doubted });
            }
        }
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

    /// A place beside the cell is about to be made. True if there may be one.
    pub(crate) fn doubt(&self, name: &LockName, owner: OwnerId) -> bool {
        self.with(name, owner, |waiter| std::mem::replace(&mut waiter.is_doubted, true)).unwrap_or_default()
    }

    /// It has this key.
    pub(crate) fn stands(&self, name: &LockName, owner: OwnerId, key: String) {
        self.with(name, owner, |waiter| (waiter.key, waiter.is_doubted) = (Some(key), false));
    }

    /// Where a place of it may be left.
    pub(crate) fn find(&self, name: &LockName, owner: OwnerId) -> Option<OwnPlace> {
        let found = |waiter: &mut Waiter| {
            let (key, is_doubted) = (waiter.key.clone(), waiter.is_doubted);
            (key.is_some() || is_doubted).then(|| OwnPlace { key: key.unwrap_or_default(), is_doubted })
        };
        self.with(name, owner, found).flatten()
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
