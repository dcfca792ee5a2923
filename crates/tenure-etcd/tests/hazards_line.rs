//! Hazards of a line: leases that end under its feet, replies that are lost, waiters that vanish. Numbers: `docs/evidence/schedules.toml`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tenure_core::{Audience, ClaimAnswer, Outcome, OwnerId, Released, Renewal, WaitMode, WakeEvent};
use tenure_testkit::{
    conformance::player::Player, etcd::EtcdServer, patience::slowness, polls::dropped_after, proxy::Proxy,
};

use crate::stage::{GRAIN, PATIENCE, Referee, becomes, etcd, left, locker, named, nothing_is_left};

/// The lease that the first key of a lock hangs on, as etcdctl wants it.
fn lease_of(server: &EtcdServer, key: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(&server.ask(&["get", key, "-w", "json"])).unwrap();
    format!("{:x}", json["kvs"][0]["lease"].as_i64().unwrap())
}

fn only_key(server: &EtcdServer) -> String {
    let (keys, _) = left(server);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].clone()
}

/// L4, L5: somebody revokes the lease of a holder: it is told at once, and what is gone stays gone.
#[tokio::test]
async fn a_holder_whose_lease_is_revoked_is_told_and_stays_out() {
    let server = EtcdServer::start();
    let holder = Player::new(etcd(&server.url("")), "job");
    let mut hints = holder.backend.wakes(holder.claim.owner.process(), Audience::Holders);
    let grant = holder.enter().await;
    server.ask(&["lease", "revoke", &lease_of(&server, &only_key(&server))]);
    let revoked = Instant::now();
    assert_eq!(hints.next().await, WakeEvent::Owner(holder.claim.owner));
    println!("told after {:?}", revoked.elapsed());
    assert_eq!(holder.renew(&grant).await, Renewal::Gone);
    assert_eq!(holder.leave().await, Released::WasGone);
    nothing_is_left(&server).await;
}

/// The engine stops the work at once when a lease is ended by hand. L1.
#[tokio::test]
async fn a_guard_hears_of_a_revoked_lease_long_before_its_end() {
    let server = EtcdServer::start();
    let guard = locker(&server.url("")).mutex("job").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.ask(&["lease", "revoke", &lease_of(&server, &only_key(&server))]);
    let revoked = Instant::now();
    guard.lost().await;
    assert!(revoked.elapsed() < Duration::from_secs(2) * slowness(), "{:?}", revoked.elapsed());
}

/// Hazard 47, etcd #11456: the lease of a waiter ends while it waits. It does not enter on a place that it has no more.
#[tokio::test]
async fn a_waiter_whose_lease_ended_does_not_enter_on_its_old_place() {
    let server = EtcdServer::start();
    for ttl in [Duration::from_secs(3), Duration::from_secs(10)] {
        let backend = etcd(&server.url(""));
        let [holder, mut waiter, last] = [(); 3].map(|()| Player::new(backend.clone(), "job"));
        let held = holder.enter().await;
        waiter.claim.ttl = ttl;
        waiter.queue_behind(0).await;
        let (keys, _) = left(&server);
        let id = format!("{:x}", lease_id(waiter.claim.owner));
        let key = keys.into_iter().find(|key| key.ends_with(&format!("/{id}"))).unwrap();
        last.queue_behind(1).await;
        server.ask(&["lease", "revoke", &lease_of(&server, &key)]);
        holder.leave().await;
        assert!(!waiter.try_enter().await, "it is behind the other one now");
        let next = last.enter().await;
        last.leave().await;
        let entered = waiter.enter().await;
        assert!(held.token < next.token && next.token < entered.token);
        waiter.leave().await;
        nothing_is_left(&server).await;
    }
}

/// The id that the key of an owner is named after: 63 bits of its own, folded.
fn lease_id(owner: OwnerId) -> u64 {
    let hex = owner.to_string();
    let half = |range| u64::from_str_radix(&hex[range], 16).unwrap();
    (half(16..32) ^ half(32..48)) & (u64::MAX >> 1)
}

