//! A folder of data that was set up once for this machine, and copies of it.

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::COLUMNS;
use crate::{daemon::checked, folder, shim};

/// Copies a fresh cluster with the role and the database `tenure` into `folder`, which the server's user then owns.
///
/// A setup takes a second; a copy takes a fifth of that. The original stays in the machine's folder for temporary
/// files, so that the next test can use it.
///
/// # Panics
/// If PostgreSQL is missing.
pub(super) fn copy_into(folder: &Path) {
    give(folder);
    let data = folder.join("data");
    checked(Command::new("cp").arg("-a").arg(original()).arg(&data));
    give(&data);
}

/// Copies the data that the server on this port has now. The copy follows that server once it is started.
///
/// # Panics
/// If that server does not serve.
pub(super) fn back_up_into(folder: &Path, primary: u16) {
    give(folder);
    let options = ["-h", "127.0.0.1", "-U", "postgres", "-R", "-c", "fast", "--no-sync", "-p"];
    let mut backup = as_server(&program("pg_basebackup"));
    checked(
        backup.args(options).arg(primary.to_string()).arg("-D").arg(folder.join("data")).current_dir(folder),
    );
}

/// The program `name` of the newest PostgreSQL that is installed.
///
/// # Panics
/// If there is none.
pub(super) fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(name)))
        })
        .filter(|(_, program)| program.exists())
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, program)| program);
    newest.unwrap_or_else(|| panic!("PostgreSQL's {name} is missing; `cargo xtask test` installs it"))
}

/// A command as the user under which these servers run: they refuse to run as root.
pub(super) fn as_server(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// Makes the server's user the owner of a file or a folder, and no other user can access it.
pub(super) fn give(path: &Path) {
    if is_root() {
        checked(Command::new("chown").arg("postgres:postgres").arg(path));
    }
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

/// Lets the server's user read a file of the test, and the folder that it is in. Rights are added only: the folder may be the one
/// of all temporary files.
pub(super) fn show(file: &Path) {
    let folder = file.parent().expect("a file lies in a folder");
    for (path, added) in [(folder, 0o055), (file, 0o044)] {
        let mode = fs::metadata(path).expect("our own file").permissions().mode();
        if mode & added != added {
            fs::set_permissions(path, fs::Permissions::from_mode(mode | added)).expect("our own file");
        }
    }
}

fn is_root() -> bool {
    // Without /proc this is not Linux, and only Linux runs in containers, where a test may be root.
    fs::metadata("/proc/self").is_ok_and(|us| us.uid() == 0)
}

/// The library that a server must preload, so that its session is that of the test.
pub(super) fn same_session() -> String {
    shim::library("session", SESSION).display().to_string()
}

fn original() -> PathBuf {
    let initdb = program("initdb");
    let version = initdb.iter().rev().nth(2).and_then(|part| part.to_str()).expect("a path with a version");
    let place = std::env::temp_dir().join(format!("tenure-postgres-{version}-{FORM}"));
    if place.join("data/PG_VERSION").exists() {
        return place.join("data");
    }
    let folder = folder::temporary("tenure-initdb-");
    set_up(folder.path(), &initdb);
    // Only the first process can rename its folder; the others find that the place exists.
    let folder = folder.keep();
    if fs::rename(&folder, &place).is_err() {
        fs::remove_dir_all(&folder).expect("our own folder");
    }
    assert!(place.join("data/PG_VERSION").exists(), "{} is no cluster; remove it", place.display());
    place.join("data")
}

fn set_up(folder: &Path, initdb: &Path) {
    give(folder);
    let data = folder.join("data");
    let options =
        ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "--wal-segsize=1"];
    checked(as_server(initdb).arg("-D").arg(&data).args(options).current_dir(folder));
    let table = format!(
        "CREATE TABLE tenure_lock ({COLUMNS}) WITH (fillfactor = 50);\nALTER TABLE tenure_lock OWNER TO tenure;\n"
    );
    for (database, words) in [("postgres", FIRST_WORDS), ("tenure", &*table), ("tenure", LAST_WORDS)] {
        tell(&data, database, words);
    }
}

/// Runs statements on a cluster on which no server runs.
fn tell(data: &Path, database: &str, words: &str) {
    let mut single = as_server(&program("postgres"))
        .args(["--single", "-D"])
        .arg(data)
        .args(["-F", database])
        .current_dir(data)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it was there a moment ago");
    let mut input = single.stdin.take().expect("a pipe was asked for");
    input.write_all(words.as_bytes()).expect("it listens");
    drop(input);
    assert!(single.wait().expect("our own child").success(), "a fresh cluster does as it is told");
}

const FIRST_WORDS: &str = "CREATE ROLE tenure LOGIN;\nCREATE DATABASE tenure OWNER tenure;\n";
/// Drops three quarters of all files, which no test needs and each would copy.
const LAST_WORDS: &str = "UPDATE pg_database SET datistemplate = false WHERE datistemplate;\n\
    DROP DATABASE template1;\nDROP DATABASE template0;\nDROP DATABASE postgres;\n";
/// Change it when the setup changes, so that no test uses an older original.
const FORM: &str = "5";
const SESSION: &str = include_str!("session.c");
