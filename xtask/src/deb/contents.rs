//! What lies where in the package.

use std::{collections::BTreeMap, fs, path::Path};

use crate::step::{Failure, io};

/// What a file of the package is made of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The command, stripped.
    Program,
    /// What the command prints as completions for this shell.
    Completions(&'static str),
    /// A file of the tree.
    File(String),
    Text(String),
}

/// Where each shell looks for what packages bring.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/tenure"),
    ("zsh", "usr/share/zsh/vendor-completions/_tenure"),
    ("fish", "usr/share/fish/vendor_completions.d/tenure.fish"),
];

/// Papers and their places below the package's documentation.
const PAPERS: &[(&str, &str)] = &[
    ("packaging/debian/copyright", "copyright"),
    ("packaging/debian/changelog", "changelog.Debian.gz"),
    ("CHANGELOG.md", "changelog.gz"),
    ("docs/reference/cli.md", "cli.md.gz"),
    ("docs/reference/errors.md", "errors.md.gz"),
    ("docs/reference/exit-codes.md", "exit-codes.md.gz"),
    ("docs/reference/json-and-environment.md", "json-and-environment.md.gz"),
    ("docs/guides/scripts.md", "scripts.md.gz"),
    ("docs/guides/cron-systemd-kubernetes.md", "recipes.md.gz"),
];

const DOC: &str = "usr/share/doc/tenure";
const LINTIAN: &str = "packaging/debian/lintian-overrides";
const PAGES: &str = "packaging/man";

/// Folders whose files are examples. Nothing of them is switched on: what is run, when and under which lock, is for the
/// machine's owner to say.
const EXAMPLES: &[&str] = &["packaging/systemd", "packaging/cron", "packaging/kubernetes"];

/// Every file of the package by its path; those that end with `.gz` are compressed on the way.
pub(super) fn files(root: &Path, notices: &str) -> Result<BTreeMap<String, Source>, Failure> {
    let mut files = BTreeMap::from([
        ("usr/bin/tenure".to_owned(), Source::Program),
        ("usr/share/lintian/overrides/tenure".to_owned(), Source::File(LINTIAN.to_owned())),
        (format!("{DOC}/third-party-licenses.gz"), Source::Text(notices.to_owned())),
    ]);
    files.extend(COMPLETIONS.iter().map(|(shell, path)| ((*path).to_owned(), Source::Completions(shell))));
    files.extend(PAPERS.iter().map(|(from, to)| (format!("{DOC}/{to}"), Source::File((*from).to_owned()))));
    for page in names(&root.join(PAGES))? {
        files.insert(format!("usr/share/man/man1/{page}.gz"), Source::File(format!("{PAGES}/{page}")));
    }
    for folder in EXAMPLES {
        let kind = folder.rsplit('/').next().unwrap_or(folder);
        for name in names(&root.join(folder))? {
            files.insert(format!("{DOC}/examples/{kind}/{name}"), Source::File(format!("{folder}/{name}")));
        }
    }
    Ok(files)
}

fn names(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error: std::io::Error| io(folder, &error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}
