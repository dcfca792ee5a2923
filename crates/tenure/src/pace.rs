//! `Pace`: when a program that looks on asks the store again.

use std::time::Duration;

use tenure_core::{Host, Moment};

/// No program asks more often than this: 10 ms.
const LEAST: Duration = Duration::from_millis(10);

/// At once at first, and then once in a period, counted from question to question: what lasts for a period is seen.
#[derive(Clone)]
pub(crate) struct Pace {
    period: Duration,
    due: Option<Moment>,
}

impl Pace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period: period.max(LEAST), due: None }
    }

    /// Asks when it is time. A question that is dropped is asked again when it was due.
    pub(crate) async fn ask<A>(&mut self, host: &dyn Host, question: impl Future<Output = A>) -> A {
        if let Some(due) = self.due {
            host.sleep_until(due).await;
        }
        let asked_at = host.now();
        let answer = question.await;
        self.due = Some(asked_at + self.period);
        answer
    }
}
