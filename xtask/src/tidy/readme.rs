//! The README: what it tells users to run is what we run.

use crate::tidy::house::{House, Violation};

const PAPER: &str = "README.md";
const CI: &str = ".ci/run";

/// Start it, test it: the two commands that a newcomer copies, to the letter.
const COMMANDS: &[&str] =
    &[r#"cargo run --release -- run hello -- echo "I hold the lock""#, "cargo xtask test"];

/// What CI runs; it ends with the README's test command.
const CI_COMMAND: &str = "cargo xtask ci";

/// The README has both commands, and CI is there and runs ours.
pub(crate) fn commands(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    match house.text(PAPER) {
        None => violations.push(Violation::new(PAPER, 1, "missing: it is where everybody starts")),
        Some(paper) => {
            let absent = COMMANDS.iter().filter(|command| !paper.contains(**command));
            violations
                .extend(absent.map(|c| Violation::new(PAPER, 1, format!("does not have the command: {c}"))));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn paper() -> String {
        COMMANDS.iter().map(|command| format!("    {command}\n")).collect()
    }

    #[test]
    fn both_commands_and_the_call_are_right() {
        assert!(judge(commands, &[(PAPER, &paper()), (CI, "#!/bin/sh\nexec cargo xtask ci\n")]).is_empty());
    }

    #[test]
    fn a_command_that_is_almost_right_is_found() {
        let paper = paper().replace("--release ", "");
        assert_eq!(judge(commands, &[(PAPER, &paper), (CI, "exec cargo xtask ci\n")]).len(), 1);
    }

    #[test]
    fn a_call_in_a_comment_is_none() {
        let found = judge(commands, &[(PAPER, &paper()), (CI, "# cargo xtask ci\n")]);
        assert_eq!(found, [".ci/run:1: does not call cargo xtask ci"]);
    }

    #[test]
    fn what_is_missing_is_found() {
        assert_eq!(judge(commands, &[]).len(), 2);
    }
}
