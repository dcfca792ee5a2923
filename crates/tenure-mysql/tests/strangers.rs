//! What others do in the database: transactions that have rows locked, triggers, tables and engines of their own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use tenure_core::{BreakScope, ErrorKind, LockName, Outcome, Released, Renewal, Severity};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    mysql::{MysqlServer, Recipe},
    patience::{slowness, stretch},
    tables,
};

use crate::stage::{
    chain, connect, enter_in_time, finding, leave_in_time, lock_row, mysql, player, refused_as, soon,
    transactions, until, waiting,
};

const MADE_ANEW: &str =
    "CREATE TABLE anew LIKE tenure_lock; DROP TABLE tenure_lock; RENAME TABLE anew TO tenure_lock";
const LOCKED: &str = "the row of the lock is locked by another transaction";

/// L6: a claim of a row that a stranger has locked is told so, goes on behind the rollback, and its lease lasts as long as its owner
/// believes (hazard 55).
#[tokio::test]
async fn who_comes_to_a_row_that_a_stranger_has_locked_is_told_and_enters_after_the_rollback() {
    let server = MysqlServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    a.leave().await;
    let mut stranger = lock_row(&server, "one").await;
    let late = player(&server.url(""), "one");
    let error = soon(late.backend.claim(&late.claim)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error:?}");
    assert!(error.to_string().contains(LOCKED), "{error}");
    let sent = Instant::now();
    let (grant, ()) = tokio::join!(enter_in_time(&a), async {
        until("the claim waits for the row", async || waiting(&server) > 0).await;
        stranger.query_drop("ROLLBACK").await.unwrap();
    });
    let view = late.backend.inspect(&a.claim.name).await.unwrap();
    let left = view.holders[0].expires_in.unwrap();
    assert!(left + sent.elapsed() >= grant.ttl, "{left:?} left {:?} after it was sent", sent.elapsed());
    late.queue_behind(0).await;
    assert_eq!(a.leave().await, Released::Released);
    enter_in_time(&late).await;
}

/// L5: a row that a stranger has locked does not stop other locks of the handle: new ones are taken and old ones renewed within about
/// a second, which is how long a statement waits for the row. A renewal waits for no row.
#[tokio::test]
async fn a_locked_row_delays_other_locks_of_the_handle_by_a_second_at_most() {
    let server = MysqlServer::start();
    let backend = mysql(&server.url(""));
    let lasting = |name: &str| Player::new(backend.clone(), name).lasting(Duration::from_secs(600));
    let holders: Vec<Player> = (0..6).map(|n| lasting(&format!("held/{n}"))).collect();
    let mut grants = Vec::new();
    for holder in &holders {
        grants.push(holder.enter().await);
    }
    let mut stranger = lock_row(&server, "held/3").await;
    let (late, told) = (lasting("held/3"), Arc::new(AtomicU32::new(0)));
    let waits = tokio::spawn({
        let told = told.clone();
        async move {
            // As the engine does, which asks again.
            while let Err(error) = late.backend.claim(&late.claim).await {
                assert!(error.kind().is_transient() && error.to_string().contains(LOCKED), "{error:?}");
                told.fetch_add(1, Relaxed);
            }
        }
    });
    until("the claim waits for the row", async || waiting(&server) > 0).await;
    let (mut worst, mut count) = (Duration::ZERO, 0);
    until("the claim is told twice", async || {
        let begun = Instant::now();
        let mut answers = soon(backend.renew(&grants)).await;
        let error = answers.remove(3).unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Unavailable, Outcome::NotApplied),
            "{error:?}"
        );
        assert!(answers.into_iter().all(|answer| answer.unwrap() == Renewal::Renewed));
        worst = worst.max(begun.elapsed());
        let begun = Instant::now();
        soon(lasting(&format!("new/{count}")).enter()).await;
        worst = worst.max(begun.elapsed());
        count += 1;
        told.load(Relaxed) >= 2
    })
    .await;
    assert!(worst < Duration::from_millis(1600) * slowness(), "{worst:?}");
    stranger.query_drop("ROLLBACK").await.unwrap();
    soon(waits).await.unwrap();
    assert_eq!(holders[3].renew(&grants[3]).await, Renewal::Renewed);
}

