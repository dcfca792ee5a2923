//! `Replacement`: a file's new content, there as a whole and on the disk, or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// What will stand at a path. One at a time for each path: its caller has the lock.
pub(super) struct Replacement<'a> {
    path: &'a Path,
    /// Always the same, so that crashes leave one of them at most.
    fresh: PathBuf,
}

impl<'a> Replacement<'a> {
    pub(super) fn of(path: &'a Path) -> Self {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(ENDING);
        Self { path, fresh: fresh.into() }
    }

    /// Writes beside, then renames over. When it returns, a power cut takes nothing back.
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        self.clear()?;
        let mut file = self.create()?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&self.fresh, self.path)?;
        // The rename itself must be on the disk, too: the mark's before the data's (L3).
        self.folder().and_then(|folder| folder.sync_all())
    }

    /// What a crash left behind.
    fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// With the permissions of what it replaces, which may hold secrets.
    fn create(&self) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create_new(true);
        match fs::metadata(self.path) {
            Ok(old) => {
                let file = options.mode(0o600).open(&self.fresh)?;
                file.set_permissions(old.permissions())?;
                Ok(file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => options.open(&self.fresh),
            Err(error) => Err(error),
        }
    }

    fn folder(&self) -> io::Result<File> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))
    }
}

/// Nobody's file has such a name: what stands there is removed.
const ENDING: &str = ".tenure-new";
