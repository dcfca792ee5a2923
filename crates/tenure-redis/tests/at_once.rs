//! Many claims and releases at once over one connection: they go in few scripts, and each is answered as if it had gone alone. On a
//! server, and on a node of a quorum.

use std::{sync::Arc, task::Context, time::Duration};

use futures_util::{FutureExt, future::join_all, task::noop_waker};
use tenure_core::{
    BackendError, BackendHandle, ClaimAnswer, ErrorKind, FencingToken, LockName, Outcome, OwnerId, Released,
    WaitMode,
};
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    patience::{in_time, until},
    redis::{Recipe, RedisServer},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

use crate::stage::{calls, entry::look, node, redis};

/// More than go alone, and more than one script takes.
const MANY: usize = 60;

/// A slow machine has time to answer.
const UNGUARDED: &str = "?guard=off&connect_timeout=20s&response_timeout=20s";
const PATIENCE: Duration = Duration::from_secs(20);

fn handles(server: &RedisServer) -> [BackendHandle; 2] {
    [redis(&server.url(UNGUARDED)), Arc::clone(&node(&server.url(UNGUARDED), 3)) as BackendHandle]
}

/// Over one connection, each for a lock of its own.
fn crowd(backend: &BackendHandle, prefix: &str) -> Vec<Player> {
    let player = |n| Player::new(backend.clone(), &format!("{prefix}/{n}")).waiting(WaitMode::No);
    (0..MANY).map(player).collect()
}

async fn claim_at_once(players: &[Player]) -> Vec<Result<ClaimAnswer, BackendError>> {
    join_all(players.iter().map(|player| player.backend.claim(&player.claim))).await
}

async fn release_at_once(players: &[Player]) -> Vec<Result<Released, BackendError>> {
    join_all(players.iter().map(|player| player.backend.release(&player.claim.name, player.claim.owner)))
        .await
}

/// As the reaper does it: again, where it is not known yet.
async fn release_for_good(backend: &BackendHandle, name: &LockName, owner: OwnerId) {
    while let Err(error) = backend.release(name, owner).await {
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    }
}

fn token(answer: &Result<ClaimAnswer, BackendError>) -> Option<FencingToken> {
    if let Ok(ClaimAnswer::Granted(grant)) = answer { Some(grant.token) } else { None }
}

/// How many scripts were called so far.
fn scripts(server: &RedisServer) -> u64 {
    calls(server).get("evalsha").copied().unwrap_or(0)
}

/// L2: on a node each counts for itself: from the time if its counter is not there, and no further than Lua can count.
#[tokio::test]
async fn those_that_go_together_count_as_if_each_had_gone_alone() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    clock.freeze_at(Duration::from_secs(clock.shows().as_secs() + 1) + Duration::from_micros(123_456));
    let backend: BackendHandle = node(&server.url(UNGUARDED), 3);
    let players = crowd(&backend, "new");
    for answer in claim_at_once(&players).await {
        assert_eq!(token(&answer).map(|token| u128::from(token.get())), Some(clock.shows().as_micros()));
    }
    let players = crowd(&backend, "spent");
    let (before, max) = (scripts(&server), FencingToken::MAX.get().to_string());
    for player in &players {
        let name = player.claim.name.as_str();
        server.command(&["SET", &format!("tenure:{{{name}}}:fence:{name}"), &max]);
    }
    for refused in claim_at_once(&players).await {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{error}");
    }
    assert!(scripts(&server) > before, "they were asked");
}