/// L5: leases that are held through the engine outlive a stranger's lock on the row of another one of the same process, which alone
/// is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_a_stranger_has_locked_costs_one_lease_only() {
    let server = MysqlServer::start();
    let locker = tenure::connect(&server.url("")).await.unwrap();
    let ttl = Duration::from_secs(2) * stretch();
    let hold = |n: usize| {
        let mutex = locker.mutex(format!("held/{n}")).ttl(ttl);
        async move { mutex.acquire().await.unwrap() }
    };
    let guards = join_all((0..6).map(hold)).await;
    let stranger = lock_row(&server, "held/3").await;
    let begun = Instant::now();
    until("that one is lost", async || guards[3].check().is_err()).await;
    until("as long again is over", async || begun.elapsed() > 2 * ttl).await;
    let lost: Vec<usize> = (0..6).filter(|n| guards[*n].check().is_err()).collect();
    assert_eq!(lost, [3]);
    drop(stranger);
}

/// A connection looks at its own table and reads no definition of the others, however many the server has.
#[tokio::test]
async fn other_tables_of_the_server_are_not_read() {
    let server = MysqlServer::start();
    player(&server.url(""), "one").enter().await;
    let read = || -> u64 {
        let row = server.sql("SHOW GLOBAL STATUS LIKE 'Rows_tmp_read'");
        row.split_whitespace().last().unwrap().parse().unwrap()
    };
    let in_passing = async || {
        let before = read();
        let player = player(&server.url(""), "one");
        assert!(player.backend.inspect(&player.claim.name).await.unwrap().holders.len() == 1);
        read() - before
    };
    let alone = in_passing().await;
    let tables: String = (0..300).map(|n| format!("CREATE TABLE t{n} (id INT);")).collect();
    server.sql(&tables);
    let beside = in_passing().await;
    assert!(
        beside < alone + 100,
        "{alone} rows of the server's descriptions were read alone, and {beside} beside others"
    );
}

/// Hazard 56: two claims make the row of a lock behind a stranger's that is rolled back. Each has a lock that the other one wants, and
/// the server chooses a victim, which tries again.
#[tokio::test]
async fn the_victim_of_a_deadlock_tries_again() {
    let server = MysqlServer::start();
    player(&server.url(""), "warm").enter().await;
    let deadlocks = || -> u32 {
        server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").split('\t').nth(1).unwrap().parse().unwrap()
    };
    for round in 0.. {
        let insert = format!("INSERT INTO tenure_lock VALUES ('new/{round}', 1, 0, 1, '')");
        let mut stranger = connect(server.port(), &["BEGIN", &insert]).await;
        let players = [0; 3].map(|_| player(&server.url(""), &format!("new/{round}")));
        let enter = async |player: &Player| {
            let token = enter_in_time(player).await.token;
            leave_in_time(player).await;
            token
        };
        let (mut tokens, ()) = tokio::join!(join_all(players.iter().map(enter)), async {
            let all_wait = async {
                while waiting(&server) < 3 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            // They wait for a second; on a busy machine not all at once.
            let _ = tokio::time::timeout(Duration::from_millis(900), all_wait).await;
            stranger.query_drop("ROLLBACK").await.unwrap();
        });
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 3, "each has a token of its own");
        if deadlocks() > 0 {
            return;
        }
        assert!(round < 20, "no deadlock was provoked");
    }
}

/// L1, L5: a missing table was taken for an unused one, and a waiter made it and held beside the one whose lease was in it
/// (`stores/mysql-table-away`). It is away; once it is back, nothing was lost.
#[tokio::test]
async fn a_table_that_was_seen_and_is_away_is_not_made_again() {
    let server = MysqlServer::start();
    tables::is_not_made_again(|name| player(&server.url(""), name), |words| server.sql(words)).await;
}

