//! Citations: holes and hazards can be looked up in the repository, and nothing is cited that is not in it.

use std::collections::BTreeSet;

use crate::tidy::{
    code::is_word,
    house::{House, Violation},
};

/// Where holes and hazards have their entries, each under a heading of its own.
pub(crate) const PAPERS: &[&str] = &["docs/holes.md", "docs/hazards.md"];

/// How papers were cited that are not in the repository. Put together here, so that this file does not find itself.
const ELSEWHERE: &[&str] = &[
    concat!("esign ", "§"),
    concat!("ssue 2", ", point"),
    concat!("ssue 3", ", point"),
    concat!("safety.md ", "H"),
    concat!("safety.md ", "S"),
    concat!("design", ".md"),
    concat!("field", ".md"),
    concat!("style", ".md"),
    concat!("ecosystem", ".md"),
];

/// Every hole, section and hazard that a text cites has an entry.
pub(crate) fn of_holes(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut entries = BTreeSet::new();
    for paper in PAPERS {
        match house.text(paper) {
            Some(text) => entries.extend(text.lines().filter_map(entry)),
            None => violations.push(Violation::new(*paper, 1, "missing: its numbers are looked up there")),
        }
    }
    for (path, text) in &house.texts {
        for (index, line) in text.lines().enumerate() {
            for cited in cited(line).into_iter().filter(|cited| !entries.contains(cited)) {
                let what = format!("cites {cited}, which has no entry in {}", PAPERS.join(" or "));
                violations.push(Violation::new(path, index + 1, what));
            }
        }
    }
    violations
}

/// No text cites a paper that is not in the repository.
pub(crate) fn of_other_papers(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in &house.texts {
        for (index, line) in text.lines().enumerate() {
            if let Some(mark) = ELSEWHERE.iter().find(|mark| line.contains(**mark)) {
                let what = format!("cites what is not in the repository: {mark}");
                violations.push(Violation::new(path, index + 1, what));
            }
        }
    }
    violations
}

/// What a heading is the entry of: `### H1.1 …`, `### S3.3 …`, `### Hazard 5: …`.
fn entry(line: &str) -> Option<String> {
    cited(line.strip_prefix("### ")?).into_iter().next()
}

/// What a line cites: `H1.1`, `S3.3`, and each number after the word for a hazard.
fn cited(line: &str) -> Vec<String> {
    let words: Vec<&str> =
        line.split(|c: char| !is_word(c) && c != '.').map(|w| w.trim_matches('.')).collect();
    let mut cited: Vec<String> =
        words.iter().filter(|word| is_number(word)).map(ToString::to_string).collect();
    for (index, word) in words.iter().enumerate() {
        if matches!(*word, "hazard" | "hazards" | "Hazard" | "Hazards") {
            let list = words[index + 1..].iter().filter(|word| !matches!(**word, "" | "and"));
            let numbers = list.map_while(|word| word.parse::<u32>().ok());
            cited.extend(numbers.map(|number| format!("hazard {number}")));
        }
    }
    cited
}

/// `H1.1` or `S3.3`.
fn is_number(word: &str) -> bool {
    let is_digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let numbers = word.strip_prefix(['H', 'S']).and_then(|rest| rest.split_once('.'));
    numbers.is_some_and(|(group, item)| is_digits(group) && is_digits(item))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    /// What is said of a source with this line, where the papers have two holes and two hazards.
    fn verdict(line: &str) -> Vec<String> {
        let holes = "# Holes\n\n### H1.1 One\n\n### S3.3 An argument\n";
        let hazards = "# Hazards\n\n### Hazard 5: DEL\n\n### Hazard 12: late\n";
        let files = [(PAPERS[0], holes), (PAPERS[1], hazards), ("crates/x/src/a.lua", line)];
        judge(of_holes, &files)
    }

    #[test]
    fn what_has_an_entry_may_be_cited() {
        for line in [
            "-- H1.1, S3.3 g, hazard 5.",
            "(H1.1)",
            "Hazards 5 and 12: x",
            "hazards 5, 12, H1.1",
            "AWS S3, H2",
        ] {
            assert!(verdict(line).is_empty(), "{line}: {:?}", verdict(line));
        }
    }

    #[test]
    fn what_has_no_entry_is_found() {
        // In two parts, so that this file cites none of them.
        for (start, end) in [("H9", ".9"), ("S7", ".4"), ("haz", "ard 65"), ("haz", "ard 13")] {
            let cited = format!("{start}{end}");
            let found = verdict(&format!("-- L1, H1.1, {cited}: x"));
            assert_eq!(found.len(), 1, "{cited}: {found:?}");
            assert!(found[0].starts_with(&format!("crates/x/src/a.lua:1: cites {cited},")), "{found:?}");
        }
        assert_eq!(verdict(&format!("hazards 5 and {}", 13)).len(), 1, "each of a list");
    }

    #[test]
    fn papers_that_are_missing_are_found() {
        assert_eq!(judge(of_holes, &[]).len(), 2);
    }

    #[test]
    fn papers_that_are_elsewhere_are_found() {
        for mark in ELSEWHERE {
            let line = format!("/// As {mark}8 says.\n");
            assert_eq!(judge(of_other_papers, &[("crates/x/tests/a.rs", &line)]).len(), 1, "{mark}");
        }
        let ours = "See docs/safety.md, [safety](safety.md#x), and etcd issue 11456.\n";
        assert!(judge(of_other_papers, &[("docs/time.md", ours)]).is_empty());
    }
}
