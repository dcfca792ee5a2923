//! The README: what it tells users to run is what we run, and it is short.

use crate::tidy::house::{House, Violation};

const PAGE: &str = "README.md";
const CI: &str = ".ci/run";

/// Start it, test it: the two commands that a newcomer copies, to the letter.
const COMMANDS: &[&str] = &[r#"cargo run -- run hello -- echo "I hold the lock""#, "cargo xtask test"];

/// What CI runs; it ends with the README's test command.
const CI_COMMAND: &str = "cargo xtask ci";

/// The README has both commands, and CI is there and runs ours.
pub(crate) fn commands(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    match house.text(PAGE) {
        None => violations.push(Violation::new(PAGE, 1, "missing: it is where a newcomer starts")),
        Some(page) => {
            let absent = COMMANDS.iter().filter(|command| !page.contains(**command));
            violations
                .extend(absent.map(|c| Violation::new(PAGE, 1, format!("does not have the command: {c}"))));
        }
    }
    match house.text(CI) {
        None => violations.push(Violation::new(CI, 1, format!("missing: it calls {CI_COMMAND}"))),
        Some(script) if !calls_ci(script) => {
            violations.push(Violation::new(CI, 1, format!("does not call {CI_COMMAND}")));
        }
        Some(_) => {}
    }
    violations
}

fn calls_ci(script: &str) -> bool {
    script.lines().any(|line| !line.trim_start().starts_with('#') && line.contains(CI_COMMAND))
}

/// A newcomer reads the README to its end: this is the most words that it may have.
pub(crate) fn length(house: &House<'_>) -> Vec<Violation> {
    let count = words(house.text(PAGE).unwrap_or_default());
    if count <= WORDS {
        return Vec::new();
    }
    vec![Violation::new(
        PAGE,
        1,
        format!("has {count} words, {WORDS} at most: move what is not needed first"),
    )]
}

/// What has a letter or a digit, but for the targets of links.
fn words(text: &str) -> usize {
    let lines = text.lines().filter(|line| !(line.starts_with('[') && line.contains("]: ")));
    let without_targets = |line: &str| {
        let mut parts = line.split("](");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |line, part| line + part.split_once(')').map_or("", |(_, rest)| rest))
    };
    let count = |line: &str| {
        let line = without_targets(line);
        line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    };
    lines.map(count).sum()
}

const WORDS: usize = 950;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn words_are_counted_without_marks_and_targets() {
        assert_eq!(words("| one | [two](https://example.org/a b) three\n\n[two]: https://x\n* four -\n"), 4);
        let long = "word ".repeat(WORDS + 1);
        assert_eq!(judge(length, &[(PAGE, &long)]).len(), 1);
        assert!(judge(length, &[(PAGE, "short")]).is_empty());
    }

    fn page() -> String {
        COMMANDS.iter().map(|command| format!("    {command}\n")).collect()
    }

    #[test]
    fn both_commands_and_the_call_are_right() {
        assert!(judge(commands, &[(PAGE, &page()), (CI, "#!/bin/sh\nexec cargo xtask ci\n")]).is_empty());
    }

    #[test]
    fn a_command_that_is_almost_right_is_found() {
        let page = page().replace("run hello", "hello");
        assert_eq!(judge(commands, &[(PAGE, &page), (CI, "exec cargo xtask ci\n")]).len(), 1);
    }

    #[test]
    fn a_call_in_a_comment_is_none() {
        let found = judge(commands, &[(PAGE, &page()), (CI, "# cargo xtask ci\n")]);
        assert_eq!(found, [".ci/run:1: does not call cargo xtask ci"]);
    }

    #[test]
    fn what_is_missing_is_found() {
        assert_eq!(judge(commands, &[]).len(), 2);
    }
}
