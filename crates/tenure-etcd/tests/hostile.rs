//! What a hostile reading found: servers that are full, compacted, put back or replaced.

use std::{path::Path, process::Command, time::Duration};

use tenure_core::{Audience, BackendHandle, BreakScope, ErrorKind, Renewal, WakeEvent};
use tenure_testkit::{
    conformance::player::Player,
    etcd::{EtcdServer, Recipe},
    patience::in_time,
    proxy::Proxy,
};

use crate::stage::{self, PATIENCE, becomes, etcd, named};

/// Writes until the server has no space left.
fn fill(server: &EtcdServer) {
    let value = "x".repeat(2_000);
    for n in 0..400 {
        if !server.etcdctl(&["put", &format!("fill/{n}"), &value]).output().unwrap().status.success() {
            return;
        }
    }
    panic!("there is no end to its space");
}

/// L6. Why a renewal writes nothing: where the space is used up nobody is let in, and nobody has to leave.
#[tokio::test]
async fn a_full_database_costs_no_holder_its_lease() {
    let server = Recipe::new().args(&["--quota-backend-bytes", "400000"]).start();
    let backend = etcd(&server.url(""));
    let mut holders = ["one", "two", "three"].map(|name| Player::new(backend.clone(), name));
    let mut grants = Vec::new();
    for holder in &mut holders {
        // Nobody renews it while the space is filled, by some eighty programs.
        holder.claim.ttl = Duration::from_secs(300);
        grants.push(holder.enter().await);
    }
    fill(&server);
    assert!(
        server.metric("etcd_mvcc_db_total_size_in_bytes ") >= 400_000.0,
        "not only the next write is refused"
    );
    for answer in backend.renew(&grants).await {
        assert_eq!(answer.expect("nothing is to be written"), Renewal::Renewed);
    }
    for holder in holders {
        holder.leave().await;
    }
}

/// A watch that was attached again after a pause began where it had left off. Where the server had been compacted meanwhile it was
/// refused, and never asked for again: a `break` was noticed at the next renewal only, up to ttl/3 late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_hears_of_a_break_after_a_compaction() {
    let server = EtcdServer::start();
    let proxy = Proxy::to(server.port(), 1);
    let backend = etcd(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let elsewhere = etcd(&server.url(""));
    let mut holder = Player::new(backend.clone(), "job");
    holder.claim.ttl = Duration::from_secs(300);
    let mut hints = backend.wakes(holder.claim.owner.process(), Audience::Holders);
    holder.enter().await;
    let watchers = || server.metric("etcd_debugging_mvcc_watcher_total ");
    becomes("it listens", async || (watchers() > 0.0).then_some(())).await;
    for n in 0..5 {
        server.ask(&["put", "other", &n.to_string()]);
    }
    let status = server.ask(&["endpoint", "status", "--write-out=json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].as_u64().unwrap();
    proxy.cut();
    server.ask(&["compact", &revision.to_string()]);
    becomes("nobody listens", async || (watchers() == 0.0).then_some(())).await;
    proxy.heal();
    let rung = WakeEvent::Owner(holder.claim.owner);
    let told = async { while hints.next().await != rung {} };
    in_time("it is told that it may have missed something", PATIENCE, told).await;
    becomes("it listens again", async || (watchers() > 0.0).then_some(())).await;
    elsewhere.break_lock(&named("job"), BreakScope::Leases).await.unwrap();
    let told = async { while hints.next().await != rung {} };
    in_time("it is told of the break", PATIENCE, told).await;
}

/// What a claim is refused with.
async fn refused(backend: &BackendHandle, words: &str) {
    let player = Player::new(backend.clone(), "job");
    let error = becomes("it is answered", async || match backend.claim(&player.claim).await {
        Err(error) if error.kind().is_transient() => None,
        answer => Some(answer.expect_err("nobody may be let in")),
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// L2. A cluster that was put back to a backup gave out tokens again that this very process had had, and nobody said a word.
#[tokio::test]
async fn who_has_seen_more_than_a_restored_cluster_lets_nobody_in() {
    let server = EtcdServer::start();
    let (data, backup) = (server.folder().join("data"), server.folder().join("backup"));
    server.kill();
    copy(&data, &backup);
    server.start_again();
    let backend = etcd(&server.url(""));
    let player = Player::new(backend.clone(), "job");
    let first = becomes("it is let in", async || player.backend.claim(&player.claim).await.ok()).await;
    player.leave().await;
    for n in 0..3 {
        server.ask(&["put", "other", &n.to_string()]);
    }
    backend.inspect(&named("job")).await.unwrap();
    server.kill();
    copy(&backup, &data);
    server.start_again();
    refused(&backend, "restored to an earlier state").await;
    assert_eq!(stage::left(&server).0, [""; 0], "and leaves nothing: {first:?}");
}

/// L1. An address that leads to another cluster, as a name that was given to a new one, was asked as if it were the old one: a
/// holder there was unknown here, and the next one was let in beside it.
#[tokio::test]
async fn who_knows_one_cluster_is_not_let_in_by_another() {
    let (old, new) = (EtcdServer::start(), EtcdServer::start());
    let proxy = Proxy::to(old.port(), 1);
    let backend = etcd(&format!("etcd://127.0.0.1:{}", proxy.port()));
    let holder = Player::new(etcd(&old.url("")), "job");
    holder.enter().await;
    assert!(!Player::new(backend.clone(), "job").try_enter().await);
    for n in 0..9 {
        new.ask(&["put", "other", &n.to_string()]);
    }
    proxy.lead_to(new.port());
    proxy.cut();
    proxy.heal();
    refused(&backend, "another etcd cluster").await;
}
