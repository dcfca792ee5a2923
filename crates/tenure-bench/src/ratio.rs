//! Rounds that alternate between two programs, so that both meet the same noise; and what they say.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::time::{Duration, Instant};

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
pub struct Ratio {
    quotients: Vec<f64>,
    ours: Vec<Duration>,
    raw: Vec<Duration>,
}

impl Ratio {
    /// Runs `rounds` rounds of each, in turn; each answers its time per call.
    pub fn measure(
        rounds: u32,
        mut raw: impl FnMut() -> Duration,
        mut ours: impl FnMut() -> Duration,
    ) -> Self {
        let mut ratio = Self { quotients: Vec::new(), ours: Vec::new(), raw: Vec::new() };
        for _ in 0..rounds {
            let (raw, ours) = (raw(), ours());
            ratio.quotients.push(raw.as_secs_f64() / ours.as_secs_f64());
            ratio.raw.push(raw);
            ratio.ours.push(ours);
        }
        ratio.quotients.sort_by(f64::total_cmp);
        ratio.ours.sort();
        ratio.raw.sort();
        ratio
    }

    /// A row of a Markdown table: medians, and how far the quotients spread.
    pub fn row(&self, what: &str) -> String {
        let middle = self.quotients.len() / 2;
        let (least, most) = (self.quotients[0], self.quotients[self.quotients.len() - 1]);
        format!(
            "| {what} | {:.1} | {:.1} | **{:.2}** | {least:.2} to {most:.2} |",
            micros(self.raw[middle]),
            micros(self.ours[middle]),
            self.quotients[middle],
        )
    }
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
