//! A write of the program's own in one `multi` with the check that its owner holds.

use tenure::{Locker, backend::TokioHost, ownership::Ownership};
use tenure_testkit::zookeeper::ZooKeeperServer;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::stage::{raw, zookeeper};

/// Whether the write was done.
async fn write(client: &Client, ownership: &Ownership, value: &[u8]) -> bool {
    let Ownership::ZooKeeper { path } = ownership else { panic!("{ownership:?}") };
    let mut multi = client.new_multi_writer();
    multi.add_check_version(path, -1).unwrap();
    multi.add_set_data("/data", value, None).unwrap();
    multi.commit().await.is_ok()
}

/// L3: a former holder writes nothing, whatever it was told.
#[tokio::test]
async fn a_multi_with_the_check_writes_as_the_owner_only() {
    let server = ZooKeeperServer::start();
    let client = raw(&server.address()).await;
    client.create("/data", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    let locker = || Locker::new(zookeeper(&server.url("")), std::sync::Arc::new(TokioHost));
    let (locks, others) = (locker(), locker());
    let first = locks.mutex("job").acquire().await.unwrap();
    let former = first.ownership().await.unwrap();
    assert!(write(&client, &former, b"first").await);
    let waiting = tokio::spawn(async move { others.mutex("job").acquire().await.unwrap() });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(write(&client, &former, b"again").await, "one waits, and does not hold");
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(!write(&client, &former, b"late").await);
    let ownership = second.ownership().await.unwrap();
    assert!(write(&client, &ownership, b"second").await);
    locks.force_release("job").await.unwrap();
    assert!(!write(&client, &ownership, b"late").await);
}
