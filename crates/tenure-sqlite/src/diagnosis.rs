//! `diagnose`: what weakens the promises of a database file and of its directory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::{AccessFlags, access};
use rusqlite::Connection;
use tenure_client::doctor::{Check, finding, found, judged};
use tenure_core::{
    BackendError, Finding,
    Severity::{Note, Problem, Warning},
};
use tenure_ledger::{Ledger, Place};

use crate::{
    clock::micros, error, front, guard::GuardRecord, room, sql, store::FileStore, unsigned::Unsigned,
    volume::Volume,
};

/// With less free space than this, the log may not find room. It has 4 MB normally.
const LITTLE_SPACE: u64 = 16 << 20;
/// The log has 4 MB normally. A reader with a long transaction makes it grow without limit.
const LONG_LOG: u64 = 64 << 20;
/// If the file vanishes, nothing is granted for the longest ttl ever granted. One longer than this is a finding.
const LONG_TTL: Duration = Duration::from_secs(600);

/// Checks the directory and the file system, then the file. Does not create the file.
pub(crate) fn diagnose(store: &mut FileStore) -> Result<Vec<Finding>, BackendError> {
    let path = store.config.path.clone();
    let is_there = store.reach(false)?;
    let mut file = DoctorFacts::around(store);
    if !is_there {
        may_be_made(&path, &file.folder)?;
        let what = format!("there is no file {} yet", path.display());
        let remedy = "nothing: the first lock makes it; if you expected one, check the path";
        return Ok([judged(&CHECKS, &file), vec![finding(Note, what, remedy)]].concat());
    }
    file.longest = GuardRecord::read(&path)?.map(|guard| Duration::from_millis(guard.max_ttl_ms));
    let now_us = micros(store.now().boot);
    let conn = store.conn().expect("BUG: reached above");
    file.look_inside(conn, now_us).map_err(|e| error::before_commit(&path, e))?;
    Ok(judged(&CHECKS, &file))
}

/// The error of a claim that cannot make the file.
fn may_be_made(path: &Path, folder: &Path) -> Result<(), BackendError> {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|errno| error::cannot_make(path, errno.into()))
}

#[derive(Default)]
struct DoctorFacts {
    path: PathBuf,
    folder: PathBuf,
    /// What the file is on.
    volume: Volume,
    /// This process's boot clock is not that of the machine.
    has_shifted_clock: bool,
    /// In bytes.
    free: Option<u64>,
    /// The length of SQLite's log, in bytes.
    log: u64,
    /// The permission bits of the folder.
    mode: Option<u32>,
    /// The longest ttl that was granted.
    longest: Option<Duration>,
    /// For how long nothing is granted.
    closed: Duration,
    /// What SQLite found wrong.
    damage: Option<String>,
    /// The names of locks that are stored in a form that this version cannot read.
    foreign: BTreeSet<String>,
}

impl DoctorFacts {
    fn around(store: &FileStore) -> Self {
        let path = store.config.path.clone();
        // SQLite puts its log next to the target of a link.
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let folder = real.parent().unwrap_or(&real).to_owned();
        let metadata = fs::metadata(&folder).ok();
        Self {
            path,
            volume: Volume::of(&folder),
            has_shifted_clock: store.clock.is_shifted(),
            free: room::free(&folder),
            log: log_of(&real),
            mode: metadata.map(|folder| folder.permissions().mode()),
            folder,
            ..Self::default()
        }
    }

    fn look_inside(&mut self, conn: &Connection, now_us: u64) -> rusqlite::Result<()> {
        let check: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        self.damage = damage(&check);
        let Unsigned::<u64>(opens_us) = conn.query_row(sql::READ_OPENS, [], |row| row.get(0))?;
        self.closed = Duration::from_micros(opens_us.saturating_sub(now_us));
        self.foreign = foreign_names(conn, sql::EVERY_LOCK, |state| Ledger::decode(state).is_ok())?;
        self.foreign.extend(foreign_names(conn, sql::EVERY_PLACE, |state| Place::decode(state, 0).is_ok())?);
        Ok(())
    }
}

