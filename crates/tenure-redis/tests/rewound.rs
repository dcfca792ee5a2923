//! A server that is put back to an earlier state under the same run and history, and counters at their end.

use std::time::Duration;

use tenure_core::{BackendHandle, BreakScope, ErrorKind, FencingToken, Outcome, Renewal, WaitMode};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    redis::{Cluster, Recipe, RedisServer, Reply},
};

use crate::stage::{
    Clocked,
    entry::{let_in, look, refusal},
    node, redis,
};

const UNGUARDED: &str = "?guard=off";

fn with_debug() -> Recipe {
    Recipe::new().args(&["--enable-debug-command", "yes"])
}

/// The field of the record that is there while the gate is open.
fn gate(server: &RedisServer, record: &str) -> String {
    let fields = server.command(&["HKEYS", record]).texts();
    fields.into_iter().find(|field| field.contains("guard=")).expect("the gate is open")
}

/// As a snapshot that is resumed: run id and history are the same.
fn put_back(server: &RedisServer) {
    server.command(&["DEBUG", "RELOAD", "NOSAVE"]);
}

/// L2: a snapshot that was resumed, or `DEBUG RELOAD`, has the same run id and the same history, so that nothing was judged anew,
/// and the counter of the snapshot went on: the same token was granted twice, to two holders.
#[tokio::test]
async fn a_server_that_was_put_back_repeats_no_token() {
    let server = with_debug().start();
    let claimant = |name| Player::new(redis(&server.url(UNGUARDED)), name);
    claimant("warm").enter().await;
    server.command(&["SAVE"]);
    let forgotten = [claimant("job").enter().await, claimant("data").reading().enter().await];
    put_back(&server);
    assert_eq!(look(&claimant("job")).await.holders, []);
    let after = [claimant("job").enter().await, claimant("data").reading().enter().await];
    for (before, after) in forgotten.iter().zip(after) {
        assert!(after.token > before.token, "{} and then {}", before.token, after.token);
    }
}

/// L2: the same of a node of a quorum, where each lock has its own counter. Nodes must count alike, so they are floored with
/// whole tenths of a second, which nothing that puts a server back is faster than.
#[tokio::test]
async fn a_node_that_was_put_back_repeats_no_token() {
    let Clocked { clock, server } = Clocked::with(with_debug());
    let claimant = || Player::new(node(&server.url(UNGUARDED), 3), "job").waiting(WaitMode::Wake);
    let began = Duration::from_millis(1_800_000_000_000);
    clock.freeze_at(began);
    let first = claimant();
    first.enter().await;
    first.leave().await;
    server.command(&["SAVE"]);
    clock.freeze_at(began + Duration::from_secs(5));
    let before = claimant().enter().await.token;
    put_back(&server);
    clock.freeze_at(began + Duration::from_millis(5100));
    server.command(&["DEL", "job"]);
    let after = claimant().enter().await.token;
    assert!(after > before, "{before} and then {after}");
}

/// L1: nobody noticed that a server had been put back and had forgotten leases: the next newcomer was let in beside their
/// holders. A client that knows a larger token than the counter closes the gate, for everybody, by its next claim or renewal.
#[tokio::test]
async fn who_knows_a_larger_token_closes_the_gate() {
    for is_renewing in [true, false] {
        let server = with_debug().start();
        let url = server.url("?max_ttl=3s");
        let claimant = |handle: &BackendHandle, name: &str| {
            let mut player = Player::new(handle.clone(), name).waiting(WaitMode::No);
            player.claim.ttl = Duration::from_secs(3);
            player
        };
        let (old, new) = (redis(&url), redis(&url));
        let_in(&claimant(&old, "warm")).await;
        let_in(&claimant(&new, "other")).await;
        server.command(&["SAVE"]);
        let grant = claimant(&old, "job").enter().await;
        put_back(&server);
        if is_renewing {
            let renewed = old.renew(std::slice::from_ref(&grant)).await.remove(0);
            assert_eq!(renewed.unwrap(), Renewal::Gone, "the server has forgotten it");
        } else {
            // A plain claim, and one that looks at everything.
            assert_refused(&claimant(&old, "more").reading()).await;
            assert_refused(&claimant(&old, "more")).await;
        }
        let newcomer = claimant(&new, "job");
        assert_refused(&newcomer).await;
        let_in(&newcomer).await;
        let after = newcomer.enter().await;
        assert!(after.token > grant.token, "{} and then {}", grant.token, after.token);
    }
}

async fn assert_refused(player: &Player) {
    let error = refusal(player).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.retry_hint().is_some(), "it says when: {error}");
}

/// L1: as long as a server was not put back, no gate is closed: neither by a block, nor by what another process was granted,
/// nor by a break.
#[tokio::test]
async fn a_server_that_was_not_put_back_closes_nothing() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server.url(UNGUARDED)), redis(&server.url(UNGUARDED)));
    let mut last = FencingToken::new(0);
    for round in 0..20 {
        let backend = if round % 3 == 0 { &a } else { &b };
        let mut player = Player::new(backend.clone(), "job").waiting(WaitMode::No);
        player.claim.block = 1 + round % 2 * 50;
        let grant = player.enter().await;
        assert!(grant.token > last, "{last} and then {}", grant.token);
        last = FencingToken::new(grant.token.get() + u64::from(grant.block) - 1);
        assert_eq!(a.break_lock(&player.claim.name, BreakScope::Leases).await.unwrap().len(), 1);
    }
}

