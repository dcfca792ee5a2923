//! Where the command `tenure` is: beside this program, on the search path, or built now.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Finds it, given our own program; if Cargo has started us, has it built.
pub fn find(own: &Path) -> Option<PathBuf> {
    if env::var_os("CARGO_MANIFEST_DIR").is_some() {
        build(own);
    }
    let beside = own.with_file_name("tenure");
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join("tenure"));
    [beside].into_iter().chain(found).find(|file| file.is_file())
}

/// A command of an older tree beside us would show another product.
fn build(own: &Path) {
    let Some(cargo) = env::var_os("CARGO") else { return };
    let is_release = own.parent().is_some_and(|folder| folder.ends_with("release"));
    let mut command = Command::new(cargo);
    // What it told us of our own package is not for it: the build scripts of some crates (ring) run anew when that changes.
    let kinds = ["CARGO_PKG_", "CARGO_MANIFEST_"];
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| kinds.iter().any(|kind| name.starts_with(kind))) {
            command.env_remove(name);
        }
    }
    command.args(["build", "--quiet", "--package", "tenure-cli"]).args(is_release.then_some("--release"));
    if !own.with_file_name("tenure").is_file() {
        eprintln!("building the command `tenure`, which scene 20 plays; once");
    }
    // OK to ignore because without the command a scene says that it is missing.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
}
