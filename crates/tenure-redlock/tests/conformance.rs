//! Five nodes in memory, as one lock, keep the contract.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_ledger::{Floor, Rules};
use tenure_memory::Memory;
use tenure_redlock::Redlock;
use tenure_testkit::{
    conformance::Arena,
    host::{PausedHost, pass},
};

struct Five {
    nodes: Vec<Memory>,
    host: Arc<PausedHost>,
    here: Arc<Redlock<Memory>>,
}

fn quorum(nodes: &[Memory], host: &Arc<PausedHost>) -> Arc<Redlock<Memory>> {
    let named = nodes.iter().enumerate().map(|(at, node)| (format!("node {at}"), Arc::new(node.clone())));
    Arc::new(Redlock::new(named.collect(), host.clone()).expect("five are a quorum"))
}

#[async_trait]
impl Arena for Five {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    /// Another process: it remembers nothing of what this one saw.
    async fn elsewhere(&self) -> BackendHandle {
        quorum(&self.nodes, &self.host)
    }

    async fn pass(&self, d: Duration) {
        pass(d).await;
    }
}

async fn arena() -> Five {
    let host = PausedHost::new(1);
    let rules = Rules { floor: Floor::Count(0), ..Rules::default() };
    let nodes: Vec<Memory> = (0..5).map(|_| Memory::new(host.clone()).with_rules(rules)).collect();
    let here = quorum(&nodes, &host);
    Five { nodes, host, here }
}

tenure_testkit::conformance!(arena);
