//! What the tests of the Redis backend share: a host, and servers with handles to them.

#![allow(dead_code, reason = "every test file uses its own part of the stage")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

pub(crate) mod entry;
pub(crate) mod frozen;
pub(crate) mod naive;
pub(crate) mod pair;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tenure_core::{BackendHandle, BoxFuture, Host, Moment};
use tenure_redis::{Config, Redis};
use tenure_testkit::{
    clock::Clock,
    redis::{Recipe, RedisServer},
};

/// This machine, for tests: one clock is enough here.
pub(crate) struct RealHost;

impl Host for RealHost {
    fn now(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Moment { boot: wall, wall }
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(until.boot.saturating_sub(self.now().boot)))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn spawn_apart(&self, _: &'static str, _: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>) {
        unreachable!("BUG: a backend starts no thread")
    }

    fn random(&self, bytes: &mut [u8]) {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for (byte, n) in bytes.iter_mut().zip(n.to_le_bytes().into_iter().cycle()) {
            *byte = n;
        }
    }
}

/// A handle as one process has it.
pub(crate) fn redis(url: &str) -> BackendHandle {
    Arc::new(Redis::new(Config::from_url(url).unwrap(), Arc::new(RealHost)))
}

/// A server whose wall clock is ours to set.
pub(crate) struct Clocked {
    pub(crate) clock: Clock,
    pub(crate) server: RedisServer,
}

impl Clocked {
    pub(crate) fn new() -> Self {
        Self::with(Recipe::new())
    }

    pub(crate) fn with(recipe: Recipe) -> Self {
        let clock = Clock::new();
        let server = recipe.env(clock.env()).start();
        Self { clock, server }
    }

    pub(crate) fn redis(&self, query: &str) -> BackendHandle {
        redis(&self.server.url(query))
    }
}
