//! Servers that die, come back and elect, replies that are lost, holders that are robbed: never two, and no ghosts.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tenure_core::{ClaimAnswer, Released};
use tenure_testkit::{
    conformance::player::Player,
    patience::{becomes, slowness, stretch},
    proxy::Proxy,
    zookeeper::{Ensemble, TICK, ZooKeeperServer},
};
use tokio::time::sleep;
use zookeeper_client::Client;

use crate::stage::{PATIENCE, Referee, contenders, locker, raw, renewed, soon, until, waiter, zookeeper};

const TTL: Duration = Duration::from_secs(2);

fn through(proxy: &Proxy) -> String {
    format!("zookeeper://127.0.0.1:{}/tenure?tick={}ms", proxy.port(), TICK.as_millis())
}

/// L1, L2 over elections: a member that hangs, a leader that is killed, and both that come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_loses_members_goes_on_and_never_lets_in_two() {
    let ensemble = Arc::new(Ensemble::start(3));
    let (referee, is_over) = (Arc::new(Referee::default()), Arc::new(AtomicBool::default()));
    let play = |_| {
        let (url, referee, is_over) = (ensemble.url(""), referee.clone(), is_over.clone());
        tokio::spawn(async move {
            let locks = locker(&url).await;
            let lock = locks.mutex("job").ttl(TTL).patience(PATIENCE);
            while !is_over.load(Ordering::SeqCst) {
                let guard = lock.acquire().await.unwrap();
                referee.visit(&guard, Duration::from_millis(20)).await;
                drop(guard);
                sleep(Duration::from_millis(5)).await;
            }
        })
    };
    let players: Vec<_> = (0..4).map(play).collect();
    let goes_on = async |what: &str| {
        let before = referee.entries.load(Ordering::SeqCst);
        let goes_on = until(what, async || referee.entries.load(Ordering::SeqCst) > before + 10);
        tokio::select! {
            () = goes_on => {}
            () = sleep(PATIENCE * slowness() * 9 / 10) => panic!("not {what}: {}", line(&ensemble).await),
        }
    };
    goes_on("they contend").await;
    let follower = ensemble.followers()[0];
    ensemble.member(follower).stop();
    goes_on("it goes on without a member").await;
    ensemble.member(follower).resume();
    goes_on("it goes on with all").await;
    let leader = ensemble.leader();
    ensemble.member(leader).kill();
    goes_on("it goes on with another leader").await;
    ensemble.member(leader).start_again();
    goes_on("it goes on with the old one back").await;
    is_over.store(true, Ordering::SeqCst);
    for player in players {
        soon("all are done", player).await.unwrap();
    }
}

/// What an ensemble says where nobody comes in: its members, and who stands in the line.
async fn line(ensemble: &Ensemble) -> String {
    let mut said = String::new();
    for member in (0..3).map(|index| ensemble.member(index)) {
        let client = tokio::time::timeout(PATIENCE, Client::connect(&member.address())).await;
        said.push_str(&format!("\n{:?}\n{}", member.mode(), member.word("cons")));
        if let Ok(Ok(client)) = client {
            let mut names = contenders(&client, "/tenure/job").await;
            names.sort();
            for name in names {
                let node = client.get_data(&format!("/tenure/job/{name}")).await;
                let stat = client.check_stat(&format!("/tenure/job/{name}")).await;
                said.push_str(&format!(
                    "{name} {stat:?} {}\n",
                    node.map_or_else(
                        |e| e.to_string(),
                        |(data, _)| String::from_utf8_lossy(&data).into_owned()
                    )
                ));
            }
        }
    }
    said
}

/// A session survives the restart of its server, and so does what it holds; if it took too long, its holder knew before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_is_survived() {
    let server = ZooKeeperServer::start();
    let locks = locker(&server.url("")).await;
    let ttl = Duration::from_secs(10) * stretch();
    let guard = soon("it holds", locks.mutex("job").ttl(ttl).acquire()).await.unwrap();
    let waiting = waiter(locks.mutex("job").ttl(ttl));
    let client = raw(&server.address()).await;
    until("it waits", async || contenders(&client, "/tenure/job").await.len() == 2).await;
    server.kill();
    server.start_again();
    assert!(renewed(&guard, 1).await, "it holds");
    let token = guard.token();
    soon("it leaves", guard.release()).await.unwrap();
    let (_, next) = soon("the next one enters", waiting).await.unwrap();
    assert!(next.token() > token, "L2: {} after {token}", next.token());
}

