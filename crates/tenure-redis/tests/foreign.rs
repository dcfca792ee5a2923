//! Clients that are not Tenure, by what they leave on the server: how a waiter follows them, and what is not printed of them.

use std::{collections::BTreeMap, time::Duration};

use tenure_core::{BreakScope, ClaimAnswer, ErrorKind, Renewal, WaitMode};
use tenure_testkit::{conformance::player::Player, patience::eventually, redis::RedisServer};

use crate::stage::{calls, redis};

const PATIENCE: Duration = Duration::from_secs(20);
const URL: &str = "?guard=off";

async fn retry_after(player: &Player) -> Duration {
    match player.backend.claim(&player.claim).await {
        Ok(ClaimAnswer::Queued { retry_after, holder, .. }) => {
            assert!(holder.is_some_and(|holder| holder.is_foreign()));
            retry_after
        }
        other => panic!("{other:?}"),
    }
}

/// A foreign release notifies no waiter: beside a client that came back immediately ours entered never.
#[tokio::test]
async fn the_first_waiter_follows_a_foreign_holder_that_changes_and_spares_one_that_stays() {
    let (often, second) = (Duration::from_millis(20), Duration::from_secs(1));
    let server = RedisServer::start();
    let backend = redis(&server.url(URL));
    let (first, next) = (Player::new(backend.clone(), "job"), Player::new(backend, "job"));
    for value in ["a", "b", "c"] {
        server.command(&["SET", "job", value, "PX", "100000"]);
        assert_eq!(retry_after(&first).await, often);
    }
    assert!(retry_after(&next).await > second, "only the first one asks often");
    tokio::time::sleep(second).await;
    let pause = retry_after(&first).await;
    assert!(pause >= 4 * often && pause <= second, "the same holder for a second: {pause:?}");
    // The same value, acquired anew.
    server.command(&["SET", "job", "c", "PX", "200000"]);
    assert_eq!(retry_after(&first).await, often);
    server.command(&["DEL", "job"]);
    first.enter().await;
}

/// Each look of a waiter was a full claim, whose answer had the whole value of a foreign client.
#[tokio::test]
async fn a_waiter_behind_a_foreign_holder_asks_little_and_reads_no_large_value() {
    let server = RedisServer::start();
    let backend = redis(&server.url("?guard=off&retry_max=1s"));
    let value = "x".repeat(1 << 20);
    let (waiter, next) = (Player::new(backend.clone(), "job"), Player::new(backend.clone(), "job"));
    server.command(&["SET", "job", &value, "PX", "100000"]);
    let (sent, before) = (bytes_sent(&server), calls(&server));
    for _ in 0..50 {
        retry_after(&waiter).await;
    }
    let made = |command: &str| {
        let count = |calls: &BTreeMap<String, u64>| calls.get(command).copied().unwrap_or_default();
        count(&calls(&server)) - count(&before)
    };
    // The first full claim writes its place twice, each later one once, after a second.
    assert_eq!(made("getrange") + made("zadd") - 1, 50, "{:?}", calls(&server));
    assert!(made("zadd") <= 6, "{:?}", calls(&server));
    backend.inspect(&waiter.claim.name).await.unwrap();
    let sent = bytes_sent(&server) - sent;
    assert!(sent < 1 << 18, "{sent} bytes for 50 answers");
    // A place is a lease, and kept by the claim itself.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let places = made("zadd");
    retry_after(&waiter).await;
    assert!(made("zadd") > places);
    // What it was handed is seen although it asks little.
    retry_after(&next).await;
    backend.break_lock(&waiter.claim.name, BreakScope::All).await.unwrap();
    waiter.enter().await;
}

fn bytes_sent(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "stats"]).text();
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    sent.unwrap().trim().parse().unwrap()
}

/// L8: a waiter behind symfony/lock, which keeps a sorted set, ended with an error, and so did its withdrawal.
#[tokio::test]
async fn a_sorted_set_that_ends_is_a_foreign_holder() {
    let server = RedisServer::start();
    let backend = redis(&server.url(URL));
    let lock = |ends: &str| {
        server.command(&["ZADD", "job", ends, "token"]);
        server.command(&["ZADD", "job", ends, "__write__"]);
        server.command(&["PEXPIREAT", "job", ends]);
    };
    lock("32503680000000");
    let (waiter, quitter) = (Player::new(backend.clone(), "job"), Player::new(backend.clone(), "job"));
    assert_eq!(retry_after(&waiter).await, Duration::from_millis(20));
    retry_after(&quitter).await;
    quitter.leave().await;
    let probe = Player::new(backend.clone(), "job").waiting(WaitMode::No);
    assert!(
        matches!(probe.backend.claim(&probe.claim).await, Ok(ClaimAnswer::Busy { holder: Some(holder), .. }) if holder.is_foreign())
    );
    let view = backend.inspect(&waiter.claim.name).await.unwrap();
    assert!(view.holders[0].is_foreign() && view.queue.len() == 1, "{view:?}");
    assert_eq!(server.command(&["ZCARD", "job"]).int(), 2, "nothing of it is changed");
    let refused = backend.break_lock(&waiter.claim.name, BreakScope::Leases).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    server.command(&["ZREM", "job", "token", "__write__"]);
    let grant = waiter.enter().await;
    assert_eq!(waiter.renew(&grant).await, Renewal::Renewed);
}

