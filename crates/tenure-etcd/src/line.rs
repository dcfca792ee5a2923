//! `Line`: those who hold a lock and those who wait for it, in the order in which they came.

use etcd_client::KeyValue;
use tenure_core::{BackendError, Mode, OwnerId};

use crate::{
    error,
    keys::{Leases, Value, named_lease},
};

/// One lock as a linearizable read saw it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// By create revision.
    pub(crate) places: Vec<Place>,
    /// Of the whole store when it was read; no smaller than any create revision before.
    pub(crate) revision: i64,
    /// The term of the leader that answered for the quorum.
    pub(crate) term: u64,
}

/// One key of a line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    /// The create revision: its place in the line, and its token.
    pub(crate) created: i64,
    /// The lease that the key hangs on.
    pub(crate) lease: i64,
    /// What one of ours wrote; `None` is a foreign client, which takes the lock alone.
    pub(crate) ours: Option<Value>,
}

impl Place {
    /// Reads a key; `None` if it is no place in a line.
    ///
    /// A place of ours hangs on a lease of its owner. Any other key counts if it hangs on the lease that it is named after,
    /// as the keys of etcd's own clients do.
    pub(crate) fn read(folder: &[u8], kv: &KeyValue) -> Option<Self> {
        let named = named_lease(kv.key().strip_prefix(folder)?)?;
        let lease = kv.lease();
        let ours = Value::read(kv.value()).filter(|value| {
            let leases = Leases::of(value.owner);
            leases.own == named && (leases.own == lease || leases.place == lease)
        });
        // A value of ours on somebody else's key is a copy, and no more than any value.
        let counts = ours.is_some() || lease == named;
        counts.then(|| Self { key: kv.key().to_vec(), created: kv.create_revision(), lease, ours })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.ours.as_ref().map_or(Mode::Exclusive, |value| value.mode)
    }

    fn is_of(&self, owner: OwnerId) -> bool {
        self.ours.as_ref().is_some_and(|value| value.owner == owner)
    }
}

impl Line {
    /// Reads all keys that begin with `folder`.
    ///
    /// # Errors
    /// `Invalid` for a key that is named like a place and is none: who made it, and when it goes, nobody knows.
    pub(crate) fn read(
        folder: &str,
        kvs: &[KeyValue],
        revision: i64,
        term: u64,
    ) -> Result<Self, BackendError> {
        let mut places = Vec::with_capacity(kvs.len());
        for kv in kvs {
            match Place::read(folder.as_bytes(), kv) {
                Some(place) => places.push(place),
                None if is_named_like_one(folder, kv) => return Err(error::no_lock(kv.key())),
                None => {}
            }
        }
        places.sort_by_key(|place| place.created);
        Ok(Self { places, revision, term })
    }

    /// How many hold it: from the front as many as fit together.
    pub(crate) fn leading(&self) -> usize {
        Mode::leading(self.places.iter().map(Place::mode))
    }

    pub(crate) fn holders(&self) -> &[Place] {
        &self.places[..self.leading()]
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<usize> {
        self.places.iter().position(|place| place.is_of(owner))
    }

    /// Whether one more in this mode would hold at once.
    pub(crate) fn has_room_for(&self, mode: Mode) -> bool {
        let line = self.places.iter().map(Place::mode).chain([mode]);
        Mode::leading(line) > self.places.len()
    }
}

fn is_named_like_one(folder: &str, kv: &KeyValue) -> bool {
    kv.key().strip_prefix(folder.as_bytes()).is_some_and(|rest| named_lease(rest).is_some())
}