/// L2, L5: where an operator makes the table anew, holders are told that they lost, and tokens go on from the clock.
#[tokio::test]
async fn a_table_that_is_made_anew_has_no_old_lease_and_no_old_token() {
    let server = MysqlServer::start();
    let (a, b) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    let locker = tenure::connect(&server.url("")).await.unwrap();
    let held = locker.mutex("held").ttl(Duration::from_secs(3) * stretch()).acquire().await.unwrap();
    let first = a.enter().await;
    server.sql(MADE_ANEW);
    assert_eq!(a.renew(&first).await, Renewal::Gone);
    let second = b.enter().await;
    assert!(second.token > first.token);
    assert!(!a.try_enter().await);
    until("the guard is told", async || held.check().is_err()).await;
    // Those who remember the row as it was, and those who do not.
    server.sql(MADE_ANEW);
    assert!(a.enter().await.token > second.token);
}

/// L1: a command that had not seen the table made it while it was renamed away, and was granted what was held in the other one
/// (`stores/pg-rights-overtake`, last part). No client makes a lock in a table that one of them has made a moment ago.
#[tokio::test]
async fn no_lock_is_granted_in_a_table_that_a_client_made_a_moment_ago() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    tables::grants_nothing_yet(|name| player(&server.url(""), name), |words| server.sql(words), &clock).await;
}

#[tokio::test]
async fn many_that_come_first_make_one_table() {
    let server = MysqlServer::start();
    server.sql("DROP TABLE tenure_lock");
    for round in 0..3 {
        let players: Vec<Player> =
            (0..10).map(|n| player(&server.url(""), &format!("{round}/{n}"))).collect();
        for player in &players {
            // Connected already, so that all come at once.
            player.backend.inspect(&player.claim.name).await.unwrap();
        }
        for answer in join_all(players.iter().map(|player| player.backend.claim(&player.claim))).await {
            let error = answer.unwrap_err();
            assert!(error.to_string().contains("a client has made the table"), "{}", chain(&error));
        }
        assert_eq!(server.sql("SELECT COUNT(*) FROM tenure_lock"), "1");
        server.sql("DROP TABLE tenure_lock");
    }
}

/// A trigger that does this before each write of this kind.
fn trigger(server: &MysqlServer, when: &str, what: &str) {
    server.sql(&format!("CREATE TRIGGER meddler {when} ON tenure_lock FOR EACH ROW {what}"));
}

/// L1: what a trigger puts back is no grant. The first write over each connection is read back.
#[tokio::test]
async fn what_a_trigger_changes_is_no_grant() {
    for (when, what) in [
        ("BEFORE UPDATE", "SET NEW.state = OLD.state"),
        ("BEFORE UPDATE", "SET NEW.version = OLD.version"),
        ("BEFORE INSERT", "SET NEW.state = CONCAT(NEW.state, ' ')"),
    ] {
        let server = MysqlServer::start();
        let a = player(&server.url(""), "one");
        a.enter().await;
        a.leave().await;
        trigger(&server, when, what);
        let names = if when.ends_with("INSERT") { &["new"][..] } else { &["one", "new"] };
        // Also where the first write over the connection is another one.
        for name in names {
            let b = player(&server.url(""), name);
            let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::Unknown), "{what}");
            assert!(error.to_string().contains("a trigger"), "{}", chain(&error));
        }
        finding(&a.backend, Severity::Warning, "triggers: meddler").await;
        finding(&a.backend, Severity::Problem, "not what was written to it").await;
        server.sql("DROP TRIGGER meddler");
        a.backend.break_lock(&a.claim.name, BreakScope::Leases).await.unwrap();
        enter_in_time(&a).await;
    }
}

