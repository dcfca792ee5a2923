//! The Redis backend keeps the contract, on a real server whose clock is moved: alone, and over RESP2.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod stage;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use stage::Clocked;
use tenure_core::BackendHandle;
use tenure_testkit::conformance::Arena;

struct OneServer {
    clocked: Clocked,
    query: &'static str,
    here: BackendHandle,
    passed_ms: AtomicU64,
}

impl OneServer {
    fn new(query: &'static str) -> Self {
        let clocked = Clocked::new();
        let here = clocked.redis(query);
        Self { clocked, query, here, passed_ms: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Arena for OneServer {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        self.clocked.redis(self.query)
    }

    async fn pass(&self, d: Duration) {
        let ms = u64::try_from(d.as_millis()).unwrap();
        let passed = self.passed_ms.fetch_add(ms, Ordering::SeqCst) + ms;
        self.clocked.clock.step(i64::try_from(passed).unwrap());
    }
}

mod resp3 {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("?guard=off")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Where the server pushes nothing, hints come over a connection of their own.
mod resp2 {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("?guard=off&protocol=2")
    }

    tenure_testkit::conformance!(arena, real_time);
}
