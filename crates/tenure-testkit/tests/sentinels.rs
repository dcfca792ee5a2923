//! Sentinels come together, promote when asked and when the master dies, and lose what a cut link kept back.

use std::time::Duration;

use tenure_testkit::{
    patience::eventually,
    redis::{Reply, SentinelRecipe, Sentinels},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn has(sentinels: &Sentinels, port: u16, key: &str) -> bool {
    sentinels.server(port).command(&["EXISTS", key]) == Reply::Int(1)
}

#[test]
fn a_failover_that_is_asked_for_makes_another_server_the_master() {
    let all = Sentinels::start();
    let first = all.master_port();
    assert_eq!(first, all.servers()[0].port());
    assert_eq!((all.servers().len(), all.sentinel_ports().len()), (3, 3));
    let mut client = all.master().raw();
    client.command(&["SET", "key", "value"]);
    // On the connection that wrote: on another one it would not wait at all.
    assert_eq!(client.command(&["WAIT", "2", "10000"]), Reply::Int(2));
    let second = all.failover();
    assert_ne!(first, second);
    assert!(has(&all, second, "key"));
    let role = || all.server(first).info("replication", "role") == "slave";
    eventually("the old master follows", PATIENCE, || role().then_some(()));
    assert_ne!(all.failover(), second, "and once more");
}

#[test]
fn a_master_that_dies_is_replaced() {
    let all = SentinelRecipe::new().down_after(Duration::from_secs(2)).start();
    let first = all.master_port();
    all.server(first).kill();
    all.sentinels()[2].kill();
    let second = all.await_master_after(first);
    assert_ne!(first, second);
    assert_eq!(all.master_port(), second);
    all.server(first).start_again();
    let role = || all.server(first).info("replication", "role") == "slave";
    eventually("the dead master comes back as a replica", PATIENCE, || role().then_some(()));
}

/// Hazard: the master acknowledges a write, no replica has it, and one of them is promoted.
#[test]
fn what_a_cut_link_kept_back_is_lost_with_the_failover() {
    let all = SentinelRecipe::new().replicas(1).proxied().start();
    let first = all.master_port();
    all.links().iter().for_each(|link| link.stall());
    let mut client = all.master().raw();
    assert_eq!(client.command(&["SET", "key", "value"]), Reply::Text("OK".into()));
    assert_eq!(client.command(&["WAIT", "1", "100"]), Reply::Int(0));
    let second = all.failover();
    assert!(!has(&all, second, "key"));
    assert_ne!(first, second);
}
