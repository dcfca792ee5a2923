//! `GuardRecord`: a file beside the database, for the case that the database or its log vanishes.
//!
//! A log or a shared memory is lost if it was deleted or replaced beneath a process that has it open.
//! Two processes would have two worlds in one file: two holders, and damage if both wrote into the file. So the file counts as
//! a replaced one, and this is written into its guard by the first that sees it: a process that finds others at the names of
//! those that it has open, or a newcomer that finds a process with others. The leases in the lost log have expired when the
//! longest ttl has passed since then.

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

/// The content of `.NAME.guard`: what a new database at this path must know to wait for the leases of the old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuardRecord {
    pub(crate) world: String,
    pub(crate) file: FileId,
    /// The longest ttl that was ever granted.
    pub(crate) max_ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost_log: Option<LostLog>,
}

/// A log or a shared memory that was deleted or replaced beneath a process that had it open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LostLog {
    /// Seen at this point of the lease clock of this id; its leases are yet to be waited for.
    Seen { clock: String, at_us: u64 },
    /// They are waited for in the one of this number: a process that has the old one open is passed over.
    WaitedFor { number: u64 },
}

impl GuardRecord {
    pub(crate) fn path(database: &Path) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(database.file_name().unwrap_or_default());
        name.push(".guard");
        database.with_file_name(name)
    }

    /// Whether both speak of the same file.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.world == other.world && self.file == other.file
    }

    /// Whether no log was lost but one that is waited for beside the log of this number.
    pub(crate) fn knows_log(&self, number: u64) -> bool {
        self.lost_log.as_ref().is_none_or(|lost| *lost == LostLog::WaitedFor { number })
    }

    /// Whether it has remembered so long a ttl.
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
        // What is wrong with it is not said: it may be a file of somebody else.
        serde_json::from_slice(&text).map(Some).map_err(|_| {
            let message = "the guard file is not what tenure writes; remove it once no lease can be alive";
            error::refused(&path, ErrorKind::Corrupt, message)
        })
    }

    /// Replaces it as a whole. Only under the lock of the folder, while the database at the path is the one it speaks
    /// of, so that two processes do not undo each other.
    pub(crate) fn write(&self, database: &Path, host: &dyn Host) -> Result<(), BackendError> {
        let path = Self::path(database);
        let mut bits = [0; 8];
        host.random(&mut bits);
        // A name that nobody can plant or leave behind.
        let draft = path.with_extension(format!("guard.{:016x}", u64::from_be_bytes(bits)));
        let text = serde_json::to_string(self).expect("BUG: a guard is plain data");
        let put = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            let written = file
                .write_all(text.as_bytes())
                .and_then(|()| share_as(&file, database))
                // Else a power cut may leave an empty one.
                .and_then(|()| file.sync_all())
                .and_then(|()| fs::rename(&draft, &path));
            written.inspect_err(|_| {
                // Ours: it was made above.
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
    /// To forget one that was waited for: the log that stood there then has been tidied up since.
    Forget,
    /// To wait for its leases.
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

/// Whether this process has the file open beside another log or shared memory than those at their names.
pub(crate) fn is_other_log_open(path: &Path, file: FileId) -> Result<bool, BackendError> {
    let Some(open) = Anchor::opened(file) else { return Ok(false) };
    Ok(LogFiles::of(path)? != Some(open))
}

/// Writes down that the log of this file was lost, unless that is known. Only under the exclusive lock of the folder.
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

/// Refuses while a process may be in the midst of a write to the lost log.
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

/// When it was seen, by this clock.
pub(crate) fn seen_at(guard: &GuardRecord, clock: &LeaseClock) -> Option<Duration> {
    match &guard.lost_log {
        Some(LostLog::Seen { clock: id, at_us }) if id == clock.id() => Some(Duration::from_micros(*at_us)),
        _ => None,
    }
}

/// The guard file has the permissions of the database, as SQLite's log has.
fn share_as(file: &fs::File, database: &Path) -> io::Result<()> {
    let main = match fs::metadata(database) {
        // It has just been deleted; who makes the next one looks at this file under the same rules.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        main => main?,
    };
    let is = file.metadata()?;
    if (main.uid(), main.gid()) != (is.uid(), is.gid()) {
        // Only root may give a file away, and others only to a group of theirs; else it stays as it is.
        let _ = fchown(file, Some(main.uid()), Some(main.gid()))
            .or_else(|_| fchown(file, None, Some(main.gid())));
    }
    let is_same_group = file.metadata()?.gid() == main.gid();
    // A group that the database does not have gets no more than everybody.
    let group = if is_same_group { main.mode() & 0o060 } else { (main.mode() & 0o006) << 3 };
    file.set_permissions(fs::Permissions::from_mode(0o600 | group | main.mode() & 0o006))
}

/// The text of a small file of its own, no link and nothing that one waits for.
fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

/// No guard has more bytes.
const LONGEST: u64 = 4096;
/// How long a newcomer writes nothing while a process has the lost log open. It looks at the names before it writes, and is
/// in the midst of a write for no longer.
const SETTLED: Duration = Duration::from_secs(5);
/// It may have noticed sooner.
const AGAIN: Duration = Duration::from_millis(50);
