//! `Naive`: a client that makes the mistakes of the hazards, one step at a time.

use tenure_testkit::redis::{Raw, RedisServer, Reply};

/// What the naive lock is called, beside ours on the same server.
pub(crate) const NAIVE: &str = "naive";

/// Its counter of tokens.
pub(crate) const FENCE: &str = "naive:fence";

/// Longer than any test.
pub(crate) const MINUTE_MS: i64 = 60_000;

/// Frees a lock that has this value: what many libraries send.
pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// One connection. Tests interleave the steps of several by hand.
pub(crate) struct Naive(Raw);

impl Naive {
    pub(crate) fn of(server: &RedisServer) -> Self {
        Self(server.raw())
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<String> {
        match self.0.command(&["GET", key]) {
            Reply::Nil => None,
            found => Some(found.text()),
        }
    }

    pub(crate) fn exists(&mut self, key: &str) -> bool {
        self.is_one(&["EXISTS", key])
    }

    /// With an end, over whatever is there.
    pub(crate) fn set(&mut self, key: &str, value: &str, ttl_ms: i64) -> bool {
        self.is_ok(&["SET", key, value, "PX", &ttl_ms.to_string()])
    }

    /// With an end, over whatever is there if something is.
    pub(crate) fn set_existing(&mut self, key: &str, value: &str, ttl_ms: i64) -> bool {
        self.is_ok(&["SET", key, value, "XX", "PX", &ttl_ms.to_string()])
    }

    /// With an end, if nothing is there: the recipe of the manual. Whatever is no OK counts as held.
    pub(crate) fn set_new(&mut self, key: &str, value: &str, ttl_ms: i64) -> bool {
        self.is_ok(&["SET", key, value, "NX", "PX", &ttl_ms.to_string()])
    }

    /// Without an end, if nothing is there.
    pub(crate) fn setnx(&mut self, key: &str, value: &str) -> bool {
        self.is_one(&["SETNX", key, value])
    }

    pub(crate) fn getset(&mut self, key: &str, value: &str) -> String {
        self.0.command(&["GETSET", key, value]).text()
    }

    /// Whoever holds.
    pub(crate) fn del(&mut self, key: &str) -> bool {
        self.is_one(&["DEL", key])
    }

    /// Whoever holds.
    pub(crate) fn pexpire(&mut self, key: &str, ttl_ms: i64) -> bool {
        self.is_one(&["PEXPIRE", key, &ttl_ms.to_string()])
    }

    /// -1: without an end. -2: not there.
    pub(crate) fn pttl(&mut self, key: &str) -> i64 {
        self.0.command(&["PTTL", key]).int()
    }

    /// The next token of a counter that nobody watches over.
    pub(crate) fn mint(&mut self) -> i64 {
        self.0.command(&["INCR", FENCE]).int()
    }

    /// If the lock has this value.
    pub(crate) fn release(&mut self, key: &str, value: &str) -> bool {
        self.eval(COMPARE_AND_DELETE, key, value) == Reply::Int(1)
    }

    pub(crate) fn eval(&mut self, script: &str, key: &str, arg: &str) -> Reply {
        self.0.command(&["EVAL", script, "1", key, arg])
    }

    /// Watches on this connection, and deletes in a transaction.
    pub(crate) fn watch(&mut self, key: &str) {
        assert!(self.is_ok(&["WATCH", key]));
    }

    /// True if the transaction was not called off.
    pub(crate) fn del_in_transaction(&mut self, key: &str) -> bool {
        assert!(self.is_ok(&["MULTI"]));
        self.0.command(&["DEL", key]);
        self.0.command(&["EXEC"]) == Reply::List(vec![Reply::Int(1)])
    }

    /// Any other request.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Reply {
        self.0.command(words)
    }

    /// Any other request, whose answer is read later or never.
    pub(crate) fn send(&mut self, words: &[&str]) {
        self.0.send(words).unwrap();
    }

    /// The answer to what was sent.
    pub(crate) fn read(&mut self) -> Reply {
        self.0.read().unwrap()
    }

    fn is_one(&mut self, words: &[&str]) -> bool {
        self.0.command(words) == Reply::Int(1)
    }

    fn is_ok(&mut self, words: &[&str]) -> bool {
        self.0.command(words) == Reply::Text("OK".into())
    }
}
