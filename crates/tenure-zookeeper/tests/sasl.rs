//! SASL by DIGEST-MD5, on a server with a JAAS file.

use std::time::Duration;

use tenure_core::{ErrorKind, Outcome};
use tenure_testkit::{conformance::player::Player, zookeeper::ZooKeeperServer};

use zookeeper_client::{Client, SaslOptions};

use crate::stage::{locker, renewed, soon, zookeeper};

fn url(server: &ZooKeeperServer, login: &str) -> String {
    server.url("sasl=digest-md5").replacen("//", &format!("//{login}@"), 1)
}

/// The server gives the nodes to the user of the SASL login. No other user can access them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_belongs_to_the_user_of_the_jaas_file() {
    let server = ZooKeeperServer::jaas("app", "s3same");
    let locks = locker(&url(&server, "app:s3same")).await;
    let guard = soon("it holds", locks.mutex("job").ttl(Duration::from_secs(3)).acquire()).await.unwrap();
    assert!(renewed(&guard, 2).await);
    let same = Client::connector().with_sasl(SaslOptions::digest_md5("app", "s3same"));
    let (acl, _) = same.connect(&server.address()).await.unwrap().get_acl("/tenure/job").await.unwrap();
    let owners: Vec<_> = acl.iter().map(|acl| (acl.scheme().to_owned(), acl.id().to_owned())).collect();
    assert_eq!(owners, [("sasl".to_owned(), "app".to_owned())]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_shown() {
    let server = ZooKeeperServer::jaas("app", "s3same");
    for login in ["app:wr0ng-secret", "nobody:wr0ng-secret"] {
        let player = Player::new(zookeeper(&url(&server, login)), "job");
        let error = player.backend.claim(&player.claim).await.expect_err("it should have been refused");
        println!("{error}");
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error:?}");
        assert!(error.to_string().contains("ZooKeeper refuses this login"), "{error}");
        assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
    }
}

/// A session survives the restart of its server; it logs in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_logs_in_again_after_a_restart() {
    let server = ZooKeeperServer::jaas("app", "s3same");
    let locks = locker(&url(&server, "app:s3same")).await;
    let guard = soon("it holds", locks.mutex("job").ttl(Duration::from_secs(50)).acquire()).await.unwrap();
    server.kill();
    server.start_again();
    assert!(renewed(&guard, 1).await);
    guard.release().await.unwrap();
}

/// A server without a JAAS file lets everybody in under no name: no node can be made that belongs to the user.
#[tokio::test]
async fn a_server_without_users_is_told_from_one_with_them() {
    let server = ZooKeeperServer::start();
    let player = Player::new(zookeeper(&url(&server, "app:s3same")), "job");
    let error = player.backend.claim(&player.claim).await.expect_err("it should have been refused");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains("ZooKeeper knows no user of this session"), "{error}");
}