const CHECKS: [Check<DoctorFacts>; 9] = [
    Check::new("file system", |file| {
        let (severity, what) = match &file.volume {
            Volume::Local => return None,
            Volume::Network(_) => (Problem, "two machines could hold one lock"),
            _ => (Warning, "if another machine has it too, both could hold one lock"),
        };
        let remedy = "move it to a local file system; for locks between machines use a store with a server";
        found(true, severity, format!("the file is on {}: {what}", file.volume), remedy)
    }),
    Check::new("clock", |file| {
        let what = "this process has a boot clock of its own (a time namespace); leases are counted by the \
                    machine's";
        let remedy =
            "nothing: processes inside and outside agree; a container without a time namespace is simpler";
        found(file.has_shifted_clock, Note, what, remedy)
    }),
    Check::new("space", |file| {
        let free = file.free?;
        let kib = free >> 10;
        let what = format!(
            "only {kib} KiB are free on the disk: once it is full, leases are kept, but new locks are refused"
        );
        found(free < LITTLE_SPACE, Warning, what, "make room, or move the file")
    }),
    Check::new("log", |file| {
        let mib = file.log >> 20;
        let what = format!(
            "the log of the database (-wal) has {mib} MiB: a program that reads the file keeps one transaction open, and all requests \
             get slower"
        );
        let remedy = "end that program, such as an open sqlite3 or a backup (fuser -v shows them); the log shrinks then";
        found(file.log > LONG_LOG, Warning, what, remedy)
    }),
    Check::new("access", |file| {
        let folder = file.folder.display();
        let what =
            format!("every user may write to {folder}, and so delete the file, which ends every lease");
        let remedy = format!("give the directory to one group: chmod o-w {folder}");
        // Without the sticky bit, a user with write permission on a directory may delete every file in it.
        found(file.mode? & 0o1002 == 0o0002, Warning, what, remedy)
    }),
    Check::new("longest ttl", |file| {
        let longest = file.longest?;
        let what =
            format!("a ttl of {longest:?} was granted: if the file vanishes, nothing is granted for as long");
        let remedy = format!(
            "use a short ttl, which is renewed while the lock is held; when nothing is held, remove {}",
            GuardRecord::path(&file.path).display()
        );
        found(longest > LONG_TTL, Note, what, remedy)
    }),
    Check::new("closed", |file| {
        let left = file.closed;
        let what = format!("the file was deleted or replaced; nothing is granted for another {left:.1?}");
        found(!left.is_zero(), Warning, what, "wait until every lease in the old file has expired")
    }),
    Check::new("damage", |file| {
        let what = format!("the database is damaged: {}", file.damage.as_ref()?);
        Some(finding(Problem, what, start_anew(&file.path)))
    }),
    Check::new("foreign locks", |file| {
        let (count, first) = (file.foreign.len(), file.foreign.first()?);
        let what =
            format!("{count} locks are stored in a form that tenure does not write; the first is {first:?}");
        Some(finding(Problem, what, start_anew(&file.path)))
    }),
];

fn log_of(path: &Path) -> u64 {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    fs::metadata(name).map_or(0, |log| log.len())
}

/// The damage that a check reports, in one line.
fn damage(check: &str) -> Option<String> {
    let lines: Vec<&str> = check.lines().filter(|line| !line.starts_with("***")).collect();
    (check != "ok").then(|| lines.join("; "))
}

fn foreign_names(
    conn: &Connection,
    every: &str,
    is_ours: impl Fn(&str) -> bool,
) -> rusqlite::Result<BTreeSet<String>> {
    let mut every = conn.prepare(every)?;
    let mut rows = every.query([])?;
    let mut names = BTreeSet::new();
    while let Some(row) = rows.next()? {
        if !is_ours(&front::state(row, 1)?) {
            names.insert(front::state(row, 0)?);
        }
    }
    Ok(names)
}

/// OK while locks are held: the guard file next to the database records for how long nothing may be granted.
fn start_anew(path: &Path) -> String {
    let (path, guard) = (path.display(), GuardRecord::path(path));
    format!(
        "remove {path}, {path}-wal and {path}-shm, but not {}: holders are stopped, and nothing is granted \
         until their leases have expired",
        guard.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of which only this is known.
    fn judge(set: impl FnOnce(&mut DoctorFacts)) -> Vec<Finding> {
        let mut file = DoctorFacts { path: "/a/a.db".into(), folder: "/a".into(), ..DoctorFacts::default() };
        set(&mut file);
        judged(&CHECKS, &file)
    }

    #[test]
    fn a_file_system_that_is_shared_is_a_problem_and_one_that_may_be_is_a_warning() {
        for (volume, severity) in [
            (Volume::Network("nfs4".into()), Problem),
            (Volume::Unknown("9p".into()), Warning),
            (Volume::Unreadable, Warning),
        ] {
            let found = &judge(|file| file.volume = volume.clone())[0];
            assert!(found.severity == severity && found.what.contains(&volume.to_string()), "{found:?}");
        }
        assert_eq!(judge(|file| file.volume = Volume::Local), []);
    }

    #[test]
    fn a_boot_clock_of_its_own_is_a_note() {
        assert_eq!(judge(|_| {}), []);
        assert_eq!(judge(|file| file.has_shifted_clock = true)[0].severity, Note);
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_a_warning() {
        assert_eq!(judge(|file| file.free = Some(LITTLE_SPACE)), []);
        let found = &judge(|file| file.free = Some(LITTLE_SPACE - 1))[0];
        assert!(found.severity == Warning && found.what.contains("16383 KiB"), "{found:?}");
    }

    /// A program that kept a transaction open made the log grow to gigabytes, and `doctor` did not report it.
    #[test]
    fn a_long_log_is_a_warning() {
        assert_eq!(judge(|file| file.log = LONG_LOG), []);
        let found = &judge(|file| file.log = 100 << 20)[0];
        assert!(found.severity == Warning && found.what.contains("has 100 MiB"), "{found:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        assert_eq!(log_of(&path), 0);
        fs::write(folder.path().join("locks.db-wal"), [0; 99]).unwrap();
        assert_eq!(log_of(&path), 99);
    }

    #[test]
    fn a_directory_for_all_is_a_warning_unless_it_is_sticky() {
        let judge = |mode| judge(|file| file.mode = Some(mode));
        for mode in [0o40755, 0o40770, 0o42775, 0o41777] {
            assert_eq!(judge(mode), [], "{mode:o}");
        }
        assert_eq!(judge(0o40777)[0].severity, Warning);
    }

    #[test]
    fn damage_is_said_in_one_line() {
        let judge = |check| judge(|file| file.damage = damage(check));
        assert_eq!(judge("ok"), []);
        let found = &judge("*** in database main ***\nTree 2 page 2: bad\nPage 3: never used")[0];
        assert_eq!(found.what, "the database is damaged: Tree 2 page 2: bad; Page 3: never used");
    }
}
