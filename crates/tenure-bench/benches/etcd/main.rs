//! Tenure on etcd, next to the recipe written directly against the driver: cycles, and what a hand-off costs.
//!
//! `cargo bench -p tenure-bench --features etcd --bench etcd`: needs `etcd` and `protoc`; takes about 40 s. The server does
//! not wait for the disk.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

mod by_hand;
mod handoff;

use std::time::Duration;

use tenure::{
    Locker,
    backend::{Host, TokioHost},
};
use tenure_bench::{Rounds, Spread};
use tenure_testkit::etcd::EtcdServer;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use by_hand::ByHand;

pub(crate) const TTL: Duration = Duration::from_secs(10);
const ROUNDS: usize = 15;
const CYCLES: u32 = 1200;

fn main() {
    let (server, runtime) = (EtcdServer::start(), runtime());
    let locks = runtime.block_on(tenure::connect(&server.url(""))).expect("a URL");
    let hand = runtime.block_on(ByHand::connect(&server));
    println!("| | by hand | tenure | quotient | quotient of each round |\n|---|---|---|---|---|");
    for tasks in [1, 16] {
        let measured = Rounds::measure(ROUNDS, 2, |program| match program {
            0 => rate(&runtime, tasks, |task| hand_cycles(hand.clone(), task, CYCLES / tasks)),
            _ => rate(&runtime, tasks, |task| our_cycles(locks.clone(), task, CYCLES / tasks)),
        });
        let of = |program: usize| measured.spread(|rates| rates[program]).median;
        let Spread { least, median, most } = measured.spread(|rates| rates[1] / rates[0]);
        println!(
            "| cycles/s, {tasks} tasks | {:.0} | {:.0} | **{median:.2}** | {least:.2} to {most:.2} |",
            of(0),
            of(1)
        );
    }
    println!("\n| waiters | hand-offs/s | µs per hand-off | requests per hand-off |\n|---|---|---|---|");
    for waiters in [2, 16] {
        let seen = handoff::measure(&runtime, &server, waiters);
        println!("| {waiters} | {:.0} | {:.0} | {:.1} |", 1e6 / seen.micros, seen.micros, seen.requests);
    }
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Cycles per second of so many tasks, each with a lock of its own.
fn rate<F>(runtime: &Runtime, tasks: u32, cycles: impl Fn(u32) -> F) -> f64
where
    F: Future<Output = u32> + Send + 'static,
{
    runtime.block_on(async {
        let begun = TokioHost.now();
        let mut all = JoinSet::new();
        for task in 0..tasks {
            all.spawn(cycles(task));
        }
        let done: u32 = all.join_all().await.into_iter().sum();
        f64::from(done) / begun.elapsed(TokioHost.now()).as_secs_f64()
    })
}

async fn hand_cycles(mut hand: ByHand, task: u32, count: u32) -> u32 {
    for _ in 0..count {
        hand.cycle(&format!("bench/{task}/")).await;
    }
    count
}

async fn our_cycles(locks: Locker, task: u32, count: u32) -> u32 {
    let lock = locks.mutex(format!("bench/{task}")).ttl(TTL);
    for _ in 0..count {
        lock.acquire().await.expect("it is free").release().await.expect("it is held");
    }
    count
}
