//! `cargo xtask deb`: the Debian package, made with the tools that every Debian machine has.

pub(crate) mod clean_root;
mod contents;
pub(crate) mod notices;
mod pack;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    deb::{clean_root::CleanRoot, pack::Pack},
    step::{Failure, Steps, succeeds},
    workspace::{ALL_STORES, Workspace, cargo},
};

/// The package in cargo that the one of Debian is made of.
const PACKAGE: &str = "tenure-cli";

/// What is in the clean root beside the essential: what reads man pages and completions, and a cron to check a crontab with.
const INCLUDE: &str = "man-db,bash-completion,zsh,fish,cron";

/// What makes a package, with the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("strip", "binutils"),
    ("protoc", "protobuf-compiler"),
    ("gzip", "gzip"),
    ("md5sum", "coreutils"),
];

/// Builds the command, packs it, and asks lintian where that is installed.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    make(workspace, &mut Steps::default()).map(|_| ())
}

/// The same, and then installs the package in a clean root, and uses it there.
pub(crate) fn run_and_try(workspace: &Workspace) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let package = make(workspace, &mut steps)?;
    CleanRoot { suite: "bookworm", include: INCLUDE, script: "packaging/debian/try.sh" }.try_package(
        &mut steps,
        workspace,
        (&folder(workspace), &package, "tenure.deb"),
    )
}

fn make(workspace: &Workspace, steps: &mut Steps) -> Result<PathBuf, Failure> {
    let missing = missing_tools();
    if !missing.is_empty() {
        return Err(Failure::new("deb", format!("please run: sudo apt-get install {}", missing.join(" "))));
    }
    let pack = Pack {
        root: workspace.root.clone(),
        folder: folder(workspace),
        program: workspace.target.join("release/tenure"),
    };
    let built = workspace.package(PACKAGE).map(|package| package.version.as_str()).unwrap_or_default();
    pack.is_of(built)?;
    steps.command(
        "build",
        cargo().args(["build", "--release", "--locked", "--package", PACKAGE]).args(ALL_STORES),
    )?;
    let package = steps.work("package", || {
        let package = pack.make(&notices::of_linked(workspace, PACKAGE)?)?;
        println!("{}", package.display());
        Ok(package)
    })?;
    lint(steps, &package)?;
    Ok(package)
}

/// Where all of it is made.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("debian")
}

fn lint(steps: &mut Steps, package: &Path) -> Result<(), Failure> {
    if !succeeds(Command::new("lintian").arg("--version")) {
        println!("not checked by lintian: it is not installed");
        return Ok(());
    }
    let mut lintian = Command::new("lintian");
    // As root too, which it warns of: it only reads, and a container has no other user.
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    steps.command("lintian", lintian.arg(package))
}

fn missing_tools() -> Vec<&'static str> {
    let missing = TOOLS.iter().filter(|(tool, _)| !succeeds(Command::new(tool).arg("--version")));
    missing.map(|(_, package)| *package).collect()
}
