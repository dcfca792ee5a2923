//! `Copies`: a master and a replica, and a name that leads to the master.

use tenure_testkit::{
    patience::eventually,
    proxy::Proxy,
    redis::{Recipe, RedisServer},
};

use std::time::Duration;

use crate::{
    rooms::redis::{address, look, settings},
    world::{Address, World},
};

/// Two servers. Clients come through the name, the replica through the link.
pub(crate) struct Copies {
    master: RedisServer,
    replica: RedisServer,
    name: Proxy,
    /// Between master and replica.
    pub(crate) link: Proxy,
    pub(crate) address: Address,
}

impl Copies {
    /// Starts both and waits until the replica has a copy.
    pub(crate) fn open(world: &mut World) -> Self {
        let master = Recipe::new().start();
        master.has_waited("tenure:one", &settings(world));
        let (link, name) = (Proxy::to(master.port(), 1), Proxy::to(master.port(), 2));
        let replica = Recipe::new().replica_of(link.port()).start();
        let is_up = || (replica.info("replication", "master_link_status") == "up").then_some(());
        eventually("the replica is a copy", PATIENCE, is_up);
        let has_record = || (replica.command(&["EXISTS", "tenure:one"]).int() == 1).then_some(());
        eventually("the replica has all", PATIENCE, has_record);
        for (lane, server) in [(MASTER, &master), (REPLICA, &replica)] {
            look(world, lane, &address(world, server.port()).naive);
        }
        let address = address(world, name.port());
        Self { master, replica, name, link, address }
    }

    /// The replica has what the master has been told.
    pub(crate) fn is_copied(&self, lock: &str) {
        let is_there = || (self.replica.command(&["EXISTS", lock]).int() == 1).then_some(());
        eventually("the replica has the lock", PATIENCE, is_there);
    }

    /// The master crashes, the replica takes its place, and the name leads there.
    pub(crate) fn fails_over(&self, world: &World) {
        self.master.kill();
        world.fault(MASTER, "crashes");
        self.replica.command(&["REPLICAOF", "NO", "ONE"]);
        self.name.lead_to(self.replica.port());
        world.fault(REPLICA, "is promoted");
    }
}

const MASTER: &str = "master";
const REPLICA: &str = "replica";
const PATIENCE: Duration = Duration::from_secs(10);