/// L2, L9: at 2^53 Lua counted the same number again and again, and one token went out three times. Refused before, and nothing
/// was granted, robbed or lost.
#[tokio::test]
async fn at_the_end_of_what_can_be_counted_a_claim_is_refused() {
    let server = RedisServer::start();
    let handle = || redis(&server.url(UNGUARDED));
    Player::new(handle(), "warm").enter().await;
    let gate = gate(&server, "tenure:one");
    counts_to_its_end(handle, |count| {
        server.command(&["HSET", "tenure:one", &gate, &count.to_string()]);
    })
    .await;
}

/// The same of a node of a quorum, which is not raised beyond it either.
#[tokio::test]
async fn at_the_end_of_what_can_be_counted_a_node_refuses() {
    use tenure_core::QuorumNode as _;

    let server = RedisServer::start();
    let node = node(&server.url(UNGUARDED), 3);
    let set = |count: u64| {
        server.command(&["SET", "tenure:{job}:fence:job", &count.to_string()]);
    };
    let backend: BackendHandle = node.clone();
    counts_to_its_end(|| backend.clone(), set).await;
    set(7);
    let player = Player::new(backend, "job");
    player.enter().await;
    let beyond = FencingToken::new(FencingToken::MAX.get() + 1);
    let error = node.raise(&player.claim.name, player.claim.owner, beyond).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(look(&player).await.fence < FencingToken::MAX);
}

/// L2, L9: Lua reads "nan" as a number, which is neither larger nor smaller than any other.
#[tokio::test]
async fn a_counter_that_no_number_exceeds_is_refused() {
    let server = RedisServer::start();
    let player = Player::new(node(&server.url(UNGUARDED), 3), "job");
    player.enter().await;
    player.leave().await;
    for count in ["nan", "12.5", "9223372036854775807"] {
        server.command(&["SET", "tenure:{job}:fence:job", count]);
        let error = refusal(&player).await;
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error}");
        assert_eq!(server.command(&["EXISTS", "job"]), Reply::Int(0));
    }
    let player = Player::new(redis(&server.url(UNGUARDED)), "job");
    player.enter().await;
    player.leave().await;
    server.command(&["HSET", "tenure:one", &gate(&server, "tenure:one"), "nan"]);
    let error = refusal(&player).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error}");
    assert_eq!(server.command(&["EXISTS", "job"]), Reply::Int(0));
}

/// L2: a floor that is no number is none, and a token is never below the time.
#[tokio::test]
async fn a_node_whose_floor_is_no_number_counts_from_the_time() {
    let server = RedisServer::start();
    let player = Player::new(node(&server.url(UNGUARDED), 3), "job");
    let token = player.enter().await.token;
    player.leave().await;
    server.command(&["HSET", "tenure:quorum", &gate(&server, "tenure:quorum"), "nan"]);
    server.command(&["DEL", "tenure:{job}:fence:job"]);
    assert!(player.enter().await.token > token);
}

/// L2: the server prints the time without the zeros in front of its microseconds; and after the year 2255 it is no token.
#[tokio::test]
async fn a_token_is_the_time_however_it_is_printed() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    let player = Player::new(redis(&server.url(UNGUARDED)), "job");
    player.enter().await;
    player.leave().await;
    let gate = gate(&server, "tenure:one");
    let second = Duration::from_secs(clock.shows().as_secs() + 100);
    for micros in [5, 70_000, 123_456] {
        server.command(&["HSET", "tenure:one", &gate, "7"]);
        clock.freeze_at(second + Duration::from_micros(micros));
        // A handle of its own: what another one knows would close the gate.
        let player = Player::new(redis(&server.url(UNGUARDED)), "job");
        assert_eq!(u128::from(player.enter().await.token.get()), clock.shows().as_micros());
        let next = player.enter().await.token;
        assert!(u128::from(next.get()) > clock.shows().as_micros(), "it grows while the clock stands");
        player.leave().await;
    }
    server.command(&["HSET", "tenure:one", &gate, "7"]);
    clock.freeze_at(Duration::from_secs(9_030_000_000));
    let error = refusal(&Player::new(redis(&server.url(UNGUARDED)), "job")).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error}");
}

/// At the end of what can be counted in a Cluster.
#[tokio::test]
async fn at_the_end_of_what_can_be_counted_a_cluster_refuses() {
    let cluster = Cluster::start();
    let backend = redis(&format!("redis-cluster://127.0.0.1:{}", cluster.ports()[0]));
    let key = "tenure:{job}:fence:job";
    let count = |count: u64| {
        cluster.owner_of(key).command(&["SET", key, &count.to_string()]);
    };
    counts_to_its_end(|| backend.clone(), count).await;
}

/// Each claimant has a handle of its own: who has seen larger counters takes these for those of a server that was put back.
async fn counts_to_its_end(handle: impl Fn() -> BackendHandle, set: impl Fn(u64)) {
    let max = FencingToken::MAX.get();
    let mut for_others = Player::new(handle(), "job");
    for_others.claim.block = 2;
    let claimants = [Player::new(handle(), "job"), Player::new(handle(), "job").reading(), for_others];
    for player in claimants {
        set(max - 1);
        assert_eq!(player.enter().await.token, FencingToken::MAX);
        for count in [max, max + 1, max + 1000] {
            set(count);
            let robbed = player.backend.break_lock(&player.claim.name, BreakScope::Leases).await.unwrap_err();
            assert_eq!(robbed.kind(), ErrorKind::Corrupt, "{robbed}");
            assert_eq!(look(&player).await.holders.len(), 1, "nobody was robbed");
        }
        player.leave().await;
        for count in [max, max + 1, max + 1000] {
            set(count);
            let error = refusal(&player).await;
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied));
            assert!(error.to_string().contains("2^53"), "{error}");
            let view = look(&player).await;
            assert!(view.holders.is_empty() && view.queue.is_empty(), "{view:?}");
        }
    }
}
