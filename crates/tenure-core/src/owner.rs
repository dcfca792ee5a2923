//! `OwnerId`: the identity of one attempt. `ProcessId`: its first part, to which hints are sent.

use std::{fmt, str::FromStr};

use crate::name::LockName;

/// 64 random bits for one connected process: the address of its hints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct ProcessId(u64);

impl ProcessId {
    /// From random bits; the caller draws them from its [`Host`](crate::Host).
    pub fn from_random(bits: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bits))
    }
}

/// The identity of one claim: the process part and 128 random bits, **new for every attempt**.
///
/// Never reused, so that a late release or renewal cannot change a later claim of the same program. Printed as 48
/// hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct OwnerId {
    process: ProcessId,
    claim: u128,
}

impl OwnerId {
    /// A claim of this process, from random bits.
    pub fn from_random(process: ProcessId, bits: [u8; 16]) -> Self {
        Self { process, claim: u128::from_be_bytes(bits) }
    }

    /// The address to which hints for observers of a lock are sent: the same for all of them, and never the owner
    /// of a claim.
    ///
    /// Derived from the name alone (FNV-1a), so that programs of different builds agree. Two names may have the
    /// same address: an extra hint is harmless.
    pub fn of_observers(name: &LockName) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Self { process: ProcessId(hash), claim: 0 }
    }

    /// Its 48 hex digits, without the cost of formatting: stores write them in every request.
    pub fn hex(self) -> [u8; 48] {
        // No table: all digits are computed in parallel.
        let digit = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
        let (mut bytes, mut hex) = ([0; 24], [0; 48]);
        bytes[..8].copy_from_slice(&self.process.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.claim.to_be_bytes());
        for (place, byte) in bytes.into_iter().enumerate() {
            hex[2 * place] = digit(byte >> 4);
            hex[2 * place + 1] = digit(byte & 15);
        }
        hex
    }

    /// The process to which its hints are sent.
    pub fn process(self) -> ProcessId {
        self.process
    }
}

/// A text that is not an [`OwnerId`] or [`ProcessId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an owner is {digits} hex digits, as printed by `tenure lock`")]
pub struct OwnerError {
    digits: usize,
}

/// Reads exactly this many hex digits of either case. Stores read an owner in every answer.
fn bits(text: &str, digits: usize) -> Result<u128, OwnerError> {
    let wrong = OwnerError { digits };
    if text.len() != digits {
        return Err(wrong);
    }
    text.chars().try_fold(0, |bits, digit| {
        let digit = digit.to_digit(16).ok_or(wrong)?;
        Ok(bits << 4 | u128::from(digit))
    })
}

impl FromStr for OwnerId {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let whole = OwnerError { digits: 48 };
        let (process, claim) = text.split_at_checked(16).ok_or(whole)?;
        Ok(Self { process: process.parse().map_err(|_| whole)?, claim: bits(claim, 32).map_err(|_| whole)? })
    }
}

impl FromStr for ProcessId {
    type Err = OwnerError;

    fn from_str(text: &str) -> Result<Self, OwnerError> {
        let wrong = OwnerError { digits: 16 };
        u64::try_from(bits(text, 16)?).map(Self).map_err(|_| wrong)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.hex()).expect("BUG: hex digits are text"))
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ProcessId> for String {
    fn from(id: ProcessId) -> Self {
        id.to_string()
    }
}

impl From<OwnerId> for String {
    fn from(id: OwnerId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ProcessId {
    type Error = OwnerError;

    fn try_from(text: String) -> Result<Self, OwnerError> {
        text.parse()
    }
}

impl TryFrom<String> for OwnerId {
    type Error = OwnerError;

    fn try_from(text: String) -> Result<Self, OwnerError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_prints_as_48_hex_digits_and_reads_back() {
        let owner = OwnerId::from_random(ProcessId::from_random([1; 8]), [0xab; 16]);
        let text = owner.to_string();
        assert_eq!(text.len(), 48);
        assert!(text.starts_with("0101010101010101"));
        assert_eq!(text.as_bytes(), owner.hex());
        assert_eq!(text.parse::<OwnerId>().unwrap(), owner);
    }

    #[test]
    fn what_is_no_owner_is_refused() {
        let sign = format!("{:016x}+{:031x}", 1, 2);
        for bad in ["", "abc", "ü", &"g".repeat(48), &"a".repeat(49), &sign] {
            assert!(bad.parse::<OwnerId>().is_err(), "{bad:?}");
        }
    }
}
