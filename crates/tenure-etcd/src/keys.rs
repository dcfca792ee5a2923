//! Keys, values and lease ids: how an owner is written down.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{Claim, Label, LockName, Mode, OwnerId};

/// The two leases that an owner may have. Their ids follow from the owner, so that any process finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leases {
    /// That of its ttl. The name of its key is this id.
    pub(crate) own: i64,
    /// That of its place while it waits.
    pub(crate) place: i64,
}

impl Leases {
    /// 63 of the owner's 128 random bits, folded: positive and not zero, as etcd wants a lease id.
    pub(crate) fn of(owner: OwnerId) -> Self {
        let hex = owner.hex();
        let half = |range: std::ops::Range<usize>| {
            // OK because these are hex digits, 16 of them.
            hex[range].iter().fold(0_u64, |sum, digit| sum << 4 | u64::from(value_of(*digit)))
        };
        let folded = (half(16..32) ^ half(32..48)) & POSITIVE;
        // OK because the sign bit is cleared.
        let id = |bits: u64| i64::try_from(bits).unwrap_or(i64::MAX).max(1);
        Self { own: id(folded), place: id(folded ^ OTHER) }
    }
}

const POSITIVE: u64 = i64::MAX as u64;
/// Makes another id of one.
const OTHER: u64 = 0x5555_5555_5555_5555;

fn value_of(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// What all keys of one lock begin with.
pub(crate) fn folder(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{name}/")
}

/// The key of an owner, named as `etcdctl lock` names one.
pub(crate) fn key(folder: &str, owner: OwnerId) -> Vec<u8> {
    format!("{folder}{:x}", Leases::of(owner).own).into_bytes()
}

/// The lease that a key is named after, given what stands behind the folder; `None` if it is no place in a line: it belongs
/// to a lock whose name goes on, or to somebody else's data.
pub(crate) fn named_lease(rest: &[u8]) -> Option<i64> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if rest.is_empty() || rest.len() > 16 || !rest.iter().all(is_hex) {
        return None;
    }
    i64::from_str_radix(std::str::from_utf8(rest).ok()?, 16).ok()
}

/// What stands in a key of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) label: Label,
    /// By the clock of its owner's machine, for people.
    pub(crate) since_ms: u64,
    pub(crate) ttl_ms: u64,
    /// It waits on its place lease, and does not hold before it has written this anew.
    #[serde(default)]
    pub(crate) waits: bool,
}

impl Value {
    pub(crate) fn of(claim: &Claim, since: Duration, waits: bool) -> Self {
        Self {
            owner: claim.owner,
            mode: claim.mode,
            label: Label::clone(&claim.label),
            since_ms: millis(since),
            ttl_ms: millis(claim.ttl),
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
    fn both_leases_follow_from_the_owner_and_are_positive() {
        for bits in [[0; 16], [0xff; 16], [0x55; 16], [0x80; 16], std::array::from_fn(|n| n as u8)] {
            let leases = Leases::of(owner(bits));
            assert!(leases.own > 0 && leases.place > 0, "{leases:?}");
            assert_ne!(leases.own, leases.place);
            assert_eq!(leases, Leases::of(owner(bits)));
        }
        let mut bits = [0; 16];
        bits[15] = 0x2a;
        assert_eq!(Leases::of(owner(bits)).own, 0x2a);
        assert_eq!(key("a/", owner(bits)), b"a/2a");
    }

    #[test]
    fn only_a_lease_id_names_a_place() {
        assert_eq!(named_lease(b"694d7fa0c2b3f00d"), Some(0x694d_7fa0_c2b3_f00d));
        for other in [&b""[..], b"x", b"2A", b"a/b", b"+1", b"!", b"11111111111111111", b"ffffffffffffffff"] {
            assert_eq!(named_lease(other), None, "{other:?}");
        }
    }
}
