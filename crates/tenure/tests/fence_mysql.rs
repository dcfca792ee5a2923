//! Fenced rows in a real MariaDB, with transactions that get in each other's way, by clients that count rows in both ways.

#![allow(clippy::disallowed_methods, reason = "a server lives in real time")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mysql_async::{Conn, Error, OptsBuilder, params, prelude::Queryable};
use tenure::{
    FencingToken,
    fence::{
        Pass,
        sql::{Column, Dialect, Table},
    },
};
use tenure_testkit::{mysql::MysqlServer, patience::slowness};
use tokio::{sync::Mutex, task::JoinHandle};

const fn alone(token: u64) -> Pass {
    Pass::exclusive(FencingToken::new(token))
}

const fn together(token: u64) -> Pass {
    Pass::shared(FencingToken::new(token))
}

fn number(pass: Pass) -> i64 {
    i64::try_from(pass.token().get()).unwrap()
}

/// What a client is told of an `UPDATE`: the rows that it changed, or those that it found (`CLIENT_FOUND_ROWS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Changed,
    Found,
}

const COUNTS: [Count; 2] = [Count::Changed, Count::Found];
const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A server with a table of marks, one of what was written, and one row with a mark of its own.
struct Books {
    server: MysqlServer,
    /// Looks on.
    eye: Db,
}

/// A connection.
#[derive(Clone)]
struct Db(Arc<Mutex<Conn>>);

impl Books {
    async fn new() -> Self {
        let server = MysqlServer::start();
        let eye = Db::connect(&server, Count::Changed).await;
        for _ in 0..2 {
            eye.run(&fence().create()).await;
        }
        eye.run("CREATE TABLE entry (at BIGINT AUTO_INCREMENT PRIMARY KEY, token BIGINT) ENGINE = InnoDB")
            .await;
        eye.run(
            "CREATE TABLE report (id VARCHAR(10) PRIMARY KEY, body TEXT, mark BIGINT NOT NULL DEFAULT 0, \
             writes BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB",
        )
        .await;
        Self { server, eye }
    }

    async fn open(&self, count: Count) -> Db {
        Db::connect(&self.server, count).await
    }

    /// Two that are in each other's way.
    async fn pair(&self) -> (Db, Db) {
        (self.open(Count::Changed).await, self.open(Count::Found).await)
    }

    /// As before the first visit, but for the registration.
    async fn reset(&self, is_registered: bool) {
        for table in ["fence", "entry", "report"] {
            self.eye.run(&format!("DELETE FROM {table}")).await;
        }
        self.eye.run("INSERT INTO report (id) VALUES ('q3')").await;
        if is_registered {
            self.eye.register().await.unwrap();
        }
    }

    async fn entries(&self) -> Vec<i64> {
        self.eye.0.lock().await.query("SELECT token FROM entry ORDER BY at").await.unwrap()
    }

