//! Redlock on five real servers: Tenure next to rslock, with all five up and with one that hangs.
//!
//! `cargo bench -p tenure-bench --bench redlock`: needs `redis-server` and two cores; takes about 40 s.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

#[path = "../redis/meter.rs"]
#[allow(dead_code, reason = "the bench of one server uses the rest")]
mod meter;
#[path = "../redis/server.rs"]
#[allow(dead_code, reason = "the bench of one server uses the rest")]
mod server;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rslock::LockManager;
use tenure::Lock;
use tenure_bench::{Rounds, Spread};
use tokio::runtime::{Builder, Runtime};

use crate::{
    meter::{CLIENT_CORE, SERVER_CORE, pin},
    server::{MAX_TTL, Server},
};

const NODES: usize = 5;
const ROUNDS: usize = 21;
/// How long one program runs in one round.
const WINDOW: Duration = Duration::from_millis(150);
const TTL: Duration = Duration::from_secs(10);

const TENURE: usize = 0;
const HUNG: usize = 1;
const RSLOCK: usize = 2;

/// What a program did in its window.
#[derive(Clone, Copy)]
struct Seen {
    cycles_per_s: f64,
    /// Scripts that all nodes ran for one cycle: 10 are one round to acquire and one to release.
    scripts: f64,
}

struct Bench {
    runtime: Runtime,
    servers: Vec<Server>,
    tenure: Lock,
    rslock: LockManager,
}

impl Bench {
    fn start() -> Self {
        let servers: Vec<Server> = (0..NODES).map(|_| Server::start(SERVER_CORE)).collect();
        pin(CLIENT_CORE);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let nodes: Vec<String> = servers.iter().map(Server::url).collect();
        let url = format!("redlock:{}?max_ttl={MAX_TTL}", nodes.join(","));
        let tenure = runtime.block_on(tenure::connect(&url)).expect("a URL").mutex("bench");
        // New servers grant nothing for as long as a lease may last.
        let guard = runtime.block_on(tenure.acquire()).expect("open after a while");
        runtime.block_on(guard.release()).expect("held");
        Self { runtime, servers, tenure, rslock: LockManager::new(nodes) }
    }

    fn calls(&self) -> u64 {
        self.servers.iter().map(|server| server.calls().of("evalsha")).sum()
    }

    fn turn(&self, which: usize) -> Seen {
        if which == HUNG {
            self.servers[NODES - 1].signal(Signal::SIGSTOP);
            // The first one finds out; it pays the time-out of the node only if it must wait for it.
            self.runtime.block_on(self.cycle(which));
            let cycles = self.cycles(which);
            self.servers[NODES - 1].signal(Signal::SIGCONT);
            // Until it is believed again.
            self.pause(700);
            self.runtime.block_on(self.cycle(which));
            self.pause(100);
            self.runtime.block_on(self.cycle(which));
            return Seen { cycles_per_s: cycles, scripts: f64::NAN };
        }
        let before = self.calls();
        let begun = Instant::now();
        let cycles = self.cycles(which);
        let count = cycles * begun.elapsed().as_secs_f64();
        Seen { cycles_per_s: cycles, scripts: (self.calls() - before) as f64 / count }
    }

    fn pause(&self, ms: u64) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(ms)).await });
    }

    fn cycles(&self, which: usize) -> f64 {
        let (begun, mut count) = (Instant::now(), 0_u32);
        self.runtime.block_on(async {
            while begun.elapsed() < WINDOW {
                self.cycle(which).await;
                count += 1;
            }
        });
        f64::from(count) / begun.elapsed().as_secs_f64()
    }

    async fn cycle(&self, which: usize) {
        if which == RSLOCK {
            let lock = self.rslock.lock("bench/rslock", TTL).await.expect("no contention");
            self.rslock.unlock(&lock).await;
        } else {
            let guard = self.tenure.acquire().await.expect("no contention");
            guard.release().await.expect("held");
        }
    }
}

fn main() {
    let bench = Bench::start();
    for which in [TENURE, HUNG, RSLOCK] {
        bench.turn(which);
    }
    let rounds = Rounds::measure(ROUNDS, 3, |which| bench.turn(which));
    let of = |which: usize| rounds.spread(move |round| round[which].cycles_per_s);
    println!(
        "\nRedis {}, five servers on one core, the client on the other, guard on, one task.\n",
        bench.servers[0].version()
    );
    println!("| | cycles/s | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|");
    let row = |what: &str, Spread { least, median, most }| {
        println!("| {what} | {median:.0} | {least:.0} to {most:.0} |")
    };
    row("tenure, all five up", of(TENURE));
    row("tenure, one hangs", of(HUNG));
    row("rslock, all five up", of(RSLOCK));
    let quotient = |what: &str, wanted: &str, Spread { least, median, most }| {
        println!("| {what} | **{median:.2}**{wanted} | {least:.2} to {most:.2} |");
    };
    let by = |a: usize, b: usize| rounds.spread(move |round| round[a].cycles_per_s / round[b].cycles_per_s);
    quotient("tenure, one hangs / all up", " (wanted: 0.9)", by(HUNG, TENURE));
    quotient("tenure / rslock, all up", "", by(TENURE, RSLOCK));
    let scripts = rounds.spread(|round| round[TENURE].scripts);
    quotient("scripts of all nodes per cycle; 10 is one round to acquire, one to release", "", scripts);
}