/// A trigger that refuses each write is named by the server, and is no lost race.
#[tokio::test]
async fn what_a_trigger_refuses_is_told() {
    let server = MysqlServer::start();
    let a = player(&server.url(""), "one");
    let grant = a.enter().await;
    trigger(&server, "BEFORE UPDATE", "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not on Fridays'");
    let b = player(&server.url(""), "one");
    let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied), "{error:?}");
    assert!(chain(&error).contains("not on Fridays"), "{}", chain(&error));
    let error = a.backend.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotApplied, "{error:?}");
    finding(&a.backend, Severity::Problem, "a trial lock was not acquired").await;
    server.sql("DROP TRIGGER meddler");
    assert_eq!(a.renew(&grant).await, Renewal::Renewed);
}

/// An engine that stores nothing: the server says that rows were written, and there are none.
#[tokio::test]
async fn what_an_engine_swallows_is_no_grant() {
    let server = MysqlServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    server.sql("INSTALL SONAME 'ha_blackhole'; ALTER TABLE tenure_lock ENGINE = BLACKHOLE");
    for b in [&a, &player(&server.url(""), "one")] {
        let error = soon(b.backend.claim(&b.claim)).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error:?}");
        assert!(error.to_string().contains("have no effect"), "{error}");
    }
    finding(&a.backend, Severity::Problem, "the engine of the table is blackhole").await;
}

#[tokio::test]
async fn a_table_of_another_program_is_left_alone() {
    let server = MysqlServer::start();
    for (n, columns) in [
        "name varbinary(600) PRIMARY KEY, price int",
        // Two rows of one name would be two locks.
        "name varbinary(600), version bigint, busy tinyint, used bigint, state mediumblob",
        "name varbinary(600), version bigint, busy tinyint, used bigint, state mediumblob, UNIQUE (name(100))",
        "name varbinary(600), version bigint, busy tinyint, used bigint, state mediumblob, UNIQUE (name, version)",
        // A collation makes two names one; the others lose what is written to them.
        "name varchar(600) PRIMARY KEY, version bigint, busy tinyint, used bigint, state mediumblob",
        "name varbinary(512) PRIMARY KEY, version bigint, busy tinyint, used bigint, state mediumblob",
        "name varbinary(600) PRIMARY KEY, version int, busy tinyint, used bigint, state mediumblob",
        "name varbinary(600) PRIMARY KEY, version bigint, busy tinyint, used bigint, state blob",
        "name varbinary(600) PRIMARY KEY, version bigint, busy tinyint AS (0) STORED, used bigint, state mediumblob",
    ]
    .into_iter()
    .enumerate()
    {
        server.sql(&format!("CREATE TABLE theirs{n} ({columns}); INSERT INTO theirs{n} (name) VALUES ('one')"));
        let rows = server.sql(&format!("SELECT * FROM theirs{n}"));
        let url = server.url(&format!("?table=theirs{n}"));
        refused_as(&url, ErrorKind::Corrupt, "not one of tenure").await;
        let (backend, name) = (mysql(&url), LockName::new("one").unwrap());
        assert_eq!(backend.inspect(&name).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(backend.list("").await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(backend.break_lock(&name, BreakScope::Leases).await.unwrap_err().kind(), ErrorKind::Corrupt);
        finding(&backend, Severity::Problem, "not one of tenure").await;
        assert_eq!(server.sql(&format!("SELECT * FROM theirs{n}")), rows);
        // It goes away, and the same handle makes its own.
        server.sql(&format!("DROP TABLE theirs{n}"));
        Player::new(backend, "one").enter().await;
    }
    server.sql("CREATE VIEW theirs AS SELECT * FROM theirs0");
    refused_as(&server.url("?table=theirs"), ErrorKind::Corrupt, "not one of tenure").await;
}

#[tokio::test]
async fn a_row_that_holds_no_ledger_is_left_alone() {
    let server = MysqlServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    server.sql("UPDATE tenure_lock SET state = 'Hello', version = version + 1");
    refused_as(&server.url(""), ErrorKind::Corrupt, "is damaged, or another program wrote it").await;
    let error = a.backend.release(&a.claim.name, a.claim.owner).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied));
    assert_eq!(server.sql("SELECT state FROM tenure_lock"), "Hello");
}

