//! `Mode`: exclusive, or shared with a limit, of which it takes one permit or several.

use std::{error::Error, fmt, num::NonZeroU32};

use crate::error::{BackendError, ErrorKind, Outcome};

/// How a claim holds the lock: exclusive or shared.
///
/// One rule serves mutex, read-write lock and semaphore. A claim fits with the holders if their permits and its own are
/// together no more than the smallest limit among them and the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "Stored", from = "Stored")
)]
pub enum Mode {
    /// Alone: a mutex, or the writer of a read-write lock.
    Exclusive,
    /// Together with others: a reader (`limit: None`), or permits of a semaphore.
    Shared {
        /// How many permits there are; `None` is no limit.
        limit: Option<NonZeroU32>,
        /// How many of them it takes: 1, or more of a limited number.
        permits: NonZeroU32,
    },
}

impl Mode {
    /// A reader's mode.
    pub const READ: Self = Self::Shared { limit: None, permits: NonZeroU32::MIN };

    /// One permit of a semaphore.
    pub const fn permit(limit: NonZeroU32) -> Self {
        Self::Shared { limit: Some(limit), permits: NonZeroU32::MIN }
    }

    /// Several permits of a semaphore; `None` if it has fewer.
    pub const fn several(limit: NonZeroU32, permits: NonZeroU32) -> Option<Self> {
        if permits.get() > limit.get() { None } else { Some(Self::Shared { limit: Some(limit), permits }) }
    }

    /// How many permits there are, if this mode decides.
    pub const fn limit(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Shared { limit: None, .. } => u32::MAX,
            Self::Shared { limit: Some(limit), .. } => limit.get(),
        }
    }

    /// How many permits it takes.
    pub const fn permits(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Shared { permits, .. } => permits.get(),
        }
    }

    /// True if an owner that holds in this mode may claim again in the other one, and hold on in this one: it asks for no more
    /// permits, and for no smaller limit.
    // L1.
    pub fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Exclusive, _) => true,
            (Self::Shared { .. }, Self::Exclusive) => false,
            _ => other.permits() <= self.permits() && self.limit() <= other.limit(),
        }
    }

    /// True if a claim in this mode may hold together with holders in the `others`' modes.
    // L1.
    pub fn fits_beside(self, others: impl Iterator<Item = Self>) -> bool {
        Taken::default().with(self).and(others).fits()
    }

    /// How many claims at the front of a queue, in the order of arrival, can hold together. It is the longest run
    /// from the front in which all fit together. A claim that leaves does not shorten the run for the claims behind
    /// it. So a holder stays a holder, and no claim overtakes a waiting one.
    // L1, L7.
    pub fn leading(line: impl IntoIterator<Item = Self>) -> usize {
        let mut taken = Taken::default();
        let fits = |mode: &Self| {
            taken = taken.with(*mode);
            taken.fits()
        };
        line.into_iter().take_while(fits).count()
    }
}

/// Why a claim is refused whose owner, chosen by the caller, holds already, and less than it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherMode {
    /// What it holds.
    pub held: Mode,
}

impl fmt::Display for OtherMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this owner holds the lock already ({}), and asks for more: release it first", self.held)
    }
}

impl Error for OtherMode {}

impl From<OtherMode> for BackendError {
    fn from(other: OtherMode) -> Self {
        Self::new(ErrorKind::Invalid, Outcome::NotApplied, other.to_string())
    }
}

/// The permits that some modes take together, and the smallest limit among them.
#[derive(Clone, Copy)]
struct Taken {
    permits: u64,
    limit: u32,
}

impl Default for Taken {
    fn default() -> Self {
        Self { permits: 0, limit: u32::MAX }
    }
}

impl Taken {
    fn with(self, mode: Mode) -> Self {
        Self { permits: self.permits + u64::from(mode.permits()), limit: self.limit.min(mode.limit()) }
    }

    fn and(self, modes: impl Iterator<Item = Mode>) -> Self {
        modes.fold(self, Self::with)
    }

    fn fits(self) -> bool {
        self.permits <= u64::from(self.limit)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared { limit: None, .. } => f.write_str("shared"),
            Self::Shared { limit: Some(limit), permits: NonZeroU32::MIN } => write!(f, "shared:{limit}"),
            Self::Shared { limit: Some(limit), permits } => write!(f, "shared:{permits}/{limit}"),
        }
    }
}

/// As it is stored. A version that knows no permits reads a limit of 1, so that it lets several permits hold alone (L1).
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stored {
    Exclusive,
    Shared {
        limit: Option<NonZeroU32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permits: Option<NonZeroU32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<NonZeroU32>,
    },
}

