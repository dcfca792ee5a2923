//! SETNX with a time as value, and GETSET when that is over.

use std::time::SystemTime;

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

/// Ends by the clock of whoever looks at it.
pub(crate) struct Stamp {
    redis: Redis,
    ends: u128,
}

impl Stamp {
    pub(crate) fn new(me: &Client) -> Self {
        Self { redis: Redis::new(me), ends: 0 }
    }
}

impl Scheme for Stamp {
    fn lock(&mut self, me: &Client) -> Step {
        loop {
            self.ends = now() + me.ttl.as_millis();
            if self.redis.is_yes(&format!("SETNX job {}", self.ends))? {
                return Ok(());
            }
            let seen = self.redis.ask("GET job")?.unwrap_or_default();
            let is_over = seen.parse().is_ok_and(|ends: u128| ends < now());
            if is_over && self.redis.ask(&format!("GETSET job {}", self.ends))? == Some(seen) {
                return Ok(());
            }
            self.redis.pause();
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        if now() < self.ends {
            self.redis.ask("DEL job")?;
        }
        Ok(())
    }

    fn alias(&self, _: &Client) -> String {
        self.ends.to_string()
    }
}

/// The ms since 1970, by the clock of this client.
fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis())
}