/// L6, L8, hazard 57: a member hangs that has a request to make a node, and one to move the session back to it. If it goes on, it
/// carries out both, and that after the claim was given up: the node belonged to a session that lives, and nobody ever came in again.
///
/// The session itself only waits meanwhile: it sends no write for its own sake, by which it would be told that it has moved.
///
/// Which of the two is carried out first is the member's luck, so there are a few tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_made_late_by_a_member_that_hung_does_not_stay() {
    let ensemble = Ensemble::start(3);
    let [hangs, other] = becomes("two follow", PATIENCE, async || ensemble.followers().try_into().ok()).await;
    let way = Proxy::to(ensemble.member(other).port(), 1);
    let (hangs, near) = (ensemble.member(hangs), raw(&ensemble.member(other).address()).await);
    let url = format!(
        "zookeeper://{},127.0.0.1:{}/tenure?tick={}ms",
        hangs.address(),
        way.port(),
        TICK.as_millis()
    );
    let backend = zookeeper(&url);
    let player = || {
        let mut player = Player::new(backend.clone(), "job");
        player.claim.ttl = TTL;
        player
    };
    let first = player();
    first.enter().await;
    first.leave().await;
    let elsewhere =
        zookeeper(&format!("zookeeper://{}/tenure", ensemble.member(ensemble.leader()).address()));
    let holds = Player::new(elsewhere.clone(), "other");
    let grants = [holds.enter().await];
    let mut waits = Player::new(backend.clone(), "other");
    waits.claim.ttl = TTL;
    let waiting = tokio::spawn(async move {
        loop {
            let _ = tokio::join!(holds.backend.renew(&grants), waits.backend.claim(&waits.claim));
            sleep(Duration::from_secs(1)).await;
        }
    });
    for _ in 0..8 {
        // The session is at the one that hangs.
        way.cut();
        let any = first.claim.name.clone();
        until("it is there", async || backend.inspect(&any).await.is_ok()).await;
        let gone = player();
        hangs.stop();
        let asked = backend.claim(&gone.claim).await;
        assert!(asked.is_err(), "{asked:?}");
        // It is tried again meanwhile.
        sleep(Duration::from_millis(300)).await;
        way.heal();
        until("it is given up", async || backend.release(&any, gone.claim.owner).await.is_ok()).await;
        hangs.resume();
        until("the member is back", async || hangs.mode().as_deref() == Some("follower")).await;
        let next = Player::new(elsewhere.clone(), "job");
        let is_in = async || matches!(elsewhere.claim(&next.claim).await, Ok(ClaimAnswer::Granted(_)));
        until("the next one enters", is_in).await;
        until("it leaves", async || elsewhere.release(&any, next.claim.owner).await.is_ok()).await;
    }
    waiting.abort();
    until("nothing stays", async || contenders(&near, "/tenure/job").await.is_empty()).await;
}

