//! `PollPace`: when a program that looks on asks the store again.

use std::time::Duration;

use tenure_core::{Host, Moment};

/// No program asks more often than this: 10 ms.
const LEAST: Duration = Duration::from_millis(10);

/// Immediately at first, and then once in a period, counted from question to question: what lasts for a
/// period is seen.
#[derive(Clone)]
pub(crate) struct PollPace {
    period: Duration,
    asked_at: Option<Moment>,
    /// There was a hint, and no answer since.
    is_hinted: bool,
}

impl PollPace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period: period.max(LEAST), asked_at: None, is_hinted: false }
    }

    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// Asks when it is time, or sooner if there is a hint. A question that is dropped is asked again when it
    /// was due.
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
