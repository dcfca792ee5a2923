//! The usual recipes over Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Instant, SystemTime},
};

use crate::{
    protocol::{Client, Step},
    schemes::{Scheme, redis::Redis},
};

macro_rules! with_one_connection {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        pub(super) struct $name(Redis);

        impl $name {
            pub(super) fn new(me: &Client) -> Step<Self> {
                Ok(Self(Redis::new(me)))
            }
        })*
    };
}

with_one_connection! {
    /// GET, and if there is no holder, SET.
    GetSet;
    /// SETNX without an expiry: a lock that only its holder removes.
    SetForever;
    /// SETNX, and then EXPIRE: takes the lock, then sets its expiry.
    SetnxExpire;
    /// SET NX PX with a fixed value, and a DEL that frees whatever is there.
    BlindDel;
    /// SET NX PX with a name; GET, compare, DEL.
    GetDel;
    /// SET NX PX with its own name, and a release that compares: the recipe of the manual.
    SetNx;
    /// SET NX EX with an hour, to be on the safe side: longer than any work.
    SetLong;
    /// WATCH, MULTI, EXEC: asks again whenever another client was faster.
    Watch;
}

impl Scheme for GetSet {
    fn lock(&mut self, me: &Client) -> Step {
        while self.0.ask("GET job")?.is_some() {
            self.0.pause();
        }
        me.gap("between GET and SET")?;
        self.0.ask("SET job me PX ttl")?;
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        if self.0.ask("GET job")? == self.0.me() {
            self.0.ask("DEL job")?;
        }
        Ok(())
    }
}

impl Scheme for SetForever {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SETNX job me")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

impl Scheme for SetnxExpire {
    fn lock(&mut self, me: &Client) -> Step {
        while !self.0.is_yes("SETNX job me")? {
            self.0.pause();
        }
        me.gap("between SETNX and EXPIRE")?;
        self.0.ask("EXPIRE job seconds")?;
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

impl Scheme for BlindDel {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job locked NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("DEL job")?;
        Ok(())
    }
}

impl Scheme for GetDel {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, me: &Client) -> Step {
        if self.0.ask("GET job")? == self.0.me() {
            me.gap("between GET and DEL")?;
            self.0.ask("DEL job")?;
        }
        Ok(())
    }
}

impl Scheme for SetNx {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX PX ttl")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.delete_if_mine()
    }
}

impl Scheme for SetLong {
    fn lock(&mut self, _: &Client) -> Step {
        while !self.0.is_yes("SET job me NX EX 3600")? {
            self.0.pause();
        }
        Ok(())
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.delete_if_mine()
    }
}

impl Scheme for Watch {
    fn lock(&mut self, _: &Client) -> Step {
        loop {
            self.0.ask("WATCH job")?;
            if self.0.ask("GET job")?.is_some() {
                self.0.ask("UNWATCH")?;
            } else {
                self.0.ask("MULTI")?;
                self.0.ask("SET job me PX ttl")?;
                if self.0.ask("EXEC")?.is_some() {
                    return Ok(());
                }
            }
            self.0.pause();
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        self.0.ask("WATCH job")?;
        if self.0.ask("GET job")? == self.0.me() {
            self.0.ask("MULTI")?;
            self.0.ask("DEL job")?;
            self.0.ask("EXEC")?;
        } else {
            self.0.ask("UNWATCH")?;
        }
        Ok(())
    }
}

/// SETNX with a time as value, and GETSET when that has passed: it expires by the clock of the client that reads it.
pub(super) struct Stamp {
    redis: Redis,
    ends: u128,
}

impl Stamp {
    pub(super) fn new(me: &Client) -> Step<Self> {
        Ok(Self { redis: Redis::new(me), ends: 0 })
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

/// SET NX PX, and a thread that renews until it must stop. This watchdog runs next to the work: neither knows of the other.
pub(super) struct Watchdog {
    redis: Redis,
    is_over: Arc<AtomicBool>,
}

impl Watchdog {
    pub(super) fn new(me: &Client) -> Step<Self> {
        Ok(Self { redis: Redis::new(me), is_over: Arc::default() })
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

/// Redlock as its description has it: most of the servers, one after the other, and the same pause after each failure.
pub(super) struct Redlock {
    servers: Vec<Redis>,
}

impl Redlock {
    /// The servers in the order of the URL: the near ones first.
    pub(super) fn new(me: &Client) -> Step<Self> {
        Ok(Self { servers: me.url.split(',').map(|url| Redis::to(me, url)).collect() })
    }
}

impl Scheme for Redlock {
    fn lock(&mut self, me: &Client) -> Step {
        loop {
            let began = Instant::now();
            let mut votes = 0;
            for (nth, server) in self.servers.iter_mut().enumerate() {
                if nth == 2 {
                    me.gap("after its near servers")?;
                }
                let vote = server.try_ask("SET job me NX PX ttl");
                votes += usize::from(matches!(vote, Ok(Some(_))));
            }
            if votes > self.servers.len() / 2 && began.elapsed() < me.ttl {
                return Ok(());
            }
            me.gap("before it gives back what it has")?;
            self.unlock(me)?;
            self.servers[0].pause();
        }
    }

    fn unlock(&mut self, _: &Client) -> Step {
        for server in &mut self.servers {
            let _ = server.try_delete_if_mine();
        }
        Ok(())
    }
}
