//! What a hostile reading found: answers that were true once, copies that come late, rights that are just enough.

use std::{pin::pin, time::Duration};

use tenure_core::{
    BackendError, BackendHandle, BreakScope, ClaimAnswer, ErrorKind, Released, Renewal, Severity, WaitMode,
};
use tenure_testkit::{
    conformance::player::Player,
    patience::stretch,
    proxy::Proxy,
    zookeeper::{Ensemble, ZooKeeperServer},
};
use tokio::time::sleep;
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{connected, contenders, raw, soon, until, zookeeper};

const JOB: &str = "/tenure/job";
/// So much that no beat is needed while a test lasts.
const CALM: &str = "?tick=10s";
/// For which ttl the servers of the tests allow a session under [`CALM`].
const LONG: Duration = Duration::from_secs(40);

/// Wants the lock `job` for [`LONG`].
fn player(backend: &BackendHandle) -> Player {
    let mut player = Player::new(backend.clone(), "job");
    player.claim.ttl = LONG;
    player
}

/// Clients of the leader and of a follower, and the link over which that one hears of it.
async fn leader_and_follower(ensemble: &Ensemble) -> (BackendHandle, BackendHandle, &Proxy) {
    let (leader, follower) = (ensemble.leader(), ensemble.followers()[0]);
    let at = async |member: usize| {
        connected(&format!("zookeeper://{}/tenure{CALM}", ensemble.member(member).address())).await
    };
    (at(leader).await, at(follower).await, ensemble.link(follower, leader))
}

/// Asks while the follower that is asked is behind its leader, which is so until the question is with that.
async fn asked_of_one_that_is_behind<T>(
    link: &Proxy,
    question: impl Future<Output = Result<T, BackendError>>,
) -> T {
    let mut question = pin!(question);
    let before = link.traffic().held_replies;
    let asked = async {
        until("the leader has answered", async || link.traffic().held_replies > before).await;
        sleep(Duration::from_millis(200)).await;
    };
    let early = tokio::select! {
        answer = question.as_mut() => Some(answer),
        () = asked => None,
    };
    link.release();
    match early {
        Some(answer) => answer.unwrap(),
        None => soon("it is answered", question).await.unwrap(),
    }
}

/// L6. A follower that had not heard yet of a release that was acknowledged told a waiter, and one that asked in passing, that the
/// lock was held. On a busy machine this was red once as `a_waiter_enters_only_by_its_own_claim`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_after_a_release_is_not_told_that_it_is_held() {
    let ensemble = Ensemble::behind_proxies(3);
    let (ahead, behind, link) = leader_and_follower(&ensemble).await;
    for wait in [WaitMode::Turn, WaitMode::No] {
        let (holder, late) = (player(&ahead), player(&behind).waiting(wait));
        soon("it enters", holder.enter()).await;
        let answer = soon("it is answered", late.ask()).await;
        assert!(matches!(answer, ClaimAnswer::Queued { .. } | ClaimAnswer::Busy { .. }), "{answer:?}");
        link.hold_replies();
        assert_eq!(soon("it leaves", holder.leave()).await, Released::Released);
        let answer = asked_of_one_that_is_behind(link, behind.claim(&late.claim)).await;
        assert!(matches!(answer, ClaimAnswer::Granted(_)), "{wait:?}: {answer:?}");
        soon("it leaves", late.leave()).await;
    }
}

/// Who broke a lock over a follower that was behind was shown one that had left, and robbed nobody: the list was sent before the
/// write that it has to come behind. The same list looks for a node whose making had no answer (H6.5, hazard 57).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_a_lock_robs_the_one_that_holds_it_now() {
    let ensemble = Ensemble::behind_proxies(3);
    let (ahead, behind, link) = leader_and_follower(&ensemble).await;
    let before = player(&behind);
    soon("it knows the directory", before.enter()).await;
    soon("it leaves", before.leave()).await;
    let (holder, next) = (player(&ahead), player(&ahead));
    soon("it enters", holder.enter()).await;
    next.queue_behind(0).await;
    let shown = behind.inspect(&next.claim.name).await.unwrap();
    assert_eq!((shown.holders.len(), shown.queue.len()), (1, 1), "the follower has heard of both");
    link.hold_replies();
    soon("it leaves", holder.leave()).await;
    let grant = soon("it enters", next.enter()).await;
    let robbed =
        asked_of_one_that_is_behind(link, behind.break_lock(&next.claim.name, BreakScope::Leases)).await;
    let robbed: Vec<_> = robbed.into_iter().map(|holder| holder.owner).collect();
    assert_eq!(robbed, [next.claim.owner.to_string()]);
    assert_eq!(next.renew(&grant).await, Renewal::Gone);
}

