//! Two programs in alternating rounds: how their times per call compare.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::time::{Duration, Instant};

use crate::rounds::Rounds;

/// How long `count` calls of `cycle` take, per call.
pub fn per_call(count: u32, mut cycle: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        cycle();
    }
    start.elapsed() / count
}

/// The quotients of alternating rounds.
#[derive(Debug)]
pub struct Ratio(Rounds<Duration>);

impl Ratio {
    /// Runs `rounds` rounds of each, in turn; each answers its time per call.
    pub fn measure(
        rounds: u32,
        mut raw: impl FnMut() -> Duration,
        mut ours: impl FnMut() -> Duration,
    ) -> Self {
        Self(Rounds::measure(rounds as usize, 2, |program| if program == 0 { raw() } else { ours() }))
    }

    /// A row of a Markdown table: medians, and how far the quotients spread.
    pub fn row(&self, what: &str) -> String {
        let raw = self.0.spread(|round| micros(round[0])).median;
        let ours = self.0.spread(|round| micros(round[1])).median;
        let quotient = self.0.spread(|round| round[0].as_secs_f64() / round[1].as_secs_f64());
        let (least, most) = (quotient.least, quotient.most);
        format!("| {what} | {raw:.1} | {ours:.1} | **{:.2}** | {least:.2} to {most:.2} |", quotient.median)
    }
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
