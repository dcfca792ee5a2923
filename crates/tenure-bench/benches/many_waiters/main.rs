//! Many waiters for one lock, in processes of their own: whether its holder keeps its lease, and what becomes of each of them (L6).
//!
//! `cargo bench -p tenure-bench --features etcd --bench many_waiters [-- STORE… NUMBER…]`: needs PostgreSQL, MariaDB, Redis, ZooKeeper and etcd;
//! takes about fifteen minutes. The stores are `sqlite`, `redis`, `postgres`, `mysql`, `zookeeper` and `etcd`; the numbers 100, 500 and
//! 4096, of which up to 500 are as many processes, and more are tasks of 16 processes.

#![allow(clippy::disallowed_methods, reason = "a benchmark waits in real time")]

mod stores;
mod waiter;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use tenure::Guard;
use tokio::runtime::{Builder, Runtime};

use crate::{
    stores::{STORES, Server},
    waiter::{Report, TTL},
};

/// How long the first holder holds: some ttls, so that it must renew beside those who come and those who wait.
const HOLD: Duration = Duration::from_secs(20);
const NUMBERS: [usize; 3] = [100, 500, 4096];
/// More waiters are tasks of so many processes.
const PROCESSES_MAX: usize = 500;
const PROCESSES: usize = 16;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [role, url, name, count] = words.as_slice()
        && role == waiter::ROLE
    {
        return waiter::run(url, name, count.parse().expect("a number"));
    }
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let numbers = if numbers.is_empty() { NUMBERS.to_vec() } else { numbers };
    let is_wanted = |store: &&str| words.iter().any(|word| word == store);
    let named: Vec<&str> = STORES.iter().copied().filter(is_wanted).collect();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!(
        "| store | waiters | in processes | holder's lease | served | told full | other | longest wait, s | per change, ms | \
         requests per change | CPU of clients, s | CPU of server, s |"
    );
    println!("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for store in if named.is_empty() { STORES.to_vec() } else { named } {
        for number in &numbers {
            let server = Server::start(store);
            let others = measure(&runtime, store, &server, *number);
            for (what, count) in others {
                eprintln!("{store}, {number} waiters, {count} times: {what}");
            }
        }
    }
}

/// Prints a row, and answers what went wrong and how often.
fn measure(runtime: &Runtime, store: &str, server: &Server, number: usize) -> Vec<(String, usize)> {
    let processes = if number <= PROCESSES_MAX { number } else { PROCESSES };
    let url = server.url();
    let guard = runtime.block_on(async {
        let lock = tenure::connect(&url).await.expect("a URL").mutex(waiter::NAME).ttl(TTL);
        lock.acquire().await.expect("free")
    });
    let mut children: Vec<Child> = (0..processes)
        .map(|at| spawn(&url, number / processes + usize::from(at < number % processes)))
        .collect();
    // All of them begin at once.
    for child in &mut children {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    }
    let (cpu_before, begun) = ((cpu_of_us(), server.cpu()), Instant::now());
    for child in &mut children {
        child.stdin.take().expect("a pipe").write_all(b"go\n").expect("it listens");
    }
    let lost = runtime.block_on(keep(&guard));
    let (asked, released) = (server.requests(), Instant::now());
    let held = runtime.block_on(give_back(guard, lost));
    let reports: Vec<Report> = children.into_iter().map(Report::read).collect();
    let all = reports.into_iter().fold(Report::default(), Report::and);
    let requests = server.requests().zip(asked).map(|(after, before)| after - before);
    let (ours, theirs) = (cpu_of_us() - cpu_before.0, server.cpu() - cpu_before.1);
    // Between the first release and the last entry.
    let serving = begun.elapsed().min(all.last.saturating_sub(released - begun) + Duration::from_millis(1));
    let changes = all.served.max(1) as f64;
    println!(
        "| {store} | {number} | {processes} | {held} | {} | {} | {} | {:.1} | {:.2} | {} | {ours:.1} | {theirs:.1} |",
        all.served,
        all.full,
        all.others.iter().map(|(_, count)| count).sum::<usize>(),
        all.longest.as_secs_f64(),
        serving.as_secs_f64() * 1e3 / changes,
        requests.map_or_else(|| "–".into(), |requests| format!("{:.1}", requests / changes)),
    );
    all.others
}

/// Keeps the lock for a while; why it was lost, if it was.
async fn keep(guard: &Guard) -> Option<String> {
    let lost = tokio::time::timeout(HOLD, guard.lost()).await.ok()?;
    Some(format!("**lost**: {:?}", lost.cause()))
}

/// What became of the lease.
async fn give_back(guard: Guard, lost: Option<String>) -> String {
    if let Some(lost) = lost {
        return lost;
    }
    match guard.release().await {
        Ok(()) => "kept".into(),
        Err(error) => format!("kept, release: {error}"),
    }
}

fn spawn(url: &str, count: usize) -> Child {
    let us = std::env::current_exe().expect("a program");
    Command::new(us)
        .args([waiter::ROLE, url, waiter::NAME, &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was started before")
}

/// Seconds, of this process and of the children that have ended.
fn cpu_of_us() -> f64 {
    let of = |who| {
        let usage = getrusage(who).expect("a running process has one");
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}
