//! The etcd backend keeps the contract, on a real server. Go reads the clock past every shim, so time passes as it does.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, and meets real time"
)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure::TokioHost;
use tenure_core::BackendHandle;
use tenure_etcd::{Config, Etcd};
use tenure_testkit::{conformance::Arena, etcd::EtcdServer};

struct OneServer {
    server: EtcdServer,
    here: BackendHandle,
}

fn etcd(url: &str) -> BackendHandle {
    Arc::new(Etcd::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

#[async_trait]
impl Arena for OneServer {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        etcd(&self.server.url(""))
    }

    async fn pass(&self, d: Duration) {
        tokio::time::sleep(d).await;
    }
}

async fn arena() -> OneServer {
    let server = EtcdServer::start();
    let here = etcd(&server.url(""));
    OneServer { server, here }
}

tenure_testkit::conformance!(arena, real_time);

/// The same on a cluster of three whose first member, which is asked first, hangs.
mod cluster {
    use std::time::Duration;

    use async_trait::async_trait;
    use tenure_core::BackendHandle;
    use tenure_testkit::{conformance::Arena, etcd::EtcdCluster};

    struct TwoOfThree {
        cluster: EtcdCluster,
        here: BackendHandle,
    }

    #[async_trait]
    impl Arena for TwoOfThree {
        fn here(&self) -> BackendHandle {
            self.here.clone()
        }

        async fn elsewhere(&self) -> BackendHandle {
            super::etcd(&self.cluster.url(""))
        }

        async fn pass(&self, d: Duration) {
            tokio::time::sleep(d).await;
        }
    }

    async fn arena() -> TwoOfThree {
        let cluster = EtcdCluster::start(3);
        cluster.member(0).stop();
        cluster.leader(&[1, 2]);
        let here = super::etcd(&cluster.url(""));
        TwoOfThree { cluster, here }
    }

    tenure_testkit::conformance!(arena, real_time);
}
