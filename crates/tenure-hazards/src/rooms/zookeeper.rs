//! `Ensemble`: one ZooKeeper server.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};

use tenure_testkit::zookeeper::ZooKeeperServer;

use crate::world::{Address, World};

/// One server. Its locks end when a session does.
pub(crate) struct Ensemble {
    _server: ZooKeeperServer,
    pub(crate) address: Address,
}

impl Ensemble {
    /// Starts it.
    pub(crate) fn open(world: &mut World) -> Self {
        let server = ZooKeeperServer::start();
        let port = server.port();
        world.watches("ZooKeeper", move || holder(port));
        let address = Address { naive: server.address(), tenure: server.url("") };
        Self { _server: server, address }
    }
}

/// The node with the smallest number, by the list of sessions and their nodes.
fn holder(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"dump").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let nodes = text.lines().filter_map(|line| line.trim().rsplit_once('/')).map(|(_, node)| node);
    let numbered = nodes.filter_map(|node| node.rsplit_once('-').map(|(_, number)| (number, node)));
    numbered.min().map(|(_, node)| node.replace('-', ""))
}

const PATIENCE: Duration = Duration::from_secs(2);
