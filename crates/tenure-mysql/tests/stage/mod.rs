//! What the tests of the MySQL backend share: handles to servers, and what a server says of itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use mysql_async::{Conn, OptsBuilder, prelude::Queryable};
use tenure::backend::TokioHost;
use tenure_core::{BackendError, BackendHandle, ErrorKind, Finding, Grant, Outcome, Severity};
use tenure_mysql::{Config, backend};
pub(crate) use tenure_testkit::entry::chain;
use tenure_testkit::{
    conformance::player::Player,
    entry::let_in_within,
    mysql::MysqlServer,
    patience::{self, in_time},
};

/// How long a server may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A handle as one process has it.
pub(crate) fn mysql(url: &str) -> BackendHandle {
    Arc::new(backend(Config::from_url(url).unwrap(), Arc::new(TokioHost)))
}

/// A claimant in a process of its own.
pub(crate) fn player(url: &str, name: &str) -> Player {
    Player::new(mysql(url), name)
}

/// Asks until it is let in.
pub(crate) async fn enter_in_time(player: &Player) -> Grant {
    let_in_within(PATIENCE, player).await.grant
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    patience::until(what, PATIENCE, is_so).await;
}

/// Ends what hangs, with its place in the test.
pub(crate) async fn soon<A>(what: impl Future<Output = A>) -> A {
    in_time("it answers", PATIENCE, what).await
}

/// A claim fails, touches nothing, and says it in one line without the password `secret`.
pub(crate) async fn refused(url: &str) -> BackendError {
    let a = player(url, "one");
    let error = soon(a.backend.claim(&a.claim)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    let text = error.to_string();
    assert!(!text.contains('\n') && text.chars().next().unwrap().is_lowercase(), "{text}");
    error
}

/// It fails with this kind, in these words.
pub(crate) async fn refused_as(url: &str, kind: ErrorKind, part: &str) {
    let mut error = refused(url).await;
    // A busy machine may not answer in time. Then once more.
    for _ in 0..10 {
        if kind == ErrorKind::Unavailable || error.kind() != ErrorKind::Unavailable {
            break;
        }
        error = refused(url).await;
    }
    assert_eq!(error.kind(), kind, "{}", chain(&error));
    assert!(error.to_string().contains(part), "{}", chain(&error));
}

/// The doctor says this.
pub(crate) async fn finding(backend: &BackendHandle, severity: Severity, part: &str) {
    let findings = soon(backend.diagnose()).await.unwrap();
    let is_it = |it: &Finding| it.severity == severity && it.what.contains(part);
    assert!(findings.iter().any(is_it), "{part}: {findings:?}");
}

/// A connection of somebody else, after these statements.
pub(crate) async fn connect(port: u16, statements: &[&str]) -> Conn {
    let options = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .user(Some("tenure"))
        .db_name(Some("tenure"))
        .prefer_socket(false);
    let mut conn = Conn::new(options).await.unwrap();
    for statement in statements {
        conn.query_drop(*statement).await.unwrap();
    }
    conn
}

/// A connection of somebody else, which has the row locked until it is told to end.
pub(crate) async fn lock_row(server: &MysqlServer, name: &str) -> Conn {
    connect(server.port(), &["BEGIN", &format!("SELECT 1 FROM tenure_lock WHERE name = '{name}' FOR UPDATE")])
        .await
}

/// How many transactions wait for a lock.
pub(crate) fn waiting(server: &MysqlServer) -> usize {
    server
        .sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        .split('\t')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// How many transactions are open. A table says so, too, but not to those who ask often.
pub(crate) fn transactions(server: &MysqlServer) -> usize {
    let status = server.sql("SHOW ENGINE INNODB STATUS");
    let (_, all) = status.split_once("LIST OF TRANSACTIONS FOR EACH SESSION").unwrap();
    all.matches(", ACTIVE ").count()
}

/// L1, L2: processes that come and go through one lock; each finds it empty and has a larger token than all before it.
pub(crate) async fn contend(url: &str, processes: usize, rounds: usize) {
    let (inside, last) = (AtomicUsize::new(0), AtomicU64::new(0));
    let comes = async |backend: BackendHandle| {
        for _ in 0..rounds {
            let player = Player::new(backend.clone(), "contended");
            let token = enter_in_time(&player).await.token.get();
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
            assert!(last.swap(token, SeqCst) < token, "tokens grow");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, SeqCst);
            leave_in_time(&player).await;
        }
    };
    join_all((0..processes).map(|_| comes(mysql(url)))).await;
}

/// Releases until that is answered; a connection that breaks may leave its outcome unknown.
pub(crate) async fn leave_in_time(player: &Player) {
    until("the release is answered", async || {
        match player.backend.release(&player.claim.name, player.claim.owner).await {
            Ok(_) => true,
            Err(error) => {
                assert!(error.kind().is_transient(), "{error:?}");
                false
            }
        }
    })
    .await;
}
