//! `Moment`: one reading of the two clocks of a machine. Arithmetic follows the more cautious clock.

use std::{ops::Add, time::Duration};

/// One reading of the clock that counts suspend and of the wall clock.
///
/// It never leaves the machine: only durations do. A deadline has passed as soon as *either* clock has reached it.
/// So a laptop that slept, or a virtual machine that was resumed from a snapshot, cannot treat an old lease as
/// held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
// H2.1, hazard 26.
pub struct Moment {
    /// Since an arbitrary start, counting suspend; never steps.
    pub boot: Duration,
    /// Since the Unix epoch; may step.
    pub wall: Duration,
}

impl Moment {
    /// How long until this moment, seen from `now`: zero once either clock has reached it.
    pub fn remaining(self, now: Self) -> Duration {
        self.boot.saturating_sub(now.boot).min(self.wall.saturating_sub(now.wall))
    }

    /// True once either clock has reached this moment.
    pub fn is_over(self, now: Self) -> bool {
        self.remaining(now).is_zero()
    }

    /// How long ago this moment was, by the clock that counts suspend.
    pub fn elapsed(self, now: Self) -> Duration {
        now.boot.saturating_sub(self.boot)
    }

    /// A moment earlier by `by` on both clocks, but not before their start.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self { boot: self.boot.saturating_sub(by), wall: self.wall.saturating_sub(by) }
    }

    /// The later of two moments, by the clock that does not step.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if other.boot > self.boot { other } else { self }
    }

    /// The earlier of two moments, by the clock that does not step.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        if other.boot < self.boot { other } else { self }
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self { boot: self.boot.saturating_add(by), wall: self.wall.saturating_add(by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: u64, wall: u64) -> Moment {
        Moment { boot: Duration::from_secs(boot), wall: Duration::from_secs(wall) }
    }

    #[test]
    fn a_deadline_is_over_as_soon_as_either_clock_says_so() {
        let deadline = at(10, 1000) + Duration::from_secs(5);
        assert_eq!(deadline.remaining(at(12, 1002)), Duration::from_secs(3));
        assert_eq!(deadline.remaining(at(12, 900)), Duration::from_secs(3), "a step back gains nothing");
        assert_eq!(deadline.remaining(at(11, 1004)), Duration::from_secs(1), "a step forward costs");
        assert!(deadline.is_over(at(11, 1005)));
        assert!(deadline.is_over(at(15, 1001)));
    }
}
