//! All tests of the crate from outside, in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod attach;
mod await_outcomes;
mod blocked_runtime;
mod classes;
mod compiles;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
mod deaths;
mod elections;
mod fairness;
mod fence_file;
mod fence_mysql;
mod fence_postgres;
mod fence_processes;
mod fence_redis;
mod fence_sqlite;
mod fork;
#[cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "redlock",
    feature = "postgres",
    feature = "zookeeper"
))]
mod futures;
mod heard;
mod holding;
mod idle;
mod in_flight;
mod leases;
mod lines;
mod memos;
mod newest;
#[cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "redlock",
    feature = "postgres",
    feature = "zookeeper"
))]
mod observers;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod ownership;
mod paused_clock;
#[cfg(all(
    feature = "memory",
    feature = "sqlite",
    feature = "redis",
    feature = "redlock",
    feature = "postgres",
    feature = "zookeeper"
))]
mod promises;
#[cfg(feature = "redis")]
mod redis_cancel;
#[cfg(feature = "redis")]
mod redis_hazards;
#[cfg(feature = "redis")]
mod redis_loss;
#[cfg(feature = "redis")]
mod redis_secrets;
#[cfg(feature = "redis")]
mod redis_stage;
#[cfg(feature = "redis")]
mod redis_waiting;
mod releases;
mod renewals;
#[cfg(all(feature = "redis", feature = "redlock"))]
mod rollout;
#[cfg(all(feature = "redis", feature = "postgres", feature = "mysql", feature = "etcd"))]
mod rotation;
mod seen;
mod self_wait;
mod settings;
mod several;
mod spans;
mod stage;
#[cfg(all(
    feature = "sqlite",
    feature = "redis",
    feature = "redlock",
    feature = "postgres",
    feature = "zookeeper"
))]
mod stores;
#[cfg(feature = "testing")]
mod testing;
mod threads;
#[cfg(all(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper-tls"
))]
mod tls;
mod turns;
#[cfg(all(feature = "redlock", feature = "postgres", feature = "zookeeper"))]
mod url_secrets;
mod waiting;
mod watch;
