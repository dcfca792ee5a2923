//! Text for people: the holder, since when, for how long.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};
use tenure::HolderView;

/// `web-3 pid 4711 import.sh since 10:02:07, 6.2 s left`
pub(crate) fn holder(holder: &HolderView) -> String {
    let who = holder.who();
    let since = holder.since.map_or(String::new(), |since| format!(" since {}", clock(since)));
    let end = holder.expires_in.map_or_else(|| "without an end".to_owned(), |left| seconds(left) + " left");
    format!("{who}{since}, {end}")
}

/// `6.2 s`, or that it does not end by the clock.
pub(crate) fn left(left: Option<Duration>) -> String {
    left.map_or_else(|| "no end".to_owned(), seconds)
}

/// Three digits and a unit: `850 ns`, `9.81 µs`, `1.24 ms`, `12.0 s`
pub(crate) fn brief(d: Duration) -> String {
    let nanos = d.as_secs_f64() * 1e9;
    let (number, unit) = match nanos {
        ..1e3 => return format!("{nanos:.0} ns"),
        ..1e6 => (nanos / 1e3, "µs"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

/// `6.2 s`, `4 min 10 s`, `3 h 5 min`
pub(crate) fn seconds(d: Duration) -> String {
    let whole = d.as_secs();
    match whole {
        0..60 => format!("{:.1} s", d.as_secs_f64()),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

fn timestamp(since_epoch: Duration) -> Timestamp {
    let nanos = i128::try_from(since_epoch.as_nanos()).unwrap_or(i128::MAX);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}

/// Local time of day, with the date if it was another day.
pub(crate) fn clock(since_epoch: Duration) -> String {
    let then = timestamp(since_epoch).to_zoned(TimeZone::system());
    let now = Timestamp::now().to_zoned(TimeZone::system());
    let format = if then.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    then.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_at_a_glance() {
        let cases = [(6_230, "6.2 s"), (250_000, "4 min 10 s"), (11_100_000, "3 h 5 min"), (0, "0.0 s")];
        for (ms, text) in cases {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn short_times_have_three_digits_and_a_unit() {
        let cases =
            [(0, "0 ns"), (850, "850 ns"), (9_812, "9.81 µs"), (52_000, "52.0 µs"), (412_300, "412 µs")];
        for (nanos, text) in cases.into_iter().chain([(1_240_000, "1.24 ms"), (12_000_000_000, "12.0 s")]) {
            assert_eq!(brief(Duration::from_nanos(nanos)), text);
        }
    }
}
