//! Room on the disk, made in time. A full disk refuses what needs more, and a lease that cannot be renewed ends.
//!
//! A renewal writes the log, which has room from the beginning, and then a page that the database has already. A log that
//! has used up its room is moved into the database, and restarted (`FileStore::run`). So nothing in the log may need a page
//! that the database does not have. New rows use free pages. Once few are left, more are made before any is needed, or new
//! locks are refused. File systems that write nothing in place (btrfs, zfs) make no such room.

use std::{fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use nix::{fcntl::OFlag, sys::statvfs::statvfs, unistd::geteuid};
use rusqlite::Connection;

use crate::{
    file::beside,
    link::{FileConnection, WriteLock},
    sql,
};

/// Makes room in a new log and in its database. A failure is ignored: `doctor` finds a disk that is nearly full.
pub(crate) fn make(conn: &FileConnection, path: &Path) {
    let _ = lengthen(&beside(path, "-wal"));
    let Some(lock) = conn.write_lock() else { return };
    if is_tight(conn).unwrap_or(false) && !is_full(conn, path).unwrap_or(true) {
        add_pages(conn, lock);
    }
}

/// Whether the database has few free pages.
pub(crate) fn is_tight(conn: &Connection) -> rusqlite::Result<bool> {
    let free: i64 = conn.prepare_cached(sql::FREE_PAGES)?.query_row([], |row| row.get(0))?;
    Ok(free < FEW_PAGES)
}

/// Whether no more pages can be made. This must be known before they are needed, and so is true while there is some room.
/// Pages are written twice, into the log and into the database. A page that is only in the log needs its place in the
/// database, too. Without that place the log could not be moved, and no lease renewed.
pub(crate) fn is_full(conn: &Connection, path: &Path) -> rusqlite::Result<bool> {
    let (count, size): (i64, i64) = conn.query_row(sql::PAGES, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (count, size) = (count.unsigned_abs(), size.unsigned_abs());
    let is_moved = fs::metadata(path).map_or(0, |file| file.len());
    let needed = (count * size).saturating_sub(is_moved) + 2 * sql::ADDED_PAGES * size + LOG.unsigned_abs();
    Ok(path.parent().and_then(free).is_some_and(|free| free < needed))
}

/// Adds free pages, outside a transaction. On a full disk it adds none, and changes nothing else.
pub(crate) fn add_pages(conn: &FileConnection, lock: WriteLock) {
    let add = || {
        // With this, the pages are written when they are deleted, into the log...
        conn.execute_batch(sql::OVERWRITE_DELETED)?;
        conn.execute_batch(sql::MAKE_ROOM)
    };
    if add().is_err() {
        // Fails only if SQLite has rolled back already.
        let _ = conn.execute_batch(sql::ROLLBACK);
    }
    let _ = conn.execute_batch(sql::LEAVE_DELETED);
    // ...and from there into the database.
    drop(lock);
    conn.move_log_beside_writers();
}

/// Allocates room for the log. Bytes that SQLite has not written are not part of it; written bytes do not change.
#[cfg(target_os = "linux")]
fn lengthen(log: &Path) -> io::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = fs::OpenOptions::new().write(true).custom_flags(flags.bits()).open(log)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, LOG)?)
}

/// Here a log has the room that it has used before.
#[cfg(not(target_os = "linux"))]
fn lengthen(_log: &Path) -> io::Result<()> {
    Ok(())
}

/// In bytes, including the blocks reserved for root if this process is root. `None` if the file system does not count.
#[allow(clippy::unnecessary_cast, reason = "not every system has 64 bits here")]
pub(crate) fn free(folder: &Path) -> Option<u64> {
    let fs = statvfs(folder).ok()?;
    let blocks = if geteuid().is_root() { fs.blocks_free() } else { fs.blocks_available() };
    (fs.blocks() > 0).then(|| (blocks as u64).saturating_mul(fs.fragment_size() as u64))
}

/// If fewer pages than this are free, more are made.
const FEW_PAGES: i64 = 16;
/// In bytes: the renewals of some 240 leases, each on a separate page. A larger batch is divided (`backend.rs`).
const LOG: i64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// `proc` reports 0 for all, as some FUSE file systems do.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_that_does_not_count_is_not_full() {
        assert_eq!(free(Path::new("/proc/self")), None);
        assert!(free(Path::new("/")).is_some());
    }
}
