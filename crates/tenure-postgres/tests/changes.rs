//! What a change of owner costs the server: a few statements, however many processes wait (L6).

use std::time::{Duration, Instant};

use tenure::Locker;
use tenure_testkit::{
    patience::slowness,
    postgres::{PostgresServer, Recipe},
};

use crate::stage::{PATIENCE, statements, until};

/// A server that writes down every statement, with room for many processes.
fn roomy() -> PostgresServer {
    Recipe::new().config("log_statement = all").config("max_connections = 600").start()
}

/// As many processes as this, as far as the server can tell. On a slow machine nobody loses its turn for that.
async fn processes(server: &PostgresServer, count: usize) -> Vec<Locker> {
    let mut lockers = Vec::new();
    for _ in 0..count {
        lockers.push(tenure::connect(&server.url("?claim_ttl=6s")).await.unwrap());
    }
    lockers
}

async fn enter_and_leave(locker: Locker, times: usize) {
    for _ in 0..times {
        let guard = locker.mutex("one").within(PATIENCE * 2 * slowness()).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Statements on rows, without those that each new connection begins with.
fn asked(server: &PostgresServer) -> usize {
    let is_counted = |line: &&String| line.contains(" execute ") && !line.contains("inet_client_port");
    statements(server).iter().filter(is_counted).count()
}

/// Each place has this once, in the row of the lock or behind it.
const WAITING: &str =
    "SELECT coalesce(sum(length(state) - length(replace(state, '\"turn\":', ''))) / 7, 0) FROM tenure_lock";

/// What one waiter costs, from its first question to its release, when `count` processes come and wait; and how long all of them took.
async fn for_each_of(count: usize) -> (f64, Duration) {
    let began = Instant::now();
    let server = roomy();
    let holder = processes(&server, 1).await.remove(0);
    let held = holder.mutex("one").acquire().await.unwrap();
    let before = asked(&server);
    let waiters = processes(&server, count).await.into_iter();
    let waiters: Vec<_> = waiters.map(|locker| tokio::spawn(enter_and_leave(locker, 1))).collect();
    until("all wait", async || server.psql(WAITING) == count.to_string()).await;
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    ((asked(&server) - before) as f64 / count as f64, began.elapsed())
}

/// L6: each waiter wrote its place into the row of the lock, and read it again after each race that it lost to the others who did so: of
/// 100 processes that came at once not all had a place after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_costs_a_few_statements_however_many_processes_wait() {
    for count in [2, 16, 100] {
        let (each, took) = for_each_of(count).await;
        println!("{count} waiting processes: {each:.1} statements for each");
        // A waiter asks again every 2 s, which on a busy machine it may have to.
        let most = 8.0 + took.as_secs_f64() / 2.0;
        assert!(each < most, "{count} waiting processes: {each:.1} in {took:?}");
    }
}

/// L6: the same where those who were let in come again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_come_again_and_again_do_not_race_each_other() {
    for count in [2, 16, 50] {
        let server = roomy();
        let lockers = processes(&server, count).await.into_iter();
        let workers: Vec<_> = lockers.map(|locker| tokio::spawn(enter_and_leave(locker, 10))).collect();
        for worker in workers {
            worker.await.unwrap();
        }
        let each = asked(&server) as f64 / (10 * count) as f64;
        println!("{count} processes that come again: {each:.1} statements for each change of owner");
        assert!(each < 7.0, "{count} processes: {each:.1}");
    }
}
