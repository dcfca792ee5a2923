//! `Quorum`: several independent masters, of which most must agree.

use tenure_testkit::redis::{Recipe, RedisServer};

use crate::{
    rooms::redis::look,
    world::{Address, World},
};

/// Independent servers.
pub(crate) struct Quorum {
    pub(crate) servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts so many.
    pub(crate) fn open(world: &mut World, count: usize) -> Self {
        let servers: Vec<_> = (0..count).map(|_| Recipe::new().start()).collect();
        let settings = format!("quorum={count} guard=on max_ttl={}", world.seconds());
        for (nth, server) in servers.iter().enumerate() {
            server.has_waited("tenure:quorum", &settings);
            look(world, &lane(nth), &server.url(""));
        }
        Self { servers }
    }

    /// The servers on these ports, in this order.
    pub(crate) fn address(&self, world: &World, ports: &[u16]) -> Address {
        let urls: Vec<String> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}/")).collect();
        let naive = urls.join(",");
        Address { tenure: format!("redlock:{naive}?max_ttl={}", world.seconds()), naive }
    }

    /// Their ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(RedisServer::port).collect()
    }
}

/// The lane of a server.
pub(crate) fn lane(nth: usize) -> String {
    format!("node {}", nth + 1)
}
