//! The files of a database: which they are, how they are made, and whether their names still lead to them.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tenure_core::{BackendError, ErrorKind};

use crate::error;

/// Device and inode: a file of the same name may be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

/// The file at a name.
pub(crate) struct FileFacts {
    pub(crate) file: FileId,
    changed: Changed,
}

/// When an inode last changed: seconds and nanoseconds. Only a change of the inode sets it.
type Changed = (i64, i64);

impl FileId {
    /// The file at `path` now, if there is one.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, BackendError> {
        Ok(FileFacts::of(path)?.map(|is| is.file))
    }

    /// Both numbers, as bytes.
    fn bytes(self) -> impl Iterator<Item = u8> {
        [self.device, self.inode].into_iter().flat_map(u64::to_le_bytes)
    }
}

impl FileFacts {
    /// The facts of the file at `path` now, if there is one. Opens nothing: closing a database file drops this process's
    /// locks on it.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, BackendError> {
        match fs::metadata(path) {
            Ok(is) => Ok(Some(Self::from(&is))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error::io(path, "cannot reach the database file", e)),
        }
    }
}

impl From<&fs::Metadata> for FileFacts {
    fn from(is: &fs::Metadata) -> Self {
        let file = FileId { device: is.dev(), inode: is.ino() };
        Self { file, changed: (is.ctime(), is.ctime_nsec()) }
    }
}

/// SQLite's log and its shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogFiles {
    pub(crate) log: FileId,
    pub(crate) memory: FileId,
}

impl LogFiles {
    /// The two files at their names now; `None` if one is missing.
    pub(crate) fn of(database: &Path) -> Result<Option<Self>, BackendError> {
        let (log, memory) = (FileId::of(&beside(database, "-wal"))?, FileId::of(&beside(database, "-shm"))?);
        Ok(log.zip(memory).map(|(log, memory)| Self { log, memory }))
    }

