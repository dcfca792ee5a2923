//! Bugs that a fresh review found, each as the story that showed it.

use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::{
    Adopt, Audience, ClaimAnswer, ErrorKind, Grant, Outcome, OwnerId, Renewal, WaitMode, WakeEvent,
};
use tenure_redis::{LINGER, LOOK};
use tenure_testkit::{
    clock::Clock,
    conformance::player::{Player, fresh},
    patience::{connections_that_impatience_costs, eventually, in_time, until},
    polls::is_pending,
    proxy::Proxy,
    redis::{Recipe, RedisServer},
};
use tokio::runtime::Builder;

use crate::stage::{
    calls,
    entry::{LEASE, SHORT, claimant, let_in, passes, refusal},
    hint, redis,
};

/// L8: a handle that only renews and releases, as the keeper's does, was connected while the gate was closed. It never looked
/// again, sent a gate that no script knows, and what it released was handed to nobody.
#[tokio::test]
async fn a_handle_that_met_a_closed_gate_hands_on_when_it_is_open() {
    let server = RedisServer::start();
    let url = server.url("?max_ttl=1s");
    let keeper = redis(&url);
    let (mut holder, mut waiter) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    (holder.claim.ttl, waiter.claim.ttl) = (Duration::from_secs(1), Duration::from_secs(1));
    keeper.inspect(&holder.claim.name).await.unwrap();
    let_in(&holder).await;
    let _listens = waiter.backend.wakes(waiter.claim.owner.process(), Audience::Waiters);
    waiter.queue_behind(0).await;
    keeper.release(&holder.claim.name, holder.claim.owner).await.unwrap();
    let view = keeper.inspect(&holder.claim.name).await.unwrap();
    assert_eq!(view.holders[0].owner, waiter.claim.owner.to_string(), "handed on");
}

/// L1, A3: a server that had been up for long and had no record was taken for one that nobody had used. Behind a name or a
/// virtual address, a warm spare let a second holder in 65 ms after the first.
#[tokio::test]
async fn a_warm_spare_at_the_same_address_waits_for_the_leases_of_the_other() {
    let (first, clock) = (RedisServer::start(), Clock::new());
    clock.step(-60_000);
    let spare = Recipe::new().clock(&clock).start();
    clock.step(0);
    eventually("the spare has been up for long", Duration::from_secs(20), || {
        (spare.info("server", "uptime_in_seconds").parse::<u64>().unwrap() > 50).then_some(())
    });
    first.has_waited("tenure:one", "guard=on max_ttl=1s");
    let address = Proxy::to(first.port(), 1);
    let url = format!("redis://127.0.0.1:{}/{SHORT}", address.port());
    let held = let_in(&claimant(&url, "job")).await;
    first.kill();
    address.lead_to(spare.port());
    let next = let_in(&claimant(&url, "job")).await;
    next.is_after(&held, "is new to Tenure");
}

/// L1, A3: the spare is in use at another address, and grants by its own record. Who knew the server before waits all the
/// same, by its own clock; who uses the spare is not held up.
#[tokio::test]
async fn who_saw_another_server_at_an_address_waits_though_the_new_one_may_grant() {
    let servers = [RedisServer::start(), RedisServer::start()];
    servers.iter().for_each(|server| server.has_waited("tenure:one", "guard=on max_ttl=1s"));
    let address = Proxy::to(servers[0].port(), 1);
    let url = format!("redis://127.0.0.1:{}/{SHORT}", address.port());
    let (one, two) = (claimant(&url, "job"), claimant(&url, "job"));
    let_in(&two).await;
    two.leave().await;
    let held = let_in(&one).await;
    servers[0].kill();
    address.lead_to(servers[1].port());
    let next = let_in(&two).await;
    next.is_after(&held, "another Redis server answered at this address before");
    let elsewhere = let_in(&claimant(&servers[1].url(SHORT), "other")).await;
    assert!(elsewhere.errors.is_empty(), "{:?}", elsewhere.errors);
}

