//! What the bench prints: one table for text, one object for programs.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use crate::{
    bench::part::{Answer, Part},
    text, view,
};

/// All that was measured.
#[derive(Serialize)]
pub(crate) struct ReportJson {
    backend: &'static str,
    /// Of each part.
    duration_ms: u128,
    parts: Vec<PartJson>,
}

#[derive(Serialize)]
struct PartJson {
    part: &'static str,
    tasks: usize,
    per_second: f64,
    /// What `p50_us`, `p99_us` and `worst_us` are the times of: `request`, `cycle` or `wait`.
    timed: &'static str,
    p50_us: f64,
    p99_us: f64,
    worst_us: f64,
    /// These are `null` for parts without waiting.
    us_per_change: Option<f64>,
    jain: Option<f64>,
    starved: Option<usize>,
}

/// For programs.
pub(crate) fn json(backend: &'static str, duration: Duration, answers: &[Answer]) -> ReportJson {
    ReportJson { backend, duration_ms: duration.as_millis(), parts: answers.iter().map(part).collect() }
}

fn part(answer: &Answer) -> PartJson {
    let sharing = answer.sharing;
    PartJson {
        part: answer.part.key(),
        tasks: answer.part.tasks(),
        per_second: rounded(answer.per_second),
        timed: answer.part.timed(),
        p50_us: micros(answer.p50),
        p99_us: micros(answer.p99),
        worst_us: micros(answer.worst),
        us_per_change: sharing.map(|sharing| micros(sharing.change)),
        jain: sharing.map(|sharing| rounded(sharing.jain)),
        starved: sharing.map(|sharing| sharing.starved),
    }
}

fn micros(d: Duration) -> f64 {
    rounded(d.as_secs_f64() * 1e6)
}

/// To three digits behind the point.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// For people.
pub(crate) fn table(answers: &[Answer]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["PART", "PER SECOND", "P50", "P99", "WORST", "NOTES"]);
    for answer in answers {
        let [p50, p99, worst] = [answer.p50, answer.p99, answer.worst].map(text::brief);
        table.add_row([answer.part.title(), rate(answer.per_second), p50, p99, worst, notes(answer)]);
    }
    // All but the first and the last are numbers.
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    view::lines(table)
}

fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

fn notes(answer: &Answer) -> String {
    let timed = match answer.part {
        Part::RoundTrip => "times of a request: to look at a free lock",
        Part::Cycle(1) => "times of a cycle: acquire and release",
        Part::Cycle(_) => "the same, each with a lock of its own, on one connection",
        Part::Change(_) | Part::Hold(_) => "times of a wait",
    };
    let Some(sharing) = answer.sharing else { return timed.to_owned() };
    let starved = match sharing.starved {
        0 => "nobody starved".to_owned(),
        starved => format!("{starved} starved"),
    };
    let hasty =
        if sharing.is_hasty { "; too few turns to judge fairness, use a longer --duration" } else { "" };
    let change = text::brief(sharing.change);
    format!("{timed}; {change} per change, Jain {:.3}, {starved}{hasty}", sharing.jain)
}
