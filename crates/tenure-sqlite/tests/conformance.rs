//! The sqlite backend keeps the contract.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tempfile::TempDir;
use tenure_core::{BackendHandle, BreakScope};
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

/// A caller that asks for the next hint and gives up sooner than the poll's pause must not put the poll off for ever.
#[tokio::test(start_paused = true)]
async fn an_impatient_listener_hears_as_well() {
    use tenure_core::{Audience, WakeEvent};
    use tenure_testkit::conformance::player::Player;
    let arena = arena().await;
    let holder = Player::new(arena.here(), "one");
    let mut stream = holder.backend.wakes(holder.claim.owner.process(), Audience::Holders);
    holder.enter().await;
    arena
        .elsewhere()
        .await
        .break_lock(&holder.claim.name, BreakScope::Leases)
        .await
        .expect("the store answers");
    for _ in 0..50 {
        if let Ok(wake) = tokio::time::timeout(Duration::from_millis(10), stream.next()).await {
            assert_eq!(wake, WakeEvent::Owner(holder.claim.owner));
            return;
        }
    }
    panic!("no hint within half a second");
}