/// L6: what an operator may have done to the table without a thought for us.
#[tokio::test]
async fn a_table_that_has_what_is_used_is_ours_whatever_else_it_has() {
    let server = MysqlServer::start();
    for change in [
        "ADD COLUMN note text",
        "ADD COLUMN seen timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP FIRST",
        "ADD COLUMN size int AS (LENGTH(state)) STORED",
        "ADD COLUMN id bigint NOT NULL AUTO_INCREMENT, DROP PRIMARY KEY, ADD PRIMARY KEY (id), ADD UNIQUE (name)",
        "MODIFY state longblob NOT NULL, MODIFY name varbinary(700) NOT NULL, MODIFY busy int",
        "ENGINE = InnoDB ROW_FORMAT = COMPRESSED",
    ] {
        server.sql(MADE_ANEW);
        let a = player(&server.url(""), "one");
        let grant = a.enter().await;
        server.sql(&format!("ALTER TABLE tenure_lock {change}"));
        assert_eq!(a.renew(&grant).await, Renewal::Renewed, "{change}");
        let b = player(&server.url(""), "one");
        b.queue_behind(0).await;
        assert_eq!(a.leave().await, Released::Released, "{change}");
        assert!(enter_in_time(&b).await.token > grant.token, "{change}");
        player(&server.url(""), "new").enter().await;
        let findings = b.backend.diagnose().await.unwrap();
        assert!(!findings.iter().any(|it| it.what.contains("was tried")), "{change}: {findings:?}");
    }
    assert_eq!(transactions(&server), 0);
}

/// A trigger that only reads made every lock unusable: the server does not say any more when a row was written, and that was taken
/// for the answer of something else. The same with the numbers that a column counts.
#[tokio::test]
async fn a_table_that_others_look_at_is_ours() {
    let server = MysqlServer::start();
    server.sql("CREATE TABLE audit (id int AUTO_INCREMENT PRIMARY KEY, name varbinary(700))");
    player(&server.url(""), "old").enter().await;
    trigger(&server, "AFTER INSERT", "INSERT INTO audit (name) VALUES (NEW.name)");
    server.sql("CREATE TRIGGER other AFTER UPDATE ON tenure_lock FOR EACH ROW INSERT INTO audit (name) VALUES (NEW.name)");
    let (a, b) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    let mut last = None;
    for _ in 0..3 {
        let grant = a.enter().await;
        assert!(Some(grant.token) > last);
        last = Some(grant.token);
        assert_eq!(a.renew(&grant).await, Renewal::Renewed);
        b.queue_behind(0).await;
        assert_eq!(a.leave().await, Released::Released);
        b.enter().await;
        b.leave().await;
    }
    // More than the row of the lock has places for.
    a.enter().await;
    let crowd: Vec<Player> = (0..14).map(|_| player(&server.url(""), "one")).collect();
    for _ in 0..2 {
        for (n, waiter) in crowd.iter().enumerate() {
            waiter.queue_behind(n).await;
        }
    }
    for waiter in crowd.iter().rev() {
        assert_eq!(waiter.leave().await, Released::Released);
    }
    let findings = a.backend.diagnose().await.unwrap();
    assert!(!findings.iter().any(|it| it.what.contains("was tried")), "{findings:?}");
    assert_ne!(server.sql("SELECT COUNT(*) FROM audit WHERE name = 'one'"), "0");
}

/// An engine that rolls nothing back kept the lock that the doctor tried.
#[tokio::test]
async fn the_doctor_leaves_nothing_in_an_engine_without_a_rollback() {
    let server = MysqlServer::start();
    player(&server.url(""), "one").enter().await;
    for engine in ["MyISAM", "Aria"] {
        server.sql(&format!("DELETE FROM tenure_lock; ALTER TABLE tenure_lock ENGINE = {engine}"));
        finding(
            &mysql(&server.url("")),
            Severity::Problem,
            &format!("the table is {}", engine.to_lowercase()),
        )
        .await;
        assert_eq!(server.sql("SELECT COUNT(*) FROM tenure_lock"), "0", "{engine}");
    }
}
