//! A master behind Sentinel: found, followed, and not believed when it may have missed a lock.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tenure_core::{Renewal, WaitMode};
use tenure_testkit::{
    conformance::player::Player,
    patience::{eventually, slowness, stretch, until},
    redis::{Certificates, Recipe, SentinelRecipe, Sentinels},
};

use crate::{
    access::{can_do_everything, denied, identity},
    stage::{
        entry::{Entry, let_in_within},
        redis,
    },
};

fn url(all: &Sentinels, query: &str) -> String {
    let hosts: Vec<String> = all.sentinel_ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis-sentinel://{}/?master={}&{query}", hosts.join(","), all.name())
}

fn claimant(url: &str, ttl: Duration) -> Player {
    let mut player = Player::new(redis(url), "job").waiting(WaitMode::No);
    player.claim.ttl = ttl;
    player
}

/// A fail-over takes its time.
async fn let_in(player: &Player) -> Entry {
    let_in_within(Duration::from_secs(60), player).await
}

/// Whether the replica has a key.
fn has_key(all: &Sentinels, master: u16, key: &str) -> bool {
    let replica = all.servers().iter().find(|server| server.port() != master).expect("a replica");
    replica.command(&["EXISTS", key]).int() == 1
}

/// Waits until the replica has a key.
fn has_arrived(all: &Sentinels, master: u16, key: &str) {
    let is_there = || has_key(all, master, key).then_some(());
    eventually("a key has arrived at the replica", Duration::from_secs(10), is_there);
}

/// A replica that has been up for long, is promoted, and never received the lock: the stream to it was cut before. How the
/// first and the second came in.
async fn fail_over(query: &str, ttl: Duration) -> (Entry, Entry) {
    for _ in 0..5 {
        let all = SentinelRecipe::new()
            .replicas(1)
            .down_after(Duration::from_secs(1) * slowness())
            .proxied()
            .start();
        let first = claimant(&url(&all, query), ttl);
        // The record is there and replicated, and the replica is older than any wait.
        let_in(&first).await;
        first.leave().await;
        let before = all.master_port();
        has_arrived(&all, before, "tenure:one");
        all.link(0).stall();
        let first = let_in(&claimant(&url(&all, query), ttl)).await;
        all.server(before).kill();
        // Where that took long, the sentinels have led the replica past its link.
        if has_key(&all, before, "job") {
            continue;
        }
        all.await_master_after(before);
        return (first, let_in(&claimant(&url(&all, query), ttl)).await);
    }
    panic!("the replica has received the lock each time");
}

/// L1, L2, hazard 8. It waits, however long it has been up.
#[tokio::test]
async fn a_promoted_replica_that_missed_the_lock_waits_for_its_end() {
    let ttl = Duration::from_secs(6) * stretch();
    let query = format!("max_ttl={}s", ttl.as_secs());
    let (first, second) = fail_over(&query, ttl).await;
    assert!(second.asked >= first.believed_until(), "let in before the first lease was over");
    assert!(second.grant.token > first.grant.token, "{:?} after {:?}", second.grant, first.grant);
    let why = "was promoted and may never have received some locks";
    assert!(second.refusals().iter().any(|error| error.to_string().contains(why)), "{:?}", second.errors);
}

/// What the guard is for.
#[tokio::test]
async fn without_the_guard_a_promoted_replica_makes_two_holders() {
    let (first, second) = fail_over("guard=off", Duration::from_secs(60) * slowness()).await;
    second.is_beside(&first);
}

/// A planned fail-over in which nothing is lost: the lock is still held, and its holder renews with the new master.
#[tokio::test]
async fn a_holder_follows_its_lock_to_the_new_master() {
    let all = SentinelRecipe::new().replicas(1).start();
    let url = url(&all, "guard=off");
    let holder = claimant(&url, Duration::from_secs(120));
    let grant = let_in(&holder).await.grant;
    has_arrived(&all, all.master_port(), "job");
    all.failover();
    let began = Instant::now();
    loop {
        let answer = holder.backend.renew(std::slice::from_ref(&grant)).await.remove(0);
        if matches!(answer, Ok(Renewal::Renewed)) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30) * slowness(), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!claimant(&url, Duration::from_secs(1)).try_enter().await);
}

