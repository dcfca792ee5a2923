//! Evidence: a test that a page of data names is there.

use std::collections::HashSet;

use crate::tidy::house::{House, Violation};

const PAGES: &str = "docs/evidence/";
const MUTANTS: &str = "crates/tenure-sim/mutants/";

/// Every name of three words or more in backticks is a function or a mutant of the tree. Pages name tests that way, so
/// that grep finds them; a test that was renamed is no evidence.
pub(crate) fn is_there(house: &House<'_>) -> Vec<Violation> {
    let functions = house.rust.iter().flat_map(|file| file.lines()).filter_map(|line| function(line.text));
    let mutants = house.texts.keys().filter_map(|path| path.strip_prefix(MUTANTS)?.strip_suffix(".toml"));
    let known: HashSet<&str> = functions.chain(mutants).collect();
    pages(house)
        .flat_map(|(path, text)| text.lines().enumerate().map(move |(index, line)| (path, index + 1, line)))
        .filter(|(_, _, line)| line.starts_with("test = "))
        .flat_map(|(path, number, line)| names(line).map(move |name| (path, number, name)))
        .filter(|(_, _, name)| !known.contains(name))
        .map(|(path, number, name)| Violation::new(path, number, format!("no test is named {name}")))
        .collect()
}

/// Every page of data is TOML: a merge may lose the head of a row.
pub(crate) fn is_data(house: &House<'_>) -> Vec<Violation> {
    pages(house)
        .filter_map(|(path, text)| {
            let error = text.parse::<toml::Table>().err()?;
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            Some(Violation::new(path, line, error.message()))
        })
        .collect()
}

fn pages<'a>(house: &'a House<'_>) -> impl Iterator<Item = (&'a String, &'a String)> {
    house.texts.iter().filter(|(path, _)| path.starts_with(PAGES) && path.ends_with(".toml"))
}

/// The name of the function that begins on this line.
fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    Some(&rest[..rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len())])
}

/// What stands in backticks and reads like the name of a test.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.chars().all(is_of_name) && word.matches('_').count() > 1)
}

fn is_of_name(c: char) -> bool {
    c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    const PAGE: &str = "docs/evidence/a.toml";
    const CODE: (&str, &str) =
        ("crates/x/tests/a.rs", "#[test]\nfn a_lock_is_held() {}\nasync fn it_is_free_again() {}\n");

    #[test]
    fn tests_and_mutants_that_are_there_are_evidence() {
        let page =
            "test = \"`a_lock_is_held`, `it_is_free_again`, `token_not_minted`, `faults.rs`, `step_back`\"\n";
        let mutant = ("crates/tenure-sim/mutants/token_not_minted.toml", "");
        assert!(judge(is_there, &[(PAGE, page), CODE, mutant]).is_empty());
    }

    #[test]
    fn a_row_without_its_head_is_found() {
        assert!(judge(is_data, &[(PAGE, "[[row]]\nwhat = 1\n\n[[row]]\nwhat = 2\n")]).is_empty());
        let broken = judge(is_data, &[(PAGE, "[[row]]\nwhat = 1\nwhat = 2\n")]);
        assert!(broken.len() == 1 && broken[0].starts_with("docs/evidence/a.toml:"), "{broken:?}");
    }

    #[test]
    fn a_test_that_was_renamed_is_none() {
        let page = "code = \"`not_looked_at_here`\"\ntest = \"`a_lock_is_held`, `a_lock_was_held`\"\n";
        assert_eq!(
            judge(is_there, &[(PAGE, page), CODE]),
            ["docs/evidence/a.toml:2: no test is named a_lock_was_held"]
        );
    }
}
