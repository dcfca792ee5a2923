//! Ownership inside a transaction, on real databases: holders that stand still past their ttl, and what keeps or ends it.

#![allow(clippy::disallowed_methods, reason = "a server lives in real time")]

use std::{
    error::Error as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use mysql_async::{Conn, prelude::Queryable};
use tenure::{
    AcquireError, ErrorKind, Guard, Locker, OwnershipError, ReleaseError,
    backend::Outcome,
    blocking,
    ownership::{Ownership, SqlOwnership},
};
use tenure_testkit::{
    clock::Clock,
    mysql::MysqlServer,
    patience::slowness,
    postgres::{self, Pgbouncer, PostgresServer},
};
use tokio::sync::Mutex;
use tokio_postgres::{
    Client, NoTls,
    types::{ToSql, Type},
};

/// A database server, with locks and data in one database.
enum Server {
    Postgres(PostgresServer),
    /// Every connection is one of the pooler, which gives each transaction a session.
    Pooled(Pgbouncer),
    Mysql(MysqlServer),
}

/// A connection of the program that has data there.
enum Db {
    Postgres(Client),
    Mysql(Mutex<Conn>),
}

/// Why a transaction was not committed.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// The statement returned no row.
    NotOwner,
    /// The server asks for a new transaction.
    Again,
}

type Done = Result<(), Refused>;

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(""),
            Self::Pooled(pooler) => pooler.url(""),
            Self::Mysql(server) => server.url(""),
        }
    }

    async fn locks(&self) -> Locker {
        tenure::connect(&self.url()).await.unwrap()
    }

    async fn open(&self) -> Db {
        match self {
            Self::Postgres(_) | Self::Pooled(_) => {
                let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
                tokio::spawn(connection);
                Db::Postgres(client)
            }
            Self::Mysql(server) => Db::Mysql(Mutex::new(Conn::from_url(server.url("")).await.unwrap())),
        }
    }

    fn levels(&self) -> &'static [&'static str] {
        match self {
            Self::Postgres(_) | Self::Pooled(_) => &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
            Self::Mysql(_) => &["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
        }
    }
}

