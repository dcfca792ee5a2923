//! Files that are not ours to use: damaged, foreign, newer, or not for this user. Refused in one line and not touched. And
//! what a program may do to the files that it has open.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
};
#[cfg(target_os = "linux")]
use std::{
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
use tenure_testkit::patience::eventually;

#[cfg(target_os = "linux")]
use crate::stage::scaled_ttl;
use crate::stage::{Ended, Stage, files::snapshot};

/// Every verb that would write, and those that only look.
const VERBS: &[&[&str]] = &[
    &["run", "-n", "job", "--", "touch", "ran"],
    &["run", "job", "--", "touch", "ran"],
    &["lock", "job", "--ttl", "5s"],
    &["break", "job"],
    &["show", "job"],
    &["ls", "--json"],
    &["unlock", "job", "000000000000000000000000000000000000000000000000"],
    &["renew", "job", "000000000000000000000000000000000000000000000000", "--ttl", "5s"],
];

/// A folder with nothing but a store that was used and closed.
fn used_store(stage: &Stage) -> PathBuf {
    let folder = stage.path("store");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("locks.db");
    let url = format!("sqlite:{}", file.display());
    stage.run(&["run", "--url", &url, "job", "--", "true"]).silent(0);
    // The last connection that closes tidies up beside the file.
    rusqlite::Connection::open(&file).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert!(!folder.join("locks.db-wal").exists());
    file
}

#[track_caller]
fn assert_unchanged(before: &BTreeMap<String, Vec<u8>>, folder: &Path, verb: &[&str]) {
    let mut after = snapshot(folder);
    // A process that ends leaves the log of a store of ours, with room in it; without a word there, nothing was written.
    let is_room = |content: &[u8]| content.iter().all(|byte| *byte == 0);
    if after.iter().all(|(name, content)| !name.ends_with("-wal") || is_room(content)) {
        after.retain(|name, _| {
            before.contains_key(name) || !["-wal", "-shm"].iter().any(|log| name.ends_with(log))
        });
    }
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{verb:?}");
    assert!(*before == after, "{verb:?} changed the content of a file");
}

/// All verbs refuse the file with this code and leave the folder as it was.
fn is_refused(stage: &Stage, file: &Path, code: i32, part: &str) {
    let before = snapshot(file.parent().unwrap());
    let url = format!("sqlite:{}", file.display());
    for verb in VERBS {
        stage.run(&[&["--url", &url], *verb].concat()).complained(code, part);
        assert_unchanged(&before, file.parent().unwrap(), verb);
    }
    assert!(!stage.path("ran").exists());
}

/// Text, noise, and a header without a database: refused by every verb, and not written to.
#[test]
fn a_file_that_is_no_database_is_refused() {
    for content in [b"to whom it may concern\n".repeat(400), vec![0xff; 8192], b"SQLite".to_vec()] {
        let stage = Stage::new();
        fs::create_dir(stage.path("store")).unwrap();
        let file = stage.path("store/locks.db");
        fs::write(&file, content).unwrap();
        is_refused(&stage, &file, 69, "not an SQLite database");
    }
}

/// A file that ends too early, and one with garbage in its middle.
#[test]
fn a_damaged_database_is_refused() {
    let stage = Stage::new();
    let file = used_store(&stage);
    let whole = fs::read(&file).unwrap();
    let half = whole[..whole.len() / 2].to_vec();
    let mut smeared = whole.clone();
    smeared[4096..].fill(0xa5);
    let stump = whole[..50].to_vec();
    for content in [half, smeared, stump] {
        fs::write(&file, content).unwrap();
        is_refused(&stage, &file, 69, "the database is damaged; `tenure doctor` says how to begin anew");
    }
}

/// The state of one lock is not what we write.
#[test]
fn a_damaged_lock_is_refused_and_the_others_live() {
    let stage = Stage::new();
    let file = used_store(&stage);
    let url = format!("sqlite:{}", file.display());
    let damage = rusqlite::Connection::open(&file).unwrap();
    damage.execute("UPDATE lock SET state = '{\"fence\":', busy = 1", []).unwrap();
    drop(damage);
    is_refused(&stage, &file, 69, "is damaged, or another program wrote it");
    stage.run(&["run", "--url", &url, "-n", "other", "--", "true"]).silent(0);
}

/// One row that was not UTF-8 made `ls` fail for all locks, and the error did not name it.
#[test]
fn a_row_that_is_no_text_hides_no_other_lock() {
    let stage = Stage::new();
    let file = used_store(&stage);
    let url = format!("sqlite:{}", file.display());
    stage.run(&["lock", "--url", &url, "held", "--ttl", "1h"]);
    let another = rusqlite::Connection::open(&file).unwrap();
    let copied = "INSERT INTO lock SELECT CAST(x'6261ff64' AS TEXT), busy, used_s, state FROM lock WHERE name = 'held'";
    another.execute(copied, []).unwrap();
    let list = stage.json(&["ls", "--url", &url]);
    assert_eq!((list.as_array().unwrap().len(), &list[0]["name"]), (1, &"held".into()), "{list}");
    another.execute("UPDATE lock SET state = CAST(x'ff' AS TEXT), busy = 1 WHERE name = 'job'", []).unwrap();
    drop(another);
    is_refused(&stage, &file, 69, "is damaged, or another program wrote it");
    stage.run(&["ls", "--url", &url]).complained(69, "lock job");
    stage.run(&["run", "--url", &url, "-n", "other", "--", "true"]).silent(0);
    let found = stage.run(&["doctor", "--url", &url]);
    assert!(found.out.contains("job"), "{found:?}");
}

/// The database of another program, byte by byte as it was.
#[test]
fn the_database_of_another_program_is_refused() {
    let stage = Stage::new();
    fs::create_dir(stage.path("store")).unwrap();
    let file = stage.path("store/locks.db");
    let other = rusqlite::Connection::open(&file).unwrap();
    other.execute_batch("CREATE TABLE lock (name TEXT); INSERT INTO lock VALUES ('mine')").unwrap();
    drop(other);
    is_refused(&stage, &file, 69, "the SQLite database of another program");
    // One that says so itself, without a table yet.
    fs::remove_file(&file).unwrap();
    let other = rusqlite::Connection::open(&file).unwrap();
    other.pragma_update(None, "application_id", 4711).unwrap();
    drop(other);
    is_refused(&stage, &file, 69, "the SQLite database of another program");
}

/// A newer tenure's file is not understood, and so is not touched.
#[test]
fn a_database_of_a_newer_schema_is_refused() {
    let stage = Stage::new();
    let file = used_store(&stage);
    let newer = rusqlite::Connection::open(&file).unwrap();
    newer.pragma_update(None, "user_version", 3).unwrap();
    drop(newer);
    is_refused(&stage, &file, 69, "has schema 3, this tenure knows 2");
}

/// A folder in the place of the file.
#[test]
fn a_folder_is_no_store() {
    let stage = Stage::new();
    fs::create_dir_all(stage.path("store/locks.db")).unwrap();
    is_refused(&stage, &stage.path("store/locks.db"), 69, "cannot open");
}

/// Somebody without rights, and a binary that anybody may run.
struct Nobody {
    stage: Stage,
    binary: PathBuf,
}

const NOBODY: u32 = 65534;

impl Nobody {
    fn new() -> Self {
        let stage = Stage::new();
        let binary = stage.path("tenure");
        fs::copy(env!("CARGO_BIN_EXE_tenure"), &binary).unwrap();
        for path in [stage.path(""), binary.clone()] {
            allow(&path, 0o755);
        }
        Self { stage, binary }
    }

    fn run(&self, url: Option<&str>, arguments: &[&str]) -> Ended {
        let mut command = self.stage.program(&self.binary);
        command.args(arguments);
        match url {
            Some(url) => command.env("TENURE_URL", url),
            None => command.env_remove("TENURE_URL"),
        };
        if nix::unistd::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        self.stage.run_command(command)
    }

    fn is_refused(&self, file: &Path, verbs: &[&[&str]], part: &str) {
        let before = snapshot(file.parent().unwrap());
        let url = format!("sqlite:{}", file.display());
        for verb in verbs {
            self.run(Some(&url), verb).complained(69, part);
            assert_unchanged(&before, file.parent().unwrap(), verb);
        }
        assert!(!self.stage.path("ran").exists());
    }
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A file that may not be read is named, with what to check, and nothing is run.
#[test]
fn an_unreadable_file_is_refused() {
    let nobody = Nobody::new();
    let file = used_store(&nobody.stage);
    allow(file.parent().unwrap(), 0o755);
    let url = format!("sqlite:{}", file.display());
    allow(&file, 0o000);
    for verb in VERBS {
        nobody
            .run(Some(&url), verb)
            .complained(69, "cannot open the database file; check that it and its directory");
    }
    allow(&file, 0o644);
    assert!(!nobody.stage.path("ran").exists());
}

/// In a folder that may not be written either, and in one that may.
#[test]
fn a_read_only_file_is_refused() {
    for mode in [0o555, 0o777] {
        let nobody = Nobody::new();
        let file = used_store(&nobody.stage);
        allow(&file, 0o444);
        allow(file.parent().unwrap(), mode);
        nobody.is_refused(&file, VERBS, "database file");
        allow(file.parent().unwrap(), 0o755);
    }
}

/// There is no file yet, and none can be made.
#[test]
fn a_folder_that_may_not_be_written_is_refused() {
    let nobody = Nobody::new();
    fs::create_dir(nobody.stage.path("store")).unwrap();
    allow(&nobody.stage.path("store"), 0o555);
    let file = nobody.stage.path("store/locks.db");
    nobody.is_refused(
        &file,
        &VERBS[..4],
        "cannot create the database file; its directory must exist and be writable",
    );
    allow(&nobody.stage.path("store"), 0o755);
}

/// The default's place.
#[test]
fn a_home_that_may_not_be_written_is_refused() {
    let nobody = Nobody::new();
    fs::remove_dir_all(nobody.stage.path(".local")).unwrap();
    fs::create_dir(nobody.stage.path(".local")).unwrap();
    allow(&nobody.stage.path(".local"), 0o555);
    nobody.run(None, VERBS[0]).complained(69, "cannot create the state directory");
    allow(&nobody.stage.path(".local"), 0o755);
    assert!(snapshot(&nobody.stage.path(".local")).is_empty());
}

/// L1: a program that copied its own database lost SQLite's locks on it (they belong to the process, and any close drops them).
/// The next command that ended took itself for the last one and deleted the log; from then on both went on in worlds of their
/// own.
#[cfg(target_os = "linux")]
#[test]
fn a_program_that_reads_its_own_files_keeps_its_lock() {
    for parts in [&[""][..], &["-shm"], &["", "-wal", "-shm"]] {
        let stage = Stage::new();
        stage.run(&["run", "job", "--", "true"]).silent(0);
        let file = |part| format!("{}{part}", stage.database().display());
        let locks = tenure::blocking::connect(&format!("sqlite:{}", file(""))).unwrap();
        let (ttl, _) = scaled_ttl(Duration::from_secs(2));
        let began = Instant::now();
        let guard = locks.mutex("job").with(|lock| lock.ttl(ttl)).acquire().unwrap();
        let inodes = || ["-wal", "-shm"].map(|part| fs::metadata(file(part)).map(|is| is.ino()).ok());
        let before = inodes();
        for part in parts {
            fs::read(file(part)).unwrap();
        }
        for passer in [&["ls"][..], &["show", "job"], &["run", "other", "--", "true"], &["doctor"]] {
            assert_eq!(stage.run(passer).code, 0, "{passer:?}");
            assert_eq!(inodes(), before, "{parts:?}: {passer:?} left the log where it was");
        }
        eventually("a lease without a renewal has expired", ttl, || (began.elapsed() > ttl).then_some(()));
        stage.run(&["run", "-n", "job", "--", "touch", "ran"]).complained(1, "held by");
        guard.check().unwrap();
        guard.release().unwrap();
        stage.run(&["run", "-n", "job", "--", "true"]).silent(0);
        stage.run(&["doctor", "-q"]).silent(0);
    }
}
