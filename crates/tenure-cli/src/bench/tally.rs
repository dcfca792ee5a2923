//! A histogram of times in bounded memory.

use std::time::{Duration, Instant};

/// Steps per doubling: a time is known to one part in 64.
const STEPS: usize = 64;
/// Below it each nanosecond has a bucket of its own; above it, 64 buckets for each of the 58 doublings of 64 bits.
const BUCKETS: usize = STEPS * 59;

/// What one task did.
pub(crate) struct Tally {
    buckets: Vec<u64>,
    worst: Duration,
    /// When the last was done.
    last: Option<Instant>,
    over: Instant,
    /// Done before the time was over.
    in_time: u64,
}

impl Tally {
    /// Nothing yet; the time is over at `over`.
    pub(crate) fn new(over: Instant) -> Self {
        Self { buckets: vec![0; BUCKETS], worst: Duration::ZERO, last: None, over, in_time: 0 }
    }

    /// Adds one that took from `asked` to `done`.
    pub(crate) fn add(&mut self, asked: Instant, done: Instant) {
        let took = done - asked;
        self.buckets[bucket(took)] += 1;
        self.worst = self.worst.max(took);
        self.last = self.last.max(Some(done));
        self.in_time += u64::from(done <= self.over);
    }

    /// Adds what another task did.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *ours += theirs;
        }
        self.worst = self.worst.max(other.worst);
        self.last = self.last.max(other.last);
        self.in_time += other.in_time;
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn in_time(&self) -> u64 {
        self.in_time
    }

    pub(crate) fn worst(&self) -> Duration {
        self.worst
    }

    /// From `began` until the last was done.
    pub(crate) fn lasted(&self, began: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |last| last - began)
    }

    /// No more than so many of a hundred took longer; zero if there were none.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let rank = (self.count() * percent).div_ceil(100);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank.max(1)
        });
        found.map_or(Duration::ZERO, |index| largest(index).min(self.worst))
    }
}

fn bucket(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let shift = nanos.max(STEPS as u64).ilog2() - STEPS.ilog2();
    // OK because what is left after the shift is less than two doublings of steps.
    STEPS * shift as usize + (nanos >> shift) as usize
}

/// The largest time of a bucket.
fn largest(bucket: usize) -> Duration {
    let shift = (bucket / STEPS).saturating_sub(1);
    let step = (bucket - STEPS * shift) as u64;
    // OK because the next step after the last bucket is 2^64, which wraps to 0.
    Duration::from_nanos(((step + 1) << shift).wrapping_sub(1))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    fn tally(nanos: impl IntoIterator<Item = u64>) -> Tally {
        let began = Instant::now();
        let mut tally = Tally::new(began + Duration::from_nanos(1000));
        for nanos in nanos {
            tally.add(began, began + Duration::from_nanos(nanos));
        }
        tally
    }

    #[test]
    fn every_time_has_a_bucket_that_is_at_most_one_part_in_64_too_large() {
        let powers = (0..64).flat_map(|power| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1]);
        for nanos in (0..5000).chain(powers).chain([u64::MAX]) {
            let bucket = bucket(Duration::from_nanos(nanos));
            let shown = u64::try_from(largest(bucket).as_nanos()).unwrap();
            assert!(bucket < BUCKETS && shown >= nanos && shown - nanos <= nanos / 64, "{nanos}: {shown}");
            assert!(bucket == 0 || u64::try_from(largest(bucket - 1).as_nanos()).unwrap() < nanos, "{nanos}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_ranks() {
        let hundred = tally(1..=100);
        let nanos = |percent| hundred.percentile(percent).as_nanos();
        assert_eq!((nanos(1), nanos(50), nanos(99), nanos(100)), (1, 50, 99, 100));
        assert_eq!(tally([]).percentile(50), Duration::ZERO);
        assert_eq!(tally([1_000_000]).percentile(50), Duration::from_millis(1), "no more than the worst");
    }

    #[test]
    fn what_is_late_counts_but_not_as_in_time() {
        let mut one = tally([5, 1000]);
        one.merge(&tally([1001, 9000]));
        assert_eq!((one.count(), one.in_time(), one.worst()), (4, 2, Duration::from_micros(9)));
    }
}