impl Db {
    async fn begin(&self, level: &str) {
        match self {
            Self::Postgres(_) => self.run(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap(),
            Self::Mysql(_) => {
                self.run(&format!("SET TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
                self.run("BEGIN").await.unwrap();
            }
        }
    }

    /// # Errors
    /// If the server wants the transaction to begin anew.
    async fn run(&self, sql: &str) -> Done {
        match self {
            Self::Postgres(client) => {
                client.batch_execute(sql).await.map_err(|error| again(error.code().map(|code| code.code())))
            }
            Self::Mysql(conn) => conn.lock().await.query_drop(sql).await.map_err(|error| again_mysql(&error)),
        }
    }

    async fn number(&self, sql: &str) -> Result<Option<i64>, Refused> {
        match self {
            Self::Postgres(client) => {
                let rows = client.query_typed(sql, &[]).await;
                let rows = rows.map_err(|error| again(error.code().map(|code| code.code())))?;
                Ok(rows.first().map(|row| row.get(0)))
            }
            Self::Mysql(conn) => {
                conn.lock().await.query_first(sql).await.map_err(|error| again_mysql(&error))
            }
        }
    }

    /// The check, with parameters.
    async fn owns(&self, sql: &SqlOwnership) -> Done {
        let found = match self {
            Self::Postgres(client) => {
                // A pooler keeps no statements.
                let given: [(&(dyn ToSql + Sync), Type); 2] =
                    [(&sql.row(), Type::TEXT), (&sql.proof(), Type::TEXT)];
                let rows = client.query_typed(sql.statement(), &given).await;
                !rows.map_err(|error| again(error.code().map(|code| code.code())))?.is_empty()
            }
            Self::Mysql(conn) => {
                let given = (sql.row(), sql.proof());
                let row: Result<Option<i64>, _> = conn.lock().await.exec_first(sql.statement(), given).await;
                row.map_err(|error| again_mysql(&error))?.is_some()
            }
        };
        if found { Ok(()) } else { Err(Refused::NotOwner) }
    }

    /// The server has ended it, as a transaction that stood still for longer than the ttl.
    fn is_closed(&self) -> bool {
        matches!(self, Self::Postgres(client) if client.is_closed())
    }

    async fn rollback(&self) {
        // The server may have ended it.
        let _ = self.run("ROLLBACK").await;
    }
}

fn again(code: Option<&str>) -> Refused {
    // Serialization failures, deadlocks, and a transaction that stood still for too long.
    assert!(matches!(code, Some("40001" | "40P01" | "25P03" | "25P02") | None), "{code:?}");
    Refused::Again
}

fn again_mysql(error: &mysql_async::Error) -> Refused {
    let mysql_async::Error::Server(error) = error else { panic!("{error}") };
    assert!(matches!(error.code, 1020 | 1205 | 1213), "{error}");
    Refused::Again
}

/// A server for one test: it ends with the test.
fn postgres() -> Server {
    Server::Postgres(PostgresServer::start())
}

fn mysql() -> Server {
    Server::Mysql(MysqlServer::start())
}

/// Numbers that look like chance, and are the same in every run.
struct Dice(u64);

impl Dice {
    fn millis(&mut self, below: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % below)
    }
}

const TTL: Duration = Duration::from_millis(300);

/// A holder that is never renewed, and does not look at the clock: as one whose process stands still.
async fn stopped_holder(locks: &Locker, name: &str) -> Option<Guard> {
    match locks
        .mutex(name)
        .ttl(TTL)
        .max_hold(TTL)
        .within(Duration::from_secs(30) * slowness())
        .acquire()
        .await
    {
        Ok(guard) => Some(guard),
        Err(AcquireError::TimedOut { .. }) => None,
        // A machine that is busy for a moment.
        Err(AcquireError::Store(error)) if error.to_string().contains("more slowly than a lease") => None,
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

/// One transaction that adds one, with a pause before each of its steps. `checks`: whether it relies on the owner.
async fn add_one(db: &Db, level: &str, name: &str, sql: Option<&SqlOwnership>, dice: &mut Dice) -> Done {
    let pause = |dice: &mut Dice| {
        let long = dice.millis(5) < Duration::from_millis(1);
        tokio::time::sleep(dice.millis(if long { 900 } else { 20 }))
    };
    // There a transaction reads what a refused one has written and takes back: it must begin with the check.
    let checks_first = dice.millis(2).is_zero() || level == "READ UNCOMMITTED";
    pause(dice).await;
    db.begin(level).await;
    let work = async {
        if let Some(sql) = sql.filter(|_| checks_first) {
            db.owns(sql).await?;
        }
        pause(dice).await;
        let before = db.number(&format!("SELECT count FROM tally WHERE name = '{name}'")).await?.unwrap();
        pause(dice).await;
        db.run(&format!("UPDATE tally SET count = {} WHERE name = '{name}'", before + 1)).await?;
        pause(dice).await;
        if let Some(sql) = sql.filter(|_| !checks_first) {
            db.owns(sql).await?;
            pause(dice).await;
        }
        db.run("COMMIT").await
    };
    let done = work.await;
    if done.is_err() {
        db.rollback().await;
    }
    done
}

/// How many of the additions that were committed are lost, and how many were committed. Each lock has two holders that add to
/// its number, one after the other, `rounds` times each, and on until an eighth of that was committed.
async fn lost_updates(
    server: &Server,
    level: &str,
    relies: bool,
    (pairs, rounds): (usize, u64),
) -> (i64, i64) {
    let kind = format!("{}{relies}", level.replace(' ', "").to_lowercase());
    let eye = server.open().await;
    let _ = eye
        .run("CREATE TABLE IF NOT EXISTS tally (name VARCHAR(60) PRIMARY KEY, count BIGINT NOT NULL)")
        .await;
    let (all, enough) = (&AtomicU64::new(0), pairs as u64 * rounds / 4);
    // The two holders of a lock are in different processes.
    let processes = join_all((0..PROCESSES).map(|_| server.locks())).await;
    let holder = |pair: usize, seat: u64| {
        let name = format!("{kind}-{pair}");
        let locks = processes[(pair * 2 + seat as usize) % PROCESSES].clone();
        async move {
            let mut db = server.open().await;
            let mut dice = Dice(pair as u64 * 2 + seat);
            let mut committed = 0;
            // A machine that is busy lets some holders lose their leases before they begin.
            for round in 0..rounds * 20 {
                if round >= rounds && all.load(Ordering::Relaxed) >= enough {
                    break;
                }
                if db.is_closed() {
                    db = server.open().await;
                }
                let Some(guard) = stopped_holder(&locks, &name).await else { continue };
                let ownership = match guard.ownership_resting(patience()).await {
                    Ok(ownership) => ownership,
                    Err(OwnershipError::Lost(_)) => continue,
                    Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
                };
                let sql = relies.then(|| ownership.sql().unwrap());
                let is_committed = add_one(&db, level, &name, sql, &mut dice).await.is_ok();
                committed += i64::from(is_committed);
                all.fetch_add(u64::from(is_committed), Ordering::Relaxed);
                drop(guard);
            }
            committed
        }
    };
    for pair in 0..pairs {
        eye.run(&format!("INSERT INTO tally VALUES ('{kind}-{pair}', 0)")).await.unwrap();
    }
    let committed: i64 =
        join_all((0..pairs).flat_map(|pair| [holder(pair, 0), holder(pair, 1)])).await.into_iter().sum();
    let sum = format!(
        "SELECT CAST(SUM(count) AS {}) FROM tally WHERE name LIKE '{kind}-%'",
        match server {
            Server::Postgres(_) | Server::Pooled(_) => "BIGINT",
            Server::Mysql(_) => "SIGNED",
        }
    );
    let counted = eye.number(&sum).await.unwrap().unwrap();
    (committed - counted, committed)
}

const PROCESSES: usize = 16;

/// L1, L3: a holder that was stopped past its ttl writes nothing after another one has the lock, in every isolation level.
async fn no_update_is_lost(server: &Server, (pairs, rounds): (usize, u64)) {
    for level in server.levels() {
        let (lost, committed) = lost_updates(server, level, true, (pairs, rounds)).await;
        eprintln!("{level}: {committed} committed, {lost} lost");
        assert_eq!(lost, 0, "{level}, of {committed}");
        assert!(committed > 0, "{level}");
    }
}

/// The clocks of all clients are an hour behind the one of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_on_postgres() {
    let clock = Clock::new();
    clock.advance(HOUR);
    let server = Server::Postgres(postgres::Recipe::new().clock(&clock).start());
    no_update_is_lost(&server, (32, 6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_through_a_pooler() {
    let server = PostgresServer::start();
    let pooled = Server::Pooled(Pgbouncer::before(&server));
    no_update_is_lost(&pooled, (8, 6)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_on_mysql() {
    // Its waiters poll: with more locks a machine that is busy lets every lease expire before it is used.
    no_update_is_lost(&mysql(), (16, 8)).await;
}

const HOUR: Duration = Duration::from_secs(3600);

/// The trial shows something: the same holders lose updates if their transactions rely on nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_check_updates_are_lost() {
    for server in [postgres(), mysql()] {
        let (lost, committed) = lost_updates(&server, "READ COMMITTED", false, (16, 6)).await;
        assert!(lost > 0, "of {committed}");
    }
}

/// A holder, and a transaction of it that relies on the lock.
struct Relying {
    locks: Locker,
    guard: Guard,
    ownership: Ownership,
    db: Db,
}

impl Relying {
    /// With a lease of this length that is renewed, or not.
    async fn start(server: &Server, name: &str, (ttl, is_renewed): (Duration, bool)) -> Self {
        let (locks, db) = (server.locks().await, server.open().await);
        let lock = locks.mutex(name).ttl(ttl);
        let lock = if is_renewed { lock } else { lock.max_hold(ttl) };
        let guard = lock.acquire().await.unwrap();
        let ownership = guard.ownership_resting(patience()).await.unwrap();
        db.begin("READ COMMITTED").await;
        db.owns(ownership.sql().unwrap()).await.unwrap();
        Self { locks, guard, ownership, db }
    }
}

/// Long enough for each wait of a test.
fn patience() -> Duration {
    Duration::from_secs(20) * slowness()
}

macro_rules! on_both {
    ($($test:ident)*) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::postgres()).await;
            })*
        }
        mod on_mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::mysql()).await;
            })*
        }
    };
}

