//! Nodes of other libraries, and of newer versions: what is not shared is refused, and nothing is left.

use std::time::Duration;

use tenure_core::{BackendError, BackendHandle, ClaimAnswer, ErrorKind, Memo, Noted, Outcome, WaitMode};
use tenure_testkit::{conformance::player::Player, zookeeper::ZooKeeperServer};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::stage::{contenders, raw, soon, until, zookeeper};

const JOB: &str = "/tenure/job";

async fn refused(backend: &BackendHandle, wait: WaitMode) -> BackendError {
    let player = Player::new(backend.clone(), "job").waiting(wait);
    let error = soon("it is answered", backend.claim(&player.claim)).await.expect_err("it should be refused");
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    println!("{error}");
    error
}

/// A client of another library, by the names of its nodes.
async fn stranger(client: &Client, name: &str) {
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir(JOB, &open).await.unwrap();
    let open = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    client.create(&format!("{JOB}/{name}"), b"192.0.2.1", &open).await.unwrap();
}

/// L1. Clients of other recipes do not count our node, so both held and nothing said so. The recipe of the layout is waited for.
#[tokio::test]
async fn a_recipe_that_does_not_count_our_nodes_is_refused() {
    let server = ZooKeeperServer::start();
    for (layout, theirs, other) in [
        ("curator", "_c_f6c3-lock-", "0123abcd__lock__"),
        ("curator", "_c_f6c3-lock-", "_c_f6c3-__READ__"),
        ("curator", "_c_f6c3-lock-", "latch-"),
        ("kazoo", "0123abcd__lock__", "_c_f6c3-lock-"),
        ("kazoo", "0123abcd__lock__", "0123abcd__rlock__"),
        ("kazoo", "0123abcd__lock__", "n"),
    ] {
        let backend = zookeeper(&server.url(&format!("layout={layout}")));
        let client = raw(&server.address()).await;
        stranger(&client, theirs).await;
        let same = Player::new(backend.clone(), "job");
        let answer = soon("it is answered", same.ask()).await;
        assert!(matches!(answer, ClaimAnswer::Queued { .. }), "{layout} beside {theirs}: {answer:?}");

        stranger(&client, other).await;
        for wait in [WaitMode::No, WaitMode::Turn] {
            let error = refused(&backend, wait).await;
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
            assert!(error.to_string().contains("a client with another layout uses this lock"), "{error}");
        }
        let error = backend.claim(&same.claim).await.expect_err("who waits already does not go on");
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied), "{error:?}");
        assert_eq!(contenders(&client, JOB).await.len(), 2, "only theirs");
        let view = backend.inspect(&same.claim.name).await.unwrap();
        let names: Vec<_> =
            view.holders.iter().map(|it| &it.owner).chain(view.queue.iter().map(|it| &it.owner)).collect();
        let is_marked = |name: &&&String| {
            name.ends_with(", of a client with another layout, which does not wait for Tenure")
        };
        assert_eq!((names.len(), names.iter().filter(is_marked).count()), (2, 1), "{names:?}");
        drop(client);
        let client = raw(&server.address()).await;
        for name in contenders(&client, JOB).await {
            client.delete(&format!("{JOB}/{name}"), None).await.unwrap();
        }
        soon("they are gone", same.enter()).await;
        soon("it leaves", same.leave()).await;
    }
}

/// Tenure counts all nodes, so its own clients exclude each other whatever their layout.
#[tokio::test]
async fn clients_of_tenure_with_two_layouts_share_one_queue() {
    let server = ZooKeeperServer::start();
    let [one, two] = ["curator", "kazoo"].map(|layout| zookeeper(&server.url(&format!("layout={layout}"))));
    let (holder, waiter) = (Player::new(one, "job"), Player::new(two, "job"));
    soon("it enters", holder.enter()).await;
    let answer = soon("it is answered", waiter.ask()).await;
    assert!(matches!(answer, ClaimAnswer::Queued { .. }), "{answer:?}");
    soon("it leaves", holder.leave()).await;
    soon("the next one enters", waiter.enter()).await;
}

fn is_newer(error: &BackendError, path: &str) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotApplied), "{error:?}");
    let words = error.to_string();
    assert!(words.contains("is newer than this tenure: upgrade it") && words.contains(path), "{words}");
    assert!(!words.contains('\n'), "one line: {words}");
}

/// Acquire, `inspect` and `break` refuse the state of a newer version in one line, and do not change it.
#[tokio::test]
async fn a_newer_format_is_refused() {
    let server = ZooKeeperServer::start();
    let (backend, client) = (zookeeper(&server.url("")), raw(&server.address()).await);
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.mkdir("/tenure", &open).await.unwrap();
    client.create(JOB, b"tenure 2", &open).await.unwrap();
    let name = "job".parse().unwrap();
    is_newer(&refused(&backend, WaitMode::Turn).await, JOB);
    is_newer(&backend.inspect(&name).await.expect_err("nor is it shown"), JOB);
    is_newer(&backend.list("").await.expect_err("nor is it listed"), JOB);
    let broken = backend.break_lock(&name, tenure_core::BreakScope::All).await;
    is_newer(&broken.expect_err("nor is it broken"), JOB);
    assert_eq!(contenders(&client, JOB).await, [""; 0]);
    assert_eq!(client.get_data(JOB).await.unwrap().0, b"tenure 2");

    // A node under a name that this version does not know, in a directory of this one.
    client.set_data(JOB, b"tenure", None).await.unwrap();
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let node = format!("{JOB}/_t2_f6c3-");
    client.create(&node, br#"{"format":1,"holder":"f6c3"}"#, &options).await.unwrap();
    is_newer(&refused(&backend, WaitMode::No).await, &node);
    is_newer(&backend.inspect(&name).await.expect_err("nor is it shown"), &node);
}

/// A memo of a newer version is neither taken for none nor written over.
#[tokio::test]
async fn a_newer_memo_is_refused() {
    let server = ZooKeeperServer::start();
    let (backend, client) = (zookeeper(&server.url("")), raw(&server.address()).await);
    let player = Player::new(backend.clone(), "job");
    let grant = soon("it enters", player.enter()).await;
    let memo = Memo::new("done", Duration::from_secs(60)).unwrap();
    let note = || backend.note(&grant.name, grant.owner, grant.token, &memo);
    assert_eq!(soon("it is noted", note()).await.unwrap(), Noted::Noted);
    let newer = br#"{"format":1,"text":{}}"#;
    client.set_data("/tenure/%memos/job", newer, None).await.unwrap();
    is_newer(&note().await.expect_err("it is not written over"), "/tenure/%memos/job");
    is_newer(&backend.inspect(&grant.name).await.expect_err("nor is there none"), "/tenure/%memos/job");
    until("it is left alone", async || client.get_data("/tenure/%memos/job").await.unwrap().0 == newer).await;
}
