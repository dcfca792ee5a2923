//! A Cluster of three masters and their replicas.

use std::{
    fs,
    time::{Duration, Instant},
};

use tenure_core::{
    Audience, BreakScope, ClaimAnswer, ErrorKind, Outcome, Released, Renewal, Severity, WaitMode, WakeEvent,
};
use tenure_testkit::{
    conformance::player::Player,
    patience::{eventually, in_time, slowness, until},
    proxy::Proxy,
    redis::{Cluster, Move, Recipe, RedisServer},
};

use crate::stage::{calls, redis};

const PATIENCE: Duration = Duration::from_secs(20);

fn url(cluster: &Cluster) -> String {
    url_of(&cluster.ports())
}

fn url_of(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis-cluster://{}/", hosts.join(","))
}

/// Closes the connections of clients, and no others.
fn kill_connections(cluster: &Cluster) {
    cluster.nodes().iter().filter(|node| node.is_running()).for_each(kill_connections_of);
}

fn kill_connections_of(node: &RedisServer) {
    for kind in ["NORMAL", "PUBSUB"] {
        node.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "YES"]);
    }
}

/// No failover happens, and each master serves its slots even if others are down.
fn without_fail_over(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-node-timeout", "600000"]);
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
}

/// Names of locks on different masters.
fn names_apart(cluster: &Cluster) -> [String; 2] {
    let first = "job/0".to_owned();
    let owner = cluster.owner_of(&first).port();
    let mut others = (1..).map(|n| format!("job/{n}"));
    let second = others.find(|name| cluster.owner_of(name).port() != owner).unwrap();
    [first, second]
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

/// A master that hangs was asked for renewals over the same connection for ever, where each caller gave up before the driver did: the
/// others are asked who the master is.
#[tokio::test]
async fn while_a_master_hangs_the_others_are_asked_who_the_master_is() {
    let cluster = Cluster::start();
    let backend = redis(&url(&cluster));
    let player = Player::new(backend.clone(), "job");
    let grant = player.enter().await;
    let hung = cluster.owner_of("job").port();
    let others = || cluster.nodes().iter().filter(|node| node.port() != hung);
    let asked = || others().filter_map(|node| calls(node).get("cluster|slots").copied()).sum::<u64>();
    cluster.node(hung).stop();
    let (before, began) = (asked(), Instant::now());
    while asked() == before {
        let patience = Duration::from_millis(600);
        let _ = tokio::time::timeout(patience, backend.renew(std::slice::from_ref(&grant))).await;
        assert!(began.elapsed() < Duration::from_secs(20) * slowness(), "nobody looks for another master");
    }
}

/// A cluster of one node, which clients reach through a proxy.
fn behind_a_proxy() -> (RedisServer, Proxy, String) {
    let server = Recipe::new().alone_in_a_cluster().start();
    let proxy = Proxy::to(server.port(), 1);
    server.command(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    server.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("the cluster serves", PATIENCE, || {
        server.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    let url = format!("redis-cluster://127.0.0.1:{}/?response_timeout=500ms", proxy.port());
    (server, proxy, url)
}

/// L4, L9: the driver repeated a request whose answer was lost. The second copy of a release found no holder, and was answered as
/// if the lease had been lost; the first one, if it was late, ended the next lease of its owner.
#[tokio::test]
async fn in_a_cluster_a_lost_answer_is_unknown_and_its_request_was_sent_once() {
    let (server, proxy, url) = behind_a_proxy();
    let backend = redis(&url);
    let sent =
        || calls(&server).into_iter().filter(|(name, _)| name.starts_with("eval")).map(|it| it.1).sum();
    for (is_cut, name) in [(false, "times-out"), (true, "is-cut")] {
        let player = Player::new(backend.clone(), name);
        let release = async || backend.release(&player.claim.name, player.claim.owner).await;
        player.enter().await;
        player.leave().await;
        // Each script is there by now.
        assert_eq!(release().await.unwrap(), Released::WasGone);
        player.enter().await;
        let before: u64 = sent();
        proxy.hold_replies();
        let lost = async {
            let error = release().await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
        };
        let cut = async {
            if is_cut {
                until("the server has released", PATIENCE, async || sent() == before + 1).await;
                proxy.cut();
                proxy.heal();
            }
        };
        tokio::join!(lost, cut);
        proxy.release();
        assert_eq!(release().await.unwrap(), Released::WasGone, "the first one was done");
        assert_eq!(sent(), before + 3, "one release, and the question for it, which takes two scripts");
    }
}

/// A slot moves, and its nodes do not know it at the same time: each names the other. That was taken for a wrong URL, and ended a
/// waiter for good.
#[tokio::test]
async fn nodes_that_name_each_other_are_asked_again_until_they_agree() {
    let cluster = Cluster::start();
    let player = Player::new(redis(&url(&cluster)), "job").waiting(WaitMode::No);
    player.enter().await;
    player.leave().await;
    let Move { slot, from, to } = cluster.begin_move_of("job");
    let id = cluster.node(to).command(&["CLUSTER", "MYID"]).text();
    let give = |port: u16| {
        let node = cluster.node(port);
        for key in node.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]).texts() {
            node.command(&["DEL", &key]);
        }
        node.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id])
    };
    assert!(give(from).error().is_none());
    cluster.node(to).command(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("is moving this lock"), "{error}");
    assert!(give(to).error().is_none());
    player.enter().await;
    player.leave().await;
}

