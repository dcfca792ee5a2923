//! What the server's `init_connect`, or another client of a pooler, has made of a session: each statement says itself what it relies
//! on, or is refused by name.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use tenure_core::{ClaimAnswer, ErrorKind, Outcome, Released, Renewal};
use tenure_testkit::{
    conformance::player::Player,
    mysql::{MysqlServer, Pooler, Recipe},
};

use crate::stage::{connect, mysql, player, refused_as, soon, transactions, until};

/// What becomes of a lock in such a session.
#[derive(Clone, Copy)]
enum Fate {
    Served,
    Refused(ErrorKind, &'static str),
}

use Fate::{Refused, Served};

/// What is left in a session, and what becomes of locks.
const LEFT: &[(&str, Fate)] = &[
    ("SET autocommit = 0", Refused(ErrorKind::Unsupported, "autocommit is off")),
    ("START TRANSACTION", Refused(ErrorKind::Unsupported, "a transaction is open")),
    ("SET timestamp = 1000", Served),
    ("SET timestamp = 4000000000.5", Served),
    ("SET SESSION TRANSACTION READ ONLY", Refused(ErrorKind::Unavailable, "takes no writes")),
    ("SET sql_select_limit = 0", Served),
    ("SET sql_select_limit = 1", Served),
    ("SET sql_select_limit = 10", Served),
    ("SET sql_safe_updates = 1", Served),
    ("SET sql_big_selects = 0, max_join_size = 1", Served),
    ("SET max_statement_time = 0.000001", Served),
    ("SET lock_wait_timeout = 31536000, innodb_lock_wait_timeout = 1073741824", Served),
    ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", Served),
    ("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", Served),
    (
        "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,TRADITIONAL,NO_UNSIGNED_SUBTRACTION'",
        Served,
    ),
    ("SET sql_mode = ''", Served),
    ("SET time_zone = '+13:00', lc_time_names = 'de_DE'", Served),
    ("SET character_set_results = utf16", Served),
    ("SET NAMES latin1", Served),
    ("SET character_set_connection = ucs2", Served),
    ("SET default_storage_engine = MyISAM, default_tmp_storage_engine = MEMORY", Served),
    ("SET low_priority_updates = 1, foreign_key_checks = 0, unique_checks = 0", Served),
    ("SET completion_type = 2, group_concat_max_len = 4, max_sort_length = 64", Served),
    ("SET insert_id = 7, last_insert_id = 7, sql_auto_is_null = 1", Served),
    ("SET optimizer_switch = 'materialization=off', big_tables = 1", Served),
];

/// A select of 16 places was cut off at `sql_select_limit`, and a lease was granted in a transaction that was rolled back.
#[tokio::test]
async fn what_others_leave_in_a_session_changes_no_lock() {
    let server = MysqlServer::start();
    let witness = mysql(&server.url(""));
    for (n, (left, fate)) in LEFT.iter().enumerate() {
        let name = format!("held/{n}");
        Player::new(witness.clone(), &name).enter().await;
        server.sql(&format!("SET GLOBAL init_connect = \"{left}\""));
        be_served(&server, &server.url(""), &name, left, *fate).await;
        server.sql("SET GLOBAL init_connect = ''");
        // The pooler keeps a connection for the client that has a transaction open there.
        if left.starts_with("SET") {
            let pooler = Pooler::to(server.port());
            let mut careless = connect(pooler.port(), &[]).await;
            for _ in 0..Pooler::OPEN {
                careless.query_drop(*left).await.unwrap();
            }
            be_served(&server, &pooler.url(""), &name, left, *fate).await;
        }
    }
}

/// L1: a clock that `SET timestamp` had put less than 5 s ahead was believed, and where `SYSDATE()` is `NOW()` any: a lease that
/// had expired by it only was granted to another client.
#[tokio::test]
async fn a_session_whose_clock_was_set_ends_no_lease() {
    for setting in ["skip-sysdate-is-now", "sysdate-is-now", "secure-timestamp=YES"] {
        let server = Recipe::new().set(setting).start();
        let holder = player(&server.url(""), "one").lasting(Duration::from_secs(4));
        holder.enter().await;
        // Refused where no session may have a clock of its own.
        server.sql("SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP() + 4.5'");
        let late = player(&server.url(""), "one");
        assert!(
            !matches!(soon(late.backend.claim(&late.claim)).await, Ok(ClaimAnswer::Granted(_))),
            "{setting}"
        );
    }
}

/// On MySQL the session is set up first. Its error was ignored, and the next one was reported as heavy contention.
#[tokio::test]
async fn a_transaction_that_is_open_from_the_login_is_told_on_mysql_too() {
    let server = Recipe::new().set("version=8.0.35").start();
    server.sql("SET GLOBAL init_connect = 'BEGIN'");
    refused_as(&server.url(""), ErrorKind::Unsupported, "a transaction is open").await;
    server.sql("SET GLOBAL init_connect = ''");
    player(&server.url(""), "one").enter().await;
}

/// A lock that another client holds stays that one's; a free one is acquired, renewed, waited for and released, or refused by name, and
/// then nothing of it is there.
async fn be_served(server: &MysqlServer, url: &str, held: &str, left: &str, fate: Fate) {
    let is_direct = *url == server.url("");
    let new = format!("{held}/{}", if is_direct { "direct" } else { "pooled" });
    let (a, b) = (player(url, &new), player(url, &new));
    let late = Player::new(a.backend.clone(), held);
    match fate {
        Served => {
            assert!(
                !matches!(soon(late.backend.claim(&late.claim)).await, Ok(ClaimAnswer::Granted(_))),
                "{left}"
            );
            let grant = soon(a.enter()).await;
            // More than have room in the row of a lock.
            for ahead in 0..6 {
                soon(player(url, a.claim.name.as_str()).queue_behind(ahead)).await;
            }
            soon(b.queue_behind(6)).await;
            assert_eq!(soon(a.renew(&grant)).await, Renewal::Renewed, "{left}");
            let view = soon(b.backend.inspect(&a.claim.name)).await.unwrap();
            assert_eq!((view.holders.len(), view.queue.len()), (1, 7), "{left}");
            assert_eq!(soon(a.leave()).await, Released::Released, "{left}");
        }
        Refused(kind, part) => {
            let error = soon(a.backend.claim(&a.claim)).await.unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(part), "{left}: {error:?}");
            let owner = a.claim.owner.to_string();
            let written = format!("SELECT COUNT(*) FROM tenure_lock WHERE state LIKE '%{owner}%'");
            assert!(error.outcome() == Outcome::Unknown || server.sql(&written) == "0", "{left}: {error:?}");
            until("no transaction is open", async || transactions(server) == 0).await;
        }
    }
}
