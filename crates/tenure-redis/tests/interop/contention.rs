//! Three of theirs and three of ours want one lock, and a referee counts the holders. Theirs come back immediately, or after
//! 30 ms; no process notifies ours when theirs release. This is the short form of `cargo xtask ring`, in every run of the tests.
//!
//! The referee is a counter in Redis beside the lock. A holder adds 1 to it over another connection and must read 1, and before the
//! release subtracts 1 and must read 0.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{AsyncCommands, aio::MultiplexedConnection};
use tenure::Locker;
use tenure_testkit::{patience::slowness, redis::RedisServer};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    client::{Library, manager},
    program::{Language, NODE, PYTHON, Program},
    stage::{NAME, Stage, connect},
};

/// For so long they contend in one round.
const ROUND: Duration = Duration::from_secs(5);
/// On a busy machine a round may be over before a side was inside often enough.
const ROUNDS: u32 = 6;
/// Of each side.
const CONTENDERS: usize = 3;
/// So many entries of each side, or it was no contention.
const ENOUGH: u64 = 10;
/// How long theirs pause between two turns.
const PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(30)];
/// Where the referee counts.
const INSIDE: &str = "interop:inside";

/// What one contender or one side has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    entries: u64,
    violations: u64,
    /// The longest time until it was inside again.
    longest: Duration,
}

/// L1, L6, with strangers: never two holders, and both sides get in. Beside a client that came back immediately ours entered 0 to 9
/// times in ten seconds, and theirs 600 to 1000 times.
pub(crate) fn there_are_never_two_holders(library: Library) {
    for pause in PAUSES {
        contend(library, pause);
    }
}

fn contend(library: Library, pause: Duration) {
    let stage = Stage::new();
    let (mut theirs, mut ours, began) = (Tally::default(), Tally::default(), Instant::now());
    for _ in 0..ROUNDS * slowness() {
        let round = match library {
            Library::RedisPy => against_programs(&stage, &PYTHON, pause),
            Library::Redlock => against_programs(&stage, &NODE, pause),
            Library::Rslock => against_rslock(&stage, pause),
        };
        (theirs, ours) = (sum(vec![theirs, round.0]), sum(vec![ours, round.1]));
        if theirs.entries >= ENOUGH && ours.entries >= ENOUGH {
            break;
        }
    }
    let requests = stage.scripts_run() as f64 / began.elapsed().as_secs_f64();
    println!(
        "{library:?}, pause {pause:?}: theirs {theirs:?}, ours {ours:?}, {requests:.0} scripts a second"
    );
    assert_eq!(theirs.violations + ours.violations, 0, "theirs {theirs:?}, ours {ours:?}");
    assert!(theirs.entries >= ENOUGH && ours.entries >= ENOUGH, "theirs {theirs:?}, ours {ours:?}");
    assert_eq!(stage.value(), None, "in the end nobody holds");
    assert!(stage.view().queue.is_empty());
}

/// What theirs and ours have seen.
fn against_programs(stage: &Stage, language: &Language, pause: Duration) -> (Tally, Tally) {
    let mut theirs: Vec<_> = (0..CONTENDERS).map(|_| Program::start(language, stage.server.port())).collect();
    // All of them run by now.
    let ours = start_ours(stage);
    for program in &mut theirs {
        program.tell(&format!("contend {NAME} {} {INSIDE} {}", ROUND.as_millis(), pause.as_millis()));
    }
    let ours = tally(stage, ours);
    let said = theirs.iter().map(|program| {
        let answer = program.answer(ROUND);
        let (entries, violations) = answer.split_once(' ').expect("two numbers");
        Tally {
            entries: entries.parse().unwrap(),
            violations: violations.parse().unwrap(),
            ..Tally::default()
        }
    });
    (sum(said.collect()), ours)
}

fn against_rslock(stage: &Stage, pause: Duration) -> (Tally, Tally) {
    let ours = start_ours(stage);
    let url = stage.server.url("");
    let play = |_| stage.runtime.spawn(rslock_contends(url.clone(), referee(&stage.server), pause));
    let theirs: Vec<_> = (0..CONTENDERS).map(play).collect();
    let ours = tally(stage, ours);
    (tally(stage, theirs), ours)
}

/// Each with a connection of its own.
fn start_ours(stage: &Stage) -> Vec<JoinHandle<Tally>> {
    let newest = Arc::new(AtomicU64::new(0));
    let start = |_| {
        let locks = stage.wait(connect(&stage.server, ""));
        stage.runtime.spawn(tenure_contends(locks, referee(&stage.server), newest.clone()))
    };
    (0..CONTENDERS).map(start).collect()
}

fn tally(stage: &Stage, contenders: Vec<JoinHandle<Tally>>) -> Tally {
    sum(contenders.into_iter().map(|contender| stage.wait(contender).unwrap()).collect())
}

fn sum(tallies: Vec<Tally>) -> Tally {
    tallies.into_iter().fold(Tally::default(), |all, one| Tally {
        entries: all.entries + one.entries,
        violations: all.violations + one.violations,
        longest: all.longest.max(one.longest),
    })
}

async fn tenure_contends(locks: Locker, referee: redis::Client, newest: Arc<AtomicU64>) -> Tally {
    let mut referee = referee.get_multiplexed_async_connection().await.unwrap();
    let (lock, mut tally, started) = (locks.mutex(NAME), Tally::default(), Instant::now());
    while started.elapsed() < ROUND {
        let wanted = Instant::now();
        let guard = lock.acquire().await.unwrap();
        tally.longest = tally.longest.max(wanted.elapsed());
        // L2: also with strangers in between, every token is larger than all before.
        let token = guard.token().get();
        assert!(newest.fetch_max(token, Ordering::SeqCst) < token);
        let entered = Instant::now();
        tally.visit(&mut referee).await;
        guard.release().await.unwrap();
        sleep(work(tally.entries, entered.elapsed())).await;
    }
    tally
}

async fn rslock_contends(url: String, referee: redis::Client, pause: Duration) -> Tally {
    let mut referee = referee.get_multiplexed_async_connection().await.unwrap();
    let (manager, mut tally, started) = (manager(&url), Tally::default(), Instant::now());
    while started.elapsed() < ROUND {
        let Ok(lock) = manager.lock(NAME, Duration::from_secs(30)).await else {
            sleep(Duration::from_millis(2)).await;
            continue;
        };
        tally.visit(&mut referee).await;
        assert!(!manager.is_freed(&lock).await.unwrap(), "nobody took what it holds");
        manager.unlock(&lock).await;
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    tally
}

impl Tally {
    /// Holds the lock for 1 to 5 ms. The referee counts the holders.
    async fn visit(&mut self, referee: &mut MultiplexedConnection) {
        let inside: i64 = referee.incr(INSIDE, 1).await.unwrap();
        sleep(Duration::from_millis(1 + self.entries % 5)).await;
        let left: i64 = referee.decr(INSIDE, 1).await.unwrap();
        self.violations += u64::from(inside != 1) + u64::from(left != 0);
        self.entries += 1;
    }
}

/// Work of its own, up to five times as long as it was inside. Without it our queue would never be empty, and theirs would not get in:
/// a release of ours hands on to our next waiter. Of a fixed length it was too short on a slow machine, where theirs entered less than
/// ten times in half a minute.
fn work(entries: u64, inside: Duration) -> Duration {
    let quarters = u32::try_from(entries * 7 % 21).unwrap_or_default();
    inside * quarters / 4
}

fn referee(server: &RedisServer) -> redis::Client {
    redis::Client::open(server.url("")).unwrap()
}
