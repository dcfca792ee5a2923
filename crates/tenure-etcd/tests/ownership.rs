//! A write of the program's own in one transaction with the condition that its owner holds.

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use tenure::{Guard, ownership::Ownership};
use tenure_testkit::etcd::EtcdServer;

use crate::stage::locker;

/// Whether the write was done.
async fn write(client: &mut Client, ownership: &Ownership, value: &str) -> bool {
    let Ownership::Etcd { key, create_revision } = ownership else { panic!("{ownership:?}") };
    let holds = Compare::create_revision(key.clone(), CompareOp::Equal, *create_revision);
    let txn = Txn::new().when([holds]).and_then([TxnOp::put("data", value, None)]);
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
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(write(&mut client, &former, "again").await, "one waits, and does not hold");
    first.release().await.unwrap();
    let second: Guard = waiting.await.unwrap();
    assert!(!write(&mut client, &former, "late").await);
    let ownership = second.ownership().await.unwrap();
    assert!(write(&mut client, &ownership, "second").await);
    locks.force_release("job").await.unwrap();
    assert!(!write(&mut client, &ownership, "late").await);
}
