//! What waiting and changes of owner cost the server.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{runtime::Builder, task::LocalSet};

use super::{Database, cpu};

const CHANGES_FOR: Duration = Duration::from_secs(3);
const IDLE_FOR: Duration = Duration::from_secs(8);

/// Prints the rows.
pub(crate) fn measure(server: &impl Database) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("\n| waiting | |");
    println!("|---|--:|");
    for processes in [2, 16] {
        let local = LocalSet::new();
        let seen = runtime.block_on(local.run_until(changes(server, processes)));
        let (ms, statements) = (seen.gap.as_secs_f64() * 1e3, seen.statements);
        println!("| change of owner, {processes} processes, median | {ms:.2} ms |");
        println!("| statements per change, {processes} processes | {statements:.1} |");
        println!("| changes a second, {processes} processes | {:.0} |", seen.per_second);
        println!("| CPU of the server per change, {processes} processes | {:.2} ms |", seen.cpu * 1e3);
    }
    println!("| statements a second of 100 idle waiters | {:.0} |", runtime.block_on(idle(server)));
}

struct Changes {
    /// From the beginning of a release to the next owner's entry.
    gap: Duration,
    statements: f64,
    per_second: f64,
    /// Seconds of the server's processor.
    cpu: f64,
}

/// Processes take one lock in turns, each as soon as it can.
async fn changes(server: &impl Database, processes: usize) -> Changes {
    let released = Rc::new(Cell::new(None::<Instant>));
    let gaps = Rc::new(Cell::new(Vec::new()));
    let name = format!("changes/{processes}");
    let (before, cpu_before) = (server.statements(), cpu(server));
    let begun = Instant::now();
    let tasks = (0..processes).map(|_| {
        let (released, gaps, name, url) = (released.clone(), gaps.clone(), name.clone(), server.url(""));
        tokio::task::spawn_local(async move {
            let lock = tenure::connect(&url).await.expect("a URL").mutex(name);
            while begun.elapsed() < CHANGES_FOR {
                let guard = lock.acquire().await.expect("in turn");
                if let Some(released) = released.get() {
                    let mut known = gaps.take();
                    known.push(released.elapsed());
                    gaps.set(known);
                }
                released.set(Some(Instant::now()));
                guard.release().await.expect("held");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    let took = begun.elapsed();
    let (statements, cpu) = (server.statements() - before, cpu(server) - cpu_before);
    let mut gaps = gaps.take();
    gaps.sort();
    let count = gaps.len() as f64;
    Changes {
        gap: gaps[gaps.len() / 2],
        statements: statements as f64 / count,
        per_second: count / took.as_secs_f64(),
        cpu: cpu / count,
    }
}

async fn idle(server: &impl Database) -> f64 {
    let locker = tenure::connect(&server.url("")).await.expect("a URL");
    let held = locker.mutex("idle").acquire().await.expect("free");
    let mut waiters = Vec::new();
    for _ in 0..100 {
        let lock = tenure::connect(&server.url("")).await.expect("a URL").mutex("idle");
        waiters.push(tokio::spawn(async move { drop(lock.acquire().await) }));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, begun) = (server.statements(), Instant::now());
    tokio::time::sleep(IDLE_FOR).await;
    let statements = server.statements() - before;
    let per_second = statements as f64 / begun.elapsed().as_secs_f64();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await.expect("held");
    per_second
}
