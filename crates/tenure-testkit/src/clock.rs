//! The wall clock of one server, moved or stopped by a test.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, process::Command, time::Duration};

use tempfile::TempDir;

/// A wall clock that runs as the machine's does, until it is stepped or frozen. The clock that never steps is left alone.
///
/// Made of a library that is loaded before the server's own: [`env`](Self::env) is for its start.
pub struct Clock {
    folder: TempDir,
}

impl Clock {
    /// A clock that is right.
    ///
    /// # Panics
    /// If there is no C compiler.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("shim.c"), include_str!("clock/shim.c"))
            .expect("a file in a temporary folder");
        fs::write(folder.path().join("clock"), [0; 16]).expect("a file in a temporary folder");
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o", "shim.so", "shim.c"])
            .current_dir(folder.path())
            .status()
            .expect("cc is missing; run `cargo xtask test`, which installs it");
        assert!(compiled.success(), "the clock does not compile");
        Self { folder }
    }

    /// What the server must find in its environment.
    pub fn env(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.path(name).to_str().expect("a plain path").to_owned();
        vec![("LD_PRELOAD".into(), path("shim.so")), ("TENURE_CLOCK".into(), path("clock"))]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, word: u64, micros: i64) {
        let file = fs::OpenOptions::new().write(true).open(self.path("clock")).expect("our own file");
        file.write_all_at(&micros.to_le_bytes(), word * 8).expect("our own file");
    }

    /// From now on it is wrong by so many ms.
    pub fn step(&self, ms: i64) {
        self.write(0, ms * 1000);
    }

    /// It stands at this time since the Unix epoch.
    ///
    /// # Panics
    /// If that is farther away than an i64 of µs.
    pub fn freeze_at(&self, since_epoch: Duration) {
        self.write(1, i64::try_from(since_epoch.as_micros()).expect("a time of this age"));
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
