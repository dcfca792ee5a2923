//! A semaphore of k as k mutexes, its slots `name#1` … `name#k`.
//!
//! Why not counted: k permits on each of N nodes are up to N·k/q holders (safety.md H6.1: three for k = 2 on three nodes),
//! since two holders need not share a node. A slot is held by a quorum, so of each there is one holder, with a token
//! of its own.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
};

use tenure_core::{BackendError, ErrorKind, LockName, Outcome, OwnerId};

/// Owners of which it is remembered where they may be; more, and the ttl ends what they left.
const KNOWN_MAX: usize = 4096;

/// Where the owners of this process have asked for a slot. By the name of a semaphore and the owner alone nobody can
/// tell, and a release must reach them all.
#[derive(Default)]
pub(crate) struct Slots(Mutex<BTreeMap<(OwnerId, String), u32>>);

impl Slots {
    /// Before the first slot is asked for.
    pub(crate) fn remember(&self, name: &LockName, owner: OwnerId, slots: NonZeroU32) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.pop_first();
        }
        known.insert((owner, name.as_str().to_owned()), slots.get());
    }

    /// How many slots that owner may have asked for under that name.
    pub(crate) fn forget(&self, name: &LockName, owner: OwnerId) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(owner, name.as_str().to_owned()))
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
