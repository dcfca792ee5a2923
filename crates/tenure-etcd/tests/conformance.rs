//! The etcd backend keeps the contract, on a real server, and on a cluster of three whose first member, which is asked first,
//! hangs. Go reads the clock past every shim, so time passes as it does.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure::backend::TokioHost;
use tenure_core::BackendHandle;
use tenure_etcd::{Config, Etcd};
use tenure_testkit::{conformance::Arena, etcd, shared::Shared};

struct OnePrefix {
    url: String,
    here: BackendHandle,
    _servers: Shared,
}

impl OnePrefix {
    fn on(servers: Shared, query: &str) -> Self {
        let url = format!("etcd://{}?prefix={}/{query}", servers.address(), Shared::part());
        Self { here: connected(&url), url, _servers: servers }
    }
}

fn connected(url: &str) -> BackendHandle {
    Arc::new(Etcd::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

#[async_trait]
impl Arena for OnePrefix {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        connected(&self.url)
    }

    async fn pass(&self, d: Duration) {
        tokio::time::sleep(d).await;
    }
}

async fn arena() -> OnePrefix {
    // A release that is asked again after silence may find that it was done: "unknown" (L9), which is no answer for a case.
    OnePrefix::on(etcd::shared(), "&response_timeout=5s")
}

tenure_testkit::conformance!(arena, real_time);

mod cluster {
    use super::{OnePrefix, etcd};

    async fn arena() -> OnePrefix {
        // For the same reason. Who asks the member that hangs for anything but a lock waits so long, once.
        OnePrefix::on(etcd::shared_with_one_hung(), "&response_timeout=3s")
    }

    tenure_testkit::conformance!(arena, real_time);
}
