//! What a scene needs on this machine, what to install if it is missing, and where the command `tenure` is.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Something that a scene needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A Redis server that may be any: its own, or the one of `--url`.
    Redis,
    /// Redis servers of its own, on which faults come.
    OwnRedis,
    /// A ZooKeeper server.
    ZooKeeper,
    /// A C compiler, for clocks that step.
    Compiler,
    /// `flock`.
    Flock,
    /// The command `tenure`.
    Tenure,
    /// The machine for itself: the scene starts many processes.
    Machine,
}

impl Need {
    /// What to do if it is not there; none if it is.
    pub fn missing(self) -> Option<&'static str> {
        let programs: &[&str] = match self {
            Self::Redis | Self::OwnRedis => &["redis-server"],
            Self::ZooKeeper => &["java", "/usr/share/java/zookeeper.jar"],
            Self::Compiler => &["cc"],
            Self::Flock => &["flock"],
            // Found, or built, when the runner opens.
            Self::Tenure | Self::Machine => &[],
        };
        (!programs.iter().all(|program| is_there(program))).then_some(self.install())
    }

    /// What to do to have it.
    pub(crate) fn install(self) -> &'static str {
        match self {
            Self::Redis | Self::OwnRedis => "no redis-server here: apt-get install redis-server",
            Self::ZooKeeper => "no ZooKeeper here: apt-get install zookeeper default-jre-headless",
            Self::Compiler => "no C compiler here: apt-get install gcc libc6-dev",
            Self::Flock => "no flock here: apt-get install util-linux",
            Self::Machine => "",
            Self::Tenure => "no command `tenure` here: cargo build --release",
        }
    }
}

/// Whether a program is on the search path; with a `/`, whether the file is there.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The command `tenure`: beside this program, on the search path, or built now. Finds it, given our own program; if Cargo has started us, has it built.
pub fn tenure(own: &Path) -> Option<PathBuf> {
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
