//! What the tests need beside Rust, and how a Debian machine gets it.

use std::{env, ffi::OsStr, path::Path, process::Command};

use crate::step::{Failure, Steps};

/// A program that the tests start or that a client is built with, and the Debian packages that bring it.
#[derive(Debug)]
struct Tool {
    /// Its name on the search path; with a `/`, a file that must be there.
    program: &'static str,
    packages: &'static [&'static str],
    /// What the tests do with it: shown when it is missing.
    used_for: &'static str,
}

/// One line per tool; a backend whose tests need a server adds it here.
const TOOLS: &[Tool] = &[
    Tool {
        program: "cc",
        packages: &["gcc", "libc6-dev"],
        used_for: "compiling the bundled SQLite and the clock of test servers",
    },
    Tool { program: "setpriv", packages: &["util-linux"], used_for: "running a command as another user" },
    Tool { program: "redis-server", packages: &["redis-server"], used_for: "real Redis servers" },
    Tool { program: "redis-sentinel", packages: &["redis-sentinel"], used_for: "sentinels that promote" },
    Tool {
        program: "redis-cli",
        packages: &["redis-tools"],
        used_for: "making a Redis cluster, a TLS client",
    },
    Tool {
        program: "/usr/lib/postgresql/15/bin/postgres",
        packages: &["postgresql-15"],
        used_for: "real PostgreSQL servers",
    },
    Tool { program: "/usr/sbin/mariadbd", packages: &["mariadb-server"], used_for: "real MariaDB servers" },
    Tool { program: "/usr/sbin/pgbouncer", packages: &["pgbouncer"], used_for: "a pooler before PostgreSQL" },
    Tool {
        program: "/usr/share/java/zookeeper.jar",
        packages: &["zookeeper"],
        used_for: "real ZooKeeper servers",
    },
    Tool { program: "java", packages: &["default-jre-headless"], used_for: "running ZooKeeper" },
    Tool { program: "etcd", packages: &["etcd-server"], used_for: "real etcd servers" },
    Tool { program: "etcdctl", packages: &["etcd-client"], used_for: "the lock of etcdctl" },
    Tool { program: "protoc", packages: &["protobuf-compiler"], used_for: "building the client of etcd" },
    Tool {
        program: "/usr/include/google/protobuf/descriptor.proto",
        packages: &["libprotobuf-dev"],
        used_for: "building the client of etcd",
    },
    Tool { program: "openssl", packages: &["openssl"], used_for: "certificates for servers with TLS" },
    Tool { program: "node", packages: &["nodejs"], used_for: "running the lock library redlock" },
    Tool { program: "npm", packages: &["npm"], used_for: "installing the lock library redlock" },
    Tool { program: "pip3", packages: &["python3-pip"], used_for: "installing lock libraries" },
    Tool { program: "python3", packages: &["python3"], used_for: "running lock libraries" },
    Tool { program: "zsh", packages: &["zsh"], used_for: "scripts of `tenure hold`" },
];

/// What the ring needs beside [`TOOLS`].
const RING: &[Tool] = &[
    Tool { program: "php", packages: &["php-cli", "php-redis"], used_for: "running symfony/lock" },
    Tool {
        program: "/usr/share/php/Symfony/Component/Lock/autoload.php",
        packages: &["php-symfony-lock"],
        used_for: "the lock library symfony/lock",
    },
    Tool { program: "ruby", packages: &["ruby"], used_for: "a client of Redis in Ruby" },
    Tool {
        program: "/usr/share/doc/ruby-redis",
        packages: &["ruby-redis"],
        used_for: "a client of Redis in Ruby",
    },
    Tool { program: "go", packages: &["golang-go"], used_for: "a client of Redis in Go" },
    Tool {
        program: "/usr/share/gocode/src/github.com/gomodule/redigo/redis",
        packages: &["golang-github-gomodule-redigo-dev"],
        used_for: "a client of Redis in Go",
    },
];

/// Makes sure that every tool of the tests is there.
pub(crate) fn provide(steps: &mut Steps) -> Result<(), Failure> {
    provide_all(TOOLS, steps)
}

/// The same for the ring.
pub(crate) fn provide_ring(steps: &mut Steps) -> Result<(), Failure> {
    provide_all(TOOLS, steps)?;
    provide_all(RING, steps)
}

/// Installs what is missing if that is ours to do (root, with apt-get), otherwise says what to install.
fn provide_all(tools: &'static [Tool], steps: &mut Steps) -> Result<(), Failure> {
    let missing = missing(tools, is_installed);
    if missing.is_empty() {
        return Ok(());
    }
    for tool in &missing {
        println!("missing: {} ({})", tool.program, tool.used_for);
    }
    let packages = packages(&missing);
    if !is_installed("apt-get") || !is_root() {
        return Err(Failure::new("tools", format!("please run: {}", install_line(&packages))));
    }
    steps.command("apt-get update", apt_get().arg("update"))?;
    steps.command(
        "apt-get install",
        apt_get().args(["install", "-y", "--no-install-recommends"]).args(&packages),
    )?;
    let still = self::missing(tools, is_installed);
    if still.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = still.iter().map(|tool| tool.program).collect();
    Err(Failure::new("tools", format!("installed, and still not on PATH: {}", programs.join(", "))))
}

fn missing(tools: &'static [Tool], is_there: impl Fn(&str) -> bool) -> Vec<&'static Tool> {
    tools.iter().filter(|tool| !is_there(tool.program)).collect()
}

fn packages(tools: &[&Tool]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = tools.iter().flat_map(|tool| tool.packages).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The one line that installs all of it, to be copied into a shell.
fn install_line(packages: &[&str]) -> String {
    format!("sudo apt-get install -y --no-install-recommends {}", packages.join(" "))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn is_installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    env::var_os("PATH").is_some_and(|path| is_in(&path, program))
}

/// Whether a search path has an executable file of this name.
fn is_in(path: &OsStr, program: &str) -> bool {
    env::split_paths(path).any(|folder| is_executable(&folder.join(program)))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_there_is_missing() {
        let missing = missing(TOOLS, |program| !["setpriv", "redis-cli"].contains(&program));
        assert_eq!(missing.iter().map(|tool| tool.program).collect::<Vec<_>>(), ["setpriv", "redis-cli"]);
        assert!(self::missing(TOOLS, |_| true).is_empty());
    }

    #[test]
    fn what_is_named_by_its_path_is_looked_for_there() {
        assert!(is_installed("/etc/passwd") && !is_installed("/etc/no/such/file"));
    }

    #[test]
    fn the_packages_are_named_once_in_one_line() {
        let both = [&TOOLS[0], &TOOLS[1], &TOOLS[0]];
        assert_eq!(
            install_line(&packages(&both)),
            "sudo apt-get install -y --no-install-recommends gcc libc6-dev util-linux"
        );
    }

    #[test]
    fn a_program_is_found_on_a_search_path_only_where_it_can_run() {
        assert!(is_in(OsStr::new("/nowhere:/bin"), "sh"));
        assert!(!is_in(OsStr::new("/nowhere"), "sh"));
        assert!(!is_in(OsStr::new("/etc"), "passwd"));
    }
}
