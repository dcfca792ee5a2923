//! PostgreSQL: cycles of Tenure next to as many statements by hand, hand-offs, and what waiting costs. Every
//! commit is on the disk.
//!
//! `cargo bench -p tenure-bench --bench postgres`: needs PostgreSQL; takes about a minute. `… -- crowd 128
//! 600` measures many processes that pass one lock on, which takes some minutes; `… -- first-tries` transactions that rely on
//! the owner, beside waiters.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

mod by_hand;
#[path = "../database/mod.rs"]
mod database;
mod program;

use std::time::{Duration, Instant};

use tenure::Lock;
use tenure_bench::{Rounds, Spread};
use tenure_testkit::postgres::{PostgresServer, Recipe};
use tokio::{
    runtime::{Builder, Runtime},
    task::LocalSet,
};

use crate::{
    by_hand::{ByHand, Prepared},
    database::{Database, crowd, ownership, waiting},
    program::Clerk,
};

const ROUNDS: usize = 11;
/// How long one program runs in one round.
const WINDOW: Duration = Duration::from_millis(250);
const MANY: usize = 16;

/// The programs: ours, the same statements by hand, and by hand with names; alone, and many at the same time
/// over one connection.
const PROGRAMS: [(Who, usize); 6] = [
    (Who::Tenure, 1),
    (Who::Hand, 1),
    (Who::Prepared, 1),
    (Who::Tenure, MANY),
    (Who::Hand, MANY),
    (Who::Prepared, MANY),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Tenure,
    Hand,
    Prepared,
}

struct Bench {
    runtime: Runtime,
    locks: Vec<Lock>,
    hands: Vec<ByHand>,
    prepared: Vec<Prepared>,
}

impl Bench {
    fn start(server: &PostgresServer) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (locks, hands, prepared) = runtime.block_on(async {
            let locker = tenure::connect(&server.url("")).await.expect("a URL");
            let locks: Vec<Lock> = (0..MANY).map(|n| locker.mutex(format!("bench/{n}"))).collect();
            // Makes the table.
            locks[0].acquire().await.expect("free").release().await.expect("held");
            let hands = by_hand::connect(&server.url(""), MANY).await;
            let mut prepared = Vec::new();
            for hand in by_hand::connect(&server.url(""), MANY).await {
                prepared.push(Prepared::new(hand).await);
            }
            (locks, hands, prepared)
        });
        Self { runtime, locks, hands, prepared }
    }

    /// Cycles a second: two statements each, and two commits.
    fn turn(&self, (who, tasks): (Who, usize)) -> f64 {
        let begun = Instant::now();
        let count: u32 = self.runtime.block_on(async {
            let local = LocalSet::new();
            let tasks = (0..tasks).map(|at| async move {
                let mut count = 0;
                while begun.elapsed() < WINDOW {
                    match who {
                        Who::Tenure => {
                            let guard = self.locks[at].acquire().await.expect("free");
                            guard.release().await.expect("held");
                        }
                        Who::Hand => self.hands[at].cycle().await,
                        Who::Prepared => self.prepared[at].cycle().await,
                    }
                    count += 1;
                }
                count
            });
            local.run_until(futures_util::future::join_all(tasks)).await.into_iter().sum()
        });
        f64::from(count) / begun.elapsed().as_secs_f64()
    }
}

/// Where all places of a queue are.
const IN_THE_ROW: &str = "in the row";

fn start(connections: u32) -> PostgresServer {
    let recipe = Recipe::new().durable().config(&format!("max_connections = {connections}"));
    let server = recipe.config("shared_preload_libraries = 'pg_stat_statements'").start();
    server.psql("CREATE EXTENSION pg_stat_statements");
    server
}

impl Database for PostgresServer {
    fn url(&self, query: &str) -> String {
        self.url(query)
    }

    /// Transactions would not do: each connection that hears of a hint begins and ends one.
    fn statements(&self) -> u64 {
        self.psql("SELECT sum(calls) FROM pg_stat_statements").parse().expect("a number")
    }

    fn pid(&self) -> u32 {
        self.pid()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(("crowd", numbers)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        let numbers: Vec<_> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
        return crowd::measure(&numbers, &["4 in the row, others beside it", IN_THE_ROW], |place| {
            let server = start(2000);
            if place == IN_THE_ROW {
                // Names in the order of a language: no place has a row of its own.
                let table = "CREATE TABLE tenure_lock (name text PRIMARY KEY, version bigint NOT NULL, \
                             busy boolean NOT NULL, used timestamptz NOT NULL, state text NOT NULL) \
                             WITH (fillfactor = 50)";
                server.psql(&format!("SET ROLE tenure; DROP TABLE tenure_lock; {table}"));
            }
            server
        });
    }
    if words.iter().any(|word| word == "first-tries") {
        return ownership::first_tries::<Clerk>(&start(300));
    }
    let server = start(300);
    let bench = Bench::start(&server);
    for program in PROGRAMS {
        bench.turn(program);
    }
    let rounds = Rounds::measure(ROUNDS, PROGRAMS.len(), |which| bench.turn(PROGRAMS[which]));
    println!(
        "\nPostgreSQL {}, every commit on the disk, one connection.\n",
        server.psql("SHOW server_version")
    );
    println!("| | cycles/s | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|");
    for (at, (who, tasks)) in PROGRAMS.iter().enumerate() {
        let Spread { least, median, most } = rounds.spread(|round| round[at]);
        let who = match who {
            Who::Tenure => "tenure",
            Who::Hand => "by hand, the same two statements",
            Who::Prepared => "by hand, prepared under a name",
        };
        println!("| {who}, tasks: {tasks} | {median:.0} | {least:.0} to {most:.0} |");
    }
    for (what, a, b) in [
        ("tenure / by hand, one task (wanted: 0.7)", 0, 1),
        ("tenure / by hand, prepared, one task", 0, 2),
        ("tenure / by hand, 16 tasks (wanted: 0.7)", 3, 4),
        ("tenure / by hand, prepared, 16 tasks", 3, 5),
    ] {
        let Spread { least, median, most } = rounds.spread(|round| round[a] / round[b]);
        println!("| {what} | **{median:.2}** | {least:.2} to {most:.2} |");
    }
    drop(bench);
    waiting::measure(&server);
    ownership::measure::<Clerk>(&server);
}
