//! The ZooKeeper backend keeps the contract, in both layouts, on a real server. Leases end by our own clock, which is moved.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{Arc, LazyLock, Mutex, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::BackendHandle;
use tenure_testkit::{conformance::Arena, stepped::SteppedHost, zookeeper::ZooKeeperServer};
use tenure_zookeeper::{Config, ZooKeeper};

/// The cases of this process that run at the same time share a server, each in a path of its own.
static SHARED: LazyLock<Mutex<Weak<ZooKeeperServer>>> = LazyLock::new(Mutex::default);

fn server() -> Arc<ZooKeeperServer> {
    let mut shared = SHARED.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(ZooKeeperServer::start());
        *shared = Arc::downgrade(&server);
        server
    })
}

struct OnePath {
    host: Arc<SteppedHost>,
    url: String,
    /// All that were ever handed out; the first one is the one that is here.
    handles: Mutex<Vec<BackendHandle>>,
    _server: Arc<ZooKeeperServer>,
}

impl OnePath {
    fn new(layout: &str) -> Self {
        let server = server();
        let path = format!("tenure-{}", tenure_testkit::conformance::player::fresh());
        let url = format!("zookeeper://{}/{path}?tick=100ms&layout={layout}", server.address());
        let arena = Self { host: SteppedHost::new(), url, handles: Mutex::default(), _server: server };
        arena.connect();
        arena
    }

    fn connect(&self) -> BackendHandle {
        let config = Config::from_url(&self.url).unwrap();
        let handle: BackendHandle = Arc::new(ZooKeeper::new(config, self.host.clone()));
        self.handles.lock().unwrap().push(handle.clone());
        handle
    }
}

#[async_trait]
impl Arena for OnePath {
    fn here(&self) -> BackendHandle {
        self.handles.lock().unwrap()[0].clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        self.connect()
    }

    async fn pass(&self, d: Duration) {
        self.host.step(d);
        let handles = self.handles.lock().unwrap().clone();
        for handle in handles {
            // Whatever is over by now is deleted.
            handle.drain().await;
        }
    }
}

mod curator {
    use super::OnePath;

    async fn arena() -> OnePath {
        OnePath::new("curator")
    }

    tenure_testkit::conformance!(arena, real_time);
}

mod kazoo {
    use super::OnePath;

    async fn arena() -> OnePath {
        OnePath::new("kazoo")
    }

    tenure_testkit::conformance!(arena, real_time);
}
