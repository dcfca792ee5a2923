//! The slots of a calendar in which `run --once-per` runs: hours, days, weeks and other durations, by the clock of a place.

use std::{fmt, fs, io::ErrorKind, time::Duration};

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};

use crate::exit::Stop;

/// The length of a slot on a day of 24 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(Duration);

impl Period {
    /// `hour`, `day`, `week`, or a duration.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let period = match text {
            "hour" => HOUR,
            "day" => 24 * HOUR,
            "week" => 7 * 24 * HOUR,
            _ => humantime::parse_duration(text)
                .map_err(|_| "write hour, day, week or a duration like 15m or 6h".to_owned())?,
        };
        match period.subsec_nanos() == 0 && (1..=LONGEST.as_secs()).contains(&period.as_secs()) {
            true => Ok(Self(period)),
            false => Err("a slot is 1s to 180 days, in whole seconds".to_owned()),
        }
    }

    /// How long a slot may last: a day may be longer than others.
    pub(crate) fn longest(self) -> Duration {
        self.0 + 2 * HOUR
    }

    /// When the slot of now began, and the one before it, since the Unix epoch.
    pub(crate) fn slots(self, zone: &TimeZone, now: Timestamp) -> (Duration, Duration) {
        let began = self.began(zone, now);
        let before =
            i64::try_from(began.as_millis()).ok().and_then(|at| Timestamp::from_millisecond(at - 1).ok());
        (began, before.map_or(began, |before| self.began(zone, before)))
    }

    /// When the slot of now began, since the Unix epoch.
    ///
    /// Slots are counted by the clock on the wall of the place: from midnight if they are shorter than a day, so that the
    /// last one of a day may be short, and from a Monday at midnight if they are longer. So one of a day begins at
    /// midnight, whatever the length of the day. An hour that the clock shows twice is two slots of an hour or of a part
    /// of it, and one of any other length. A slot that would begin in a skipped hour begins at the end of that hour.
    pub(crate) fn began(self, zone: &TimeZone, now: Timestamp) -> Duration {
        let local = zone.to_datetime(now);
        let first = if self.0 < 24 * HOUR { local.date() } else { civil::date(1970, 1, 5) };
        let first = first.to_datetime(civil::Time::midnight());
        let length = i64::try_from(self.0.as_secs()).expect("BUG: it is checked");
        let into = local.duration_since(first).as_secs().rem_euclid(length);
        let nanos = SignedDuration::from_nanos(i64::from(local.subsec_nanosecond()));
        let into = SignedDuration::from_secs(into) + nanos;
        let began = match HOUR.as_secs().is_multiple_of(self.0.as_secs()) {
            true => now.checked_sub(into).ok(),
            false => on_wall(zone, local - into),
        };
        let began = began.unwrap_or(now).as_duration();
        Duration::try_from(began).unwrap_or_default()
    }
}

