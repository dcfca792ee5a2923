//! `GuardRecord`: a file next to the database, in case the database or its log vanishes.
//!
//! A log or a shared memory is lost if it was deleted or replaced while a process has it open. Two processes would have two
//! states of one file: two holders, and damage if both wrote into the file. So the file counts as replaced, and the first
//! process that detects this writes it into the guard file:
//! * a process that finds other files at the names of those that it has open, or
//! * a newcomer that finds a process with other files open.
//!
//! When the longest ttl has passed since then, the leases in the lost log have expired.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use tenure_core::{BackendError, ErrorKind, Host};

use crate::{
    clock::{LeaseClock, micros, millis},
    error,
    file::{FileId, LogFiles},
    link::{Anchor, Others},
};

/// The content of `.NAME.guard`: what a process must know to wait for the leases of an old database at this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuardRecord {
    pub(crate) world: String,
    pub(crate) file: FileId,
    /// The longest ttl that was ever granted.
    pub(crate) max_ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost_log: Option<LostLog>,
}

/// A log or a shared memory that was deleted or replaced while a process had it open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LostLog {
    /// Seen at this point of the lease clock of this id; its leases are still to be waited for.
    Seen { clock: String, at_us: u64 },
    /// Its leases are waited for in the log of this number. A process that has the lost log open is ignored.
    WaitedFor { number: u64 },
}

impl GuardRecord {
    pub(crate) fn path(database: &Path) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(database.file_name().unwrap_or_default());
        name.push(".guard");
        database.with_file_name(name)
    }

    /// Whether both are of the same file.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.world == other.world && self.file == other.file
    }

    /// Whether no log was lost, or only one whose leases are waited for in the log of this number.
    pub(crate) fn knows_log(&self, number: u64) -> bool {
        self.lost_log.as_ref().is_none_or(|lost| *lost == LostLog::WaitedFor { number })
    }

    /// Whether it has recorded a ttl of this length or more.
    pub(crate) fn covers(&self, ttl: Duration) -> bool {
        millis(ttl) <= self.max_ttl_ms
    }

    /// `None` if there is none: the database was never used, or both files were removed on purpose.
    pub(crate) fn read(database: &Path) -> Result<Option<Self>, BackendError> {
        let path = Self::path(database);
        let text = match read_plain(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(error::io(&path, "cannot read the guard file", e)),
        };
        // What is wrong with it is not reported: the file may belong to another program.
        serde_json::from_slice(&text).map(Some).map_err(|_| {
            let message = "the guard file is not what tenure writes; remove it once no lease can be alive";
            error::refused(&path, ErrorKind::Corrupt, message)
        })
    }

    /// Replaces the file as a whole. Only under the lock of the directory, while the database at the path is the one of this
    /// record. Otherwise two processes may undo each other's writes.
    pub(crate) fn write(&self, database: &Path, host: &dyn Host) -> Result<(), BackendError> {
        let path = Self::path(database);
        let mut bits = [0; 8];
        host.random(&mut bits);
        // A name that no process can plant or leave behind.
        let draft = path.with_extension(format!("guard.{:016x}", u64::from_be_bytes(bits)));
        let text = serde_json::to_string(self).expect("BUG: a guard is plain data");
        let put = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            let written = file
                .write_all(text.as_bytes())
                .and_then(|()| share_as(&file, database))
                // Otherwise a power cut may leave an empty file.
                .and_then(|()| file.sync_all())
                .and_then(|()| fs::rename(&draft, &path));
            written.inspect_err(|_| {
                // OK because it was made above.
                let _ = fs::remove_file(&draft);
            })
        };
        put().map_err(|e| error::io(&path, "cannot write the guard file", e))
    }
}

/// What a newcomer has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precaution {
    /// Nothing.
    Known,
    /// Forget a log that was waited for: the log that was then at the name has been cleaned up since.
    Forget,
    /// Wait for the leases of a lost log.
    Lost,
}