/// L1. A master was made to follow an older copy of itself and made master again. The copy's record has the gate of connections
/// that are open, so they were granted what the copy had never heard of: two held at once.
#[tokio::test]
async fn an_open_connection_sees_that_its_server_followed_another_one_meanwhile() {
    let (server, copy) = (RedisServer::start(), RedisServer::start());
    server.has_waited("tenure:one", "guard=on max_ttl=1m");
    let [mut one, two] = ["job", "job"].map(|name| claimant(&server.url("?max_ttl=1m"), name));
    one.claim.ttl = Duration::from_secs(60);
    let_in(&two).await;
    two.leave().await;
    copy_record(&server, &copy);
    let held = let_in(&one).await;
    copy.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    server.command(&["REPLICAOF", "127.0.0.1", &copy.port().to_string()]);
    eventually("it has the other one's data", Duration::from_secs(20), || {
        (server.info("replication", "master_link_status") == "up").then_some(())
    });
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(server.command(&["EXISTS", "job"]).int(), 0, "the lock is forgotten");
    // Only what was looked at a moment ago is believed.
    tokio::time::sleep(LOOK).await;
    passes(&refusal(&two).await, "was promoted and may never have received some locks");
    assert!(std::time::Instant::now() < held.believed_until(), "the test shows something");
}

/// L1: a claim took the answer of a look at the replicas that another claim had begun ten seconds before, while the server was
/// still the master. What was learnt then said nothing of now: two held for 2.7 s.
#[tokio::test]
async fn a_claim_does_not_take_a_look_that_was_begun_too_long_before_it() {
    let server = RedisServer::start();
    server.has_waited("tenure:one", "guard=on max_ttl=1s");
    let proxy = Proxy::to(server.port(), 1);
    let backend = redis(&format!("redis://127.0.0.1:{}/{SHORT}&response_timeout=30s", proxy.port()));
    let [one, two] = ["a", "b"].map(|name| {
        let mut player = Player::new(backend.clone(), name).waiting(WaitMode::No);
        player.claim.ttl = LEASE;
        player
    });
    // The second time it looks: the server has the script by then.
    for _ in 0..2 {
        let_in(&one).await;
        one.leave().await;
        tokio::time::sleep(LOOK).await;
    }
    let mut own = 0;
    let mut looks = || {
        own += 1;
        calls(&server)["info"] + 1 - own
    };
    let before = looks();
    proxy.hold_replies();
    let mut first = Box::pin(backend.claim(&one.claim));
    until("the server has answered a look", Duration::from_secs(10), async || {
        let early = first.as_mut().now_or_never();
        assert!(early.is_none(), "{early:?}");
        looks() == before + 1
    })
    .await;
    tokio::time::sleep(LOOK).await;
    let mut second = Box::pin(backend.claim(&two.claim));
    assert!(is_pending(&mut second).await, "it waits for the look of the first one");
    proxy.release();
    let (first, second) = tokio::join!(first, second);
    for answer in [first, second] {
        assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "{answer:?}");
    }
    assert_eq!(looks(), before + 2, "the second one has looked itself");
}

/// L6: over RESP2 a task read the hints for all waiters of a process, in the runtime of the first one. Once that had ended or rested,
/// no waiter was notified any more; under contention the process never had its turn.
#[test]
fn hints_come_after_the_runtime_of_the_first_waiter_has_ended_or_while_it_rests() {
    let server = RedisServer::start();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let lasting = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (has_ended, name) in [(true, "ended"), (false, "rests")] {
        let first = runtime();
        let backend = redis(&server.url("?guard=off&protocol=2"));
        let player = Player::new(backend.clone(), &format!("first/{name}"));
        lasting.block_on(backend.inspect(&player.claim.name)).unwrap();
        first.block_on(player.enter());
        let _rests = (!has_ended).then_some(first);
        lasting.block_on(async {
            let holder = Player::new(redis(&server.url("?guard=off")), name);
            holder.enter().await;
            let mut waiting = player.claim.clone();
            (waiting.name, waiting.owner) = (holder.claim.name.clone(), another_owner(&player));
            let mut hints = backend.wakes(waiting.owner.process(), Audience::Waiters);
            let answer = backend.claim(&waiting).await.unwrap();
            assert!(matches!(answer, ClaimAnswer::Queued { .. }), "{answer:?}");
            holder.leave().await;
            hint(&mut hints, waiting.owner).await;
        });
    }
}

