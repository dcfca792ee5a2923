//! Lock libraries of other languages, which the tests meet: in the target folder, in the versions that are pinned.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    step::{Failure, Steps, succeeds},
    workspace::Workspace,
};

/// What a complete folder has: the pins that it was made from. Written last.
const STAMP: &str = "pins";

/// A library of another language.
struct Client {
    library: &'static str,
    /// Below `clients` in the target folder. The tests look for it there.
    folder: &'static str,
    /// Where the pins are, relative to the root.
    home: &'static str,
    /// Files that the installer reads; the last one is compared with the stamp.
    pins: &'static [&'static str],
    installer: fn(&Path) -> Command,
    /// Succeeds if the library can be loaded.
    probe: fn(&Path) -> Command,
}

const CLIENTS: &[Client] = &[
    Client {
        library: "redis-py",
        folder: "python",
        home: "crates/tenure-redis/tests/interop",
        pins: &["requirements.txt"],
        installer: pip_install,
        probe: |folder| python(folder, "import redis.lock"),
    },
    Client {
        library: "node redlock",
        folder: "node",
        home: "crates/tenure-redis/tests/interop",
        pins: &["package.json", "package-lock.json"],
        installer: npm_install,
        probe: |folder| node(folder, "require('ioredis'); require('redlock')"),
    },
    Client {
        library: "kazoo",
        folder: "kazoo",
        home: "crates/tenure-zookeeper/tests/interop",
        pins: &["requirements.txt"],
        installer: pip_install,
        probe: |folder| python(folder, "import kazoo.client, kazoo.recipe.lock"),
    },
    Client {
        library: "psycopg, PyMySQL, SQLAlchemy and Django",
        folder: "python-sql",
        home: "crates/tenure-python/tests",
        pins: &["requirements.txt"],
        // All are pure Python, which any version runs; what they recommend is built for one.
        installer: |folder| {
            let mut pip = pip_install(folder);
            pip.arg("--no-deps");
            pip
        },
        probe: |folder| python(folder, "import psycopg, pymysql, sqlalchemy, django.db"),
    },
];

/// What the ring meets.
const RING: &[Client] = &[
    Client {
        library: "redis-py and python-redis-lock",
        folder: "ring-python",
        home: "crates/tenure-ring/programs/python",
        pins: &["requirements.txt"],
        installer: pip_install,
        probe: |folder| python(folder, "import redis.lock, redis_lock"),
    },
    Client {
        library: "node redlock and redis-semaphore",
        folder: "ring-node",
        home: "crates/tenure-ring/programs/node",
        pins: &["package.json", "package-lock.json"],
        installer: npm_install,
        probe: |folder| node(folder, "require('ioredis'); require('redlock'); require('redis-semaphore')"),
    },
    Client {
        library: "the recipe in Go",
        folder: "ring-go",
        home: "crates/tenure-ring/programs/go",
        pins: &["contender.go"],
        installer: go_build,
        probe: go_probe,
    },
];

/// Installs what the tests meet.
pub(crate) fn provide(workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    provide_all(CLIENTS, workspace, steps)
}

/// Installs what the ring meets.
pub(crate) fn provide_ring(workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    provide_all(RING, workspace, steps)
}

/// Installs what is not there yet in the version that is pinned.
fn provide_all(clients: &[Client], workspace: &Workspace, steps: &mut Steps) -> Result<(), Failure> {
    for client in clients {
        let pins = workspace.root.join(client.home);
        let folder = target(workspace).join("clients").join(client.folder);
        if !client.is_there(&pins, &folder) {
            steps.work(client.library, || client.install(&pins, &folder))?;
        }
    }
    Ok(())
}

impl Client {
    fn install(&self, pins: &Path, folder: &Path) -> Result<(), Failure> {
        let failed = |why: String| {
            let remedy =
                format!("run it again when the package registry is within reach ({})", folder.display());
            Failure::new(self.library, format!("{why}; {remedy}"))
        };
        self.prepare(pins, folder).map_err(|e| failed(format!("cannot make its folder: {e}")))?;
        let mut installer = (self.installer)(folder);
        let program = installer.get_program().display().to_string();
        let status = installer.status().map_err(|e| failed(format!("cannot start {program}: {e}")))?;
        if !status.success() {
            return Err(failed(format!("{program} could not install it: {status}")));
        }
        if !succeeds(&mut (self.probe)(folder)) {
            return Err(failed("installed, and still cannot be loaded".to_owned()));
        }
        self.stamp(folder).map_err(|e| failed(format!("cannot write into its folder: {e}")))
    }

