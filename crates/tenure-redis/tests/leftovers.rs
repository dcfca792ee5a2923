//! What is left in the server by those who were killed, and in the memory of who lists.

use std::{fs, time::Duration};

use tenure_core::{ClaimAnswer, OwnerId, ProcessId, WaitMode};
use tenure_testkit::{
    conformance::player::Player,
    redis::{Raw, RedisServer},
};

use crate::stage::{entry::look, redis};

/// What is left of all side keys, in ms.
fn ends(server: &RedisServer) -> Vec<(String, i64)> {
    let keys = server.command(&["KEYS", "tenure:{*"]).texts();
    let end = |key: String| (server.command(&["PTTL", &key]).int(), key);
    keys.into_iter().map(end).map(|(left, key)| (key, left)).collect()
}

/// L8: the side keys of a name lived for three days after everybody who had used them was killed, and names as `job-<uuid>` piled
/// up. They outlive the furthest lease or place, and by a minute at most.
#[tokio::test]
async fn what_the_killed_leave_ends_a_minute_after_their_leases() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let mut waiters = Vec::new();
    for job in 0..3 {
        let name = format!("job-{job}");
        Player::new(redis(&url), &name).enter().await;
        let waiter = Player::new(redis(&url), &name);
        waiter.queue_behind(0).await;
        waiters.push(waiter);
    }
    let mut reader = Player::new(redis(&url), "job-shared").reading();
    reader.claim.ttl = Duration::from_secs(300);
    let grant = reader.enter().await;
    let place = 6_000;
    let kinds = |ends: &[(String, i64)], least: i64, most: i64| {
        let bad: Vec<_> = ends.iter().filter(|(_, left)| !(least..=most).contains(left)).collect();
        assert!(bad.is_empty(), "not in {least}..={most}: {bad:?}");
    };
    let (shared, others): (Vec<_>, Vec<_>) =
        ends(&server).into_iter().partition(|(key, _)| key.contains("job-shared"));
    assert_eq!((shared.len(), others.len()), (2, 9), "{shared:?} {others:?}");
    kinds(&others, 1, place + 60_000);
    kinds(&shared, 200_000, 360_000);
    // Whoever asks again and renews keeps them.
    for key in ends(&server).into_iter().map(|(key, _)| key) {
        server.command(&["PEXPIRE", &key, "5000"]);
    }
    for waiter in &waiters {
        waiter.queue_behind(0).await;
    }
    reader.renew(&grant).await;
    kinds(&ends(&server), place, 360_000);
}

/// L7, hazard 33: a waiter to whom nobody listens when its turn comes, for its connection was cut a moment ago, is passed over
/// that once. It keeps its place, and nobody who came later enters by asking.
#[tokio::test]
async fn who_is_not_heard_is_passed_and_keeps_its_place() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let (holder, second) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    holder.enter().await;
    let mut cut = Player::new(redis(&url), "job");
    cut.claim.owner = OwnerId::from_random(ProcessId::from_random([7; 8]), [7; 16]);
    cut.queue_behind(0).await;
    second.queue_behind(1).await;
    holder.leave().await;
    let view = look(&holder).await;
    let owner = |player: &Player| player.claim.owner.to_string();
    assert_eq!(view.holders[0].owner, owner(&second), "{view:?}");
    assert_eq!(view.queue.iter().map(|w| w.owner.clone()).collect::<Vec<_>>(), [owner(&cut)]);
    second.enter().await;
    second.leave().await;
    let newcomer = Player::new(redis(&url), "job").waiting(WaitMode::No);
    assert!(matches!(newcomer.ask().await, ClaimAnswer::Busy { .. }), "nobody barges");
    cut.enter().await;
}

/// L6: two waiters whom nobody heard were passed, and the lock was handed to the last one in the queue. Its value did not say that
/// somebody waits, so that a release by another process freed it, and handed it to nobody.
#[tokio::test]
async fn who_was_passed_is_handed_the_lock_by_the_release_of_the_next() {
    let server = RedisServer::start();
    let url = server.url("?guard=off");
    let (holder, last) = (Player::new(redis(&url), "job"), Player::new(redis(&url), "job"));
    holder.enter().await;
    let process = ProcessId::from_random([7; 8]);
    for n in 0..2 {
        let mut cut = Player::new(redis(&url), "job");
        cut.claim.owner = OwnerId::from_random(process, [n; 16]);
        cut.queue_behind(usize::from(n)).await;
    }
    last.queue_behind(2).await;
    holder.leave().await;
    last.enter().await;
    let mut heard = server.raw();
    heard.command(&["SUBSCRIBE", &format!("tenure:p:{process}")]);
    // As `tenure unlock` does, which knows nothing of who waited.
    redis(&url).release(&last.claim.name, last.claim.owner).await.unwrap();
    let view = look(&holder).await;
    let owners: Vec<_> = view.holders.iter().map(|held| held.owner.clone()).collect();
    assert_eq!(owners, [OwnerId::from_random(process, [0; 16]).to_string()], "{view:?}");
}

/// `list` kept the names of all plain keys of the database in memory before it looked at the first, a promise of bounded steps
/// that only the server's side kept. Only our own are kept.
#[tokio::test]
async fn a_list_keeps_no_keys_of_others() {
    let server = RedisServer::start();
    let backend = redis(&server.url("?guard=off&max_ttl=10m"));
    let (mut a, mut b) =
        (Player::new(backend.clone(), "mine/1"), Player::new(backend.clone(), "mine/2").reading());
    (a.claim.ttl, b.claim.ttl) = (Duration::from_secs(600), Duration::from_secs(600));
    a.enter().await;
    b.enter().await;
    let foreign = "for i = 1, 20000 do redis.call('SET', string.rep('n', 200) .. i .. '.' .. ARGV[1], 'x') end return 'OK'";
    let mut raw = Raw::connect(server.port());
    for part in 0..3 {
        assert_eq!(raw.command(&["EVAL", foreign, "0", &part.to_string()]).text(), "OK");
    }
    let before = most_memory();
    let listed = backend.list("").await.unwrap();
    let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(names, ["mine/1", "mine/2"]);
    // 60 000 names of 200 bytes are 12 MB at least.
    let grown = most_memory() - before;
    assert!(grown < 8_000, "{grown} kB for a list of two");
}

/// The most memory that this process ever had, in kB.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}
