//! `SmallDisk`: a file system that is soon full.

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::Command,
};

use tempfile::TempDir;

/// A file system of a few MiB, which is unmounted when this is dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a file system of this size, in MiB. `None`, with a message, where the system does not allow it.
    ///
    /// # Panics
    /// If its folder cannot be made.
    pub fn new(mib: usize) -> Option<Self> {
        let folder = crate::folder::temporary("tenure-disk-");
        let size = format!("size={mib}m");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        let is_there = mount.is_ok_and(|output| output.status.success());
        if !is_there {
            println!("nothing is mounted here: a full disk is not tried");
        }
        is_there.then_some(Self(folder))
    }

    /// The folder where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes until the file system is full. A second call also fills the space that was freed since.
    ///
    /// # Panics
    /// If it is never full.
    pub fn fill(&self) {
        let fillers = (0..).map(|count| self.path().join(format!("{FILLER}{count}")));
        let mut file = fillers.map(File::create_new).find_map(Result::ok).expect("numbers do not end");
        io::copy(&mut io::repeat(0), &mut file).expect_err("the disk is full");
    }

    /// Deletes what [`fill`](Self::fill) wrote.
    ///
    /// # Panics
    /// If a file cannot be removed.
    pub fn free(&self) {
        let files =
            fs::read_dir(self.path()).expect("our own folder").map(|entry| entry.expect("our own").path());
        let is_filler =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILLER));
        files.filter(|path| is_filler(path)).for_each(|path| fs::remove_file(path).expect("our own file"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

const FILLER: &str = "filler-";