/// When the local clock first shows this time or, if it skips it, when the clock is set forward.
fn on_wall(zone: &TimeZone, shown: civil::DateTime) -> Option<Timestamp> {
    let at = zone.to_timestamp(shown).ok()?;
    match zone.to_datetime(at) == shown {
        true => Some(at),
        // The clock skips that time, and `at` is after the change.
        false => zone.preceding(at + SignedDuration::from_nanos(1)).next().map(|change| change.timestamp()),
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            3_600 => f.write_str("hour"),
            86_400 => f.write_str("day"),
            604_800 => f.write_str("week"),
            _ => write!(f, "{}", humantime::format_duration(self.0)),
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
/// What is remembered of a run is kept for twice as long and a day, and a memo for 366 days.
const LONGEST: Duration = Duration::from_secs(180 * 24 * 3600);

/// The zone of this host: that of `TZ`, or of its settings, or UTC if it has none.
///
/// # Errors
/// Its zone is not known. With UTC instead, its days would differ from those of other hosts.
pub(crate) fn zone_of_host() -> Result<TimeZone, Stop> {
    let is_named = std::env::var_os("TZ").is_some_and(|zone| !zone.is_empty());
    let is_absent = || fs::symlink_metadata(SETTING).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match TimeZone::try_system() {
        Err(_) if is_named => {
            Err(Stop::usage("TZ names no time zone that is known: write one like Europe/Berlin, or use --tz"))
        }
        Err(_) if !is_absent() => Err(Stop::usage(format!(
            "{SETTING}, the time zone of this host, cannot be read: mend it, set TZ, or use --tz"
        ))),
        zone => Ok(zone.unwrap_or(TimeZone::UTC)),
    }
}

const SETTING: &str = "/etc/localtime";

/// A zone by its name, as `Europe/Berlin`.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| format!("no time zone {name} is known: write one like Europe/Berlin or UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of slots that begin between two moments, checked each minute.
    fn slots(period: &str, place: &str, from: &str, to: &str) -> usize {
        let (period, zone) = (Period::read(period).unwrap(), zone(place).unwrap());
        let [mut now, end] = [from, to].map(|at| at.parse::<Timestamp>().unwrap());
        let mut seen = vec![period.began(&zone, now)];
        while now < end {
            let began = period.began(&zone, now);
            assert!(began >= *seen.last().unwrap(), "{period:?} in {place}: back at {now}");
            assert!(began <= now.as_duration().try_into().unwrap(), "{period:?} in {place}: ahead at {now}");
            if began != *seen.last().unwrap() {
                seen.push(began);
            }
            now += SignedDuration::from_mins(1);
        }
        seen.len()
    }

    /// Days of 23, 24, 25 and 24.5 hours, and one that begins at one o'clock.
    #[test]
    fn a_day_is_one_slot_whatever_its_length() {
        for (place, from, to, hours) in [
            ("Europe/Berlin", "2026-03-28T23:00Z", "2026-03-29T22:00Z", 23),
            ("Europe/Berlin", "2026-11-27T23:00Z", "2026-11-28T23:00Z", 24),
            ("Europe/Berlin", "2026-10-24T22:00Z", "2026-10-25T23:00Z", 25),
            ("America/Havana", "2026-11-01T04:00Z", "2026-11-02T05:00Z", 25),
            ("Africa/Cairo", "2026-04-23T22:00Z", "2026-04-24T21:00Z", 23),
            ("UTC", "2026-10-25T00:00Z", "2026-10-26T00:00Z", 24),
        ] {
            assert_eq!(slots("day", place, from, to), 1, "{place} {from}");
            assert_eq!(slots("24h", place, from, to), 1, "{place} {from}");
            assert_eq!(slots("hour", place, from, to), hours, "{place} {from}");
            assert_eq!(slots("6h", place, from, to), 4, "{place} {from}");
            assert_eq!(slots("15m", place, from, to), hours * 4, "{place} {from}");
        }
        // A slot that would begin between two and three o'clock begins at three. It began at half past three, in the
        // future, so the job ran at each start until then.
        for (period, number) in [("75m", 20), ("80m", 18), ("150m", 10), ("50m", 29)] {
            assert_eq!(
                slots(period, "Europe/Berlin", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
                number,
                "{period}"
            );
        }
        assert_eq!(slots("week", "Europe/Berlin", "2026-10-18T22:00Z", "2026-10-25T23:00Z"), 1);
        assert_eq!(slots("day", "Europe/Berlin", "2026-10-18T22:00Z", "2026-10-25T23:00Z"), 7);
    }

    /// A slot that begins exactly at the skipped hour got the change before that, half a year earlier, and its run was
    /// skipped.
    #[test]
    fn a_slot_that_begins_with_the_change_begins_there() {
        for (period, place, now, began) in [
            ("day", "Africa/Cairo", "2026-04-24T12:00Z", "2026-04-23T22:00Z"),
            ("day", "Africa/Cairo", "2026-04-23T22:00Z", "2026-04-23T22:00Z"),
            ("day", "America/Havana", "2026-03-08T12:00Z", "2026-03-08T05:00Z"),
            ("2h", "Europe/Berlin", "2026-03-29T01:10Z", "2026-03-29T01:00Z"),
            ("40m", "America/New_York", "2026-03-08T07:10Z", "2026-03-08T07:00Z"),
            ("75m", "Europe/Berlin", "2026-03-29T01:01Z", "2026-03-29T01:00Z"),
        ] {
            let [now, began] = [now, began].map(|at| at.parse::<Timestamp>().unwrap());
            let found = Period::read(period).unwrap().began(&zone(place).unwrap(), now);
            assert_eq!(found, Duration::try_from(began.as_duration()).unwrap(), "{period} in {place}");
        }
    }

    /// `--once-per 7h` began its slots at any hour of the day.
    #[test]
    fn slots_that_do_not_fill_a_day_begin_anew_at_midnight() {
        let (seven, zone) = (Period::read("7h").unwrap(), zone("Europe/Berlin").unwrap());
        for (now, hour) in
            [("00:00:05", 0), ("06:59:59", 0), ("07:00:00", 7), ("20:59:59", 14), ("23:59:59", 21)]
        {
            for day in 20..28 {
                let zoned = |time: &str| {
                    format!("2026-11-{day}T{time}[Europe/Berlin]").parse::<jiff::Zoned>().unwrap()
                };
                let began = zoned(&format!("{hour:02}:00:00")).timestamp().as_duration();
                assert_eq!(
                    seven.began(&zone, zoned(now).timestamp()),
                    Duration::try_from(began).unwrap(),
                    "{day} {now}"
                );
            }
        }
        assert_eq!(slots("7h", "Europe/Berlin", "2026-11-27T23:00Z", "2026-11-28T23:00Z"), 4);
    }

    #[test]
    fn what_is_no_slot_is_refused() {
        for text in ["", "month", "0s", "500ms", "1500ms", "181d", "-1h"] {
            assert!(Period::read(text).is_err(), "{text}");
        }
        assert!(zone("Europe/Nowhere").unwrap_err().contains("Europe/Berlin"));
        assert_eq!(Period::read("week"), Period::read("7d"));
    }
}
