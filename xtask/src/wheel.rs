//! `cargo xtask wheel`: the module for Python with the command in it, for every Linux of the last ten years.
//!
//! Both are linked by zig against an old glibc. The command is a program in the wheel and no entry point of Python: it executes
//! itself.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    clients::pip_install,
    deb::{clean_root::CleanRoot, notices},
    step::{Failure, Steps, io, output_of},
    workspace::{ALL_STORES, Workspace, cargo},
};

/// The oldest glibc that it runs on, which is of 2012: RHEL 7, Debian 8, Ubuntu 14.04 and later.
const GLIBC: &str = "2.17";

/// A wheel that is larger than this says that something is in it twice. The aim was 15 MB; two programs that each have the clients of
/// all stores, optimised as a whole, are 16.
const MOST_BYTES: u64 = 16_500_000;

/// Where the module is.
const HOME: &str = "crates/tenure-python";

/// Builds the wheel, and looks at what is in it.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    make(workspace, &mut Steps::default()).map(|_| ())
}

/// The same, and then installs it in clean roots, of Debian 12 and of an older one, and uses it there.
pub(crate) fn run_and_try(workspace: &Workspace) -> Result<(), Failure> {
    let mut steps = Steps::default();
    let wheel = make(workspace, &mut steps)?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for suite in ["bookworm", "bullseye"] {
        let root = CleanRoot {
            suite,
            include: "python3,python3-venv,python3-pip",
            script: "packaging/wheel/try.sh",
        };
        root.try_package(&mut steps, workspace, (&folder(workspace), &wheel, &name))?;
    }
    Ok(())
}

/// Where all of it is made.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("wheel")
}

fn make(workspace: &Workspace, steps: &mut Steps) -> Result<PathBuf, Failure> {
    let tools = folder(workspace).join("tools");
    steps.work("tools", || provide_tools(workspace, &tools))?;
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = with_tools(cargo(), &tools);
    build.args(["zigbuild", "--release", "--locked", "--package", "tenure-cli", "--target"]);
    build.arg(format!("{target}.{GLIBC}")).args(ALL_STORES);
    steps.command("the command", &mut build)?;
    let program = workspace.target.join(&target).join("release/tenure");
    let data = workspace.root.join(HOME).join("tenure.data");
    steps.work("what goes with it", || lay_out(workspace, &data, &program))?;

    let out = folder(workspace).join("out");
    clear(&out)?;
    let mut maturin = with_tools(Command::new(tools.join("bin/maturin")), &tools);
    maturin.args(["build", "--release", "--locked", "--zig", "--target", &target]);
    maturin.args(["--compatibility", &format!("manylinux_{}", GLIBC.replace('.', "_"))]);
    maturin.args(["--compression-level", "9"]).args(ALL_STORES).arg("--out").arg(&out);
    maturin.args(["--", "-C"]).arg(format!("link-arg={}", unwinder()?));
    let built = steps.command("the module", maturin.current_dir(workspace.root.join(HOME)));
    clear(&data)?;
    fs::remove_dir(&data).map_err(|e| io(&data, &e))?;
    built?;
    steps.work("look", || look_at(&out))
}

/// The library that unwinds a thread of Python which comes back to an interpreter that has ended. The one of zig is another than the
/// one of glibc, and crashes on that.
fn unwinder() -> Result<String, Failure> {
    Ok(output_of(Command::new("cc").arg("-print-file-name=libgcc_s.so.1"))?.trim().to_owned())
}

/// The builders, in the versions that are pinned.
fn provide_tools(workspace: &Workspace, tools: &Path) -> Result<(), Failure> {
    let pins = workspace.root.join("packaging/wheel/requirements.txt");
    let (wanted, stamp) = (fs::read(&pins).map_err(|e| io(&pins, &e))?, tools.join("pins"));
    if fs::read(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    clear(tools)?;
    let copy = tools.join("requirements.txt");
    fs::copy(&pins, &copy).map_err(|e| io(&copy, &e))?;
    output_of(&mut pip_install(tools))?;
    fs::copy(&pins, &stamp).map(drop).map_err(|e| io(&stamp, &e))
}

/// An empty folder.
fn clear(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| io(folder, &e))?;
    }
    fs::create_dir_all(folder).map_err(|e| io(folder, &e))
}

fn with_tools(mut command: Command, tools: &Path) -> Command {
    let mut path = OsString::from(tools.join("bin"));
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path).env("PYTHONPATH", tools);
    // It is downloaded more often than it is built: a fifth smaller.
    command.env("CARGO_PROFILE_RELEASE_LTO", "fat").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    command
}

/// The command, its manual and the licences, as they lie below the environment that the wheel is installed into.
fn lay_out(workspace: &Workspace, data: &Path, program: &Path) -> Result<(), Failure> {
    let (scripts, pages) = (data.join("scripts"), data.join("data/share/man/man1"));
    let documents = data.join("data/share/doc/tenure");
    for folder in [data, &scripts, &pages, &documents] {
        fs::create_dir_all(folder).map_err(|e| io(folder, &e))?;
    }
    let to = scripts.join("tenure");
    fs::copy(program, &to).map_err(|e| io(&to, &e))?;
    let manual = workspace.root.join("packaging/man");
    for page in fs::read_dir(&manual).map_err(|e| io(&manual, &e))? {
        let page = page.map_err(|e| io(&manual, &e))?;
        fs::copy(page.path(), pages.join(page.file_name())).map_err(|e| io(&page.path(), &e))?;
    }
    for package in ["tenure-cli", "tenure-python"] {
        let file = documents.join(format!("third-party-licenses-of-{package}"));
        fs::write(&file, notices::of_linked(workspace, package)?).map_err(|e| io(&file, &e))?;
    }
    Ok(())
}

/// The one wheel that was made, if it is whole and small enough.
fn look_at(out: &Path) -> Result<PathBuf, Failure> {
    let wrong = |why: String| Failure::new("wheel", why);
    let made: Vec<PathBuf> =
        fs::read_dir(out).map_err(|e| io(out, &e))?.filter_map(|file| Some(file.ok()?.path())).collect();
    let [wheel] = made.as_slice() else { return Err(wrong(format!("one wheel was to be made: {made:?}"))) };
    let listing = output_of(Command::new("python3").args(["-m", "zipfile", "-l"]).arg(wheel))?;
    for part in ["tenure/_native.abi3.so", "tenure/py.typed", ".data/scripts/tenure", "man1/tenure-run.1"] {
        if !listing.contains(part) {
            return Err(wrong(format!("it has no {part}")));
        }
    }
    let bytes = fs::metadata(wheel).map_err(|e| io(wheel, &e))?.len();
    if bytes > MOST_BYTES {
        return Err(wrong(format!("it has {bytes} bytes, and {MOST_BYTES} are the most")));
    }
    println!("{} ({:.1} MB)", wheel.display(), bytes as f64 / 1e6);
    Ok(wheel.clone())
}
