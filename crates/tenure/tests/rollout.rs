//! A larger `max_ttl` is rolled out: processes with it share the locks of those with the smaller one.

#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::time::Duration;

use tenure::{AcquireError, ErrorKind, Locker, connect};
use tenure_testkit::{
    patience::{becomes, slowness},
    redis::RedisServer,
};

const SMALLER: Duration = Duration::from_secs(2);

async fn locker(url: String) -> Locker {
    connect(&url).await.unwrap()
}

/// The first acquisition of a process asked for the default of its own URL, which the store refuses.
async fn gets_what_the_store_grants(old: &str, new: &str) {
    let guard = locker(old.into()).await.mutex("old").ttl(SMALLER).acquire().await.unwrap();
    let locks = locker(new.into()).await;
    assert_eq!(locks.promises().default_ttl(), Duration::from_secs(10), "nothing was asked yet");
    let held = locks.mutex("new").acquire().await.unwrap();
    assert!(held.remaining() <= SMALLER, "{:?}", held.remaining());
    assert_eq!(locks.promises().default_ttl(), SMALLER);
    held.check().unwrap();
    // One that was named is not shortened.
    let refused = locks.mutex("long").ttl(2 * SMALLER).acquire().await;
    match refused {
        Err(AcquireError::Store(error)) => {
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("--raise"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    guard.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_takes_leases_as_long_as_the_store_grants() {
    let server = RedisServer::start();
    let url = |max: &str| server.url(&format!("?max_ttl={max}"));
    gets_what_the_store_grants(&url("2s"), &url("20s")).await;
    // To attach asks for the default ttl as well.
    let left =
        locker(url("2s")).await.mutex("left").ttl(SMALLER).acquire().await.unwrap().detach().await.unwrap();
    let attached = locker(url("20s")).await.mutex("left").attach(left.owner()).await.unwrap();
    assert!(attached.remaining() <= SMALLER, "{:?}", attached.remaining());
}

/// Of a quorum, the first node of the list may be the one that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_grants_what_each_of_its_nodes_grants() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
    let url = |max: &str| format!("redlock:{}?max_ttl={max}", nodes.join(","));
    becomes("the new nodes grant", Duration::from_secs(20) * slowness(), async || {
        let locks = locker(url("2s")).await;
        locks.mutex("first").ttl(SMALLER).acquire().await.is_ok().then_some(())
    })
    .await;
    servers[0].kill();
    gets_what_the_store_grants(&url("2s"), &url("20s")).await;
}
