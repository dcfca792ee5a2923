//! ZooKeeper servers for tests serve, elect, stop and come back.

use tenure_testkit::zookeeper::{Ensemble, ZooKeeperServer};

#[test]
fn a_server_serves_dies_and_comes_back() {
    let server = ZooKeeperServer::start();
    assert_eq!(server.mode().as_deref(), Some("standalone"));
    server.kill();
    assert_eq!(server.mode(), None);
    server.start_again();
    assert_eq!(server.mode().as_deref(), Some("standalone"));
}

#[test]
fn an_ensemble_elects_another_leader_when_its_leader_dies() {
    let ensemble = Ensemble::behind_proxies(3);
    let leader = ensemble.leader();
    assert_eq!(ensemble.followers().len(), 2);
    ensemble.member(leader).kill();
    let next = ensemble.leader();
    assert_ne!(next, leader);
    ensemble.member(leader).start_again();
}