/// The same where hints come over the connection of the requests: the runtime that has made it ends, and each waiter is notified of
/// that.
#[test]
fn waiters_are_notified_when_the_runtime_ends_that_reads_their_connection() {
    let server = RedisServer::start();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (first, lasting) = (runtime(), runtime());
    let backend = redis(&server.url("?guard=off"));
    let player = Player::new(backend.clone(), "job");
    first.block_on(player.enter());
    let mut hints = backend.wakes(player.claim.owner.process(), Audience::Waiters);
    drop(first);
    let woken = lasting.block_on(in_time("a waiter is notified", Duration::from_secs(5), hints.next()));
    assert_eq!(woken, WakeEvent::All);
}

/// Of the same process.
fn another_owner(player: &Player) -> OwnerId {
    OwnerId::from_random(player.claim.owner.process(), u128::from(fresh()).to_be_bytes())
}

/// L1. A holder that was led to the promoted server renewed there, while the old master went on for some seconds: there its
/// lease ended, and the next one was let in beside it. Found by simulation (`twins`, `all`, seed 621).
#[tokio::test]
async fn a_promoted_server_renews_nothing_while_the_old_master_may_let_others_in() {
    let old = RedisServer::start();
    old.has_waited("tenure:one", "guard=on max_ttl=1m");
    let mut holder = claimant(&old.url("?max_ttl=1m"), "job");
    holder.claim.ttl = Duration::from_secs(60);
    let grant = let_in(&holder).await.grant;
    let new = Recipe::new().replica_of(old.port()).start();
    eventually("the lock has arrived", Duration::from_secs(20), || {
        (new.command(&["EXISTS", "job"]).int() == 1).then_some(())
    });
    new.command(&["REPLICAOF", "NO", "ONE"]);
    let led = redis(&new.url("?max_ttl=1m"));
    let began = std::time::Instant::now();
    let renewed = || async { led.renew(std::slice::from_ref(&grant)).await.remove(0) };
    let error = renewed().await.unwrap_err();
    assert!(error.to_string().contains("it renews nothing for another"), "{error}");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    // Once that one must have stopped, the lease goes on.
    loop {
        match renewed().await {
            Ok(answer) => break assert_eq!(answer, Renewal::Renewed),
            Err(error) => assert!(began.elapsed() < Duration::from_secs(40), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(began.elapsed() >= LINGER - Duration::from_secs(1), "{:?}", began.elapsed());
}

/// As a backup does, or a replica that is cut off.
fn copy_record(from: &RedisServer, to: &RedisServer) {
    let fields = from.command(&["HGETALL", "tenure:one"]).texts();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    to.command(&[&["HSET", "tenure:one"], &fields[..]].concat());
}

/// L1, H4.5: a lease longer than the guard waits for outlives the wait after a restart. A renewal made one.
#[tokio::test]
async fn no_lease_is_longer_than_the_guard_waits_for() {
    let server = RedisServer::start();
    let mut player = Player::new(redis(&server.url("?max_ttl=1s")), "job").waiting(WaitMode::No);
    let too_long = player.backend.claim(&player.claim).await.unwrap_err();
    assert_eq!((too_long.kind(), too_long.outcome()), (ErrorKind::Invalid, Outcome::NotApplied));
    player.claim.ttl = Duration::from_secs(1);
    let_in(&player).await;
    let mut grant = player.enter().await;
    grant.ttl = Duration::from_secs(3600);
    let error = player.backend.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied));
    assert!(server.command(&["PTTL", "job"]).int() <= 1000);
}

/// L1, H4.5: while others adopt new settings, a holder with the old ones renewed on, and its lease outlived their wait.
#[tokio::test]
async fn a_lease_of_settings_that_were_replaced_is_not_renewed() {
    let server = RedisServer::start();
    let old = Player::new(redis(&server.url("?guard=off")), "job");
    let grant = old.enter().await;
    old.renew(&grant).await;
    redis(&server.url("?max_ttl=2s")).adopt(Adopt::Settings).await.unwrap();
    let error = old.backend.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err();
    assert!(error.to_string().contains("guard=on max_ttl=2s"), "{error}");
}

/// L6: a lock that is held causes no write, so a server that has become a replica never said READONLY, and its session was kept
/// for ever.
#[tokio::test]
async fn a_server_that_became_a_replica_is_left_also_if_the_lock_is_held() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(old.port(), 1);
    let url = format!("redis://127.0.0.1:{}/?max_ttl=1s", proxy.port());
    let mut player = Player::new(redis(&url), "job").waiting(WaitMode::No);
    player.claim.ttl = Duration::from_secs(1);
    let_in(&player).await;
    player.leave().await;
    old.command(&["SET", "job", "theirs"]);
    new.command(&["SET", "job", "theirs"]);
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    proxy.lead_to(new.port());
    new.command(&["DEL", "job"]);
    let_in(&player).await;
}