/// H6.5, hazard 57: the reply to the making of a node is lost. The owner finds it by what its name begins with, so there is
/// no ghost before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_leaves_no_ghost_in_the_line() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let (backend, client) = (zookeeper(&through(&proxy)), raw(&server.address()).await);
    // It is connected, and the directory is there.
    let warm = Player::new(backend.clone(), "job");
    warm.enter().await;
    warm.leave().await;
    let player = Player::new(backend, "job");
    proxy.drop_replies();
    // On a busy machine the connection may be given up before the claim was sent: then it is made again.
    loop {
        let claim = pin!(player.backend.claim(&player.claim));
        let is_made = until("it got through", async || contenders(&client, "/tenure/job").await.len() == 1);
        tokio::select! {
            biased;
            () = is_made => break,
            answer = claim => assert!(answer.is_err(), "its reply was dropped"),
        }
    }
    let made = contenders(&client, "/tenure/job").await;
    proxy.heal();
    let granted = soon("it is let in", async {
        loop {
            match player.backend.claim(&player.claim).await {
                Ok(ClaimAnswer::Granted(grant)) => return grant,
                Ok(other) => panic!("somebody is ahead: {other:?}"),
                Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let now = contenders(&client, "/tenure/job").await;
    assert_eq!(now.len(), 1, "{now:?}");
    assert_eq!(made, now, "{granted:?}");
    assert_eq!(player.leave().await, Released::Released);
    assert!(contenders(&client, "/tenure/job").await.is_empty());
}

/// L8: a claim that was given up while its reply was lost leaves nothing behind either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_dropped_leaves_nothing() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let (locks, client) = (locker(&through(&proxy)).await, raw(&server.address()).await);
    let guard = soon("it holds", locks.mutex("job").ttl(TTL).acquire()).await.unwrap();
    let waiting = waiter(locks.mutex("job").ttl(TTL));
    until("it waits", async || contenders(&client, "/tenure/job").await.len() == 2).await;
    waiting.abort();
    until("its place is given back", async || contenders(&client, "/tenure/job").await.len() == 1).await;
    drop(guard);
    // A client that came too late to its request made no node: then the next one shows it.
    let mut is_made = false;
    for _ in 0..10 {
        let _guard =
            soon("it holds", locks.mutex("job").ttl(TTL).patience(PATIENCE).acquire()).await.unwrap();
        proxy.drop_replies();
        let waiting = waiter(locks.mutex("job").ttl(TTL));
        until("it waits, or was told", async || {
            is_made = contenders(&client, "/tenure/job").await.len() == 2;
            is_made || waiting.is_finished()
        })
        .await;
        waiting.abort();
        proxy.heal();
        if is_made {
            break;
        }
    }
    assert!(is_made, "no node was made without a reply");
    until("all is given back", async || contenders(&client, "/tenure/job").await.is_empty()).await;
}

/// L4: whoever is robbed is told, and does not take the next one's lock away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_wakes_the_robbed() {
    let server = ZooKeeperServer::start();
    let (a, b) = (locker(&server.url("")).await, locker(&server.url("")).await);
    let ttl = Duration::from_secs(30);
    let guard = soon("it holds", a.mutex("job").ttl(ttl).acquire()).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    let broken = Instant::now();
    let robbed = b.force_release("job").await.unwrap();
    assert_eq!(robbed.len(), 1);
    assert_eq!(robbed[0].owner, guard.owner().to_string());
    soon("it is told", guard.lost()).await;
    let took = broken.elapsed();
    assert!(took < Duration::from_secs(2) * slowness(), "{took:?}");
    let next = soon("the next one enters", b.mutex("job").ttl(ttl).acquire()).await.unwrap();
    assert!(next.token() > guard.token());
    drop(guard);
    assert!(a.flush(PATIENCE).await);
    next.check().unwrap();
    soon("it leaves", next.release()).await.unwrap();
}

/// L1, L7: many contend, in this process and another one; each in its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_contend_and_enter_in_the_order_of_their_nodes() {
    let server = ZooKeeperServer::start();
    // Eight of a process have nodes at a time: all twenty have.
    let url = server.url("");
    let lockers = [locker(&url).await, locker(&url).await, locker(&url).await];
    let client = raw(&server.address()).await;
    let first = soon("it holds", lockers[0].mutex("job").acquire()).await.unwrap();
    let (referee, order) = (Arc::new(Referee::default()), Arc::new(Mutex::new(Vec::new())));
    let mut tasks = Vec::new();
    for n in 0..20 {
        let (lock, referee, order) = (lockers[n % 3].mutex("job"), referee.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push(n);
            referee.visit(&guard, Duration::from_millis(2)).await;
            guard.release().await.unwrap();
        }));
        until("it stands in the line", async || contenders(&client, "/tenure/job").await.len() == n + 2)
            .await;
    }
    soon("it leaves", first.release()).await.unwrap();
    for task in tasks {
        soon("all entered", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

/// L8: what nobody renews ends, although the process and its session live on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_renews_ends_with_its_ttl() {
    let server = ZooKeeperServer::start();
    let locks = locker(&server.url("")).await;
    let guard = soon("it holds", locks.mutex("job").ttl(TTL).acquire()).await.unwrap();
    let held = Instant::now();
    // Nobody renews it from here on.
    let left = guard.detach().await.unwrap();
    let (owner, token) = (left.owner(), left.token().unwrap());
    let next = soon("the next one enters", locks.mutex("job").ttl(TTL).acquire()).await.unwrap();
    let took = held.elapsed();
    assert!(took > TTL / 2 && took < (TTL + TICK * 3) * slowness(), "{took:?}");
    assert!(next.token() > token);
    assert_eq!(locks.detached("job", owner).unwrap().release().await.unwrap(), Released::WasGone);
}

/// Whoever ends leaves nothing behind, and does not make others wait for its session to run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_goes_takes_its_nodes_with_it() {
    let server = ZooKeeperServer::start();
    let client = raw(&server.address()).await;
    let locks = locker(&server.url("")).await;
    let guard = soon("it holds", locks.mutex("job").acquire()).await.unwrap();
    assert_eq!(contenders(&client, "/tenure/job").await.len(), 1);
    guard.detach().await.unwrap();
    drop(locks);
    let gone = Instant::now();
    until("its node is gone", async || contenders(&client, "/tenure/job").await.is_empty()).await;
    assert!(gone.elapsed() < Duration::from_secs(3) * slowness(), "{:?}", gone.elapsed());
}

