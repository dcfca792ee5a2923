//! A store for a test, by its URL. Its server ends with the test, or with the run.

#[cfg(feature = "etcd")]
use tenure_testkit::etcd;
#[cfg(feature = "mysql")]
use tenure_testkit::mysql;
use tenure_testkit::{
    postgres,
    redis::RedisServer,
    shared::Shared,
    zookeeper::{self, TICK},
};

pub(crate) fn on_memory(test: impl FnOnce(&str)) {
    test("memory:");
}

pub(crate) fn on_sqlite(test: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    test(&format!("sqlite:{}", folder.path().join("locks.db").display()));
}

pub(crate) fn on_redis(test: impl FnOnce(&str)) {
    let server = RedisServer::start();
    test(&server.url("?guard=off"));
}

pub(crate) fn on_quorum(test: impl FnOnce(&str)) {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
    test(&format!("redlock:{}?guard=off", nodes.join(",")));
}

pub(crate) fn on_postgres(test: impl FnOnce(&str)) {
    let (server, table) = (postgres::shared(), Shared::part().replace('-', "_"));
    postgres::make_table(server.address(), &format!("t{table}"));
    test(&format!("postgres://tenure@{}/tenure?table=t{table}", server.address()));
}

#[cfg(feature = "mysql")]
pub(crate) fn on_mysql(test: impl FnOnce(&str)) {
    let (server, table) = (mysql::shared(), Shared::part().replace('-', "_"));
    mysql::make_table(server.address(), &format!("t{table}"));
    test(&format!("mysql://tenure@{}/tenure?table=t{table}&connect_timeout=10s", server.address()));
}

pub(crate) fn on_zookeeper(test: impl FnOnce(&str)) {
    let (server, part, tick) = (zookeeper::shared(), Shared::part(), TICK.as_millis());
    test(&format!("zookeeper://{}/tenure-{part}?tick={tick}ms", server.address()));
}

#[cfg(feature = "etcd")]
pub(crate) fn on_etcd(test: impl FnOnce(&str)) {
    let server = etcd::shared();
    test(&format!("etcd://{}?prefix={}/", server.address(), Shared::part()));
}
