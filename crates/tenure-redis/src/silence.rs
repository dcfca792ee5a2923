//! `Silence`: whether a connection is dead although nobody has said so.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tenure_core::{Host, Moment};

/// What was sent over a connection and not answered. Callers with less patience than the driver would wait for a dead one for
/// ever; one request that was given up at once says nothing.
#[derive(Default)]
pub(crate) struct Silence {
    /// Since when nothing was answered, in ms of the host's clock; 0 if all was.
    since: AtomicU64,
    requests: AtomicU64,
    /// The longest that somebody waited in vain, in ms.
    waited: AtomicU64,
}

/// A request that hopes for an answer; dropped, it has waited in vain.
pub(crate) struct Hope<'a> {
    silence: &'a Silence,
    host: &'a dyn Host,
    sent: u64,
    pub(crate) is_over: bool,
}

fn millis(now: Moment) -> u64 {
    u64::try_from(now.boot.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl Silence {
    /// Nothing came for longer than an answer may take, and it was asked for twice, or for long.
    pub(crate) fn is_deadly(&self, host: &dyn Host, limit: Duration) -> bool {
        let (since, limit) =
            (self.since.load(Ordering::Relaxed), u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        since != 0
            && millis(host.now()).saturating_sub(since) > limit
            && (self.requests.load(Ordering::Relaxed) > 1 || self.waited.load(Ordering::Relaxed) * 2 >= limit)
    }
}

impl<'a> Hope<'a> {
    pub(crate) fn new(silence: &'a Silence, host: &'a dyn Host) -> Self {
        let sent = millis(host.now());
        let _ = silence.since.compare_exchange(0, sent, Ordering::Relaxed, Ordering::Relaxed);
        silence.requests.fetch_add(1, Ordering::Relaxed);
        Self { silence, host, sent, is_over: false }
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        if self.is_over {
            for counter in [&self.silence.since, &self.silence.requests, &self.silence.waited] {
                counter.store(0, Ordering::Relaxed);
            }
        } else {
            let waited = millis(self.host.now()).saturating_sub(self.sent);
            self.silence.waited.fetch_max(waited, Ordering::Relaxed);
        }
    }
}
