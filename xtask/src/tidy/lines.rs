//! Lines of papers: short enough to be read as text, in any window.

use crate::tidy::house::{House, Violation};

/// The longest line of a paper.
const LONGEST: usize = 120;

/// The longest row of a table.
const LONGEST_ROW: usize = 200;

/// Papers whose tables have longer rows, each with the reason.
const WIDE: &[(&str, &str)] = &[(
    "docs/track-record.md",
    "a row is one bug, added at the end: rows that are merged must not be broken up",
)];

/// No line of a paper is longer than 120 columns, but for rows of tables, and what is quoted as a program printed it.
pub(crate) fn of_papers(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in house.texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut is_quoted = false;
        for (index, line) in text.lines().enumerate() {
            let is_fence = line.trim_start().starts_with("```");
            is_quoted ^= is_fence;
            let columns = line.chars().count();
            let longest = longest(path, line).filter(|longest| !is_quoted && columns > *longest);
            if let Some(longest) = longest {
                let what = format!("has {columns} columns; wrap it at {longest}");
                violations.push(Violation::new(path, index + 1, what));
            }
        }
    }
    violations
}

/// How long this line may be; none if nothing is asked of it. A word alone cannot be wrapped.
fn longest(path: &str, line: &str) -> Option<usize> {
    if line.starts_with('|') {
        return (!WIDE.iter().any(|(wide, _)| *wide == path)).then_some(LONGEST_ROW);
    }
    let text = line.trim_start().trim_start_matches(['*', '-', '>']).trim_start();
    text.contains(' ').then_some(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn verdict(path: &str, text: &str) -> Vec<String> {
        judge(of_papers, &[(path, text)])
    }

    #[test]
    fn a_line_is_measured_in_columns_not_in_bytes() {
        let long = format!("é {}", "é".repeat(118));
        assert!(verdict("docs/time.md", &long).is_empty());
        assert_eq!(
            verdict("docs/time.md", &format!("\n{long}é")),
            ["docs/time.md:2: has 121 columns; wrap it at 120"]
        );
        assert_eq!(verdict("crates/x/README.md", &format!("* {long}")).len(), 1);
    }

    #[test]
    fn rows_may_be_longer_but_not_without_end() {
        let row = |columns: usize| format!("| {} |", "a ".repeat(columns / 2 - 2));
        assert!(verdict("docs/time.md", &row(200)).is_empty());
        assert_eq!(verdict("docs/time.md", &row(202)).len(), 1);
        assert!(verdict("docs/track-record.md", &row(900)).is_empty());
    }

    #[test]
    fn what_is_quoted_a_long_link_and_code_are_not_judged() {
        let long = "a ".repeat(100);
        let quoted = format!("```console\n{long}\n```\n");
        assert!(verdict("docs/cli.md", &quoted).is_empty());
        assert_eq!(verdict("docs/cli.md", &format!("{quoted}{long}\n")).len(), 1, "the quotation is over");
        assert!(verdict("docs/cli.md", &format!("* https://example.org/{}", "a".repeat(120))).is_empty());
        assert!(verdict("crates/x/src/a.rs", &long).is_empty());
    }
}
