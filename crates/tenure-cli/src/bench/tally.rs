//! The counts of the tasks of a bench, and how long they took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The precision of a time: one part in a thousand.
const DIGITS: u8 = 3;

/// The counts of one task.
pub(crate) struct TaskCounts {
    /// In nanoseconds.
    times: Histogram<u64>,
    worst: Duration,
    /// When the last was done.
    last: Option<Instant>,
    over: Instant,
    /// Done before the end of the part.
    in_time: u64,
}

impl TaskCounts {
    /// No counts yet; the part ends at `over`.
    pub(crate) fn new(over: Instant) -> Self {
        let times = Histogram::new(DIGITS).expect("OK because it has 0 to 5 digits");
        Self { times, worst: Duration::ZERO, last: None, over, in_time: 0 }
    }

    /// Adds one that took from `asked` to `done`.
    pub(crate) fn add(&mut self, asked: Instant, done: Instant) {
        let took = done - asked;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.times.record(nanos).expect("OK because it grows with what it records");
        self.worst = self.worst.max(took);
        self.last = self.last.max(Some(done));
        self.in_time += u64::from(done <= self.over);
    }

    /// Adds the counts of another task.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.times += &other.times;
        self.worst = self.worst.max(other.worst);
        self.last = self.last.max(other.last);
        self.in_time += other.in_time;
    }

    pub(crate) fn count(&self) -> u64 {
        self.times.len()
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

    /// At most this percentage took longer; zero if there were none.
    pub(crate) fn percentile(&self, percent: u32) -> Duration {
        Duration::from_nanos(self.times.value_at_percentile(f64::from(percent))).min(self.worst)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any moment will do")]
mod tests {
    use super::*;

    fn counts(nanos: impl IntoIterator<Item = u64>) -> TaskCounts {
        let began = Instant::now();
        let mut counts = TaskCounts::new(began + Duration::from_nanos(1000));
        for nanos in nanos {
            counts.add(began, began + Duration::from_nanos(nanos));
        }
        counts
    }

    #[test]
    fn percentiles_are_ranks() {
        let hundred = counts(1..=100);
        let nanos = |percent| hundred.percentile(percent).as_nanos();
        assert_eq!((nanos(1), nanos(50), nanos(99), nanos(100)), (1, 50, 99, 100));
        assert_eq!(counts([]).percentile(50), Duration::ZERO);
        let slow = counts([1, 1_000_000, 3_600_000_000_000]);
        assert_eq!(slow.percentile(100), Duration::from_secs(3600), "no more than the worst");
        assert!((0.001..0.001_001).contains(&slow.percentile(50).as_secs_f64()));
    }

    #[test]
    fn what_is_late_counts_but_not_as_in_time() {
        let mut one = counts([5, 1000]);
        one.merge(&counts([1001, 9000]));
        assert_eq!((one.count(), one.in_time(), one.worst()), (4, 2, Duration::from_micros(9)));
    }
}
