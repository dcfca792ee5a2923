//! Hazards of what a server is given: keys that are taken, names, ttls, numbers, and no memory. Numbers: `docs/evidence/schedules.toml`.

use std::time::Duration;

use tenure_core::{BackendError, BreakScope, ErrorKind, Grant, Outcome, Released, Renewal, WaitMode};
use tenure_testkit::{conformance::player::Player, redis::Recipe};

use crate::stage::{
    entry::{claimant, let_in, look, passes, refusal},
    frozen::{Frozen, MINUTE, OURS},
    naive::{FENCE, MINUTE_MS, NAIVE, Naive},
};

/// Takes the lock, and then fails at its counter.
const TAKE_AND_COUNT: &str =
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) return redis.call('INCR', 'naive:fence')";

/// What is beside a lock, by its kind.
fn beside(kind: &str, name: &str) -> String {
    format!("tenure:{{{name}}}:{kind}:{name}")
}

/// The data there are not what we write, and nothing was done.
#[track_caller]
fn is_corrupt(error: &BackendError) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error:?}");
}

/// The name, the ttl or the number cannot be had, and nothing was done.
#[track_caller]
fn is_invalid(error: &BackendError) {
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied), "{error:?}");
}

/// Hazard 30: a script that fails in the middle has taken the lock, and says that it failed. L9.
#[tokio::test]
async fn a_claim_that_fails_in_the_middle_has_taken_nothing() {
    let stage = Frozen::new();
    let [mut a, mut b, _] = stage.naive();
    a.ask(&["SET", FENCE, "no number"]);
    assert!(a.eval(TAKE_AND_COUNT, NAIVE, "a").error().is_some() && b.exists(NAIVE), "a believes it is free");

    let mut failures = 0;
    for kind in ["queue", "places", "shared", "who"] {
        for is_reading in [false, true] {
            let name = format!("{kind} {is_reading}");
            a.ask(&["SET", &beside(kind, &name), "no such thing"]);
            let player = stage.player(&name);
            let player = if is_reading { player.reading() } else { player };
            if let Err(error) = player.backend.claim(&player.claim).await {
                is_corrupt(&error);
                assert!(!b.exists(&name), "{name}");
                failures += 1;
            }
        }
    }
    assert!(failures >= 5, "{failures}");

    let player = stage.player("counted");
    let gate = gate_field(&mut a);
    a.ask(&["HSET", "tenure:one", &gate, "no number"]);
    is_invalid(&refusal(&player).await);
    assert!(!b.exists("counted"));
}

/// The field of the counter.
fn gate_field(a: &mut Naive) -> String {
    let fields = a.ask(&["HKEYS", "tenure:one"]).texts();
    fields.into_iter().find(|field| field.contains('.')).unwrap()
}

/// Hazard 30: a script that fails in the middle has freed the lock, and says that nothing was done. L9.
#[tokio::test]
async fn a_release_or_break_that_fails_in_the_middle_does_not_deny_what_it_did() {
    let stage = Frozen::new();
    let [mut raw, ..] = stage.naive();
    for is_break in [false, true] {
        let name = if is_break { "broken" } else { "released" };
        let (holder, waiter) = (stage.player(name), stage.player(name).waiting(WaitMode::Turn));
        let Grant { name: lock, owner, .. } = holder.enter().await;
        waiter.queue_behind(0).await;
        raw.ask(&["SET", &beside("who", name), "no such thing"]);
        let failed = if is_break {
            holder.backend.break_lock(&lock, BreakScope::Leases).await.err()
        } else {
            holder.backend.release(&lock, owner).await.err()
        };
        let is_held = raw.get(name).is_some_and(|value| value.starts_with(&owner.to_string()));
        let is_denied = failed.as_ref().is_some_and(|error| error.outcome() == Outcome::NotApplied);
        assert_eq!(is_held, is_denied, "{name}: {failed:?}");
    }
}

/// Hazard 36: in a full memory a hand-off that writes before it deletes keeps the lock for good. L6.
#[tokio::test]
async fn a_full_memory_refuses_a_claim_but_no_renewal_and_no_release() {
    let stage = Frozen::new();
    let [mut a, mut raw, _] = stage.naive();
    let hand_on =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], 'next', 'PX', 500) end";
    assert!(a.set_new(NAIVE, "a", MINUTE_MS));
    let (holder, waiter) = (stage.player(OURS), stage.player(OURS).waiting(WaitMode::Turn));
    let grant = holder.enter().await;
    waiter.queue_behind(0).await;

    raw.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(a.eval(hand_on, NAIVE, "a").error().unwrap().starts_with("OOM"));
    assert_eq!(a.get(NAIVE).as_deref(), Some("a"), "a cannot leave");
    assert_eq!(holder.renew(&grant).await, Renewal::Renewed);
    passes(&refusal(&stage.player("another")).await, "full");
    assert_eq!(holder.leave().await, Released::Released);
    assert!(raw.get(OURS).unwrap().starts_with(&waiter.claim.owner.to_string()), "handed on");

    raw.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    waiter.enter().await;
}