on_both! {
    waiters_of_an_expired_owner_wait_for_its_transaction_in_their_order
    a_transaction_delays_no_renewal
    transactions_that_overlap_keep_no_one_out
    a_stopped_transaction_that_stays_open_keeps_no_one_out
    a_release_and_a_break_inside_a_transaction_are_refused
    a_refused_transaction_that_stays_open_hinders_no_holder
    a_chosen_owner_that_comes_back_is_another_one
    a_lease_that_was_passed_on_shows_no_owner
    many_transactions_of_one_lease_overlap
    only_an_exclusive_lease_has_an_ownership
    the_statement_has_its_parameters_in_it
    threads_ask_too
    a_statement_in_autocommit_protects_nothing
    a_snapshot_older_than_the_grant
}

/// L1, L6, L7: expiry alone lets no other owner in, and the transaction may commit. Waiters are told that they wait, by no
/// error, and enter in the order in which they came.
async fn waiters_of_an_expired_owner_wait_for_its_transaction_in_their_order(server: &Server) {
    let holder = Relying::start(server, "waiters", (TTL, false)).await;
    tokio::time::sleep(TTL * 2).await;
    assert!(holder.guard.check().is_err(), "the loss is reported in time");
    let other = server.locks().await;
    assert!(other.mutex("waiters").try_acquire().await.unwrap().is_none());
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..3 {
        let (locks, order) = (server.locks().await, order.clone());
        waiting.push(tokio::spawn(async move {
            let guard = locks.mutex("waiters").within(patience()).acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert!(order.lock().unwrap().is_empty(), "the transaction is open");
    holder.db.run("COMMIT").await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    // Another owner had it: it is refused from now on.
    holder.db.begin("READ COMMITTED").await;
    assert_eq!(holder.db.owns(holder.ownership.sql().unwrap()).await, Err(Refused::NotOwner));
    holder.db.rollback().await;
}

async fn a_transaction_delays_no_renewal(server: &Server) {
    let ttl = Duration::from_secs(1) * slowness();
    let holder = Relying::start(server, "renewals", (ttl, true)).await;
    let other = server.locks().await;
    let waiter =
        tokio::spawn(async move { other.mutex("renewals").within(patience()).acquire().await.map(drop) });
    // Longer than the waiter believes what it has read.
    for _ in 0..12 {
        tokio::time::sleep(ttl / 2).await;
        // As a client does that works.
        holder.db.owns(holder.ownership.sql().unwrap()).await.unwrap();
        holder.guard.check().unwrap();
    }
    assert_eq!(holder.guard.renewals().failed, 0);
    holder.db.run("COMMIT").await.unwrap();
    holder.guard.release().await.unwrap();
    waiter.await.unwrap().unwrap();
}

async fn a_release_and_a_break_inside_a_transaction_are_refused(server: &Server) {
    let holder = Relying::start(server, "inside", (Duration::from_secs(30), true)).await;
    let broken = server.locks().await.force_release("inside").await.unwrap_err();
    assert!(broken.to_string().contains("is still open"), "{broken}");
    // On MariaDB that needs the right PROCESS.
    let names = matches!(server, Server::Postgres(_));
    assert_eq!(broken.to_string().contains("perhaps of session "), names, "{broken}");
    // The lease has expired, and is kept for the transaction: an operator is told so, and not that the lock is free.
    let expired = Relying::start(server, "expired", (TTL, false)).await;
    tokio::time::sleep(TTL * 2).await;
    let broken = server.locks().await.force_release("expired").await.unwrap_err();
    assert!(broken.to_string().contains("is still open"), "{broken}");
    expired.db.rollback().await;
    holder.db.rollback().await;
    let holder = Relying::start(server, "released", (Duration::from_secs(300), true)).await;
    let Err(ReleaseError::Unknown(error)) = holder.guard.release().await else { panic!("it was released") };
    assert!(error.to_string().contains("is still open"), "{error}");
    let other = server.locks().await;
    assert!(other.mutex("released").try_acquire().await.unwrap().is_none());
    holder.db.run("COMMIT").await.unwrap();
    other.mutex("released").within(patience()).acquire().await.unwrap().release().await.unwrap();
    holder.locks.flush(patience()).await;
    // An open owner is broken as soon as no transaction relies on it.
    let holder = Relying::start(server, "inside", (Duration::from_secs(30), true)).await;
    holder.db.run("COMMIT").await.unwrap();
    assert_eq!(other.force_release("inside").await.unwrap().len(), 1);
    holder.db.begin("READ COMMITTED").await;
    assert_eq!(holder.db.owns(holder.ownership.sql().unwrap()).await, Err(Refused::NotOwner));
}

/// On InnoDB a transaction that found no owner has the row locked nevertheless.
async fn a_refused_transaction_that_stays_open_hinders_no_holder(server: &Server) {
    let name = "refused";
    let former = Relying::start(server, name, (TTL, false)).await;
    former.db.rollback().await;
    tokio::time::sleep(TTL * 2).await;
    let mut refused = Vec::new();
    let other = server.locks().await;
    for level in server.levels() {
        let guard =
            other.mutex(name).ttl(Duration::from_secs(30)).within(patience()).acquire().await.unwrap();
        let late = server.open().await;
        late.begin(level).await;
        assert_ne!(late.owns(former.ownership.sql().unwrap()).await, Ok(()));
        refused.push(late);
        let ownership = guard.ownership().await.unwrap();
        let db = server.open().await;
        db.begin(level).await;
        db.owns(ownership.sql().unwrap()).await.unwrap();
        db.run("COMMIT").await.unwrap();
        guard.release().await.unwrap();
    }
}

async fn a_chosen_owner_that_comes_back_is_another_one(server: &Server) {
    let (locks, owner) = (server.locks().await, server.locks().await.new_owner());
    let first = locks.mutex("chosen").owner(owner).acquire().await.unwrap();
    let former = first.ownership().await.unwrap();
    first.release().await.unwrap();
    locks.mutex("chosen").acquire().await.unwrap().release().await.unwrap();
    let again = locks.mutex("chosen").owner(owner).acquire().await.unwrap();
    let newer = again.ownership().await.unwrap();
    let db = server.open().await;
    db.begin("READ COMMITTED").await;
    assert_eq!(db.owns(former.sql().unwrap()).await, Err(Refused::NotOwner));
    db.rollback().await;
    db.begin("READ COMMITTED").await;
    db.owns(newer.sql().unwrap()).await.unwrap();
    db.run("COMMIT").await.unwrap();
    again.release().await.unwrap();
}

/// H5.3: the lease goes on with another task, and a clone of the former one shows nothing of it. A lease that has shown its
/// owner is passed on no more.
async fn a_lease_that_was_passed_on_shows_no_owner(server: &Server) {
    let locks = server.locks().await;
    let lock = locks.mutex("turns").keep_idle(Duration::from_secs(20)).ttl(Duration::from_secs(30));
    let first = lock.acquire().await.unwrap();
    let (former, token) = (first.lease(), first.token());
    first.release().await.unwrap();
    let second = lock.acquire().await.unwrap();
    assert_eq!(second.token().get(), token.get() + 1, "the same lease");
    assert!(matches!(former.ownership().await, Err(OwnershipError::Lost(_))));
    let ownership = second.ownership().await.unwrap();
    let db = server.open().await;
    db.begin("READ COMMITTED").await;
    db.owns(ownership.sql().unwrap()).await.unwrap();
    db.run("COMMIT").await.unwrap();
    second.release().await.unwrap();
    let third = lock.acquire().await.unwrap();
    assert!(third.token().get() > token.get() + 2, "another lease");
    db.begin("READ COMMITTED").await;
    assert_eq!(db.owns(ownership.sql().unwrap()).await, Err(Refused::NotOwner));
    third.release().await.unwrap();
}

async fn many_transactions_of_one_lease_overlap(server: &Server) {
    let ttl = Duration::from_secs(1) * slowness();
    let locks = server.locks().await;
    let guard = locks.mutex("overlap").ttl(ttl).acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    let task = |number: u64| {
        let ownership = ownership.clone();
        async move {
            let (db, mut dice) = (server.open().await, Dice(number));
            for _ in 0..60 {
                db.begin("READ COMMITTED").await;
                db.owns(ownership.sql().unwrap()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20) + dice.millis(40)).await;
                db.run("COMMIT").await.unwrap();
            }
        }
    };
    join_all((0..8).map(task)).await;
    guard.check().unwrap();
    assert_eq!(guard.renewals().failed, 0);
    guard.release().await.unwrap();
    server
        .locks()
        .await
        .mutex("overlap")
        .within(patience())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Tasks whose transactions overlap without a gap, as long as the check finds the owner. How many were committed.
async fn overlapping(server: &Server, sql: &SqlOwnership, tasks: u64) -> u64 {
    let task = |number: u64| async move {
        let (db, mut dice, mut committed) = (server.open().await, Dice(number), 0);
        loop {
            db.begin("READ COMMITTED").await;
            match db.owns(sql).await {
                Ok(()) => {}
                Err(Refused::Again) => continue,
                Err(Refused::NotOwner) => break,
            }
            tokio::time::sleep(Duration::from_millis(40) + dice.millis(60)).await;
            committed += u64::from(db.run("COMMIT").await.is_ok());
        }
        db.rollback().await;
        committed
    };
    join_all((0..tasks).map(task)).await.into_iter().sum()
}

/// L6: at each moment one of them has the row locked. A break, a release, and a waiter behind the expired lease are done
/// nevertheless: from then on none begins.
async fn transactions_that_overlap_keep_no_one_out(server: &Server) {
    let (locks, other) = (server.locks().await, server.locks().await);
    for ends in ["break", "release", "expiry"] {
        let name = &format!("overlap-{ends}");
        let ttl = Duration::from_secs(if ends == "expiry" { 1 } else { 60 });
        let guard = locks.mutex(name).ttl(ttl).max_hold(ttl).acquire().await.unwrap();
        let ownership = guard.ownership_resting(patience()).await.unwrap();
        let tasks = overlapping(server, ownership.sql().unwrap(), 8);
        let end = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            match ends {
                "break" => assert_eq!(other.force_release(name).await.unwrap().len(), 1),
                "release" => guard.release().await.unwrap(),
                _ => {}
            }
            other.mutex(name).within(patience()).acquire().await.unwrap().release().await.unwrap();
        };
        let (committed, ()) = tokio::join!(tasks, end);
        assert!(committed > 0, "{ends}");
    }
}

/// L6, L8: a break that is refused ends the lease, and its holder is told. A transaction that begins afterwards has nothing
/// locked, even if its program stands still: the next client waits for the first one only.
async fn a_stopped_transaction_that_stays_open_keeps_no_one_out(server: &Server) {
    let (locks, other) = (server.locks().await, server.locks().await);
    let guard = locks.mutex("stopped").ttl(patience()).acquire().await.unwrap();
    let ownership = guard.ownership_resting(patience()).await.unwrap();
    let (relies, begins) = (server.open().await, server.open().await);
    relies.begin("READ COMMITTED").await;
    relies.owns(ownership.sql().unwrap()).await.unwrap();
    let refused = other.force_release("stopped").await.unwrap_err();
    assert_eq!((refused.kind(), refused.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{refused}");
    assert!(refused.to_string().contains("the lock is free then"), "{refused}");
    tokio::time::timeout(patience(), guard.lost()).await.expect("it is told");
    begins.begin("READ COMMITTED").await;
    assert_eq!(begins.owns(ownership.sql().unwrap()).await, Err(Refused::NotOwner));
    assert!(other.mutex("stopped").try_acquire().await.unwrap().is_none());
    relies.run("COMMIT").await.unwrap();
    other.mutex("stopped").within(patience()).acquire().await.unwrap().release().await.unwrap();
    begins.rollback().await;
}

async fn only_an_exclusive_lease_has_an_ownership(server: &Server) {
    let locks = server.locks().await;
    let shared = [locks.semaphore("permits", 2), locks.rwlock("book").read()];
    for lock in shared {
        let guard = lock.acquire().await.unwrap();
        let Err(OwnershipError::Store(error)) = guard.ownership().await else { panic!("it has one") };
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        guard.release().await.unwrap();
    }
    let guard = locks.rwlock("book").write().acquire().await.unwrap();
    guard.ownership().await.unwrap();
    guard.release().await.unwrap();
}

async fn the_statement_has_its_parameters_in_it(server: &Server) {
    let locks = server.locks().await;
    let name = "it's a \\ \u{e9} %s $1 ? name";
    let guard = locks.mutex(name).acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    let sql = ownership.sql().unwrap();
    let db = server.open().await;
    db.begin("READ COMMITTED").await;
    let rows = match &db {
        Db::Postgres(client) => client.query(sql.literal(), &[]).await.unwrap().len(),
        Db::Mysql(conn) => conn.lock().await.query::<i64, _>(sql.literal()).await.unwrap().len(),
    };
    assert_eq!(rows, 1, "{}", sql.literal());
    assert!(!format!("{ownership:?}").contains(sql.proof()), "an owner is no text for a log");
    db.run("COMMIT").await.unwrap();
    guard.release().await.unwrap();
}

async fn threads_ask_too(server: &Server) {
    let url = server.url();
    let ownership = tokio::task::spawn_blocking(move || {
        let guard = blocking::connect(&url).unwrap().mutex("threads").acquire().unwrap();
        let ownership = guard.ownership().unwrap();
        guard.release().unwrap();
        ownership
    });
    let db = server.open().await;
    db.begin("READ COMMITTED").await;
    assert_eq!(db.owns(ownership.await.unwrap().sql().unwrap()).await, Err(Refused::NotOwner));
}

/// A limit that the page names: without a transaction the row is locked for the statement only.
async fn a_statement_in_autocommit_protects_nothing(server: &Server) {
    let (locks, db) = (server.locks().await, server.open().await);
    let guard = locks.mutex("autocommit").acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    db.owns(ownership.sql().unwrap()).await.unwrap();
    assert_eq!(server.locks().await.force_release("autocommit").await.unwrap().len(), 1);
    assert_eq!(db.owns(ownership.sql().unwrap()).await, Err(Refused::NotOwner));
}

/// A transaction that has read before the lock was acquired may know the state before the former holder's writes. PostgreSQL
/// refuses it. MySQL does not, which is why the page says to begin with the statement.
async fn a_snapshot_older_than_the_grant(server: &Server) {
    let (locks, db) = (server.locks().await, server.open().await);
    let lock = locks.mutex("snapshot");
    // The rows that transactions look in exist.
    for _ in 0..8 {
        let guard = lock.acquire().await.unwrap();
        guard.ownership().await.unwrap();
        guard.release().await.unwrap();
    }
    db.begin("REPEATABLE READ").await;
    db.number("SELECT COUNT(*) FROM tenure_lock").await.unwrap();
    let guard = lock.acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    let owns = db.owns(ownership.sql().unwrap()).await;
    assert_eq!(owns.is_ok(), matches!(server, Server::Mysql(_)), "{owns:?}");
    db.rollback().await;
    guard.release().await.unwrap();
}

/// A limit that the page names, and that the statement finds if it runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_before_the_statement_ends_its_protection_on_postgres() {
    let server = &postgres();
    let (locks, db) = (server.locks().await, server.open().await);
    let guard = locks.mutex("savepoint").acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    db.begin("READ COMMITTED").await;
    db.run("SAVEPOINT inner_block").await.unwrap();
    db.owns(ownership.sql().unwrap()).await.unwrap();
    db.run("ROLLBACK TO inner_block").await.unwrap();
    let other = server.locks().await;
    assert_eq!(other.force_release("savepoint").await.unwrap().len(), 1);
    assert_eq!(db.owns(ownership.sql().unwrap()).await, Err(Refused::NotOwner));
    db.rollback().await;
}

/// A limit that the page names: below SERIALIZABLE, MariaDB gives the row up when a transaction is prepared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_keeps_the_lock_on_mariadb_if_it_is_serializable() {
    let server = &mysql();
    for (level, keeps) in [("REPEATABLE READ", false), ("SERIALIZABLE", true)] {
        let (locks, db) = (server.locks().await, server.open().await);
        let guard = locks.mutex("prepared").within(patience()).acquire().await.unwrap();
        let ownership = guard.ownership().await.unwrap();
        db.run("CREATE TABLE IF NOT EXISTS prepared (n BIGINT)").await.unwrap();
        db.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        db.run("XA START 'tenure'").await.unwrap();
        db.owns(ownership.sql().unwrap()).await.unwrap();
        db.run("INSERT INTO prepared VALUES (1)").await.unwrap();
        db.run("XA END 'tenure'").await.unwrap();
        db.run("XA PREPARE 'tenure'").await.unwrap();
        let broken = server.locks().await.force_release("prepared").await;
        assert_eq!(broken.is_err(), keeps, "{level}: {broken:?}");
        db.run("XA COMMIT 'tenure'").await.unwrap();
        drop(guard);
        locks.flush(patience()).await;
    }
}

/// L3: the trigger of the guide, as it is printed, for programs that do not run the statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_checks_at_commit() {
    let guide = include_str!("../../../docs/guides/protect-the-data.md");
    let trigger = guide.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let server = &postgres();
    let (locks, db) = (server.locks().await, server.open().await);
    db.run("CREATE TABLE stock (item int PRIMARY KEY, amount int)").await.unwrap();
    let guard = locks.mutex("stock").acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    let Db::Postgres(client) = &db else { unreachable!() };
    client.batch_execute(trigger).await.unwrap();
    let put = async |item: i32| {
        let put = format!("BEGIN; INSERT INTO stock VALUES ({item}, 1); COMMIT");
        client.batch_execute(&put).await.map_err(|error| error.as_db_error().unwrap().message().to_owned())
    };
    let set = async |row: &str, proof: &str| {
        let set = "SELECT set_config('tenure.row', $1, false), set_config('tenure.proof', $2, false)";
        client.query(set, &[&row, &proof]).await.unwrap();
    };
    let refusal = "this transaction does not have the lock stock";
    assert_eq!(put(1).await.unwrap_err(), refusal, "a writer says whose it is");
    let sql = ownership.sql().unwrap();
    set(sql.row(), sql.proof()).await;
    put(2).await.unwrap();
    // The owner of another lock.
    let other = locks.mutex("tea").acquire().await.unwrap();
    let others = other.ownership().await.unwrap();
    set(others.sql().unwrap().row(), others.sql().unwrap().proof()).await;
    assert_eq!(put(3).await.unwrap_err(), refusal);
    set(sql.row(), sql.proof()).await;
    guard.release().await.unwrap();
    assert_eq!(put(4).await.unwrap_err(), refusal);
    // As a session says it that has cleared its settings: the row of a lock that is free has an empty text.
    set(sql.row(), "").await;
    assert_eq!(put(5).await.unwrap_err(), refusal);
    set("", "").await;
    assert_eq!(put(6).await.unwrap_err(), refusal);
    assert_eq!(db.number("SELECT count(*) FROM stock").await.unwrap(), Some(1));
}

/// What keeps an expired lock is named, for people.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_that_keeps_an_expired_lock_is_named_on_postgres() {
    let recipe = postgres::Recipe::new().config("max_prepared_transactions = 5");
    let server = &Server::Postgres(recipe.start());
    let holder = Relying::start(server, "kept", (TTL, false)).await;
    assert_eq!(holder.locks.inspect("kept").await.unwrap().kept_by, None, "it is held");
    tokio::time::sleep(TTL * 2).await;
    let view = server.locks().await.inspect("kept").await.unwrap();
    let sessions = view.kept_by.expect("the transaction is open");
    assert!(sessions.starts_with("session ") && sessions.contains("user tenure"), "{sessions}");
    // A prepared transaction has no session.
    holder.db.run("PREPARE TRANSACTION 'left by an application'").await.unwrap();
    let view = server.locks().await.inspect("kept").await.unwrap();
    let sessions = view.kept_by.expect("the transaction is prepared");
    assert!(sessions.contains("prepared transaction 'left by an application'"), "{sessions}");
    holder.db.run("ROLLBACK PREPARED 'left by an application'").await.unwrap();
    assert_eq!(server.locks().await.inspect("kept").await.unwrap().kept_by, None);
}

/// L6, L8: a client whose host has lost its power keeps its connection open, and the server does not see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stands_still_ends_with_the_lease_on_postgres() {
    let server = &postgres();
    let (locks, db) = (server.locks().await, server.open().await);
    let former = locks.mutex("power").ttl(TTL).max_hold(TTL).acquire().await.unwrap();
    let ownership = former.ownership().await.unwrap();
    db.begin("READ COMMITTED").await;
    db.owns(ownership.sql().unwrap()).await.unwrap();
    let guard = server.locks().await.mutex("power").within(patience()).acquire().await.unwrap();
    assert_eq!(db.run("SELECT 1").await, Err(Refused::Again), "the server has ended its transaction");
    guard.release().await.unwrap();
    // A shorter limit of the program's own stays, and a longer one comes back.
    for (own, bound) in [("100ms", "100ms"), ("1h", "1h"), ("0", "0")] {
        let (locks, db) = (server.locks().await, server.open().await);
        let guard = locks.mutex("limits").ttl(Duration::from_secs(5)).acquire().await.unwrap();
        let ownership = guard.ownership().await.unwrap();
        let Db::Postgres(client) = &db else { unreachable!() };
        db.run(&format!("SET idle_in_transaction_session_timeout = '{own}'")).await.unwrap();
        let limit = async || {
            let row = client.query_one("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap();
            row.get::<_, String>(0)
        };
        db.begin("READ COMMITTED").await;
        db.owns(ownership.sql().unwrap()).await.unwrap();
        assert_eq!(limit().await, if own == "100ms" { "100ms" } else { "5s" });
        db.run("COMMIT").await.unwrap();
        assert_eq!(limit().await, bound);
        guard.release().await.unwrap();
    }
}

/// The least rights, as the page says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_of_a_transaction_needs_few_rights_on_postgres() {
    let server = &postgres();
    let (locks, db) = (server.locks().await, server.open().await);
    let guard = locks.mutex("rights").acquire().await.unwrap();
    let ownership = guard.ownership().await.unwrap();
    let Server::Postgres(postgres) = server else { unreachable!() };
    postgres.psql(
        "CREATE ROLE clerk; GRANT clerk TO tenure; GRANT SELECT, UPDATE (used) ON tenure_lock TO clerk",
    );
    db.run("SET ROLE clerk").await.unwrap();
    db.begin("READ COMMITTED").await;
    db.owns(ownership.sql().unwrap()).await.unwrap();
    db.run("COMMIT").await.unwrap();
    guard.release().await.unwrap();
}

