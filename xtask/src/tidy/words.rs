//! Words: a public name does not use a word that the glossary gives up for another one.

use crate::tidy::{
    code::is_word,
    house::{House, Violation},
};

const PAPER: &str = "docs/glossary.md";

/// What opens the words of an entry that are not to be used.
const NOT: &str = "*Not:* ";

/// What stands between `pub` and a name.
const BEFORE_NAMES: &[&str] =
    &["async", "const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union", "unsafe"];

/// Public names that may use a word that was given up, each with the reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "tenure-core",
        "request_timeout",
        "the time-out of one request to the store, of which a claim may need several",
    ),
    ("tenure-cas", "version", "of a cell, where compare and set has that word; not of a token"),
];

/// No public item or field of a published crate is called by a word that stands after `*Not:*`.
pub(crate) fn of_public_names(house: &House<'_>) -> Vec<Violation> {
    let Some(paper) = house.text(PAPER) else {
        return vec![Violation::new(PAPER, 1, "missing: it has the words")];
    };
    let words = words(paper);
    let is_published = |name: &str| house.workspace.packages.iter().any(|p| p.name == name && p.is_published);
    let mut violations = Vec::new();
    for file in &house.rust {
        let Some((package, _)) = file.in_crate_source().filter(|(name, _)| is_published(name)) else {
            continue;
        };
        for line in file.shipped_lines() {
            let Some(name) = public_name(line.code) else { continue };
            let given_up = words.iter().find(|(_, not)| contains(&parts(name), not));
            if let Some((word, not)) = given_up.filter(|_| !is_allowed(package, name)) {
                let what =
                    format!("{name}: `{}` is not our word; the glossary has **{word}**", not.join(" "));
                violations.push(Violation::new(&file.path, line.number, what));
            }
        }
    }
    violations
}

/// Words that are given up, in parts, each with the heading under which that is said.
fn words(paper: &str) -> Vec<(&str, Vec<String>)> {
    let mut heading = "";
    let mut words = Vec::new();
    for line in paper.lines() {
        if let Some(word) = line.strip_prefix("### ") {
            heading = word;
        } else if let Some(list) = line.strip_prefix(NOT) {
            let phrases = list.trim_end_matches('.').split(',');
            words.extend(
                phrases.map(|phrase| (heading, phrase.split_whitespace().map(str::to_lowercase).collect())),
            );
        }
    }
    words
}

/// The name of the public item or field that a line declares.
fn public_name(code: &str) -> Option<&str> {
    let rest = code.trim_start().strip_prefix("pub ")?;
    let mut tokens = rest.split(|c| !is_word(c)).filter(|token| !token.is_empty());
    tokens.find(|token| !BEFORE_NAMES.contains(token)).filter(|_| !rest.starts_with("use "))
}

/// The words of a name, in small letters: of `request_timeout`, and of `ClientId`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.extend(c.to_lowercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn contains(name: &[String], not: &[String]) -> bool {
    !not.is_empty() && name.windows(not.len()).any(|part| part == not)
}

fn is_allowed(package: &str, name: &str) -> bool {
    ALLOWED.iter().any(|(in_package, allowed, _)| (*in_package, *allowed) == (package, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::{judge_in, workspace};

    const GLOSSARY: &str = "# Glossary\n\n### claim\n\nA wish.\n*Not:* request, client id.\n";

    fn verdict(package: &str, rest: &str, line: &str) -> Vec<String> {
        let path = format!("crates/{package}/src/a.rs");
        let text = format!("//! A.\n{line}\n");
        judge_in(&workspace(&[(package, rest)]), of_public_names, &[(PAPER, GLOSSARY), (&*path, &text)])
    }

    #[test]
    fn a_word_that_was_given_up_is_found_in_every_kind_of_name() {
        for line in [
            "pub struct LockRequest;",
            "pub async fn request(&self) {}",
            "    pub const fn send_request() {}",
            "pub const REQUEST: u8 = 1;",
            "    pub client_id: u8,",
            "pub enum ClientId {}",
            "pub trait Request {}",
        ] {
            let found = verdict("tenure", "", line);
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].contains("the glossary has **claim**"), "{found:?}");
        }
    }

    #[test]
    fn other_names_and_names_that_are_not_public_are_right() {
        for line in [
            "pub struct Claim;",
            "pub fn requested_by() {}",
            "pub client: Id,",
            "pub(crate) fn request() {}",
            "fn request() {}",
            "pub use other::Request;",
            "// pub fn request() {}",
            "pub fn claim(request: Request) {}",
        ] {
            assert!(verdict("tenure", "", line).is_empty(), "{line}");
        }
        assert!(verdict("tenure-sim", r#""publish": []"#, "pub fn request() {}").is_empty());
    }

    #[test]
    fn what_is_allowed_is_allowed_in_its_crate_only() {
        let line = "pub fn request_timeout() {}";
        assert!(verdict("tenure-core", "", line).is_empty());
        assert_eq!(verdict("tenure", "", line).len(), 1);
    }

    #[test]
    fn a_glossary_that_is_missing_is_found() {
        assert_eq!(judge_in(&workspace(&[]), of_public_names, &[]).len(), 1);
    }
}
