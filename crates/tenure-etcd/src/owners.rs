//! `Owners`: the leases and keys of this process's owners. It saves requests; an owner that is not in it is
//! looked up.

use std::{collections::HashMap, sync::Mutex};

use tenure_client::Contended;
use tenure_core::{OwnerId, locked};

/// How many owners and names are remembered; with more, all are forgotten.
const KEPT: usize = 1 << 16;

/// How many leases of one owner are remembered; older ones have ended by themselves, or soon will.
const LEASES: usize = 8;

/// The leases and the key of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnLeases {
    /// Every lease that was requested and may exist, with a key or without.
    pub(crate) leases: Vec<i64>,
    /// The key; `None` while it may be moving to another lease.
    pub(crate) key_at: Option<KeyAt>,
}

/// A key in a queue, and the lease on which it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyAt {
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

/// Shared by the handles of one process: a claim through one handle may be released through another.
pub(crate) struct Owners {
    owners: Mutex<HashMap<OwnerId, OwnLeases>>,
    /// Locks that had a waiter a moment ago.
    pub(crate) contended: Contended,
}

impl Default for Owners {
    fn default() -> Self {
        Self { owners: Mutex::default(), contended: Contended::new(KEPT) }
    }
}

impl Owners {
    pub(crate) fn get(&self, owner: OwnerId) -> Option<OwnLeases> {
        locked(&self.owners).get(&owner).cloned()
    }

    pub(crate) fn key_at(&self, owner: OwnerId) -> Option<KeyAt> {
        locked(&self.owners).get(&owner).and_then(|known| known.key_at)
    }

    /// This lease is about to be requested, and the key to be put on it. In any case, the release ends the
    /// lease.
    pub(crate) fn will_use(&self, owner: OwnerId, lease: i64) {
        self.change(owner, |known| {
            known.key_at = None;
            if known.leases.len() >= LEASES {
                known.leases.remove(0);
            }
            known.leases.push(lease);
        });
    }

    /// The key was seen on this lease.
    pub(crate) fn saw_key(&self, owner: OwnerId, key_at: KeyAt) {
        self.change(owner, |known| {
            known.key_at = Some(key_at);
            if !known.leases.contains(&key_at.lease) {
                known.leases.push(key_at.lease);
            }
        });
    }

    /// This lease does not exist any more, and will not again.
    pub(crate) fn forget_lease(&self, owner: OwnerId, lease: i64) {
        let mut owners = locked(&self.owners);
        let Some(known) = owners.get_mut(&owner) else { return };
        known.leases.retain(|other| *other != lease);
        if known.leases.is_empty() {
            owners.remove(&owner);
        }
    }

    pub(crate) fn forget(&self, owner: OwnerId) {
        locked(&self.owners).remove(&owner);
    }

    fn change(&self, owner: OwnerId, change: impl FnOnce(&mut OwnLeases)) {
        let mut owners = locked(&self.owners);
        if owners.len() >= KEPT && !owners.contains_key(&owner) {
            owners.clear();
        }
        change(owners.entry(owner).or_default());
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    #[test]
    fn an_owner_is_uncertain_while_its_key_may_move_and_remembers_so_many_leases() {
        let owners = Owners::default();
        let owner = OwnerId::from_random(ProcessId::from_random([7; 8]), [1; 16]);
        owners.will_use(owner, 1);
        assert_eq!(owners.get(owner), Some(OwnLeases { leases: vec![1], key_at: None }));
        let key_at = KeyAt { created: 5, lease: 1 };
        owners.saw_key(owner, key_at);
        assert_eq!(owners.key_at(owner), Some(key_at));
        for lease in 2..=20 {
            owners.will_use(owner, lease);
        }
        assert_eq!(owners.get(owner), Some(OwnLeases { leases: (13..=20).collect(), key_at: None }));
        (13..=20).for_each(|lease| owners.forget_lease(owner, lease));
        assert_eq!(owners.get(owner), None, "nothing is kept for nothing");
    }
}
