//! The Redis backend keeps the contract, on a real server whose clock is moved: over RESP3, over RESP2, as a Cluster, and as
//! a node of a quorum.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_testkit::{
    conformance::{Arena, LONG_TURN},
    patience::eventually,
    redis::Recipe,
};

use crate::stage::{Clocked, node, redis};

struct OneServer {
    clocked: Clocked,
    url: String,
    here: BackendHandle,
    /// As another process has it.
    connect: fn(&str) -> BackendHandle,
    passed_ms: AtomicU64,
}

impl OneServer {
    fn new(query: &str) -> Self {
        let clocked = Clocked::new();
        let url = clocked.server.url(query);
        Self::at(clocked, url, redis)
    }

    fn at(clocked: Clocked, url: String, connect: fn(&str) -> BackendHandle) -> Self {
        Self { clocked, here: connect(&url), url, connect, passed_ms: AtomicU64::new(0) }
    }

    fn node() -> Self {
        let clocked = Clocked::new();
        let url = clocked.server.url("?guard=off&claim_ttl=6s");
        Self::at(clocked, url, |url| node(url, 3))
    }

    /// A Cluster of one node that has all slots: nobody watches its clock.
    fn cluster() -> Self {
        let clocked = Clocked::with(Recipe::new().config("cluster-enabled yes\ncluster-port 0"));
        assert_eq!(clocked.server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).error(), None);
        eventually("a cluster of one node serves", Duration::from_secs(10), || {
            let text = clocked.server.command(&["CLUSTER", "INFO"]).text();
            text.contains("cluster_state:ok").then_some(())
        });
        let url = format!("redis-cluster://127.0.0.1:{}/?claim_ttl=6s", clocked.server.port());
        Self::at(clocked, url, redis)
    }
}

#[async_trait]
impl Arena for OneServer {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        (self.connect)(&self.url)
    }

    async fn pass(&self, d: Duration) {
        let ms = u64::try_from(d.as_millis()).unwrap();
        let passed = self.passed_ms.fetch_add(ms, Ordering::SeqCst) + ms;
        self.clocked.clock.step(i64::try_from(passed).unwrap());
    }

    fn turn(&self) -> Duration {
        LONG_TURN
    }
}

mod resp3 {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("?guard=off&claim_ttl=6s")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// Where the server pushes nothing, hints come over a connection of their own.
mod resp2 {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::new("?guard=off&claim_ttl=6s&protocol=2")
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// With a counter per lock and without a gate.
mod cluster {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::cluster()
    }

    tenure_testkit::conformance!(arena, real_time);
}

/// With a counter per lock and a gate beside it.
mod quorum {
    use super::OneServer;

    async fn arena() -> OneServer {
        OneServer::node()
    }

    tenure_testkit::conformance!(arena, real_time);
}
