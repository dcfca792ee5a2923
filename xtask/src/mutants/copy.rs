//! The copy in which mutants live: the crates of the tree, edited, with the switch that is there only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use crate::{
    step::{Failure, Steps},
    workspace::{SIMULATION, Workspace, cargo},
};

const CRATES: &str = "crates/";

/// Where the crates are in the copy. Cargo tells packages apart by their folder below the root: those of the copy are others than
/// those of the tree, so that both can share what is built of foreign crates and nothing else.
const MUTATED: &str = "mutated/";

/// The floor below all crates that are edited.
const FLOOR: &str = "mutated/tenure-core/src";

/// Which mutant is on; none unless the environment says so.
const SWITCH: &str = r#"//! Which mutant is on: there in this copy only.

use std::{env, sync::LazyLock};

static ON: LazyLock<Option<String>> = LazyLock::new(|| env::var("TENURE_MUTANT").ok());

/// Whether this program runs as that mutant.
pub fn is_on(name: &str) -> bool {
    ON.as_deref() == Some(name)
}
"#;

/// Makes the copy under `target/mutants` and builds the simulation there. Foreign crates are built where ours are: they are the
/// same ones. The program itself is not put there.
pub(crate) fn build(
    workspace: &Workspace,
    texts: &BTreeMap<String, String>,
    edited: BTreeMap<String, String>,
    steps: &mut Steps,
) -> Result<PathBuf, Failure> {
    let scratch = workspace.target.join("mutants");
    let tree = scratch.join("tree");
    let failed = |why: String| Failure::new("the copy for mutants", why);
    let files = files(texts, edited).map_err(failed)?;
    write(&tree, &files).map_err(|e| failed(format!("cannot write {}: {e}", tree.display())))?;
    let target = scratch.join("target");
    let mut command = cargo();
    command.args(SIMULATION).current_dir(&tree);
    workspace.put(&mut command, &target);
    steps.command("the simulation with all mutants", &mut command)?;
    Ok(target.join("debug/tenure-sim"))
}

/// What is in the copy.
fn files(
    texts: &BTreeMap<String, String>,
    edited: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let moved = |(path, text): (String, String)| {
        path.strip_prefix(CRATES).map(|inside| (format!("{MUTATED}{inside}"), text))
    };
    let mut files: BTreeMap<String, String> =
        texts.clone().into_iter().chain(edited).filter_map(moved).collect();
    let absent = |path: &str| format!("there is no {path}");
    for path in ["Cargo.toml", "Cargo.lock"] {
        files.insert(path.to_owned(), texts.get(path).ok_or_else(|| absent(path))?.clone());
    }
    let manifest = files.get_mut("Cargo.toml").expect("BUG: it was put there a line ago");
    *manifest = root_manifest(manifest)?;
    let map = format!("{FLOOR}/lib.rs");
    let text = files.get_mut(&map).ok_or_else(|| absent(&map))?;
    // Also under its own name, for its own mutants.
    text.push_str("\n#[doc(hidden)]\npub mod mutant;\nextern crate self as tenure_core;\n");
    files.insert(format!("{FLOOR}/mutant.rs"), SWITCH.to_owned());
    Ok(files)
}

/// The root's manifest for a workspace of the crates only, in their new place. What edits leave unused is no matter.
fn root_manifest(text: &str) -> Result<String, String> {
    let mut root: Table = text.parse().map_err(|e| format!("Cargo.toml: {e}"))?;
    let workspace =
        root.get_mut("workspace").and_then(Value::as_table_mut).ok_or("Cargo.toml: no workspace")?;
    workspace.remove("default-members");
    workspace.insert("members".to_owned(), vec![format!("{MUTATED}*")].into());
    let warnings = Table::from_iter([("warnings".to_owned(), Value::from("allow"))]);
    workspace
        .insert("lints".to_owned(), Table::from_iter([("rust".to_owned(), Value::from(warnings))]).into());
    let dependencies = workspace.get_mut("dependencies").and_then(Value::as_table_mut).into_iter().flatten();
    for (_, dependency) in dependencies {
        if let Some(Value::String(path)) = dependency.get_mut("path") {
            *path = path.replacen(CRATES, MUTATED, 1);
        }
    }
    Ok(root.to_string())
}

