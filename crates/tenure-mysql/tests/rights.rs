//! What a user of the database must be allowed, and what it is told if it is not.

use tenure_core::{BreakScope, ErrorKind, Outcome, Released, Renewal, Severity};
use tenure_testkit::{conformance::player::Player, mysql::MysqlServer};

use crate::stage::{finding, mysql, player, refused_as};

/// A server with a table, and the URL of a user that has these rights on it.
async fn with_rights(rights: &str) -> (MysqlServer, String) {
    let server = MysqlServer::start();
    player(&server.url(""), "old").enter().await;
    server.sql(&format!(
        "CREATE USER app@'127.0.0.1'; GRANT {rights} ON tenure.tenure_lock TO app@'127.0.0.1'"
    ));
    let url = server.url("").replace("tenure@", "app@");
    (server, url)
}

async fn every_verb_works(url: &str) {
    let (a, b) = (player(url, "one"), player(url, "one"));
    let grant = a.enter().await;
    b.queue_behind(0).await;
    let renewed = a.backend.renew(&[grant.clone(), grant]).await;
    assert!(renewed.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed));
    assert_eq!(a.leave().await, Released::Released);
    b.enter().await;
    assert_eq!(a.backend.break_lock(&b.claim.name, BreakScope::Leases).await.unwrap().len(), 1);
    assert_eq!(a.backend.list("one").await.unwrap(), []);
    // Some of these names sweep.
    for n in 0..200 {
        Player::new(a.backend.clone(), &format!("new/{n}")).enter().await;
    }
    let findings = a.backend.diagnose().await.unwrap();
    assert!(findings.iter().all(|it| !it.what.contains("was tried")), "{findings:?}");
}

#[tokio::test]
async fn four_rights_on_the_table_are_enough() {
    let (_server, url) = with_rights("SELECT, INSERT, UPDATE, DELETE").await;
    every_verb_works(&url).await;
}

/// Rows of locks that nobody uses stay then.
#[tokio::test]
async fn without_the_right_to_delete_nothing_is_swept_and_all_else_works() {
    let (_server, url) = with_rights("SELECT, INSERT, UPDATE").await;
    every_verb_works(&url).await;
}

#[tokio::test]
async fn what_a_user_may_not_do_it_is_told() {
    for rights in ["SELECT, UPDATE", "SELECT", "INSERT, UPDATE, DELETE"] {
        let (server, url) = with_rights(rights).await;
        refused_as(&url, ErrorKind::Denied, "lacks a permission").await;
        finding(&mysql(&url), Severity::Problem, "lacks a permission").await;
        let a = player(&url, "old");
        match (rights, a.backend.claim(&a.claim).await) {
            ("SELECT, UPDATE", answer) => drop(answer.unwrap()),
            (_, answer) => {
                let error = answer.unwrap_err();
                assert_eq!(
                    (error.kind(), error.outcome()),
                    (ErrorKind::Denied, Outcome::NotApplied),
                    "{error:?}"
                );
            }
        }
        assert_eq!(server.sql("SELECT COUNT(*) FROM tenure_lock"), "1", "{rights}");
    }
}

/// A user that may not make the table is told so, and the one that somebody else makes is found by the same handle.
#[tokio::test]
async fn who_may_not_make_the_table_is_told() {
    let server = MysqlServer::start();
    server.sql(
        "CREATE USER app@'127.0.0.1'; GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.* TO app@'127.0.0.1'; \
         RENAME TABLE tenure_lock TO elsewhere",
    );
    let url = server.url("").replace("tenure@", "app@");
    refused_as(&url, ErrorKind::Denied, "lacks a permission").await;
    let a = player(&url, "one");
    assert_eq!(a.backend.claim(&a.claim).await.unwrap_err().kind(), ErrorKind::Denied);
    server.sql("RENAME TABLE elsewhere TO tenure_lock");
    a.enter().await;
}

/// The lines of the README are what a user needs, and make the table that a claim would have made.
#[tokio::test]
async fn the_readmes_lines_give_the_least_rights() {
    let server = MysqlServer::start();
    server.sql("CREATE DATABASE app; CREATE USER app@'%'");
    let url = format!("mysql://app@{}/app", server.address());
    refused_as(&url, ErrorKind::Denied, "lacks a permission").await;
    let (_, lines) = include_str!("../README.md").split_once("```sql\n").unwrap();
    server.sql(&format!("USE app; {}", lines.split_once("```").unwrap().0));
    every_verb_works(&url).await;
    player(&server.url(""), "one").enter().await;
    server.sql("DROP TABLE tenure_lock");
    let maker = player(&server.url(""), "one");
    maker.backend.claim(&maker.claim).await.unwrap_err();
    assert_eq!(server.sql("SHOW CREATE TABLE app.tenure_lock"), server.sql("SHOW CREATE TABLE tenure_lock"));
}
