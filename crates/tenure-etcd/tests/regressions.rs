//! Bugs that were found after they were made: each is told in two sentences, and cannot come back.

use std::time::Duration;

use etcd_client::{Client, Txn, TxnOp};
use tenure_core::{ClaimAnswer, ErrorKind, Grant, Outcome, Released, Renewal, WaitMode};
use tenure_testkit::{
    conformance::player::Player,
    etcd::{EtcdCluster, EtcdServer},
    patience::connections_that_impatience_costs,
    proxy::Proxy,
};

use crate::stage::{becomes, etcd, late::Late, left, locker, nothing_is_left};

/// Pieces that one claim says at most.
const MANY: usize = 200;

/// What was held back arrives; whoever holds goes on holding, and nobody else gets in.
async fn holds_on(holder: &Player, grant: &Grant, late: &Late, number: usize) {
    late.let_go();
    let other = Player::new(holder.backend.clone(), holder.claim.name.as_str()).waiting(WaitMode::No);
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!other.try_enter().await, "two hold: piece {number} came late");
        assert_eq!(holder.renew(grant).await, Renewal::Renewed, "piece {number} came late");
    }
}

/// A waiter queues, and one piece of what it says is late; it enters all the same, and then the piece arrives. False if nothing
/// was held back.
async fn queue_late(server: &EtcdServer, late: &Late, waiter: &mut Player, number: usize) -> bool {
    let holder = Player::new(etcd(&server.url("")), waiter.claim.name.as_str());
    waiter.claim.ttl = Duration::from_secs(30);
    // A connection that is there: what is late is a request.
    waiter.backend.inspect(&waiter.claim.name).await.unwrap();
    holder.enter().await;
    late.hold(number);
    let claimed = tokio::time::timeout(Duration::from_secs(1), waiter.backend.claim(&waiter.claim)).await;
    let was_held = late.has_held();
    if !matches!(claimed, Ok(Ok(ClaimAnswer::Queued { .. }))) {
        becomes("it queues", async || waiter.backend.claim(&waiter.claim).await.ok()).await;
    }
    holder.leave().await;
    let grant = becomes("it is let in", async || match waiter.backend.claim(&waiter.claim).await {
        Ok(ClaimAnswer::Granted(grant)) => Some(grant),
        _ => None,
    })
    .await;
    holds_on(waiter, &grant, late, number).await;
    assert_eq!(waiter.leave().await, Released::Released);
    was_held
}

/// A member hung with a waiter's `LeaseRevoke`, or its move to the lease of its place, and the next member did it; once it held, the
/// copy came and ended its lease, or took it back among the waiters. Both named the same lease as its hold does. L1, hazard 58.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_late_copy_of_a_waiters_request_ends_its_hold() {
    let cluster = EtcdCluster::start(3);
    for number in 1..MANY {
        let late = Late::to(cluster.member(0).port()).await;
        let url = format!(
            "etcd://{},{},{}",
            late.address(),
            cluster.member(1).address(),
            cluster.member(2).address()
        );
        let mut waiter = Player::new(etcd(&url), &format!("job{number}"));
        if !queue_late(cluster.member(1), &late, &mut waiter, number).await {
            println!("a claim says {number} pieces");
            assert!(number > 4, "{number}");
            return;
        }
    }
    panic!("a claim never ends");
}

/// The same with one endpoint: the connection stalled, the claim was given up and asked anew, and then the request came that was
/// given up. L1, L9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_a_claim_that_was_given_up_ends_its_hold() {
    let server = EtcdServer::start();
    for number in 1..MANY {
        let late = Late::to(server.port()).await;
        let mut waiter = Player::new(etcd(&format!("etcd://{}", late.address())), &format!("job{number}"));
        if !queue_late(&server, &late, &mut waiter, number).await {
            assert!(number > 4, "{number}");
            return;
        }
    }
    panic!("a claim never ends");
}

