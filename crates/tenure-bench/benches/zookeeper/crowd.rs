//! Changes of owner: many waiters for one lock, each with a session of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tenure::{
    Lock,
    backend::{Host, TokioHost},
};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{recipe::Recipe, server::Server};

enum Waiter {
    ByHand(Box<Recipe>),
    Tenure(Box<Lock>),
}

/// Waiters that are connected, and rest between two rounds.
pub(crate) struct Crowd<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    waiters: Vec<Waiter>,
}

/// Per change of owner.
pub(crate) struct Seen {
    pub(crate) micros: f64,
    /// Without those that keep sessions alive.
    pub(crate) requests: f64,
}

impl<'a> Crowd<'a> {
    pub(crate) fn connect(runtime: &'a Runtime, server: &'a Server, is_tenure: bool, count: usize) -> Self {
        let waiters = runtime.block_on(async {
            let mut waiters = Vec::new();
            for _ in 0..count {
                waiters.push(if is_tenure {
                    let locks = tenure::connect(&server.url()).await.expect("a URL");
                    Waiter::Tenure(Box::new(locks.mutex("turns")))
                } else {
                    Waiter::ByHand(Box::new(Recipe::new(server.client().await, "/turns").await))
                });
            }
            waiters
        });
        Self { runtime, server, waiters }
    }

    /// Lets them run for a while, then rest for as long, and counts the difference.
    pub(crate) fn watch(&mut self, window: Duration) -> Seen {
        let waiters = std::mem::take(&mut self.waiters);
        let (seen, waiters) = self.runtime.block_on(watch(self.server, waiters, window));
        self.waiters = waiters;
        seen
    }
}

async fn watch(server: &Server, waiters: Vec<Waiter>, window: Duration) -> (Seen, Vec<Waiter>) {
    let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for waiter in waiters {
        running.spawn(run(waiter, stop.clone(), changes.clone()));
    }
    let pause = |d: Duration| TokioHost.sleep_until(TokioHost.now() + d);
    // All are connected and have a place by then.
    pause(window / 3).await;
    let (first, received, begun) = (changes.load(Ordering::Relaxed), server.received(), TokioHost.now());
    pause(window).await;
    let (last, received) = (changes.load(Ordering::Relaxed), server.received() - received);
    let took = begun.elapsed(TokioHost.now());
    stop.store(true, Ordering::Relaxed);
    let mut waiters = Vec::new();
    while let Some(waiter) = running.join_next().await {
        waiters.push(waiter.expect("no task panics"));
    }
    let (idle, idle_from) = (server.received(), TokioHost.now());
    pause(window).await;
    let idle = (server.received() - idle) as f64 / idle_from.elapsed(TokioHost.now()).as_secs_f64();
    let count = (last - first).max(1) as f64;
    let requests = (received as f64 - idle * took.as_secs_f64()) / count;
    (Seen { micros: took.as_secs_f64() * 1e6 / count, requests }, waiters)
}

async fn run(waiter: Waiter, stop: Arc<AtomicBool>, changes: Arc<AtomicU64>) -> Waiter {
    while !stop.load(Ordering::Relaxed) {
        match &waiter {
            Waiter::ByHand(recipe) => {
                let node = recipe.acquire().await;
                changes.fetch_add(1, Ordering::Relaxed);
                recipe.release(&node).await;
            }
            Waiter::Tenure(lock) => {
                let guard = lock.acquire().await.expect("the server answers");
                changes.fetch_add(1, Ordering::Relaxed);
                guard.release().await.expect("held");
            }
        }
    }
    waiter
}
