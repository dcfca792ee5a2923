//! `StallDetector`: whether a connection is dead or stuck without an error.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure_core::{Host, Moment, locked};

/// Detects a connection over which no byte arrives any more. It belongs to one connection and to its
/// [`Socket`](crate::Socket).
///
/// The one rule: **something was sent, and for longer than the limit no byte arrived.** That holds for any caller.
/// A caller with less patience than the limit leaves its request behind. If the connection is alive, the answer
/// still arrives and is counted. So two requests that were dropped immediately are no evidence against a healthy
/// connection, and one that was dropped detects a dead one. The same holds if nothing was sent for that long
/// although a caller waits: the runtime that sends is blocked.
///
/// Answers come in the order of the requests: where one request waits, those behind it wait as well, and the limit
/// counts from the last byte. The clock is read for a byte only if a caller waits for more: when the caller of that
/// answer has left, or at the next check.
pub struct StallDetector {
    host: Arc<dyn Host>,
    limit: Duration,
    state: Mutex<StallState>,
}

#[derive(Default)]
struct StallState {
    missing: Missing,
    /// Callers that wait for an answer.
    waiting: usize,
    /// How often bytes were received.
    heard: u64,
    /// How much longer than the limit it may be silent.
    longer: Duration,
}

/// Whether an answer is missing.
#[derive(Default)]
enum Missing {
    #[default]
    No,
    /// Something arrived, and the callers that wait still wait for more.
    Perhaps,
    /// A caller asked at this moment, and nothing has been sent since.
    Unsent(Moment),
    Since(Moment),
}

/// A caller that waits for an answer, until this is dropped.
pub struct Awaited<'a> {
    detector: &'a StallDetector,
    /// How often bytes had been received when it asked.
    heard: u64,
}

impl StallDetector {
    /// For one connection, which may be silent for `limit` after a request.
    pub fn new(host: Arc<dyn Host>, limit: Duration) -> Arc<Self> {
        Arc::new(Self { host, limit, state: Mutex::default() })
    }

    /// The clock that it uses.
    #[cfg(feature = "socket")]
    pub(crate) fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// A caller asks, and waits for the answer.
    pub fn ask(&self) -> Awaited<'_> {
        let mut state = locked(&self.state);
        state.waiting += 1;
        if matches!(state.missing, Missing::No) {
            state.missing = Missing::Unsent(self.host.now());
        }
        Awaited { detector: self, heard: state.heard }
    }

    /// Bytes were sent.
    pub fn on_sent(&self) {
        let mut state = locked(&self.state);
        state.missing = match state.missing {
            Missing::Unsent(since) | Missing::Since(since) => Missing::Since(since),
            Missing::No | Missing::Perhaps => Missing::Since(self.host.now()),
        };
    }

    /// Bytes arrived.
    pub fn on_heard(&self) {
        let mut state = locked(&self.state);
        state.heard += 1;
        state.missing = if state.waiting > 0 { Missing::Perhaps } else { Missing::No };
    }

    /// Nothing arrived for longer than the limit, and something should have.
    pub fn is_stalled(&self) -> bool {
        let since = locked(&self.state).missing_since(&*self.host);
        since.is_some_and(|since| since.elapsed(self.host.now()) > self.limit())
    }

    /// The first answer took this long: a server that is slow, and not down, may be silent four times as long, and for 2 s at
    /// most.
    pub fn first_answer_took(&self, took: Duration) {
        let slow = (took * SLOWER).min(SLOWEST);
        locked(&self.state).longer = slow.saturating_sub(self.limit);
    }

    fn limit(&self) -> Duration {
        self.limit + locked(&self.state).longer
    }

    /// Waits until no byte has arrived for `limit`, or until `limit` has passed `most` times: a slow server may answer as
    /// often as a caller needs, each time as late as that.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn silence(&self, limit: Duration, most: u32) {
        let end = self.host.now() + limit * most;
        let (mut heard, mut since) = (self.heard(), self.host.now());
        while since.elapsed(self.host.now()) < limit && !end.is_over(self.host.now()) {
            self.host.sleep_until(self.host.now() + limit / LOOKS).await;
            if self.heard() != heard {
                (heard, since) = (self.heard(), self.host.now());
            }
        }
    }

    /// How often bytes were received: it grows while the connection makes progress.
    pub fn heard(&self) -> u64 {
        locked(&self.state).heard
    }
}

/// How many times the time of its first answer a server may be silent.
const SLOWER: u32 = 4;
/// However slow its first answer was.
const SLOWEST: Duration = Duration::from_secs(2);
/// How often the silence of a limit is looked for.
const LOOKS: u32 = 8;

impl StallState {
    /// An answer that may be missing counts from the first check that finds it so.
    fn missing_since(&mut self, host: &dyn Host) -> Option<Moment> {
        if matches!(self.missing, Missing::Perhaps) {
            self.missing = Missing::Since(host.now());
        }
        match self.missing {
            Missing::Unsent(since) | Missing::Since(since) => Some(since),
            Missing::No | Missing::Perhaps => None,
        }
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.detector.state);
        state.waiting -= 1;
        let (StallDetector { host, limit, .. }, longer) = (self.detector, state.longer);
        let is_void = match state.missing {
            // It was dropped before it could be sent.
            Missing::Unsent(since) => since.elapsed(host.now()) <= *limit + longer,
            // It was answered, or a request before it was. A dropped request may be answered or not.
            _ => state.heard != self.heard,
        };
        if state.waiting == 0 && is_void {
            state.missing = Missing::No;
        }
        state.missing_since(&**host);
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::host::{PausedHost, pass};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    async fn ms(ms: u64) {
        pass(Duration::from_millis(ms)).await;
    }

