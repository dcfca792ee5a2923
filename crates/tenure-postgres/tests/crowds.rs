//! Many waiters for one lock: waiting is reading, and what a change of owner writes does not grow with those who wait (L6).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use tenure_core::{ClaimAnswer, LockName, Released};
use tenure_testkit::{
    conformance::player::Player,
    patience::slowness,
    postgres::{PostgresServer, Recipe},
};

use crate::stage::{self, PATIENCE, player, postgres, soon, until};

fn version(server: &PostgresServer) -> String {
    server.psql("SELECT version FROM tenure_lock WHERE name = 'one'")
}

/// L6: every question of every waiter wrote the whole queue anew, as text, and the holder's renewals raced all of them for the row. A
/// place that lasts is asked for by a reading alone.
#[tokio::test]
async fn a_waiter_that_asks_again_writes_nothing() {
    let server = PostgresServer::start();
    let (a, b) = (player(&server.url(""), "one"), player(&server.url(""), "one"));
    a.enter().await;
    b.queue_behind(0).await;
    let before = version(&server);
    for _ in 0..5 {
        b.queue_behind(0).await;
    }
    assert_eq!(version(&server), before, "the row is as it was");
    assert_eq!(a.leave().await, Released::Released);
    assert!(stage::enter_in_time(&b).await.token.get() > 0);
}

/// L6, L7: the row had a place for each waiter of a process, and each change of owner wrote all of them. Now the first few have
/// places, the others stand behind them, and all are served in the order in which they came, but for those who come to the front at one moment.
#[tokio::test]
async fn the_row_has_the_first_waiters_of_a_process_and_none_is_passed_by_many() {
    const COUNT: usize = 60;
    let server = PostgresServer::start();
    // On a slow machine nobody loses its turn for that.
    let locker = tenure::connect(&server.url("?claim_ttl=6s")).await.unwrap();
    // A writer's lock: of a mutex only one waiter of a process has a place.
    let lock = locker.rwlock("one").write();
    let held = lock.acquire().await.unwrap();
    let (view, name) = (postgres(&server.url("")), LockName::new("one").unwrap());
    let served = Arc::new(AtomicUsize::new(0));
    let mut waiters = Vec::new();
    for n in 0..COUNT {
        let (lock, served) = (lock.clone(), served.clone());
        waiters.push(tokio::spawn(async move {
            let guard = lock.within(PATIENCE * slowness()).acquire().await.unwrap();
            let at = served.fetch_add(1, Ordering::SeqCst);
            guard.release().await.unwrap();
            (n, at)
        }));
        // So that they come in this order.
        if n < 8 {
            until("it waits", async || view.inspect(&name).await.unwrap().queue.len() == n + 1).await;
        }
        tokio::task::yield_now().await;
    }
    until("those in front wait", async || view.inspect(&name).await.unwrap().queue.len() == 8).await;
    // One that goes makes room for the next one.
    waiters.remove(3).abort();
    until("another one has its place", async || {
        let queue = view.inspect(&name).await.unwrap().queue;
        queue.len() == 8
    })
    .await;
    held.release().await.unwrap();
    for waiter in waiters {
        let (n, at) = soon(waiter).await.unwrap();
        assert!(n.abs_diff(at) <= 9, "{n} was served as number {at}");
    }
    assert_eq!(served.load(Ordering::SeqCst), COUNT - 1);
    until("nobody is left", async || view.inspect(&name).await.unwrap().queue.is_empty()).await;
}

/// L6: all that came at once raced each other for the row, each reading it again after each race that it lost.
#[tokio::test]
async fn many_processes_that_come_at_once_all_get_a_place() {
    const COUNT: usize = 150;
    let server = Recipe::new().config("max_connections = 400").start();
    let a = player(&server.url(""), "one");
    let players: Vec<Player> = (0..COUNT).map(|_| player(&server.url(""), "one")).collect();
    // Connected already, so that all come at once.
    for player in &players {
        player.backend.inspect(&player.claim.name).await.unwrap();
    }
    // Only now: on a slow machine the connections take longer than a lease.
    let grant = a.enter().await;
    let (answers, renewed) = tokio::join!(
        join_all(players.iter().map(|player| player.backend.claim(&player.claim))),
        a.renew(&grant)
    );
    assert_eq!(renewed, tenure_core::Renewal::Renewed, "the holder comes first");
    for answer in answers {
        assert!(matches!(answer, Ok(ClaimAnswer::Queued { .. })), "{answer:?}");
    }
}

/// Whoever stands behind the queue hears what those in it hear: a server that is down is told to all of them at once. Who stands behind
/// in its process: `a_store_that_is_down_is_down_for_those_behind` and `a_wait_in_the_line_ends_in_time` in `crates/tenure/tests/lines.rs`.
#[tokio::test]
async fn those_behind_are_told_when_the_server_is_down() {
    let server = PostgresServer::start();
    let a = player(&server.url(""), "one");
    a.enter().await;
    let backend = postgres(&server.url(""));
    let players: Vec<Player> = (0..12).map(|_| Player::new(backend.clone(), "one")).collect();
    for (n, player) in players.iter().enumerate() {
        player.queue_behind(n).await;
    }
    server.kill();
    for player in &players {
        let error = soon(player.backend.claim(&player.claim)).await.unwrap_err();
        assert!(error.kind().is_transient(), "{error:?}");
    }
}
