//! `Naive`: the lock that everybody writes first, so that each hazard is seen to do its harm.

use std::time::{Duration, Instant};

use tenure_testkit::redis::{Raw, Reply};

/// The key that naive clients fight for.
pub(crate) const KEY: &str = "naive";

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
                      end return 0";

/// A client with `SET NX PX` and the well-known scripts, which believes for a ttl from the answer.
pub(crate) struct Naive {
    pub(crate) raw: Raw,
    owner: String,
    until: Option<Instant>,
}

impl Naive {
    /// To a server's port, or a proxy's.
    pub(crate) fn to(port: u16, owner: &str) -> Self {
        Self { raw: Raw::connect(port), owner: owner.into(), until: None }
    }

    /// True if it takes itself for the holder now.
    pub(crate) fn acquire(&mut self, ttl: Duration) -> bool {
        let answer = self.raw.command(&["SET", KEY, &self.owner.clone(), "NX", "PX", &millis(ttl)]);
        self.believe(ttl, answer == Reply::Text("OK".into()))
    }

    /// True if it takes itself for the holder for another ttl.
    pub(crate) fn extend(&mut self, ttl: Duration) -> bool {
        let answer = self.raw.command(&["EVAL", EXTEND, "1", KEY, &self.owner.clone(), &millis(ttl)]);
        self.believe(ttl, answer == Reply::Int(1))
    }

    /// True if it is told that it held the lock.
    pub(crate) fn release(&mut self) -> bool {
        self.until = None;
        self.raw.command(&["EVAL", RELEASE, "1", KEY, &self.owner.clone()]) == Reply::Int(1)
    }

    /// Takes the lock; the answer is lost.
    pub(crate) fn acquire_unheard(&mut self, ttl: Duration) {
        self.send_unheard(&["SET", KEY, &self.owner.clone(), "NX", "PX", &millis(ttl)]);
    }

    /// Releases the lock; the answer is lost.
    pub(crate) fn release_unheard(&mut self) {
        self.until = None;
        self.send_unheard(&["EVAL", RELEASE, "1", KEY, &self.owner.clone()]);
    }

    fn send_unheard(&mut self, words: &[&str]) {
        self.raw.send(&["CLIENT", "REPLY", "SKIP"]).unwrap();
        self.raw.send(words).unwrap();
    }

    fn believe(&mut self, ttl: Duration, is_ours: bool) -> bool {
        self.until = is_ours.then(|| Instant::now() + ttl);
        is_ours
    }

    /// Whether it takes itself for the holder.
    pub(crate) fn believes(&self) -> bool {
        self.until.is_some_and(|until| until > Instant::now())
    }

    /// Until when it takes itself for the holder.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }
}

pub(crate) fn millis(d: Duration) -> String {
    d.as_millis().to_string()
}
