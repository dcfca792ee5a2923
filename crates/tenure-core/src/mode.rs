//! `Mode`: alone, or together with how many.

use std::{fmt, num::NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::variant::Variant;

/// How a claim wants to hold the lock.
///
/// One rule serves mutex, read-write lock and semaphore: a claim is compatible with the holders if their
/// number and one more is no larger than the smallest limit among them and the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone: a mutex, or the writer of a read-write lock.
    Exclusive,
    /// Together with others: a reader (`limit: None`), or a permit of a semaphore.
    Shared {
        /// How many may hold at once; `None` is any number.
        limit: Option<NonZeroU32>,
    },
}

impl Mode {
    /// A reader's mode.
    pub const READ: Self = Self::Shared { limit: None };

    /// How many holders this mode tolerates, itself included.
    pub fn limit(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Shared { limit } => limit.map_or(u32::MAX, NonZeroU32::get),
        }
    }

    /// True if a claim in this mode may hold beside holders in the `others`' modes.
    pub fn fits_beside(self, others: impl Iterator<Item = Self>) -> bool {
        let limit = |mode: Self| if Variant::LimitOfClaimOnly.is_on() { u32::MAX } else { mode.limit() };
        let (count, smallest) =
            others.fold((0u32, self.limit()), |(n, least), m| (n.saturating_add(1), least.min(limit(m))));
        count < smallest
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared { limit: None } => f.write_str("shared"),
            Self::Shared { limit: Some(limit) } => write!(f, "shared:{limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(limit: u32) -> Mode {
        Mode::Shared { limit: NonZeroU32::new(limit) }
    }

    #[test]
    fn the_smallest_limit_among_holders_and_claim_decides() {
        assert!(Mode::Exclusive.fits_beside([].into_iter()));
        assert!(!Mode::Exclusive.fits_beside([Mode::READ].into_iter()));
        assert!(!Mode::READ.fits_beside([Mode::Exclusive].into_iter()));
        assert!(Mode::READ.fits_beside([Mode::READ; 9].into_iter()));
        assert!(slots(3).fits_beside([slots(3); 2].into_iter()));
        assert!(!slots(3).fits_beside([slots(3); 3].into_iter()));
        // Model `shared.limit of the claim only`: the limit of a holder counts as well.
        assert!(!slots(9).fits_beside([slots(2), slots(9)].into_iter()));
        assert!(!slots(2).fits_beside([slots(9), slots(9)].into_iter()));
    }
}
