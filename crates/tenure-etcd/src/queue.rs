//! `Queue`: the holders and the waiters of a lock, in the order in which they came.

use etcd_client::KeyValue;
use tenure_core::{BackendError, FencingToken, Mode, OwnerId};

use crate::{
    error,
    keys::{Value, named, number},
};

/// One lock as a linearizable read saw it.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// By create revision.
    pub(crate) places: Vec<Place>,
    /// The revision of the whole store when it was read; at least as large as every create revision before.
    pub(crate) revision: i64,
}

/// One key of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    /// The create revision: its place in the queue, and its token.
    pub(crate) created: i64,
    /// The modify revision, which a new write of the key must name.
    pub(crate) modified: i64,
    /// The lease that the key hangs on.
    pub(crate) lease: i64,
    /// The value that tenure wrote; `None` for another client, which takes the lock exclusively.
    pub(crate) ours: Option<Value>,
}

impl Place {
    /// Reads a key; `None` if it is no place in a queue.
    ///
    /// A place of ours is named after its owner and hangs on the lease that it was written with. Any other key counts
    /// if it
    /// hangs on the lease that it is named after, as the keys of etcd's own clients do.
    pub(crate) fn read(folder: &[u8], kv: &KeyValue) -> Option<Self> {
        let named = named(kv.key().strip_prefix(folder)?)?;
        let lease = kv.lease();
        // A value of ours on another key or lease is a copy, and no more than any value.
        let ours = Value::read(kv.value())
            .filter(|value| number(value.owner) == named && value.lease == lease && lease != 0);
        let counts = ours.is_some() || u64::try_from(lease) == Ok(named);
        let (created, modified) = (kv.create_revision(), kv.mod_revision());
        counts.then(|| Self { key: kv.key().to_vec(), created, modified, lease, ours })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.ours.as_ref().map_or(Mode::Exclusive, |value| value.mode)
    }

    pub(crate) fn is_of(&self, owner: OwnerId) -> bool {
        self.ours.as_ref().is_some_and(|value| value.owner == owner)
    }
}

impl Queue {
    /// Reads all keys that begin with `folder`.
    ///
    /// # Errors
    /// `Invalid` for a key that is named like a place, but is not one.
    pub(crate) fn read(folder: &str, kvs: &[KeyValue], revision: i64) -> Result<Self, BackendError> {
        let mut places = Vec::with_capacity(kvs.len());
        for kv in kvs {
            match Place::read(folder.as_bytes(), kv) {
                Some(place) => places.push(place),
                None if is_named_like_one(folder, kv) => return Err(error::no_lock(kv.key())),
                None => {}
            }
        }
        places.sort_by_key(|place| place.created);
        Ok(Self { places, revision })
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
        let queue = self.places.iter().map(Place::mode).chain([mode]);
        Mode::leading(queue) > self.places.len()
    }
}

fn is_named_like_one(folder: &str, kv: &KeyValue) -> bool {
    kv.key().strip_prefix(folder.as_bytes()).is_some_and(|rest| named(rest).is_some())
}

/// The token of a place made at this revision.
pub(crate) fn token(created: i64) -> FencingToken {
    // OK because revisions are positive.
    FencingToken::new(u64::try_from(created).unwrap_or_default())
}
