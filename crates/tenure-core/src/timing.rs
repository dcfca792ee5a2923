//! `Timing`: the ttl, and the durations that follow from it.

use std::time::Duration;

use crate::moment::Moment;

/// The ttl of a lease, and the durations that follow from it. They are checked once, here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    ttl: Duration,
}

impl Timing {
    /// 100 ms: a shorter lease could end between two runs of the scheduler.
    pub const MIN_TTL: Duration = Duration::from_millis(100);
    /// 24 h: after a crash, the lock is free this much later at the latest.
    pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
    /// 10 s: a crash blocks the lock for at most this long, and two renewals may fail before the lease is lost.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
    /// 500 ms, several slow round trips: how long a waiter may take to acquire when its turn has come.
    pub const CLAIM_TTL: Duration = Duration::from_millis(500);
    /// 2 s: the longest sleep of a waiter before it asks again.
    pub const RETRY_MAX: Duration = Duration::from_secs(2);
    /// 6 s, three times [`RETRY_MAX`](Self::RETRY_MAX): how long a place is kept without a repeated claim.
    pub const PLACE_TTL: Duration = Duration::from_secs(6);

    /// Checks a ttl. A fraction of a millisecond is dropped, so that a holder never treats its lease as valid for
    /// too long.
    ///
    /// # Errors
    /// [`TimingError`] if it is outside [`MIN_TTL`](Self::MIN_TTL) to [`MAX_TTL`](Self::MAX_TTL).
    pub fn new(ttl: Duration) -> Result<Self, TimingError> {
        if ttl < Self::MIN_TTL || ttl > Self::MAX_TTL {
            return Err(TimingError { ttl });
        }
        Ok(Self { ttl: whole_millis(ttl) })
    }

    /// The requested length of the lease.
    pub fn ttl(self) -> Duration {
        self.ttl
    }

    /// Allowance for clocks that run at different *rates*: ttl/100 + 2 ms.
    // Assumption A1.
    pub fn drift(self) -> Duration {
        self.ttl / 100 + Duration::from_millis(2)
    }

    /// Until when a lease of length `ttl`, whose request was sent at `sent_at`, is valid.
    ///
    /// Counted from *before* the request was sent, so that a delay can only shorten it.
    pub fn believed_until(self, sent_at: Moment, ttl: Duration) -> Moment {
        sent_at + ttl.saturating_sub(self.drift())
    }

    /// The time from one renewal to the next: ttl/3.
    pub fn renewal_period(self) -> Duration {
        self.ttl / 3
    }

    /// The timeout of a renewal: ttl/6, so that two more attempts fit into the rest of the lease.
    pub fn renewal_timeout(self) -> Duration {
        self.ttl / 6
    }

    /// The timeout of any other request: ttl/3, but at least 250 ms and at most 5 s.
    pub fn request_timeout(self) -> Duration {
        (self.ttl / 3).clamp(Duration::from_millis(250), Duration::from_secs(5))
    }

    /// The longest time between two checks of the clock by the watchdog: min(ttl/10, 1 s).
    pub fn look(self) -> Duration {
        (self.ttl / 10).min(Duration::from_secs(1))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self { ttl: Self::DEFAULT_TTL }
    }
}

fn whole_millis(d: Duration) -> Duration {
    Duration::new(d.as_secs(), d.subsec_millis() * 1_000_000)
}

/// A ttl that is outside the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ttl must be between 100ms and 24h; this one is {ttl:?}")]
pub struct TimingError {
    /// The requested ttl.
    pub ttl: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_fractions_of_a_millisecond_are_dropped() {
        assert!(Timing::new(Duration::ZERO).is_err());
        assert!(Timing::new(Duration::from_micros(99_999)).is_err());
        assert!(Timing::new(Timing::MIN_TTL).is_ok());
        assert!(Timing::new(Timing::MAX_TTL).is_ok());
        assert!(Timing::new(Timing::MAX_TTL + Duration::from_nanos(1)).is_err());
        assert_eq!(Timing::new(Duration::from_micros(150_900)).unwrap().ttl(), Duration::from_millis(150));
    }

    #[test]
    fn two_renewals_may_fail_before_validity_ends() {
        for ttl in [Timing::MIN_TTL, Timing::DEFAULT_TTL, Timing::MAX_TTL] {
            let t = Timing::new(ttl).unwrap();
            assert!(t.renewal_period() + 2 * t.renewal_timeout() < t.ttl() - t.drift(), "{ttl:?}");
        }
    }
}
