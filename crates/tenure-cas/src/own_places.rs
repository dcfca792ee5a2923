//! `Marks`: where the places of this process's waiters may be. Only a memory: it says where to look, never who holds.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{LockName, Moment, OwnerId};

use crate::memory::locked;

/// Who has not asked for so long has gone without a word.
const AWAY: Duration = Duration::from_secs(40);

/// The waiters of all locks.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<LockName, Vec<Waiter>>>);

struct Waiter {
    owner: OwnerId,
    asked: Moment,
    /// It was told where it stands.
    was_told: bool,
    /// The name of the row that its place behind the queue has.
    key: Option<String>,
    /// Such a place was to be made, and nobody knows whether it was.
    is_doubted: bool,
}

/// Where to look for a place behind the queue of a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    /// The name of its row; or one behind all others of the lock, where it may be the last; or none.
    pub(crate) key: String,
    /// It may be there under another name.
    pub(crate) is_doubted: bool,
}

impl Mark {
    /// True if this row stands before it.
    pub(crate) fn is_behind(&self, key: &str) -> bool {
        key < self.key.as_str()
    }
}

impl Marks {
    /// The owner is about to ask.
    pub(crate) fn ask(&self, name: &LockName, owner: OwnerId, now: Moment) {
        let mut marks = locked(&self.0);
        let waiters = marks.entry(name.clone()).or_default();
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
        let mut marks = locked(&self.0);
        let waiter = marks.get_mut(name)?.iter_mut().find(|waiter| waiter.owner == owner)?;
        Some(run(waiter))
    }

    /// The store told it where it stands.
    pub(crate) fn told(&self, name: &LockName, owner: OwnerId) {
        self.with(name, owner, |waiter| waiter.was_told = true);
    }

    /// Where a place behind the queue may be.
    pub(crate) fn mark(&self, name: &LockName, owner: OwnerId) -> Mark {
        let mark = |waiter: &mut Waiter| match &waiter.key {
            Some(key) => Mark { key: key.clone(), is_doubted: waiter.is_doubted },
            None if waiter.was_told => Mark { key: String::new(), is_doubted: waiter.is_doubted },
            None => Mark { key: format!("{name}\u{2}"), is_doubted: waiter.is_doubted },
        };
        self.with(name, owner, mark).unwrap_or_default()
    }

    /// A place behind the queue is about to be made. True if there may be one.
    pub(crate) fn doubt(&self, name: &LockName, owner: OwnerId) -> bool {
        self.with(name, owner, |waiter| std::mem::replace(&mut waiter.is_doubted, true)).unwrap_or_default()
    }

    /// It has this name.
    pub(crate) fn stands(&self, name: &LockName, owner: OwnerId, key: String) {
        self.with(name, owner, |waiter| (waiter.key, waiter.is_doubted) = (Some(key), false));
    }

    /// It waits no more; where a place of it behind the queue may be left.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId) -> Option<Mark> {
        let mut marks = locked(&self.0);
        let waiters = marks.get_mut(name)?;
        let at = waiters.iter().position(|waiter| waiter.owner == owner)?;
        let Waiter { key, is_doubted, .. } = waiters.remove(at);
        if waiters.is_empty() {
            marks.remove(name);
        }
        (key.is_some() || is_doubted).then(|| Mark { key: key.unwrap_or_default(), is_doubted })
    }
}
