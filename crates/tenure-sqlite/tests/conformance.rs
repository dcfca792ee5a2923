//! The sqlite backend keeps the contract.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tempfile::TempDir;
use tenure_core::BackendHandle;
use tenure_sqlite::{Config, Sqlite};
use tenure_testkit::{
    conformance::Arena,
    host::{PausedHost, pass},
};

struct OneFile {
    folder: TempDir,
    host: Arc<PausedHost>,
    here: BackendHandle,
}

fn open(folder: &TempDir, host: &Arc<PausedHost>) -> BackendHandle {
    Arc::new(Sqlite::new(Config::new(folder.path().join("locks.db")), host.clone()))
}

#[async_trait]
impl Arena for OneFile {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        open(&self.folder, &self.host)
    }

    async fn pass(&self, d: Duration) {
        pass(d).await;
    }
}

async fn arena() -> OneFile {
    let (folder, host) = (tempfile::tempdir().expect("a temporary folder"), PausedHost::new(1));
    let here = open(&folder, &host);
    OneFile { folder, host, here }
}

tenure_testkit::conformance!(arena);
