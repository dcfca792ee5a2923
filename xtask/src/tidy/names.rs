//! Names: a file is called after what it holds.

use crate::tidy::house::{House, Violation};

/// Names that say nothing, and so collect everything.
const EMPTY_WORDS: &[&str] = &["util", "utils", "common", "helper", "helpers", "types", "misc"];

/// No Rust file or folder of them has an empty word for its name.
pub(crate) fn of_files(house: &House<'_>) -> Vec<Violation> {
    let files = house.rust.iter().map(|file| file.path.as_str());
    files
        .filter_map(|path| {
            let word = path.trim_end_matches(".rs").split('/').find(|part| EMPTY_WORDS.contains(part))?;
            Some(Violation::new(path, 1, format!("`{word}` says nothing: call it after what it holds")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::house::sample::judge;

    #[test]
    fn empty_words_are_found_as_files_and_as_folders() {
        for path in ["crates/x/src/util.rs", "crates/x/tests/common/mod.rs", "xtask/src/misc.rs"] {
            assert_eq!(judge(of_files, &[(path, "")]).len(), 1, "{path}");
        }
    }

    #[test]
    fn nouns_are_right() {
        let files = [("crates/x/src/common_ancestor.rs", ""), ("docs/common/notes.md", "")];
        assert!(judge(of_files, &files).is_empty());
    }
}