/// While a slot moves, a step that has several keys is refused by both nodes, and one that has a single key is taken by the new node
/// with the word for it.
#[tokio::test]
async fn while_its_slot_moves_a_lock_is_refused_or_released_at_the_new_node() {
    let cluster = Cluster::start();
    let player = Player::new(redis(&url(&cluster)), "job").waiting(WaitMode::No);
    player.enter().await;
    let begun = cluster.begin_move_of("job");
    let to = begun.to.to_string();
    let migrate = ["MIGRATE", "127.0.0.1", &to, "job", "0", "5000"];
    assert!(cluster.node(begun.from).command(&migrate).error().is_none());
    assert_eq!(
        cluster.node(begun.to).command(&["CLUSTER", "COUNTKEYSINSLOT", &begun.slot.to_string()]).int(),
        1
    );
    player.leave().await;
    assert_eq!(
        cluster.node(begun.to).command(&["CLUSTER", "COUNTKEYSINSLOT", &begun.slot.to_string()]).int(),
        0
    );
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    cluster.finish_move(begun);
    player.enter().await;
}

/// The driver kept the password that it had read when it connected first: after a rotation it reached no node any more that it was
/// not connected with.
#[tokio::test]
async fn after_a_rotation_each_node_of_a_cluster_is_reached_with_the_new_password() {
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let rotate = |password: &str| {
        fs::write(&file, password).unwrap();
        for node in cluster.nodes() {
            let given = format!(">{password}");
            node.command(&["ACL", "SETUSER", "app", "on", "resetpass", &given, "~*", "&*", "+@all"]);
        }
    };
    rotate("one");
    let hosts = url(&cluster).replace("redis-cluster://", "redis-cluster://app@");
    let backend = redis(&format!("{hosts}?password_file={}", file.display()));
    Player::new(backend.clone(), "first").enter().await;
    rotate("two");
    let connected = |node: &RedisServer| node.command(&["CLIENT", "LIST"]).text().contains("user=app");
    for n in 0..24 {
        Player::new(backend.clone(), &format!("job/{n:02}")).enter().await;
    }
    let masters: Vec<u16> = (0..24).map(|n| cluster.owner_of(&format!("job/{n:02}")).port()).collect();
    assert!(masters.iter().all(|port| connected(cluster.node(*port))), "{masters:?}");
    // A file that is behind for a moment ends no waiter.
    fs::write(&file, "wrong").unwrap();
    let lost = cluster.owner_of("first");
    lost.command(&["CLIENT", "KILL", "USER", "app"]);
    let player = Player::new(backend.clone(), "first").waiting(WaitMode::No);
    until("a claim is refused", PATIENCE, async || match player.backend.claim(&player.claim).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            error.outcome() == Outcome::NotApplied
        }
    })
    .await;
    fs::write(&file, "two").unwrap();
    until("it goes on", PATIENCE, async || player.backend.claim(&player.claim).await.is_ok()).await;
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

