//! MariaDB: cycles of Tenure next to as many statements by hand, hand-offs, and what waiting costs. Every commit is
//! on the disk.
//!
//! `cargo bench -p tenure-bench --bench mysql`: needs MariaDB; takes about a minute. `… -- crowd 2 16 128 600`
//! measures many processes that pass one lock on, which takes some minutes; `… -- first-tries` transactions that rely on the
//! owner, beside waiters.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

mod by_hand;
#[path = "../database/mod.rs"]
mod database;
mod program;

use std::time::{Duration, Instant};

use tenure::Lock;
use tenure_bench::{Rounds, Spread};
use tenure_testkit::mysql::{MysqlServer, Recipe};
use tokio::runtime::{Builder, Runtime};

use crate::{
    by_hand::ByHand,
    database::{Database, crowd, ownership, waiting},
    program::Clerk,
};

const ROUNDS: usize = 11;
/// How long one program runs in one round.
const WINDOW: Duration = Duration::from_millis(500);

struct Bench {
    runtime: Runtime,
    lock: Lock,
    hand: ByHand,
}

impl Bench {
    fn start(server: &MysqlServer) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (lock, hand) = runtime.block_on(async {
            let lock = tenure::connect(&server.url("")).await.expect("a URL").mutex("bench");
            // Makes the table.
            lock.acquire().await.expect("free").release().await.expect("held");
            (lock, ByHand::connect(&server.url("")).await)
        });
        Self { runtime, lock, hand }
    }

    /// Cycles a second: two statements each, and two commits.
    fn turn(&mut self, which: usize) -> f64 {
        let (begun, mut count) = (Instant::now(), 0);
        self.runtime.block_on(async {
            while begun.elapsed() < WINDOW {
                if which == 0 {
                    self.lock.acquire().await.expect("free").release().await.expect("held");
                } else {
                    self.hand.cycle().await;
                }
                count += 1;
            }
        });
        f64::from(count) / begun.elapsed().as_secs_f64()
    }
}

fn start() -> MysqlServer {
    Recipe::new().durable().set("max-connections=2000").set("open-files-limit=10000").start()
}

impl Database for MysqlServer {
    fn url(&self, query: &str) -> String {
        self.url(query)
    }

    fn statements(&self) -> u64 {
        let answer = self.sql("SHOW GLOBAL STATUS LIKE 'Questions'");
        answer.split_whitespace().last().and_then(|count| count.parse().ok()).expect("a number")
    }

    fn pid(&self) -> u32 {
        self.pid()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(("crowd", numbers)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        let numbers: Vec<_> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
        return crowd::measure(&numbers, &["4 in the row, others beside it"], |_| start());
    }
    if words.iter().any(|word| word == "first-tries") {
        return ownership::first_tries::<Clerk>(&start());
    }
    let server = start();
    let mut bench = Bench::start(&server);
    bench.turn(0);
    bench.turn(1);
    let rounds = Rounds::measure(ROUNDS, 2, |which| bench.turn(which));
    println!("\nMariaDB {}, every commit on the disk, one connection.\n", server.sql("SELECT VERSION()"));
    println!("| | cycles/s | spread of {ROUNDS} rounds |");
    println!("|---|--:|--:|");
    for (at, who) in ["tenure", "by hand, the same two statements"].into_iter().enumerate() {
        let Spread { least, median, most } = rounds.spread(|round| round[at]);
        println!("| {who} | {median:.0} | {least:.0} to {most:.0} |");
    }
    let Spread { least, median, most } = rounds.spread(|round| round[0] / round[1]);
    println!("| tenure / by hand (wanted: 0.7) | **{median:.2}** | {least:.2} to {most:.2} |");
    drop(bench);
    waiting::measure(&server);
    ownership::measure::<Clerk>(&server);
}
