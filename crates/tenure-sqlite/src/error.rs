//! The one place where SQLite's errors become Tenure's.

use std::{error::Error, path::Path};

use rusqlite::ErrorCode;
use tenure_core::{BackendError, ErrorKind, Outcome};
use tenure_ledger::LedgerError;

/// Why rows could not be read or written.
#[derive(Debug)]
pub(crate) enum RowError {
    Sqlite(rusqlite::Error),
    Ledger(LedgerError),
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<LedgerError> for RowError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// An error before COMMIT: nothing was applied, because SQLite rolls back.
pub(crate) fn before_commit(path: &Path, error: rusqlite::Error) -> BackendError {
    translate(path, error, Outcome::NotApplied)
}

/// A COMMIT that failed may have been applied.
pub(crate) fn at_commit(path: &Path, error: rusqlite::Error) -> BackendError {
    translate(path, error, Outcome::Unknown)
}

/// The grant is in the file, but it is too old to rely on.
pub(crate) fn late(path: &Path) -> BackendError {
    let message = "this process was paused during a write, so the result is unknown; the request is repeated";
    BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message).with("file", path.display())
}

/// Whether a single-statement transaction was refused before anything was written.
pub(crate) fn is_refusal(error: &rusqlite::Error) -> bool {
    let refusals = [
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::ReadOnly,
        ErrorCode::PermissionDenied,
        ErrorCode::AuthorizationForStatementDenied,
        ErrorCode::CannotOpen,
        ErrorCode::NotADatabase,
        ErrorCode::DatabaseCorrupt,
    ];
    error.sqlite_error_code().is_some_and(|code| refusals.contains(&code)) || is_out_of_room(error)
}

/// SQLite has rolled back. It reports a quota as a write that failed.
fn is_out_of_room(error: &rusqlite::Error) -> bool {
    let is_failed_write =
        error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE);
    is_failed_write || error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// The room that is left is for the locks that are held.
pub(crate) fn disk_full(path: &Path) -> BackendError {
    refused(path, ErrorKind::Unavailable, DISK_FULL)
}

/// Whether SQLite had no room for what it had to write, and rolled back.
pub(crate) fn lacks_room(error: &BackendError) -> bool {
    error.source().and_then(|cause| cause.downcast_ref()).is_some_and(is_out_of_room)
}

/// The change is committed, but a power cut may lose it.
pub(crate) fn not_flushed(path: &Path, error: std::io::Error) -> BackendError {
    BackendError::new(ErrorKind::Unavailable, Outcome::Unknown, IO_ERROR)
        .with("file", path.display())
        .caused_by(error)
}

fn translate(path: &Path, error: rusqlite::Error, outcome: Outcome) -> BackendError {
    let (kind, message) = match error.sqlite_error_code() {
        // The log has no commit frame of this transaction, so SQLite ignores its other frames.
        Some(ErrorCode::DiskFull) => return disk_full(path).caused_by(error),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => return busy(path),
        Some(ErrorCode::ReadOnly) => {
            (ErrorKind::Denied, "the database file is read-only; give this user write permission")
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (ErrorKind::Denied, "this user may not access the database file")
        }
        Some(ErrorCode::CannotOpen) => (ErrorKind::Denied, CANNOT_OPEN),
        // The driver's error would repeat this message twice.
        Some(ErrorCode::NotADatabase) => {
            return refused(
                path,
                ErrorKind::Corrupt,
                "the file is not an SQLite database; choose another path",
            );
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Corrupt, "the database is damaged; `tenure doctor` says how to begin anew")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unavailable, IO_ERROR),
        _ => (ErrorKind::Corrupt, "SQLite reported an error"),
    };
    BackendError::new(kind, outcome, message).with("file", path.display()).caused_by(error)
}

pub(crate) fn io(path: &Path, what: &str, error: std::io::Error) -> BackendError {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        // No process creates it during a wait: such a path is a mistake, and is reported immediately.
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::IsADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    BackendError::new(kind, Outcome::NotApplied, what).with("file", path.display()).caused_by(error)
}

/// Another process has a lock that this one needs.
pub(crate) fn busy(path: &Path) -> BackendError {
    refused(path, ErrorKind::Throttled, "the database is locked by another process")
}

/// What was found at the path is no longer there.
pub(crate) fn replaced_meanwhile(path: &Path) -> BackendError {
    refused(path, ErrorKind::Throttled, "the database file was replaced while it was opened; try again")
}

pub(crate) fn cannot_open(path: &Path, error: std::io::Error) -> BackendError {
    io(path, CANNOT_OPEN, error)
}

/// There is no file and none can be made.
pub(crate) fn cannot_make(path: &Path, error: std::io::Error) -> BackendError {
    io(path, "cannot create the database file; its directory must exist and be writable", error)
}

/// The lock on the directory cannot be taken.
pub(crate) fn cannot_lock(path: &Path, error: std::io::Error) -> BackendError {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return io(path, "the directory of the database file must be readable by this user", error);
    }
    cannot_make(path, error)
}

pub(crate) fn ledger(path: &Path, error: LedgerError) -> BackendError {
    BackendError::new(error.kind(), Outcome::NotApplied, error.to_string()).with("file", path.display())
}

/// Before COMMIT, as above.
pub(crate) fn row(path: &Path, error: RowError) -> BackendError {
    match error {
        RowError::Sqlite(error) => before_commit(path, error),
        RowError::Ledger(error) => ledger(path, error),
    }
}

pub(crate) fn refused(path: &Path, kind: ErrorKind, message: impl Into<String>) -> BackendError {
    BackendError::new(kind, Outcome::NotApplied, message).with("file", path.display())
}

const DISK_FULL: &str = "the disk is full";
const IO_ERROR: &str = "the disk reported an I/O error";
const CANNOT_OPEN: &str =
    "cannot open the database file; check that it and its directory are readable and writable";