/// A node that had not joined answered first, with an empty map. Then no request reached the right node, and `list` was
/// empty.
#[tokio::test]
async fn a_node_that_never_joined_decides_nothing() {
    let (cluster, stranger) = (Cluster::start(), Recipe::new().alone_in_a_cluster().start());
    let ports = [vec![stranger.port()], cluster.ports()].concat();
    for n in 0..12 {
        let backend = redis(&url_of(&ports));
        Player::new(backend.clone(), &format!("job/{n:02}")).enter().await;
        assert_eq!(backend.list("job/").await.unwrap().len(), n + 1);
    }
    let player = Player::new(redis(&url_of(&[stranger.port()])), "job").waiting(WaitMode::No);
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("is in no Redis Cluster"), "{error}");
}

/// The URL mixes two Clusters: the first that answered was used, and two held.
#[tokio::test]
async fn most_of_the_named_nodes_say_which_cluster_is_meant() {
    let cluster = Cluster::start();
    let stranger = cluster.replicas()[0];
    cluster.remove(stranger);
    cluster.found_another(stranger);
    let [one, two, ..] = *cluster.running() else { panic!("no nodes") };
    for n in 0..8 {
        let name = format!("job/{n}");
        let ports = [stranger, one.port(), two.port()];
        Player::new(redis(&url_of(&ports)), &name).enter().await;
        let key = cluster.owner_of(&name).command(&["EXISTS", &name]);
        assert_eq!(key.int(), 1, "{name} is in the other one");
    }
    let player = Player::new(redis(&url_of(&[stranger, one.port()])), "job").waiting(WaitMode::No);
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    let chain = format!("{error:?}");
    assert!(error.to_string().contains("different Redis Clusters"), "{error}");
    for port in [stranger, one.port()] {
        assert!(chain.contains(&format!("127.0.0.1:{port}")), "{chain}");
    }
}

/// The named node leaves the Cluster, or joins another one, and the process reconnects.
async fn connecting_anew_after_the_named_node_has_left(is_another: bool) {
    let cluster = Cluster::start();
    let named = cluster.replicas()[0];
    let (there, here) = (redis(&url(&cluster)), redis(&url_of(&[named])));
    let (holder, waiter) = (Player::new(there.clone(), "job"), Player::new(here.clone(), "job"));
    let (waiter, mine) = (waiter.waiting(WaitMode::No), Player::new(here.clone(), "mine"));
    let (grant, kept) = (holder.enter().await, mine.enter().await);
    cluster.remove(named);
    if is_another {
        cluster.found_another(named);
    }
    kill_connections(&cluster);
    until("it is asked who holds", PATIENCE, async || match here.claim(&waiter.claim).await {
        Ok(answer) => {
            assert!(!matches!(answer, ClaimAnswer::Granted(_)), "two hold: {answer:?}");
            true
        }
        Err(_) => false,
    })
    .await;
    assert!(matches!(here.renew(&[kept]).await[..], [Ok(Renewal::Renewed)]), "a lease is lost");
    until("the holder goes on", PATIENCE, async || {
        let [renewed] = &there.renew(std::slice::from_ref(&grant)).await[..] else { panic!("one") };
        assert!(!matches!(renewed, Ok(Renewal::Gone)), "the holder has lost it");
        renewed.is_ok()
    })
    .await;
}

