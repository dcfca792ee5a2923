//! Hazards of a cluster: members that hang or die, a leader that changes, a network that parts. Numbers: `docs/evidence/schedules.toml`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tenure::Locker;
use tenure_testkit::{
    etcd::{EtcdCluster, EtcdServer},
    patience::{slowness, stretch},
    proxy::Proxy,
};

use crate::stage::{self, GRAIN, PATIENCE, Referee, becomes, locker, renewed};

/// Goes in and out until it is told to stop.
async fn contend(locks: Locker, referee: Arc<Referee>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::SeqCst) {
        let lock = locks.mutex("job").ttl(Duration::from_secs(5) * stretch());
        let Ok(guard) = lock.within(PATIENCE * slowness()).acquire().await else { continue };
        referee.enters(guard.token().get());
        tokio::time::sleep(Duration::from_millis(5)).await;
        referee.leaves();
        // After a loss of the reply the lease may end only with its ttl; that is no harm.
        let _ = guard.release().await;
    }
}

/// L1, L2, hazard 58: the endpoint that everybody asks hangs, then the leader dies; those who contend go on, never two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_and_a_leader_that_dies_stop_nobody() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.leader(&[0, 1, 2]);
    // The URL begins with a follower: the one that hangs is asked first.
    let follower = (0..3).find(|&index| index != leader).unwrap();
    let order = [follower, leader, 3 - leader - follower];
    let addresses: Vec<String> = order.map(|index| cluster.member(index).address()).into();
    let url = format!("etcd://{}", addresses.join(","));
    let (referee, is_over) = (Arc::<Referee>::default(), Arc::<AtomicBool>::default());
    let contenders: Vec<_> =
        (0..4).map(|_| tokio::spawn(contend(locker(&url), referee.clone(), is_over.clone()))).collect();

    let goes_on = async |what: &str| {
        let before = referee.entries();
        becomes(what, async || (referee.entries() > before + 10).then_some(())).await;
    };
    goes_on("all is well").await;
    cluster.member(follower).stop();
    goes_on("they go on without the member that they asked").await;
    cluster.member(follower).resume();
    goes_on("it is back").await;
    cluster.member(leader).kill();
    goes_on("they go on with a new leader").await;
    is_over.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.unwrap();
    }
}

/// Hazard 58: a request goes to the next member when one hangs, and the next request does not try it again.
#[tokio::test]
async fn only_the_first_request_waits_for_a_member_that_hangs() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.leader(&[0, 1, 2]);
    let follower = (0..3).find(|&index| index != leader).unwrap();
    let order = [follower, leader, 3 - leader - follower];
    let addresses: Vec<String> = order.map(|index| cluster.member(index).address()).into();
    let locks = locker(&format!("etcd://{}", addresses.join(",")));
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    cluster.member(follower).stop();
    let mut took = Vec::new();
    for _ in 0..3 {
        let asked = Instant::now();
        let guard = locks.mutex("job").within(PATIENCE).acquire().await.unwrap();
        took.push(asked.elapsed());
        guard.release().await.unwrap();
    }
    println!("a claim with the asked member hanging took {took:?}");
    assert!(took[0] < Duration::from_millis(900) * slowness(), "{took:?}");
    assert!(took[2] < Duration::from_millis(400) * slowness(), "{took:?}");
}

