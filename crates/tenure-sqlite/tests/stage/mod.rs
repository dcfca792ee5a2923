//! One file, and processes that use it, under paused time.

use std::{path::PathBuf, sync::Arc};

use tempfile::TempDir;
use tenure_core::BackendHandle;
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{conformance::player::Player, host::PausedHost};

pub(crate) struct Stage {
    pub(crate) folder: TempDir,
    pub(crate) host: Arc<PausedHost>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), host: PausedHost::new(1) }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    /// As a process of its own.
    pub(crate) fn open(&self) -> BackendHandle {
        Arc::new(Sqlite::new(Config::new(self.file()), self.host.clone()))
    }

    /// As a process of its own.
    pub(crate) fn player(&self, name: &str) -> Player {
        Player::new(self.open(), name)
    }
}
