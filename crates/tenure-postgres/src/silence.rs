//! `Silence`: whether a connection is dead or stuck although nobody has said so.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tenure_core::{Host, Moment};

/// What was sent over a connection and not answered. Answers come in the order of the questions: one that waits for a row
/// that a stranger has locked makes all behind it wait.
#[derive(Default)]
pub(crate) struct Silence {
    /// Since when nothing was answered, in ms of the host's clock; 0 if all was.
    since: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    /// How many wait now.
    waiting: AtomicU64,
    /// The longest that somebody waited in vain, in ms.
    waited: AtomicU64,
}

/// A request that hopes for an answer; dropped before that, it has waited in vain.
pub(crate) struct Hope<'a> {
    silence: &'a Silence,
    host: &'a dyn Host,
    number: u64,
    asked: u64,
    is_over: bool,
}

fn millis(now: Moment) -> u64 {
    u64::try_from(now.boot.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl Silence {
    /// Nothing came for longer than an answer may take. One request that was given up at once says nothing: nobody looked
    /// whether it was answered later.
    pub(crate) fn is_deadly(&self, host: &dyn Host, limit: Duration) -> bool {
        let since = self.since.load(Relaxed);
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        if since == 0 || millis(host.now()).saturating_sub(since) <= limit {
            return false;
        }
        let open = self.sent.load(Relaxed).saturating_sub(self.answered.load(Relaxed));
        self.waiting.load(Relaxed) > 0 || open > 1 || self.waited.load(Relaxed) * 2 >= limit
    }
}

impl<'a> Hope<'a> {
    pub(crate) fn new(silence: &'a Silence, host: &'a dyn Host) -> Self {
        let asked = millis(host.now());
        let _ = silence.since.compare_exchange(0, asked, Relaxed, Relaxed);
        silence.waiting.fetch_add(1, Relaxed);
        let number = silence.sent.fetch_add(1, Relaxed) + 1;
        Self { silence, host, number, asked, is_over: false }
    }

    /// It was answered, and so was everything before it.
    pub(crate) fn fulfil(mut self) {
        self.is_over = true;
        let silence = self.silence;
        let answered = silence.answered.fetch_max(self.number, Relaxed).max(self.number);
        let is_all = answered >= silence.sent.load(Relaxed);
        silence.since.store(if is_all { 0 } else { millis(self.host.now()) }, Relaxed);
        silence.waited.store(0, Relaxed);
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        self.silence.waiting.fetch_sub(1, Relaxed);
        if !self.is_over {
            let waited = millis(self.host.now()).saturating_sub(self.asked);
            self.silence.waited.fetch_max(waited, Relaxed);
        }
    }
}