/// Every other store says so, and what is left.
#[tokio::test]
async fn a_store_without_transactions_of_the_program_refuses() {
    let locks = tenure::connect("memory:").await.unwrap();
    let guard = locks.mutex("memory").acquire().await.unwrap();
    let Err(OwnershipError::Store(error)) = guard.ownership().await else { panic!("it has one") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("fencing token"), "{error}");
    assert!(OwnershipError::Store(error).source().is_some());
}

/// L3: a script on the Redis that has the lock writes as the owner only.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_script_with_the_condition_writes_as_the_owner_only() {
    let server = tenure_testkit::redis::RedisServer::start();
    let script = "if string.sub(redis.call('GET', KEYS[1]) or '', 1, #ARGV[1]) ~= ARGV[1] then return 0 end \
                  redis.call('SET', KEYS[2], ARGV[2]) return 1";
    let write = |ownership: &Ownership, value: &str| {
        let Ownership::Redis(owns) = ownership else { panic!("{ownership:?}") };
        server.command(&["EVAL", script, "2", owns.key(), "data", owns.proof(), value]).int()
    };
    let (locks, others) =
        (tenure::connect(&server.url("")).await.unwrap(), tenure::connect(&server.url("")).await.unwrap());
    let lock = locks.mutex("job").keep_idle(Duration::from_secs(9));
    let first = lock.acquire().await.unwrap();
    first.release().await.unwrap();
    // Another holder of the same lease, with another token.
    let first = lock.acquire().await.unwrap();
    let former = first.ownership().await.unwrap();
    assert_eq!(write(&former, "first"), 1);
    let waiting = tokio::spawn(async move { others.mutex("job").acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(write(&former, "again"), 1, "one waits, and does not hold");
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert_eq!(write(&former, "late"), 0);
    assert_eq!(write(&second.ownership().await.unwrap(), "second"), 1);
    let shared = locks.semaphore("permits", 2).acquire().await.unwrap();
    let Err(OwnershipError::Store(error)) = shared.ownership().await else { panic!("it has one") };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    second.release().await.unwrap();
}

/// L1, L3: a thousand times a holder reads, stands still, at times past its ttl, and writes what it has computed.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_on_redis() {
    let server = &tenure_testkit::redis::RedisServer::start();
    let script = "if string.sub(redis.call('GET', KEYS[1]) or '', 1, #ARGV[1]) ~= ARGV[1] then return 0 end \
                  redis.call('SET', KEYS[2], ARGV[2]) return 1";
    let number = |data: &str| server.command(&["GET", data]).text().parse::<i64>().unwrap();
    for lock in 0..32 {
        server.command(&["SET", &format!("data-{lock}"), "0"]);
    }
    let processes = join_all((0..4).map(|_| async { tenure::connect(&server.url("")).await.unwrap() })).await;
    let holder = |lock: u64, seat: u64| {
        let (locks, name) = (processes[((lock + seat) % 4) as usize].clone(), format!("count-{lock}"));
        let data = format!("data-{lock}");
        async move {
            let (mut dice, mut done) = (Dice(lock * 2 + seat), 0);
            for round in 0..16 {
                let Some(guard) = stopped_holder(&locks, &name).await else { continue };
                let Ok(ownership) = guard.ownership().await else { continue };
                let Ownership::Redis(owns) = &ownership else { panic!("{ownership:?}") };
                let before = number(&data);
                tokio::time::sleep(dice.millis(if round % 4 == 0 { 900 } else { 20 })).await;
                let after = (before + 1).to_string();
                let call = ["EVAL", script, "2", owns.key(), &data, owns.proof(), &after];
                done += server.command(&call).int();
            }
            done
        }
    };
    let done: i64 =
        join_all((0..32).flat_map(|lock| [holder(lock, 0), holder(lock, 1)])).await.into_iter().sum();
    let counted: i64 = (0..32).map(|lock| number(&format!("data-{lock}"))).sum();
    assert_eq!(counted, done, "updates are lost");
    assert!((100..1024).contains(&counted), "some were refused: {counted}");
}
