//! `Pair`: a master and its replica, with a bad network between them.

use std::time::Duration;

use tenure_testkit::{
    clock::Clock,
    patience::eventually,
    proxy::Proxy,
    redis::{Recipe, RedisServer},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// Both have been up for longer than any lease, so that only what they forgot can make them wait.
pub(crate) struct Pair {
    pub(crate) master: RedisServer,
    pub(crate) replica: RedisServer,
    pub(crate) network: Proxy,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let clock = Clock::new();
        let start = || Recipe::new().config("repl-diskless-sync-delay 0").clock(&clock).start();
        let (master, replica) = (start(), start());
        clock.advance(Duration::from_secs(60));
        let network = Proxy::to(master.port(), 0);
        copy(&replica, network.port());
        // Until the copy has said that it has all, which may take a second, it is sent nothing new.
        let is_sent_to = || master.info("replication", "slave0").contains("state=online").then_some(());
        eventually("the copy is sent what is written", PATIENCE, is_sent_to);
        Self { master, replica, network }
    }

    /// Waits until the replica has this key.
    pub(crate) fn has_arrived(&self, key: &str) {
        let is_there = || (self.replica.command(&["EXISTS", key]).int() == 1).then_some(());
        eventually("the replica has it", PATIENCE, is_there);
    }

    /// Waits until the replica has all that the master has written until now.
    pub(crate) fn has_caught_up(&self) {
        let offset = |server: &RedisServer| -> u64 {
            server.info("replication", "master_repl_offset").parse().expect("an offset")
        };
        let written = offset(&self.master);
        let is_there = || (offset(&self.replica) >= written).then_some(());
        eventually("the replica has it all", PATIENCE, is_there);
    }
}

/// Makes a server a copy of the one on this port, and waits until it is one.
pub(crate) fn copy(server: &RedisServer, port: u16) {
    server.command(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
    let is_up = || (server.info("replication", "master_link_status") == "up").then_some(());
    eventually("it is a copy", PATIENCE, is_up);
}

/// Makes a copy a master.
pub(crate) fn promote(server: &RedisServer) {
    server.command(&["REPLICAOF", "NO", "ONE"]);
}
