//! `cargo xtask deb`: the Debian package, made with the tools that every Debian machine has.

mod clean_root;
mod contents;
mod notices;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    deb::contents::Source,
    step::{Failure, Steps, succeeds},
    workspace::{Workspace, cargo},
};

/// The package in cargo that the one of Debian is made of.
const PACKAGE: &str = "tenure-cli";

const CHANGELOG: &str = "packaging/debian/changelog";
const CONTROL: &str = "packaging/debian/control";

/// What makes a package, with the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("strip", "binutils"),
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
    clean_root::try_package(&mut steps, &workspace.target.join("debian"), &package)
}

fn make(workspace: &Workspace, steps: &mut Steps) -> Result<PathBuf, Failure> {
    check_tools()?;
    let version = version(workspace)?;
    steps.command("build", cargo().args(["build", "--release", "--locked", "--package", PACKAGE]))?;
    let folder = workspace.target.join("debian");
    let program = workspace.target.join("release/tenure");
    let mut package = PathBuf::new();
    steps.work("package", || {
        package = pack(&folder, &program, &version, &notices::of_linked(workspace, PACKAGE)?)?;
        println!("{}", package.display());
        Ok(())
    })?;
    if succeeds(Command::new("lintian").arg("--version")) {
        let mut lintian = Command::new("lintian");
        // OK because it only reads, and a container has no other user.
        lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
        steps.command("lintian", lintian.arg(&package))?;
    } else {
        println!("not checked by lintian: it is not installed");
    }
    Ok(package)
}

fn check_tools() -> Result<(), Failure> {
    let missing = TOOLS.iter().filter(|(tool, _)| !succeeds(Command::new(tool).arg("--version")));
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    Err(Failure::new("deb", format!("please run: sudo apt-get install {}", packages.join(" "))))
}

/// What the changelog of the package says, which must be the version that is built.
fn version(workspace: &Workspace) -> Result<String, Failure> {
    let version = changelog("Version")?;
    let built = workspace.package(PACKAGE).map(|package| package.version.as_str()).unwrap_or_default();
    if version.rsplit_once('-').is_some_and(|(upstream, _)| upstream == built) {
        return Ok(version);
    }
    Err(Failure::new("deb", format!("{CHANGELOG} has {version}, and {PACKAGE} is {built}: add an entry")))
}

fn changelog(field: &str) -> Result<String, Failure> {
    said(Command::new("dpkg-parsechangelog").args(["-l", CHANGELOG, "-S", field]))
}

/// Lays the files out, and makes one of them all.
fn pack(folder: &Path, program: &Path, version: &str, notices: &str) -> Result<PathBuf, Failure> {
    let tree = folder.join("tenure");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|e| io(&tree, &e))?;
    }
    for (path, source) in contents::files(notices)? {
        let file = tree.join(path.trim_end_matches(".gz"));
        lay(&file, &source, program)?;
        if path.ends_with(".gz") {
            said(Command::new("gzip").args(["-9", "--no-name"]).arg(&file))?;
        }
    }
    let installed = tree.join("usr/bin/tenure");
    said(Command::new("strip").args(["--strip-unneeded", "-R", ".comment", "-R", ".note"]).arg(&installed))?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    describe(&tree, version, &architecture, &libraries(folder, &installed)?)?;
    let package = folder.join(format!("tenure_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(&tree).arg(&package);
    // With this, whoever packs the same program gets the same package.
    said(build.env("SOURCE_DATE_EPOCH", changelog("Timestamp")?))?;
    Ok(package)
}

fn lay(file: &Path, source: &Source, program: &Path) -> Result<(), Failure> {
    let parent = file.parent().unwrap_or(file);
    fs::create_dir_all(parent).map_err(|e| io(parent, &e))?;
    let laid = match source {
        Source::Program => fs::copy(program, file).map(|_| ()),
        Source::File(from) => fs::copy(from, file).map(|_| ()),
        Source::Text(text) => fs::write(file, text),
        Source::Completions(shell) => {
            fs::write(file, said(Command::new(program).args(["completions", shell]))? + "\n")
        }
    };
    laid.map_err(|e| io(file, &e))?;
    let mode = if *source == Source::Program { "0755" } else { "0644" };
    said(Command::new("chmod").arg(mode).arg(file)).map(|_| ())
}

/// Which libraries of the system the program needs, and since when they have what it calls.
fn libraries(folder: &Path, program: &Path) -> Result<String, Failure> {
    // The tool reads the source's control file, of which there is none.
    let control = folder.join("debian/control");
    lay(
        &control,
        &Source::Text("Source: tenure\n\nPackage: tenure\nArchitecture: any\n".to_owned()),
        program,
    )?;
    let found = said(Command::new("dpkg-shlibdeps").arg("-O").arg(program).current_dir(folder))?;
    let depends = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).ok_or_else(|| Failure::new("dpkg-shlibdeps", format!("it said: {found}")))
}

/// The files of `DEBIAN/`: what the package is, and the sums of what it has.
fn describe(tree: &Path, version: &str, architecture: &str, depends: &str) -> Result<(), Failure> {
    let sums = said(Command::new("sh").args(["-c", SUMS]).current_dir(tree))?;
    let size = said(Command::new("sh").args(["-c", "du -sk usr | cut -f 1"]).current_dir(tree))?;
    let control = fs::read_to_string(CONTROL).map_err(|e| io(Path::new(CONTROL), &e))?;
    let (package, rest) = control.split_once('\n').unwrap_or((&control, ""));
    let control = format!(
        "{package}\nVersion: {version}\nArchitecture: {architecture}\nInstalled-Size: {size}\nDepends: {depends}\n{rest}"
    );
    lay(&tree.join("DEBIAN/control"), &Source::Text(control), tree)?;
    lay(&tree.join("DEBIAN/md5sums"), &Source::Text(sums + "\n"), tree)
}

/// What `dpkg --verify` compares.
const SUMS: &str = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";

/// What a command prints; its failure is ours.
fn said(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| Failure::new(&name, format!("cannot be started: {e}")))?;
    if !output.status.success() {
        return Err(Failure::new(name, String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn io(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new("deb", format!("{}: {error}", path.display()))
}
