//! `Seats`: what this process remembers of its owners. It saves requests; who is not remembered is looked up.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use tenure_core::{LockName, OwnerId};

use crate::members::locked;

/// Owners and names that are remembered; more, and all are forgotten.
const KEPT: usize = 1 << 16;

/// Where an owner of this process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// It waits: the create revision of its key, and whether that hangs on the place lease.
    Waiting { created: i64, on_place: bool },
    /// It was let in; whether it had a place lease before.
    Inside { had_place: bool },
}

/// Shared by the handles of one process: who claims through one may be released through another.
#[derive(Default)]
pub(crate) struct Seats {
    owners: Mutex<HashMap<OwnerId, Seat>>,
    /// Locks at which somebody had to wait a moment ago.
    contended: Mutex<HashSet<LockName>>,
}

impl Seats {
    pub(crate) fn get(&self, owner: OwnerId) -> Option<Seat> {
        locked(&self.owners).get(&owner).copied()
    }

    pub(crate) fn set(&self, owner: OwnerId, seat: Seat) {
        let mut owners = locked(&self.owners);
        if owners.len() >= KEPT {
            owners.clear();
        }
        owners.insert(owner, seat);
    }

    pub(crate) fn take(&self, owner: OwnerId) -> Option<Seat> {
        locked(&self.owners).remove(&owner)
    }

    pub(crate) fn is_contended(&self, name: &LockName) -> bool {
        let contended = locked(&self.contended);
        !contended.is_empty() && contended.contains(name)
    }

    pub(crate) fn set_contended(&self, name: &LockName, is_contended: bool) {
        let mut contended = locked(&self.contended);
        if !is_contended {
            contended.remove(name);
        } else if !contended.contains(name) {
            if contended.len() >= KEPT {
                contended.clear();
            }
            contended.insert(name.clone());
        }
    }
}
