//! The ZooKeeper backend keeps the contract, in both layouts, on a real server, and on an ensemble of which one member hangs.
//! Leases end by our own clock, which is moved.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{BackendHandle, Host, WaitMode};
use tenure_testkit::{
    conformance::{Arena, player::Player},
    patience::slowness,
    shared::Shared,
    stepped::SteppedHost,
    zookeeper,
};
use tenure_zookeeper::{Config, ZooKeeper};

/// How long an arena may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

struct OnePath {
    host: Arc<SteppedHost>,
    url: String,
    /// All that were ever handed out; the first one is the one that is here.
    handles: Mutex<Vec<BackendHandle>>,
    _servers: Shared,
}

impl OnePath {
    async fn on_server(layout: &str) -> Self {
        Self::new(zookeeper::shared(), layout).await
    }

    async fn on_ensemble() -> Self {
        Self::new(zookeeper::shared_with_one_hung(), "curator").await
    }

    async fn new(servers: Shared, layout: &str) -> Self {
        let path = format!("tenure-{}", Shared::part());
        // A busy server may need seconds to begin a session; a case is about what comes after it.
        let url = format!(
            "zookeeper://{}/{path}?tick=100ms&layout={layout}&connect_timeout=10s",
            servers.address()
        );
        let arena = Self { host: SteppedHost::new(), url, handles: Mutex::default(), _servers: servers };
        arena.connect().await;
        arena
    }

    /// It is connected when it is handed out: the clock goes on meanwhile, and the cases count on it.
    async fn connect(&self) -> BackendHandle {
        let config = Config::from_url(&self.url).unwrap();
        let handle: BackendHandle = Arc::new(ZooKeeper::new(config, self.host.clone()));
        self.handles.lock().unwrap().push(handle.clone());
        // By a claim of their ttl: a session for less gives a silent server up sooner, and a look takes any session that there is.
        let any = Player::new(handle.clone(), "any").lasting(self.ttl()).waiting(WaitMode::No).claim;
        // A member may need its time to begin a session on a busy machine.
        let deadline = self.host.now() + PATIENCE * slowness();
        while let Err(error) = handle.claim(&any).await {
            assert!(error.kind().is_transient() && !deadline.is_over(self.host.now()), "{error:?}");
        }
        handle.release(&any.name, any.owner).await.expect("the store answers");
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

    /// Real time goes on between the steps, and an ensemble on a busy machine may be silent for seconds.
    fn ttl(&self) -> Duration {
        Duration::from_secs(40)
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
