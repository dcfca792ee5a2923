//! Laws: each one is kept by code that cites it and shown by a test that cites it.

use crate::{
    tidy::code::has_word,
    tidy::house::{House, Violation},
    tidy::rust_file::RustFile,
};

const PAPER: &str = "docs/evidence/laws.md";

/// The laws that there must be, L1 to this one; the paper may add more.
const LAST: u32 = 9;

/// Crates that prove: what they cite counts as a test, never as the code that keeps the law.
const PROVERS: &[&str] = &["tenure-testkit", "tenure-sim"];

/// Every law of the paper is cited as `L3` in at least one source and at least one test.
pub(crate) fn cited(house: &House<'_>) -> Vec<Violation> {
    let Some(paper) = house.text(PAPER) else {
        return vec![Violation::new(PAPER, 1, "missing: it lists the laws, L1 to L9")];
    };
    let headings: Vec<(u32, usize)> = paper
        .lines()
        .enumerate()
        .filter_map(|(index, line)| heading(line).map(|law| (law, index + 1)))
        .collect();
    let is_listed = |law: &u32| headings.iter().any(|(listed, _)| listed == law);
    let mut violations: Vec<Violation> = (1..=LAST)
        .filter(|law| !is_listed(law))
        .map(|law| Violation::new(PAPER, 1, format!("has no line that opens with **L{law}")))
        .collect();
    for (law, line) in headings {
        let word = format!("L{law}");
        for (kind, is_test) in [("source", false), ("test", true)] {
            if !house.rust.iter().any(|file| cites(file, &word, is_test)) {
                violations.push(Violation::new(PAPER, line, format!("{word} is cited in no {kind}")));
            }
        }
    }
    violations
}

/// `**L3 …`, also as a heading or in a list.
fn heading(line: &str) -> Option<u32> {
    let rest = line.trim_start_matches(['#', '-', '*', ' ']).strip_prefix('L')?;
    let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
    let is_marked = line.starts_with("**") || line.starts_with(['#', '-', '*']);
    digits.parse().ok().filter(|_| is_marked)
}

fn cites(file: &RustFile, law: &str, is_test: bool) -> bool {
    let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.split('/').next()) else {
        return false;
    };
    let is_proof = PROVERS.contains(&name);
    file.lines().any(|line| (is_proof || line.is_test) == is_test && has_word(line.text, law))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    /// What is said when the paper has laws 1 to 9 and the code cites them as told.
    fn verdict(source: &str, test: (&str, &str)) -> Vec<String> {
        let paper: String = (1..=9).map(|law| format!("**L{law} A law.**\n")).collect();
        judge(cited, &[(PAPER, &paper), ("crates/x/src/a.rs", source), test])
    }

    const ALL: &str = "// L1 L2 L3 L4 L5 L6 L7 L8 L9\n";

    #[test]
    fn laws_that_are_kept_and_shown_are_right() {
        for test in ["crates/x/tests/a.rs", "crates/x/src/b/tests.rs", "crates/tenure-testkit/src/c.rs"] {
            assert!(verdict(ALL, (test, ALL)).is_empty(), "{test}");
        }
        let both = format!("{ALL}#[cfg(test)]\nmod tests {{\n    {ALL}}}\n");
        assert!(verdict(&both, ("crates/x/src/b.rs", "")).is_empty());
    }

    #[test]
    fn a_law_without_code_or_without_test_is_found() {
        let but_three = ALL.replace("L3", "L33");
        assert_eq!(
            verdict(&but_three, ("crates/x/tests/a.rs", ALL)),
            ["docs/evidence/laws.md:3: L3 is cited in no source"]
        );
        assert_eq!(
            verdict(ALL, ("crates/x/tests/a.rs", &but_three)),
            ["docs/evidence/laws.md:3: L3 is cited in no test"]
        );
        assert_eq!(verdict(ALL, ("xtask/src/a.rs", ALL)).len(), 9);
    }

    #[test]
    fn a_paper_that_misses_a_law_or_is_missing_is_found() {
        let files = [(PAPER, "# Laws\n\n## L1 One\nL2 is only spoken of\n"), ("crates/x/src/a.rs", ALL)];
        let found = judge(cited, &files);
        assert!(
            found.contains(&"docs/evidence/laws.md:1: has no line that opens with **L2".to_owned()),
            "{found:?}"
        );
        assert!(found.contains(&"docs/evidence/laws.md:3: L1 is cited in no test".to_owned()), "{found:?}");
        assert_eq!(judge(cited, &[]).len(), 1);
    }
}