/// While the named node was in no Cluster, a process that reconnected lost its leases.
#[tokio::test]
async fn a_lease_outlives_that_the_named_node_leaves() {
    connecting_anew_after_the_named_node_has_left(false).await;
}

/// L1: the named node joined another Cluster, and a process that reconnected was granted a lock there that another
/// process held.
#[tokio::test]
async fn a_node_that_left_leads_to_no_other_cluster() {
    connecting_anew_after_the_named_node_has_left(true).await;
}

/// The node for hints left the Cluster, and its connection stayed open: no hint arrived any more.
#[tokio::test]
async fn hints_come_from_a_node_of_the_cluster() {
    let cluster = Cluster::start();
    let named = cluster.replicas()[0];
    let (holder, waiter) =
        (Player::new(redis(&url(&cluster)), "job"), Player::new(redis(&url_of(&[named])), "job"));
    holder.enter().await;
    let mut stream = waiter.backend.wakes(waiter.claim.owner.process(), Audience::Waiters);
    waiter.queue_behind(0).await;
    let channel = format!("tenure:p:{}", waiter.claim.owner.process());
    let listens = |port: u16| {
        let channels = cluster.node(port).command(&["PUBSUB", "CHANNELS", &channel]).texts();
        !channels.is_empty()
    };
    assert!(listens(named));
    cluster.remove(named);
    kill_connections_of(cluster.owner_of("job"));
    until("the waiter listens elsewhere", PATIENCE, async || {
        let _ = waiter.backend.claim(&waiter.claim).await;
        !listens(named)
    })
    .await;
    until("the holder has released", PATIENCE, async || {
        holder.backend.release(&holder.claim.name, holder.claim.owner).await.is_ok()
    })
    .await;
    let woken = async {
        while !matches!(stream.next().await, WakeEvent::Owner(owner) if owner == waiter.claim.owner) {}
    };
    in_time("a hint comes", Duration::from_secs(5), woken).await;
}

/// The only named node died, and leases on other, connected masters were lost.
#[tokio::test]
async fn leases_on_other_masters_outlive_the_only_named_node() {
    let cluster = Cluster::start();
    without_fail_over(&cluster);
    let [first, second] = names_apart(&cluster);
    let named = cluster.owner_of(&first).port();
    let player = Player::new(redis(&url_of(&[named])), &second);
    let grant = player.enter().await;
    cluster.node(named).kill();
    for _ in 0..2 {
        until("the lease is renewed", PATIENCE, async || {
            let answer = player.backend.renew(std::slice::from_ref(&grant)).await.remove(0);
            assert!(!matches!(answer, Ok(Renewal::Gone)), "it is lost");
            answer.is_ok()
        })
        .await;
        kill_connections(&cluster);
    }
}

/// A node that hung made renewals on all others count as unanswered: the engine gives up a renewal after a sixth of the
/// ttl.
#[tokio::test]
async fn a_node_that_hangs_delays_no_renewal_elsewhere() {
    let cluster = Cluster::start();
    without_fail_over(&cluster);
    let names = names_apart(&cluster);
    let backend = redis(&format!("{}?response_timeout=5s", url(&cluster)));
    let mut grants = Vec::new();
    for name in &names {
        grants.push(Player::new(backend.clone(), name).enter().await);
    }
    let hung = cluster.owner_of(&names[0]).port();
    cluster.node(hung).stop();
    for _ in 0..3 {
        let renewed = tokio::time::timeout(grants[0].ttl / 6, backend.renew(&grants)).await;
        let [lost, kept] = &renewed.expect("the engine would have given up")[..] else { panic!("two") };
        let lost = lost.as_ref().unwrap_err();
        assert!(lost.kind().is_transient(), "{lost:?}");
        assert!(matches!(kept, Ok(Renewal::Renewed)), "{kept:?}");
    }
    cluster.node(hung).resume();
    let renewed = async || backend.renew(&grants).await.iter().all(|it| matches!(it, Ok(Renewal::Renewed)));
    until("both are renewed", PATIENCE, renewed).await;
}
