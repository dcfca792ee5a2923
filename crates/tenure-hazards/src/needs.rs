//! What a scene needs on this machine, and what to install if it is missing.

use std::{env, path::Path};

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