    /// Whether the task waits for a lock of the server (true), or ends without (false).
    async fn waits<T>(&self, task: &JoinHandle<T>) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20) * slowness();
        loop {
            if task.is_finished() {
                return false;
            }
            let waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'";
            let row: Option<(String, u32)> = self.eye.0.lock().await.query_first(waits).await.unwrap();
            if row.unwrap().1 > 0 {
                return true;
            }
            assert!(Instant::now() < deadline, "it neither waits for a lock nor ends");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Db {
    async fn connect(server: &MysqlServer, count: Count) -> Self {
        let options = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(server.port())
            .user(Some("tenure"))
            .db_name(Some("tenure"))
            .client_found_rows(count == Count::Found);
        Self(Arc::new(Mutex::new(Conn::new(options).await.unwrap())))
    }

    async fn run(&self, sql: &str) {
        self.0.lock().await.query_drop(sql).await.unwrap();
    }

    async fn register(&self) -> Result<(), Error> {
        self.0.lock().await.exec_drop(fence().register(), params! { "resource" => "books" }).await
    }

    /// Whether a pass is let in.
    async fn touch(&self, pass: Pass) -> Result<bool, Error> {
        let mut conn = self.0.lock().await;
        let parameters = params! { "resource" => "books", "token" => number(pass) };
        let mark: Option<i64> = conn.exec_first(fence().touch(pass), parameters).await?;
        Ok(if pass.raises() { conn.affected_rows() == 1 } else { mark.is_some() })
    }

    /// Whether a pass is let in; and then it writes. In whatever transaction there is.
    async fn enter(&self, pass: Pass) -> Result<bool, Error> {
        let is_let_in = self.touch(pass).await?;
        if is_let_in {
            let write = "INSERT INTO entry (token) VALUES (:token)";
            self.0.lock().await.exec_drop(write, params! { "token" => number(pass) }).await?;
        }
        Ok(is_let_in)
    }

    /// The same in a task of its own.
    async fn come(self, pass: Pass, registers: bool) -> Result<bool, Error> {
        if registers {
            self.register().await?;
        }
        self.enter(pass).await
    }

    /// Whether a row with a mark of its own is written.
    async fn write(&self, pass: Pass, mark: &Column) -> Result<bool, Error> {
        let (set, when) = (mark.assignment(pass), mark.condition());
        let sql = format!("UPDATE report SET body = :body, {set} WHERE id = 'q3' AND {when}");
        let parameters = params! { "token" => number(pass), "body" => pass.token().to_string() };
        let mut conn = self.0.lock().await;
        conn.exec_drop(sql, parameters).await?;
        Ok(conn.affected_rows() == 1)
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
    Table::new("fence", Dialect::Mysql).unwrap()
}

fn uncounted() -> Column {
    Column::new("mark", ":token").unwrap()
}

fn counted() -> Column {
    uncounted().with_counter("writes").unwrap()
}

/// The passes of a resource that was registered, one after the other, and which of them are let in.
fn visits() -> [(Pass, bool); 14] {
    let (big, largest) = (1 << 53, i64::MAX.unsigned_abs());
    [
        (together(5), true),
        (alone(7), true),
        (alone(6), false),
        (alone(7), true),
        (together(9), true),
        (together(7), true),
        (together(6), false),
        (alone(8), true),
        (alone(8), true),
        (together(7), false),
        (alone(big + 1), true),
        (alone(big), false),
        (alone(largest), true),
        (alone(largest - 1), false),
    ]
}

/// L3, hazard 50: the rule, from a resource that no holder has been at, and with tokens that are too large for a float.
#[tokio::test]
async fn a_table_of_marks_lets_in_whom_the_rule_lets_in() {
    let books = Books::new().await;
    for count in COUNTS {
        books.reset(false).await;
        let db = books.open(count).await;
        assert!(!db.visit(together(5)).await, "not registered: nothing to lock");
        assert!(!db.visit(alone(5)).await, "not registered: no row to change");
        for _ in 0..2 {
            db.register().await.unwrap();
        }
        for (pass, is_let_in) in visits() {
            assert_eq!(db.visit(pass).await, is_let_in, "{pass:?}, {count:?}");
        }
        db.register().await.unwrap();
        assert!(!db.visit(alone(8)).await, "a registration takes no mark away");
    }
}

/// L3: a row with a mark of its own, also when the same holder writes the same once more.
#[tokio::test]
async fn a_row_with_a_mark_and_a_counter_is_written_by_whom_the_rule_lets_in() {
    let books = Books::new().await;
    for count in COUNTS {
        books.reset(false).await;
        let db = books.open(count).await;
        for (pass, is_written) in visits() {
            for turn in 0..2 {
                let said = db.write(pass, &counted()).await.unwrap();
                assert_eq!(said, is_written, "{pass:?}, {count:?}, {turn}");
            }
        }
    }
}

/// Why there is a counter: without it the holder that writes the same once more is told what a former holder is told.
#[tokio::test]
async fn without_a_counter_the_same_write_again_looks_refused() {
    let books = Books::new().await;
    for (count, is_second_seen) in [(Count::Changed, false), (Count::Found, true)] {
        books.reset(false).await;
        let db = books.open(count).await;
        assert!(db.write(alone(7), &uncounted()).await.unwrap());
        assert_eq!(db.write(alone(7), &uncounted()).await.unwrap(), is_second_seen);
        assert!(!db.write(alone(6), &uncounted()).await.unwrap());
    }
}

/// A driver that knows `?` alone binds the variables of its connection first.
#[tokio::test]
async fn a_driver_without_names_sets_variables() {
    let books = Books::new().await;
    let fence = fence().with_placeholders("@resource", "@token").unwrap();
    let mark = Column::new("mark", "@token").unwrap().with_counter("writes").unwrap();
    books.reset(false).await;
    let mut conn = books.eye.0.lock().await;
    for (pass, is_let_in) in visits() {
        conn.exec_drop("SET @resource = ?, @token = ?", ("books", number(pass))).await.unwrap();
        conn.exec_drop(fence.register(), ()).await.unwrap();
        let row: Option<i64> = conn.exec_first(fence.touch(pass), ()).await.unwrap();
        let said = if pass.raises() { conn.affected_rows() == 1 } else { row.is_some() };
        assert_eq!(said, is_let_in, "{pass:?}");
        let (set, when) = (mark.assignment(pass), mark.condition());
        let update = format!("UPDATE report SET body = ?, {set} WHERE id = ? AND {when}");
        conn.exec_drop(update, ("text", "q3")).await.unwrap();
        assert_eq!(conn.affected_rows() == 1, is_let_in, "{pass:?}");
    }
}

/// One is inside when another one comes.
struct Meeting {
    inside: Pass,
    comes: Pass,
    /// Whether it has to wait until the other one has left.
    waits: bool,
    /// Whether it is let in if the other one committed. If it rolled back, all are.
    is_let_in: bool,
}

const MEETINGS: &[Meeting] = &[
    Meeting { inside: alone(8), comes: alone(7), waits: true, is_let_in: false },
    Meeting { inside: alone(8), comes: together(7), waits: true, is_let_in: false },
    Meeting { inside: alone(7), comes: alone(8), waits: true, is_let_in: true },
    Meeting { inside: together(7), comes: alone(8), waits: true, is_let_in: true },
    Meeting { inside: together(7), comes: together(6), waits: false, is_let_in: true },
];

/// L3, hazard 51: check and write are one step for others, in every isolation: the one that comes while another is inside
/// waits, and is then judged by what is there. Also where no holder had ever been, and each registers the resource.
#[tokio::test]
async fn who_comes_while_another_is_inside_is_judged_when_that_one_has_left() {
    let books = Books::new().await;
    for (meeting, level) in MEETINGS.iter().flat_map(|meeting| LEVELS.map(|level| (meeting, level))) {
        for (end, is_registered) in
            [("COMMIT", true), ("COMMIT", false), ("ROLLBACK", true), ("ROLLBACK", false)]
        {
            books.reset(is_registered).await;
            let (inside, newcomer) = books.pair().await;
            let begin = async |db: &Db| {
                db.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
                db.run("BEGIN").await;
            };
            begin(&inside).await;
            assert!(inside.clone().come(meeting.inside, !is_registered).await.unwrap());
            begin(&newcomer).await;
            let entering = tokio::spawn(newcomer.clone().come(meeting.comes, !is_registered));
            let case =
                format!("{:?}, then {:?}, {end}, {is_registered}, {level}", meeting.inside, meeting.comes);
            // A row that is being made lets no other transaction see it.
            assert_eq!(books.waits(&entering).await, meeting.waits || !is_registered, "{case}");
            inside.run(end).await;
            let is_let_in = entering.await.unwrap().unwrap();
            assert_eq!(is_let_in, meeting.is_let_in || end == "ROLLBACK", "{case}");
            newcomer.run("COMMIT").await;
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
            let (inside, newcomer) = books.pair().await;
            inside.run("BEGIN").await;
            assert!(inside.write(meeting.inside, &counted()).await.unwrap());
            let (db, pass) = (newcomer.clone(), meeting.comes);
            let writing = tokio::spawn(async move { db.write(pass, &counted()).await });
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
    let (former, later) = books.pair().await;
    former.run("BEGIN").await;
    let naive = fence().touch(together(7)).replace(" LOCK IN SHARE MODE", "");
    let parameters = params! { "resource" => "books", "token" => 7 };
    let mark: Option<i64> = former.0.lock().await.exec_first(naive, parameters).await.unwrap();
    assert_eq!(mark, Some(0));
    assert!(later.visit(alone(8)).await, "nothing kept it out");
    former.run("INSERT INTO entry (token) VALUES (7)").await;
    former.run("COMMIT").await;
    assert_eq!(books.entries().await, [8, 7], "a former holder wrote after a later one");
}

/// Hazard 51: a transaction that begins with its touch reads all that was written before its turn, in every isolation. One
/// that takes a snapshot first is let in and reads what was there before; where MariaDB guards snapshots, it is told to
/// begin anew.
#[tokio::test]
async fn a_touch_that_comes_first_makes_reads_new() {
    let books = Books::new().await;
    let begins = LEVELS.map(|level| (level, "OFF", "BEGIN", Some(vec![5]))).into_iter().chain([
        ("REPEATABLE READ", "ON", "BEGIN", Some(vec![5])),
        ("REPEATABLE READ", "OFF", "START TRANSACTION WITH CONSISTENT SNAPSHOT", Some(vec![])),
        ("REPEATABLE READ", "ON", "START TRANSACTION WITH CONSISTENT SNAPSHOT", None),
    ]);
    for (level, guard, begin, sees) in begins {
        books.reset(true).await;
        let (former, later) = books.pair().await;
        former.run("BEGIN").await;
        assert!(former.enter(alone(5)).await.unwrap());
        later.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
        later.run(&format!("SET SESSION innodb_snapshot_isolation = {guard}")).await;
        later.run(begin).await;
        let db = later.clone();
        let reading = tokio::spawn(async move {
            assert!(db.touch(alone(8)).await?, "it is let in");
            let read: Vec<i64> = db.0.lock().await.query("SELECT token FROM entry").await?;
            db.run("COMMIT").await;
            Ok::<_, Error>(read)
        });
        assert!(books.waits(&reading).await);
        former.run("COMMIT").await;
        let case = format!("{level}, {guard}, {begin}");
        match reading.await.unwrap() {
            Ok(read) => assert_eq!(Some(read), sees, "{case}"),
            Err(Error::Server(error)) => assert_eq!((error.code, sees), (1020, None), "{case}: {error}"),
            Err(error) => panic!("{case}: {error}"),
        }
    }
}

/// L3: with writers that all believe they hold, nothing is written after what a later holder wrote.
#[tokio::test]
async fn among_many_connections_the_tokens_of_what_is_written_never_fall() {
    let books = Books::new().await;
    books.reset(true).await;
    let mut writers = Vec::new();
    for first in 1..=4 {
        let db = books.open(COUNTS[usize::try_from(first % 2).unwrap()]).await;
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
