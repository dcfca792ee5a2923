//! Headers: the first line of a file says what it is for.

use crate::tidy::house::{House, Violation};

/// A crate's docs may be its README.
const README: &str = "#![doc = include_str!(";

/// Every source file opens with `//!`.
pub(crate) fn of_files(house: &House<'_>) -> Vec<Violation> {
    let sources = house.rust.iter().filter(|file| file.is_source());
    sources
        .filter(|file| !says_what_for(&file.path, &file.text))
        .map(|file| Violation::new(&file.path, 1, "does not open with `//!` and what it is for"))
        .collect()
}

fn says_what_for(path: &str, text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let has_words = first.strip_prefix("//!").is_some_and(|words| !words.trim().is_empty());
    has_words || (path.ends_with("/lib.rs") && first.starts_with(README))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn a_source_file_without_its_line_is_found() {
        for text in ["", "use a;\n", "// not a doc\n", "\n//! too late\n", "//!\n//! too late\n"] {
            assert_eq!(judge(of_files, &[("crates/x/src/a.rs", text)]).len(), 1, "{text:?}");
        }
    }

    #[test]
    fn a_crate_may_open_with_its_readme_and_no_other_file_may() {
        let text = "#![doc = include_str!(\"../README.md\")]\n";
        assert!(judge(of_files, &[("crates/x/src/lib.rs", text)]).is_empty());
        assert_eq!(judge(of_files, &[("crates/x/src/a.rs", text)]).len(), 1);
    }

    #[test]
    fn a_line_is_enough_and_tests_need_none() {
        let files = [("crates/x/src/a.rs", "//! Names of locks.\n"), ("crates/x/tests/a.rs", "use a;\n")];
        assert!(judge(of_files, &files).is_empty());
    }
}
