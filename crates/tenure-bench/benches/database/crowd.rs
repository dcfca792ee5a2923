//! Many processes that pass one lock on: with the queue in the row of the lock, and with places in rows
//! beside it.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tenure::{Guard, Lock, Locker};
use tenure_bench::jain;
use tokio::runtime::Builder;

use super::{Database, cpu};

/// How many turns each waiter has, on average.
const TURNS: usize = 8;
const NAME: &str = "crowd";
const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(120);

/// Prints a row for each number of processes and each place of the queue, which `start` names with each server. A
/// process is a `Locker` of its own, with its own connection and process id; all are tasks of this program.
pub(crate) fn measure<D: Database>(numbers: &[usize], places: &[&str], start: impl Fn(&str) -> D) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    println!(
        "| queue | processes | all wait after, s | holder's lease | hand-off, ms: median | 99 % | worst | statements per \
         hand-off | hand-offs | Jain | longest wait, s | errors | CPU of server, ms per hand-off |"
    );
    println!("|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for &number in numbers {
        for place in places {
            runtime.block_on(row(&start(place), number, place));
        }
    }
}

/// What all processes have seen.
#[derive(Default)]
struct Seen {
    released: Option<Instant>,
    hand_offs: Vec<Duration>,
    turns: Vec<u64>,
    longest: Duration,
    errors: Vec<String>,
}

async fn row<D: Database>(server: &D, number: usize, place: &str) {
    let url = server.url("?connect_timeout=60s");
    let connect = || async { tenure::connect(&url).await.expect("a URL") };
    let lockers: Vec<Locker> = join_all((0..number).map(|_| connect())).await;
    for some in lockers.chunks(16) {
        let warm = some.iter().enumerate().map(|(at, locker)| async move {
            let guard =
                locker.mutex(format!("warm/{at}")).within(PATIENCE).acquire().await.expect("soon free");
            guard.release().await.expect("held");
        });
        join_all(warm).await;
    }
    let other = connect().await;
    let held: Guard = other.mutex(NAME).ttl(TTL).acquire().await.expect("free");
    let (begun, seen) =
        (Instant::now(), Arc::new(Mutex::new(Seen { turns: vec![0; number], ..Seen::default() })));
    let most = number * TURNS;
    let tasks: Vec<_> = lockers
        .iter()
        .enumerate()
        .map(|(at, locker)| tokio::spawn(cycle(locker.mutex(NAME).ttl(TTL), at, most, seen.clone())))
        .collect();
    // A server that does not answer has not let all of them wait yet.
    while !other.inspect(NAME).await.is_ok_and(|view| view.queue.len() >= number) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if begun.elapsed() > PATIENCE / 2 {
            break;
        }
    }
    let all_wait = begun.elapsed();
    // The holder renews some times while others wait.
    tokio::time::sleep(TTL * 2).await;
    let (statements, cpu) = (server.statements(), cpu(server));
    seen.lock().expect("no panic").released = Some(Instant::now());
    let lease = held.release().await.map_or_else(|error| format!("**{error}**"), |()| "kept".to_owned());
    for task in tasks {
        task.await.expect("no panic");
    }
    let (statements, cpu) = (server.statements() - statements, self::cpu(server) - cpu);
    let mut seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    seen.hand_offs.sort();
    let count = seen.hand_offs.len();
    let ms = |at: usize| seen.hand_offs[at.min(count - 1)].as_secs_f64() * 1e3;
    println!(
        "| {place} | {number} | {:.1} | {lease} | {:.2} | {:.1} | {:.0} | {:.1} | {count} | {:.4} | {:.1} | {} | {:.1} |",
        all_wait.as_secs_f64(),
        ms(count / 2),
        ms(count * 99 / 100),
        ms(count),
        statements as f64 / count as f64,
        jain(&seen.turns),
        seen.longest.as_secs_f64(),
        seen.errors.len(),
        cpu * 1e3 / count as f64,
    );
    for error in seen.errors.iter().take(5) {
        eprintln!("{error}");
    }
}

/// Acquires and releases the lock until all together have had their turns.
async fn cycle(lock: Lock, at: usize, most: usize, seen: Arc<Mutex<Seen>>) {
    let see = || seen.lock().expect("no panic");
    while see().hand_offs.len() < most {
        let asked = Instant::now();
        let guard = match lock.clone().within(PATIENCE).acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                see().errors.push(error.to_string());
                continue;
            }
        };
        {
            let (mut seen, now) = (see(), Instant::now());
            let begun = seen.released.take().expect("it was released");
            seen.hand_offs.push(now - begun);
            seen.turns[at] += 1;
            seen.longest = seen.longest.max(now - asked);
            seen.released = Some(now);
        }
        if let Err(error) = guard.release().await {
            see().errors.push(format!("release: {error}"));
        }
    }
}
