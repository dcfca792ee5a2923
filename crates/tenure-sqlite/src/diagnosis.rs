//! `diagnose`: what weakens the promises of a database file and of its directory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use nix::{
    sys::statvfs::statvfs,
    unistd::{AccessFlags, access},
};
use rusqlite::Connection;
use tenure_core::{BackendError, Finding, Severity};
use tenure_ledger::{Ledger, Place};

use crate::{clock::micros, error, guard::Guard, sql, store::Store};

/// Below this much free space the log, which has 4 MB when all is well, may not find its place.
const LITTLE_SPACE: u64 = 16 << 20;
/// A vanished file closes the doors for the longest ttl that it ever granted: longer than this is worth a word.
const LONG_TTL: Duration = Duration::from_secs(600);

/// File systems that several machines share. Leases are counted by one machine's clock, and SQLite's log lies in one
/// machine's memory.
const NETWORK: &str = "afs beegfs ceph cifs fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs gfs2 gpfs lustre nfs nfs4 \
     ocfs2 smb3 smbfs";

/// Looks at the surroundings, then into the file, which is not made.
pub(crate) fn diagnose(store: &mut Store) -> Result<Vec<Finding>, BackendError> {
    let path = store.config.path.clone();
    let is_there = store.reach(false)?;
    // SQLite's log lies where a link leads to.
    let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let folder = real.parent().unwrap_or(&real);
    let mut findings = surroundings(store, folder);
    if !is_there {
        may_be_made(&path, folder)?;
        findings.push(no_file(&path));
        return Ok(findings);
    }
    let guard = Guard::read(&path)?;
    findings.extend(guard.and_then(|guard| long_ttl(&path, Duration::from_millis(guard.max_ttl_ms))));
    let now_us = micros(store.now().boot);
    let conn = store.conn().expect("BUG: reached above");
    let inside = inside(conn, &path, now_us).map_err(|e| error::before_commit(&path, e))?;
    findings.extend(inside);
    Ok(findings)
}

/// The error of a claim that cannot make the file.
fn may_be_made(path: &Path, folder: &Path) -> Result<(), BackendError> {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|errno| error::cannot_make(path, errno.into()))
}

