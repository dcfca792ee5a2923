//! `Course`: the connections and the names on which the bench runs, and how one part is run.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Host, Lock, LockName, Locker, Progress, ReleaseError, Timing, TokioHost};
use tokio::task::{JoinSet, yield_now};

use crate::{
    args::{Bench, Global},
    bench::{
        part::{Answer, HOLD, Part},
        tally::Tally,
    },
    exit::{Stop, UNAVAILABLE, chain},
    signals::Signals,
    store, text,
    waiting::{self, LEAVE_PATIENCE, Trouble, drained},
};

/// How long the store may fail without interruption before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The tasks of the part that runs. They stop when it is dropped.
pub(crate) type Tasks = JoinSet<Result<Tally, Stop>>;

/// Connections, and names that nobody else can know.
pub(crate) struct Course {
    lockers: Vec<Locker>,
    prefix: String,
    ttl: Duration,
    lasts: Duration,
    waiting: Progress,
    /// Where the store is, for people.
    place: String,
}

impl Course {
    /// One connection for each waiter. Nothing is taken yet.
    pub(crate) async fn new(global: &Global, args: &Bench) -> Result<Self, Stop> {
        let mut lockers = Vec::new();
        for _ in 0..args.waiters {
            lockers.push(store::connect(global).await?);
        }
        let mut bits = [0; 16];
        TokioHost.random(&mut bits);
        let prefix = format!("tenure-bench/{}-{:032x}", std::process::id(), u128::from_be_bytes(bits));
        let ttl = Timing::DEFAULT_TTL.min(lockers[0].promises().max_ttl);
        let (lasts, waiting, place) = (args.duration, Progress::new(), store::place(global));
        Ok(Self { lockers, prefix, ttl, lasts, waiting, place })
    }

    /// The kind of store.
    pub(crate) fn backend(&self) -> &'static str {
        self.lockers[0].promises().backend
    }

    fn name(&self, number: usize) -> String {
        format!("{}/{number}", self.prefix)
    }

    fn lock(&self, locker: usize, name: usize) -> Lock {
        self.lockers[locker].mutex(self.name(name)).ttl(self.ttl).patience(PATIENCE)
    }

    /// Uses every connection once, so that none is measured while it is made.
    pub(crate) async fn warm_up(&self) -> Result<(), Stop> {
        for number in 0..self.lockers.len() {
            take(&self.lock(number, number).progress(&self.waiting)).await?;
        }
        Ok(())
    }

    /// Why connecting takes so long: a server that has restarted may let nobody in for a while.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let end = format!("; given up if that lasts {}", text::seconds(PATIENCE));
        Some(Trouble::of(&self.waiting, &self.lockers[0], &self.place)?.until(&end))
    }

    /// Runs one part to its end; the first error ends it.
    pub(crate) async fn run(&self, part: Part, tasks: &mut Tasks) -> Result<Answer, Stop> {
        let began = now();
        let over = began + self.lasts;
        for number in 0..part.tasks() {
            match part {
                Part::RoundTrip => tasks.spawn(look(self.lockers[0].clone(), self.name(0), over)),
                Part::Cycle(_) => tasks.spawn(cycle(self.lock(0, number), over)),
                Part::Change(_) => tasks.spawn(share(self.lock(number, 0), Duration::ZERO, over)),
                Part::Hold(_) => tasks.spawn(share(self.lock(number, 0), HOLD, over)),
            };
        }
        let mut tallies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            tallies.push(done.expect("BUG: a task of the bench panicked")?);
        }
        Ok(Answer::new(part, began, &tallies))
    }

    /// Waits until everything that was stopped half way has been given back, but not for long. A signal ends it.
    pub(crate) async fn clear(&self, signals: &mut Signals) {
        let began = TokioHost.now();
        for locker in &self.lockers {
            let left = LEAVE_PATIENCE.saturating_sub(began.elapsed(TokioHost.now()));
            if !drained(locker, left, signals.asked_to_end()).await {
                return;
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is measured in real time, and a suspend is no part of it")]
fn now() -> Instant {
    Instant::now()
}

async fn look(locks: Locker, name: String, over: Instant) -> Result<Tally, Stop> {
    let name = LockName::new(&name).expect("BUG: the names of the bench are good");
    let mut tally = Tally::new(over);
    loop {
        let asked = now();
        locks.inspect(&name).await.map_err(|error| Stop::store(&error))?;
        tally.add(asked, now());
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

async fn cycle(lock: Lock, over: Instant) -> Result<Tally, Stop> {
    let mut tally = Tally::new(over);
    loop {
        let asked = now();
        take(&lock).await?;
        tally.add(asked, now());
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

/// Counts how long it waits for its turns.
async fn share(lock: Lock, hold: Duration, over: Instant) -> Result<Tally, Stop> {
    let mut tally = Tally::new(over);
    loop {
        let asked = now();
        let guard = lock.acquire().await.map_err(|error| not_acquired(&error))?;
        tally.add(asked, now());
        if hold.is_zero() {
            // Otherwise a store that answers without waiting would release it before another task could ask for it.
            yield_now().await;
        } else {
            waiting::pause(hold).await;
        }
        guard.release().await.map_err(|error| not_released(&error))?;
        if is_over(over).await {
            return Ok(tally);
        }
    }
}

/// Acquires and releases.
async fn take(lock: &Lock) -> Result<(), Stop> {
    let guard = lock.acquire().await.map_err(|error| not_acquired(&error))?;
    guard.release().await.map_err(|error| not_released(&error))
}

/// Lets the others run as well: some stores answer without ever waiting.
async fn is_over(over: Instant) -> bool {
    yield_now().await;
    now() >= over
}

fn not_acquired(error: &AcquireError) -> Stop {
    Stop::not_acquired(error, UNAVAILABLE, || chain(error))
}

fn not_released(error: &ReleaseError) -> Stop {
    match error {
        ReleaseError::Unknown(error) => Stop::store(error),
        error => Stop::new(UNAVAILABLE, chain(error)),
    }
}