    fn detector() -> Arc<StallDetector> {
        StallDetector::new(PausedHost::new(1), LIMIT)
    }

    /// Two requests that callers with little patience dropped immediately left a mark on a healthy connection: it
    /// was replaced after an idle second. That was fixed on PostgreSQL, and not on its sibling.
    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_and_answered_later_says_nothing() {
        let detector = detector();
        for patience in [0, 25] {
            for _ in 0..2 {
                let asked = detector.ask();
                detector.on_sent();
                ms(patience).await;
                drop(asked);
            }
            ms(5).await;
            detector.on_heard();
            ms(1000).await;
            assert!(!detector.is_stalled(), "both were answered, though nobody looked");
        }
        let first = detector.ask();
        detector.on_sent();
        ms(400).await;
        assert!(!detector.is_stalled(), "nobody has waited for long");
        drop(first);
    }

    /// A server of 300 ms to an answer was given up 2 s after the socket, with one of eight answers missing, each time.
    #[tokio::test(start_paused = true)]
    async fn a_slow_server_is_not_silent_until_it_has_answered_often_enough() {
        let detector = detector();
        let began = tokio::time::Instant::now();
        let silence = async {
            detector.silence(LIMIT, 8).await;
            began.elapsed()
        };
        let answers = async |pause: u64, count: usize| {
            for _ in 0..count {
                ms(pause).await;
                detector.on_heard();
            }
        };
        let (silent, ()) = tokio::join!(silence, answers(400, 5));
        assert!((2_500..2_700).contains(&silent.as_millis()), "{silent:?}");
        let began = tokio::time::Instant::now();
        let (_, ()) = tokio::join!(detector.silence(LIMIT, 8), answers(100, 40));
        assert!((4_000..4_200).contains(&began.elapsed().as_millis()), "it is not for ever");
    }

    /// A server of 600 ms to an answer was left with each request, and what it did was stopped.
    #[tokio::test(start_paused = true)]
    async fn a_slow_server_may_be_silent_for_longer() {
        for (first, silent, is_stalled) in
            [(100, 501, true), (300, 1_199, false), (300, 1_201, true), (5_000, 2_001, true)]
        {
            let detector = detector();
            detector.first_answer_took(Duration::from_millis(first));
            let _asked = detector.ask();
            detector.on_sent();
            ms(silent).await;
            assert_eq!(detector.is_stalled(), is_stalled, "{first} {silent}");
        }
    }

    /// No caller needs to wait for the whole limit: the request has no answer, whichever caller dropped it.
    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_is_found_by_callers_with_less_patience_than_the_limit() {
        let detector = detector();
        for _ in 0..3 {
            assert!(!detector.is_stalled());
            let asked = detector.ask();
            detector.on_sent();
            ms(170).await;
            drop(asked);
        }
        assert!(detector.is_stalled());
    }

    /// An answer that arrives as its caller leaves is an answer: nothing more is expected.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_took_leaves_nothing_behind() {
        let detector = detector();
        let asked = detector.ask();
        detector.on_sent();
        detector.on_heard();
        drop(asked);
        ms(1000).await;
        assert!(!detector.is_stalled());
        drop(detector.ask());
        ms(1000).await;
        assert!(!detector.is_stalled(), "it was never sent");
    }

    /// L6: of two requests at the same time the first is answered, and the second waits behind a row that another
    /// program has locked. The next one needs another connection, and does not wait as well.
    #[tokio::test(start_paused = true)]
    async fn who_still_waits_after_an_answer_counts_from_that_answer() {
        let detector = detector();
        let (first, second) = (detector.ask(), detector.ask());
        detector.on_sent();
        ms(400).await;
        detector.on_heard();
        drop(first);
        ms(400).await;
        assert!(!detector.is_stalled(), "it gets on");
        ms(101).await;
        assert!(detector.is_stalled());
        detector.on_heard();
        drop(second);
        ms(1000).await;
        assert!(!detector.is_stalled(), "nobody waits");
    }

    /// A blocked runtime owned the requests of all callers, and its connection counted as healthy.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_sent_finds_a_runtime_that_stands_still() {
        let detector = detector();
        let asked = detector.ask();
        ms(400).await;
        assert!(!detector.is_stalled());
        ms(101).await;
        assert!(detector.is_stalled());
        drop(asked);
        assert!(detector.is_stalled(), "it was given up since");
        detector.on_sent();
        detector.on_heard();
        assert!(!detector.is_stalled(), "it goes on");
    }

    /// A part of an answer arrived, and then nothing: a check detects it, though no caller has left.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_in_the_middle_counts_from_the_first_look() {
        let detector = detector();
        let asked = [detector.ask(), detector.ask()];
        detector.on_sent();
        detector.on_heard();
        ms(400).await;
        assert!(!detector.is_stalled(), "it is looked at first");
        ms(501).await;
        assert!(detector.is_stalled());
        detector.on_heard();
        detector.on_sent();
        ms(400).await;
        let [first, _second] = asked;
        drop(first);
        ms(101).await;
        assert!(detector.is_stalled(), "from when more was sent");
    }
}
