//! The licences of what is linked into the command: whoever gets the program gets their texts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    step::{Failure, io, output_of},
    workspace::{ALL_STORES, Workspace, cargo},
};

/// How the names of files begin that have to go with a program.
const NAMES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// A library: its name and version, its licence, and where its source lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Library {
    name: String,
    licence: String,
    folder: PathBuf,
}

/// One text: all foreign libraries with their licences, and then every text with those that it came with.
pub(crate) fn of_linked(workspace: &Workspace, package: &str) -> Result<String, Failure> {
    let linked =
        output_of(cargo().args(["tree", "--locked", "--package", package]).args(ALL_STORES).args([
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ]))?;
    let metadata = output_of(cargo().args(["metadata", "--locked", "--format-version", "1"]))?;
    let metadata =
        serde_json::from_str(&metadata).map_err(|e| Failure::new("cargo metadata", e.to_string()))?;
    let libraries = libraries(&metadata, &linked, &workspace.root);
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for library in &libraries {
        for text in texts_in(&library.folder)? {
            texts.entry(text).or_default().insert(library.name.clone());
        }
    }
    Ok(write(&libraries, &texts))
}

/// What `cargo tree` names and is not ours, with what `cargo metadata` knows of it.
fn libraries(metadata: &Value, linked: &str, root: &Path) -> BTreeSet<Library> {
    let linked: BTreeSet<String> = linked.lines().filter_map(named).collect();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let libraries = packages.filter_map(|package| {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let name = format!("{} {}", text("name")?, text("version")?);
        let folder = PathBuf::from(text("manifest_path")?).parent()?.to_owned();
        Some(Library { name, licence: text("license").unwrap_or_else(|| "see below".to_owned()), folder })
    });
    libraries.filter(|library| linked.contains(&library.name) && !library.folder.starts_with(root)).collect()
}

/// Name and version in a line such as `serde v1.0.228 (*)`.
fn named(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
}

fn texts_in(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error: std::io::Error| io(folder, &error);
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|begin| name.starts_with(begin)) && entry.path().is_file() {
            texts.push(fs::read_to_string(entry.path()).map_err(failed)?.trim().to_owned());
        }
    }
    Ok(texts)
}

fn write(libraries: &BTreeSet<Library>, texts: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut paper = "Libraries that are linked into the command tenure, and their licences.\n\n".to_owned();
    for library in libraries {
        paper += &format!("{}: {}\n", library.name, library.licence);
    }
    for (text, names) in texts {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        paper += &format!("\n{}\nOf {}:\n\n{text}\n", "-".repeat(78), names.join(", "));
    }
    paper
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_named_and_what_is_ours_or_for_tests_is_not() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "version": "1.0.0", "license": "MIT", "manifest_path": "/r/a-1.0.0/Cargo.toml"},
            {"name": "a", "version": "2.0.0", "license": "MIT", "manifest_path": "/r/a-2.0.0/Cargo.toml"},
            {"name": "b", "version": "1.0.0", "license": null, "manifest_path": "/r/b-1.0.0/Cargo.toml"},
            {"name": "ours", "version": "1.0.0", "license": "MIT", "manifest_path": "/w/ours/Cargo.toml"},
        ]});
        let linked = "ours v1.0.0 (/w/ours)\na v2.0.0\nb v1.0.0\na v2.0.0 (*)\n";
        let found = libraries(&metadata, linked, Path::new("/w"));
        let found: Vec<String> = found.iter().map(|l| format!("{}: {}", l.name, l.licence)).collect();
        assert_eq!(found, ["a 2.0.0: MIT", "b 1.0.0: see below"]);
    }

    #[test]
    fn a_text_that_two_share_is_written_once() {
        let folder = PathBuf::from("/r");
        let library =
            |name: &str| Library { name: name.into(), licence: "MIT".into(), folder: folder.clone() };
        let texts = BTreeMap::from([("Permission".to_owned(), ["a 1", "b 1"].map(str::to_owned).into())]);
        let paper = write(&[library("a 1"), library("b 1")].into(), &texts);
        assert_eq!(paper.matches("Permission").count(), 1);
        assert!(paper.contains("\na 1: MIT\nb 1: MIT\n") && paper.contains("\nOf a 1, b 1:\n"), "{paper}");
    }

    #[test]
    fn texts_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("LICENSE-MIT", "m\n"), ("license.md", "l"), ("README.md", "r"), ("NOTICE", "n")]
        {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut texts = texts_in(folder.path()).unwrap();
        texts.sort();
        assert_eq!(texts, ["l", "m", "n"]);
    }
}