/// L1, L2: each is answered as if it had gone alone: who is free is granted a token of its own, who is held, waited for or holds
/// something else is not, and those who waited are handed the lock.
#[tokio::test]
async fn each_is_answered_as_if_it_had_gone_alone() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        let mut players = crowd(&backend, prefix);
        for player in &mut players {
            player.claim.block = 8;
        }
        let other = |n: usize| Player::new(backend.clone(), &format!("{prefix}/{n}"));
        let (held, waited_for) = (other(10), other(20));
        held.enter().await;
        waited_for.enter().await;
        let waiter = other(20).waiting(WaitMode::Wake);
        waiter.queue_behind(0).await;
        server.command(&["SET", &format!("{prefix}/30"), "somebody else's"]);
        let before = scripts(&server);
        let answers = claim_at_once(&players).await;
        let called = scripts(&server) - before;
        assert!(called < MANY as u64 / 2, "{called} scripts for {MANY} claims");
        let mut granted: Vec<(u64, u64)> = Vec::new();
        for (n, answer) in answers.iter().enumerate() {
            match answer.as_ref().unwrap() {
                ClaimAnswer::Granted(grant) => {
                    assert!(![10, 20, 30].contains(&n), "{n}");
                    let view = look(&players[n]).await;
                    let last = grant.token.get() + u64::from(grant.block) - 1;
                    assert_eq!(view.holders[0].token, Some(FencingToken::new(last)), "{n}");
                    assert!((1..=8).contains(&grant.block), "{n}: {}", grant.block);
                    granted.push((grant.token.get(), last));
                }
                ClaimAnswer::Busy { .. } => assert!([10, 20, 30].contains(&n), "{n}"),
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(granted.len(), MANY - 3);
        if prefix == "alone" {
            granted.sort_unstable();
            assert!(granted.windows(2).all(|pair| pair[0].1 < pair[1].0), "one counter for all: {granted:?}");
        }
        // The waiter's holder leaves in the same crowd, and hands over.
        players[20] = waited_for;
        let before = scripts(&server);
        let left = release_at_once(&players).await;
        let called = scripts(&server) - before;
        assert!(called < MANY as u64 / 2, "{called} scripts for {MANY} releases");
        for (n, left) in left.into_iter().enumerate() {
            let expected = if [10, 30].contains(&n) { Released::WasGone } else { Released::Released };
            assert_eq!(left.unwrap(), expected, "{n}");
        }
        waiter.enter().await;
        assert_eq!(look(&held).await.holders.len(), 1);
        // The same again: every lock has a larger token than before.
        players[20] = other(40);
        let again = claim_at_once(&players).await;
        for (n, (first, second)) in answers.iter().zip(&again).enumerate() {
            if let (Some(first), Some(second)) = (token(first), token(second)) {
                assert!(second > first, "{n}: {first} and then {second}");
            }
        }
    }
}

/// L1: many who want the same lock at once.
#[tokio::test]
async fn of_many_who_want_the_same_lock_one_is_let_in() {
    let server = RedisServer::start();
    for backend in handles(&server) {
        let players: Vec<Player> =
            (0..MANY).map(|_| Player::new(backend.clone(), "same").waiting(WaitMode::No)).collect();
        let mut last = None;
        for _ in 0..3 {
            let answers = claim_at_once(&players).await;
            let granted: Vec<_> = answers.iter().filter_map(token).collect();
            assert_eq!(granted.len(), 1, "{answers:?}");
            assert!(last < Some(granted[0]), "{last:?} and then {granted:?}");
            last = Some(granted[0]);
            let left = release_at_once(&players).await;
            let released = left.iter().filter(|left| matches!(left, Ok(Released::Released))).count();
            assert_eq!(released, 1, "{left:?}");
        }
    }
}

/// L9: a key that holds no lock is no harm to the others.
#[tokio::test]
async fn a_key_of_another_type_harms_no_other_lock() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        let players = crowd(&backend, prefix);
        server.command(&["RPUSH", &format!("{prefix}/25"), "a list"]);
        // A counter of its own, on a node.
        server.command(&["RPUSH", &format!("tenure:{{{prefix}/26}}:fence:{prefix}/26"), "a list"]);
        for (n, answer) in claim_at_once(&players).await.into_iter().enumerate() {
            if n == 25 || (n == 26 && prefix == "node") {
                let error = answer.unwrap_err();
                assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied), "{n}");
            } else {
                assert!(token(&answer).is_some(), "{n}: {answer:?}");
            }
        }
        for (n, left) in release_at_once(&players).await.into_iter().enumerate() {
            let expected = if n == 26 && prefix == "node" { Released::WasGone } else { Released::Released };
            if n == 25 {
                assert_eq!(left.unwrap_err().kind(), ErrorKind::Corrupt);
            } else {
                assert_eq!(left.unwrap(), expected, "{n}");
            }
        }
    }

    // Who has not asked before does not know of it.
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        for (n, left) in release_at_once(&crowd(&backend, prefix)).await.into_iter().enumerate() {
            if n == 25 {
                let error = left.unwrap_err();
                assert_eq!((error.kind(), error.outcome()), (ErrorKind::Corrupt, Outcome::NotApplied));
            } else {
                assert_eq!(left.unwrap(), Released::WasGone, "{n}");
            }
        }
    }
}

