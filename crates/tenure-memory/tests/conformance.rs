//! The memory backend keeps the contract.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_memory::Memory;
use tenure_testkit::{
    conformance::Arena,
    host::{PausedHost, pass},
};

struct OneWorld(Memory);

#[async_trait]
impl Arena for OneWorld {
    fn here(&self) -> BackendHandle {
        Arc::new(self.0.clone())
    }

    async fn elsewhere(&self) -> BackendHandle {
        self.here()
    }

    async fn pass(&self, d: Duration) {
        pass(d).await;
    }
}

async fn arena() -> OneWorld {
    OneWorld(Memory::new(PausedHost::new(1)))
}

tenure_testkit::conformance!(arena);

/// Nothing is wrong with it, but whoever asks should know how far it reaches.
#[tokio::test(start_paused = true)]
async fn it_says_that_nobody_else_sees_its_locks() {
    let findings = arena().await.here().diagnose().await.expect("memory answers");
    let [note] = &findings[..] else { panic!("one finding: {findings:?}") };
    assert_eq!(note.severity, tenure_core::Severity::Note);
    assert!(note.what.contains("nobody else sees them"), "{note:?}");
}
