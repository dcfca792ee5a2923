//! SET NX PX, and a thread that renews until it is told to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// A watchdog beside the work: neither hears of the other.
pub(crate) struct Watchdog {
    redis: Redis,
    is_over: Arc<AtomicBool>,
}

impl Watchdog {
    pub(crate) fn new(me: &Client) -> Self {
        Self { redis: Redis::new(me), is_over: Arc::default() }
    }
}

impl Scheme for Watchdog {
    fn lock(&mut self, me: &Client) -> Step {
        while !self.redis.is_yes("SET job me NX PX ttl")? {
            self.redis.pause();
        }
        let (mut redis, is_over, pause) = (Redis::new(me), self.is_over.clone(), me.ttl / 3);
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = redis.renew_if_mine();
                thread::sleep(pause);
            }
        });
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.is_over.store(true, Ordering::Relaxed);
        self.redis.delete_if_mine()
    }
}
