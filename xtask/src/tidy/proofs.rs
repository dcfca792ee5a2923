//! Proofs: every test, mutant and file that an entry of a hole or a hazard names is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    mutants,
    tidy::{
        citations::PAPERS,
        code::is_word,
        house::{House, Violation},
    },
};

/// Papers of entries that name files.
const LOOKED_UP: &[&str] = &[PAPERS[0], PAPERS[1], "docs/glossary.md"];

/// What opens the item of an entry that names its tests and mutants.
const SHOWN: &str = "* Shown by ";

/// Functions by name, with the files that have one of that name.
type Functions<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Every file that an entry names is there. Every test is in the file that is named after it.
pub(crate) fn of_holes(house: &House<'_>) -> Vec<Violation> {
    let functions = functions(house);
    let mut violations = Vec::new();
    for paper in LOOKED_UP {
        for (line, item) in items(house.text(paper).unwrap_or_default()) {
            let wrong = wrong(house, &functions, &item);
            violations.extend(wrong.into_iter().map(|what| Violation::new(*paper, line, what)));
        }
    }
    violations
}

/// Paragraphs and items of a list, each with the number of its first line.
fn items(text: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        if is_open && !line.is_empty() && !line.starts_with("* ") {
            if let Some((_, item)) = items.last_mut() {
                item.push(' ');
                item.push_str(line.trim());
            }
        } else {
            items.push((index + 1, line.to_owned()));
        }
        is_open = !line.is_empty();
    }
    items
}

/// What an item names and is not there.
fn wrong(house: &House<'_>, functions: &Functions<'_>, item: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut tests: Vec<&str> = Vec::new();
    for name in item.split('`').skip(1).step_by(2) {
        if name.contains('/') {
            if !is_there(house, name) {
                wrong.push(format!("there is no {name}"));
            }
            let strayed = tests.drain(..).filter(|test| !functions[test].contains(name));
            wrong.extend(strayed.map(|test| format!("{test} is not in {name}")));
        } else if !item.starts_with(SHOWN) || !name.contains('_') || !name.chars().all(is_word) {
            // A word of code, not a name of a test.
        } else if house.text(&format!("{}/{name}.toml", mutants::FOLDER)).is_some() {
            // A mutant.
        } else if functions.contains_key(name) {
            tests.push(name);
        } else {
            wrong.push(format!("there is no test or mutant {name}"));
        }
    }
    wrong.extend(tests.into_iter().map(|test| format!("{test}: no file is named after it")));
    wrong
}

/// A file, or a folder of some.
fn is_there(house: &House<'_>, path: &str) -> bool {
    let is_in =
        |file: &String| file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    house.texts.keys().any(is_in)
}

fn functions<'a>(house: &'a House<'_>) -> Functions<'a> {
    let mut functions = Functions::new();
    for file in &house.rust {
        for rest in file.code.split("fn ").skip(1) {
            let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            functions.entry(name).or_default().insert(&*file.path);
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    fn verdict(entry: &str) -> Vec<String> {
        let mutant = format!("{}/no_wait.toml", mutants::FOLDER);
        let test = "#[test]\nfn a_late_one_waits() {}\n";
        let files = [(PAPERS[0], entry), (&*mutant, "why = 'x'\n"), ("crates/x/tests/a.rs", test)];
        judge(of_holes, &files)
    }

    #[test]
    fn what_is_there_is_right() {
        let entry = "### H1.1 One\n\n* Carried by `crates/x` (`clock_time()`, `a_word`).\n\
                     * Shown by `a_late_one_waits`\n  (`crates/x/tests/a.rs`), and the mutant `no_wait`.\n";
        assert!(verdict(entry).is_empty(), "{:?}", verdict(entry));
    }

    #[test]
    fn what_was_renamed_moved_or_deleted_is_found() {
        for (entry, what) in [
            ("* Shown by `a_late_one_enters`.", "there is no test or mutant a_late_one_enters"),
            ("* Shown by `no_end`.", "there is no test or mutant no_end"),
            ("* Carried by `crates/x/src/b.rs`.", "there is no crates/x/src/b.rs"),
            ("* Shown by `a_late_one_waits` (`docs/holes.md`).", "a_late_one_waits is not in docs/holes.md"),
            ("* Shown by `a_late_one_waits`.", "a_late_one_waits: no file is named after it"),
        ] {
            assert_eq!(verdict(&format!("\n{entry}\n")), [format!("docs/holes.md:2: {what}")]);
        }
    }
}