/// L9: two releases of one owner that left in one script both said that they had released the lock: the script read all locks before it
/// freed the first. One of them has. Two claims of one owner are granted both, and a claim and a release are one before the other.
#[tokio::test]
async fn two_requests_of_one_owner_are_answered_as_if_one_had_come_after_the_other() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        let players = crowd(&backend, prefix);
        let claim = |player: &Player| {
            let claim = player.claim.clone();
            let backend = backend.clone();
            async move { backend.claim(&claim).await }
        };
        let release = |player: &Player| {
            let (backend, claim) = (backend.clone(), player.claim.clone());
            async move { backend.release(&claim.name, claim.owner).await.unwrap() }
        };
        claim_at_once(&players).await;
        let before = scripts(&server);
        let answers = join_all(players.iter().flat_map(|player| [release(player), release(player)])).await;
        for two in answers.chunks(2) {
            let released = two.iter().filter(|answer| **answer == Released::Released).count();
            assert_eq!(released, 1, "{two:?}");
        }
        // One script for many, and one for each second release.
        let called = scripts(&server) - before;
        assert!(called < 3 * MANY as u64 / 2, "{called} scripts for {} releases", 2 * MANY);
        let answers = join_all(players.iter().flat_map(|player| [claim(player), claim(player)])).await;
        for (player, two) in players.iter().zip(answers.chunks(2)) {
            let tokens: Vec<_> = two.iter().map(|answer| token(answer).expect("granted")).collect();
            assert_ne!(tokens[0], tokens[1]);
            let holders = look(player).await.holders;
            assert_eq!((holders.len(), holders[0].token), (1, tokens.iter().copied().max()));
        }
        release_at_once(&players).await;
        for is_held in [false, true] {
            let (claims, releases) = (players.iter().map(claim), players.iter().map(release));
            let (claims, releases) = futures_util::join!(join_all(claims), join_all(releases));
            for (player, (claim, left)) in players.iter().zip(claims.iter().zip(releases)) {
                assert!(token(claim).is_some(), "{claim:?}");
                let holders = look(player).await.holders;
                assert!(holders.iter().all(|holder| holder.token == token(claim)), "{holders:?}");
                let is_first = left == Released::WasGone;
                assert!(is_held || is_first == (holders.len() == 1), "{left:?}: {holders:?}");
                assert!(!is_held || left == Released::Released, "{left:?}");
            }
            // Each holds when both are asked for once more.
            assert!(claim_at_once(&players).await.iter().all(|answer| token(answer).is_some()));
        }
    }
}

/// L9: what the server refuses is refused to each, and nothing is done.
#[tokio::test]
async fn a_full_memory_is_said_to_each_and_nothing_is_granted() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        let players = crowd(&backend, prefix);
        players[0].enter().await;
        players[0].leave().await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        for answer in claim_at_once(&players).await {
            let error = answer.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
            assert!(error.to_string().contains("memory"), "{error}");
        }
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        for player in &players {
            assert_eq!(look(player).await.holders, [], "{}", player.claim.name);
        }
        assert!(claim_at_once(&players).await.iter().all(|answer| token(answer).is_some()));
    }
}

/// L9: who may not touch one of the keys is told so, and the others are let in.
#[tokio::test]
async fn a_right_that_is_missing_for_one_lock_harms_no_other() {
    let server = RedisServer::start();
    let rights = "on >pw ~app/* ~tenure:* &tenure:* +@all";
    server.command(&[&["ACL", "SETUSER", "narrow"], &rights.split(' ').collect::<Vec<_>>()[..]].concat());
    let backend = redis(&format!("redis://narrow:pw@127.0.0.1:{}/{UNGUARDED}", server.port()));
    let mut players = crowd(&backend, "app");
    players[33] = Player::new(backend.clone(), "other").waiting(WaitMode::No);
    for is_first in [true, false] {
        let before = scripts(&server);
        for (n, answer) in claim_at_once(&players).await.into_iter().enumerate() {
            if n == 33 {
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::Denied);
            } else {
                assert!(token(&answer).is_some(), "{n}: {answer:?}");
            }
        }
        // Together, then those of its script once more; from then on each by itself. What is refused is not counted.
        let called = scripts(&server) - before;
        assert!(called < MANY as u64 - 2 || !is_first, "{called} scripts for {MANY} claims");
        assert!(called > MANY as u64 - 2 || is_first, "{called} scripts for {MANY} claims");
        for (n, left) in release_at_once(&players).await.into_iter().enumerate() {
            assert_eq!(left.is_ok(), n != 33, "{n}");
        }
    }
}