/// Hazard 38: a lock has the name of what stands beside another lock, or of data. L4.
#[tokio::test]
async fn no_lock_takes_a_key_that_is_not_its_own() {
    let stage = Frozen::new();
    let [mut a, mut b, mut raw] = stage.naive();
    assert!(a.set_new(NAIVE, "a", MINUTE_MS) && a.mint() == 1);
    stage.end_leases();
    assert!(!b.set_new(FENCE, "b", MINUTE_MS) && b.pttl(FENCE) == -1, "blocked for ever");

    for name in [OURS, "ours:fence", "ours:queue", "ours:who"] {
        stage.player(name).enter().await;
    }
    for name in ["tenure:one", "tenure:{ours}:queue:ours"] {
        let player = stage.player(name);
        is_invalid(&refusal(&player).await);
        is_invalid(&player.backend.release(&player.claim.name, player.claim.owner).await.unwrap_err());
    }

    raw.ask(&["HSET", "data", "field", "kept"]);
    let player = stage.player("data");
    is_corrupt(&refusal(&player).await);
    let error = player.backend.release(&player.claim.name, player.claim.owner).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(raw.ask(&["HGETALL", "data"]).texts(), ["field", "kept"]);

    raw.ask(&["SET", "total", "42"]);
    let player = stage.player("total");
    assert!(!player.try_enter().await);
    assert_eq!(look(&player).await.holders[0].expires_in, None, "a holder without an end is shown as that");
    assert_eq!(player.leave().await, Released::WasGone);
    assert_eq!(raw.get("total").as_deref(), Some("42"));
}

/// Hazard 39: braces in a name put what is beside the lock into another slot of a Cluster.
#[tokio::test]
async fn a_name_with_braces_keeps_its_keys_in_one_slot_or_is_refused() {
    let server = Recipe::new().config("cluster-enabled yes\ncluster-announce-ip 127.0.0.1").start();
    let mut raw = Naive::of(&server);
    raw.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let mut slot = |key: &str| raw.ask(&["CLUSTER", "KEYSLOT", key]).int();
    assert_eq!(slot("{plain}:fence"), slot("plain"));
    for name in ["{user}:a", "a{b}c", "{foo{x}y}", "a}b{c}"] {
        assert_ne!(slot(&format!("{{{name}}}:fence")), slot(name), "elsewhere: {name}");
    }

    let url = format!("redis-cluster://{}", server.address());
    for name in ["plain", "{user}:a", "a{b}c", "{foo{x}y}", "a}b{c}", "open{"] {
        let player = claimant(&url, name);
        let_in(&player).await;
        // Looks at every key there is.
        Player::new(player.backend.clone(), name).queue_behind(0).await;
        assert_eq!(player.leave().await, Released::Released, "{name}");
    }
    for name in ["a}b", "{}", "x{}y", "}"] {
        is_invalid(&refusal(&claimant(&url, name)).await);
    }
}

/// Hazard 40: an extension by nothing deletes the lock and says that it was extended. L5.
#[tokio::test]
async fn a_ttl_of_nothing_or_of_everything_harms_no_lease() {
    let stage = Frozen::new();
    let [mut a, mut raw, _] = stage.naive();
    for ttl_ms in [0, -5] {
        assert!(a.set_new(NAIVE, "a", MINUTE_MS));
        assert!(a.pexpire(NAIVE, ttl_ms) && !raw.exists(NAIVE), "extended, and gone");
    }

    let mut player = stage.player(OURS);
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::from_micros(1500)] {
        player.claim.ttl = ttl;
        player.enter().await;
        assert_eq!(raw.pttl(OURS), 1, "{ttl:?}: an end, and never in the past");
        player.leave().await;
    }
    player.claim.ttl = Duration::MAX;
    is_invalid(&refusal(&player).await);
    assert!(!raw.exists(OURS));

    player.claim.ttl = MINUTE;
    let mut grant = player.enter().await;
    grant.ttl = Duration::ZERO;
    assert_eq!(player.renew(&grant).await, Renewal::Renewed);
    assert_eq!(raw.pttl(OURS), MINUTE_MS, "not shortened");
    grant.ttl = Duration::MAX;
    let error = player.backend.renew(&[grant]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert_eq!(raw.pttl(OURS), MINUTE_MS);
}

/// Hazard 42: numbers of the scripts become texts of 14 digits, and two tokens one. L2.
#[tokio::test]
async fn tokens_keep_all_their_digits() {
    let stage = Frozen::new();
    let [mut a, mut raw, _] = stage.naive();
    let mint = "local t = redis.call('TIME') redis.call('SET', KEYS[1], '' .. t[1] * 1000000 + t[2] + ARGV[1]) \
                return redis.call('GET', KEYS[1])";
    // A hundred counts as one there. Both of these lie at the beginning of the next one.
    let next = 100 - micros(&mut a) % 100;
    let [first, second] = [next + 1, next + 2].map(|n| a.eval(mint, FENCE, &n.to_string()).text());
    assert_eq!(first, second, "two tokens in one");

    let mut last = 0;
    for block in [1, 1, 1, 1000, 1] {
        let mut player = stage.player(OURS);
        player.claim.block = block;
        stage.end_leases();
        let grant = player.enter().await;
        assert_eq!(grant.block, block);
        let token = grant.token.get();
        assert!(token > last, "{token} after {last}");
        last = token + u64::from(grant.block) - 1;
        // The server's time stands, and the token begins with it; a claim that finds more than a free lock mints twice.
        assert!((0..2).contains(&(last - micros(&mut a))), "{token}");
        let value = raw.get(OURS).unwrap();
        assert_eq!(value.split(':').nth(1), Some(&*last.to_string()), "{value}");
        assert_eq!(look(&player).await.fence.get(), last);
        player.leave().await;
    }
    let next = stage.player(OURS).enter().await;
    assert_eq!(next.token.get(), last + 1, "while the time stands, one after the other");
}

fn micros(a: &mut Naive) -> u64 {
    let time =
        a.eval("local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])", FENCE, "").text();
    time.parse().unwrap()
}
