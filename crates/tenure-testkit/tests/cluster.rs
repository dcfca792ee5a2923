//! A cluster serves, moves slots under its clients, and survives the death of a master.

use std::time::Duration;

use tenure_testkit::{
    patience::eventually,
    redis::{Cluster, Reply},
};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_moved_slot_is_answered_with_moved_by_its_old_owner() {
    let cluster = Cluster::start();
    let old = cluster.owner_of("{lock}a");
    old.command(&["SET", "{lock}a", "1"]);
    old.command(&["SET", "{lock}b", "2"]);
    let started = cluster.begin_move_of("{lock}a");
    assert_eq!(started.from, old.port());
    assert_eq!(started.slot, cluster.slot_of("lock"));
    let asked = old.command(&["GET", "{lock}c"]);
    assert_eq!(asked, Reply::Error(format!("ASK {} 127.0.0.1:{}", started.slot, started.to)));
    assert_eq!(old.command(&["GET", "{lock}b"]).text(), "2", "a key that is still there");
    cluster.finish_move(started);
    let moved = old.command(&["GET", "{lock}a"]);
    assert_eq!(moved, Reply::Error(format!("MOVED {} 127.0.0.1:{}", started.slot, started.to)));
    let new = cluster.owner_of("{lock}a");
    assert_eq!(new.port(), started.to);
    assert_eq!(new.command(&["MGET", "{lock}a", "{lock}b"]).texts(), ["1", "2"]);
    let again = cluster.move_slot_of("{lock}a");
    assert_eq!((again.slot, again.from), (started.slot, started.to));
    assert_eq!(cluster.owner_of("{lock}a").port(), again.to);
}

#[test]
fn a_replica_takes_over_from_a_master_that_dies() {
    let cluster = Cluster::start();
    assert_eq!(cluster.ports().len(), 6);
    let mut client = cluster.owner_of("key").raw();
    client.command(&["SET", "key", "value"]);
    // On the connection that wrote: on another one it would not wait at all.
    assert_eq!(client.command(&["WAIT", "1", "10000"]), Reply::Int(1));
    let dead = cluster.kill_owner_of("key");
    assert!(!cluster.node(dead).is_running());
    assert_eq!(cluster.owner_of("key").command(&["GET", "key"]).text(), "value");
    cluster.node(dead).start_again();
    let role = || cluster.node(dead).info("replication", "role") == "slave";
    eventually("the dead master comes back as a replica", PATIENCE, || role().then_some(()));
}
