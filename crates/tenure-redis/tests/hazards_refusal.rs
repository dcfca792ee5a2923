//! Hazards of a server that cannot serve for a while: stopped, loading, busy, demoted, stepped back. Numbers: `docs/evidence/schedules.toml`.

use std::time::{Duration, Instant};

use tenure_core::{ClaimAnswer, ErrorKind, Outcome, Released, Renewal};
use tenure_testkit::{
    clock::Clock,
    patience::eventually,
    redis::{Recipe, RedisServer, Reply},
};

use crate::stage::{
    entry::{SHORT, claimant, let_in, look, passes, refusal},
    naive::{MINUTE_MS, NAIVE, Naive},
    pair::promote,
};

const OURS: &str = "ours";
const PATIENCE: Duration = Duration::from_secs(10);

/// How far the clock steps back.
const BACK: Duration = Duration::from_secs(120);

/// Naive: a token from the clock alone.
fn stamp(naive: &mut Naive) -> i64 {
    let [seconds, micros] = <[String; 2]>::try_from(naive.ask(&["TIME"]).texts()).unwrap();
    seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap()
}

fn step_back(clock: &Clock) {
    clock.step(-i64::try_from(BACK.as_millis()).unwrap());
}

/// Hazard 19: the server's clock steps back; leases last longer, and a token that is a time is smaller. L2.
#[tokio::test]
async fn a_step_back_of_the_clock_makes_no_token_smaller() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let mut naive = Naive::of(&server);
    let [mut a, b] = [(); 2].map(|()| claimant(&server.url("?guard=off"), OURS));
    a.claim.ttl = Duration::from_millis(500);
    let before = stamp(&mut naive);
    assert!(naive.set_new(NAIVE, "a", 500));
    let first = a.enter().await;

    step_back(&clock);
    assert!(stamp(&mut naive) < before, "the next token is smaller");
    for lock in [NAIVE, OURS] {
        assert!(naive.pttl(lock) > 100_000, "{lock}: it costs waiting, ours too");
    }
    assert!(!b.try_enter().await);
    assert_eq!(a.leave().await, Released::Released);
    assert!(b.enter().await.token > first.token);
}

/// Hazard 19: a wait is counted by the clock that steps back, here to before the server's start. L6.
#[tokio::test]
async fn a_step_back_of_the_clock_makes_no_wait_longer_than_one_more() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let [a, b] = [(); 2].map(|()| claimant(&server.url(SHORT), OURS));
    passes(&refusal(&a).await, "is new to Tenure");
    let until = stamp(&mut Naive::of(&server)) + 3_000_000;

    step_back(&clock);
    assert!(
        until - stamp(&mut Naive::of(&server)) > 100_000_000,
        "who waits for that moment waits for two minutes"
    );
    let began = Instant::now();
    let_in(&b).await;
    assert!(began.elapsed() < BACK / 10);
    a.backend.release(&a.claim.name, a.claim.owner).await.unwrap();
}

/// Hazard 60: a server that is stopped past the ttl answers late: one is let in while the old holder hears nothing. L1.
#[tokio::test]
async fn who_is_let_in_by_a_server_that_stood_still_is_let_in_after_the_lease() {
    let server = RedisServer::start();
    let (mut a, mut b) = (Naive::of(&server), Naive::of(&server));
    let [mut first, mut second] =
        [(); 2].map(|()| claimant(&server.url("?guard=off&response_timeout=10s"), OURS));
    (first.claim.ttl, second.claim.ttl) = (Duration::from_millis(300), Duration::from_secs(60));
    look(&second).await;
    assert!(a.set_new(NAIVE, "a", 300));
    let lost = first.enter().await;
    // Redis keeps a key for a millisecond more.
    let until = Instant::now() + lost.ttl + Duration::from_millis(20);

    server.stop();
    b.send(&["SET", NAIVE, "b", "NX", "PX", "60000"]);
    let resumed = async {
        tokio::time::sleep_until(until.into()).await;
        server.resume();
    };
    let (answer, ()) = tokio::join!(second.ask(), resumed);
    assert_eq!(b.read(), Reply::Text("OK".into()), "it was asked during a's lease");
    assert!(a.pexpire(NAIVE, 300), "a, whom nobody told anything, is told that it holds, beside b");

    let ClaimAnswer::Granted(grant) = answer else { panic!("{answer:?}") };
    assert!(grant.token > lost.token);
    assert_eq!(first.renew(&lost).await, Renewal::Gone);
    assert_eq!(second.renew(&grant).await, Renewal::Renewed);
}

