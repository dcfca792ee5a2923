//! Tenure on ZooKeeper, next to the recipe of its manual written directly against the driver.
//!
//! `cargo bench -p tenure-bench --bench zookeeper`: needs ZooKeeper (Java) and two cores; takes about 40 s. The words `cycles`
//! and `handoff` after `--` choose parts of it.

mod crowd;
mod recipe;
mod server;

use std::time::Duration;

use tenure::{
    Lock,
    backend::{Host, TokioHost},
};
use tenure_bench::Rounds;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{crowd::Crowd, recipe::Recipe, server::Server};

const BY_HAND: usize = 0;
const TENURE: usize = 1;
const ROUNDS: usize = 11;
/// Cycles of one round, of all tasks together.
const CYCLES: usize = 600;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|word| word == part);
    let server = Server::start();
    println!("| | by hand | tenure | quotient | wanted | quotient of each round |");
    println!("|---|--:|--:|--:|--:|--:|");
    if wants("cycles") {
        for tasks in [1, 16] {
            cycles(&server, tasks);
        }
    }
    if wants("handoff") {
        for waiters in [2, 16] {
            hand_off(&server, waiters);
        }
    }
    println!("\n{}, one server, fsync as it is by default, leases of 10 s.", server.version());
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Uncontended cycles of acquire and release, each task with a lock of its own, over one session.
fn cycles(server: &Server, tasks: usize) {
    let runtime = runtime();
    let by_hand = runtime.block_on(recipes(server, tasks));
    let locks = runtime.block_on(locks(server, tasks));
    let turn = |which: usize| {
        let each = CYCLES / tasks;
        let begun = TokioHost.now();
        runtime.block_on(async {
            let mut running = JoinSet::new();
            for task in 0..tasks {
                match which {
                    BY_HAND => running.spawn(by_hand_cycles(by_hand[task].clone(), each)),
                    _ => running.spawn(tenure_cycles(locks[task].clone(), each)),
                };
            }
            while let Some(done) = running.join_next().await {
                done.expect("no task panics");
            }
        });
        (each * tasks) as f64 / begun.elapsed(TokioHost.now()).as_secs_f64()
    };
    turn(BY_HAND);
    turn(TENURE);
    let rounds = Rounds::measure(ROUNDS, 2, turn);
    let of = |which: usize| rounds.spread(|round| round[which]).median;
    let quotient = rounds.spread(|round| round[TENURE] / round[BY_HAND]);
    println!(
        "| acquire + release, {tasks} tasks, cycles/s | {:.0} | {:.0} | **{:.2}** | ≥ 0.9 | {:.2} to {:.2} |",
        of(BY_HAND),
        of(TENURE),
        quotient.median,
        quotient.least,
        quotient.most
    );
}

async fn recipes(server: &Server, tasks: usize) -> Vec<Recipe> {
    let client = server.client().await;
    let mut recipes = Vec::new();
    for task in 0..tasks {
        recipes.push(Recipe::new(client.clone(), &format!("/hand-{task}")).await);
    }
    recipes
}

async fn locks(server: &Server, tasks: usize) -> Vec<Lock> {
    let locks = tenure::connect(&server.url()).await.expect("a URL");
    (0..tasks).map(|task| locks.mutex(format!("tenure-{task}"))).collect()
}

async fn by_hand_cycles(recipe: Recipe, count: usize) {
    for _ in 0..count {
        let node = recipe.acquire().await;
        recipe.release(&node).await;
    }
}

async fn tenure_cycles(lock: Lock, count: usize) {
    for _ in 0..count {
        let guard = lock.acquire().await.expect("no contention");
        guard.release().await.expect("held");
    }
}

/// Changes of owner with no hold time, each waiter as a process of its own.
fn hand_off(server: &Server, waiters: usize) {
    let runtime = runtime();
    let mut crowds =
        [BY_HAND, TENURE].map(|which| Crowd::connect(&runtime, server, which == TENURE, waiters));
    for crowd in &mut crowds {
        crowd.watch(WINDOW);
    }
    let rounds = Rounds::measure(5, 2, |which| crowds[which].watch(WINDOW));
    let of = |which: usize| rounds.spread(|round| round[which].micros).median;
    let quotient = rounds.spread(|round| round[TENURE].micros / round[BY_HAND].micros);
    println!(
        "| change of owner, {waiters} waiters, µs | {:.0} | {:.0} | **{:.2}** | | {:.2} to {:.2} |",
        of(BY_HAND),
        of(TENURE),
        quotient.median,
        quotient.least,
        quotient.most
    );
    let requests = |which: usize| rounds.spread(|round| round[which].requests).median;
    println!("| · requests per change | {:.2} | {:.2} | | | |", requests(BY_HAND), requests(TENURE));
}

const WINDOW: Duration = Duration::from_millis(1500);
