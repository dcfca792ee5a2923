//! What was wrong once: each story as a test that failed before it was mended.

use std::{pin::pin, sync::Arc, time::Duration};

use tenure_core::{
    Audience, BackendHandle, BreakScope, ClaimAnswer, ErrorKind, LockName, Outcome, Renewal, WaitMode,
    WakeEvent, WakeStream,
};
use tenure_testkit::{
    conformance::player::Player,
    patience::{connections_that_impatience_costs, eventually, stretch},
    proxy::Proxy,
    stepped::SteppedHost,
    zookeeper::ZooKeeperServer,
};
use tenure_zookeeper::{Config, ZooKeeper};
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::stage::{PATIENCE, contenders, raw, soon, until, zookeeper};

const JOB: &str = "/tenure/job";
/// Longer than any test lasts, and so much that no beat is needed meanwhile.
const CALM: &str = "?tick=10s";
/// For which ttl the servers of the tests allow a session under [`CALM`].
const LONG: Duration = Duration::from_secs(40);

fn through(proxy: &Proxy, query: &str) -> String {
    format!("zookeeper://127.0.0.1:{}/tenure{query}", proxy.port())
}

/// Its leases end by a clock that the test moves.
fn stepped(url: &str) -> (BackendHandle, Arc<SteppedHost>) {
    let host = SteppedHost::new();
    (Arc::new(ZooKeeper::new(Config::from_url(url).unwrap(), host.clone())), host)
}

/// Wants the lock `job` for [`LONG`].
fn player(backend: &BackendHandle) -> Player {
    let mut player = Player::new(backend.clone(), "job");
    player.claim.ttl = LONG;
    player
}

/// The session is there, and the directory of the lock.
async fn warmed(backend: &BackendHandle) {
    let warm = player(backend);
    soon("it enters", warm.enter()).await;
    warm.leave().await;
}

/// What the server counts.
fn counted(server: &ZooKeeperServer, what: &str) -> u64 {
    let told = server.word("mntr");
    let line = told.lines().find_map(|line| line.strip_prefix(what));
    line.unwrap_or_else(|| panic!("no {what} in {told}")).trim().parse().unwrap()
}

fn hints(player: &Player, audience: Audience) -> Box<dyn WakeStream> {
    player.backend.wakes(player.claim.owner.process(), audience)
}

/// Waits for a hint to this owner.
async fn rung(what: &str, player: &Player, hints: &mut dyn WakeStream) {
    soon(what, async { while hints.next().await != WakeEvent::Owner(player.claim.owner) {} }).await;
}

/// L1, L5. A process was paused while its claim was under way, and its session's thread, first to go on, gave the place up and
/// deleted the node. The reply that then arrived showed the node at the head of the line, and two held.
#[tokio::test]
async fn a_place_that_was_given_up_while_its_claim_was_under_way_is_not_granted() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let (backend, host) = stepped(&through(&proxy, CALM));
    let elsewhere = zookeeper(&server.url(""));
    let (holder, late, next) = (player(&elsewhere), player(&backend), player(&elsewhere));
    soon("it enters", holder.enter()).await;
    let mut hints = hints(&late, Audience::Waiters);
    late.queue_behind(0).await;
    holder.leave().await;
    rung("it is its turn", &late, &mut *hints).await;
    proxy.hold_replies();
    let held = proxy.traffic().held_replies;
    let mut claim = pin!(late.backend.claim(&late.claim));
    // The check and the list, which has the name of the node.
    let asked = until("the server has answered", async || proxy.traffic().held_replies > held + 100);
    tokio::select! {
        answer = claim.as_mut() => panic!("no reply got through: {answer:?}"),
        () = asked => {}
    }
    let answered = proxy.traffic().held_replies;
    // Nobody polls the claim until the test waits for something again.
    host.step(Duration::from_secs(7));
    let gone = || (counted(&server, "zk_ephemerals_count") == 0).then_some(());
    eventually("the node is deleted", PATIENCE, gone);
    // The thread does not know yet.
    proxy.cut_after_bytes(answered as u64);
    proxy.release();
    let error = soon("it is answered", claim).await.expect_err("nobody may be let in");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error:?}");
    soon("the next one enters", next.enter()).await;
}

/// L9. What went wrong behind the making of a node, here that the holder's may not be read, was reported as if no place had
/// been taken. Whoever believed that left a node in the line that nobody gave back.
#[tokio::test]
async fn an_error_behind_the_making_of_a_node_does_not_deny_it() {
    let server = ZooKeeperServer::start();
    let backend = zookeeper(&server.url(""));
    warmed(&backend).await;
    let closed = Client::connector().with_auth("digest", b"other:secret");
    let closed = closed.connect(&server.address()).await.unwrap();
    let options = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
    closed.create("/tenure/job/x-lock-", b"", &options).await.unwrap();
    let waiter = player(&backend);
    for attempt in ["the first", "a repeated"] {
        let error = backend.claim(&waiter.claim).await.unwrap_err();
        let what = (error.kind(), error.outcome());
        assert_eq!(what, (ErrorKind::Denied, Outcome::Unknown), "{attempt}: {error:?}");
        assert_eq!(contenders(&closed, JOB).await.len(), 2, "{attempt}: there is a place");
    }
    waiter.leave().await;
    assert_eq!(contenders(&closed, JOB).await.len(), 1);
    let answer = player(&backend).waiting(WaitMode::No).ask().await;
    assert!(matches!(answer, ClaimAnswer::Busy { .. }), "{answer:?}");
}

