//! `PollPace`: when an observer polls the store again.

use std::time::Duration;

use tenure_core::{Host, Moment};

/// The shortest interval between two polls: 10 ms.
const LEAST: Duration = Duration::from_millis(10);

/// Polls immediately at first, and then once per period, counted from poll to poll: a state that lasts for a period
/// is seen.
#[derive(Clone)]
pub(crate) struct PollPace {
    period: Duration,
    asked_at: Option<Moment>,
    /// A hint arrived, and no answer since.
    is_hinted: bool,
}

impl PollPace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period: period.max(LEAST), asked_at: None, is_hinted: false }
    }

    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// Polls when that is due, or earlier after a hint. A query that was dropped is repeated when it was due.
    pub(crate) async fn ask<A>(
        &mut self,
        host: &dyn Host,
        hint: impl Future<Output = ()>,
        question: impl Future<Output = A>,
    ) -> A {
        if let Some(asked_at) = self.asked_at {
            if !self.is_hinted {
                self.is_hinted = tokio::select! {
                    biased;
                    () = host.sleep_until(asked_at + self.period) => false,
                    () = hint => true,
                };
            }
            if self.is_hinted {
                host.sleep_until(asked_at + LEAST).await;
            }
        }
        let asked_at = host.now();
        let answer = question.await;
        (self.asked_at, self.is_hinted) = (Some(asked_at), false);
        answer
    }
}
