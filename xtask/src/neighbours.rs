//! Programs that have the library beside another user of SQLite: cargo must find versions for all of them.
//!
//! A program links one SQLite, so all that use it must agree on one `libsqlite3-sys`. Our driver is taken in a range for that
//! (`docs/decisions/sqlite-driver.md`). Nothing is compiled to see whether they can; only the old end of the range is checked by the compiler,
//! because our own lock file has the new one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml::Table;

use crate::{
    step::{Failure, Steps},
    workspace::{Workspace, cargo},
};

/// Another user of SQLite in the same program.
struct Neighbour {
    name: &'static str,
    /// Its line in the table of dependencies.
    dependency: &'static str,
    /// Why the two do not go together, if that is known.
    lost: Option<&'static str>,
}

/// In the newest version of each line there is.
const NEIGHBOURS: &[Neighbour] = &[
    OLD_END,
    beside("rusqlite 0.37", "rusqlite = '0.37'"),
    beside("rusqlite 0.41", "rusqlite = '0.41'"),
    // Its 0.8.0 alone is on an older driver.
    beside("sqlx 0.8", "sqlx = { version = '0.8', default-features = false, features = ['sqlite'] }"),
    beside("sqlx 0.9", "sqlx = { version = '0.9', default-features = false, features = ['sqlite'] }"),
    beside("sea-orm 1", "sea-orm = { version = '1', default-features = false, features = ['sqlx-sqlite'] }"),
    beside("sea-orm 2", "sea-orm = { version = '2', default-features = false, features = ['sqlx-sqlite'] }"),
    beside("diesel 2", "diesel = { version = '2', features = ['sqlite'] }"),
    beside("deadpool-sqlite 0.9", "deadpool-sqlite = '0.9'"),
    beside("deadpool-sqlite 0.14", "deadpool-sqlite = '0.14'"),
    without("rusqlite 0.31", "rusqlite = '0.31'", "it is older than our range"),
    without("rusqlite 0.42", "rusqlite = '0.42'", "it is newer than our range, in which the tests run"),
];

/// The oldest driver that we take.
const OLD_END: Neighbour = beside("rusqlite 0.32", "rusqlite = '0.32'");

const fn beside(name: &'static str, dependency: &'static str) -> Neighbour {
    Neighbour { name, dependency, lost: None }
}

const fn without(name: &'static str, dependency: &'static str, why: &'static str) -> Neighbour {
    Neighbour { name, dependency, lost: Some(why) }
}

/// Resolves each program, and checks the one at the old end.
pub(crate) fn run(workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    steps.work("beside other users of SQLite", || {
        let errors: Vec<String> = NEIGHBOURS.iter().filter_map(|it| it.resolve(workspace).err()).collect();
        if errors.is_empty() { Ok(()) } else { Err(Failure::new("neighbours", errors.join("\n"))) }
    })?;
    let folder = OLD_END.folder(workspace);
    // What is not of the neighbour's making is what our own builds have: it is compiled already.
    fs::copy(workspace.root.join("Cargo.lock"), folder.join("Cargo.lock"))
        .map_err(|e| Failure::new("neighbours", format!("cannot copy Cargo.lock: {e}")))?;
    let mut check = cargo();
    check.arg("check").current_dir(&folder);
    workspace.put(&mut check, &folder.join("target"));
    steps.command(&format!("check beside {}", OLD_END.name), &mut check)
}

