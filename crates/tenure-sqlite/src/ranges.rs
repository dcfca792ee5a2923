//! `Range`: bytes that are locked, and locks on an open file description, where the platform has them.

/// Bytes of a file. They need not be there to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: i64,
    length: i64,
}

/// Where numbers begin: SQLite locks nothing so far out.
const NUMBERS: i64 = 1 << 62;
const COUNT: i64 = 1 << 61;

impl Range {
    /// SQLite has a read lock on these bytes of a database that it has open, and locks them alone to delete its log
    /// (`SHARED_FIRST`, `SHARED_SIZE`).
    pub(crate) const SHARED: Self = Self { start: 0x4000_0002, length: 510 };
    /// The same of the shared memory: a process that finds no lock there begins it anew (`UNIX_SHM_DMS`).
    pub(crate) const MEMORY: Self = Self { start: 128, length: 1 };

    /// All numbers.
    pub(crate) fn numbers() -> Self {
        Self { start: NUMBERS, length: COUNT }
    }

    /// The place of a number, which is neither of the two ends.
    pub(crate) fn number(number: u64) -> Self {
        let place = number % (COUNT.unsigned_abs() - 2) + 1;
        Self { start: NUMBERS.saturating_add_unsigned(place), length: 1 }
    }

    /// All places but this one.
    pub(crate) fn around(self) -> [Self; 2] {
        let behind = self.start + 1;
        [
            Self { start: NUMBERS, length: self.start - NUMBERS },
            Self { start: behind, length: NUMBERS + COUNT - behind },
        ]
    }
}

pub(crate) use platform::{ARE_THERE, locked, share, unlock};

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod platform {
    use std::{fs::File, io};

    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc::{self, c_int},
    };

    use super::Range;

    pub(crate) const ARE_THERE: bool = true;

    /// A read lock. Never waits.
    pub(crate) fn share(file: &File, range: Range) -> io::Result<()> {
        set(file, range, libc::F_RDLCK)
    }

    pub(crate) fn unlock(file: &File, range: Range) -> io::Result<()> {
        set(file, range, libc::F_UNLCK)
    }

    /// Where the first lock of another description or process in this range begins.
    pub(crate) fn locked(file: &File, range: Range) -> io::Result<Option<i64>> {
        let mut lock = flock(range, libc::F_WRLCK);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok((c_int::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_start))
    }

    fn set(file: &File, range: Range, kind: c_int) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&flock(range, kind)))?;
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, reason = "the kinds of locks, and SEEK_SET, are 0 to 2")]
    fn flock(range: Range, kind: c_int) -> libc::flock {
        libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: range.start,
            l_len: range.length,
            l_pid: 0,
        }
    }
}

/// Here SQLite's own locks must do: the program must not close the database's files.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod platform {
    use std::{fs::File, io};

    use super::Range;

    pub(crate) const ARE_THERE: bool = false;

    pub(crate) fn share(_file: &File, _range: Range) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn unlock(_file: &File, _range: Range) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn locked(_file: &File, _range: Range) -> io::Result<Option<i64>> {
        Ok(None)
    }
}
