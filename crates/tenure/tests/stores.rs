//! A store of each kind, for tests of what must be the same on all of them.

use std::any::Any;

use tenure::{Locker, connect};
use tenure_testkit::{
    postgres,
    redis::{Cluster, RedisServer},
    shared::Shared,
    zookeeper,
};

/// A store, and what keeps it alive.
pub(crate) struct Store {
    pub(crate) kind: &'static str,
    pub(crate) url: String,
    _servers: Box<dyn Any + Send + Sync>,
}

impl Store {
    fn new(kind: &'static str, url: String, servers: impl Any + Send + Sync) -> Self {
        Self { kind, url, _servers: Box::new(servers) }
    }

    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Self::new("sqlite", url, folder)
    }

    pub(crate) fn redis() -> Self {
        let server = RedisServer::start();
        Self::new("redis", server.url("?guard=off"), server)
    }

    /// With its guard, which looks at the server once a second; it has waited already.
    pub(crate) fn guarded() -> Self {
        let server = RedisServer::start();
        let url = server.url("?max_ttl=1m");
        server.has_waited("tenure:one", "guard=on max_ttl=1m");
        Self::new("guarded", url, server)
    }

    /// Over the protocol in which messages need a connection of their own.
    pub(crate) fn resp2() -> Self {
        let server = RedisServer::start();
        Self::new("resp2", server.url("?guard=off&protocol=2"), server)
    }

    pub(crate) fn redis_cluster() -> Self {
        let cluster = Cluster::start();
        let url = format!("redis-cluster://127.0.0.1:{}", cluster.ports()[0]);
        Self::new("redis-cluster", url, cluster)
    }

    pub(crate) fn redlock() -> Self {
        let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
        let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
        Self::new("redlock", format!("redlock:{}?guard=off", nodes.join(",")), servers)
    }

    pub(crate) fn postgres() -> Self {
        let (server, table) = (postgres::shared(), Shared::part().replace('-', "_"));
        postgres::make_table(server.address(), &format!("t{table}"));
        let url = format!("postgres://tenure@{}/tenure?table=t{table}", server.address());
        Self::new("postgres", url, server)
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn mysql() -> Self {
        let (server, table) = (tenure_testkit::mysql::shared(), Shared::part().replace('-', "_"));
        tenure_testkit::mysql::make_table(server.address(), &format!("t{table}"));
        let url = format!("mysql://tenure@{}/tenure?table=t{table}", server.address());
        Self::new("mysql", url, server)
    }

    pub(crate) fn zookeeper() -> Self {
        let server = zookeeper::shared();
        let url = format!("zookeeper://{}/tenure-{}?tick=500ms", server.address(), Shared::part());
        Self::new("zookeeper", url, server)
    }

    #[cfg(feature = "etcd")]
    pub(crate) fn etcd() -> Self {
        let server = tenure_testkit::etcd::shared();
        let url = format!("etcd://{}?prefix={}/", server.address(), Shared::part());
        Self::new("etcd", url, server)
    }

    pub(crate) async fn connect(&self) -> Locker {
        connect(&self.url).await.unwrap()
    }
}

/// Each of these functions of a store as a test on every kind of store.
macro_rules! on_every_store {
    ($($case:ident),+ $(,)?) => {
        crate::stores::on_every_store!(@on sqlite, $($case),+);
        crate::stores::on_every_store!(@on redis, $($case),+);
        crate::stores::on_every_store!(@on guarded, $($case),+);
        crate::stores::on_every_store!(@on resp2, $($case),+);
        crate::stores::on_every_store!(@on redis_cluster, $($case),+);
        crate::stores::on_every_store!(@on redlock, $($case),+);
        crate::stores::on_every_store!(@on postgres, $($case),+);
        #[cfg(feature = "mysql")]
        crate::stores::on_every_store!(@on mysql, $($case),+);
        crate::stores::on_every_store!(@on zookeeper, $($case),+);
        #[cfg(feature = "etcd")]
        crate::stores::on_every_store!(@on etcd, $($case),+);
    };
    (@on $store:ident, $($case:ident),+) => {
        mod $store {
            $(#[test]
            fn $case() {
                super::$case(&crate::stores::Store::$store());
            })+
        }
    };
}

pub(crate) use on_every_store;