/// L8. Why no late copy of a request has to be looked for, which `find` in `session.rs` relies on: what a client said over a connection
/// that broke may arrive long after it has come back over another one, and then the server does not do it any more. Else the making of
/// a node that was searched for in vain would make one behind that, for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_the_making_of_a_node_makes_none() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = zookeeper(&format!("zookeeper://127.0.0.1:{}/tenure{CALM}", proxy.port()));
    let (elsewhere, client) = (zookeeper(&server.url("")), raw(&server.address()).await);
    let (first, late, next) = (player(&backend), player(&backend), Player::new(elsewhere, "job"));
    soon("it enters", first.enter()).await;
    soon("it leaves", first.leave()).await;
    proxy.hold_requests();
    proxy.pass_new();
    let answer = soon("its connection is given up", backend.claim(&late.claim)).await;
    assert!(answer.is_err(), "nothing got through: {answer:?}");
    assert!(proxy.traffic().held_requests > 0, "it was sent");
    let comes_back =
        async { while !matches!(backend.claim(&late.claim).await, Ok(ClaimAnswer::Granted(_))) {} };
    soon("it searches in vain, and makes another one", comes_back).await;
    assert_eq!(soon("it leaves", late.leave()).await, Released::Released);
    proxy.release();
    until("what was held back has arrived", async || proxy.traffic().held_requests == 0).await;
    for _ in 0..20 {
        soon("the next one enters", next.enter()).await;
        soon("it leaves", next.leave()).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(contenders(&client, JOB).await, [""; 0]);
}

/// A user who may do everything below the path of the URL, but may not make that path, as it is there already, was refused: whether
/// it had to be made was found out by making it.
#[tokio::test]
async fn who_may_use_the_path_need_not_be_able_to_make_it() {
    let server = ZooKeeperServer::start();
    let client = raw(&server.address()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/apps/tenure", &open).await.unwrap();
    for closed in ["/apps", "/"] {
        let (mut acl, _) = client.get_acl(closed).await.unwrap();
        acl.truncate(0);
        acl.extend(Acls::anyone_read().iter().cloned());
        client.set_acl(closed, &acl, None).await.unwrap();
    }
    let url = |path: &str| format!("zookeeper://{}/{path}?tick=500ms", server.address());
    let player = Player::new(zookeeper(&url("apps/tenure")), "job");
    soon("it enters", player.enter()).await;
    assert_eq!(soon("it leaves", player.leave()).await, Released::Released);
    // `doctor` says which is which, and leaves nothing behind.
    let before = contenders(&client, "/apps/tenure").await;
    let graves = async |path: &str| -> Vec<Severity> {
        let findings = zookeeper(&url(path)).diagnose().await.unwrap();
        findings.into_iter().map(|finding| finding.severity).collect()
    };
    assert!(!graves("apps/tenure").await.contains(&Severity::Problem));
    assert!(!graves("apps/tenure/below/that").await.contains(&Severity::Problem));
    assert!(graves("apps/other").await.contains(&Severity::Problem));
    assert_eq!(contenders(&client, "/apps/tenure").await, before);
}

/// L2. A server that was put back, or another one at the same address, gave out tokens again that this very process had had before, and
/// nobody said a word.
#[tokio::test]
async fn who_has_seen_more_than_a_restored_server_is_not_let_in() {
    let (old, new) = (ZooKeeperServer::start(), ZooKeeperServer::start());
    let proxy = Proxy::to(old.port(), 1);
    let backend = zookeeper(&format!("zookeeper://127.0.0.1:{}/tenure?tick=500ms", proxy.port()));
    let mut player = Player::new(backend.clone(), "job");
    player.claim.ttl = Duration::from_secs(2) * stretch();
    // The old one has counted further.
    let client = raw(&old.address()).await;
    for _ in 0..99 {
        client.set_data("/", b"", None).await.unwrap();
    }
    let asks = async || loop {
        match backend.claim(&player.claim).await {
            Err(error) if error.kind().is_transient() => sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    };
    let answer = soon("it is answered", asks()).await.unwrap();
    assert!(matches!(answer, ClaimAnswer::Granted(_)), "{answer:?}");
    proxy.lead_to(new.port());
    proxy.cut();
    proxy.heal();
    // Its session is over first, and what it held with it.
    let answer = soon("it is answered", asks());
    let error = answer.await.expect_err("tokens go back");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let client = raw(&new.address()).await;
    until("its node is taken away", async || contenders(&client, JOB).await.is_empty()).await;
}
