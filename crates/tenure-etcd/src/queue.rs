//! The queue of a lock: its holders and waiters in the order in which they came, read from keys and values.

use std::time::Duration;

use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use tenure_core::{BackendError, Claim, FencingToken, Label, LockName, Mode, OwnerId};

use crate::error;

/// One lock as a linearizable read saw it.
#[derive(Clone, Debug)]
pub(crate) struct KeyQueue {
    /// By create revision.
    pub(crate) places: Vec<QueueKey>,
    /// The revision of the whole store when it was read; at least as large as every create revision before.
    pub(crate) revision: i64,
}

impl KeyQueue {
    /// Reads all keys that begin with `folder`.
    ///
    /// # Errors
    /// `Invalid` for a key that is named like a place, but is not one; `Unsupported` for one of a newer version.
    pub(crate) fn read(folder: &str, kvs: &[KeyValue], revision: i64) -> Result<Self, BackendError> {
        let mut places = Vec::with_capacity(kvs.len());
        for kv in kvs {
            match QueueKey::read(folder.as_bytes(), kv) {
                Some(place) => places.push(place),
                None if is_newer(kv) => return Err(error::newer(kv.key())),
                None if is_named_like_one(folder, kv) => return Err(error::no_lock(kv.key())),
                None => {}
            }
        }
        places.sort_by_key(|place| place.created);
        Ok(Self { places, revision })
    }

    /// How many hold it: from the front as many as fit together.
    pub(crate) fn leading(&self) -> usize {
        Mode::leading(self.places.iter().map(QueueKey::mode))
    }

    pub(crate) fn holders(&self) -> &[QueueKey] {
        &self.places[..self.leading()]
    }

    pub(crate) fn find(&self, owner: OwnerId) -> Option<usize> {
        self.places.iter().position(|place| place.is_of(owner))
    }

    /// Whether one more in this mode would hold immediately.
    pub(crate) fn has_room_for(&self, mode: Mode) -> bool {
        let queue = self.places.iter().map(QueueKey::mode).chain([mode]);
        Mode::leading(queue) > self.places.len()
    }
}

/// One key of a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueKey {
    pub(crate) key: Vec<u8>,
    /// The create revision: its place in the queue, and its token.
    pub(crate) created: i64,
    /// The modify revision, which a new write of the key must name.
    pub(crate) modified: i64,
    /// The lease that the key is on.
    pub(crate) lease: i64,
    /// The value that tenure wrote; `None` for another client, which takes the lock exclusively.
    pub(crate) ours: Option<Value>,
}

impl QueueKey {
    /// Reads a key; `None` if it is not a place in a queue.
    ///
    /// A place of Tenure is named after its owner and is on the lease that it was written with. Any other key counts
    /// if it is on the lease that it is named after, as the keys of etcd's own clients are.
    pub(crate) fn read(folder: &[u8], kv: &KeyValue) -> Option<Self> {
        let named = named(kv.key().strip_prefix(folder)?)?;
        let lease = kv.lease();
        // A value of Tenure on another key or lease is a copy, and counts as any other value.
        let ours = Value::read(kv.value())
            .filter(|value| number(value.owner) == named && value.lease == lease && lease != 0);
        let counts = ours.is_some() || u64::try_from(lease) == Ok(named);
        counts.then(|| Self {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease,
            ours,
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.ours.as_ref().map_or(Mode::Exclusive, |value| value.mode)
    }

    pub(crate) fn is_of(&self, owner: OwnerId) -> bool {
        self.ours.as_ref().is_some_and(|value| value.owner == owner)
    }
}

/// The token of a place made at this revision.
pub(crate) fn token(created: i64) -> FencingToken {
    // OK because revisions are positive.
    FencingToken::new(u64::try_from(created).unwrap_or_default())
}

/// The value of Tenure's keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    /// A version that writes something else sets this. It keeps the owner, and the name of the key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) format: u32,
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) label: Label,
    /// By the clock of the owner's machine, for display.
    pub(crate) since_ms: u64,
    pub(crate) ttl_ms: u64,
    /// The lease that it was written with.
    pub(crate) lease: i64,
    /// It waits on the lease of a place, and does not hold until it has written this anew.
    #[serde(default)]
    pub(crate) waits: bool,
}