/// L9, hazards 14 and 15: the reply to each request of a claim is lost, wherever it tears. What is said is true, and asking
/// again with the same owner settles it; no ghost stays.
#[tokio::test]
async fn a_lost_reply_to_a_claim_leaves_no_ghost() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let torn = etcd(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let (mut unknown, mut refused, mut last) = (0, 0, 0);
    for bytes in (1..700).step_by(23) {
        let player = Player::new(torn.clone(), "job");
        // A connection that is there: what tears is an answer.
        player.backend.inspect(&player.claim.name).await.unwrap();
        proxy.cut_after_bytes(bytes);
        match player.backend.claim(&player.claim).await {
            Ok(answer) => assert!(matches!(answer, ClaimAnswer::Granted(_)), "{answer:?}"),
            Err(error) if error.outcome() == Outcome::NotApplied => {
                refused += 1;
                assert_eq!(left(&server).0, Vec::<String>::new(), "{error:?}");
            }
            Err(_) => unknown += 1,
        }
        proxy.heal();
        let grant = becomes("it is let in", async || match player.backend.claim(&player.claim).await {
            Ok(ClaimAnswer::Granted(grant)) => Some(grant),
            _ => None,
        })
        .await;
        assert!(grant.token.get() > last);
        last = grant.token.get();
        let other = Player::new(etcd(&server.url("")), "job").waiting(WaitMode::No);
        assert!(!other.try_enter().await, "two hold");
        assert_eq!(player.leave().await, Released::Released);
        nothing_is_left(&server).await;
    }
    println!("{unknown} claims of unknown outcome, {refused} not applied");
    assert!(unknown >= 5, "{unknown}");
}

/// L9, hazard 15: the reply to a release is lost. It is not said to have been somebody else's.
#[tokio::test]
async fn a_lost_reply_to_a_release_is_no_lie() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let torn = etcd(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let (mut unknown, mut done) = (0, 0);
    for bytes in (1..120).step_by(9) {
        let player = Player::new(torn.clone(), "job");
        player.enter().await;
        proxy.cut_after_bytes(bytes);
        match player.backend.release(&player.claim.name, player.claim.owner).await {
            Ok(Released::Released) => done += 1,
            Ok(Released::WasGone) => panic!("it held until then"),
            Err(error) => {
                assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
                unknown += 1;
            }
        }
        proxy.heal();
        player.backend.release(&player.claim.name, player.claim.owner).await.unwrap();
        nothing_is_left(&server).await;
    }
    println!("{unknown} releases of unknown outcome, {done} done");
    assert!(unknown >= 3 && done >= 1, "{unknown} {done}");
}

/// L8: whatever a claim was doing when it was dropped, its release leaves nothing behind.
#[tokio::test]
async fn a_dropped_acquire_leaves_neither_key_nor_lease() {
    let server = EtcdServer::start();
    let locks = locker(&server.url(""));
    let lock = locks.mutex("job");
    let mut polls = 1;
    loop {
        let guard = dropped_after(polls, Box::pin(lock.acquire())).await;
        if let Some(guard) = guard {
            guard.unwrap().release().await.unwrap();
        }
        assert!(locks.flush(PATIENCE).await);
        nothing_is_left(&server).await;
        if polls > 12 {
            break;
        }
        polls += 1;
    }
    let holder = lock.acquire().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(500), locks.mutex("job").acquire()).await;
    assert!(waiting.is_err());
    assert!(locks.flush(PATIENCE).await);
    assert_eq!(left(&server), (vec![only_key(&server)], 1), "the holder's");
    holder.release().await.unwrap();
    nothing_is_left(&server).await;
}