fn surroundings(store: &Store, folder: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folder_is = fs::metadata(folder);
    let device = folder_is.as_ref().ok().and_then(|folder| device(folder.dev()));
    [
        device.and_then(|device| network(&read("/proc/self/mountinfo"), &device)),
        boot_clock(store.clock.is_shifted()),
        free_space(folder).and_then(little_space),
        folder_is.ok().and_then(|is| open_to_all(folder, is.permissions().mode())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[allow(clippy::unnecessary_cast, reason = "not every system has 64 bits here")]
fn free_space(folder: &Path) -> Option<u64> {
    let fs = statvfs(folder).ok()?;
    Some((fs.blocks_available() as u64).saturating_mul(fs.fragment_size() as u64))
}

fn inside(conn: &Connection, path: &Path, now_us: u64) -> rusqlite::Result<Vec<Finding>> {
    let check: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    let opens_us: u64 = conn.query_row(sql::READ_OPENS, [], |row| row.get(0))?;
    let found = [
        closed(Duration::from_micros(opens_us.saturating_sub(now_us))),
        damage(path, &check),
        foreign_states(conn, path)?,
    ];
    Ok(found.into_iter().flatten().collect())
}

fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(severity, what, remedy)
}

fn no_file(path: &Path) -> Finding {
    finding(
        Severity::Note,
        format!("there is no file {} yet", path.display()),
        "nothing: the first lock makes it; if you expected one, check the path",
    )
}

/// The device of a file as the kernel writes it in its list of mounts.
#[cfg(target_os = "linux")]
fn device(number: u64) -> Option<String> {
    use nix::sys::stat::{major, minor};
    Some(format!("{}:{}", major(number), minor(number)))
}

#[cfg(not(target_os = "linux"))]
fn device(_number: u64) -> Option<String> {
    None
}

/// The file systems of all mounts, as in `/proc/self/mountinfo`: device in the third field, type after the dash.
fn network(mounts: &str, device: &str) -> Option<Finding> {
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let kind = mount.split_once(" - ")?.1.split(' ').next()?;
    NETWORK.split(' ').any(|known| known == kind).then(|| {
        finding(
            Severity::Problem,
            format!("the file is on a network file system ({kind}): two machines could hold one lock"),
            "move it to a local file system; for locks between machines use a store with a server",
        )
    })
}

fn boot_clock(is_shifted: bool) -> Option<Finding> {
    is_shifted.then(|| {
        finding(
            Severity::Note,
            "this process has a boot clock of its own (a time namespace); leases are counted by the machine's",
            "nothing: processes inside and outside agree; a container without a time namespace is simpler",
        )
    })
}

fn little_space(free: u64) -> Option<Finding> {
    (free < LITTLE_SPACE).then(|| {
        finding(
            Severity::Warning,
            format!(
                "only {} KiB are free on the file system: once it is full, nothing is granted",
                free >> 10
            ),
            "make room, or move the file",
        )
    })
}

/// Without the sticky bit, a user who may write to a directory may delete and replace every file in it.
fn open_to_all(folder: &Path, mode: u32) -> Option<Finding> {
    (mode & 0o1002 == 0o0002).then(|| {
        let folder = folder.display();
        finding(
            Severity::Warning,
            format!("every user may write to {folder}, and so delete the file, which ends every lease"),
            format!("give the directory to one group: chmod o-w {folder}"),
        )
    })
}

fn long_ttl(path: &Path, longest: Duration) -> Option<Finding> {
    (longest > LONG_TTL).then(|| {
        finding(
            Severity::Note,
            format!("a ttl of {longest:?} was granted: if the file vanishes, nothing is granted for as long"),
            format!(
                "use a short ttl, which is renewed while the lock is held; when nothing is held, remove {}",
                Guard::path(path).display()
            ),
        )
    })
}

fn closed(left: Duration) -> Option<Finding> {
    (!left.is_zero()).then(|| {
        finding(
            Severity::Warning,
            format!("the file was deleted or replaced; nothing is granted for another {left:.1?}"),
            "wait until every lease in the old file is over",
        )
    })
}

fn damage(path: &Path, check: &str) -> Option<Finding> {
    let lines: Vec<&str> = check.lines().filter(|line| !line.starts_with("***")).collect();
    (check != "ok").then(|| {
        finding(Severity::Problem, format!("the database is damaged: {}", lines.join("; ")), start_anew(path))
    })
}

/// Rows that we did not write.
fn foreign_states(conn: &Connection, path: &Path) -> rusqlite::Result<Option<Finding>> {
    let mut names = foreign_names(conn, sql::EVERY_LOCK, |state| Ledger::decode(state).is_ok())?;
    names.extend(foreign_names(conn, sql::EVERY_PLACE, |state| Place::decode(state, 0).is_ok())?);
    Ok(names.first().map(|first| {
        let count = names.len();
        let what =
            format!("{count} locks are stored in a form that tenure does not write; the first is {first:?}");
        finding(Severity::Problem, what, start_anew(path))
    }))
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
        if !is_ours(&row.get::<_, String>(1)?) {
            names.insert(row.get(0)?);
        }
    }
    Ok(names)
}

/// OK while locks are held: the guard beside the file remembers for how long nothing may be granted.
fn start_anew(path: &Path) -> String {
    let (path, guard) = (path.display(), Guard::path(path));
    format!(
        "remove {path}, {path}-wal and {path}-shm, but not {}: holders are stopped, and nothing is granted until \
         their leases are over",
        guard.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 21 0:28 / /mnt/nfs rw shared:9 - nfs4 server:/export rw
32 21 0:29 / /mnt/ssh rw - fuse.sshfs me@there: rw
33 21 0:30 / /mnt/stick rw - fuseblk /dev/sdb1 rw
";

    #[test]
    fn a_network_file_system_is_a_problem_and_a_local_one_is_none() {
        for (device, kind) in [("0:28", "nfs4"), ("0:29", "fuse.sshfs")] {
            let found = network(MOUNTS, device).unwrap();
            assert!(found.severity == Severity::Problem && found.what.contains(kind), "{found:?}");
        }
        for device in ["8:1", "0:30", "0:2", ""] {
            assert_eq!(network(MOUNTS, device), None, "{device}");
        }
        assert_eq!(network("", "8:1"), None);
    }

    #[test]
    fn a_boot_clock_of_its_own_is_a_note() {
        assert_eq!(boot_clock(false), None);
        assert_eq!(boot_clock(true).unwrap().severity, Severity::Note);
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_a_warning() {
        assert_eq!(little_space(LITTLE_SPACE), None);
        let found = little_space(LITTLE_SPACE - 1).unwrap();
        assert!(found.severity == Severity::Warning && found.what.contains("16383 KiB"), "{found:?}");
    }

    #[test]
    fn a_directory_for_all_is_a_warning_unless_it_is_sticky() {
        let judge = |mode| open_to_all(Path::new("/a"), mode);
        for mode in [0o40755, 0o40770, 0o42775, 0o41777] {
            assert_eq!(judge(mode), None, "{mode:o}");
        }
        assert_eq!(judge(0o40777).unwrap().severity, Severity::Warning);
    }

    #[test]
    fn this_machine_has_a_device_in_its_list_of_mounts() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let device = device(fs::metadata("/proc").unwrap().dev()).unwrap();
        assert!(mounts.lines().any(|line| line.split(' ').nth(2) == Some(&device)), "{device}: {mounts}");
    }

    #[test]
    fn damage_is_said_in_one_line() {
        let path = Path::new("/a.db");
        assert_eq!(damage(path, "ok"), None);
        let found = damage(path, "*** in database main ***\nTree 2 page 2: bad\nPage 3: never used").unwrap();
        assert_eq!(found.what, "the database is damaged: Tree 2 page 2: bad; Page 3: never used");
    }
}
