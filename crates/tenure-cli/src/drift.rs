//! How fast this machine's clock runs: a time service that slews may break A1.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tenure::view::{Finding, Severity};

use crate::waiting::pause;

/// The length of the measurement: 300 ms, in which a reading is exact to a millionth.
const MEASURED: Duration = Duration::from_millis(300);
/// Half of the difference that A1 allows between holder and store, in millionths.
const MOST_PPM: f64 = 5_000.0;

/// The maximum time between the readings of two clocks: 1/30 of the difference to detect.
const CLOSE: Duration = Duration::from_micros(50);
/// How often they are read again if more time lies between them, because a busy machine may interrupt the process.
const READINGS: usize = 100;

/// The clock that is adjusted, and the one that nothing adjusts, at the same time. `None` if this system cannot
/// provide both.
fn read() -> Option<(Duration, Duration)> {
    let read = |clock| clock_gettime(clock).ok().map(Duration::from);
    first_close((0..READINGS).map_while(|_| {
        let before = read(ClockId::CLOCK_MONOTONIC)?;
        let raw = read(ClockId::CLOCK_MONOTONIC_RAW)?;
        Some((before, raw, read(ClockId::CLOCK_MONOTONIC)?))
    }))
}

/// The first of the readings with hardly any time between them.
fn first_close(
    readings: impl Iterator<Item = (Duration, Duration, Duration)>,
) -> Option<(Duration, Duration)> {
    let mut close = readings.filter(|(before, _, after)| after.saturating_sub(*before) <= CLOSE);
    close.next().map(|(before, raw, _)| (before, raw))
}

/// A warning if the time service adjusts this machine's clock by more than A1 allows.
pub(crate) async fn check() -> Option<Finding> {
    let began = read()?;
    pause(MEASURED).await;
    finding(began, read()?)
}

fn finding(began: (Duration, Duration), ended: (Duration, Duration)) -> Option<Finding> {
    let passed = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
    let (adjusted, raw) = (passed(began.0, ended.0), passed(began.1, ended.1));
    let ppm = (adjusted / raw - 1.0) * 1e6;
    let what = format!(
        "the clock of this machine is being adjusted by {:.1} %: leases are believed for longer than they last, or \
         for less, if holder and store differ by more than 1 % (A1)",
        ppm / 1e4
    );
    let remedy = "let the time service slew by less than 0.5 %, as by `maxslewrate 5000` in chrony.conf";
    (raw > 0.0 && ppm.abs() > MOST_PPM).then(|| Finding::new(Severity::Warning, what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was interrupted between the readings of two clocks found them apart, so a healthy but busy
    /// machine got a warning.
    #[test]
    fn a_reading_that_was_interrupted_is_taken_again() {
        let us = Duration::from_micros;
        let torn = (us(1_000), us(2_900), us(3_000));
        let whole = (us(3_010), us(3_020), us(3_040));
        assert_eq!(first_close([torn, whole].into_iter()), Some((whole.0, whole.1)));
        assert_eq!(first_close([torn; 3].into_iter()), None);
    }

    /// A1: chrony slews by 8 % unless it is configured otherwise, and no message reported it.
    #[test]
    fn a_clock_that_is_adjusted_by_more_than_half_a_percent_is_a_finding() {
        let of = |adjusted_us: u64| {
            let start = (Duration::from_secs(7), Duration::from_secs(5));
            let end = (start.0 + Duration::from_micros(adjusted_us), start.1 + Duration::from_secs(1));
            finding(start, end)
        };
        for good in [995_100, 1_000_000, 1_000_500, 1_004_900] {
            assert_eq!(of(good), None, "{good}");
        }
        for (bad, shown) in [(1_083_333, " 8.3 %"), (917_000, " -8.3 %"), (1_006_000, " 0.6 %")] {
            let found = of(bad).unwrap();
            assert!(found.severity == Severity::Warning && found.what.contains(shown), "{}", found.what);
        }
    }
}