    fn pinned(&self) -> &'static str {
        self.pins.last().expect("BUG: every client has a file of pins")
    }

    fn is_there(&self, pins: &Path, folder: &Path) -> bool {
        let wanted = fs::read(pins.join(self.pinned()));
        let there = fs::read(folder.join(STAMP));
        matches!((wanted, there), (Ok(wanted), Ok(there)) if wanted == there)
            && succeeds(&mut (self.probe)(folder))
    }

    /// An empty folder with the pins in it.
    fn prepare(&self, pins: &Path, folder: &Path) -> io::Result<()> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(folder)?,
        }
        for name in self.pins {
            fs::copy(pins.join(name), folder.join(name))?;
        }
        Ok(())
    }

    fn stamp(&self, folder: &Path) -> io::Result<()> {
        fs::copy(folder.join(self.pinned()), folder.join(STAMP)).map(drop)
    }
}

/// Where cargo builds; a relative path counts from the root, where our commands run.
fn target(workspace: &Workspace) -> PathBuf {
    workspace.root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Without a virtual environment: Debian's Python cannot make one without a further package.
pub(crate) fn pip_install(folder: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]);
    pip.args(["--require-hashes", "--only-binary=:all:", "--target"]).arg(folder);
    pip.arg("--requirement").arg(folder.join("requirements.txt"));
    pip
}

fn python(folder: &Path, program: &str) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", program]).env("PYTHONPATH", folder);
    python
}

fn npm_install(folder: &Path) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
        .arg(folder)
        .current_dir(folder);
    npm
}

fn node(folder: &Path, program: &str) -> Command {
    let mut node = Command::new("node");
    node.args(["-e", program]).env("NODE_PATH", folder.join("node_modules"));
    node
}

/// With the libraries of Debian, which are no modules.
fn go_build(folder: &Path) -> Command {
    let mut go = Command::new("go");
    go.args(["build", "-o", "contender", "contender.go"]).current_dir(folder);
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
    go
}

fn go_probe(folder: &Path) -> Command {
    let mut test = Command::new("test");
    test.arg("-x").arg(folder.join("contender"));
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(_: &Path) -> Command {
        Command::new("false")
    }

    fn works(_: &Path) -> Command {
        Command::new("true")
    }

    /// A folder of this test's own that goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("xtask-clients-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("pins")).unwrap();
            fs::write(path.join("pins/a.txt"), "a==1").unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_library_is_there_if_it_was_made_from_these_pins_and_loads() {
        let folder = Folder::new("there");
        let (pins, target) = (folder.0.join("pins"), folder.0.join("target"));
        let mut client =
            Client { library: "a", folder: "a", home: "", pins: &["a.txt"], installer: works, probe: works };
        assert!(!client.is_there(&pins, &target));
        client.prepare(&pins, &target).unwrap();
        assert!(!client.is_there(&pins, &target), "an installation that was broken off is none");
        client.stamp(&target).unwrap();
        assert!(client.is_there(&pins, &target));
        client.probe = fails;
        assert!(!client.is_there(&pins, &target));
        client.probe = works;
        fs::write(pins.join("a.txt"), "a==2").unwrap();
        assert!(!client.is_there(&pins, &target));
    }

    #[test]
    fn an_installation_that_fails_is_said_and_leaves_no_stamp() {
        let folder = Folder::new("fails");
        let (pins, target) = (folder.0.join("pins"), folder.0.join("target"));
        let mut client =
            Client { library: "a", folder: "a", home: "", pins: &["a.txt"], installer: fails, probe: works };
        let failure = client.install(&pins, &target).unwrap_err().to_string();
        assert!(failure.starts_with("step `a` failed: false could not install it: exit status"), "{failure}");
        assert!(!client.is_there(&pins, &target));
        client.installer = works;
        client.install(&pins, &target).unwrap();
        assert!(client.is_there(&pins, &target));
    }

    #[test]
    fn what_an_older_version_left_is_gone() {
        let folder = Folder::new("older");
        let (pins, target) = (folder.0.join("pins"), folder.0.join("target"));
        let client =
            Client { library: "a", folder: "a", home: "", pins: &["a.txt"], installer: works, probe: works };
        client.prepare(&pins, &target).unwrap();
        fs::write(target.join("old"), "").unwrap();
        client.prepare(&pins, &target).unwrap();
        assert!(!target.join("old").exists() && target.join("a.txt").exists());
    }
}
