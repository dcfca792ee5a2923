//! What is printed: a table in the terminal, or a list for programs.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use console::style;
use serde::Serialize;

use crate::runner::{Outcome, Report, Verdict};

/// `[{"scene", "title", "naive": {"verdict", "what"}, "tenure": {"verdict", "what"}}]`
pub fn json(reports: &[Report]) -> String {
    #[derive(Serialize)]
    struct Row<'a> {
        scene: u8,
        title: &'a str,
        naive: &'a Outcome,
        tenure: &'a Outcome,
    }
    let rows = reports.iter().map(|Report { scene, naive, tenure }| Row {
        scene: scene.number,
        title: scene.title,
        naive,
        tenure,
    });
    serde_json::to_string_pretty(&rows.collect::<Vec<_>>()).expect("BUG: words are JSON")
}

/// The table during the run: one line for each scene, with both verdicts.
pub fn short(reports: &[Report], columns: u16, has_colour: bool) -> String {
    let mut table = table(columns);
    for Report { scene, naive, tenure } in reports {
        let verdicts = [naive, tenure].map(|outcome| format!("{}:", outcome.verdict.word()));
        table.add_row([&scene.number.to_string(), scene.title, &verdicts[0], &verdicts[1]]);
    }
    let text = table.to_string();
    let text = if has_colour { coloured(&text) } else { text };
    // The word ends with a colon only to distinguish it from a word of a title.
    VERDICTS.iter().fold(text, |text, verdict| text.replace(&format!("{}:", verdict.word()), verdict.word()))
}

fn table(columns: u16) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    table.set_header(["", "SCENE", "AS EVERYBODY WRITES IT", "WITH TENURE"]);
    table
}

/// The table of the results, sorted by number. The terminal has `columns` columns.
pub fn full(reports: &[Report], columns: u16, has_colour: bool) -> String {
    let mut table = table(columns);
    for Report { scene, naive, tenure } in reports {
        let number = scene.number.to_string();
        let halves = [half(naive, Verdict::Harmed), half(tenure, Verdict::Safe)];
        table.add_row([&number, scene.title, &halves[0], &halves[1]]);
    }
    let text = table.to_string();
    if has_colour { coloured(&text) } else { text }
}

fn half(outcome: &Outcome, expected: Verdict) -> String {
    let mark = if outcome.verdict == expected { "" } else { "UNEXPECTED, " };
    format!("{mark}{}: {}", outcome.verdict.word(), outcome.what)
}

/// Verdicts in colour: after the table has measured its words.
fn coloured(text: &str) -> String {
    VERDICTS.iter().fold(text.to_owned(), |text, verdict| {
        let word = format!("{}:", verdict.word());
        let styled = match verdict {
            Verdict::Harmed => style(&word).red(),
            Verdict::Safe => style(&word).green(),
            Verdict::NotPlayed => style(&word).yellow(),
        };
        text.replace(&word, &styled.force_styling(true).to_string())
    })
}

const VERDICTS: [Verdict; 3] = [Verdict::Harmed, Verdict::Safe, Verdict::NotPlayed];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenes::SCENES;

    fn shown() -> Vec<Report> {
        let outcome = |verdict, what: &str| Outcome { verdict, what: what.to_owned(), played: None };
        let scene = &SCENES[0];
        let (naive, tenure) = (outcome(Verdict::Harmed, "both"), outcome(Verdict::NotPlayed, "no server"));
        vec![Report { scene, naive, tenure }]
    }

    #[test]
    fn a_verdict_that_is_not_expected_is_told_apart_also_without_colour() {
        let plain = full(&shown(), 120, false);
        assert!(
            plain.contains("harmed: both") && plain.contains("UNEXPECTED, not played: no server"),
            "{plain}"
        );
        assert!(
            !plain.contains('\u{1b}') && full(&shown(), 120, true).contains("\u{1b}[31mharmed:\u{1b}[0m")
        );
    }

    #[test]
    fn while_scenes_are_played_each_has_one_line() {
        let text = short(&shown(), 80, false);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("harmed") && text.contains("not played") && !text.contains(':'), "{text}");
    }
}
