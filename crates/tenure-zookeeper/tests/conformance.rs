//! The ZooKeeper backend keeps the contract, in both layouts, on a real server, and on an ensemble of which one member hangs.
//! Leases end by our own clock, which is moved.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    any::Any,
    sync::{Arc, LazyLock, Mutex, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{BackendHandle, Host, LockName};
use tenure_testkit::{
    conformance::Arena,
    patience::slowness,
    stepped::SteppedHost,
    zookeeper::{Ensemble, ZooKeeperServer},
};
use tenure_zookeeper::{Config, ZooKeeper};

/// What the cases of this process that run at the same time share, each in a path of its own.
type Shared<T> = LazyLock<Mutex<Weak<T>>>;

/// How long an arena may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

static SERVER: Shared<ZooKeeperServer> = LazyLock::new(Mutex::default);
static ENSEMBLE: Shared<Ensemble> = LazyLock::new(Mutex::default);

fn shared<T>(shared: &Shared<T>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut shared = shared.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *shared = Arc::downgrade(&started);
        started
    })
}

/// Three members, of which one hangs: it takes connections and says nothing.
fn without_one() -> Ensemble {
    let ensemble = Ensemble::start(3);
    ensemble.member(ensemble.followers()[0]).stop();
    ensemble
}

struct OnePath {
    host: Arc<SteppedHost>,
    url: String,
    /// All that were ever handed out; the first one is the one that is here.
    handles: Mutex<Vec<BackendHandle>>,
    _servers: Arc<dyn Any + Send + Sync>,
}

impl OnePath {
    async fn on_server(layout: &str) -> Self {
        let server = shared(&SERVER, ZooKeeperServer::start);
        Self::new(&server.address(), layout, server).await
    }

    async fn on_ensemble() -> Self {
        let ensemble = shared(&ENSEMBLE, without_one);
        Self::new(&ensemble.address(), "curator", ensemble).await
    }

    async fn new(address: &str, layout: &str, servers: Arc<dyn Any + Send + Sync>) -> Self {
        let path = format!("tenure-{}", tenure_testkit::conformance::player::fresh());
        let url = format!("zookeeper://{address}/{path}?tick=100ms&layout={layout}");
        let arena = Self { host: SteppedHost::new(), url, handles: Mutex::default(), _servers: servers };
        arena.connect().await;
        arena
    }

    /// It is connected when it is handed out: the clock goes on meanwhile, and the cases count on it.
    async fn connect(&self) -> BackendHandle {
        let config = Config::from_url(&self.url).unwrap();
        let handle: BackendHandle = Arc::new(ZooKeeper::new(config, self.host.clone()));
        self.handles.lock().unwrap().push(handle.clone());
        // A member may need its time to begin a session on a busy machine.
        let (any, deadline) = (LockName::new("any").unwrap(), self.host.now() + PATIENCE * slowness());
        while let Err(error) = handle.inspect(&any).await {
            assert!(error.kind().is_transient() && !deadline.is_over(self.host.now()), "{error:?}");
        }
        handle
    }
}

#[async_trait]
impl Arena for OnePath {
    fn here(&self) -> BackendHandle {
        self.handles.lock().unwrap()[0].clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        self.connect().await
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
        OnePath::on_server("curator").await
    }

    tenure_testkit::conformance!(arena, real_time);
}

mod kazoo {
    use super::OnePath;

    async fn arena() -> OnePath {
        OnePath::on_server("kazoo").await
    }

    tenure_testkit::conformance!(arena, real_time);
}

mod ensemble {
    use super::OnePath;

    async fn arena() -> OnePath {
        OnePath::on_ensemble().await
    }

    tenure_testkit::conformance!(arena, real_time);
}
