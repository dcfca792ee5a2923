//! A write of the program's own in one transaction with the condition that its owner holds.

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use futures_util::future::join_all;
use tenure::{Guard, ownership::Ownership};
use tenure_testkit::{etcd::EtcdServer, patience::slowness};

use crate::stage::locker;

/// Whether the write was done.
async fn write(client: &mut Client, ownership: &Ownership, value: &str) -> bool {
    write_to(client, ownership, ("data", value)).await
}

async fn write_to(client: &mut Client, ownership: &Ownership, (data, value): (&str, &str)) -> bool {
    let Ownership::Etcd { key, create_revision } = ownership else { panic!("{ownership:?}") };
    let holds = Compare::create_revision(key.clone(), CompareOp::Equal, *create_revision);
    let txn = Txn::new().when([holds]).and_then([TxnOp::put(data, value, None)]);
    client.txn(txn).await.unwrap().succeeded()
}

/// L3: a former holder writes nothing, whatever it was told, and a holder that waited before writes.
#[tokio::test]
async fn a_transaction_with_the_condition_writes_as_the_owner_only() {
    let server = EtcdServer::start();
    let mut client = Client::connect([server.address()], None).await.unwrap();
    let (locks, others) = (locker(&server.url("")), locker(&server.url("")));
    let first = locks.mutex("job").acquire().await.unwrap();
    let former = first.ownership().await.unwrap();
    assert!(write(&mut client, &former, "first").await);
    let waiting = tokio::spawn(async move { others.mutex("job").acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(write(&mut client, &former, "again").await, "one waits, and does not hold");
    first.release().await.unwrap();
    let second: Guard = waiting.await.unwrap();
    assert!(!write(&mut client, &former, "late").await);
    let ownership = second.ownership().await.unwrap();
    assert!(write(&mut client, &ownership, "second").await);
    locks.force_release("job").await.unwrap();
    assert!(!write(&mut client, &ownership, "late").await);
}

async fn number(client: &mut Client, data: &str) -> u64 {
    let found = client.get(data, None).await.unwrap();
    found.kvs().first().map_or(0, |there| there.value_str().unwrap().parse().unwrap())
}

/// L1, L3: a thousand times a holder reads, stands still, at times past its ttl, and writes what it has computed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_stands_still_overwrites_nothing() {
    let (server, ttl, within) =
        (EtcdServer::start(), Duration::from_secs(1), Duration::from_secs(60) * slowness());
    let holder = |lock: u64, seat: u64| {
        let (locks, name, address) = (locker(&server.url("")), format!("count/{lock}"), server.address());
        async move {
            let mut client = Client::connect([address], None).await.unwrap();
            let mut done = 0;
            for round in 0..16 {
                let guard = locks.mutex(&name).ttl(ttl).max_hold(ttl).within(within).acquire().await.unwrap();
                let Ok(ownership) = guard.ownership().await else { continue };
                let before = number(&mut client, &name).await;
                let rest = (lock * 7919 + seat * 31 + round * 104_729) % 2000;
                tokio::time::sleep(Duration::from_millis(if round % 4 == 0 { rest } else { rest / 100 }))
                    .await;
                let after = (before + 1).to_string();
                done += u64::from(write_to(&mut client, &ownership, (&name, &after)).await);
            }
            done
        }
    };
    let done = join_all((0..32).flat_map(|lock| [holder(lock, 0), holder(lock, 1)])).await;
    let mut client = Client::connect([server.address()], None).await.unwrap();
    let mut counted = 0;
    for lock in 0..32 {
        counted += number(&mut client, &format!("count/{lock}")).await;
    }
    assert_eq!(counted, done.iter().sum::<u64>(), "updates are lost");
    assert!((100..1024).contains(&counted), "some were refused: {counted}");
}