/// Hazard 36: with a full memory a shared lease was not renewed if another reader's was longer.
#[tokio::test]
async fn a_full_memory_renews_the_shorter_of_two_shared_leases() {
    let server = Recipe::new().memory(0, "noeviction").start();
    let url = server.url("?guard=off");
    let (mut long, short) =
        (Player::new(redis(&url), "cfg").reading(), Player::new(redis(&url), "cfg").reading());
    long.claim.ttl = Duration::from_secs(60);
    long.enter().await;
    let grant = short.enter().await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    short.renew(&grant).await;
}

/// L7: waiters whose connection broke a moment ago were taken for dead, all of them, at the next release.
#[tokio::test]
async fn a_broken_connection_costs_no_place() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let (holder, waiter) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    holder.enter().await;
    waiter.queue_behind(0).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    // The holder listens as well: its first try breaks with its connection.
    while holder.backend.release(&holder.claim.name, holder.claim.owner).await.is_err() {}
    let view = holder.backend.inspect(&holder.claim.name).await.unwrap();
    let is_there = view.queue.iter().map(|w| &w.owner).chain(view.holders.iter().map(|h| &h.owner));
    assert!(is_there.into_iter().any(|owner| *owner == waiter.claim.owner.to_string()), "{view:?}");
    let_in(&waiter).await;
}

/// Two requests that were dropped at once, by callers with little patience, left the stall detector armed: after an idle second the
/// connection, which had answered both, was dropped as dead. It was mended on one store and not on its sibling.
#[tokio::test]
async fn callers_with_little_patience_cost_no_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = redis(&format!("redis://127.0.0.1:{}/?guard=off", proxy.port()));
    assert_eq!(connections_that_impatience_costs(&backend, &proxy).await, 0);
}

