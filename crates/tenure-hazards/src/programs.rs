//! What a scene needs on this machine, what to install if it is missing, and where the command `tenure` is.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Something that a scene needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Any Redis server: its own, or the one of `--url`.
    Redis,
    /// Its own Redis servers, because faults hit them.
    OwnRedis,
    /// A PostgreSQL server.
    Postgres,
    /// A ZooKeeper server.
    ZooKeeper,
    /// A C compiler, for clocks that step, and for what the PostgreSQL of tests loads.
    Compiler,
    /// `flock`.
    Flock,
    /// The command `tenure`.
    Tenure,
    /// The machine for itself: the scene starts many processes.
    Machine,
}

impl Need {
    /// What to do if it is not there; `None` if it is.
    pub fn missing(self) -> Option<&'static str> {
        let (programs, install) = self.programs();
        (!programs.iter().all(|program| on_the_path(program).is_some())).then_some(install)
    }

    /// What to do to have it.
    pub(crate) fn install(self) -> &'static str {
        self.programs().1
    }

    /// Its programs, and what to do to have them.
    fn programs(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Redis | Self::OwnRedis => {
                (&["redis-server"], "no redis-server here: apt-get install redis-server")
            }
            Self::Postgres => (&["postgres"], "no PostgreSQL here: apt-get install postgresql"),
            Self::ZooKeeper => (
                &["java", "/usr/share/java/zookeeper.jar"],
                "no ZooKeeper here: apt-get install zookeeper default-jre-headless",
            ),
            Self::Compiler => (&["cc"], "no C compiler here: apt-get install gcc libc6-dev"),
            Self::Flock => (&["flock"], "no flock here: apt-get install util-linux"),
            // Found, or built, before the scenes are played.
            Self::Tenure => (&[], "no command `tenure` here: cargo build"),
            Self::Machine => (&[], ""),
        }
    }
}

/// A program on the search path, or of PostgreSQL, which Debian keeps off it; a file, if its name is a whole path.
fn on_the_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    // A whole path replaces the folder that it is joined to.
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Finds the command `tenure` next to this program or on the search path. If Cargo started this program, builds it first.
pub fn tenure(own: &Path) -> Option<PathBuf> {
    if env::var_os("CARGO_MANIFEST_DIR").is_some() {
        build(own);
    }
    Some(own.with_file_name("tenure")).filter(|file| file.is_file()).or_else(|| on_the_path("tenure"))
}

/// A command of an older tree next to this program would show another product.
fn build(own: &Path) {
    let Some(cargo) = env::var_os("CARGO") else { return };
    let is_release = own.parent().is_some_and(|folder| folder.ends_with("release"));
    let mut command = Command::new(cargo);
    // The build must not see the variables of this package: the build scripts of some crates (ring) run again when they
    // change.
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
    // OK to ignore because without the command a scene reports that it is missing.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
}
