//! `FencedFile`: a file with its mark in a second file.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    process,
};

use nix::libc;

use crate::fence::pass::{Pass, Refused, decimal};

/// A file that refuses writes of former holders.
///
/// Next to `report` are two more files. `report.mark` has the largest token of an exclusive holder so far.
/// `report.lock` is empty and is locked during each access to the mark. For a moment there is also
/// `report.tenure-new`. The first use creates them. Clones and other processes may use the same path; all writers
/// must use this type.
///
/// ```
/// use tenure::fence::{FencedFile, Pass};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("report");
/// let locks = tenure::blocking::connect("memory:")?;
/// let report = FencedFile::new(&path);
///
/// let former: Pass = locks.mutex("report").acquire()?.pass(); // released immediately: its holder is a former one
/// let guard = locks.mutex("report").acquire()?;
/// report.write(guard.pass(), b"new text")?;
/// assert!(report.write(former, b"late text").is_err());
/// assert_eq!(report.read()?.as_deref(), Some(&b"new text"[..]));
/// # Ok(()) }
/// ```
///
/// # Fencing
/// The check, the raise and the write are one step under the lock of `report.lock`. The mark is raised on the disk
/// first, and then the data is replaced as a whole. A crash or a power failure leaves at worst a raised mark and
/// the old data, which does no harm; never new data under an old mark.
///
/// # What is not promised
/// * **It blocks.** Every call but [`read`](Self::read) waits for other users of the file, for as long as the disk
///   takes for up to two files. In an asynchronous program, call it on a thread for blocking work
///   (`spawn_blocking`).
/// * **A process that is stopped inside such a call blocks the others** until it continues or dies. If it dies there,
///   a child that it forked inside the call, and that has not called `exec`, blocks them as well, until it ends.
/// * Without the mark, because it was removed or the data was copied without it, former holders may write again. If
///   the lock file is removed during a write, the next writer writes at the same time.
/// * A reader does not learn that its lease has ended. A program that reads and writes later calls
///   [`touch`](Self::touch) before it reads, or [`update`](Self::update).
/// * One host. On a network file system the guarantee is as good as the locks and renames of that file system.
/// * The file keeps its permissions, except for set-id bits, which would make it run as the user that wrote it. It
///   keeps its owner and its group if the writer may change them, as root may. Otherwise they become the writer's,
///   and a group other than the old one gets no more rights than all users. Hard links keep the old data; access
///   lists are lost.
/// * A user that may write in the folder may replace any of these files. Links and files that are not regular are
///   refused, not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedFile {
    data: PathBuf,
    mark: PathBuf,
    lock: PathBuf,
}

impl FencedFile {
    /// The file at this path, whose directory must exist. Opens and creates nothing yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let data = path.into();
        let (mark, lock) = (beside(&data, ".mark"), beside(&data, ".lock"));
        Self { data, mark, lock }
    }

    /// The path of the data.
    pub fn path(&self) -> &Path {
        &self.data
    }

    /// The present data, or `None` if there is none yet. Needs no pass and no lock; never returns a partial write.
    ///
    /// # Errors
    /// [`FileError::Io`] if it cannot be read, [`FileError::NotAFile`] if it is a link, a folder or a device.
    pub fn read(&self) -> Result<Option<Vec<u8>>, FileError> {
        read(&self.data)
    }

    /// The present mark, 0 before the first exclusive holder.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`FileError::Damaged`] if it is not a number.
    pub fn mark(&self) -> Result<u64, FileError> {
        let Some(found) = read(&self.mark)? else { return Ok(0) };
        let number = str::from_utf8(&found).ok().and_then(|text| text.strip_suffix('\n')).and_then(decimal);
        number.ok_or_else(|| FileError::Damaged { path: self.mark.clone() })
    }

    /// Shows a pass without writing data: raises the mark, or checks it. Call it before the first read of data that
    /// will be written later. Otherwise a former holder can write in between.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a later holder has shown its token; the others if the mark cannot be read or
    /// raised.
    pub fn touch(&self, pass: Pass) -> Result<(), FileError> {
        let _lock = self.admit(pass)?;
        Ok(())
    }

    /// Replaces the data as a whole.
    ///
    /// # Errors
    /// [`FileError::Refused`], [`FileError::Damaged`] and [`FileError::NotAFile`]: nothing was written.
    /// [`FileError::Io`]: the data is the old or the new, as a whole, and the mark may be raised; the same holder
    /// may try again.
    pub fn write(&self, pass: Pass, data: &[u8]) -> Result<(), FileError> {
        let _lock = self.admit(pass)?;
        self.replace(data)
    }

    /// Reads the data, passes it to `change`, and writes the result, in one step without another writer in between.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn update(
        &self,
        pass: Pass,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
    ) -> Result<(), FileError> {
        let lock = self.admit(pass)?;
        let data = change(self.read()?);
        lock.must_be_ours().map_err(|error| io_error("cannot be written", &self.data, error))?;
        self.replace(&data)
    }

    /// Locks, judges, and raises the mark on the disk. The returned lock keeps other writers out until it is
    /// dropped.
    fn admit(&self, pass: Pass) -> Result<FileLock, FileError> {
        for path in [&self.data, &self.mark, &self.lock] {
            refuse_what_is_no_file(path)?;
        }
        let lock = self.locked()?;
        let before = self.mark()?;
        let after = pass.judge(before)?;
        if after != before {
            Replacement::of(&self.mark)
                .write(format!("{after}\n").as_bytes())
                .map_err(|error| io_error("cannot be written", &self.mark, error))?;
        }
        Ok(lock)
    }

    fn replace(&self, data: &[u8]) -> Result<(), FileError> {
        Replacement::of(&self.data)
            .write(data)
            .map_err(|error| io_error("cannot be written", &self.data, error))
    }

    /// Locks the file that is at the path: a lock file that was removed in the meantime excludes no process.
    fn locked(&self) -> Result<FileLock, FileError> {
        let failed = |error| io_error("cannot be locked", &self.lock, error);
        for _ in 0..TRIES {
            let file = open(&self.lock, File::options().create(true).truncate(false).write(true))
                .map_err(|error| refused(error, "cannot be locked", &self.lock))?;
            is_plain(&file, &self.lock)?;
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(failed)?,
            }
            let lock = FileLock { file, pid: process::id() };
            let ours = lock.file.metadata().map_err(failed)?;
            let there = absent_is_none(fs::symlink_metadata(&self.lock)).map_err(failed)?;
            if there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                return Ok(lock);
            }
        }
        Err(failed(io::Error::other("it is removed, or the waiting is interrupted, again and again")))
    }
}