    /// A number for these two files; other files have another one (64 bits of FNV-1a).
    pub(crate) fn number(self) -> u64 {
        let bytes = self.log.bytes().chain(self.memory.bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// The names of an open database.
pub(crate) struct Names {
    database: PathBuf,
    log: PathBuf,
    memory: PathBuf,
    guard: PathBuf,
    folder: PathBuf,
    pub(crate) file: FileId,
    pub(crate) log_files: LogFiles,
    /// The directory as it was when the names were last checked, if a later change would show in its time.
    seen: Option<(FileId, Changed)>,
    /// When the log last changed, as last seen.
    logged: Changed,
    /// The guard file, as last seen. Each write of it makes another file.
    remembered: Option<(FileId, Changed)>,
    /// The guard file has changed since it was read: other files may have been at these names in between.
    pub(crate) is_unsure: bool,
}

/// What is at the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    Ours,
    /// Another database, or none.
    OtherFile,
    /// The open database, but with another log or another shared memory, or without them.
    OtherLog,
}

impl Names {
    pub(crate) fn new(database: &Path, guard: PathBuf, file: FileId, log_files: LogFiles) -> Self {
        Self {
            guard,
            database: database.to_owned(),
            log: beside(database, "-wal"),
            memory: beside(database, "-shm"),
            // OK because the path is absolute and names a file.
            folder: database.parent().unwrap_or(database).to_owned(),
            file,
            log_files,
            seen: None,
            logged: (0, 0),
            remembered: None,
            is_unsure: true,
        }
    }

    /// Checks the directory, and the names if the directory has changed.
    ///
    /// Proof that this suffices: a change that makes a name lead elsewhere changes the directory, and with it its time. The
    /// directory is remembered only if the log was written a step of the file system's clock after the directory last
    /// changed. That was known before the directory was read. So each change that the names did not yet show when they were
    /// then read has another time. The only exception: the clock is set back to that very step. (A mount over a name changes
    /// no directory, but no process opens such a database.)
    pub(crate) fn look(&mut self) -> Result<FileState, BackendError> {
        let folder = FileFacts::of(&self.folder)?.map(|is| (is.file, is.changed));
        if folder.is_some() && folder == self.seen {
            return Ok(FileState::Ours);
        }
        self.seen = folder.filter(|(_, changed)| is_a_step_later(self.logged, *changed));
        let standing = self.compare();
        self.seen = self.seen.filter(|_| matches!(standing, Ok(FileState::Ours)));
        standing
    }

    fn compare(&mut self) -> Result<FileState, BackendError> {
        if FileId::of(&self.database)? != Some(self.file) {
            return Ok(FileState::OtherFile);
        }
        let (log, memory) = (FileFacts::of(&self.log)?, FileId::of(&self.memory)?);
        let ours = log.filter(|log| log.file == self.log_files.log);
        let Some(log) = ours.filter(|_| memory == Some(self.log_files.memory)) else {
            return Ok(FileState::OtherLog);
        };
        self.logged = log.changed;
        let remembered = FileFacts::of(&self.guard)?.map(|is| (is.file, is.changed));
        self.is_unsure |= remembered != self.remembered;
        self.remembered = remembered;
        Ok(FileState::Ours)
    }
}

fn is_a_step_later(later: Changed, sooner: Changed) -> bool {
    let step = if sooner.1 % STEP == 0 { 2 * NANOS } else { STEP };
    (later.0 - sooner.0).saturating_mul(NANOS).saturating_add(later.1 - sooner.1) > step
}

/// Whether the database has a write-ahead log that is not empty.
pub(crate) fn has_log(database: &Path) -> bool {
    fs::metadata(beside(database, "-wal")).is_ok_and(|log| log.len() > 0)
}

/// The path of one of the files that SQLite keeps next to the database.
pub(crate) fn beside(database: &Path, part: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(part);
    name.into()
}

/// Refuses a file with several names or mounts: SQLite keeps its log next to the name by which it opened the file.
pub(crate) fn refuse_second_worlds(path: &Path) -> Result<(), BackendError> {
    if has_other_names(path) {
        let message = "the database file has several names (hard links), and each would have locks of its own; keep \
                       one name";
        return Err(error::refused(path, ErrorKind::Invalid, message));
    }
    if is_mounted(path).map_err(|e| error::io(path, "cannot reach the database file", e))? {
        let message = "the database file alone is mounted here (a container's volume), so its log would not be \
                       shared; mount its directory";
        return Err(error::refused(path, ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Whether the file has other names. Each would have its own log and guard file, unseen by users of the others.
fn has_other_names(database: &Path) -> bool {
    fs::metadata(database).is_ok_and(|file| file.is_file() && file.nlink() > 1)
}

/// Whether the path is a symbolic link. The guard file would be next to the link, where a program that uses the file's own
/// name does not see it. A link in the path of the directory makes no difference.
pub(crate) fn is_link(database: &Path) -> bool {
    fs::symlink_metadata(database).is_ok_and(|file| file.is_symlink())
}

/// Whether the file is a mount point itself: SQLite would keep a log on each side of the mount.
#[cfg(target_os = "linux")]
fn is_mounted(database: &Path) -> io::Result<bool> {
    let real = fs::canonicalize(database)?;
    Ok(mount(&real)? != mount(real.parent().unwrap_or(&real))?)
}

#[cfg(not(target_os = "linux"))]
fn is_mounted(_database: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The number of the mount by which a path is reached.
#[cfg(target_os = "linux")]
fn mount(path: &Path) -> io::Result<Option<String>> {
    use std::os::fd::AsRawFd;
    // OK while connections are open: closing a descriptor that is only a path drops no lock of this process.
    let flags = nix::fcntl::OFlag::O_PATH.bits();
    let place = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd()))?;
    Ok(facts.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(|id| id.trim().to_owned()))
}

/// Whether there is nothing to open: no file, or an empty one.
pub(crate) fn is_blank(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |file| file.is_file() && file.len() == 0)
}

/// Makes an empty file for this user alone, unless there is one.
pub(crate) fn create(path: &Path) -> Result<(), BackendError> {
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(error::cannot_make(path, e)),
    }
}

/// Deletes the log and the shared memory that an older file of this name left behind. Processes that have the older file
/// open still use them. SQLite deletes a log next to a blank file, but not an empty log, and never the shared memory.
///
/// Only while the file is blank and both locks are exclusive: SQLite's on the file, and Tenure's on the directory.
pub(crate) fn remove_leftovers(path: &Path) -> Result<(), BackendError> {
    for part in ["-wal", "-shm"] {
        let stale = beside(path, part);
        match fs::remove_file(&stale) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(error::io(&stale, "cannot remove what an older database left behind", e));
            }
            _ => {}
        }
    }
    Ok(())
}

const NANOS: i64 = 1_000_000_000;
/// No step of a kernel's clock for files is longer than this. Nor is a step of a file system, unless all its times are whole
/// multiples of this: then no step is longer than two seconds.
const STEP: i64 = NANOS / 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_is_told_apart_after_a_step_of_the_file_system() {
        let (fine, coarse) = ((100, 5), (100, 50_000_000));
        assert!(!is_a_step_later((100, 10_000_005), fine));
        assert!(is_a_step_later((100, 10_000_006), fine));
        assert!(!is_a_step_later((102, 50_000_000), coarse), "perhaps whole seconds");
        assert!(is_a_step_later((102, 50_000_001), coarse));
        assert!(!is_a_step_later((0, 0), fine), "never looked, or the clock was set back");
    }
}
