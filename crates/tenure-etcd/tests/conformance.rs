//! The etcd backend keeps the contract, on a real server, and on a cluster of three whose first member, which is asked first,
//! hangs. Go reads the clock past every shim, so time passes as it does.

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
use tenure_testkit::{
    conformance::Arena,
    etcd::{EtcdCluster, EtcdServer},
    shared::Shared,
};

struct OnePrefix {
    url: String,
    here: BackendHandle,
    _servers: Shared,
}

impl OnePrefix {
    fn on(servers: Shared) -> Self {
        let url = format!("etcd://{}?prefix={}/", servers.address(), Shared::part());
        Self { here: etcd(&url), url, _servers: servers }
    }
}

fn etcd(url: &str) -> BackendHandle {
    Arc::new(Etcd::new(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

#[async_trait]
impl Arena for OnePrefix {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        etcd(&self.url)
    }

    async fn pass(&self, d: Duration) {
        tokio::time::sleep(d).await;
    }
}

async fn arena() -> OnePrefix {
    OnePrefix::on(Shared::server("etcd", EtcdServer::start, EtcdServer::address))
}

tenure_testkit::conformance!(arena, real_time);

fn two_of_three() -> EtcdCluster {
    let cluster = EtcdCluster::start(3);
    cluster.member(0).stop();
    cluster.leader(&[1, 2]);
    cluster
}

mod cluster {
    use super::{EtcdCluster, OnePrefix, Shared, two_of_three};

    async fn arena() -> OnePrefix {
        OnePrefix::on(Shared::server("etcd-cluster", two_of_three, EtcdCluster::address))
    }

    tenure_testkit::conformance!(arena, real_time);
}
