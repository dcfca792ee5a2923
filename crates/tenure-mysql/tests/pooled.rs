//! A pooler before the server (hazard 54): each statement runs over another connection, some of which may be in no shape for it. The
//! contract is kept through one in `conformance.rs`.

use mysql_async::prelude::Queryable;
use tenure_core::{ClaimAnswer, ErrorKind, Outcome, Severity};
use tenure_testkit::{
    conformance::player::Player,
    mysql::{MysqlServer, Pooler, Recipe},
};

use crate::stage::{connect, contend, finding, mysql, player, refused_as, transactions, until};

#[tokio::test]
async fn through_a_pooler_one_holds_at_a_time_and_nothing_is_left_behind() {
    let server = MysqlServer::start();
    let pooler = Pooler::to(server.port());
    contend(&pooler.url(""), 8, 5).await;
    assert!(pooler.statements() > 8 * 5 * 2, "{}", pooler.statements());
    assert_eq!(transactions(&server), 0);
    let user_locks = "SELECT COUNT(*) FROM information_schema.metadata_lock_info";
    server.sql("INSTALL SONAME 'metadata_lock_info'");
    assert_eq!(server.sql(user_locks), "0");
    let backend = mysql(&pooler.url(""));
    let findings = backend.diagnose().await.unwrap();
    assert!(
        findings.iter().all(|it| !it.what.contains("was tried")),
        "a trial keeps one connection: {findings:?}"
    );
    until("the trial was rolled back", async || transactions(&server) == 0).await;
}

/// L1, A3: where autocommit is off, a yes of the server is no commit.
#[tokio::test]
async fn a_server_without_autocommit_is_refused_by_name_until_it_is_mended() {
    let server = Recipe::new().set("autocommit=0").start();
    server.sql("DROP TABLE tenure_lock");
    let backend = mysql(&server.url(""));
    refused_as(&server.url(""), ErrorKind::Unsupported, "autocommit is off").await;
    let a = Player::new(backend.clone(), "one");
    assert_eq!(backend.claim(&a.claim).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(backend.list("").await.unwrap_err().kind(), ErrorKind::Unsupported);
    finding(&backend, Severity::Problem, "autocommit is off").await;
    assert_eq!(server.sql("SHOW TABLES"), "", "no table was made");
    assert_eq!(transactions(&server), 0);
    server.sql("SET GLOBAL autocommit = 1");
    tenure_testkit::mysql::make_table(&server.address(), "tenure_lock");
    a.enter().await;
}

/// A user for whom autocommit is switched off as soon as it comes.
#[tokio::test]
async fn a_user_without_autocommit_is_refused_by_name() {
    let server = MysqlServer::start();
    let holder = player(&server.url(""), "one");
    holder.enter().await;
    server.sql("SET GLOBAL init_connect = 'SET autocommit = 0'");
    refused_as(&server.url(""), ErrorKind::Unsupported, "autocommit is off").await;
    assert_eq!(transactions(&server), 0);
}

/// A client of the pooler has switched autocommit off in some of its connections: what goes over those writes nothing, is refused by
/// name, and leaves no transaction open, also where the handle asks for nothing more.
#[tokio::test]
async fn pooled_connections_without_autocommit_write_nothing() {
    for spoilt in [1, Pooler::OPEN] {
        let server = MysqlServer::start();
        let pooler = Pooler::to(server.port());
        player(&server.url(""), "held").enter().await;
        let mut careless = connect(pooler.port(), &[]).await;
        for _ in 0..spoilt {
            careless.query_drop("SET autocommit = 0").await.unwrap();
        }
        let witness = mysql(&server.url(""));
        let mut backends = Vec::new();
        let mut refused = 0;
        for n in 0..24 {
            let backend = mysql(&pooler.url(""));
            let name = if n % 2 == 0 { "held".to_owned() } else { format!("new/{n}") };
            let a = Player::new(backend.clone(), &name);
            let answer = backend.claim(&a.claim).await;
            let view = witness.inspect(&a.claim.name).await.unwrap();
            let owner = a.claim.owner.to_string();
            match answer {
                Ok(ClaimAnswer::Granted(_)) => assert!(view.holders.iter().any(|it| it.owner == owner)),
                Ok(ClaimAnswer::Queued { .. }) => assert!(view.queue.iter().any(|it| it.owner == owner)),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
                    assert!(error.to_string().contains("autocommit is off"), "{error}");
                    let mut owners =
                        view.holders.iter().map(|it| &it.owner).chain(view.queue.iter().map(|it| &it.owner));
                    let is_there = owners.any(|it| *it == owner);
                    assert!(error.outcome() == Outcome::Unknown || !is_there, "{error:?}: {view:?}");
                    refused += 1;
                }
            }
            // It is there, and asks for nothing.
            backends.push(backend);
        }
        assert!(refused > 0 && (spoilt == 1 || refused == 24), "{refused} of 24 with {spoilt}");
        until("no transaction is open", async || transactions(&server) == 0).await;
    }
}