/// Each ttl had a session of its own for a minute: a thread, and a connection. Of those a server allows 60 to a machine, so the
/// sixty-first ttl failed, and every other program there.
#[tokio::test]
async fn many_ttls_share_few_sessions() {
    let server = ZooKeeperServer::with("maxClientCnxns=60");
    let backend = zookeeper(&server.url(""));
    for n in 0..70 {
        let mut player = Player::new(backend.clone(), &format!("many/{n}"));
        player.claim.ttl = Duration::from_millis(5_000 + n * 10);
        soon("it enters", player.enter()).await;
        player.leave().await;
    }
    let connections = counted(&server, "zk_num_alive_connections");
    assert!(connections <= 10, "{connections}");
}

/// Claim 5: a place is kept by asking again. While the store did not answer, those who asked waited for a proof first and lost
/// their places after 6 s, although their sessions lived on.
#[tokio::test]
async fn who_asks_in_an_outage_keeps_its_place() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let (backend, host) = stepped(&through(&proxy, "?tick=500ms"));
    let (elsewhere, client) = (zookeeper(&server.url("")), raw(&server.address()).await);
    let (holder, waiter) = (player(&elsewhere), player(&backend));
    soon("it enters", holder.enter()).await;
    waiter.queue_behind(0).await;
    let mut before = contenders(&client, JOB).await;
    proxy.stall();
    let pause = Duration::from_millis(100);
    for _ in 0..4 {
        // As one that gives up, and asks again.
        let asked = timeout(pause, backend.claim(&waiter.claim)).await;
        assert!(!matches!(asked, Ok(Ok(ClaimAnswer::Granted(_)))), "{asked:?}");
        host.step(Duration::from_secs(3));
    }
    {
        // As one that waits for its answer.
        let mut claim = pin!(backend.claim(&waiter.claim));
        for _ in 0..4 {
            assert!(timeout(pause, claim.as_mut()).await.is_err(), "nothing gets through");
            host.step(Duration::from_secs(3));
        }
    }
    proxy.heal();
    until("it is answered", async || {
        matches!(backend.claim(&waiter.claim).await, Ok(ClaimAnswer::Queued { .. }))
    })
    .await;
    let mut after = contenders(&client, JOB).await;
    before.sort();
    after.sort();
    assert_eq!(before, after, "the same places");
}

/// H2.5. The sessions of a process were asked one after the other, so that one that hung withheld the answers of all. Leases
/// whose own sessions were well were lost with it.
#[tokio::test]
async fn a_session_that_hangs_withholds_no_answers_of_others() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = zookeeper(&through(&proxy, "?tick=500ms"));
    let short = Duration::from_secs(6) * stretch();
    let hold = async |name, ttl| {
        let mut player = Player::new(backend.clone(), name);
        player.claim.ttl = ttl;
        soon("it enters", player.enter()).await
    };
    let hung = hold("hung", LONG).await;
    // The connection that there is, and no other.
    proxy.stall();
    proxy.pass_new();
    let well = hold("well", short).await;
    // As long as the engine waits for it.
    let answers = timeout(short / 6, backend.renew(&[hung, well])).await.expect("an answer in time");
    let [Err(error), Ok(Renewal::Renewed)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::TimedOut, Outcome::Unknown), "{error:?}");
}

/// A holder's own node is watched, so that whoever is robbed hears of it at once. When the connection broke just as the watch
/// was set, it was never set again.
#[tokio::test]
async fn a_watch_that_could_not_be_set_is_set_again() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let (backend, _host) = stepped(&through(&proxy, CALM));
    let elsewhere = zookeeper(&server.url(""));
    let holder = player(&backend);
    warmed(&backend).await;
    let mut hints = hints(&holder, Audience::Holders);
    soon("it enters", holder.enter()).await;
    proxy.hold_replies();
    until("the watch is asked for", async || counted(&server, "zk_watch_count") > 0).await;
    proxy.cut();
    proxy.heal();
    until("it is connected again", async || backend.inspect(&holder.claim.name).await.is_ok()).await;
    // What it was told of its connection.
    while timeout(Duration::from_millis(300), hints.next()).await.is_ok() {}
    elsewhere.break_lock(&LockName::new("job").unwrap(), BreakScope::Leases).await.unwrap();
    rung("it is told", &holder, &mut *hints).await;
}

/// A reader whose claim was broken off behind the making of its node, and that then entered, did not say so to those who had
/// seen it wait. The reader behind it, which fitted beside it, found out only when it asked again.
#[tokio::test]
async fn a_reader_that_comes_back_and_enters_tells_the_one_behind_it() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = zookeeper(&through(&proxy, CALM));
    let (elsewhere, client) = (zookeeper(&server.url("")), raw(&server.address()).await);
    warmed(&backend).await;
    let (writer, behind) = (player(&elsewhere), player(&elsewhere).reading());
    let reader = player(&backend).reading();
    soon("it enters", writer.enter()).await;
    proxy.hold_replies();
    {
        let claim = pin!(backend.claim(&reader.claim));
        tokio::select! {
            answer = claim => panic!("no reply got through: {answer:?}"),
            () = until("its node is made", async || contenders(&client, JOB).await.len() == 2) => {}
        }
    }
    proxy.release();
    behind.queue_behind(1).await;
    let mut hints = hints(&behind, Audience::Waiters);
    writer.leave().await;
    soon("it enters", reader.enter()).await;
    rung("the one behind is told", &behind, &mut *hints).await;
    soon("it enters beside it", behind.enter()).await;
}

/// Two requests that were dropped at once, by callers with little patience, left the stall detector armed: after an idle second the
/// connection, which had answered both, was dropped as dead. It was mended on one store and not on its sibling.
#[tokio::test]
async fn callers_with_little_patience_cost_no_connection() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = zookeeper(&through(&proxy, ""));
    assert_eq!(connections_that_impatience_costs(&backend, &proxy).await, 0);
}
