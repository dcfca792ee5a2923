//! `Cluster`: three masters that share the slots, and a replica of each.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use crate::{
    patience::{eventually, slowness},
    redis::{recipe::Recipe, reply::Reply, server::RedisServer},
};

/// Six nodes of a Redis cluster. They die with the test.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    /// The ports of removed nodes.
    left: Mutex<BTreeSet<u16>>,
}

/// A slot on its way from one master to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slot stays on its way until the move is finished"]
pub struct Move {
    /// The slot.
    pub slot: u16,
    /// The port of the master that has it.
    pub from: u16,
    /// The port of the master that gets it.
    pub to: u16,
}

impl Cluster {
    /// Six nodes with defaults: three masters, a replica each.
    ///
    /// # Panics
    /// If a program is missing, or they do not come together in time.
    pub fn start() -> Self {
        Self::start_with(&Recipe::new())
    }

    /// Six nodes by this recipe.
    ///
    /// # Panics
    /// If a program is missing, or they do not come together in time.
    pub fn start_with(recipe: &Recipe) -> Self {
        let node = recipe.clone().node(u128::from(slowness()) * TIMEOUT.as_millis());
        let nodes: Vec<_> = (0..6).map(|_| node.clone().start()).collect();
        introduce(&nodes);
        let cluster = Self { nodes, left: Mutex::default() };
        eventually("all nodes of a cluster serve", PATIENCE, || {
            cluster.nodes.iter().all(is_complete).then_some(())
        });
        cluster
    }

    /// The nodes, masters and replicas.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Where they listen, at 127.0.0.1.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(RedisServer::port).collect()
    }

    /// The node on this port.
    ///
    /// # Panics
    /// If it is not a node of this cluster.
    #[track_caller]
    pub fn node(&self, port: u16) -> &RedisServer {
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.unwrap_or_else(|| panic!("no node of ours on port {port}"))
    }

    /// The slot that a key belongs to.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self.running()[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot is a small number")
    }

    /// The master that has the key. Waits until all nodes that run agree.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn owner_of(&self, key: &str) -> &RedisServer {
        let slot = self.slot_of(key);
        let port = eventually("the nodes agree who has a slot", PATIENCE, || self.agreed(slot));
        self.node(port)
    }

    /// Moves the key's slot with all its keys to another master, while the cluster serves. The old master answers
    /// clients with `MOVED`.
    ///
    /// # Panics
    /// If a node refuses, or they do not agree in time.
    pub fn move_slot_of(&self, key: &str) -> Move {
        let started = self.begin_move_of(key);
        self.finish_move(started);
        started
    }

    /// Begins to move the key's slot to another master. The old master answers `ASK` for keys that it does not have.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn begin_move_of(&self, key: &str) -> Move {
        let (slot, from) = (self.slot_of(key), self.owner_of(key).port());
        let masters = slot_ranges(self.node(from));
        let to = masters.iter().map(|range| range.owner).find(|port| *port != from);
        let to = to.expect("a cluster has several masters");
        let number = slot.to_string();
        tell(self.node(to), &["CLUSTER", "SETSLOT", &number, "IMPORTING", &id(self.node(from))]);
        tell(self.node(from), &["CLUSTER", "SETSLOT", &number, "MIGRATING", &id(self.node(to))]);
        Move { slot, from, to }
    }

    /// Moves the keys, assigns the slot to its new master, and waits until all nodes that run agree.
    ///
    /// # Panics
    /// If a node refuses, or they do not agree in time.
    pub fn finish_move(&self, started: Move) {
        let Move { slot, from, to } = started;
        let (number, id) = (slot.to_string(), id(self.node(to)));
        loop {
            let keys = self.node(from).command(&["CLUSTER", "GETKEYSINSLOT", &number, "100"]).texts();
            if keys.is_empty() {
                break;
            }
            let port = to.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            tell(self.node(from), &words);
        }
        // The new owner first. Otherwise the slot would have no owner for a moment.
        for port in [to, from] {
            tell(self.node(port), &["CLUSTER", "SETSLOT", &number, "NODE", &id]);
        }
        eventually("the nodes agree who has a moved slot", PATIENCE, || {
            self.agreed(slot).filter(|port| *port == to)
        });
    }

    /// Kills the master that has the key, and waits until its replica has taken over and all nodes that run serve.
    /// Returns the port of the killed master.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn kill_owner_of(&self, key: &str) -> u16 {
        let (slot, dead) = (self.slot_of(key), self.owner_of(key));
        dead.kill();
        eventually("a replica takes over", PATIENCE, || {
            let serves = |node: &&RedisServer| cluster_info(node, "cluster_state") == "ok";
            self.agreed(slot).filter(|port| *port != dead.port() && self.running().iter().all(serves))
        });
        dead.port()
    }

    /// Removes a node that has no slots, as `redis-cli --cluster del-node` does: it continues to run, outside of the
    /// cluster.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn remove(&self, port: u16) {
        let id = id(self.node(port));
        self.left.lock().expect("no panic with the lock").insert(port);
        for node in self.running() {
            tell(node, &["CLUSTER", "FORGET", &id]);
        }
        tell(self.node(port), &["CLUSTER", "RESET", "SOFT"]);
    }

    /// Turns a [removed](Self::remove) node into a separate cluster with all slots.
    ///
    /// # Panics
    /// If it refuses, or does not serve in time.
    pub fn found_another(&self, port: u16) {
        let node = self.node(port);
        tell(node, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        eventually("another cluster serves", PATIENCE, || {
            (cluster_info(node, "cluster_state") == "ok").then_some(())
        });
    }

    /// The ports of the replicas.
    pub fn replicas(&self) -> Vec<u16> {
        let is_replica = |node: &&RedisServer| node.info("replication", "role") == "slave";
        self.running().into_iter().filter(is_replica).map(RedisServer::port).collect()
    }

    /// The nodes of the cluster that run.
    pub fn running(&self) -> Vec<&RedisServer> {
        let left = self.left.lock().expect("no panic with the lock");
        self.nodes.iter().filter(|node| node.is_running() && !left.contains(&node.port())).collect()
    }

    /// The port of the master that has the slot, as all nodes that run report it; `None` if they differ.
    fn agreed(&self, slot: u16) -> Option<u16> {
        let mut owners = self.running().into_iter().map(|node| {
            let ranges = slot_ranges(node);
            ranges.iter().find(|range| range.slots.contains(&slot)).map(|range| range.owner)
        });
        let first = owners.next().expect("a node that runs")?;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }
}