/// L9: a claim that was given up is over when its release is answered, whatever it had come to by then.
#[tokio::test]
async fn a_claim_that_was_given_up_does_not_come_after_its_release() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        for (polls, are_known) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
            let players = crowd(&backend, prefix);
            if are_known {
                // The server has the scripts: nothing goes twice.
                claim_at_once(&players).await;
                release_at_once(&players).await;
            }
            let mut claims: Vec<_> =
                players.iter().map(|player| player.backend.claim(&player.claim)).collect();
            for poll in 0..=polls {
                for claim in &mut claims {
                    let _ = claim.as_mut().poll(&mut Context::from_waker(&noop_waker()));
                }
                if poll > 0 {
                    yield_now().await;
                }
            }
            drop(claims);
            if are_known {
                release_at_once(&players)
                    .await
                    .into_iter()
                    .for_each(|left| assert!(left.is_ok(), "{left:?}"));
            } else {
                let releases =
                    players.iter().map(|p| release_for_good(&backend, &p.claim.name, p.claim.owner));
                in_time("all are released", PATIENCE, join_all(releases)).await;
            }
            for player in &players {
                let view = look(player).await;
                assert_eq!(view.holders, [], "{} after {polls} polls more", player.claim.name);
            }
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Answers are told while more requests keep coming, one in each turn of a busy program.
#[tokio::test]
async fn who_asked_first_is_answered_while_others_keep_asking() {
    let server = RedisServer::start();
    for (backend, prefix) in handles(&server).into_iter().zip(["alone", "node"]) {
        let player = |n: usize| Player::new(backend.clone(), &format!("{prefix}/{n}")).waiting(WaitMode::No);
        player(0).enter().await;
        let claim = |n: usize| {
            let player = player(n);
            tokio::spawn(async move { player.backend.claim(&player.claim).await })
        };
        let first: Vec<_> = (1..MANY).map(claim).collect();
        let mut later = Vec::new();
        in_time("those who asked first are answered", PATIENCE, async {
            while !first.iter().all(tokio::task::JoinHandle::is_finished) {
                later.push(claim(MANY + later.len()));
                yield_now().await;
            }
        })
        .await;
        for answer in join_all(first.into_iter().chain(later)).await {
            assert!(token(&answer.unwrap()).is_some());
        }
    }
}

/// L6, contract of a handle: a runtime that stands still with claims of its own keeps nobody else for long.
#[test]
fn a_runtime_that_stands_still_keeps_nobody_for_long() {
    let server = RedisServer::start();
    let (stands, goes_on) = (runtime(), runtime());
    let backend = redis(&server.url("?guard=off&response_timeout=1s"));
    let players = crowd(&backend, "app");
    stands.block_on(async {
        players[0].enter().await;
        let mut claims: Vec<_> = players.iter().skip(1).map(|p| p.backend.claim(&p.claim)).collect();
        for claim in &mut claims {
            assert!(claim.poll_unpin(&mut Context::from_waker(&noop_waker())).is_pending());
        }
    });
    goes_on.block_on(async {
        let other = Player::new(backend.clone(), "other").waiting(WaitMode::No);
        until("it is let in", PATIENCE, async || {
            // With a time of its own, as the engine gives to each request.
            let asked = tokio::time::timeout(Duration::from_millis(300), other.backend.claim(&other.claim));
            matches!(asked.await, Ok(Ok(ClaimAnswer::Granted(_))))
        })
        .await;
    });
}

/// L8: whose connection ends with the runtime that made it is told so, and the next one has another.
#[test]
fn who_waits_for_a_runtime_that_ends_hears_of_it() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let backend = redis(&server.url(UNGUARDED));
    let players = crowd(&backend, "app");
    first.block_on(players[0].enter());
    second.block_on(async {
        let mut claims: Vec<_> = players.iter().skip(1).map(|p| p.backend.claim(&p.claim)).collect();
        for claim in &mut claims {
            assert!(claim.poll_unpin(&mut Context::from_waker(&noop_waker())).is_pending());
        }
        first.shutdown_background();
        let answers = in_time("all are told", PATIENCE, join_all(claims)).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        for player in players.iter().skip(1) {
            player.enter().await;
        }
    });
}

/// L1, L2: a server that was put back is found out by many at once as by one, and no token comes twice.
#[tokio::test]
async fn a_server_that_was_put_back_is_found_out_by_many_at_once() {
    let server = RedisServer::start();
    let backend = redis(&server.url(UNGUARDED));
    let players = crowd(&backend, "job");
    let before: Vec<_> = claim_at_once(&players).await.iter().filter_map(token).collect();
    assert_eq!(before.len(), MANY);
    assert!(release_at_once(&players).await.iter().all(Result::is_ok));
    let record = server.command(&["HGETALL", "tenure:one"]).texts();
    let gate = record.chunks(2).find(|pair| pair[0].contains('.')).unwrap()[0].clone();
    server.command(&["HSET", "tenure:one", &gate, "1000"]);
    let after = claim_at_once(&players).await;
    let newest = before.iter().max().unwrap();
    for answer in &after {
        match token(answer) {
            Some(token) => assert!(token > *newest, "{token} after {newest}"),
            None => assert!(answer.as_ref().unwrap_err().kind().is_transient(), "{answer:?}"),
        }
    }
}
