//! The table in the terminal, one scene after the other.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use console::style;

use crate::hall::{Outcome, Shown, Verdict};

/// The scenes until now, by number, in so many columns of the terminal.
pub fn of(shown: &[Shown], columns: u16, has_colour: bool) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    table.set_header(["", "SCENE", "AS EVERYBODY WRITES IT", "WITH TENURE"]);
    for Shown { card, naive, tenure } in shown {
        let number = card.number.to_string();
        let halves = [half(naive, Verdict::Harmed), half(tenure, Verdict::Safe)];
        table.add_row([&number, card.title, &halves[0], &halves[1]]);
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
    let paint = |verdict: Verdict| {
        let word = format!("{}:", verdict.word());
        let styled = match verdict {
            Verdict::Harmed => style(word.clone()).red(),
            Verdict::Safe => style(word.clone()).green(),
            Verdict::NotPlayed => style(word.clone()).yellow(),
        };
        (word, styled.force_styling(true).to_string())
    };
    let verdicts = [Verdict::Harmed, Verdict::Safe, Verdict::NotPlayed].map(paint);
    verdicts.iter().fold(text.to_owned(), |text, (word, styled)| text.replace(word.as_str(), styled))
}