/// A range of slots, as one node reports it.
struct Range {
    slots: std::ops::RangeInclusive<u16>,
    owner: u16,
    replicas: usize,
}

fn slot_ranges(node: &RedisServer) -> Vec<Range> {
    let small =
        |reply: &Reply| u16::try_from(reply.clone().int()).expect("slots and ports are small numbers");
    let range = |reply: Reply| {
        let words = reply.list();
        let owner = words[2].clone().list();
        Range {
            slots: small(&words[0])..=small(&words[1]),
            owner: small(&owner[1]),
            replicas: words.len() - 3,
        }
    };
    node.command(&["CLUSTER", "SLOTS"]).list().into_iter().map(range).collect()
}

/// Makes a cluster of these nodes.
fn introduce(nodes: &[RedisServer]) {
    let output = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(nodes.iter().map(RedisServer::address))
        .args(["--cluster-replicas", "1", "--cluster-yes"])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot start redis-cli: {error}; `cargo xtask test` installs it"));
    let words = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "redis-cli --cluster create: {}", String::from_utf8_lossy(&words));
}

/// Whether a node serves and knows a replica for each slot; if it is a replica, whether it follows its master.
fn is_complete(node: &RedisServer) -> bool {
    let ranges = slot_ranges(node);
    let follows = || {
        let is_master = node.info("replication", "role") == "master";
        is_master || node.info("replication", "master_link_status") == "up"
    };
    cluster_info(node, "cluster_state") == "ok"
        && ranges.len() == 3
        && ranges.iter().all(|range| range.replicas == 1)
        && follows()
}

fn cluster_info(node: &RedisServer, field: &str) -> String {
    let text = node.command(&["CLUSTER", "INFO"]).text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("CLUSTER INFO has no {field}")).to_owned()
}

fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"]).text()
}

#[track_caller]
fn tell(node: &RedisServer, words: &[&str]) {
    assert_eq!(node.command(words).error(), None, "{words:?}");
}

/// A node that is silent for this long is down; times the slowness.
const TIMEOUT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);
