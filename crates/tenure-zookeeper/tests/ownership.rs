//! A write of the program's own in one `multi` with the check that its owner holds.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tenure::{Locker, backend::TokioHost, ownership::Ownership};
use tenure_testkit::{patience::slowness, zookeeper::ZooKeeperServer};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::stage::{raw, zookeeper};

/// Whether the write was done.
async fn write(client: &Client, ownership: &Ownership, value: &[u8]) -> bool {
    write_to(client, ownership, ("/data", value)).await
}

async fn write_to(client: &Client, ownership: &Ownership, (data, value): (&str, &[u8])) -> bool {
    let Ownership::ZooKeeper { path } = ownership else { panic!("{ownership:?}") };
    let mut multi = client.new_multi_writer();
    multi.add_check_version(path, -1).unwrap();
    multi.add_set_data(data, value, None).unwrap();
    multi.commit().await.is_ok()
}

/// L3: a former holder writes nothing, whatever it was told.
#[tokio::test]
async fn a_multi_with_the_check_writes_as_the_owner_only() {
    let server = ZooKeeperServer::start();
    let client = raw(&server.address()).await;
    client.create("/data", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    let locker = || Locker::new(zookeeper(&server.url("")), Arc::new(TokioHost));
    let (locks, others) = (locker(), locker());
    let first = locks.mutex("job").acquire().await.unwrap();
    let former = first.ownership().await.unwrap();
    assert!(write(&client, &former, b"first").await);
    let waiting = tokio::spawn(async move { others.mutex("job").acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(write(&client, &former, b"again").await, "one waits, and does not hold");
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(!write(&client, &former, b"late").await);
    let ownership = second.ownership().await.unwrap();
    assert!(write(&client, &ownership, b"second").await);
    locks.force_release("job").await.unwrap();
    assert!(!write(&client, &ownership, b"late").await);
}

async fn number(client: &Client, data: &str) -> u64 {
    String::from_utf8(client.get_data(data).await.unwrap().0).unwrap().parse().unwrap()
}

/// L1, L3: a thousand times a holder reads, stands still, at times past its ttl, and writes what it has computed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_stands_still_overwrites_nothing() {
    let (server, ttl, within) =
        (ZooKeeperServer::start(), Duration::from_secs(1), Duration::from_secs(60) * slowness());
    let client = raw(&server.address()).await;
    for lock in 0..32 {
        let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&format!("/count-{lock}"), b"0", &mode).await.unwrap();
    }
    let processes = [(); 4].map(|()| Locker::new(zookeeper(&server.url("")), Arc::new(TokioHost)));
    let holder = |lock: u64, seat: u64| {
        let (locks, name, client) =
            (&processes[((lock + seat) % 4) as usize], format!("/count-{lock}"), &client);
        async move {
            let mut done = 0;
            for round in 0..16 {
                let lock_of = locks.mutex(format!("count/{lock}")).ttl(ttl).max_hold(ttl).within(within);
                let guard = lock_of.acquire().await.unwrap();
                let Ok(ownership) = guard.ownership().await else { continue };
                let before = number(client, &name).await;
                let rest = (lock * 7919 + seat * 31 + round * 104_729) % 2000;
                tokio::time::sleep(Duration::from_millis(if round % 4 == 0 { rest } else { rest / 100 }))
                    .await;
                let after = (before + 1).to_string();
                done += u64::from(write_to(client, &ownership, (&name, after.as_bytes())).await);
            }
            done
        }
    };
    let done = join_all((0..32).flat_map(|lock| [holder(lock, 0), holder(lock, 1)])).await;
    let mut counted = 0;
    for lock in 0..32 {
        counted += number(&client, &format!("/count-{lock}")).await;
    }
    assert_eq!(counted, done.iter().sum::<u64>(), "updates are lost");
    assert!((100..1024).contains(&counted), "some were refused: {counted}");
}
