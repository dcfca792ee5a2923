//! The etcd servers of the testkit are what they say.

use tenure_testkit::{
    etcd::{EtcdCluster, EtcdServer, Recipe},
    redis::Certificates,
};

#[test]
fn a_server_keeps_its_data_over_a_crash() {
    let server = EtcdServer::start();
    assert_eq!(server.ask(&["put", "a", "1"]), "OK");
    server.kill();
    assert!(!server.is_running());
    server.start_again();
    assert_eq!(server.ask(&["get", "a", "--print-value-only"]), "1");
    assert!(server.metric("grpc_server_handled_total{") > 0.0);
    assert!(server.url("?prefix=x").starts_with("etcd://127.0.0.1:"));
}

#[test]
fn a_cluster_goes_on_without_its_leader() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.leader(&[0, 1, 2]);
    cluster.member(leader).kill();
    let rest: Vec<usize> = (0..3).filter(|&index| index != leader).collect();
    let next = cluster.leader(&rest);
    assert_ne!(next, leader);
    assert_eq!(cluster.member(next).ask(&["put", "a", "1"]), "OK");
}

#[test]
fn a_server_can_ask_who_it_is_and_hide_what_it_says() {
    let certificates = Certificates::new();
    let server = Recipe::new().tls(&certificates).login("secret").start();
    assert_eq!(server.ask(&["put", "a", "1"]), "OK");
    let address = format!("https://{}", server.address());
    let stranger = std::process::Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &address, "--cacert", certificates.ca_file().to_str().unwrap(), "get", "a"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("user name is empty"), "{stranger:?}");
    assert!(server.url("").starts_with("etcds://"));
}