/// Hazard 60: who has no patience until then has perhaps been let in; taken for a no, it waits for itself. L9.
#[tokio::test]
async fn who_gave_up_on_a_server_that_stood_still_finds_what_it_has() {
    let server = RedisServer::start();
    let mut a = Naive::of(&server);
    let player = claimant(&server.url("?guard=off"), OURS);
    player.enter().await;
    player.leave().await;

    server.stop();
    a.send(&["SET", NAIVE, "a", "NX", "PX", "60000"]);
    let error = refusal(&player).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::TimedOut, Outcome::Unknown), "{error:?}");
    server.resume();
    assert!(!Naive::of(&server).set_new(NAIVE, "a", MINUTE_MS), "a waits for itself");
    eventually("what it asked is done", PATIENCE, || {
        (server.command(&["EXISTS", OURS]).int() == 1).then_some(())
    });
    player.enter().await;
    assert!(!claimant(&server.url("?guard=off"), OURS).try_enter().await);
}

/// The connections of ours; a naive client speaks RESP2.
fn connections(server: &RedisServer) -> Vec<String> {
    let clients = server.command(&["CLIENT", "LIST"]).text();
    let ours = clients.lines().filter(|line| line.contains(" resp=3"));
    ours.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Hazard 62: a master became a replica: naively, its refusal is a lock that is held, or a release that was done. L9.
#[tokio::test]
async fn a_refusal_by_a_demoted_master_is_no_answer() {
    let server = RedisServer::start();
    let mut naive = Naive::of(&server);
    let [a, b] = [OURS, "free"].map(|name| claimant(&server.url("?guard=off"), name));
    let grant = a.enter().await;
    look(&b).await;
    let before = connections(&server);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);

    assert!(!naive.set_new(NAIVE, "a", MINUTE_MS) && !naive.exists(NAIVE), "held, and by nobody");
    passes(&refusal(&b).await, "is a replica");
    passes(&a.backend.release(&grant.name, grant.owner).await.unwrap_err(), "is a replica");
    passes(&refusal(&b).await, "is a replica");
    promote(&server);
    assert!(naive.get(OURS).unwrap().starts_with(&a.claim.owner.to_string()), "it was not released");
    assert_eq!(a.leave().await, Released::Released);
    b.enter().await;
    let after = connections(&server);
    assert!(after.len() == 2 && after.iter().all(|id| !before.contains(id)), "{before:?} {after:?}");
}

/// Hazard 62: a server that loads its data refuses; what it has is known only afterwards. L1, L9.
#[tokio::test]
async fn a_refusal_by_a_server_that_loads_is_no_answer() {
    let server = Recipe::new().args(&["--enable-debug-command", "yes"]).start();
    let (mut naive, mut other) = (Naive::of(&server), Naive::of(&server));
    let [mut a, b] = [(); 2].map(|()| claimant(&server.url("?guard=off"), OURS));
    a.claim.ttl = Duration::from_secs(60);
    let grant = a.enter().await;
    look(&b).await;
    let before = connections(&server);
    naive.ask(&["DEBUG", "POPULATE", "2000"]);
    naive.ask(&["CONFIG", "SET", "key-load-delay", "500"]);
    naive.ask(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);

    naive.send(&["DEBUG", "RELOAD"]);
    let loads = |answer: Reply| answer.error().is_some_and(|error| error.starts_with("LOADING"));
    eventually("it loads", PATIENCE, || loads(other.ask(&["GET", OURS])).then_some(()));
    assert!(!other.set_new(NAIVE, "b", MINUTE_MS), "held, and by nobody");
    passes(&refusal(&b).await, "loading");
    passes(&refusal(&claimant(&server.url("?guard=off"), OURS)).await, "loading");
    passes(&a.backend.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err(), "loading");
    assert!(loads(other.ask(&["GET", OURS])), "it was loading all the time");

    assert_eq!(naive.read(), Reply::Text("OK".into()));
    assert!(!b.try_enter().await, "it has not forgotten the lock");
    assert_eq!(a.renew(&grant).await, Renewal::Renewed);
    let after = connections(&server);
    assert!(after.len() == 2 && after.iter().all(|id| !before.contains(id)), "{before:?} {after:?}");
}

/// Hazard 62: somebody's script holds the server up: naively, its refusal is a lock that is held. L9.
#[tokio::test]
async fn a_refusal_by_a_server_that_is_busy_is_no_answer() {
    let server = Recipe::new().config("lua-time-limit 20").start();
    let (mut naive, mut other) = (Naive::of(&server), Naive::of(&server));
    let [a, b] = [(); 2].map(|()| claimant(&server.url("?guard=off"), OURS));
    let grant = a.enter().await;
    look(&b).await;
    naive.send(&["EVAL", "while true do end", "0"]);
    let is_busy = |answer: Reply| answer.error().is_some_and(|error| error.starts_with("BUSY"));
    eventually("it is busy", PATIENCE, || is_busy(other.ask(&["GET", OURS])).then_some(()));

    assert!(!other.set_new(NAIVE, "b", MINUTE_MS), "held, and by nobody");
    passes(&refusal(&b).await, "busy");
    passes(&refusal(&claimant(&server.url("?guard=off"), OURS)).await, "busy");
    passes(&a.backend.release(&grant.name, grant.owner).await.unwrap_err(), "busy");
    other.ask(&["SCRIPT", "KILL"]);
    assert!(naive.read().error().is_some());
    assert_eq!(a.leave().await, Released::Released);
    b.enter().await;
}
