//! `Work`: what each task does, again and again.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tenure::{AcquireError, Guard, Lock, Locker, backend::Sharing};
use tokio::time::{sleep, timeout};

use crate::witness::{Found, mark};

const TTL: Duration = Duration::from_secs(2);
const MUTEXES: u64 = 4;
const NAMES: u64 = 8;

/// The locks of one process, and what became of them. Clones share it.
#[derive(Clone)]
pub(crate) struct Work {
    locks: Locker,
    folder: Arc<Path>,
    pub(crate) counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
}

/// What was done.
#[derive(Default)]
pub(crate) struct Counts {
    held: AtomicU64,
    cancelled: AtomicU64,
    timed_out: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
    overstayed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Counts {
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().expect("no task panics").clone()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [held, cancelled, timed_out] = [&self.held, &self.cancelled, &self.timed_out].map(of);
        let [failed, lost, overstayed] = [&self.failed, &self.lost, &self.overstayed].map(of);
        write!(
            f,
            "held {held}, cancelled {cancelled}, timed out {timed_out}, failed {failed}, lost {lost}, "
        )?;
        write!(f, "overstayed {overstayed}, wrong {}", self.wrong().len())
    }
}

/// A seeded sequence.
pub(crate) struct Chance(u64);

impl Chance {
    /// From the time of day: no two tasks do the same.
    pub(crate) fn new() -> Self {
        let mut bytes = [0; 8];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").expect("Linux"), &mut bytes)
            .expect("it never ends");
        Self(u64::from_le_bytes(bytes) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub(crate) fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

impl Work {
    pub(crate) fn new(locks: Locker, folder: PathBuf) -> Self {
        Self { locks, folder: folder.into(), counts: Arc::default(), stop: Arc::default() }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn run(self) {
        let mut chance = Chance::new();
        while !self.stop.load(Ordering::Relaxed) {
            let number = chance.below(NAMES);
            let lock = self.lock(number, &mut chance);
            self.once(&lock, number < MUTEXES, &mut chance).await;
            sleep(chance.millis(150)).await;
        }
    }

    fn lock(&self, number: u64, chance: &mut Chance) -> Lock {
        let name = format!("soak-{number}");
        let is_counted = self.locks.promises().sharing == Sharing::Counted;
        let lock = match number {
            0 => self.locks.mutex(name).keep_idle(chance.millis(100) + Duration::from_millis(1)),
            1 => self.locks.mutex(name).fifo(),
            number if number < MUTEXES || !is_counted => self.locks.mutex(name),
            number if number < 6 => {
                let both = self.locks.rwlock(name);
                if chance.below(4) == 0 { both.write() } else { both.read() }
            }
            _ => self.locks.semaphore(name, 3),
        };
        lock.ttl(TTL)
    }

    /// Acquires a lock in one of the ways there are, and lets it go in one of the ways there are.
    async fn once(&self, lock: &Lock, is_mutex: bool, chance: &mut Chance) {
        let way = chance.below(10);
        let acquired = match way {
            0..2 => match timeout(chance.millis(20), lock.acquire()).await {
                Ok(acquired) => acquired.map(Some),
                Err(_) => return count(&self.counts.cancelled),
            },
            2 => lock.try_acquire().await,
            _ => lock.clone().within(Duration::from_secs(5)).acquire().await.map(Some),
        };
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) | Err(AcquireError::TimedOut { .. }) => return count(&self.counts.timed_out),
            Err(_) => return count(&self.counts.failed),
        };
        count(&self.counts.held);
        let mark = if is_mutex { self.mark(&guard) } else { None };
        sleep(chance.millis(6)).await;
        if guard.check().is_err() {
            count(&self.counts.lost);
        }
        drop(mark);
        match chance.below(4) {
            0 => drop(guard),
            1 => drop(timeout(chance.millis(3), guard.release()).await),
            _ => drop(guard.release().await),
        }
    }

    /// Nothing if the lease ends before it can be marked.
    fn mark(&self, guard: &Guard) -> Option<crate::witness::Mark> {
        guard.check().ok()?;
        match mark(&self.folder, guard) {
            Found::Alone(mark) => return Some(mark),
            Found::Overstays => count(&self.counts.overstayed),
            Found::Wrong(what) => {
                println!("WRONG: {what}");
                self.counts.wrong.lock().expect("no task panics").push(what);
            }
        }
        None
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
