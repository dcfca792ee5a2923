//! One Rust file, line by line: its text, its code without comments and literals, its tests.

use std::collections::BTreeMap;

use crate::tidy::code::Code;

/// A `.rs` file of the tree.
#[derive(Debug)]
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and literals blanked, line for line.
    pub(crate) code: String,
    /// For each line: whether it is compiled for tests only.
    tests: Vec<bool>,
}

/// One line of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) text: &'a str,
    pub(crate) code: &'a str,
    pub(crate) is_test: bool,
}

impl RustFile {
    fn new(path: &str, text: &str) -> Self {
        let Code { text: code, mut tests } = Code::read(text);
        if is_test_path(path) {
            tests.fill(true);
        }
        Self { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// All lines, tests included.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.text
            .lines()
            .zip(self.code.lines())
            .zip(&self.tests)
            .enumerate()
            .map(|(index, ((text, code), is_test))| Line { number: index + 1, text, code, is_test: *is_test })
    }

    /// The lines that are compiled into what we ship.
    pub(crate) fn shipped_lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines().filter(|line| !line.is_test)
    }

    /// The crate of a file in `crates/*/src`, and the path below `src`.
    pub(crate) fn in_crate_source(&self) -> Option<(&str, &str)> {
        let (name, inside) = self.path.strip_prefix("crates/")?.split_once('/')?;
        Some((name, inside.strip_prefix("src/")?))
    }

    /// Where modules that this file declares live.
    fn modules_folder(&self) -> &str {
        let stem = self.path.trim_end_matches(".rs");
        match stem.rsplit_once('/') {
            Some((folder, "lib" | "main" | "mod")) => folder,
            _ => stem,
        }
    }

    /// Modules in files of their own that are declared for tests only.
    fn test_modules(&self) -> impl Iterator<Item = String> {
        self.lines().filter(|line| line.is_test).filter_map(|line| {
            let name = line.code.trim().strip_suffix(';')?.rsplit_once("mod ")?.1;
            Some(format!("{}/{name}", self.modules_folder()))
        })
    }
}

/// Reads every `.rs` file, and knows modules that only tests have, whatever their files are called.
pub(crate) fn read_all(texts: &BTreeMap<String, String>) -> Vec<RustFile> {
    let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let mut files: Vec<RustFile> = rust.map(|(path, text)| RustFile::new(path, text)).collect();
    let test_modules: Vec<String> = files.iter().flat_map(RustFile::test_modules).collect();
    for file in &mut files {
        let stem = file.path.trim_end_matches(".rs");
        let is_within = |module: &String| {
            stem.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if test_modules.iter().any(is_within) {
            file.tests.fill(true);
        }
    }
    files
}

/// Integration tests, benches, and the files that the house calls tests.
fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests_of(path: &str, files: &[(&str, &str)]) -> Vec<bool> {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let files = read_all(&texts);
        files.iter().find(|file| file.path == path).unwrap().tests.clone()
    }

    #[test]
    fn an_item_for_tests_ends_where_it_ends_and_what_follows_is_shipped() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
        let file = ("crates/x/src/a.rs", text);
        assert_eq!(tests_of(file.0, &[file]), [false, true, true, true, true, true, false]);
    }

    #[test]
    fn a_module_declared_for_tests_is_a_test_in_its_own_file() {
        let files = [
            ("crates/x/src/lib.rs", "#[cfg(test)]\nmod proof;\nmod shipped;\n"),
            ("crates/x/src/proof.rs", "fn a() {}\n"),
            ("crates/x/src/proof/deep.rs", "fn a() {}\n"),
            ("crates/x/src/shipped.rs", "fn a() {}\n"),
        ];
        assert_eq!(tests_of("crates/x/src/lib.rs", &files), [true, true, false]);
        assert_eq!(tests_of("crates/x/src/proof.rs", &files), [true]);
        assert_eq!(tests_of("crates/x/src/proof/deep.rs", &files), [true]);
        assert_eq!(tests_of("crates/x/src/shipped.rs", &files), [false]);
    }

    #[test]
    fn a_text_that_only_speaks_of_tests_is_none() {
        let text = "/// #[cfg(test)]\nconst A: &str = \"\n#[cfg(test)]\n\";\n";
        let file = ("crates/x/src/a.rs", text);
        assert_eq!(tests_of(file.0, &[file]), [false; 4]);
    }

    #[test]
    fn places_are_told_apart() {
        let source = RustFile::new("crates/tenure/src/engine/acquire.rs", "");
        assert_eq!(source.in_crate_source(), Some(("tenure", "engine/acquire.rs")));
        let test = RustFile::new("crates/tenure/tests/engine.rs", "fn a() {}\n");
        assert_eq!(test.in_crate_source(), None);
        assert_eq!(test.shipped_lines().count(), 0);
    }
}
