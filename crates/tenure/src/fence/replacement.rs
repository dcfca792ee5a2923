//! `Replacement`: a file's new content, there as a whole and on the disk, or not at all.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

/// What will stand at a path. One at a time for each path: its caller has the lock.
pub(super) struct Replacement<'a> {
    path: &'a Path,
}

impl<'a> Replacement<'a> {
    pub(super) fn of(path: &'a Path) -> Self {
        Self { path }
    }

    /// Writes beside, then renames over. When it returns, a power cut takes nothing back.
    pub(super) fn write(&self, content: &[u8]) -> io::Result<()> {
        let old = absent_is_none(fs::symlink_metadata(self.path))?;
        let (mut file, draft) = self.draft(old.is_some())?;
        let written = file.write_all(content).and_then(|()| {
            if let Some(old) = &old {
                inherit(&file, old)?;
            }
            file.sync_all()?;
            fs::rename(&draft, self.path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written?;
        // The rename itself must be on the disk, too: the mark's before the data's (L3).
        self.folder().and_then(|folder| folder.sync_all())
    }

    /// A new file, and its name. It is nobody's but ours until it has the owner and the permissions of what it replaces,
    /// which may hold secrets. Its name is always the same, so that crashes leave one at most; where something stands in
    /// the way that cannot be removed, as another user's file in a shared folder, it is one that nobody can foresee.
    fn draft(&self, is_private: bool) -> io::Result<(File, PathBuf)> {
        let usual = self.beside(ENDING);
        // What a crash left behind.
        let cleared = absent_is_none(fs::remove_file(&usual)).is_ok();
        match self.create(&usual, is_private) {
            Ok(file) => return Ok((file, usual)),
            Err(error) if cleared && error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        let mut bits = [0; 8];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let unforeseen = self.beside(&format!("{ENDING}-{:016x}", u64::from_ne_bytes(bits)));
        Ok((self.create(&unforeseen, is_private)?, unforeseen))
    }

    /// Fails if anything has the name, also a link that leads nowhere.
    fn create(&self, draft: &Path, is_private: bool) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create_new(true).custom_flags(nix::libc::O_NOFOLLOW);
        if is_private {
            options.mode(0o600);
        }
        options.open(draft)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(self.path);
        name.push(ending);
        name.into()
    }

    fn folder(&self) -> io::Result<File> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))
    }
}

/// Gives a file the owner, the group and the permissions of another one, as far as we may: first whose it is, then what
/// they may do. Never a set-id bit: they would make the file run as the user that wrote it.
fn inherit(file: &File, old: &Metadata) -> io::Result<()> {
    let ours = file.metadata()?;
    let is_owned = old.uid() == ours.uid() || fchown(file, Some(old.uid()), None).is_ok();
    let is_grouped = old.gid() == ours.gid() || fchown(file, None, Some(old.gid())).is_ok();
    let mut mode = old.mode() & 0o777;
    if !is_grouped {
        // What its group may do is not what ours may do: no more than everybody.
        mode &= 0o707 | (mode & 0o007) << 3;
    }
    if !is_owned {
        // The owner is we, who wrote it.
        mode |= 0o600;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

pub(super) fn absent_is_none<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nobody's file has such a name: what stands there is removed.
const ENDING: &str = ".tenure-new";
