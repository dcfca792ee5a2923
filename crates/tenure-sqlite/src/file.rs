//! Which file it is, and what is remembered beside it in case it vanishes.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use serde::{Deserialize, Serialize};
use tenure_core::BackendError;

use crate::error;

/// Device and inode: a file of the same name may be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

/// When an inode last changed: seconds and nanoseconds.
pub(crate) type Changed = (i64, i64);

impl FileId {
    /// Of what stands at `path` now, if anything.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, BackendError> {
        Ok(Self::with_change(path)?.map(|(file, _)| file))
    }

    /// The same, and when its inode last changed: by a rename, or when SQLite moved its log into it, which is rare.
    ///
    /// Opens nothing: closing a database file drops this process's locks on it.
    pub(crate) fn with_change(path: &Path) -> Result<Option<(Self, Changed)>, BackendError> {
        match fs::metadata(path) {
            Ok(file) => {
                let changed = (file.ctime(), file.ctime_nsec());
                Ok(Some((Self { device: file.dev(), inode: file.ino() }, changed)))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error::io(path, "the database file cannot be reached", e)),
        }
    }
}

/// Whether there is a write-ahead log beside the database with anything in it.
pub(crate) fn has_log(database: &Path) -> bool {
    fs::metadata(beside(database, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn beside(database: &Path, part: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(part);
    name.into()
}

/// Whether the file has other names: SQLite would keep a log for each, and we a guard, and none would see the other's.
pub(crate) fn has_other_names(database: &Path) -> bool {
    fs::metadata(database).is_ok_and(|file| file.is_file() && file.nlink() > 1)
}

/// Makes an empty file, unless there is one.
pub(crate) fn create(path: &Path) -> Result<(), BackendError> {
    match fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => {
            // What an older file of this name left behind is none of the new one's.
            for part in ["-wal", "-shm"] {
                let _ = fs::remove_file(beside(path, part));
            }
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(error::cannot_make(path, e)),
    }
}

/// What `.NAME.guard` remembers of the file beside it, so that a file that takes its place knows how long to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guard {
    pub(crate) world: String,
    pub(crate) file: FileId,
    /// The longest ttl that was ever granted.
    pub(crate) max_ttl_ms: u64,
}

impl Guard {
    pub(crate) fn path(database: &Path) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(database.file_name().unwrap_or_default());
        name.push(".guard");
        database.with_file_name(name)
    }

    /// Whether both speak of the same file.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.world == other.world && self.file == other.file
    }

    /// `None` if there is none: the file was never used, or somebody removed both on purpose.
    pub(crate) fn read(database: &Path) -> Result<Option<Self>, BackendError> {
        let path = Self::path(database);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(error::io(&path, "the guard file cannot be read", e)),
        };
        serde_json::from_str(&text).map(Some).map_err(|e| {
            let message = "the guard file is not what tenure writes; remove it once no lease can be alive";
            error::refused(&path, tenure_core::ErrorKind::Corrupt, message).caused_by(e)
        })
    }

    /// Replaces it as a whole. Only inside a write transaction of the
    /// database, so that two processes do not undo each other.
    pub(crate) fn write(&self, database: &Path) -> Result<(), BackendError> {
        static DRAFTS: AtomicU32 = AtomicU32::new(0);
        let path = Self::path(database);
        let (pid, number) = (std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed));
        let draft = path.with_extension(format!("guard.{pid}.{number}"));
        let text = serde_json::to_string(self).expect("BUG: a guard is plain data");
        let write = || {
            let mut file = fs::File::create(&draft)?;
            file.write_all(text.as_bytes())?;
            // Else a power cut may leave an empty one.
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        let written = write();
        written.map_err(|e| {
            let _ = fs::remove_file(&draft);
            error::io(&path, "the guard file cannot be written", e)
        })
    }
}