#[cfg(feature = "serde")]
impl From<Mode> for Stored {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared { limit, permits: NonZeroU32::MIN } => {
                Self::Shared { limit, permits: None, of: None }
            }
            Mode::Shared { limit, permits } => {
                Self::Shared { limit: Some(NonZeroU32::MIN), permits: Some(permits), of: limit }
            }
        }
    }
}

#[cfg(feature = "serde")]
impl From<Stored> for Mode {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Exclusive => Self::Exclusive,
            Stored::Shared { permits: Some(permits), of: Some(of), .. } => {
                Self::several(of, permits).unwrap_or(Self::permit(NonZeroU32::MIN))
            }
            Stored::Shared { limit, .. } => Self::Shared { limit, permits: NonZeroU32::MIN },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(limit: u32) -> Mode {
        Mode::permit(NonZeroU32::new(limit).unwrap())
    }

    fn several(permits: u32, limit: u32) -> Mode {
        let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).unwrap());
        Mode::several(limit, permits).unwrap()
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
            (vec![several(4, 9), several(4, 9), several(2, 9), slots(9)], 2),
            (vec![several(8, 9), slots(9), slots(9)], 2),
            (vec![several(4, 9), slots(3)], 1),
        ] {
            assert_eq!(Mode::leading(line.iter().copied()), expected, "{line:?}");
            let one_by_one = (0..line.len()).take_while(|&n| line[n].fits_beside(line[..n].iter().copied()));
            assert_eq!(one_by_one.count(), expected, "{line:?}");
        }
    }

    /// L1: a holder stays a holder when a place in front of it leaves.
    #[test]
    fn nobody_in_a_line_is_put_out_by_one_that_leaves() {
        let modes = [Mode::Exclusive, Mode::READ, slots(2), slots(3), several(2, 3)];
        for n in 0..5_usize.pow(6) {
            let line: Vec<Mode> = (0..6).map(|at| modes[n / 5_usize.pow(at) % 5]).collect();
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
        assert!(several(4, 9).fits_beside([several(4, 9), slots(9)].into_iter()));
        assert!(!several(4, 9).fits_beside([several(4, 9), slots(9), slots(9)].into_iter()));
        let all = several(u32::MAX, u32::MAX);
        assert!(!slots(u32::MAX).fits_beside([all].into_iter()), "no sum wraps");
    }

    /// L1: an owner that claims again gets no more than it holds.
    #[test]
    fn a_mode_covers_what_asks_for_no_more() {
        let (alone, read) = (Mode::Exclusive, Mode::READ);
        for (held, covered, others) in [
            (alone, vec![alone, read, slots(3), several(2, 3)], vec![]),
            (read, vec![read], vec![alone, slots(3)]),
            (slots(2), vec![slots(2), slots(3), read], vec![alone, slots(1), several(2, 2)]),
            (
                several(4, 9),
                vec![several(4, 9), several(3, 9), slots(10)],
                vec![several(5, 9), several(4, 8)],
            ),
            (slots(1), vec![slots(1), slots(2)], vec![alone, several(2, 2)]),
        ] {
            assert!(covered.iter().all(|mode| held.covers(*mode)), "{held}");
            assert!(!others.iter().any(|mode| held.covers(*mode)), "{held}");
        }
    }

    /// L1: a version that counts holders lets one of several permits hold alone; and what it writes back does so too.
    #[cfg(feature = "serde")]
    #[test]
    fn an_older_version_reads_several_permits_as_a_limit_of_one() {
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Older {
            Exclusive,
            Shared { limit: Option<NonZeroU32> },
        }
        for (mode, text) in [
            (Mode::Exclusive, r#""exclusive""#),
            (Mode::READ, r#"{"shared":{"limit":null}}"#),
            (slots(3), r#"{"shared":{"limit":3}}"#),
            (several(4, 10), r#"{"shared":{"limit":1,"permits":4,"of":10}}"#),
        ] {
            assert_eq!(serde_json::to_string(&mode).unwrap(), text);
            assert_eq!(serde_json::from_str::<Mode>(text).unwrap(), mode);
            let back = serde_json::to_string(&serde_json::from_str::<Older>(text).unwrap()).unwrap();
            let read: Mode = serde_json::from_str(&back).unwrap();
            assert_eq!(read, if mode.permits() > 1 { slots(1) } else { mode }, "{back}");
        }
        let more = r#"{"shared":{"limit":1,"permits":4,"of":3}}"#;
        assert_eq!(serde_json::from_str::<Mode>(more).unwrap(), slots(1));
    }
}
