//! Fenced rows in a real PostgreSQL, with transactions that get in each other's way.

#![allow(clippy::disallowed_methods, reason = "a server lives in real time")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tenure::{
    FencingToken,
    fence::{
        Pass,
        sql::{Column, Dialect, Table},
    },
};
use tenure_testkit::{patience::slowness, postgres::PostgresServer};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, NoTls, error::SqlState};

const fn alone(token: u64) -> Pass {
    Pass::exclusive(FencingToken::new(token))
}

const fn together(token: u64) -> Pass {
    Pass::shared(FencingToken::new(token))
}

fn number(pass: Pass) -> i64 {
    i64::try_from(pass.token().get()).unwrap()
}

/// A server with a table of marks, one of what was written, and one row with a mark of its own.
struct Books {
    server: PostgresServer,
    /// Looks on.
    eye: Db,
}

/// A connection.
#[derive(Clone)]
struct Db(Arc<Client>);

impl Books {
    async fn new() -> Self {
        let server = PostgresServer::start();
        let eye = Db::connect(&server).await;
        for _ in 0..2 {
            eye.run(&fence().create()).await;
        }
        eye.run("CREATE TABLE entry (at BIGSERIAL, token BIGINT)").await;
        eye.run("CREATE TABLE report (id TEXT PRIMARY KEY, body TEXT, mark BIGINT NOT NULL DEFAULT 0)").await;
        Self { server, eye }
    }

    async fn open(&self) -> Db {
        Db::connect(&self.server).await
    }

    /// As before the first visit, but for the registration.
    async fn reset(&self, is_registered: bool) {
        self.eye.run("TRUNCATE fence, entry, report; INSERT INTO report (id) VALUES ('q3')").await;
        if is_registered {
            self.eye.0.execute(&fence().register(), &[&"books"]).await.unwrap();
        }
    }

