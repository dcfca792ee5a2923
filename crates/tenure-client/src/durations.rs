//! The durations in URLs: one list, so that a name has the same meaning and the same bounds in every store.

use std::time::Duration;

use crate::refusal::{UrlError, bad};

/// How long a connection may take to open. The bounds go from the first answer of a near server to the longest
/// useful wait.
pub const CONNECT_TIMEOUT: Span = Span::of("connect_timeout", 10, 60_000);
/// How long an answer may take.
pub const RESPONSE_TIMEOUT: Span = Span::of("response_timeout", 10, 60_000);
/// How long a waiter may take to acquire when its turn has come: no longer than a place is kept.
pub const CLAIM_TTL: Span = Span::of("claim_ttl", 50, 6_000);
/// The longest sleep of a waiter before it asks again: no longer than the default, which determines how long a
/// place is kept.
pub const RETRY_MAX: Span = Span::of("retry_max", 10, 2_000);
/// The longest lease that a store grants.
pub const MAX_TTL: Span = Span::of("max_ttl", 1_000, 600_000);
/// ZooKeeper's `tickTime`.
pub const TICK: Span = Span::of("tick", 10, 60_000);

/// A setting that is a duration, and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its name in a URL.
    pub key: &'static str,
    /// The minimum.
    pub least: Duration,
    /// The maximum.
    pub most: Duration,
    /// A number without a unit is seconds.
    is_bare_seconds: bool,
}

impl Span {
    const fn of(key: &'static str, least_ms: u64, most_ms: u64) -> Self {
        let (least, most) = (Duration::from_millis(least_ms), Duration::from_millis(most_ms));
        Self { key, least, most, is_bare_seconds: false }
    }

    /// The same for a store with this higher minimum.
    #[must_use]
    pub const fn at_least(self, least: Duration) -> Self {
        Self { least, ..self }
    }

    /// The same for a store whose other clients write seconds without a unit.
    #[must_use]
    pub const fn bare_seconds(self) -> Self {
        Self { is_bare_seconds: true, ..self }
    }

    /// Reads one, like `500ms`, without checking its bounds.
    ///
    /// # Errors
    /// If it is not a duration.
    pub fn read(self, text: &str) -> Result<Duration, UrlError> {
        let is_bare =
            self.is_bare_seconds && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = humantime::parse_duration(&if is_bare { format!("{text}s") } else { text.to_owned() });
        parsed.map_err(|_| bad(format!("{}= is no duration; write it like 500ms", self.key)))
    }

    /// # Errors
    /// If it is outside its bounds.
    pub fn check(self, value: Duration) -> Result<(), UrlError> {
        let Self { key, least, most, .. } = self;
        if value < least || value > most {
            return Err(bad(format!("{key}= lies outside {least:?} to {most:?}")));
        }
        Ok(())
    }
}

/// A duration as it is written in a URL.
pub fn written(value: Duration) -> String {
    let is_whole = value.subsec_nanos().is_multiple_of(1_000_000);
    if is_whole { format!("{}ms", value.as_millis()) } else { format!("{}ns", value.as_nanos()) }
}

/// A duration as a page has it: `500 ms`, `2 s`, `1 min`.
pub(crate) fn for_people(value: Duration) -> String {
    match value.as_millis() {
        ms if ms.is_multiple_of(60_000) => format!("{} min", ms / 60_000),
        ms if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_a_duration_are_inclusive() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(2));
        assert_eq!((RETRY_MAX.check(least), RETRY_MAX.check(most)), (Ok(()), Ok(())));
        let early = RETRY_MAX.check(Duration::from_millis(9)).unwrap_err();
        assert_eq!(early.to_string(), "retry_max= lies outside 10ms to 2s");
        let words = RETRY_MAX.read("soon").unwrap_err().to_string();
        assert_eq!(words, "retry_max= is no duration; write it like 500ms");
        let patient = CONNECT_TIMEOUT.at_least(Duration::from_millis(250));
        let is_right = |ms| patient.check(Duration::from_millis(ms)).is_ok();
        assert!(!is_right(249) && is_right(250));
        assert_eq!(RETRY_MAX.bare_seconds().read("2"), Ok(Duration::from_secs(2)));
        assert!(RETRY_MAX.read("2").is_err() && RETRY_MAX.bare_seconds().read("").is_err());
    }

    #[test]
    fn a_duration_that_is_written_is_read_again() {
        for (value, text) in [(Duration::from_secs(2), "2000ms"), (Duration::from_micros(1_500), "1500000ns")]
        {
            assert_eq!((written(value).as_str(), RETRY_MAX.read(text)), (text, Ok(value)));
        }
    }
}