impl Neighbour {
    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.target.join("neighbours").join(self.name.replace(' ', "-"))
    }

    fn resolve(&self, workspace: &Workspace) -> Result<(), String> {
        let folder = self.folder(workspace);
        let failed = |e: io::Error| format!("{}: {e}", self.name);
        fs::create_dir_all(folder.join("src")).map_err(failed)?;
        fs::write(folder.join("src/lib.rs"), "").map_err(failed)?;
        fs::write(folder.join("Cargo.toml"), self.manifest(&workspace.root)).map_err(failed)?;
        let asked = cargo().args(["generate-lockfile", "--quiet"]).current_dir(&folder).output();
        let output = asked.map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stderr);
        self.judge(output.status.success(), &said)?;
        let lock = fs::read_to_string(folder.join("Cargo.lock")).unwrap_or_default();
        match self.lost {
            None => println!("{}: with rusqlite {}", self.name, driver(&lock)),
            Some(why) => println!("{}: not possible, {why}", self.name),
        }
        Ok(())
    }

    fn manifest(&self, root: &Path) -> String {
        let library = root.join("crates/tenure");
        // The profile is that of our own builds.
        format!(
            "[package]\nname = 'neighbour'\nversion = '0.0.0'\nedition = '2024'\npublish = false\n[workspace]\n\
             [profile.dev]\ndebug = false\n[dependencies]\n\
             tenure = {{ path = '{}', features = ['memory', 'sqlite'] }}\n{}\n",
            library.display(),
            self.dependency
        )
    }

    /// An error unless it came as it was expected.
    fn judge(&self, is_resolved: bool, said: &str) -> Result<(), String> {
        let conflict = said.contains(CONFLICT);
        match (self.lost, is_resolved) {
            (None, true) => Ok(()),
            (Some(_), false) if conflict => Ok(()),
            (Some(_), true) => {
                Err(format!("{} is possible now: correct docs/decisions/sqlite-driver.md", self.name))
            }
            (_, false) => {
                Err(format!("there are no versions for tenure beside {}: {}", self.name, said.trim_end()))
            }
        }
    }
}

/// The version of our driver in a lock file.
fn driver(lock: &str) -> String {
    let lock: Table = lock.parse().unwrap_or_default();
    let packages = lock.get("package").and_then(|list| list.as_array()).into_iter().flatten();
    let mut drivers =
        packages.filter(|package| package.get("name").and_then(|name| name.as_str()) == Some("rusqlite"));
    let version = drivers.next().and_then(|package| package.get("version")?.as_str());
    version.unwrap_or("?").to_owned()
}

/// What cargo says of two that would link SQLite each.
const CONFLICT: &str = "links = \"sqlite3\"";

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "try to adjust so that only one package uses the `links = \"sqlite3\"` value";

    #[test]
    fn a_neighbour_that_does_not_resolve_is_named() {
        let sqlx = beside("sqlx 0.8", "sqlx = '0.8'");
        assert_eq!(sqlx.judge(true, ""), Ok(()));
        let error = sqlx.judge(false, SAID).unwrap_err();
        assert!(
            error.starts_with("there are no versions for tenure beside sqlx 0.8: ") && error.contains(SAID)
        );
    }

    #[test]
    fn a_loss_that_is_expected_is_none_but_it_must_be_that_one_and_be_one() {
        let old = without("old", "rusqlite = '0.31'", "older");
        assert_eq!(old.judge(false, SAID), Ok(()));
        assert!(old.judge(false, "no network").unwrap_err().contains("no network"));
        assert!(old.judge(true, "").unwrap_err().contains("old is possible now"));
    }

    #[test]
    fn the_manifest_has_the_library_and_the_neighbour() {
        let manifest: Table = OLD_END.manifest(Path::new("/w")).parse().unwrap();
        let dependencies = &manifest["dependencies"];
        assert_eq!(dependencies["tenure"]["path"].as_str(), Some("/w/crates/tenure"));
        assert_eq!(dependencies["rusqlite"].as_str(), Some("0.32"));
    }

    #[test]
    fn the_driver_is_read_from_the_lock_file() {
        let lock = "[[package]]\nname = 'a'\nversion = '1.0.0'\n[[package]]\nname = 'rusqlite'\nversion = '0.32.1'\n";
        assert_eq!(driver(lock), "0.32.1");
        assert_eq!(driver(""), "?");
    }
}