/// The lock of a fenced file, until it is dropped.
///
/// A child that is forked meanwhile has the same open file, and the lock ends with the last copy of that: so it is
/// ended by hand, and not by closing the file. The child has no part in it: it neither writes nor ends it.
struct FileLock {
    file: File,
    pid: u32,
}

impl FileLock {
    fn must_be_ours(&self) -> io::Result<()> {
        match self.pid == process::id() {
            true => Ok(()),
            false => Err(io::Error::other("this process was forked from the one that has the lock")),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.must_be_ours().is_ok() {
            // OK to ignore because closing the file does the same where there is no child.
            let _ = self.file.unlock();
        }
    }
}

/// Why a fenced file refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A later holder has shown its token. Nothing was written; do not try again with the same token.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The mark is not a number. Nothing was written: without the mark, it is unknown which holder is the present
    /// one.
    #[error(
        "{}: holds no token; write the largest token that was ever used here into it, followed by a line end",
        path.display()
    )]
    Damaged {
        /// The path of the mark.
        path: PathBuf,
    },
    /// A link, a directory or a device. Nothing was written: a link would have a separate mark.
    #[error("{}: is not a plain file; name the file itself", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("{}: {what}", path.display())]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
}

fn refuse_what_is_no_file(path: &Path) -> Result<(), FileError> {
    let found = absent_is_none(fs::symlink_metadata(path));
    match found.map_err(|error| io_error("cannot be read", path, error))? {
        Some(found) if !found.is_file() => Err(FileError::NotAFile { path: path.to_owned() }),
        _ => Ok(()),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// The content of a file, or `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let what = "cannot be read";
    let found = absent_is_none(open(path, File::options().read(true)));
    let Some(mut file) = found.map_err(|error| refused(error, what, path))? else { return Ok(None) };
    is_plain(&file, path)?;
    let mut data = Vec::new();
    file.read_to_end(&mut data).map_err(|error| io_error(what, path, error))?;
    Ok(Some(data))
}

/// Follows no link, and does not block on a pipe.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Checks the open file again, because the path may have been replaced since the first check.
fn is_plain(file: &File, path: &Path) -> Result<(), FileError> {
    let found = file.metadata().map_err(|error| io_error("cannot be read", path, error))?;
    if found.is_file() { Ok(()) } else { Err(FileError::NotAFile { path: path.to_owned() }) }
}

/// A link, a folder to be written, and a pipe or socket without a reader are not regular files.
fn refused(error: io::Error, what: &'static str, path: &Path) -> FileError {
    match error.raw_os_error() {
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => FileError::NotAFile { path: path.to_owned() },
        _ => io_error(what, path, error),
    }
}

fn io_error(what: &'static str, path: &Path, error: io::Error) -> FileError {
    FileError::Io { what, path: path.to_owned(), error }
}

/// How often the lock file may be removed during the call, or a signal interrupt the wait.
const TRIES: usize = 16;

/// A file's new content, complete and on the disk, or not at all. One at a time for each path, because its caller
/// has the lock.
struct Replacement<'a> {
    path: &'a Path,
}

impl<'a> Replacement<'a> {
    fn of(path: &'a Path) -> Self {
        Self { path }
    }

    /// Writes a new file, then renames it over the old one. When it returns, a power failure undoes nothing.
    fn write(&self, content: &[u8]) -> io::Result<()> {
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

    /// Creates a new file. Only this user may read it until it has the owner and the permissions of the file that
    /// it replaces, which may hold secrets. Its name is always the same, so crashes leave at most one. If another
    /// file with that name cannot be removed, such as another user's file in a shared folder, the name is random.
    fn draft(&self, is_private: bool) -> io::Result<(File, PathBuf)> {
        let usual = self.beside(ENDING);
        // A crash left this file.
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

    /// Fails if the name exists, even as a link that leads nowhere.
    fn create(&self, draft: &Path, is_private: bool) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
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

/// Gives a file the owner, the group and the permissions of another one, as far as the system permits: first the
/// owner, then the permissions. Never a set-id bit, which would make the file run as the user that wrote it.
fn inherit(file: &File, old: &Metadata) -> io::Result<()> {
    let ours = file.metadata()?;
    let is_owned = old.uid() == ours.uid() || fchown(file, Some(old.uid()), None).is_ok();
    let is_grouped = old.gid() == ours.gid() || fchown(file, None, Some(old.gid())).is_ok();
    let mut mode = old.mode() & 0o777;
    if !is_grouped {
        // The group is not the old one: it gets no more rights than all users.
        mode &= 0o707 | (mode & 0o007) << 3;
    }
    if !is_owned {
        // This process is the owner and wrote it.
        mode |= 0o600;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

fn absent_is_none<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reserved for this module: an existing file with this ending is removed.
const ENDING: &str = ".tenure-new";