/// Writes what differs, so that cargo builds no more than that, and removes what is not there any more.
fn write(root: &Path, files: &BTreeMap<String, String>) -> io::Result<()> {
    for (path, text) in files {
        let path = root.join(path);
        if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            continue;
        }
        fs::create_dir_all(path.parent().expect("BUG: a file of the copy is below its root"))?;
        fs::write(&path, text)?;
    }
    let keep: BTreeSet<PathBuf> = files.keys().map(|path| root.join(path)).collect();
    remove_others(root, &keep)
}

fn remove_others(folder: &Path, keep: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, keep)?;
        } else if !keep.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = ['crates/*', 'xtask']\ndefault-members = ['crates/a']\n\
        [workspace.dependencies]\ntenure-core = { path = 'crates/tenure-core', version = '1' }\nx = '2'\n\
        [workspace.lints.rust]\nmissing_docs = 'warn'\n[profile.release]\ndebug = 1\n";

    fn tree(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_copy_has_the_crates_elsewhere_the_edits_and_the_switch() {
        let core = ("crates/tenure-core/src/lib.rs", "//! Core.\n");
        let texts = tree(&[
            core,
            ("crates/b/src/b.rs", "b"),
            ("README.md", "r"),
            ("Cargo.toml", ROOT),
            ("Cargo.lock", "l"),
        ]);
        let files = files(&texts, tree(&[("crates/b/src/b.rs", "edited")])).unwrap();
        let paths: Vec<&str> = files.keys().map(String::as_str).collect();
        let [lib, switch] = ["mutated/tenure-core/src/lib.rs", "mutated/tenure-core/src/mutant.rs"];
        assert_eq!(paths, ["Cargo.lock", "Cargo.toml", "mutated/b/src/b.rs", lib, switch]);
        assert_eq!(files["mutated/b/src/b.rs"], "edited");
        assert!(files[lib].contains("pub mod mutant;"));
    }

    /// The same folder below the root would be the same package to cargo, and a mutant would be taken for what is shipped.
    #[test]
    fn the_manifest_of_the_copy_names_the_crates_where_they_are() {
        let manifest: Table = root_manifest(ROOT).unwrap().parse().unwrap();
        let workspace = &manifest["workspace"];
        assert_eq!(workspace["members"], Value::from(vec!["mutated/*"]));
        assert_eq!(workspace["dependencies"]["tenure-core"]["path"].as_str(), Some("mutated/tenure-core"));
        assert_eq!(workspace["dependencies"]["x"].as_str(), Some("2"));
        assert!(workspace.get("default-members").is_none());
        assert_eq!(
            manifest["profile"]["release"]["debug"].as_integer(),
            Some(1),
            "or foreign crates are built twice"
        );
    }

    #[test]
    fn what_is_the_same_is_not_written_again_and_what_is_gone_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        write(folder.path(), &tree(&[("a/same.rs", "1"), ("a/other.rs", "1"), ("a/gone.rs", "1")])).unwrap();
        let old = fs::File::open(at("a/same.rs")).unwrap().metadata().unwrap().modified().unwrap();
        let past = old - std::time::Duration::from_secs(60);
        fs::File::options().write(true).open(at("a/same.rs")).unwrap().set_modified(past).unwrap();
        write(folder.path(), &tree(&[("a/same.rs", "1"), ("a/other.rs", "2")])).unwrap();
        assert_eq!(fs::metadata(at("a/same.rs")).unwrap().modified().unwrap(), past);
        assert_eq!(fs::read_to_string(at("a/other.rs")).unwrap(), "2");
        assert!(!at("a/gone.rs").exists());
    }
}
