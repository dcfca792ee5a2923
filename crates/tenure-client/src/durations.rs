//! The durations that URLs set: one list, so that a name means the same and has the same bounds in every store.

use std::time::Duration;

use crate::refusal::{UrlError, bad};

/// From a server's first answer to the last moment that makes sense for one.
pub const CONNECT_TIMEOUT: Span = Span::of("connect_timeout", 10, 60_000);
/// How long an answer may take.
pub const RESPONSE_TIMEOUT: Span = Span::of("response_timeout", 10, 60_000);
/// How long a waiter may take to enter when its turn has come: no longer than a place is kept.
pub const CLAIM_TTL: Span = Span::of("claim_ttl", 50, 6_000);
/// How long a waiter sleeps at most before it asks again: no longer than the default, by which a place is kept.
pub const RETRY_MAX: Span = Span::of("retry_max", 10, 2_000);
/// The longest lease that a store grants.
pub const MAX_TTL: Span = Span::of("max_ttl", 1_000, 600_000);
/// ZooKeeper's `tickTime`.
pub const TICK: Span = Span::of("tick", 10, 60_000);

/// A setting that is a duration, and its bounds, which belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its name in a URL.
    pub key: &'static str,
    /// No less.
    pub least: Duration,
    /// No more.
    pub most: Duration,
}

impl Span {
    const fn of(key: &'static str, least_ms: u64, most_ms: u64) -> Self {
        Self { key, least: Duration::from_millis(least_ms), most: Duration::from_millis(most_ms) }
    }

    /// The same for a store that cannot do with less than this.
    #[must_use]
    pub const fn at_least(self, least: Duration) -> Self {
        Self { least, ..self }
    }

    /// Reads one, like `500ms`.
    ///
    /// # Errors
    /// If it is none, or lies outside.
    pub fn read(self, text: &str) -> Result<Duration, UrlError> {
        let Self { key, least, most } = self;
        let parsed = humantime::parse_duration(text);
        let parsed = parsed.map_err(|_| bad(format!("{key}= is no duration; write it like 500ms")))?;
        if parsed < least || parsed > most {
            return Err(bad(format!("{key}= lies outside {least:?} to {most:?}")));
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_a_duration_are_inclusive() {
        let (least, most) = (Duration::from_millis(10), Duration::from_secs(2));
        assert_eq!((RETRY_MAX.read("10ms"), RETRY_MAX.read("2s")), (Ok(least), Ok(most)));
        assert_eq!(RETRY_MAX.read("9ms").unwrap_err().to_string(), "retry_max= lies outside 10ms to 2s");
        let words = RETRY_MAX.read("soon").unwrap_err().to_string();
        assert_eq!(words, "retry_max= is no duration; write it like 500ms");
        let patient = CONNECT_TIMEOUT.at_least(Duration::from_millis(250));
        assert!(patient.read("249ms").is_err() && patient.read("250ms").is_ok());
    }
}
