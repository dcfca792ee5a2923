//! What is wrong is said, with the right kind, and nothing is touched.

use std::time::{Duration, Instant};

use tenure_core::{BackendError, BreakScope, ErrorKind, Outcome, Severity, WaitMode};
use tenure_testkit::{conformance::player::Player, patience::slowness, ports, zookeeper::ZooKeeperServer};
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{contenders, raw, zookeeper};

async fn refusal(url: &str, name: &str) -> BackendError {
    let player = Player::new(zookeeper(url), name);
    let refused = player.backend.claim(&player.claim).await;
    let error = refused.expect_err("it should have been refused");
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    error
}

#[tokio::test]
async fn no_server_is_said_soon() {
    let (url, asked) = (format!("zookeeper://127.0.0.1:{}/", ports::free(false)), Instant::now());
    let error = refusal(&url, "job").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no ZooKeeper server can be reached"), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(2) * slowness(), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_ttl_that_is_longer_than_sessions_may_be_is_refused() {
    let server = ZooKeeperServer::with("maxSessionTimeout=5000");
    let error = refusal(&server.url(""), "job").await;
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
    assert!(error.to_string().contains("at most 4.25s"), "{error}");
    assert!(contenders(&raw(&server.address()).await, "/").await.iter().all(|child| child != "tenure"));
    let mut shorter = Player::new(zookeeper(&server.url("")), "job");
    shorter.claim.ttl = Duration::from_secs(4);
    shorter.enter().await;
}

/// Somebody's data is never taken for a lock.
#[tokio::test]
async fn a_path_that_holds_something_else_is_refused_and_left_alone() {
    let server = ZooKeeperServer::start();
    let client = raw(&server.address()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/tenure/tree/settings", &open).await.unwrap();
    client.create("/tenure/data", b"{}", &open).await.unwrap();
    for name in ["tree", "data"] {
        let error = refusal(&server.url(""), name).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains("holds data that tenure did not write"), "{error}");
        let player = Player::new(zookeeper(&server.url("")), name);
        let error = player
            .backend
            .break_lock(&player.claim.name, BreakScope::Leases)
            .await
            .expect_err("nor is it broken");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    }
    assert_eq!(contenders(&client, "/tenure/tree").await, ["settings"]);
    assert_eq!(client.get_data("/tenure/data").await.unwrap().0, b"{}");
}

/// Nodes of one who is logged in are closed to others, and no secret is ever printed.
#[tokio::test]
async fn who_is_not_who_made_the_nodes_is_denied() {
    let server = ZooKeeperServer::start();
    let ours = format!("zookeeper://app:right-one@{}/closed?tick=500ms", server.address());
    let holder = Player::new(zookeeper(&ours), "job");
    holder.enter().await;
    let wrong = ours.replace("right-one", "wr0ng-secret");
    for url in [wrong, format!("zookeeper://{}/closed?tick=500ms", server.address())] {
        let error = refusal(&url, "job").await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        let other = zookeeper(&url);
        let error = other.inspect(&holder.claim.name).await.expect_err("nor may it look");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        let findings = other.diagnose().await.unwrap();
        assert!(findings.iter().any(|finding| finding.severity == Severity::Problem), "{findings:?}");
    }
    assert_eq!(holder.backend.inspect(&holder.claim.name).await.unwrap().holders.len(), 1);
    let same = Player::new(zookeeper(&ours), "job").waiting(WaitMode::No);
    assert!(!same.try_enter().await);
}

/// `doctor`: the tick is what belief rests on.
#[tokio::test]
async fn a_tick_that_is_not_the_servers_is_found() {
    let server = ZooKeeperServer::start();
    let graves = async |url: &str| -> Vec<Severity> {
        let findings = zookeeper(url).diagnose().await.unwrap();
        findings.into_iter().map(|finding| finding.severity).collect()
    };
    assert!(graves(&server.url("")).await.iter().all(|severity| *severity == Severity::Note));
    let shorter = format!("zookeeper://{}/tenure?tick=100ms", server.address());
    assert!(graves(&shorter).await.contains(&Severity::Problem));
}
