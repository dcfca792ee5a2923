//! Leftovers: work that somebody meant to finish.

use crate::{
    tidy::code::is_word,
    tidy::house::{House, Violation},
};

/// Put together here, so that this file does not find itself.
const MARKS: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("db", "g!("),
    concat!("#[ign", "ore"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Of a merge that was not resolved, at the beginning of a line of any text.
const CONFLICTS: &[&str] = &[concat!("<<<", "<<<< "), concat!(">>>", ">>>> ")];

/// No mark of unfinished work in any Rust file, comments and tests included; and none of a merge in any text.
pub(crate) fn of_work(house: &House<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in &house.texts {
        for (index, line) in text.lines().enumerate() {
            if CONFLICTS.iter().any(|mark| line.starts_with(mark)) {
                violations.push(Violation::new(path, index + 1, "left over: a merge that was not resolved"));
            }
        }
    }
    for file in &house.rust {
        for line in file.lines() {
            for mark in MARKS.iter().filter(|mark| has_mark(line.text, mark)) {
                violations.push(Violation::new(&file.path, line.number, format!("left over: {mark}")));
            }
        }
    }
    violations
}

/// A mark is not part of a longer word, such as the template of a temporary file's name.
fn has_mark(text: &str, mark: &str) -> bool {
    text.match_indices(mark).any(|(index, _)| {
        let is_joined_before = mark.starts_with(is_word) && text[..index].ends_with(is_word);
        let is_joined_after = mark.ends_with(is_word) && text[index + mark.len()..].starts_with(is_word);
        !is_joined_before && !is_joined_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn each_mark_is_found_in_code_comments_and_tests() {
        for mark in MARKS {
            for text in [format!("\n    {mark}]\n"), format!("\n// {mark}: later\n")] {
                for path in ["crates/x/src/a.rs", "crates/x/tests/a.rs", "xtask/src/a.rs"] {
                    assert_eq!(judge(of_work, &[(path, &text)]), [format!("{path}:2: left over: {mark}")]);
                }
            }
        }
    }

    /// Such a mark stood in a decision paper for a day: nobody compiles those.
    #[test]
    fn a_merge_that_was_not_resolved_is_found_in_papers_too() {
        for mark in CONFLICTS {
            let text = format!("One.\n{mark}HEAD\nTwo.\n");
            let found = judge(of_work, &[("docs/decisions/0015-x.md", &text)]);
            assert_eq!(found, ["docs/decisions/0015-x.md:2: left over: a merge that was not resolved"]);
        }
    }

    #[test]
    fn parts_of_longer_words_are_none() {
        let template = "let name = \"tenure-".to_owned() + &"X".repeat(6) + "\";\n";
        assert!(judge(of_work, &[("crates/x/src/a.rs", &template)]).is_empty());
        assert!(judge(of_work, &[("crates/x/src/a.rs", "fn todo_list() {}\n")]).is_empty());
    }
}
