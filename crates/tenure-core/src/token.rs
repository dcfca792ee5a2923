//! `FencingToken`: a number that grows with every grant.

use std::fmt;

/// A number that grows with every grant of one lock, on every backend.
///
/// Send it to the resource with each write. A resource that stores the largest token it has seen, and refuses
/// smaller ones, is protected from a former holder. Gaps are normal. Tokens of different locks or of different
/// backends cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct FencingToken(u64);

impl FencingToken {
    /// 2^53 − 1, the largest token of a store that counts tokens: JSON and Lua cannot represent larger integers
    /// exactly. At that token, such a store refuses to grant, and never repeats a token.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A token that was stored earlier.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number: at most [`MAX`](Self::MAX), which is a time in the year 2255 in µs, so that JSON and Lua keep it
    /// exactly. On ZooKeeper and etcd it is a number from the server, up to 2^63 − 1.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