/// A held lease outlives the death of the leader, and so does a place; L1, L2.
#[tokio::test]
async fn a_lease_and_a_place_outlive_the_leader() {
    let cluster = EtcdCluster::start(3);
    let (a, b) = (locker(&cluster.url("")), locker(&cluster.url("")));
    let guard = a.mutex("job").ttl(Duration::from_secs(10) * stretch()).acquire().await.unwrap();
    let token = guard.token();
    let patience = 3 * PATIENCE * slowness();
    let waiting = tokio::spawn(async move { b.mutex("job").within(patience).acquire().await.unwrap() });
    let name = stage::named("job");
    becomes("it waits", async || (a.inspect(&name).await.unwrap().queue.len() == 1).then_some(())).await;
    let leader = cluster.leader(&[0, 1, 2]);
    cluster.member(leader).kill();
    let rest: Vec<usize> = (0..3).filter(|&index| index != leader).collect();
    cluster.leader(&rest);
    renewed(&guard, 2).await;
    assert!(!waiting.is_finished(), "two hold");
    guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// L1, hazard 58: the holder is cut off. It knows of its loss before anybody else can hold.
#[tokio::test]
async fn a_holder_that_is_cut_off_knows_it_before_another_one_holds() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let ttl = Duration::from_secs(3) * stretch();
    let cut_off = locker(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let guard = cut_off.mutex("job").ttl(ttl).acquire().await.unwrap();
    let token = guard.token();
    let other = locker(&server.url(""));
    let waiting = tokio::spawn(async move {
        let guard = other.mutex("job").ttl(ttl).within(PATIENCE * slowness()).acquire().await.unwrap();
        (Instant::now(), guard)
    });
    renewed(&guard, 1).await;
    proxy.stall();
    let parted = Instant::now();
    guard.lost().await;
    let lost = Instant::now();
    let (entered, next) = waiting.await.unwrap();
    println!("lost after {:?}, entered after {:?}", lost - parted, entered - parted);
    assert!(lost < entered, "the other one was in {:?} before it knew", lost - entered);
    assert!(next.token() > token);
    // Renewed at most a third of the ttl before it was cut off.
    assert!(
        entered - parted < ttl + GRAIN + Duration::from_millis(500) * slowness(),
        "{:?}",
        entered - parted
    );
    next.release().await.unwrap();
}

/// The server restarts while a lease is held: it survives, and its holder learns no lie. L1, L2.
#[tokio::test]
async fn a_lease_survives_a_restart_of_the_server() {
    let server = EtcdServer::start();
    let locks = locker(&server.url(""));
    let guard = locks.mutex("job").ttl(Duration::from_secs(6) * stretch()).acquire().await.unwrap();
    let token = guard.token();
    server.kill();
    server.start_again();
    // More than a ttl is over by then.
    renewed(&guard, 4).await;
    assert!(locker(&server.url("")).mutex("job").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let next = locks.mutex("job").acquire().await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
    next.release().await.unwrap();
}

/// L1, L6: the server is down for longer than the lease: lost, and nobody holds before it is back and the lease is over.
#[tokio::test]
async fn a_lease_is_lost_while_the_server_is_down() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url("")), locker(&server.url("")));
    let ttl = Duration::from_secs(4) * stretch();
    let guard = a.mutex("job").ttl(ttl).acquire().await.unwrap();
    let token = guard.token();
    server.kill();
    guard.lost().await;
    server.start_again();
    // Nothing was forgotten: a server that came back empty would let the next one in as well.
    let name = stage::named("job");
    let view = becomes("it answers", async || b.inspect(&name).await.ok()).await;
    assert_eq!(view.holders.first().and_then(|held| held.token), Some(token), "{view:?}");
    assert!(b.mutex("job").ttl(ttl).try_acquire().await.unwrap().is_none(), "the lease is not over");
    let next = b.mutex("job").ttl(ttl).within(PATIENCE * slowness()).acquire().await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// A leader that hung for longer than the leases lasted comes back. What it keeps alive then, before it learns that it was
/// replaced, is believed by nobody (etcd #15247). L1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_comes_back_from_a_hang_is_not_believed() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.leader(&[0, 1, 2]);
    let rest: Vec<usize> = (0..3).filter(|&index| index != leader).collect();
    // It asks the old leader first, always.
    let ttl = Duration::from_secs(2);
    let old = locker(&cluster.member(leader).url(""));
    let other = locker(&cluster.member(rest[0]).url(""));
    let guard = old.mutex("job").ttl(ttl).acquire().await.unwrap();
    cluster.member(leader).stop();
    cluster.leader(&rest);
    let next = other.mutex("job").ttl(ttl).within(PATIENCE * slowness()).acquire().await.unwrap();
    assert!(guard.check().is_err(), "it believed in its lease while another one held");
    assert!(next.token() > guard.token());
    cluster.member(leader).resume();
    tokio::time::sleep(ttl).await;
    assert!(guard.check().is_err(), "lost is final");
    // That the leader of this version ends leases of others when it is back cannot be helped here; the holder must know.
    match next.check() {
        Ok(()) => next.release().await.unwrap(),
        Err(lost) => println!("the old leader ended the new lease: {lost}"),
    }
}

/// A handle outlives the runtime that it was first used on, with all that it had started there.
#[test]
fn a_handle_goes_on_after_its_first_runtime_is_gone() {
    let server = EtcdServer::start();
    let locks = locker(&server.url(""));
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lock = locks.mutex("job");
            let holder = lock.try_acquire().await.unwrap().expect("it is free");
            let waiter = lock.within(PATIENCE).acquire();
            let (waiter, released) = tokio::join!(waiter, async {
                let name = stage::named("job");
                let waits = async || (locks.inspect(&name).await.unwrap().queue.len() == 1).then_some(());
                becomes("it waits", waits).await;
                let released = Instant::now();
                holder.release().await.unwrap();
                released
            });
            waiter.unwrap().release().await.unwrap();
            assert!(released.elapsed() < Duration::from_secs(1) * slowness(), "no hint came");
        });
    }
}
