//! A semaphore of k as k mutexes, its slots `name#1` … `name#k`.
//!
//! Why not counted: k permits on each of N nodes are up to N·k/q holders (H6.1: three for k = 2 on three nodes),
//! since two holders need not share a node. A slot is held by a quorum, so of each there is one holder, with a token
//! of its own.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroU32,
    sync::{Mutex, MutexGuard},
};

use tenure_core::{BackendError, ErrorKind, LockName, Outcome, OwnerId, locked};

/// How many owners are remembered; the oldest are forgotten, and the ttl ends their leases.
const KNOWN_MAX: usize = 4096;

/// A semaphore has no more slots: each is a lock of its own on every node.
pub(crate) const SLOTS_MAX: u32 = 1024;

/// Where the owners of this process have asked for a slot. By the name of a semaphore and the owner alone nobody can
/// tell, and a release must reach them all.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Known>);

#[derive(Default)]
struct Known {
    trails: BTreeMap<(OwnerId, LockName), Trail>,
    by_age: VecDeque<(OwnerId, LockName)>,
}

/// The memory of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trail {
    /// How many slots there are.
    pub(crate) slots: u32,
    /// From which one to go on.
    pub(crate) next: u32,
    /// How many have been asked for, up to and with `next`.
    pub(crate) tried: u32,
    /// At which one it has a place.
    pub(crate) place: Option<u32>,
}

impl Trail {
    /// The next slot, which counts as asked for from here on.
    pub(crate) fn step(&mut self) -> u32 {
        self.next = self.next % self.slots + 1;
        self.tried = (self.tried + 1).min(self.slots);
        self.next
    }

    /// The slots that were asked for, and no other: only there can anything be.
    pub(crate) fn asked(self) -> impl Iterator<Item = u32> {
        let Self { slots, next, .. } = self;
        // One that was only begun has been nowhere.
        (0..self.tried).map(move |back| (next + slots - 1 - back) % slots + 1)
    }
}

impl Slots {
    fn known(&self) -> MutexGuard<'_, Known> {
        // OK because no code that can panic runs while it is locked.
        locked(&self.0)
    }

    /// Before the first slot is asked for; what is known already of an owner that asks again.
    pub(crate) fn begin(&self, name: &LockName, owner: OwnerId, slots: NonZeroU32, from: u32) -> Trail {
        let mut known = self.known();
        let key = (owner, name.clone());
        if let Some(trail) = known.trails.get(&key) {
            return *trail;
        }
        let trail = Trail { slots: slots.get(), next: from, tried: 0, place: None };
        known.by_age.push_back(key.clone());
        known.trails.insert(key, trail);
        while known.trails.len() > KNOWN_MAX
            && let Some(oldest) = known.by_age.pop_front()
        {
            known.trails.remove(&oldest);
        }
        trail
    }

    /// It will ask again, from there.
    pub(crate) fn set(&self, name: &LockName, owner: OwnerId, trail: Trail) {
        if let Some(known) = self.known().trails.get_mut(&(owner, name.clone())) {
            *known = trail;
        }
    }

    pub(crate) fn get(&self, name: &LockName, owner: OwnerId) -> Option<Trail> {
        self.known().trails.get(&(owner, name.clone())).copied()
    }

    /// It is at no slot any more, or at one by whose name it is released.
    pub(crate) fn forget(&self, name: &LockName, owner: OwnerId) {
        let (key, mut known) = ((owner, name.clone()), self.known());
        if known.trails.remove(&key).is_some() {
            known.by_age.retain(|other| *other != key);
        }
    }
}

/// The name of a slot, counted from 1.
///
/// # Errors
/// `Invalid` if it would be too long.
pub(crate) fn slot(name: &LockName, number: u32) -> Result<LockName, BackendError> {
    LockName::new(format!("{name}#{number}")).map_err(|error| {
        BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, error.to_string()).with("slot of", name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release went to every slot there might be, asked for or not: with 400 million of them it took 5 GB and
    /// aborted.
    #[test]
    fn only_the_slots_that_were_asked_for_are_released() {
        let mut trail = Trail { slots: 5, next: 3, tried: 0, place: None };
        assert_eq!(trail.asked().count(), 0);
        let stepped = [trail.step(), trail.step(), trail.step()];
        assert_eq!((stepped, trail.asked().collect::<Vec<_>>()), ([4, 5, 1], vec![1, 5, 4]));
        for _ in 0..7 {
            trail.step();
        }
        let mut all: Vec<_> = trail.asked().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        let huge = Trail { slots: u32::MAX / 2, next: 7, tried: 2, place: None };
        assert_eq!(huge.asked().collect::<Vec<_>>(), [7, 6]);
    }
}