/// A lease was made longer by hand, back and forth between two ids of its owner, and the end of the one it had left came late. It met
/// the lease that carried the key again. L1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_late_copy_of_a_lengthening_ends_the_hold() {
    let cluster = EtcdCluster::start(3);
    for number in 1..MANY {
        let late = Late::to(cluster.member(0).port()).await;
        let url = format!(
            "etcd://{},{},{}",
            late.address(),
            cluster.member(1).address(),
            cluster.member(2).address()
        );
        let holder = Player::new(etcd(&url), &format!("job{number}"));
        let mut grant = holder.enter().await;
        late.hold(number);
        for seconds in [15, 20] {
            grant.ttl = Duration::from_secs(seconds);
            assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
        }
        let was_held = late.has_held();
        holds_on(&holder, &grant, &late, number).await;
        assert_eq!(holder.leave().await, Released::Released);
        if !was_held {
            assert!(number > 4, "{number}");
            return;
        }
    }
    panic!("a renewal never ends");
}

/// One process remembers a lease of its owner that the key has left, for another process claimed for the same owner. Its release
/// ends the lock all the same, and says so. L9.
#[tokio::test]
async fn a_release_follows_a_key_that_another_process_has_moved() {
    let server = EtcdServer::start();
    let (here, elsewhere) = (Player::new(etcd(&server.url("")), "job"), etcd(&server.url("")));
    let first = here.enter().await;
    let Ok(ClaimAnswer::Granted(second)) = elsewhere.claim(&here.claim).await else { panic!("it holds") };
    assert_eq!(first.token, second.token);
    assert_eq!(here.renew(&first).await, Renewal::Renewed);
    assert_eq!(here.leave().await, Released::Released);
    assert_eq!(elsewhere.release(&here.claim.name, here.claim.owner).await.unwrap(), Released::WasGone);

    let first = here.enter().await;
    let Ok(ClaimAnswer::Granted(_)) = elsewhere.claim(&here.claim).await else { panic!("it holds") };
    assert_eq!(here.leave().await, Released::Released, "{first:?}");
    nothing_is_left(&server).await;
}

/// Every guard that was dropped, and so released through the handle of the keeper, left a watcher in the server and a wish in the handle
/// that had claimed, for ever. L8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_guard_leaves_no_watcher() {
    const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";
    let server = EtcdServer::start();
    let locks = locker(&server.url(""));
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(locks.mutex(format!("job{n}")).acquire().await.unwrap());
    }
    let watchers = async |count: f64| (server.metric(WATCHERS) == count).then_some(());
    becomes("all are watched", async || watchers(20.0).await).await;
    drop(guards);
    becomes("none is watched", async || watchers(0.0).await).await;
    nothing_is_left(&server).await;
}

/// The line of a lock is read with all keys whose names begin alike, and when they were too many the answer was taken for a broken
/// connection: members were passed over, and nobody was told why. The lock beside it goes on. L9.
#[tokio::test]
async fn a_lock_above_thousands_of_others_is_refused_with_a_reason() {
    let server = EtcdServer::start();
    let mut client = Client::connect([server.address()], None).await.unwrap();
    let value = "x".repeat(300);
    for n in 0..150 {
        let put = |i| TxnOp::put(format!("job/{n}-{i}/1234abcd"), value.clone(), None);
        client.txn(Txn::new().and_then((0..100).map(put).collect::<Vec<_>>())).await.unwrap();
    }
    let [player, beside] = ["job", "beside"].map(|name| Player::new(etcd(&server.url("")), name));
    let error = player.backend.claim(&player.claim).await.expect_err("too much to read");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::Unknown), "{error:?}");
    assert!(error.to_string().contains("too many other keys"), "{error}");
    assert_eq!(player.leave().await, Released::Released, "what was written is found and ended");
    beside.enter().await;
    assert_eq!(beside.leave().await, Released::Released);
    let (keys, leases) = left(&server);
    assert_eq!((keys.len(), leases), (15_000, 0));
}

/// Two requests that were dropped at once, by callers with little patience, left the stall detector armed: after an idle second the
/// connection, which had answered both, was dropped as dead. It was mended on one store and not on its sibling.
#[tokio::test]
async fn callers_with_little_patience_cost_no_connection() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = etcd(&format!("etcd://127.0.0.1:{}", proxy.port()));
    assert_eq!(connections_that_impatience_costs(&backend, &proxy).await, 0);
}