/// L1. `SENTINEL FAILOVER` promotes a replica and demotes the old master some ten seconds later. Until then that one granted
/// on, and its leases outlived the wait of the new one by 9.8 s. Here nobody ever demotes it: it stops by itself.
#[tokio::test]
async fn an_old_master_stops_before_the_new_one_begins() {
    let ttl = Duration::from_secs(2);
    let query = "?max_ttl=2s";
    let old = tenure_testkit::redis::RedisServer::start();
    old.has_waited("tenure:one", "guard=on max_ttl=2s");
    let new = Recipe::new().replica_of(old.port()).start();
    let follows = || (new.info("replication", "master_link_status") == "up").then_some(());
    eventually("the replica follows", Duration::from_secs(20), follows);
    let lasting = claimant(&old.url(query), ttl);
    // The replica counts from when a client has seen it acknowledge; and it is the heir if it ran before that.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(2);
    let acked = || {
        let record = old.command(&["HGETALL", "tenure:one"]).texts();
        let at = record.iter().position(|field| field == "acked");
        at.map_or(0, |at| record[at + 1].parse().unwrap())
    };
    while acked() < started.as_millis() {
        let_in(&lasting).await;
        lasting.leave().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    new.command(&["REPLICAOF", "NO", "ONE"]);
    // It is in use all the time, by connections that stay open and by new ones, until it stops or the newcomer is in.
    let (is_in, mut last) = (AtomicBool::new(false), None);
    let on_the_old_side = async {
        while !is_in.load(Ordering::SeqCst) {
            for player in [&lasting, &claimant(&old.url(query), ttl)] {
                let asked = Instant::now();
                match player.backend.claim(&player.claim).await {
                    Ok(tenure_core::ClaimAnswer::Granted(_)) => last = Some(asked),
                    Ok(_) => {}
                    Err(error) if error.to_string().contains("none of them acknowledges") => return,
                    Err(error) => panic!("{error:?}"),
                }
                player.backend.release(&player.claim.name, player.claim.owner).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let newcomer = claimant(&new.url(query), ttl);
    let on_the_new_side = async {
        let entry = let_in(&newcomer).await;
        is_in.store(true, Ordering::SeqCst);
        entry
    };
    let ((), next) = tokio::join!(on_the_old_side, on_the_new_side);
    let last = last.expect("the old master granted on for a while: the test shows something");
    assert!(next.asked >= last + ttl, "two held at once");
    assert!(
        next.refusals().iter().any(|error| error.to_string().contains("was promoted")),
        "{:?}",
        next.errors
    );
}

/// A name that no Sentinel knows, and Sentinels that are not there.
#[tokio::test]
async fn an_unknown_master_is_said_to_be_unknown() {
    let all = SentinelRecipe::new().replicas(1).start();
    let wrong = url(&all, "guard=off").replace(&format!("master={}", all.name()), "master=nobody");
    let player = claimant(&wrong, Duration::from_secs(1));
    let error = player.backend.claim(&player.claim).await.unwrap_err();
    assert!(error.to_string().contains("no Sentinel knows"), "{error:?}");
    assert!(error.to_string().contains("nobody of 127.0.0.1:"), "{error:?}");
}

/// Sentinels name a master by its number, and its certificate is for a name. All of them want a certificate of their clients.
#[tokio::test]
async fn sentinels_and_a_master_that_want_a_certificate_are_shown_one() {
    let (ours, theirs) = (Certificates::of_name("redis.test"), Certificates::new());
    let all = SentinelRecipe::new().server(Recipe::new().mutual_tls(&ours)).replicas(1).start();
    let (right, wrong) = (identity(&ours), identity(&theirs));
    let url = |ca: &Certificates, query: &str| {
        let query = format!("guard=off&ca={}{query}", ca.ca_file().display());
        url(&all, &query).replace("redis-sentinel:", "rediss-sentinel:")
    };
    let named = url(&ours, &format!("{right}&tls_name=redis.test"));
    can_do_everything(&named).await;
    let (wants, refuses) = (
        "wants a client certificate; name it with cert=",
        "does not accept the client certificate that cert=",
    );
    denied(&url(&ours, "&tls_name=redis.test"), wants).await;
    denied(&url(&ours, &format!("{wrong}&tls_name=redis.test")), refuses).await;
    denied(&url(&ours, &right), "is for another name; name it with tls_name=").await;
    denied(&url(&theirs, &format!("{right}&tls_name=redis.test")), "is not trusted; name the file of its CA")
        .await;

    let holder = claimant(&named, Duration::from_secs(120));
    let grant = let_in(&holder).await.grant;
    has_arrived(&all, all.master_port(), "job");
    all.failover();
    until("it is renewed at the new master", Duration::from_secs(30), async || {
        matches!(holder.backend.renew(std::slice::from_ref(&grant)).await.remove(0), Ok(Renewal::Renewed))
    })
    .await;
}
