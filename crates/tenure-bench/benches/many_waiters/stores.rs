//! The servers, and what they say of themselves.

use std::fs;

use tempfile::TempDir;
#[cfg(feature = "etcd")]
use tenure_testkit::etcd::EtcdServer;
use tenure_testkit::{
    mysql::{self, MysqlServer},
    postgres::{PostgresServer, Recipe},
    redis::RedisServer,
    zookeeper::ZooKeeperServer,
};

/// What can be measured.
#[cfg(feature = "etcd")]
pub(crate) const STORES: [&str; 6] = ["sqlite", "redis", "postgres", "mysql", "zookeeper", "etcd"];
#[cfg(not(feature = "etcd"))]
pub(crate) const STORES: [&str; 5] = ["sqlite", "redis", "postgres", "mysql", "zookeeper"];

/// A store of our own; ends with its owner.
pub(crate) enum Server {
    Sqlite(TempDir),
    Redis(RedisServer),
    Postgres(PostgresServer),
    Mysql(MysqlServer),
    ZooKeeper(ZooKeeperServer),
    #[cfg(feature = "etcd")]
    Etcd(EtcdServer),
}

impl Server {
    /// Where the disk counts, it is written to.
    pub(crate) fn start(store: &str) -> Self {
        match store {
            "sqlite" => Self::Sqlite(tempfile::tempdir().expect("a folder")),
            "redis" => Self::Redis(RedisServer::start()),
            "postgres" => {
                let recipe = Recipe::new().durable().config("max_connections = 1200");
                let server = recipe.config("shared_preload_libraries = 'pg_stat_statements'").start();
                server.psql("CREATE EXTENSION pg_stat_statements");
                Self::Postgres(server)
            }
            "mysql" => Self::Mysql(mysql::Recipe::new().durable().set("max-connections=1200").start()),
            "zookeeper" => Self::ZooKeeper(ZooKeeperServer::start()),
            #[cfg(feature = "etcd")]
            "etcd" => Self::Etcd(EtcdServer::start()),
            _ => unreachable!("BUG: not in the list"),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("locks.db").display()),
            Self::Redis(server) => server.url("?max_ttl=10s"),
            Self::Postgres(server) => server.url(""),
            Self::Mysql(server) => server.url(""),
            Self::ZooKeeper(server) => server.url(""),
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => server.url(""),
        }
    }

    /// Statements, commands or messages so far, where somebody counts them.
    pub(crate) fn requests(&self) -> Option<f64> {
        match self {
            Self::Sqlite(_) => None,
            Self::Redis(server) => {
                let text = server.command(&["INFO", "commandstats"]).text();
                let calls = text
                    .lines()
                    .filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<f64>().ok());
                Some(calls.sum())
            }
            // Not the transactions: each connection that listens begins and ends one for every NOTIFY of anybody.
            Self::Postgres(server) => server.psql("SELECT sum(calls) FROM pg_stat_statements").parse().ok(),
            Self::Mysql(server) => {
                server.sql("SHOW GLOBAL STATUS LIKE 'Questions'").split_once('\t')?.1.parse().ok()
            }
            Self::ZooKeeper(server) => {
                let text = server.word("mntr");
                let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
                line.and_then(|number| number.trim().parse().ok())
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => Some(server.metric("grpc_server_msg_received_total{")),
        }
    }

    /// Seconds of processor time so far.
    pub(crate) fn cpu(&self) -> f64 {
        match self {
            Self::Sqlite(_) => 0.0,
            Self::Redis(server) => cpu(server.pid()),
            Self::Postgres(server) => family(server.pid()),
            Self::Mysql(server) => cpu(server.pid()),
            Self::ZooKeeper(server) => cpu(server.pid()),
            #[cfg(feature = "etcd")]
            Self::Etcd(server) => cpu(server.pid()),
        }
    }
}

/// Of a process and of its children that have ended.
fn cpu(pid: u32) -> f64 {
    let Some(facts) = facts(pid) else { return 0.0 };
    let ticks: f64 = facts.iter().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum();
    // A tick is 10 ms on every Linux that this runs on.
    ticks / 100.0
}

/// Of a process and of all its children, of whom one serves each connection.
fn family(pid: u32) -> f64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |child: &u32| facts(*child).is_some_and(|facts| facts.get(1) == Some(&pid.to_string()));
    cpu(pid) + numbers.filter(is_child).map(cpu).sum::<f64>()
}

/// The fields of `/proc/PID/stat` behind the name: the state is the first.
fn facts(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
