//! The tree as the rules see it: every text file by its path, and what cargo knows.

use std::{collections::BTreeMap, fmt};

use crate::{
    step::Failure,
    tidy::rust_file::{self, RustFile},
    tree,
    workspace::Workspace,
};

/// All that a rule may look at. Paths are relative to the root, with `/`.
#[derive(Debug)]
pub(crate) struct House<'a> {
    pub(crate) workspace: &'a Workspace,
    /// Text files; what is not UTF-8 is not here.
    pub(crate) texts: BTreeMap<String, String>,
    /// The `.rs` files among them, read as Rust.
    pub(crate) rust: Vec<RustFile>,
}

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    file: String,
    line: usize,
    what: String,
}

impl<'a> House<'a> {
    /// Reads what git tracks or would track: a new file is judged before it is added.
    pub(crate) fn load(workspace: &'a Workspace) -> Result<Self, Failure> {
        Ok(Self::new(workspace, tree::texts(&workspace.root)?))
    }

    fn new(workspace: &'a Workspace, texts: BTreeMap<String, String>) -> Self {
        let rust = rust_file::read_all(&texts);
        Self { workspace, texts, rust }
    }

    /// How many text files there are.
    pub(crate) fn file_count(&self) -> usize {
        self.texts.len()
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// The first line of a file that starts with `word` (indentation aside), or line 1.
    pub(crate) fn line_of(&self, path: &str, word: &str) -> usize {
        let lines = self.text(path).unwrap_or_default().lines();
        let starts = |line: &str| {
            line.trim_start()
                .trim_start_matches('"')
                .strip_prefix(word)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_'))
        };
        lines.into_iter().position(starts).map_or(1, |index| index + 1)
    }
}

impl Violation {
    /// The place, and what is wrong there.
    pub(crate) fn new(file: impl Into<String>, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

#[cfg(test)]
pub(crate) mod sample {
    //! Small trees in memory, for the tests of the rules.

    use super::*;

    impl<'a> House<'a> {
        /// A tree of these files.
        pub(crate) fn sample(workspace: &'a Workspace, files: &[(&str, &str)]) -> Self {
            let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
            Self::new(workspace, texts.collect())
        }
    }

    /// A workspace of packages in `crates/`, each with JSON for what it has beside its name.
    pub(crate) fn workspace(packages: &[(&str, &str)]) -> Workspace {
        let packages: Vec<String> = packages
            .iter()
            .map(|(name, rest)| {
                let comma = if rest.is_empty() { "" } else { "," };
                format!(
                    r#"{{"name": "{name}", "version": "0.3.1",
                    "manifest_path": "/site/house/crates/{name}/Cargo.toml" {comma} {rest}}}"#
                )
            })
            .collect();
        let json = format!(r#"{{"workspace_root": "/site/house", "packages": [{}]}}"#, packages.join(","));
        Workspace::parse(&json).unwrap()
    }

    /// What a rule says of these files, line by line.
    pub(crate) fn judge(rule: fn(&House<'_>) -> Vec<Violation>, files: &[(&str, &str)]) -> Vec<String> {
        judge_in(&workspace(&[]), rule, files)
    }

    /// What a rule says of these files in this workspace.
    pub(crate) fn judge_in(
        workspace: &Workspace,
        rule: fn(&House<'_>) -> Vec<Violation>,
        files: &[(&str, &str)],
    ) -> Vec<String> {
        rule(&House::sample(workspace, files)).iter().map(Violation::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_whole_first_word() {
        let workspace = sample::workspace(&[]);
        let house = House::sample(&workspace, &[("Cargo.toml", "[x]\ntokio-util = 1\n tokio = 2\n")]);
        assert_eq!(house.line_of("Cargo.toml", "tokio"), 3);
        assert_eq!(house.line_of("Cargo.toml", "nix"), 1);
        assert_eq!(house.line_of("nowhere.toml", "nix"), 1);
    }

    #[test]
    fn a_violation_reads_as_editors_expect() {
        assert_eq!(Violation::new("a/b.rs", 7, "too long").to_string(), "a/b.rs:7: too long");
    }
}
