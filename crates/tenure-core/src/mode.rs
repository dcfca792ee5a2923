//! `Mode`: exclusive, or shared with a limit.

use std::{fmt, num::NonZeroU32};

/// How a claim holds the lock: exclusive or shared.
///
/// One rule serves mutex, read-write lock and semaphore. A claim fits with the holders if their number plus one is
/// no larger than the smallest limit among them and the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Mode {
    /// Alone: a mutex, or the writer of a read-write lock.
    Exclusive,
    /// Together with others: a reader (`limit: None`), or a permit of a semaphore.
    Shared {
        /// How many may hold at the same time; `None` is no limit.
        limit: Option<NonZeroU32>,
    },
}

impl Mode {
    /// A reader's mode.
    pub const READ: Self = Self::Shared { limit: None };

    /// The largest number of holders that this mode allows, itself included.
    pub fn limit(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Shared { limit } => limit.map_or(u32::MAX, NonZeroU32::get),
        }
    }

    /// True if a claim in this mode may hold together with holders in the `others`' modes.
    pub fn fits_beside(self, others: impl Iterator<Item = Self>) -> bool {
        let (count, smallest) =
            others.fold((0u32, self.limit()), |(n, least), m| (n.saturating_add(1), least.min(m.limit())));
        count < smallest
    }

    /// How many claims at the front of a queue, in the order of arrival, can hold together. It is the longest run
    /// from the front in which all fit together. A claim that leaves does not shorten the run for the claims behind
    /// it. So a holder stays a holder, and no claim overtakes a waiting one.
    // L1, L7.
    pub fn leading(line: impl IntoIterator<Item = Self>) -> usize {
        let (mut count, mut smallest) = (0_usize, u32::MAX);
        for mode in line {
            smallest = smallest.min(mode.limit());
            if count >= usize::try_from(smallest).unwrap_or(usize::MAX) {
                break;
            }
            count += 1;
        }
        count
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

    /// L1, L7: a queue grants together exactly the claims that it would grant one by one, and stops at the first
    /// that does not fit.
    #[test]
    fn those_in_front_of_a_line_hold_as_far_as_they_fit_together() {
        let (read, alone) = (Mode::READ, Mode::Exclusive);
        for (line, expected) in [
            (vec![], 0),
            (vec![alone, alone], 1),
            (vec![alone, read, read], 1),
            (vec![read, read, alone, read], 2),
            (vec![slots(2), slots(9), slots(9)], 2),
            (vec![slots(9), slots(9), slots(2)], 2),
            (vec![slots(9), slots(2), slots(9), read], 2),
        ] {
            assert_eq!(Mode::leading(line.iter().copied()), expected, "{line:?}");
            let one_by_one = (0..line.len()).take_while(|&n| line[n].fits_beside(line[..n].iter().copied()));
            assert_eq!(one_by_one.count(), expected, "{line:?}");
        }
    }

    /// L1: a holder stays a holder when a place in front of it leaves.
    #[test]
    fn nobody_in_a_line_is_put_out_by_one_that_leaves() {
        let modes = [Mode::Exclusive, Mode::READ, slots(2), slots(3)];
        for n in 0..4_usize.pow(6) {
            let line: Vec<Mode> = (0..6).map(|at| modes[n / 4_usize.pow(at) % 4]).collect();
            let leading = Mode::leading(line.iter().copied());
            for gone in 0..6 {
                let rest = line.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, mode)| *mode);
                assert!(
                    Mode::leading(rest) >= leading - usize::from(gone < leading),
                    "{line:?} without {gone}"
                );
            }
        }
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
