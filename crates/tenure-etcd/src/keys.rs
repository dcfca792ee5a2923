//! Keys and values: how an owner is written down.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{Claim, Label, LockName, Mode, OwnerId};

/// The number that the key of an owner is named after, as etcd's own clients name theirs after a lease: 63 of the
/// owner's 128
/// random bits, folded. Any process that knows the owner finds the key.
pub(crate) fn number(owner: OwnerId) -> u64 {
    let hex = owner.hex();
    let half = |range: std::ops::Range<usize>| {
        // OK because these are hex digits, 16 of them.
        hex[range].iter().fold(0_u64, |sum, digit| sum << 4 | u64::from(value_of(*digit)))
    };
    ((half(16..32) ^ half(32..48)) & POSITIVE).max(1)
}

const POSITIVE: u64 = i64::MAX as u64;

fn value_of(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// The common prefix of all keys of one lock.
pub(crate) fn folder(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{name}/")
}

/// The key of an owner, named as `etcdctl lock` names one.
pub(crate) fn key(folder: &str, owner: OwnerId) -> Vec<u8> {
    format!("{folder}{:x}", number(owner)).into_bytes()
}

/// The number that a key is named after, given what stands behind the folder; `None` if it is no place in a queue: it
/// belongs
/// to a lock whose name goes on, or to somebody else's data.
pub(crate) fn named(rest: &[u8]) -> Option<u64> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if rest.is_empty() || rest.len() > 16 || !rest.iter().all(is_hex) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(rest).ok()?, 16).ok().filter(|number| *number <= POSITIVE)
}

/// The value of our keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) label: Label,
    /// By the clock of its owner's machine, for people.
    pub(crate) since_ms: u64,
    pub(crate) ttl_ms: u64,
    /// The lease that it was written with.
    pub(crate) lease: i64,
    /// It waits on the lease of a place, and does not hold before it has written this anew.
    #[serde(default)]
    pub(crate) waits: bool,
}

impl Value {
    pub(crate) fn of(claim: &Claim, since: Duration, lease: i64, waits: bool) -> Self {
        Self {
            owner: claim.owner,
            mode: claim.mode,
            label: Label::clone(&claim.label),
            since_ms: millis(since),
            ttl_ms: millis(claim.ttl),
            lease,
            waits,
        }
    }

    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a value is always JSON")
    }
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

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
