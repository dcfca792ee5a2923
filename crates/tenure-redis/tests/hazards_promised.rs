//! Hazards that no lock on one Redis survives: what is promised instead, and that it holds. Numbers: `docs/evidence/schedules.toml`.

use std::time::{Duration, Instant};

use tenure_core::{FencingToken, Released, Renewal};
use tenure_testkit::{
    clock::Clock,
    patience::eventually,
    proxy::Proxy,
    redis::{Recipe, RedisServer},
};

use crate::stage::{
    Clocked,
    entry::{LEASE, SHORT, claimant, let_in, look, passes},
    frozen::{Frozen, OURS},
    naive::{FENCE, MINUTE_MS, NAIVE, Naive},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// A resource that keeps the rule of L3: it refuses a token that is smaller than one it has seen.
#[derive(Default)]
struct Resource {
    seen: Option<FencingToken>,
    text: &'static str,
}

impl Resource {
    fn write(&mut self, token: FencingToken, text: &'static str) -> bool {
        let is_allowed = self.seen.is_none_or(|seen| seen <= token);
        if is_allowed {
            (self.seen, self.text) = (Some(token), text);
        }
        is_allowed
    }
}

/// Hazard 17: a claim that was held up on its way arrives when its client has released and gone. L8, and not more.
#[tokio::test]
async fn a_late_claim_of_somebody_who_left_blocks_for_one_ttl_and_not_longer() {
    let stage = Frozen::new();
    let [mut a, mut b, mut raw] = stage.naive();
    assert!(a.setnx(NAIVE, "a") && a.pexpire(NAIVE, MINUTE_MS) && a.release(NAIVE, "a"));
    assert!(a.setnx(NAIVE, "a"), "the first try arrives, and nobody is there to give it an end");
    stage.end_leases();
    assert!(!b.setnx(NAIVE, "b"), "blocked for ever");

    let network = Proxy::to(stage.server().port(), 0);
    let url = format!("redis://127.0.0.1:{}/?guard=off", network.port());
    let (mut a, b) = (claimant(&url, OURS), stage.player(OURS));
    a.claim.ttl = b.claim.ttl;
    look(&a).await;
    // The server must know the script, or nothing but its hash arrives.
    b.enter().await;
    b.leave().await;
    network.hold_requests();
    network.pass_new();
    assert!(
        a.backend.claim(&a.claim).await.is_err(),
        "it heard nothing, and asks again over a new connection"
    );
    let first = a.enter().await;
    assert_eq!(a.leave().await, Released::Released);
    network.release();
    eventually("the first try arrives", PATIENCE, || raw.exists(OURS).then_some(()));
    assert!(!b.try_enter().await && (1..=MINUTE_MS).contains(&raw.pttl(OURS)), "blocked for one ttl");
    stage.end_leases();
    assert!(b.enter().await.token > first.token);
}

/// Hazard 18: the server's clock steps forward, and leases end early (A2 is broken). L2, L3, and not L1.
#[tokio::test]
async fn after_a_step_forward_of_the_clock_the_resource_refuses_the_first_holder() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    let [first, second, _] = stage.ours();
    let early = let_in(&first).await;
    stage.end_leases();
    assert!(b.set_new(NAIVE, "b", MINUTE_MS), "b is in beside a, and nothing tells them apart");

    let late = let_in(&second).await;
    late.is_beside(&early);
    let mut resource = Resource::default();
    assert!(resource.write(early.grant.token, "first") && resource.write(late.grant.token, "second"));
    assert!(!resource.write(early.grant.token, "first, late") && resource.text == "second");
    assert_eq!(first.renew(&early.grant).await, Renewal::Gone, "and it is told");
}

/// Makes room for one byte: everything goes that the policy lets go.
fn evict(server: &RedisServer, policy: &str, gone: &[&str]) {
    server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let is_gone = |key: &&str| server.command(&["EXISTS", key]).int() == 0;
    eventually("it is evicted", PATIENCE, || gone.iter().all(is_gone).then_some(()));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// Hazard 35: the server throws the lock away to save space, and its counter (A4 is broken). With the record of the
/// guard L1 and L2 hold; where the policy spares that, L2 only. `tenure doctor` warns of either policy.
#[tokio::test]
async fn an_eviction_that_takes_the_record_closes_the_gate_and_one_that_spares_it_leaves_the_token() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    clock.advance(Duration::from_secs(30));
    let mut naive = Naive::of(&server);
    let [a, b, c] = [(); 3].map(|()| claimant(&server.url(SHORT), OURS));
    look(&b).await;
    assert!(naive.set_new(NAIVE, "a", MINUTE_MS) && naive.mint() == 1);
    let first = let_in(&a).await;
    evict(&server, "allkeys-lru", &[NAIVE, FENCE, OURS, "tenure:one"]);
    assert!(
        naive.set_new(NAIVE, "b", MINUTE_MS) && naive.mint() == 1,
        "b is in beside a, with the same token"
    );
    let second = let_in(&b).await;
    second.is_after(&first, "it grants no locks for another");

    evict(&server, "volatile-lru", &[NAIVE, OURS]);
    assert!(naive.exists("tenure:one") && naive.exists(FENCE), "they have no end");
    let_in(&c).await.is_beside(&second);
    assert_eq!(b.renew(&second.grant).await, Renewal::Gone);
}

/// Hazard 64: a foreign lock lasts longer than `max_ttl`, and the server forgets it (A7). It is waited for as long as it
/// is there, and after a restart for `max_ttl`: one that is no longer than that loses nothing.
#[tokio::test]
async fn a_foreign_lock_that_a_server_forgot_is_waited_for_no_longer_than_max_ttl() {
    let Clocked { server, .. } = Clocked::new();
    server.has_waited("tenure:one", "guard=on max_ttl=1s");
    let mut foreign = Naive::of(&server);
    let [long, short] = ["long", "short"].map(|name| claimant(&server.url(SHORT), name));
    assert!(foreign.set_new("long", "foreign", 3_600_000) && foreign.set_new("short", "foreign", 1000));
    let short_until = Instant::now() + LEASE;
    assert!(!long.try_enter().await);
    let holder = look(&long).await.holders.remove(0);
    assert!(holder.token.is_none() && holder.expires_in.unwrap() > Duration::from_secs(3500));

    server.kill();
    server.start_again();
    assert!(Naive::of(&server).set_new(NAIVE, "b", MINUTE_MS), "who asks no guard is in at once");
    let entry = let_in(&short).await;
    assert!(entry.asked >= short_until, "that of a second is over");
    passes(entry.refusals()[0], "is new to Tenure");
    let grant = let_in(&long).await.grant;
    assert!(
        !Naive::of(&server).release("long", "foreign"),
        "that of an hour is not, but it does not touch ours"
    );
    assert_eq!(long.renew(&grant).await, Renewal::Renewed);
}
