//! TLS of every store in one process. ZooKeeper's client brings a second library of ciphers, with which drivers panic that take
//! those of the process while none was chosen.

use std::time::Duration;

use tenure_testkit::{
    etcd, mysql,
    patience::{eventually, in_time},
    postgres, redis,
    redis::Certificates,
    zookeeper::ZooKeeperServer,
};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_store_breaks_that_of_another_one() {
    let certificates = Certificates::new();
    let (cert, key) = certificates.client();
    let (ca, cert, key) = (certificates.ca_file(), cert.display(), key.display());
    let ca = ca.display();
    let redis_server = redis::Recipe::new().tls(&certificates).start();
    let node = redis::Recipe::new().tls(&certificates).alone_in_a_cluster().config("tls-cluster yes").start();
    assert_eq!(node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).error(), None);
    eventually("the cluster is up", PATIENCE, || {
        node.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok").then_some(())
    });
    let postgres_server = postgres::Recipe::new().tls(&certificates).start();
    let etcd_server = etcd::Recipe::new().tls(&certificates).start();
    let mysql_server = mysql::Recipe::new().tls(&certificates).start();
    let ensemble = ZooKeeperServer::tls(&certificates);

    let redis = redis_server.url(&format!("?guard=off&ca={ca}"));
    let cluster = format!("rediss-cluster://127.0.0.1:{}/?ca={ca}&cert={cert}&cert_key={key}", node.port());
    let postgres = postgres_server.url(&format!("?sslmode=verify-full&sslrootcert={ca}"));
    let etcd = etcd_server.url(&format!("?ca={ca}"));
    let mysql = mysql_server.url(&format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"));
    let zookeeper = ensemble.tls_url("127.0.0.1", &format!("&cert={cert}&key={key}"));
    // Before the ciphers of the process are chosen, and behind that.
    for url in [&redis, &postgres, &etcd, &zookeeper, &redis, &postgres, &etcd, &mysql, &cluster] {
        let lock = tenure::connect(url).await.unwrap().mutex("job");
        let guard = in_time(&format!("{url} grants"), PATIENCE, lock.acquire()).await.unwrap();
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}
