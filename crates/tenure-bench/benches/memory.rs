//! 64 tasks on one lock in memory: hand-offs per second.
//!
//! `cargo bench -p tenure-bench --bench memory`

use std::{cell::RefCell, rc::Rc, time::Duration};

use tenure::backend::{Host, TokioHost};
use tenure_bench::jain;
use tokio::task::LocalSet;

const TASKS: usize = 64;
const ROUNDS: u32 = 9;
const LENGTH: Duration = Duration::from_secs(1);

/// How often each task held the lock within a second.
fn round() -> Vec<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let counts = Rc::new(RefCell::new(vec![0u64; TASKS]));
    LocalSet::new().block_on(&runtime, async {
        let locks = tenure::connect("memory:").await.expect("a URL");
        let end = TokioHost.now() + LENGTH;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (lock, counts) = (locks.mutex("bench"), counts.clone());
                tokio::task::spawn_local(async move {
                    while !end.is_over(TokioHost.now()) {
                        let guard = lock.acquire().await.expect("memory does not fail");
                        counts.borrow_mut()[task] += 1;
                        // The others get to ask meanwhile, so that every release is a hand-off.
                        tokio::task::yield_now().await;
                        guard.release().await.expect("held");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    counts.take()
}

fn main() {
    let mut rounds: Vec<Vec<u64>> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by_key(|counts| counts.iter().sum::<u64>());
    let per_second = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / LENGTH.as_secs_f64();
    let middle = &rounds[rounds.len() / 2];
    let (least, most) = (per_second(&rounds[0]), per_second(&rounds[rounds.len() - 1]));
    println!(
        "\n| 64 tasks, one lock, no hold time | hand-offs/s | µs each | Jain | spread of {ROUNDS} rounds |"
    );
    println!("|---|--:|--:|--:|--:|");
    println!(
        "| memory, one thread | **{:.0}** | {:.1} | {:.4} | {least:.0} to {most:.0} |",
        per_second(middle),
        1e6 / per_second(middle),
        jain(middle),
    );
}