/// H2.5, hazard 24: the session and the watchdog live on threads of their own.
#[tokio::test]
async fn a_blocked_runtime_starves_neither_the_session_nor_the_lease() {
    let server = ZooKeeperServer::start();
    let locks = locker(&server.url("")).await;
    let ttl = TTL * stretch();
    let guard = soon("it holds", locks.mutex("job").ttl(ttl).acquire()).await.unwrap();
    std::thread::sleep(ttl * 2);
    guard.check().expect("renewed all the while");
    soon("it leaves", guard.release()).await.unwrap();
}

/// 300 leases of one process are renewed together, and one that was taken away is found among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_are_renewed_and_the_robbed_one_is_found() {
    let server = ZooKeeperServer::start();
    let (locks, other) = (locker(&server.url("")).await, locker(&server.url("")).await);
    let ttl = Duration::from_secs(5) * stretch();
    let mut guards = Vec::new();
    for n in 0..300 {
        guards.push(soon("it holds", locks.mutex(format!("many/{n}")).ttl(ttl).acquire()).await.unwrap());
    }
    other.force_release("many/200").await.unwrap();
    soon("it is told", guards[200].lost()).await;
    sleep(ttl).await;
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(guard.check().is_ok(), n != 200, "{n}");
    }
}

/// L6, L8: a claim that had run out of time was still on its way when its owner claimed again. Both made a node; the owner waited behind
/// its own one, which its session kept alive, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_claims_of_one_owner_make_one_node() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 6);
    let player = Player::new(zookeeper(&through(&proxy)), "job");
    let warm = Player::new(player.backend.clone(), "warm");
    warm.enter().await;
    let client = raw(&server.address()).await;
    proxy.hold_replies();
    let first = player.backend.claim(&player.claim);
    let second = player.backend.claim(&player.claim);
    let free = async {
        until("both look for the directory", async || proxy.traffic().held_replies > 0).await;
        sleep(Duration::from_millis(50)).await;
        proxy.release();
    };
    let (first, second, ()) = soon("both are answered", async { tokio::join!(first, second, free) }).await;
    for answer in [first, second] {
        assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "{answer:?}");
    }
    assert_eq!(contenders(&client, "/tenure/job").await.len(), 1);
    assert_eq!(player.leave().await, Released::Released);
    assert_eq!(contenders(&client, "/tenure/job").await, Vec::<String>::new());
}
