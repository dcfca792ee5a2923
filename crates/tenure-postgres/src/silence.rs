//! `Silence`: whether a connection is dead or stuck although nobody has said so.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tenure_core::{Host, Moment};

use crate::memory::locked;

/// What was sent over a connection and not answered. Answers come in the order of the questions: one that waits for a row
/// that a stranger has locked makes all behind it wait.
#[derive(Default)]
pub(crate) struct Silence {
    /// Since when nothing was answered, in ms of the host's clock; 0 if all was.
    since: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    /// Those that wait now, by number, and since when: the first has waited longest.
    waiting: Mutex<BTreeMap<u64, u64>>,
    /// How many have waited in vain for more than a moment, since the last answer; and the longest that one of them did, in ms.
    vain: AtomicU64,
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
    /// Nothing came for longer than an answer may take: somebody has waited for so long, or some have, one after the other.
    ///
    /// A request that was given up at once says nothing: nobody looked whether it was answered later.
    pub(crate) fn is_deadly(&self, host: &dyn Host, limit: Duration) -> bool {
        let (since, now) = (self.since.load(Relaxed), millis(host.now()));
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        if since == 0 || now.saturating_sub(since) <= limit {
            return false;
        }
        let oldest = locked(&self.waiting).first_key_value().map(|(_, asked)| *asked);
        let waits_long = oldest.is_some_and(|asked| now.saturating_sub(asked) > limit);
        waits_long || self.vain.load(Relaxed) > 1 || self.waited.load(Relaxed) * 2 >= limit
    }

    /// How far the answers have come.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }
}

impl<'a> Hope<'a> {
    pub(crate) fn new(silence: &'a Silence, host: &'a dyn Host) -> Self {
        let asked = millis(host.now());
        let _ = silence.since.compare_exchange(0, asked, Relaxed, Relaxed);
        let mut waiting = locked(&silence.waiting);
        let number = silence.sent.fetch_add(1, Relaxed) + 1;
        waiting.insert(number, asked);
        Self { silence, host, number, asked, is_over: false }
    }

    /// It was answered, and so was everything before it.
    pub(crate) fn fulfil(mut self) {
        self.is_over = true;
        let silence = self.silence;
        let answered = silence.answered.fetch_max(self.number, Relaxed).max(self.number);
        let is_all = answered >= silence.sent.load(Relaxed);
        silence.since.store(if is_all { 0 } else { millis(self.host.now()) }, Relaxed);
        silence.vain.store(0, Relaxed);
        silence.waited.store(0, Relaxed);
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        locked(&self.silence.waiting).remove(&self.number);
        let waited = millis(self.host.now()).saturating_sub(self.asked);
        if !self.is_over && waited >= MOMENT {
            self.silence.vain.fetch_add(1, Relaxed);
            self.silence.waited.fetch_max(waited, Relaxed);
        }
    }
}

/// ms. Who is given up sooner may well be answered in time.
const MOMENT: u64 = 20;

#[cfg(test)]
mod tests {
    use tenure_testkit::host::{PausedHost, pass};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    async fn ms(ms: u64) {
        pass(Duration::from_millis(ms)).await;
    }

    /// A request that was given up at once left its mark on a healthy connection: the next two verbs that met there took it for
    /// stuck, and one of them was stopped by the other.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_given_up_at_once_says_nothing_of_later_ones() {
        let (host, silence) = (PausedHost::new(1), Silence::default());
        let hope = || Hope::new(&silence, &*host);
        for _ in 0..3 {
            drop(hope());
        }
        ms(700).await;
        let first = hope();
        ms(2).await;
        let second = hope();
        ms(400).await;
        assert!(!silence.is_deadly(&*host, LIMIT), "nobody waits for long");
        ms(100).await;
        assert!(silence.is_deadly(&*host, LIMIT), "the first has waited for 502 ms");
        first.fulfil();
        assert!(!silence.is_deadly(&*host, LIMIT), "answers come");
        second.fulfil();
        ms(700).await;
        assert!(!silence.is_deadly(&*host, LIMIT), "nobody waits");
    }

    /// Nobody need wait for the whole limit: who waits in vain one after the other, each for as long as it can, shows it too.
    #[tokio::test(start_paused = true)]
    async fn some_that_wait_in_vain_one_after_the_other_are_enough() {
        let (host, silence) = (PausedHost::new(1), Silence::default());
        for _ in 0..3 {
            assert!(!silence.is_deadly(&*host, LIMIT));
            let hope = Hope::new(&silence, &*host);
            ms(170).await;
            drop(hope);
        }
        assert!(silence.is_deadly(&*host, LIMIT));
    }
}
