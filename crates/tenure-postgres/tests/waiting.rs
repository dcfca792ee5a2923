//! Waiters are told, and do not ask: what they cost the server, and what becomes of hints when connections end.

use std::time::{Duration, Instant};

use tenure::{AcquireError, Lock};
use tenure_core::{Audience, BreakScope, ErrorKind, WakeEvent};
use tenure_testkit::{
    conformance::player::Player,
    patience::slowness,
    postgres::{Pgbouncer, PostgresServer},
    proxy::Proxy,
};

use crate::stage::{PATIENCE, player, postgres, soon, until};

fn commits(server: &PostgresServer) -> u64 {
    server.psql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'tenure'").parse().unwrap()
}

/// NOTIFY, not polling, L6: a waiter asks every 2 s, for safety, and its question is a reading; of one process the first few ask.
#[tokio::test]
async fn a_hundred_idle_waiters_of_a_process_cost_a_few_statements_a_second() {
    let server = PostgresServer::start();
    let locker = tenure::connect(&server.url("")).await.unwrap();
    // A writer's lock: of a mutex only one waiter of a process has a place.
    let lock = locker.rwlock("one").write();
    let held = lock.acquire().await.unwrap();
    let wait = |lock: Lock| async move { drop(lock.acquire().await) };
    let waiters: Vec<_> = (0..100).map(|_| tokio::spawn(wait(lock.clone()))).collect();
    let view = postgres(&server.url(""));
    let name = "one".parse().unwrap();
    until("all wait", async || view.inspect(&name).await.unwrap().queue.len() == 8).await;
    // The server counts with a delay of up to a second, and so does its count of what came before.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (from, begun) = (commits(&server), Instant::now());
    tokio::time::sleep(Duration::from_secs(8)).await;
    let per_second = (commits(&server) - from) as f64 / begun.elapsed().as_secs_f64();
    println!("100 idle waiters: {per_second:.0} statements a second");
    // Eight that ask every 2 s; a poll of 25 ms would be 4000.
    assert!(per_second < 30.0, "{per_second}");
    // Two a second, however long a busy machine takes for them. Each look of ours is counted as well, twice at most.
    let mut ours = 2;
    until("places are kept", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ours += 2;
        commits(&server) > from + 16 + ours
    })
    .await;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await.unwrap();
}

/// Hazard 31: a waiter listens before it asks; the hint comes with the commit that makes it holder.
#[tokio::test]
async fn a_waiter_elsewhere_is_told_at_once() {
    let server = PostgresServer::start();
    let (a, b) = (player(&server.url(""), "one"), postgres(&server.url("")));
    a.enter().await;
    let waiter = Player::new(b.clone(), "one");
    let mut wakes = b.wakes(waiter.claim.owner.process(), Audience::Waiters);
    waiter.queue_behind(0).await;
    a.leave().await;
    assert_eq!(soon(wakes.next()).await, WakeEvent::Owner(waiter.claim.owner));
    waiter.enter().await;
}

/// A process that only waits notices that its connection ended, says that hints may have been missed, and listens again.
#[tokio::test]
async fn who_only_listens_notices_that_its_connection_ended() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port(), 3);
    let url = format!(
        "postgres://tenure@127.0.0.1:{}/tenure?listen=postgres://tenure@127.0.0.1:{}/tenure",
        proxy.port(),
        proxy.port()
    );
    let (a, b) = (player(&server.url(""), "one"), postgres(&url));
    let grant = b.claim(&Player::new(b.clone(), "one").claim).await;
    let tenure_core::ClaimAnswer::Granted(grant) = grant.unwrap() else { panic!("granted") };
    let mut wakes = b.wakes(grant.owner.process(), Audience::Holders);
    let listening = async || {
        // A hint for somebody else makes it listen, and none comes.
        let _ = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await;
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") != "0"
    };
    until("it listens", listening).await;
    proxy.cut();
    proxy.heal();
    assert_eq!(soon(wakes.next()).await, WakeEvent::All);
    let mut hint = tokio::spawn(async move {
        // That hints may have been missed is said again for each connection that ended.
        while wakes.next().await == WakeEvent::All {}
    });
    until("it listens again", async || {
        assert!(!hint.is_finished(), "nobody was robbed yet");
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == "1"
    })
    .await;
    a.backend.break_lock(&grant.name, BreakScope::Leases).await.unwrap();
    soon(&mut hint).await.unwrap();
}

