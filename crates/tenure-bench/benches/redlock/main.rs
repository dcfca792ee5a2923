//! Redlock on five real servers: Tenure next to a bare quorum and to rslock, with all five up and with one that hangs.
//!
//! `cargo bench -p tenure-bench --bench redlock`: needs `redis-server` and two cores; takes about a minute.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

mod by_hand;
#[path = "../redis/cycles.rs"]
#[allow(dead_code, reason = "the bench of one server uses the rest")]
mod cycles;
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
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{
    by_hand::ByHand,
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
const BY_HAND: usize = 3;

const TASKS: usize = 64;

/// What a program did in its window.
#[derive(Clone, Copy)]
struct Seen {
    cycles_per_s: f64,
    /// The same beside a node of which it is known by now that it hangs.
    known_per_s: f64,
    /// Scripts that all nodes ran for one cycle: 10 are one round to acquire and one to release.
    scripts: f64,
}

/// Somebody who acquires and releases one lock that nobody else wants.
#[derive(Clone)]
enum Cycler {
    Tenure(Lock),
    Rslock(LockManager, String),
    ByHand(ByHand),
}

impl Cycler {
    async fn cycle(&mut self) {
        match self {
            Self::Tenure(lock) => {
                let guard = lock.acquire().await.expect("no contention");
                guard.release().await.expect("held");
            }
            Self::Rslock(locks, name) => {
                let lock = locks.lock(name.as_str(), TTL).await.expect("no contention");
                locks.unlock(&lock).await;
            }
            Self::ByHand(lock) => lock.cycle().await,
        }
    }

    /// How many cycles it makes until then.
    async fn cycles(mut self, begun: Instant) -> u32 {
        let mut count = 0;
        while begun.elapsed() < WINDOW {
            self.cycle().await;
            count += 1;
        }
        count
    }
}

struct Bench {
    runtime: Runtime,
    servers: Vec<Server>,
    /// Of each program one for each task.
    programs: [Vec<Cycler>; 4],
}

impl Bench {
    fn start() -> Self {
        let servers: Vec<Server> = (0..NODES).map(|_| Server::start(SERVER_CORE)).collect();
        pin(CLIENT_CORE);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let nodes: Vec<String> = servers.iter().map(Server::url).collect();
        let url = format!("redlock:{}?max_ttl={MAX_TTL}", nodes.join(","));
        let locks = runtime.block_on(tenure::connect(&url)).expect("a URL");
        // New servers grant nothing for as long as a lease may last.
        let guard = runtime.block_on(locks.mutex("bench").acquire()).expect("open after a while");
        runtime.block_on(guard.release()).expect("held");
        let rslock = LockManager::new(nodes);
        let by_hand = runtime.block_on(by_hand::connect(&servers, TASKS));
        let tenure: Vec<Cycler> =
            (0..TASKS).map(|task| Cycler::Tenure(locks.mutex(format!("bench/{task}")))).collect();
        let rslock = (0..TASKS).map(|task| Cycler::Rslock(rslock.clone(), format!("bench/rslock/{task}")));
        let programs =
            [tenure.clone(), tenure, rslock.collect(), by_hand.into_iter().map(Cycler::ByHand).collect()];
        Self { runtime, servers, programs }
    }

    fn calls(&self) -> u64 {
        self.servers.iter().map(|server| server.calls().of("evalsha")).sum()
    }

    /// One program with so many tasks, each with a lock of its own.
    fn turn(&self, which: usize, tasks: usize) -> Seen {
        if which == HUNG {
            self.servers[NODES - 1].signal(Signal::SIGSTOP);
            // The first one finds out; it pays the time-out of the node only if it must wait for it.
            self.cycles(which, 1);
            let cycles_per_s = self.cycles(which, tasks);
            // The time-out of a node is over by then.
            self.pause(600);
            let known_per_s = self.cycles(which, tasks);
            self.servers[NODES - 1].signal(Signal::SIGCONT);
            // Until it is believed again.
            for pause in [700, 100] {
                self.pause(pause);
                self.cycles(which, 1);
            }
            return Seen { cycles_per_s, scripts: f64::NAN, known_per_s };
        }
        let before = self.calls();
        let begun = Instant::now();
        let cycles_per_s = self.cycles(which, tasks);
        let count = cycles_per_s * begun.elapsed().as_secs_f64();
        Seen { cycles_per_s, scripts: (self.calls() - before) as f64 / count, known_per_s: f64::NAN }
    }

    /// Lets the runtime go on without a cycle.
    fn pause(&self, millis: u64) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(millis)).await });
    }

    fn cycles(&self, which: usize, tasks: usize) -> f64 {
        let begun = Instant::now();
        let count: u32 = self.runtime.block_on(async {
            let mut running = JoinSet::new();
            for cycler in self.programs[which].iter().take(tasks) {
                running.spawn(cycler.clone().cycles(begun));
            }
            running.join_all().await.into_iter().sum()
        });
        f64::from(count) / begun.elapsed().as_secs_f64()
    }
}

/// A number of each round.
type Numbers<'a> = &'a dyn Fn(&[Seen]) -> f64;

fn main() {
    let bench = Bench::start();
    println!(
        "\nRedis {}, five servers on one core, the client on the other, guard on.\n",
        bench.servers[0].version()
    );
    println!("| | median | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|");
    for (tasks, how) in [(1, "one task"), (TASKS, "64 tasks, 64 names")] {
        let rounds = Rounds::measure(ROUNDS, bench.programs.len(), |which| bench.turn(which, tasks));
        let row = |what: &str, wanted: &str, digits: usize, number: Numbers<'_>| {
            let Spread { least, median, most } = rounds.spread(number);
            println!(
                "| {how}: {what} | **{median:.digits$}**{wanted} | {least:.digits$} to {most:.digits$} |"
            );
        };
        let of = |which: usize| move |round: &[Seen]| round[which].cycles_per_s;
        row("tenure, all five up, cycles/s", "", 0, &of(TENURE));
        row("tenure, one has just hung, cycles/s", "", 0, &of(HUNG));
        row("rslock, cycles/s", "", 0, &of(RSLOCK));
        row("a bare quorum, cycles/s", "", 0, &of(BY_HAND));
        let by = |a: usize, b: usize| move |round: &[Seen]| round[a].cycles_per_s / round[b].cycles_per_s;
        let wanted = if tasks == 1 { " (wanted: 0.85)" } else { " (wanted: 0.8)" };
        row("tenure / a bare quorum", wanted, 2, &by(TENURE, BY_HAND));
        row("tenure / rslock", "", 2, &by(TENURE, RSLOCK));
        row("tenure, one has just hung / all up", " (wanted: 0.95)", 2, &by(HUNG, TENURE));
        let known = |round: &[Seen]| round[HUNG].known_per_s / round[TENURE].cycles_per_s;
        row("tenure, one is known to hang / all up", " (wanted: 0.95)", 2, &known);
        let scripts = |round: &[Seen]| round[TENURE].scripts;
        row("scripts of all nodes per cycle; 10 is one round to acquire, one to release", "", 2, &scripts);
    }
}