/// L1: while a larger `max_ttl` is rolled out the first new process was refused, and after the record was raised all old ones.
#[tokio::test]
async fn clients_with_a_larger_max_ttl_join_and_take_no_lease_longer_than_the_others_expect() {
    let server = RedisServer::start();
    let (old, new) = (redis(&server.url("?max_ttl=1s")), redis(&server.url("?max_ttl=3s")));
    let ttl = Duration::from_secs(1);
    let holder = Player::new(old.clone(), "old").lasting(ttl);
    let grant = until_granted(&holder).await;
    let (joined, greedy) =
        (Player::new(new.clone(), "new").lasting(ttl), Player::new(new.clone(), "other").lasting(2 * ttl));
    // Also the first claim of a process, before it knows the record.
    for _ in 0..2 {
        let refused = greedy.backend.claim(&greedy.claim).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("--adopt"), "{refused}");
    }
    let theirs = joined.enter().await;
    assert_eq!((new.promises().max_ttl, new.promises().default_ttl()), (3 * ttl, ttl));
    assert_eq!(joined.renew(&theirs).await, Renewal::Renewed);
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    // The record is lost. No matter which client writes it again, nothing is granted before the longest lease has expired.
    server.command(&["FLUSHALL"]);
    let late = Player::new(redis(&server.url("?max_ttl=3s")), "new").lasting(ttl);
    let refused = late.backend.claim(&late.claim).await.unwrap_err();
    assert!(refused.retry_hint().is_some_and(|left| left > 2 * ttl), "{refused}");
    let smaller = Player::new(redis(&server.url("?max_ttl=1s")), "old").lasting(ttl);
    let refused = smaller.backend.claim(&smaller.claim).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("max_ttl=3s"), "{refused}");
}

/// A process that is connected, and only asks for leases that were too long, learns that the record was raised.
#[tokio::test]
async fn a_process_that_runs_learns_of_a_raise() {
    let server = RedisServer::start();
    let (old, new) = (redis(&server.url("?max_ttl=1s")), redis(&server.url("?max_ttl=3s")));
    until_granted(&Player::new(old, "old").lasting(Duration::from_secs(1))).await;
    let long = Player::new(new.clone(), "new").lasting(Duration::from_secs(3));
    let refused = long.backend.claim(&long.claim).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let operator = redis(&server.url("?max_ttl=3s"));
    assert!(!operator.adopt(Adopt::LargerMaxTtl).await.unwrap().wait.is_zero());
    let grant = until_granted(&long).await;
    assert_eq!(long.renew(&grant).await, Renewal::Renewed);
}

/// H4.5: a smaller `max_ttl` is adopted. A lease that is longer ends; the others of its process are renewed.
#[tokio::test]
async fn one_lease_that_is_too_long_does_not_end_the_others() {
    let server = RedisServer::start();
    let (large, small) = (redis(&server.url("?max_ttl=4s")), redis(&server.url("?max_ttl=2s")));
    let lasting = |name, seconds| Player::new(large.clone(), name).lasting(Duration::from_secs(seconds));
    let (long, short) = (until_granted(&lasting("long", 4)).await, until_granted(&lasting("short", 2)).await);
    assert!(small.adopt(Adopt::Settings).await.unwrap().wait > Duration::from_secs(3));
    let grants = [long, short];
    let renewed = large.renew(&grants).await;
    assert!(matches!(renewed[1], Ok(Renewal::Renewed)), "{renewed:?}");
    assert_eq!(renewed[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
}

async fn until_granted(player: &Player) -> Grant {
    loop {
        match player.backend.claim(&player.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => return grant,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                let left = error.retry_hint().unwrap_or_else(|| panic!("{error}"));
                tokio::time::sleep(left).await;
            }
        }
    }
}

/// A record that a newer version has written is refused in one line.
#[tokio::test]
async fn a_server_of_a_newer_version_is_refused() {
    let server = RedisServer::start();
    server.command(&[
        "HSET",
        "tenure:one",
        "run",
        "x",
        "replid",
        "y",
        "ready",
        "1",
        "settings",
        "format=2 guard=on max_ttl=1s",
        "next",
        "",
    ]);
    let player = Player::new(redis(&server.url("?max_ttl=1s")), "job").lasting(Duration::from_secs(1));
    let refused = player.backend.claim(&player.claim).await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Unsupported && refused.to_string().contains("is newer"),
        "{refused}"
    );
}
