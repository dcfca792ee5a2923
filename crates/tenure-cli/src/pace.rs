//! Which ttl: how fast the store answers, how long this machine pauses, and the shortest lease that stands both.

use std::time::Duration;

use tenure::{Finding, Host, Locker, Promises, Severity, Timing, TokioHost};

use crate::{text, waiting::pause};

/// The length of the measurement.
pub(crate) const MEASURED: Duration = Duration::from_secs(2);
/// Between two questions, so that the store does other work too.
const BETWEEN: Duration = Duration::from_millis(20);
/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(1);
/// A lease lasts for so many times the worst that was seen: a renewal may take a sixth of it, and two seconds do not show the
/// worst there is.
const TIMES: u32 = 10;
/// It need not exist, and is only looked at.
const NAME: &str = "tenure-doctor";

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pace {
    /// How often the store answered, and how long that took at most.
    answers: u32,
    round_trip: Duration,
    /// For how long this program did not run although it was to.
    pause: Duration,
}

/// The advice, in one line; and as a finding if the default does not stand what was seen.
pub(crate) struct Advice {
    pub(crate) line: String,
    pub(crate) finding: Option<Finding>,
}

/// Measures for two seconds. `None` if the store does not answer what was asked.
pub(crate) async fn look(locks: &Locker) -> Option<Advice> {
    let started = TokioHost.now();
    let is_over = || started.elapsed(TokioHost.now()) >= MEASURED;
    let asking = async {
        let mut pace = Pace::default();
        while !is_over() {
            let sent = TokioHost.now();
            locks.inspect(NAME).await.ok()?;
            pace.round_trip = pace.round_trip.max(sent.elapsed(TokioHost.now()));
            pace.answers += 1;
            pause(BETWEEN).await;
        }
        Some(pace)
    };
    let pausing = async {
        let mut worst = Duration::ZERO;
        while !is_over() {
            let began = TokioHost.now();
            pause(TICK).await;
            // The timer itself may take a tick more.
            worst = worst.max(began.elapsed(TokioHost.now()).saturating_sub(2 * TICK));
        }
        worst
    };
    let (pace, pause) = tokio::join!(asking, pausing);
    Some(advice(Pace { pause, ..pace? }, &locks.promises()))
}

fn advice(pace: Pace, promises: &Promises) -> Advice {
    let Pace { answers, round_trip, pause } = pace;
    let worst = round_trip.max(pause);
    let wanted = worst * TIMES;
    let shortest = rounded_up(wanted.max(Timing::MIN_TTL).max(promises.ttl_grain));
    let reason = if wanted >= Timing::MIN_TTL.max(promises.ttl_grain) {
        let of = if round_trip >= pause { "round trip" } else { "pause of this machine" };
        format!("{TIMES} times the longest {of}")
    } else if promises.ttl_grain > Timing::MIN_TTL {
        format!("the unit in which {} counts leases", promises.backend)
    } else {
        "the shortest there is".to_owned()
    };
    let (brief, default) = (text::brief, promises.default_ttl());
    let line = format!(
        "ttl: {} is the shortest that makes sense here, {reason}: {answers} answers took {} at most, and this machine \
         paused for {} at most, in {}; the default is {}",
        brief(shortest),
        brief(round_trip),
        brief(pause),
        text::seconds(MEASURED),
        brief(default)
    );
    let finding = (shortest > default).then(|| {
        let what = format!(
            "the default ttl of {} is too short here: the shortest that makes sense is {}, {reason}",
            brief(default),
            brief(shortest)
        );
        let remedy = format!(
            "name a ttl of {} or more, or find out what delays the store or this machine",
            brief(shortest)
        );
        Finding::new(Severity::Note, what, remedy)
    });
    Advice { line, finding }
}

/// To whole tenths of a second, and from a second on to whole seconds.
fn rounded_up(d: Duration) -> Duration {
    let unit = if d < Duration::from_secs(1) { 100 } else { 1000 };
    let units = d.as_nanos().div_ceil(unit * 1_000_000);
    // OK because it is no longer than ten times a few minutes.
    Duration::from_millis(u64::try_from(units * unit).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(round_trip_us: u64, pause_us: u64, grain_ms: u64) -> Advice {
        let mut promises = Promises::least("paced");
        promises.ttl_grain = Duration::from_millis(grain_ms);
        let (round_trip, pause) = (Duration::from_micros(round_trip_us), Duration::from_micros(pause_us));
        advice(Pace { answers: 95, round_trip, pause }, &promises)
    }

    /// Ten times the worst, rounded up; never less than what the store can count.
    #[test]
    fn the_shortest_ttl_follows_from_what_was_seen() {
        for (round_trip, pause, grain, shortest, reason) in [
            (900, 4_000, 1, "100 ms is", "the shortest there is"),
            (900, 28_000, 1, "300 ms is", "10 times the longest pause of this machine"),
            (71_000, 28_000, 1, "800 ms is", "10 times the longest round trip"),
            (171_000, 28_000, 1, "2.00 s is", "10 times the longest round trip"),
            (900, 4_000, 6_000, "6.00 s is", "the unit in which paced counts leases"),
        ] {
            let Advice { line, finding } = of(round_trip, pause, grain);
            assert!(line.starts_with(&format!("ttl: {shortest}")) && line.contains(reason), "{line}");
            assert!(line.contains("95 answers") && line.ends_with("the default is 10.0 s"), "{line}");
            assert!(finding.is_none(), "{line}");
        }
    }

    /// Whoever names no ttl should know that ten seconds are too short.
    #[test]
    fn a_default_that_is_too_short_is_a_finding() {
        let found = of(1_200_000, 28_000, 1).finding.unwrap();
        assert_eq!(found.severity, Severity::Note);
        assert!(
            found.what.contains("10.0 s is too short") && found.remedy.contains("12.0 s or more"),
            "{found:?}"
        );
    }
}
