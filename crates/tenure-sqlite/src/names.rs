//! `Names`: whether the names of a database still lead to the files that are open.

use std::path::{Path, PathBuf};

use tenure_core::BackendError;

use crate::{
    file::{Changed, Facts, FileId, beside},
    guard::Guard,
};

const NANOS: i64 = 1_000_000_000;
/// A kernel's clock for files goes on in steps that are no longer; nor are those of a file system, unless all its times are
/// whole multiples of this: then they are no longer than two seconds.
const STEP: i64 = NANOS / 100;

/// SQLite's log and its shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogFiles {
    pub(crate) log: FileId,
    pub(crate) memory: FileId,
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
    /// The directory as it was when the names were last looked at, if a later change would show in its time.
    seen: Option<(FileId, Changed)>,
    /// When the log last changed, as last seen.
    logged: Changed,
    /// The guard file, as last seen. Each write of it is another file.
    remembered: Option<(FileId, Changed)>,
    /// The guard file has changed since it was read: other files may have stood here since then.
    pub(crate) is_unsure: bool,
}

/// What stands at the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Ours,
    /// Another database, or none.
    OtherFile,
    /// Our database, beside another log or another shared memory, or without them.
    OtherLog,
}

impl LogFiles {
    /// Those at their names now; `None` if one is missing.
    pub(crate) fn of(database: &Path) -> Result<Option<Self>, BackendError> {
        let (log, memory) = (FileId::of(&beside(database, "-wal"))?, FileId::of(&beside(database, "-shm"))?);
        Ok(log.zip(memory).map(|(log, memory)| Self { log, memory }))
    }

    /// A number for these two: others have another one (64 bits of FNV-1a).
    pub(crate) fn number(self) -> u64 {
        let bytes = self.log.bytes().chain(self.memory.bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

impl Names {
    pub(crate) fn new(database: &Path, file: FileId, log_files: LogFiles) -> Self {
        Self {
            guard: Guard::path(database),
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

    /// Looks at the directory, and at the names if it has changed.
    ///
    /// Proof that this suffices: whatever makes a name lead elsewhere changes the directory, and with it its time. The
    /// directory is remembered only if the log was written a step of the file system's clock after the directory last
    /// changed, and that was known before the directory was looked at: so each change that is not in what was then read at
    /// the names has another time, unless the clock is set back to that very step. (A mount over a name changes no directory,
    /// but no process opens such a database.)
    pub(crate) fn look(&mut self) -> Result<Standing, BackendError> {
        let folder = Facts::of(&self.folder)?.map(|is| (is.file, is.changed));
        if folder.is_some() && folder == self.seen {
            return Ok(Standing::Ours);
        }
        self.seen = folder.filter(|(_, changed)| is_a_step_later(self.logged, *changed));
        let standing = self.compare();
        self.seen = self.seen.filter(|_| matches!(standing, Ok(Standing::Ours)));
        standing
    }

    fn compare(&mut self) -> Result<Standing, BackendError> {
        if FileId::of(&self.database)? != Some(self.file) {
            return Ok(Standing::OtherFile);
        }
        let (log, memory) = (Facts::of(&self.log)?, FileId::of(&self.memory)?);
        let ours = log.filter(|log| log.file == self.log_files.log);
        let Some(log) = ours.filter(|_| memory == Some(self.log_files.memory)) else {
            return Ok(Standing::OtherLog);
        };
        self.logged = log.changed;
        let remembered = Facts::of(&self.guard)?.map(|is| (is.file, is.changed));
        self.is_unsure |= remembered != self.remembered;
        self.remembered = remembered;
        Ok(Standing::Ours)
    }
}

fn is_a_step_later(later: Changed, sooner: Changed) -> bool {
    let step = if sooner.1 % STEP == 0 { 2 * NANOS } else { STEP };
    (later.0 - sooner.0).saturating_mul(NANOS).saturating_add(later.1 - sooner.1) > step
}

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