/// Somebody between us and the server is noticed, and past it there are hints.
#[tokio::test]
async fn hints_go_past_the_pooler() {
    let server = PostgresServer::start();
    let pooler = Pgbouncer::before(&server);
    let plain = postgres(&pooler.url("")).diagnose().await.unwrap();
    assert!(plain.iter().any(|finding| finding.what.contains("LISTEN/NOTIFY does not work")), "{plain:?}");
    let direct = pooler.url(&format!("?listen={}", server.url("")));
    let past = postgres(&direct).diagnose().await.unwrap();
    assert!(!past.iter().any(|finding| finding.what.contains("hints")), "{past:?}");
    let locker = tenure::connect(&direct).await.unwrap();
    let other = tenure::connect(&direct).await.unwrap();
    let held = locker.mutex("one").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("one").acquire().await.unwrap() });
    let view = postgres(&server.url(""));
    let name = "one".parse().unwrap();
    until("it waits", async || view.inspect(&name).await.unwrap().queue.len() == 1).await;
    let begun = Instant::now();
    held.release().await.unwrap();
    let second = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(
        begun.elapsed() < Duration::from_millis(1500) * slowness(),
        "told, not found out: {:?}",
        begun.elapsed()
    );
    second.release().await.unwrap();
}

/// L6: a fail-over that was planned set the server to read only for a fraction of a second, and every waiter ended with an error of
/// somebody who lacks a right. A server that is starting was waited for.
#[tokio::test]
async fn a_moment_of_read_only_is_waited_out() {
    let server = PostgresServer::start();
    let holder = tenure::connect(&server.url("")).await.unwrap();
    let held = holder.mutex("one").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let set = |value: &str| {
        server.psql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        server.psql("SELECT pg_reload_conf()");
    };
    let early = tenure::connect(&server.url("")).await.unwrap().mutex("one");
    let waits = tokio::spawn(async move { early.within(PATIENCE * slowness()).acquire().await });
    let view = postgres(&server.url(""));
    let name = "one".parse().unwrap();
    until("it waits", async || view.inspect(&name).await.unwrap().queue.len() == 1).await;
    set("on");
    // Those who come meanwhile wait too, in a queue or for the server.
    let late = tenure::connect(&server.url("")).await.unwrap();
    until("writes are refused", async || match late.mutex("two").try_acquire().await {
        Err(AcquireError::Store(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            true
        }
        _ => false,
    })
    .await;
    let newcomer =
        tokio::spawn(async move { late.mutex("two").within(PATIENCE * slowness()).acquire().await });
    // Longer than until the first waiter asks again.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!waits.is_finished() && !newcomer.is_finished(), "both wait");
    held.check().unwrap();
    set("off");
    drop(soon(newcomer).await.unwrap().unwrap());
    until("what is held can be given back", async || holder.mutex("three").try_acquire().await.is_ok()).await;
    held.release().await.unwrap();
    drop(soon(waits).await.unwrap().unwrap());
}

/// The same for good: whoever waits is told after its patience, why.
#[tokio::test]
async fn a_server_that_stays_read_only_is_not_waited_for_for_ever() {
    let server = PostgresServer::start();
    server.psql("ALTER ROLE tenure SET default_transaction_read_only = on");
    let lock = tenure::connect(&server.url("")).await.unwrap().mutex("one").patience(Duration::from_secs(1));
    let error = soon(lock.acquire()).await.unwrap_err();
    let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(text.contains("default_transaction_read_only is on"), "{error:?}");
}