impl Value {
    pub(crate) fn of(claim: &Claim, since: Duration, lease: i64, waits: bool) -> Self {
        Self {
            format: 0,
            owner: claim.owner,
            mode: claim.mode,
            label: Label::clone(&claim.label),
            since_ms: millis(since),
            ttl_ms: millis(claim.ttl),
            lease,
            waits,
        }
    }

    fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().filter(|value: &Self| value.format == 0)
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a value is always JSON")
    }
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// The common prefix of all keys of one lock.
pub(crate) fn folder(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{name}/")
}

/// The key of an owner, named as `etcdctl lock` names one.
pub(crate) fn key(folder: &str, owner: OwnerId) -> Vec<u8> {
    format!("{folder}{:x}", number(owner)).into_bytes()
}

/// The number that the key of an owner is named after: 63 of the owner's 128 random bits, folded. The keys of etcd's
/// own clients are named after a lease instead. Any process that knows the owner finds the key.
pub(crate) fn number(owner: OwnerId) -> u64 {
    let hex = owner.hex();
    let half = |range: std::ops::Range<usize>| {
        // OK because these are hex digits, 16 of them.
        hex[range].iter().fold(0_u64, |sum, digit| sum << 4 | u64::from(value_of(*digit)))
    };
    ((half(16..32) ^ half(32..48)) & POSITIVE).max(1)
}

fn value_of(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// The number that a key is named after, given the part of the key after the folder. `None` if it is not a place in a
/// queue: it belongs to a lock with a longer name, or to other data.
fn named(rest: &[u8]) -> Option<u64> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if rest.is_empty() || rest.len() > 16 || !rest.iter().all(is_hex) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(rest).ok()?, 16).ok().filter(|number| *number <= POSITIVE)
}

fn is_named_like_one(folder: &str, kv: &KeyValue) -> bool {
    kv.key().strip_prefix(folder.as_bytes()).is_some_and(|rest| named(rest).is_some())
}

/// True for a place that a newer version wrote.
pub(crate) fn is_newer(kv: &KeyValue) -> bool {
    #[derive(Deserialize)]
    struct Stored {
        format: u32,
        owner: OwnerId,
    }
    let last = kv.key().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    serde_json::from_slice(kv.value())
        .is_ok_and(|stored: Stored| stored.format > 0 && named(last) == Some(number(stored.owner)))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(format: &u32) -> bool {
    *format == 0
}

const POSITIVE: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    fn owner(bits: [u8; 16]) -> OwnerId {
        OwnerId::from_random(ProcessId::from_random([7; 8]), bits)
    }

    #[test]
    fn the_number_of_an_owner_could_be_a_lease() {
        for bits in [[0; 16], [0xff; 16], [0x55; 16], [0x80; 16], std::array::from_fn(|n| n as u8)] {
            let number = number(owner(bits));
            assert!(number > 0 && number <= POSITIVE, "{number:x}");
        }
        let mut bits = [0; 16];
        bits[15] = 0x2a;
        assert_eq!(number(owner(bits)), 0x2a);
        assert_eq!(key("a/", owner(bits)), b"a/2a");
    }

    #[test]
    fn only_a_lease_id_names_a_place() {
        assert_eq!(named(b"694d7fa0c2b3f00d"), Some(0x694d_7fa0_c2b3_f00d));
        for other in [&b""[..], b"x", b"2A", b"a/b", b"+1", b"!", b"11111111111111111", b"ffffffffffffffff"] {
            assert_eq!(named(other), None, "{other:?}");
        }
    }
}
