//! Changes of owner with no hold time: many waiters for one lock, each as a process of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tenure::{
    Lock,
    backend::{Host, Moment, TokioHost},
};
use tenure_bench::jain;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    by_hand::{List, Turns},
    meter::{Cost, Meter},
    server::Server,
};

pub(crate) const TURNS: usize = 0;
pub(crate) const TENURE: usize = 1;
pub(crate) const LIST: usize = 2;

/// How often each waiter is served before they are watched: all have a place by then, and their keepers a connection.
const RUN_UP: u64 = 3;

/// A machine that is busy with others may stand still for as long.
const STALL: Duration = Duration::from_secs(10);

/// Who waits, in one of three ways.
enum Waiter {
    Turns(Box<Turns>),
    Tenure(Box<Lock>),
    List(Box<List>),
}

/// What the waiters write down.
struct Tally {
    stop: AtomicBool,
    last: AtomicUsize,
    changes: AtomicU64,
    each: Vec<AtomicU64>,
    longest_us: AtomicU64,
}

/// What was seen of the waiters.
pub(crate) struct Seen {
    pub(crate) cost: Cost,
    pub(crate) changes: u64,
    pub(crate) jain: f64,
    pub(crate) longest: Duration,
    /// Locks that were handed on and not entered in time: a hint was lost, or the machine stood still.
    pub(crate) expired: u64,
    /// Per change.
    pub(crate) commands: f64,
    pub(crate) list: String,
}

impl Tally {
    fn new(waiters: usize) -> Self {
        let each = (0..waiters).map(|_| AtomicU64::new(0)).collect();
        let [changes, longest_us] = [0, 0].map(AtomicU64::new);
        Self { stop: AtomicBool::new(false), last: AtomicUsize::new(usize::MAX), changes, each, longest_us }
    }

    fn granted(&self, who: usize, since: Moment) {
        let waited = since.elapsed(TokioHost.now());
        self.longest_us.fetch_max(waited.as_micros() as u64, Ordering::Relaxed);
        self.each[who].fetch_add(1, Ordering::Relaxed);
        if self.last.swap(who, Ordering::Relaxed) != who {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> Vec<u64> {
        self.each.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl Waiter {
    async fn connect(which: usize, server: &Server, number: usize) -> Self {
        match which {
            TURNS => Self::Turns(Box::new(Turns::connect(server, number).await)),
            TENURE => {
                let locks = tenure::connect(&server.tenure_url()).await.expect("a URL");
                Self::Tenure(Box::new(locks.mutex("tenure/turns")))
            }
            _ => Self::List(Box::new(List::connect(server, number).await)),
        }
    }

    async fn run(mut self, who: usize, tally: Arc<Tally>) -> Self {
        while !tally.stop.load(Ordering::Relaxed) {
            let since = TokioHost.now();
            match &mut self {
                Self::Turns(turns) => {
                    turns.acquire().await;
                    tally.granted(who, since);
                    turns.release().await;
                }
                Self::Tenure(lock) => {
                    let guard = lock.acquire().await.expect("the server answers");
                    tally.granted(who, since);
                    guard.release().await.expect("held");
                }
                Self::List(list) => {
                    list.acquire().await;
                    tally.granted(who, since);
                    list.release().await;
                }
            }
        }
        self
    }
}

/// Waiters of one kind that are connected, and rest between two rounds.
pub(crate) struct Crowd<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    waiters: Vec<Waiter>,
}

impl<'a> Crowd<'a> {
    pub(crate) fn connect(runtime: &'a Runtime, server: &'a Server, which: usize, count: usize) -> Self {
        let waiters = runtime.block_on(async {
            let mut waiters = Vec::new();
            for number in 0..count {
                waiters.push(Waiter::connect(which, server, number).await);
            }
            waiters
        });
        Self { runtime, server, waiters }
    }

    /// Lets them run until no keeper connects any more.
    pub(crate) fn settle(&mut self) {
        loop {
            let connected = self.server.calls().of("hello");
            self.watch(Duration::from_millis(100));
            if self.server.calls().of("hello") == connected {
                return;
            }
        }
    }

    /// Lets them run for a while and watches `window` of it.
    pub(crate) fn watch(&mut self, window: Duration) -> Seen {
        let waiters = std::mem::take(&mut self.waiters);
        let (seen, waiters) = self.runtime.block_on(watch(self.server, waiters, window));
        self.waiters = waiters;
        seen
    }
}

async fn watch(server: &Server, waiters: Vec<Waiter>, window: Duration) -> (Seen, Vec<Waiter>) {
    let tally = Arc::new(Tally::new(waiters.len()));
    let mut running = JoinSet::new();
    for (who, waiter) in waiters.into_iter().enumerate() {
        running.spawn(waiter.run(who, tally.clone()));
    }
    while tally.counts().iter().any(|count| *count < RUN_UP) {
        TokioHost.sleep_until(TokioHost.now() + Duration::from_millis(1)).await;
    }
    let expired = server.expired();
    let (changes, before, calls) = (tally.changes.load(Ordering::Relaxed), tally.counts(), server.calls());
    let meter = Meter::start(server);
    let changes = loop {
        TokioHost.sleep_until(TokioHost.now() + window).await;
        let more = tally.changes.load(Ordering::Relaxed) - changes;
        assert!(
            more > 0 || meter.begun().elapsed(TokioHost.now()) < STALL,
            "nobody was served for {STALL:?}"
        );
        if more > 0 {
            break more;
        }
    };
    let (cost, now) = (meter.stop(changes), server.calls());
    let counts: Vec<u64> = tally.counts().iter().zip(before).map(|(now, then)| now - then).collect();
    tally.stop.store(true, Ordering::Relaxed);
    let mut waiters = Vec::new();
    while let Some(waiter) = running.join_next().await {
        waiters.push(waiter.expect("no task panics"));
    }
    let seen = Seen {
        cost,
        changes,
        jain: jain(&counts),
        expired: server.expired() - expired,
        longest: Duration::from_micros(tally.longest_us.load(Ordering::Relaxed)),
        commands: now.since(&calls) as f64 / changes as f64,
        list: now.list(&calls, changes),
    };
    (seen, waiters)
}