/// L1, L2, L7: many tasks of two processes; never two, and in the order in which they came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_tasks_enter_one_by_one_in_the_order_they_came() {
    let server = EtcdServer::start();
    let referee = Arc::<Referee>::default();
    let both = [locker(&server.url("")), locker(&server.url(""))];
    let holder = both[0].mutex("job").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..20 {
        let (locks, referee, name) = (both[n % 2].clone(), referee.clone(), named("job"));
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let guard = locks.mutex("job").within(PATIENCE * slowness()).acquire().await.unwrap();
                // The create revision is the place in the line: it grows from entry to entry (L7).
                referee.enters(guard.token().get());
                tokio::time::sleep(Duration::from_millis(1)).await;
                referee.leaves();
                guard.release().await.unwrap();
            }
        }));
        // Of each process eight have places, and the others stand behind them.
        let (look, places) = (&both[0], (n + 1).min(16));
        let waits = async || (look.inspect(&name).await.unwrap().queue.len() >= places).then_some(());
        becomes("it waits", waits).await;
    }
    holder.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(referee.entries(), 100);
    nothing_is_left(&server).await;
}

/// L6, L8: a waiter that died bars those behind it as long as its place, not as long as its ttl.
#[tokio::test]
async fn a_dead_waiter_with_a_long_ttl_bars_the_line_for_six_seconds() {
    let server = EtcdServer::start();
    let [holder, mut dead, behind] = [(); 3].map(|()| Player::new(etcd(&server.url("")), "job"));
    holder.enter().await;
    dead.claim.ttl = Duration::from_secs(60);
    dead.queue_behind(0).await;
    let died = Instant::now();
    behind.queue_behind(1).await;
    holder.leave().await;
    becomes("the one behind is let in", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        behind.try_enter().await.then_some(())
    })
    .await;
    let took = died.elapsed();
    println!("a dead waiter barred the line for {took:?}");
    assert!(took > Duration::from_secs(5), "its place was a lease: {took:?}");
    assert!(took < Duration::from_secs(6) + GRAIN * slowness(), "{took:?}");
}

/// A lease can be made longer by hand, again and again, and its holder stays the same.
#[tokio::test]
async fn a_lease_is_lengthened_by_hand_and_left_truthfully() {
    let server = EtcdServer::start();
    let player = Player::new(etcd(&server.url("")), "job");
    let mut grant = player.enter().await;
    for seconds in [20, 40, 60, 25] {
        grant.ttl = Duration::from_secs(seconds);
        assert_eq!(player.renew(&grant).await, Renewal::Renewed);
        let view = player.backend.inspect(&player.claim.name).await.unwrap();
        let left = view.holders[0].expires_in.unwrap();
        assert!(left + Duration::from_secs(1) * slowness() >= grant.ttl, "{left:?}");
        assert_eq!(view.holders[0].token, Some(grant.token));
    }
    assert_eq!(left(&server).1, 1, "one lease is left");
    // Another process, which knows the owner only.
    let other = etcd(&server.url(""));
    assert_eq!(other.release(&player.claim.name, player.claim.owner).await.unwrap(), Released::Released);
    assert_eq!(other.release(&player.claim.name, player.claim.owner).await.unwrap(), Released::WasGone);
    assert_eq!(player.renew(&grant).await, Renewal::Gone);
    nothing_is_left(&server).await;
}

/// L4: a waiter is not taken for a holder by a renewal that knows its owner only.
#[tokio::test]
async fn a_waiter_cannot_be_renewed_by_hand() {
    let server = EtcdServer::start();
    for ttl in [3, 10] {
        let [holder, mut waiter] = [(); 2].map(|()| Player::new(etcd(&server.url("")), "job"));
        let mut grant = holder.enter().await;
        waiter.claim.ttl = Duration::from_secs(ttl);
        waiter.queue_behind(0).await;
        grant.owner = waiter.claim.owner;
        grant.token = tenure_core::FencingToken::new(0);
        assert_eq!(waiter.renew(&grant).await, Renewal::Gone);
        grant.owner = holder.claim.owner;
        assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
        waiter.leave().await;
        holder.leave().await;
    }
    nothing_is_left(&server).await;
}
