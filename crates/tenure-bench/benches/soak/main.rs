//! A soak: many tasks and processes on one store for a long time, with connections cut, futures dropped and processes killed.
//!
//! `cargo bench -p tenure-bench --bench soak [-- MINUTES STORE…]`: 60 minutes by default, on `redis`, `postgres` and `sqlite` at the
//! same time, each in a process of its own. It fails if two clients hold one lock, if a token does not grow, or if memory,
//! descriptors or what is kept of leases, waiters and requests has grown when all have gone.

#![allow(clippy::disallowed_methods, reason = "a soak runs in real time")]

mod server;
mod witness;
mod work;

use std::{
    process::{Child, Command, ExitCode},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::{Duration, Instant},
};

use tenure::Locker;
use tokio::{runtime::Builder, task::JoinSet, time::sleep};

use crate::{
    server::Server,
    work::{Chance, Counts, Work},
};

const STORES: [&str; 3] = ["redis", "postgres", "sqlite"];
/// The word before a URL that makes this program a worker.
const WORKER: &str = "worker";
const TASKS: usize = 24;
const TASKS_OF_A_WORKER: usize = 4;
const WORKERS: usize = 2;
/// Between two faults, and between two kills.
const FAULTS: Duration = Duration::from_secs(7);
const KILLS: Duration = Duration::from_secs(5);
const SAMPLES: Duration = Duration::from_secs(30);
/// When all have stopped: longer than every ttl.
const REST: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [role, url, folder] = words.as_slice()
        && role == WORKER
    {
        runtime().block_on(work(url, folder));
        return ExitCode::SUCCESS;
    }
    let minutes = words.iter().find_map(|word| word.parse::<f64>().ok()).unwrap_or(60.0);
    let named: Vec<&str> =
        STORES.into_iter().filter(|store| words.iter().any(|word| word == store)).collect();
    match named.as_slice() {
        [store] => runtime().block_on(soak(store, Duration::from_secs_f64(minutes * 60.0))),
        _ => {
            let stores = if named.is_empty() { STORES.to_vec() } else { named };
            let spawn =
                |store: &&str| program().args([&minutes.to_string(), *store]).spawn().expect("it runs");
            let children: Vec<Child> = stores.iter().map(spawn).collect();
            let ended = children.into_iter().map(|mut child| child.wait().expect("our child").success());
            let failed = ended.filter(|is_good| !is_good).count();
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn program() -> Command {
    Command::new(std::env::current_exe().expect("a program"))
}

/// What a worker process does until it is killed.
async fn work(url: &str, folder: &str) {
    let locks = tenure::connect(url).await.expect("a URL");
    let work = Work::new(locks, folder.into());
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS_OF_A_WORKER {
        tasks.spawn(work.clone().run());
    }
    tasks.join_all().await;
}

async fn soak(store: &'static str, time: Duration) -> ExitCode {
    let folder = tempfile::tempdir().expect("a folder");
    let marks = folder.path().join("marks");
    std::fs::create_dir(&marks).expect("a folder");
    let server = Arc::new(Server::start(store, folder.path()));
    let locks = tenure::connect(&server.url()).await.expect("a URL");
    let work = Work::new(locks.clone(), marks.clone());
    let (begun, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(work.clone().run());
    }
    let faults = tokio::spawn(server.clone().faults(stop.clone(), FAULTS));
    let url = server.url();
    let kills = tokio::task::spawn_blocking({
        let (stop, marks) = (stop.clone(), marks.display().to_string());
        move || kill_workers(&url, &marks, &stop)
    });
    let mut samples = Vec::new();
    println!("{store}: {}", Sample::HEAD);
    while begun.elapsed() < time {
        sleep(SAMPLES.min(time)).await;
        let sample = Sample::take(&server);
        println!("{store}: {}", sample.line(begun.elapsed(), &work.counts, &locks));
        samples.push(sample);
    }
    stop.store(true, Ordering::Relaxed);
    work.stop();
    tasks.join_all().await;
    faults.await.expect("no fault panics");
    kills.await.expect("no kill panics");
    server.heal();
    let is_drained = locks.flush(REST).await;
    sleep(REST).await;
    let sample = Sample::take(&server);
    println!("{store}: at rest: {}", sample.line(begun.elapsed(), &work.counts, &locks));
    let mut wrong = work.counts.wrong();
    if !is_drained {
        wrong.push("not everything was released".to_owned());
    }
    match locks.list("").await {
        Ok(left) if left.is_empty() => {}
        Ok(left) => wrong.push(format!("{} locks are held or waited for by no process", left.len())),
        Err(error) => wrong.push(format!("the list failed: {error}")),
    }
    let kept = format!("{locks:?}");
    if kept.split(": ").skip(1).any(|value| value.starts_with(|first: char| ('1'..='9').contains(&first))) {
        wrong.push(format!("kept when all have gone: {kept}"));
    }
    wrong.extend(growth(&samples, &sample));
    for line in &wrong {
        println!("{store}: WRONG: {line}");
    }
    println!("{store}: {}", if wrong.is_empty() { "PASS" } else { "FAIL" });
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts workers, and kills one after the other with SIGKILL.
fn kill_workers(url: &str, folder: &str, stop: &AtomicBool) {
    let start = || program().args([WORKER, url, folder]).spawn().expect("it runs");
    let mut workers: Vec<Child> = (0..WORKERS).map(|_| start()).collect();
    for turn in 0.. {
        let begun = Instant::now();
        while begun.elapsed() < KILLS && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let worker = &mut workers[turn % WORKERS];
        worker.kill().expect("our child");
        worker.wait().expect("our child");
        if stop.load(Ordering::Relaxed) {
            break;
        }
        *worker = start();
    }
    for mut worker in workers {
        // OK to ignore: one of them has ended already.
        let _ = worker.kill();
        let _ = worker.wait();
    }
}

/// What this process and the server have at one moment.
#[derive(Clone, Copy)]
struct Sample {
    /// Resident, in KiB.
    memory: u64,
    descriptors: usize,
    threads: u64,
    /// Of all clients at the server.
    connections: Option<u64>,
}

impl Sample {
    const HEAD: &str =
        "minutes, KiB, descriptors, threads, connections at the server; what was done; what is kept";

    fn take(server: &Server) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of it");
            line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
        };
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
        let (memory, threads) = (field("VmRSS:"), field("Threads:"));
        Self { memory, descriptors, threads, connections: server.connections() }
    }

    fn line(&self, elapsed: Duration, counts: &Counts, locks: &Locker) -> String {
        let Self { memory, descriptors, threads, connections } = self;
        let minutes = elapsed.as_secs_f64() / 60.0;
        let connections = connections.map_or_else(|| "–".to_owned(), |count| count.to_string());
        format!("{minutes:.1}, {memory}, {descriptors}, {threads}, {connections}; {counts}; {locks:?}")
    }
}

/// What grew from the second quarter to the last one, or is more at rest than it was at work.
fn growth(samples: &[Sample], rest: &Sample) -> Vec<String> {
    type Measure = fn(&Sample) -> u64;
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    if early.is_empty() {
        return Vec::new();
    }
    let median = |samples: &[Sample], of: Measure| {
        let mut values: Vec<u64> = samples.iter().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let mut wrong = Vec::new();
    let measures: [(&str, Measure, u64); 3] = [
        ("memory, KiB", |sample| sample.memory, 2048),
        ("descriptors", |sample| sample.descriptors as u64, 4),
        ("connections at the server", |sample| sample.connections.unwrap_or(0), 4),
    ];
    for (what, of, slack) in measures {
        let (before, after) = (median(early, of), median(late, of));
        if after > before + before / 10 + slack {
            wrong.push(format!("{what}: {before} in the second quarter, {after} in the last one"));
        }
        if of(rest) > before + before / 10 + slack {
            wrong.push(format!("{what}: {before} in the second quarter, {} at rest", of(rest)));
        }
    }
    wrong
}
