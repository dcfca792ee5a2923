//! `cargo xtask book`: the pages of `docs`, the READMEs of the stores and the catalogues of evidence, as a site with search.

pub(crate) mod links;
mod markdown;
mod pages;
mod tables;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use crate::{
    step::{Failure, Steps, succeeds},
    tree,
    workspace::Workspace,
};

/// Name, title, theme and navigation.
pub(crate) const SETTINGS: &str = "docs/zensical.toml";

/// What turns pages into a site, with all it needs: pinned, and installed from wheels only.
const REQUIREMENTS: &str = "docs/requirements.txt";

/// The site; the pages that it is built from; the Python that builds it.
const BOOK: &str = "target/book";
const SOURCE: &str = "target/book-source";
const PYTHON: &str = "target/book-python";

/// Builds the book into `target/book`.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    build(workspace, &mut Steps::default())
}

/// The same, as steps of another chore.
pub(crate) fn build(workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    let texts = tree::texts(&workspace.root)?;
    steps.work("book: pages", || {
        let pages = pages::all(&texts).map_err(|why| Failure::new("book", why))?;
        write(&workspace.root.join(SOURCE), &pages)
    })?;
    python(workspace, steps)?;
    let mut zensical = zensical(&workspace.root.join(PYTHON));
    zensical.args(["build", "--strict", "--clean"]).current_dir(workspace.root.join(SOURCE));
    steps.command("book: site", &mut zensical)?;
    let (made, book) = (workspace.root.join(SOURCE).join("site"), workspace.root.join(BOOK));
    if book.exists() {
        fs::remove_dir_all(&book).map_err(|error| failed(&book, &error))?;
    }
    fs::rename(made, &book).map_err(|error| failed(&book, &error))
}

fn write(folder: &Path, files: &BTreeMap<String, String>) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    for (path, text) in files {
        let file = folder.join(path);
        let parent = file.parent().unwrap_or(folder);
        fs::create_dir_all(parent).map_err(|error| failed(parent, &error))?;
        fs::write(&file, text).map_err(|error| failed(&file, &error))?;
    }
    println!("{} files", files.len());
    Ok(())
}

/// The pinned packages in a folder of their own, as Debian's Python makes no virtual environment without a further
/// package. They are installed once, and anew when they change.
fn python(workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    let folder = workspace.root.join(PYTHON);
    let wanted = fs::read_to_string(workspace.root.join(REQUIREMENTS))
        .map_err(|error| Failure::new("book", format!("cannot read {REQUIREMENTS}: {error}")))?;
    let stamp = folder.join("installed.txt");
    let is_there = fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted);
    if is_there && succeeds(zensical(&folder).arg("--version")) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]);
    pip.args(["--only-binary=:all:", "--target"]).arg(&folder);
    steps.command("book: wheels", pip.arg("--requirement").arg(workspace.root.join(REQUIREMENTS)))?;
    fs::write(&stamp, wanted).map_err(|error| failed(&stamp, &error))
}

fn zensical(folder: &Path) -> Command {
    let mut python = Command::new("python3");
    python.args(["-m", "zensical"]).env("PYTHONPATH", folder);
    python
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new("book", format!("cannot write {}: {error}", path.display()))
}