/// What an application keeps under the name of a lock is neither waited for, nor deleted, nor printed.
#[tokio::test]
async fn data_of_an_application_is_refused_in_one_line_and_stays() {
    let server = RedisServer::start();
    let backend = redis(&server.url(URL));
    server.command(&["HSET", "hash", "secret", "hunter2"]);
    server.command(&["ZADD", "set", "1", "hunter2"]);
    server.command(&["RPUSH", "list", "hunter2"]);
    for name in ["hash", "set", "list"] {
        let player = Player::new(backend.clone(), name);
        let errors = [
            player.backend.claim(&player.claim).await.unwrap_err(),
            backend.inspect(&player.claim.name).await.unwrap_err(),
            backend.break_lock(&player.claim.name, BreakScope::All).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let text = error.to_string();
            assert!(text.contains("holds data that is not a lock") && !text.contains('\n'), "{text}");
        }
        assert_eq!(server.command(&["EXISTS", name]).int(), 1);
    }
}

/// A value that is no lock may be a session or a password: it was printed, and `break` deleted it.
#[tokio::test]
async fn the_value_of_a_foreign_holder_is_never_shown_and_goes_only_if_that_is_asked_for() {
    let server = RedisServer::start();
    let backend = redis(&server.url(URL));
    // The second one reads like a handed lease, the third has its colon where an owner of Tenure ends.
    let values = ["hunter2".to_owned(), "ab:0:hunter2".to_owned(), format!("ab:12:3:{:x<40}:hunter2", "")];
    for (value, end) in values.iter().flat_map(|value| [None, Some("100000")].map(|end| (value, end))) {
        server.command(&["SET", "user:1", value]);
        if let Some(end) = end {
            server.command(&["PEXPIRE", "user:1", end]);
        }
        let waiter = Player::new(backend.clone(), "user:1");
        let claimed = format!("{:?}", waiter.backend.claim(&waiter.claim).await.unwrap());
        let view = format!("{:?}", backend.inspect(&waiter.claim.name).await.unwrap());
        for scope in [BreakScope::Leases, BreakScope::Owner(waiter.claim.owner)] {
            let answer = backend.break_lock(&waiter.claim.name, scope).await;
            assert!(!matches!(&answer, Ok(robbed) if !robbed.is_empty()), "{answer:?}");
        }
        assert_eq!(server.command(&["GET", "user:1"]).text(), *value);
        let robbed = backend.break_lock(&waiter.claim.name, BreakScope::All).await.unwrap();
        assert!(robbed.len() == 1 && robbed[0].is_foreign(), "{robbed:?}");
        assert!(!format!("{claimed}{view}{robbed:?}").contains("hunter2"));
        waiter.enter().await;
        waiter.leave().await;
    }
}

/// A list shows what Tenure holds or waits for, whatever else there is, in any order of the keys.
#[tokio::test]
async fn a_list_among_many_foreign_keys_shows_only_locks() {
    let server = RedisServer::start();
    let backend = redis(&server.url(URL));
    for chunk in (0..5000).collect::<Vec<_>>().chunks(500) {
        let words: Vec<String> =
            chunk.iter().flat_map(|n| [format!("key:{n}"), format!("value:{n}:{:0>44}:x", n)]).collect();
        let words: Vec<&str> = ["MSET"].into_iter().chain(words.iter().map(String::as_str)).collect();
        server.command(&words);
    }
    server.command(&["HSET", "key:hash", "a", "b"]);
    let (held, waiting) = (Player::new(backend.clone(), "key:held"), Player::new(backend.clone(), "key:7"));
    let other = Player::new(backend.clone(), "other");
    held.enter().await;
    other.enter().await;
    retry_after(&waiting).await;
    let listed = async |prefix: &str| -> Vec<String> {
        let views = backend.list(prefix).await.unwrap();
        views.iter().map(|view| view.name.to_string()).collect()
    };
    assert_eq!(listed("").await, ["key:7", "key:held", "other"]);
    assert_eq!(listed("key:").await, ["key:7", "key:held"]);
    waiting.leave().await;
    eventually("it leaves", PATIENCE, || {
        (server.command(&["EXISTS", "tenure:{key:7}:queue:key:7"]).int() == 0).then_some(())
    });
    assert_eq!(listed("key:").await, ["key:held"]);
}
