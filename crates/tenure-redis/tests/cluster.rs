//! A Cluster of three masters and their replicas.

use std::time::{Duration, Instant};

use tenure_core::{Audience, BreakScope, ClaimAnswer, Renewal, Severity, WaitMode, WakeEvent};
use tenure_testkit::{
    conformance::player::Player,
    patience::{eventually, in_time, slowness},
    redis::{Cluster, RedisServer},
};

use crate::stage::redis;

const PATIENCE: Duration = Duration::from_secs(20);

fn url(cluster: &Cluster) -> String {
    let hosts: Vec<String> = cluster.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis-cluster://{}/", hosts.join(","))
}

/// Locks lie on all masters; one list shows them, in order.
#[tokio::test]
async fn locks_lie_on_all_masters_and_one_list_shows_them() {
    let cluster = Cluster::start();
    let url = url(&cluster);
    let backend = redis(&url);
    let mut grants = Vec::new();
    for n in 0..24 {
        let player = Player::new(backend.clone(), &format!("job/{n:02}"));
        grants.push(player.enter().await);
    }
    let owners: std::collections::BTreeSet<u16> =
        grants.iter().map(|grant| cluster.owner_of(grant.name.as_str()).port()).collect();
    assert_eq!(owners.len(), 3);
    let names: Vec<String> =
        backend.list("job/").await.unwrap().iter().map(|view| view.name.to_string()).collect();
    assert_eq!(names, (0..24).map(|n| format!("job/{n:02}")).collect::<Vec<_>>());
    let answers = backend.renew(&grants).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::Renewed))), "{answers:?}");
}

/// A hint crosses the Cluster: the waiter may listen on any node. Tagged names work as others do.
#[tokio::test]
async fn a_waiter_is_woken_wherever_it_listens() {
    let cluster = Cluster::start();
    let url = url(&cluster);
    for name in ["plain", "{tag}:a", "{tag}:b", "x{tag}"] {
        let (holder, waiter) = (Player::new(redis(&url), name), Player::new(redis(&url), name));
        holder.enter().await;
        let mut stream = waiter.backend.wakes(waiter.claim.owner.process(), Audience::Waiters);
        waiter.queue_behind(0).await;
        holder.leave().await;
        let woken = async {
            while !matches!(stream.next().await, WakeEvent::Owner(owner) if owner == waiter.claim.owner) {}
        };
        in_time("a hint comes", Duration::from_secs(5), woken).await;
        waiter.enter().await;
    }
}

/// A lock moves with its slot while it is held and waited for.
#[tokio::test]
async fn a_lock_survives_the_move_of_its_slot() {
    let cluster = Cluster::start();
    let url = url(&cluster);
    let (holder, waiter) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    let grant = holder.enter().await;
    waiter.queue_behind(0).await;
    let moved = cluster.move_slot_of("job");
    assert_ne!(moved.from, moved.to);
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    holder.leave().await;
    let next = waiter.enter().await;
    assert!(next.token > grant.token);
}

/// L2: after a fail-over only the token protects, and it does, for it is floored with the new master's time.
#[tokio::test]
async fn tokens_grow_over_a_fail_over_that_loses_the_lock() {
    let cluster = Cluster::start();
    let url = url(&cluster);
    let first = Player::new(redis(&url), "job").enter().await;
    cluster.kill_owner_of("job");
    let second = Player::new(redis(&url), "job").waiting(WaitMode::No);
    let began = Instant::now();
    loop {
        match second.backend.claim(&second.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => {
                break assert!(grant.token > first.token, "{grant:?} after {first:?}");
            }
            Ok(_) => {
                // The replica had received it: held until a person or its end frees it.
                second.backend.break_lock(&second.claim.name, BreakScope::Leases).await.unwrap();
            }
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(30) * slowness(), "the Cluster does not recover");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A master that hangs was asked for renewals over the same connection for ever, where each caller gave up before the driver did: it is
/// left for another one, which asks the Cluster who the master is.
#[tokio::test]
async fn renewals_of_a_hung_master_get_another_connection() {
    let cluster = Cluster::start();
    let backend = redis(&url(&cluster));
    let player = Player::new(backend.clone(), "job");
    let grant = player.enter().await;
    let hung = cluster.owner_of("job").port();
    let other = cluster.nodes().iter().find(|node| node.port() != hung).unwrap();
    let connections = || other.info("stats", "total_connections_received").parse::<u64>().unwrap();
    cluster.node(hung).stop();
    let (before, began) = (connections(), Instant::now());
    let mut made = before;
    // Each look at it is a connection as well.
    let mut looks = 0;
    while made <= before + looks {
        let patience = Duration::from_millis(600);
        let _ = tokio::time::timeout(patience, backend.renew(std::slice::from_ref(&grant))).await;
        (made, looks) = (connections(), looks + 1);
        assert!(began.elapsed() < Duration::from_secs(20) * slowness(), "nobody looks for another master");
    }
}

/// A Cluster that announces names of hosts could be locked in, but neither listed nor examined: its nodes were looked for by their
/// addresses.
#[tokio::test]
async fn a_cluster_that_announces_names_of_hosts_is_listed_and_examined() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-announce-hostname", "localhost"]);
        node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
    }
    let slots = |node: &RedisServer| format!("{:?}", node.command(&["CLUSTER", "SLOTS"]));
    eventually("all nodes know the names", PATIENCE, || {
        let are_known = |node| slots(node).matches("localhost").count() >= 6;
        cluster.nodes().iter().all(are_known).then_some(())
    });
    let backend = redis(&url(&cluster));
    for n in 0..12 {
        Player::new(backend.clone(), &format!("job/{n:02}")).enter().await;
    }
    assert_eq!(backend.list("job/").await.unwrap().len(), 12);
    let findings = backend.diagnose().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Problem), "{findings:?}");
}