pub(crate) fn judge(guard: &GuardRecord, others: Others) -> Precaution {
    match guard.lost_log {
        Some(LostLog::WaitedFor { number }) if others.number == Some(number) => Precaution::Known,
        Some(LostLog::Seen { .. }) => Precaution::Lost,
        _ if others.are_elsewhere => Precaution::Lost,
        Some(_) => Precaution::Forget,
        None => Precaution::Known,
    }
}

/// Whether this process has the file open with another log or shared memory than those at their names.
pub(crate) fn is_other_log_open(path: &Path, file: FileId) -> Result<bool, BackendError> {
    let Some(open) = Anchor::opened(file) else { return Ok(false) };
    Ok(LogFiles::of(path)? != Some(open))
}

/// Records that the log of this file was lost, unless that is known. Only under the exclusive lock of the directory.
pub(crate) fn remember_lost_log(
    path: &Path,
    file: FileId,
    host: &dyn Host,
    clock: &LeaseClock,
) -> Result<(), BackendError> {
    let Some(guard) = GuardRecord::read(path)?.filter(|guard| guard.file == file) else { return Ok(()) };
    let number = LogFiles::of(path)?.map(LogFiles::number);
    let is_known = match &guard.lost_log {
        Some(LostLog::Seen { clock: id, .. }) => id == clock.id(),
        Some(LostLog::WaitedFor { number: waited_for }) => number == Some(*waited_for),
        None => false,
    };
    if is_known {
        return Ok(());
    }
    let seen = LostLog::Seen { clock: clock.id().to_owned(), at_us: micros(clock.now(host).boot) };
    GuardRecord { lost_log: Some(seen), ..guard }.write(path, host)
}

/// Refuses while a process may be in the middle of a write to the lost log.
pub(crate) fn must_be_settled(path: &Path, host: &dyn Host, clock: &LeaseClock) -> Result<(), BackendError> {
    let seen = GuardRecord::read(path)?.and_then(|guard| seen_at(&guard, clock));
    let left = seen.unwrap_or_default().saturating_add(SETTLED).saturating_sub(clock.now(host).boot);
    if left.is_zero() {
        return Ok(());
    }
    let message = format!(
        "the log of the database was deleted or replaced while a process has it open; nothing is granted until that \
         process has noticed, or for another {left:.1?}"
    );
    Err(error::refused(path, ErrorKind::Unavailable, message).retry_after(left.min(AGAIN)))
}

/// When the loss was seen, on this clock.
pub(crate) fn seen_at(guard: &GuardRecord, clock: &LeaseClock) -> Option<Duration> {
    match &guard.lost_log {
        Some(LostLog::Seen { clock: id, at_us }) if id == clock.id() => Some(Duration::from_micros(*at_us)),
        _ => None,
    }
}

/// The guard file has the permissions of the database, as SQLite's log has.
fn share_as(file: &fs::File, database: &Path) -> io::Result<()> {
    let main = match fs::metadata(database) {
        // The database has just been deleted. The process that makes the next one checks this file under the same rules.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        main => main?,
    };
    let is = file.metadata()?;
    if (main.uid(), main.gid()) != (is.uid(), is.gid()) {
        // Only root may change the owner of a file. Others may only change the group, to one that they are in. Otherwise the
        // file stays as it is.
        let _ = fchown(file, Some(main.uid()), Some(main.gid()))
            .or_else(|_| fchown(file, None, Some(main.gid())));
    }
    let is_same_group = file.metadata()?.gid() == main.gid();
    // A group other than the database's gets only the permissions of all users.
    let group = if is_same_group { main.mode() & 0o060 } else { (main.mode() & 0o006) << 3 };
    file.set_permissions(fs::Permissions::from_mode(0o600 | group | main.mode() & 0o006))
}

/// The text of a small file. Follows no link, and does not wait for a pipe.
fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

/// No guard file has more bytes.
const LONGEST: u64 = 4096;
/// How long a newcomer writes nothing while a process has the lost log open. That process checks the names before each
/// write, and a write takes no longer than this.
const SETTLED: Duration = Duration::from_secs(5);
/// When to try again, because that process may notice sooner.
const AGAIN: Duration = Duration::from_millis(50);
