//! `FencedFile`: a file with its mark beside it.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

use nix::libc;

use crate::fence::pass::{Pass, Refused, decimal};

/// A file that refuses former holders.
///
/// Beside `report` are two more files: `report.mark`, the largest token of an exclusive holder that has been here, and
/// `report.lock`, which is empty and is locked for each look at the mark. For a moment there is also `report.tenure-new`.
/// The first use makes them. Clones and other processes may use the same path; all writers must come through here.
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
/// The check, the raise and the write are one step under the lock of `report.lock`. The mark is raised first, on the disk,
/// and then the data is replaced as a whole. A crash or a power cut leaves at worst a raised mark and the old data, which
/// does no harm; never new data under an old mark.
///
/// # What is not promised
/// * **It blocks.** Every call but [`read`](Self::read) waits for others at the same file, for as long as the disk takes for
///   up to two files. In an asynchronous program it belongs on a thread for blocking work (`spawn_blocking`).
/// * **A process that is stopped inside such a call holds up the others** until it goes on or dies.
/// * Without the mark, because it was removed or the data was copied without it, former holders may write again. If
///   the lock is removed during a write, the next writer writes beside it.
/// * A reader is not told that its lease has ended. A program that reads and writes later calls [`touch`](Self::touch) before
///   it reads, or [`update`](Self::update).
/// * One host. On a network file system this is as good as its locks and its renames.
/// * The file keeps its permissions, but no set-id bit, which would make it run as the user that wrote it. It keeps its
///   owner and its group if the writer may give files away, as root may. Otherwise they become the writer's, and a group
///   that is not the old one may do no more than all users. Hard links keep the old data; access lists are lost.
/// * A user that may write in its folder may replace anything here. Links and what is no plain file are refused, not
///   followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedFile {
    data: PathBuf,
    mark: PathBuf,
    lock: PathBuf,
}

impl FencedFile {
    /// The file at this path, whose directory must exist. Nothing is opened or made yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let data = path.into();
        let (mark, lock) = (beside(&data, ".mark"), beside(&data, ".lock"));
        Self { data, mark, lock }
    }

    /// Where the data is.
    pub fn path(&self) -> &Path {
        &self.data
    }

    /// The data as it is, or `None` if there is none yet. Needs no pass and no lock; never sees half a write.
    ///
    /// # Errors
    /// [`FileError::Io`] if it cannot be read, [`FileError::NotAFile`] if it is a link, a folder or a device.
    pub fn read(&self) -> Result<Option<Vec<u8>>, FileError> {
        read(&self.data)
    }

    /// The mark as it is, 0 if no exclusive holder has been here.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`FileError::Damaged`] if it is no number.
    pub fn mark(&self) -> Result<u64, FileError> {
        let Some(found) = read(&self.mark)? else { return Ok(0) };
        let number = str::from_utf8(&found).ok().and_then(|text| text.strip_suffix('\n')).and_then(decimal);
        number.ok_or_else(|| FileError::Damaged { path: self.mark.clone() })
    }

    /// Shows a pass without writing data: raises the mark, or checks it. Do so before the first read of what will be
    /// written later: otherwise a former holder's write can slip in between.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a later holder has been here; the others if the mark cannot be seen or raised.
    pub fn touch(&self, pass: Pass) -> Result<(), FileError> {
        let _lock = self.admit(pass)?;
        Ok(())
    }

    /// Replaces the data as a whole.
    ///
    /// # Errors
    /// [`FileError::Refused`], [`FileError::Damaged`] and [`FileError::NotAFile`]: nothing was written. [`FileError::Io`]:
    /// the data is the old or the new, as a whole, and the mark may be raised; the same holder may try again.
    pub fn write(&self, pass: Pass, data: &[u8]) -> Result<(), FileError> {
        let _lock = self.admit(pass)?;
        self.replace(data)
    }

    /// Reads the data, has `change` make the new data of it, and writes that, as one step that no other writer enters.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn update(
        &self,
        pass: Pass,
        change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>,
    ) -> Result<(), FileError> {
        let _lock = self.admit(pass)?;
        self.replace(&change(self.read()?))
    }

    /// Locks, judges, and raises the mark on the disk. What it gives keeps the others out until it is dropped.
    fn admit(&self, pass: Pass) -> Result<File, FileError> {
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

    /// The lock, on the file that stands there: one that was removed meanwhile keeps nobody out.
    fn locked(&self) -> Result<File, FileError> {
        let failed = |error| io_error("cannot be locked", &self.lock, error);
        for _ in 0..TRIES {
            let file = open(&self.lock, File::options().create(true).truncate(false).write(true))
                .map_err(|error| refused(error, "cannot be locked", &self.lock))?;
            is_plain(&file, &self.lock)?;
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(failed)?,
            }
            let ours = file.metadata().map_err(failed)?;
            let there = absent_is_none(fs::symlink_metadata(&self.lock)).map_err(failed)?;
            if there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                return Ok(file);
            }
        }
        Err(failed(io::Error::other("it is removed, or the waiting is interrupted, again and again")))
    }
}

/// Why a fenced file did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A later holder has been here. Nothing was written; do not try again with the same token.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The mark is no number. Nothing was written: without it a former holder cannot be told from the present one.
    #[error(
        "{}: holds no token; write the largest token that was ever used here into it, followed by a line end",
        path.display()
    )]
    Damaged {
        /// Where the mark is kept.
        path: PathBuf,
    },
    /// A link, a directory, a device. Nothing was written: a link would have a mark of its own beside it.
    #[error("{}: is not a plain file; name the file itself", path.display())]
    NotAFile {
        /// What it is about.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("{}: {what}", path.display())]
    Io {
        /// What could not be done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// In its own words.
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

/// What is in a file, or `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let what = "cannot be read";
    let found = absent_is_none(open(path, File::options().read(true)));
    let Some(mut file) = found.map_err(|error| refused(error, what, path))? else { return Ok(None) };
    is_plain(&file, path)?;
    let mut data = Vec::new();
    file.read_to_end(&mut data).map_err(|error| io_error(what, path, error))?;
    Ok(Some(data))
}

/// Follows no link, and waits for nobody at what turns out to be a pipe.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// It may have become something else since it was looked at.
fn is_plain(file: &File, path: &Path) -> Result<(), FileError> {
    let found = file.metadata().map_err(|error| io_error("cannot be read", path, error))?;
    if found.is_file() { Ok(()) } else { Err(FileError::NotAFile { path: path.to_owned() }) }
}

/// A link, a folder that is to be written, and a pipe or a socket that nobody reads from, are no files.
fn refused(error: io::Error, what: &'static str, path: &Path) -> FileError {
    match error.raw_os_error() {
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => FileError::NotAFile { path: path.to_owned() },
        _ => io_error(what, path, error),
    }
}

fn io_error(what: &'static str, path: &Path, error: io::Error) -> FileError {
    FileError::Io { what, path: path.to_owned(), error }
}

/// How often the lock's file may be removed under us, or a signal interrupt the waiting.
const TRIES: usize = 16;

/// A file's new content, there as a whole and on the disk, or not at all: what will stand at a path. One at a time for each path: its caller has the lock.
struct Replacement<'a> {
    path: &'a Path,
}

impl<'a> Replacement<'a> {
    fn of(path: &'a Path) -> Self {
        Self { path }
    }

    /// Writes beside, then renames over. When it returns, a power cut takes nothing back.
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

fn absent_is_none<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nobody's file has such a name: what stands there is removed.
const ENDING: &str = ".tenure-new";
