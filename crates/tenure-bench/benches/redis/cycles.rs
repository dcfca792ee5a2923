//! Uncontended cycles of acquire and release: by hand against the driver, with Tenure, with rslock.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, aio::MultiplexedConnection};
use rslock::LockManager;
use tenure::Lock;
use tenure_bench::Rounds;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    meter::{Cost, Meter},
    server::{PATIENCE, Server},
};

pub(crate) const TTL: Duration = Duration::from_secs(10);

const ROUNDS: usize = 21;
/// How long one round of the slowest program takes on the whole; the others run as many cycles.
const ROUND: Duration = Duration::from_millis(100);
/// Of all tasks together, to warm up.
const FIRST: usize = 4096;

pub(crate) const BY_HAND: usize = 0;
pub(crate) const TENURE: usize = 1;
pub(crate) const RSLOCK: usize = 2;

/// Somebody who acquires and releases one lock that nobody else wants.
#[derive(Clone)]
enum Cycler {
    ByHand(ByHand),
    Tenure(Lock),
    Rslock(LockManager, String),
}

/// The least that can be done: no queue, no gate, one time-out, which is the driver's, an owner that is made once.
#[derive(Clone)]
struct ByHand {
    connection: MultiplexedConnection,
    acquire: String,
    release: String,
    lock: String,
    fence: String,
    owner: String,
}

impl ByHand {
    async fn acquire(&mut self) -> u64 {
        let mut call = evalsha(&self.acquire, &[&self.lock, &self.fence]);
        call.arg(&self.owner).arg(TTL.as_millis() as u64);
        call.query_async(&mut self.connection).await.expect("the server answers")
    }

    async fn release(&mut self) -> u64 {
        let mut call = evalsha(&self.release, &[&self.lock]);
        call.arg(&self.owner);
        call.query_async(&mut self.connection).await.expect("the server answers")
    }
}

/// The driver's own settings, but for its patience: a machine that is busy with others may stand still for a moment.
pub(crate) fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE))
}

/// A call of a script that the server knows.
pub(crate) fn evalsha(hash: &str, keys: &[&str]) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(hash).arg(keys.len());
    for key in keys {
        call.arg(key);
    }
    call
}

impl Cycler {
    async fn cycles(self, count: usize) {
        match self {
            Self::ByHand(mut lock) => {
                for _ in 0..count {
                    assert!(lock.acquire().await > 0, "nobody else wants it");
                    assert_eq!(lock.release().await, 1, "held");
                }
            }
            Self::Tenure(lock) => {
                for _ in 0..count {
                    let guard = lock.acquire().await.expect("no contention");
                    guard.release().await.expect("held");
                }
            }
            Self::Rslock(locks, name) => {
                for _ in 0..count {
                    let lock = locks.lock(name.as_str(), TTL).await.expect("no contention");
                    locks.unlock(&lock).await;
                }
            }
        }
    }
}

/// One program with a lock for each of its tasks, all over one connection.
async fn program(which: usize, server: &Server, tasks: usize) -> Vec<Cycler> {
    match which {
        BY_HAND => {
            let client = redis::Client::open(server.url()).expect("a URL");
            let connection = client.get_multiplexed_async_connection_with_config(&patient()).await;
            let connection = connection.expect("a connection");
            let acquire = server.load(include_str!("scripts/cycle.acquire.lua"));
            let release = server.load(include_str!("scripts/cycle.release.lua"));
            let cycler = |task| {
                let (lock, fence) = (format!("hand/{task}"), format!("hand/{task}/fence"));
                let (connection, owner) = (connection.clone(), format!("{task:048x}"));
                let (acquire, release) = (acquire.clone(), release.clone());
                Cycler::ByHand(ByHand { connection, acquire, release, lock, fence, owner })
            };
            (0..tasks).map(cycler).collect()
        }
        TENURE => {
            let locks = tenure::connect(&server.tenure_url()).await.expect("a URL");
            (0..tasks).map(|task| Cycler::Tenure(locks.mutex(format!("tenure/{task}")))).collect()
        }
        _ => {
            let locks = LockManager::new(vec![server.url()]);
            (0..tasks).map(|task| Cycler::Rslock(locks.clone(), format!("rslock/{task}"))).collect()
        }
    }
}

/// The cost of a cycle, of all three in turn, with so many tasks of one thread, each with a lock of its own.
pub(crate) fn measure(runtime: &Runtime, server: &Server, tasks: usize) -> Rounds<Cost> {
    let programs: Vec<Vec<Cycler>> =
        (0..3).map(|which| runtime.block_on(program(which, server, tasks))).collect();
    let turn = |which: usize, cycles: usize| {
        let (cyclers, each) = (programs[which].clone(), cycles.div_ceil(tasks));
        runtime.block_on(async move {
            let meter = Meter::start(server);
            let mut running = JoinSet::new();
            for cycler in cyclers {
                running.spawn(cycler.cycles(each));
            }
            while let Some(end) = running.join_next().await {
                end.expect("no task panics");
            }
            meter.stop((each * tasks) as u64)
        })
    };
    let slowest_us = (0..3).map(|which| turn(which, FIRST).wall).fold(1.0, f64::max);
    let cycles = (ROUND.as_secs_f64() * 1e6 / slowest_us) as usize;
    Rounds::measure(ROUNDS, 3, |which| turn(which, cycles))
}