    async fn entries(&self) -> Vec<i64> {
        let rows = self.eye.0.query("SELECT token FROM entry ORDER BY at", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Whether the task waits for a lock of the server (true), or ends without (false).
    async fn waits<T>(&self, task: &JoinHandle<T>) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20) * slowness();
        loop {
            if task.is_finished() {
                return false;
            }
            let row = self.eye.0.query_one("SELECT count(*) FROM pg_locks WHERE NOT granted", &[]).await;
            if row.unwrap().get::<_, i64>(0) > 0 {
                return true;
            }
            assert!(Instant::now() < deadline, "it neither waits for a lock nor ends");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Db {
    async fn connect(server: &PostgresServer) -> Self {
        let (client, connection) = tokio_postgres::connect(&server.url(""), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(Arc::new(client))
    }

    async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    /// Whether a pass is let in; and then it writes. In whatever transaction there is.
    async fn enter(&self, pass: Pass) -> Result<bool, Error> {
        let row = self.0.query_opt(&fence().touch(pass), &[&"books", &number(pass)]).await?;
        if row.is_some() {
            self.0.execute("INSERT INTO entry (token) VALUES ($1)", &[&number(pass)]).await?;
        }
        Ok(row.is_some())
    }

    /// Whether a row with a mark of its own is written.
    async fn write(&self, pass: Pass) -> Result<bool, Error> {
        let mark = Column::new("mark", "$1").unwrap();
        let (set, when) = (mark.assignment(pass), mark.condition());
        let sql = format!("UPDATE report SET body = $2, {set} WHERE id = 'q3' AND {when}");
        let body = pass.token().to_string();
        Ok(self.0.execute(&sql, &[&number(pass), &body]).await? == 1)
    }

    /// One transaction that does nothing else.
    async fn visit(&self, pass: Pass) -> bool {
        self.run("BEGIN").await;
        let is_let_in = self.enter(pass).await.unwrap();
        self.run(if is_let_in { "COMMIT" } else { "ROLLBACK" }).await;
        is_let_in
    }
}

fn fence() -> Table {
    Table::new("fence", Dialect::Postgres).unwrap()
}

/// L3, hazard 50: the rule, from a resource that nobody has been at, and with tokens that are too large for a float.
#[tokio::test]
async fn a_table_of_marks_lets_in_whom_the_rule_lets_in() {
    let books = Books::new().await;
    let db = books.open().await;
    let big = 1 << 53;
    let largest = i64::MAX.unsigned_abs();
    assert!(!db.visit(together(5)).await, "not registered: nothing to lock");
    assert!(db.visit(alone(7)).await, "an exclusive holder needs no registration");
    db.0.execute(&fence().register(), &[&"books"]).await.unwrap();
    for (pass, is_let_in) in [
        (alone(6), false),
        (alone(7), true),
        (together(9), true),
        (together(7), true),
        (together(6), false),
        (alone(8), true),
        (together(7), false),
        (alone(big + 1), true),
        (alone(big), false),
        (alone(largest), true),
        (alone(largest - 1), false),
    ] {
        assert_eq!(db.visit(pass).await, is_let_in, "{pass:?}");
    }
    books.reset(false).await;
    for (pass, is_written) in [
        (alone(7), true),
        (together(9), true),
        (alone(8), true),
        (alone(7), false),
        (together(7), false),
        (alone(8), true),
    ] {
        assert_eq!(db.write(pass).await.unwrap(), is_written, "{pass:?}");
    }
}

/// Somebody is inside when another one comes.
struct Meeting {
    inside: Pass,
    comes: Pass,
    /// Whether it has to wait until the other one has left.
    waits: bool,
    /// Whether it is let in if the other one committed. If it rolled back, everybody is.
    is_let_in: bool,
}

const MEETINGS: &[Meeting] = &[
    Meeting { inside: alone(8), comes: alone(7), waits: true, is_let_in: false },
    Meeting { inside: alone(8), comes: together(7), waits: true, is_let_in: false },
    Meeting { inside: alone(7), comes: alone(8), waits: true, is_let_in: true },
    Meeting { inside: together(7), comes: alone(8), waits: true, is_let_in: true },
    Meeting { inside: together(7), comes: together(6), waits: false, is_let_in: true },
];

/// L3, hazard 51: check and write are one step for others: who comes while somebody is inside waits, and is then judged by
/// what is there. Also if nobody had ever been there, and there was no row to lock.
#[tokio::test]
async fn who_comes_while_another_is_inside_is_judged_when_that_one_has_left() {
    let books = Books::new().await;
    for meeting in MEETINGS {
        for end in ["COMMIT", "ROLLBACK"] {
            for is_registered in [true, false] {
                let needs_a_row = !meeting.inside.raises() || !meeting.comes.raises();
                if needs_a_row && !is_registered {
                    continue;
                }
                books.reset(is_registered).await;
                let (inside, newcomer) = (books.open().await, books.open().await);
                inside.run("BEGIN").await;
                assert!(inside.enter(meeting.inside).await.unwrap());
                newcomer.run("BEGIN").await;
                let (db, pass) = (newcomer.clone(), meeting.comes);
                let entering = tokio::spawn(async move { db.enter(pass).await });
                let case = format!("{:?}, then {:?}, {end}, {is_registered}", meeting.inside, meeting.comes);
                assert_eq!(books.waits(&entering).await, meeting.waits, "{case}");
                inside.run(end).await;
                let is_let_in = entering.await.unwrap().unwrap();
                assert_eq!(is_let_in, meeting.is_let_in || end == "ROLLBACK", "{case}");
                newcomer.run("COMMIT").await;
            }
        }
    }
}

/// L3: the same for a row with a mark of its own. There is one writer of a row at a time, whatever its pass.
#[tokio::test]
async fn who_writes_a_row_while_another_writes_it_is_judged_when_that_one_is_done() {
    let books = Books::new().await;
    for meeting in MEETINGS {
        for end in ["COMMIT", "ROLLBACK"] {
            books.reset(false).await;
            let (inside, newcomer) = (books.open().await, books.open().await);
            inside.run("BEGIN").await;
            assert!(inside.write(meeting.inside).await.unwrap());
            let (db, pass) = (newcomer.clone(), meeting.comes);
            let writing = tokio::spawn(async move { db.write(pass).await });
            assert!(books.waits(&writing).await);
            inside.run(end).await;
            let is_written = writing.await.unwrap().unwrap();
            assert_eq!(is_written, meeting.is_let_in || end == "ROLLBACK", "{:?} {end}", meeting.comes);
        }
    }
}

/// Hazard 51: a check that locks nothing lets a later holder in before the write, which then comes too late and goes through.
#[tokio::test]
async fn a_check_that_locks_nothing_is_overtaken() {
    let books = Books::new().await;
    books.reset(true).await;
    let (former, later) = (books.open().await, books.open().await);
    former.run("BEGIN").await;
    let naive = fence().touch(together(7)).replace(" FOR SHARE", "");
    assert!(former.0.query_opt(&naive, &[&"books", &7_i64]).await.unwrap().is_some());
    assert!(later.visit(alone(8)).await, "nothing kept it out");
    former.run("INSERT INTO entry (token) VALUES (7); COMMIT").await;
    assert_eq!(books.entries().await, [8, 7], "a former holder wrote after a later one");
}

/// L3: above `READ COMMITTED`, who waited is told to begin anew, and has written nothing; or is let in if the other one left
/// nothing.
#[tokio::test]
async fn in_stricter_isolation_who_waited_fails_and_writes_nothing() {
    let books = Books::new().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for comes in [alone(7), together(7)] {
            books.reset(true).await;
            let (inside, newcomer) = (books.open().await, books.open().await);
            inside.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            assert!(inside.enter(alone(8)).await.unwrap());
            newcomer.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            let db = newcomer.clone();
            let entering = tokio::spawn(async move { db.enter(comes).await });
            assert!(books.waits(&entering).await);
            inside.run("COMMIT").await;
            let error = entering.await.unwrap().unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
            newcomer.run("ROLLBACK").await;
            assert!(!newcomer.visit(comes).await, "and then it is refused");
            assert_eq!(books.entries().await, [8]);
        }
    }
}

/// Hazard 51, and what is not promised: in `REPEATABLE READ` a later holder that waited for a check is let in, and reads what was there
/// before that one wrote, since its snapshot is older than its turn. So it is in `SERIALIZABLE` if the former one is not. Whoever touches in a transaction of its own first reads it all.
#[tokio::test]
async fn with_a_snapshot_a_touch_alone_does_not_make_reads_new() {
    let books = Books::new().await;
    for (level, touches_before, sees) in [
        ("READ COMMITTED", false, vec![5]),
        ("REPEATABLE READ", false, vec![]),
        ("REPEATABLE READ", true, vec![5]),
        // The other one is not.
        ("SERIALIZABLE", false, vec![]),
        ("SERIALIZABLE", true, vec![5]),
    ] {
        books.reset(true).await;
        let (former, later) = (books.open().await, books.open().await);
        former.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        assert!(former.enter(together(5)).await.unwrap());
        let db = later.clone();
        let reading = tokio::spawn(async move {
            let touch = async || {
                let row = db.0.query_opt(&fence().touch(alone(8)), &[&"books", &8_i64]).await;
                assert!(row.unwrap().is_some(), "it is let in");
            };
            if touches_before {
                touch().await;
            }
            db.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            touch().await;
            let rows = db.0.query("SELECT token FROM entry", &[]).await.unwrap();
            db.run("COMMIT").await;
            rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>()
        });
        assert!(books.waits(&reading).await);
        former.run("COMMIT").await;
        assert_eq!(reading.await.unwrap(), sees, "{level}, {touches_before}");
    }
}

/// Hazard 51: in `SERIALIZABLE` the same reader, which writes what it made of its reading, is told to begin anew.
#[tokio::test]
async fn in_serializable_who_reads_what_was_there_before_its_turn_fails() {
    let books = Books::new().await;
    books.reset(true).await;
    let (former, later) = (books.open().await, books.open().await);
    former.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
    let read = "SELECT count(*) FROM entry";
    assert!(former.enter(together(5)).await.unwrap());
    later.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
    let db = later.clone();
    let writing = tokio::spawn(async move {
        db.0.query_opt(&fence().touch(alone(8)), &[&"books", &8_i64]).await?;
        db.0.batch_execute(read).await?;
        db.0.batch_execute("INSERT INTO entry (token) VALUES (8); COMMIT").await
    });
    assert!(books.waits(&writing).await);
    former.run("COMMIT").await;
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}");
}

/// L3: with writers that all believe they hold, nothing is written after what a later holder wrote.
#[tokio::test]
async fn among_many_connections_the_tokens_of_what_is_written_never_fall() {
    let books = Books::new().await;
    let mut writers = Vec::new();
    for first in 1..=4 {
        let db = books.open().await;
        writers.push(tokio::spawn(async move {
            let mut refused = 0;
            for turn in 0..50 {
                refused += usize::from(!db.visit(alone(first + 4 * turn)).await);
            }
            refused
        }));
    }
    let mut refused = 0;
    for writer in writers {
        refused += writer.await.unwrap();
    }
    let entries = books.entries().await;
    assert!(entries.is_sorted(), "{entries:?}");
    assert_eq!((entries.len() + refused, entries.last()), (200, Some(&200)));
}

/// L3: in a table that is named `excluded` the row was compared with itself, and every former holder was let in.
#[tokio::test]
async fn a_table_may_be_named_as_the_new_row_is() {
    let server = PostgresServer::start();
    let db = Db::connect(&server).await;
    for name in ["excluded", "public.EXCLUDED", "fenced", "mark", "resource"] {
        let fence = Table::new(name, Dialect::Postgres).unwrap();
        db.run(&fence.create()).await;
        for (pass, is_let_in) in
            [(alone(8), true), (alone(7), false), (together(8), true), (together(7), false), (alone(9), true)]
        {
            let row = db.0.query_opt(&fence.touch(pass), &[&"books", &number(pass)]).await.unwrap();
            assert_eq!(row.is_some(), is_let_in, "{name}: {pass:?}");
        }
        db.run(&format!("DROP TABLE {name}")).await;
    }
}

/// At the first start of several replicas one of them failed at an index of the catalogue.
#[tokio::test]
async fn many_create_the_table_at_the_same_time() {
    let server = PostgresServer::start();
    let mut replicas = Vec::new();
    for _ in 0..6 {
        replicas.push(Db::connect(&server).await);
    }
    for round in 0..20 {
        let fence = Table::new(&format!("fence_{round}"), Dialect::Postgres).unwrap();
        let create = fence.create();
        futures_util::future::join_all(replicas.iter().map(|db| db.run(&create))).await;
        replicas[0].run(&format!("SELECT 1 FROM fence_{round}")).await;
    }
}
