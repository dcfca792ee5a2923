//! `diagnose` on real servers: each finding where it is true, with its remedy, and none where all is well.

use std::{fs, time::Duration};

use tenure_core::{
    Adopt, BackendHandle, BreakScope, Claim, ClaimAnswer, ErrorKind, FencingToken, Finding, Grant, Label,
    LockName, Mode, OwnerId, ProcessId, Severity,
    Severity::{Note, Problem, Warning},
    WaitMode,
};
use tenure_testkit::{
    clock::Clock,
    patience::{self, becomes, eventually},
    redis::{Cluster, Recipe, RedisServer, Sentinels},
};

use crate::stage::redis;

/// For what must happen at last.
const PATIENCE: Duration = Duration::from_secs(20);

/// All findings, to be asked for one.
struct Seen(Vec<Finding>);

impl Seen {
    /// The one finding in which this stands: as grave as said, with this in its remedy.
    #[track_caller]
    fn has(&self, severity: Severity, what: &str, remedy: &str) -> &Self {
        let found: Vec<&Finding> = self.0.iter().filter(|finding| finding.what.contains(what)).collect();
        let [found] = found[..] else { panic!("{} findings have {what:?}: {:#?}", found.len(), self.0) };
        assert_eq!(found.severity, severity, "{found:#?}");
        assert!(found.remedy.contains(remedy), "{found:#?}");
        self
    }

    /// Nothing that a person must do something about, but this many.
    #[track_caller]
    fn has_grave(&self, count: usize) -> &Self {
        let grave: Vec<&Finding> = self.0.iter().filter(|finding| finding.severity > Note).collect();
        assert_eq!(grave.len(), count, "{grave:#?}");
        self
    }

    #[track_caller]
    fn lacks(&self, what: &str) -> &Self {
        assert!(!self.0.iter().any(|finding| finding.what.contains(what)), "{:#?}", self.0);
        self
    }
}

async fn see(locks: &BackendHandle) -> Seen {
    Seen(locks.diagnose().await.unwrap())
}

async fn look(server: &RedisServer, query: &str) -> Seen {
    see(&redis(&server.url(query))).await
}

fn claim(name: &str, wait: WaitMode) -> Claim {
    Claim::new(
        LockName::new(name).unwrap(),
        OwnerId::from_random(ProcessId::from_random([7; 8]), [7; 16]),
        Mode::Exclusive,
        Duration::from_secs(1),
    )
    .with_label(Label::new("h", 1, "u", "c").into())
    .with_wait(wait)
}

/// A handle to a server that grants, as its clients know it.
async fn granting(url: &str) -> BackendHandle {
    let locks = redis(url);
    let claim = claim("first", WaitMode::No);
    let is_granted = async || matches!(locks.claim(&claim).await, Ok(ClaimAnswer::Granted(_)));
    patience::until("it is granted", PATIENCE, is_granted).await;
    locks.release(&claim.name, claim.owner).await.unwrap();
    locks
}

/// A server that has waited already for leases of a second.
fn started(recipe: Recipe) -> RedisServer {
    let server = recipe.start();
    server.has_waited("tenure:one", "guard=on max_ttl=1s");
    server
}

async fn healthy(query: &str) -> (RedisServer, BackendHandle) {
    let server = started(Recipe::new());
    let locks = granting(&server.url(query)).await;
    (server, locks)
}

/// A server whose only replica is killed once it is in step.
async fn without_its_replica() -> (RedisServer, BackendHandle) {
    let (server, locks) = healthy("?max_ttl=1s").await;
    let replica = Recipe::new().replica_of(server.port()).start();
    until("the replica is in step", || {
        server.command(&["INFO", "replication"]).text().contains("state=online")
    });
    see(&locks).await.has_grave(0);
    replica.kill();
    (server, locks)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, PATIENCE, || is_so().then_some(()));
}

#[tokio::test]
async fn a_healthy_server_has_nothing_but_notes() {
    for query in ["?max_ttl=1s", "?max_ttl=1s&protocol=2", "?max_ttl=1s&key=lock:%25s"] {
        let (server, locks) = healthy(query).await;
        let seen = see(&locks).await;
        seen.has_grave(0).has(Note, "nothing is saved", "CONFIG SET appendonly yes").lacks("not tried");
        assert_eq!(seen.0.len(), 1, "{:#?}", seen.0);
        let left = server.command(&["KEYS", "*"]);
        assert_eq!(format!("{left:?}"), r#"List([Text("tenure:one")])"#, "the visit leaves nothing behind");
    }
}

/// Those who wait would otherwise all ask again whenever somebody looks.
#[tokio::test]
async fn a_visit_breaks_no_connection_that_is_in_use() {
    for (query, own) in [("?max_ttl=1s", 1), ("?max_ttl=1s&protocol=2", 2)] {
        let (server, locks) = healthy(query).await;
        let made = || server.info("stats", "total_connections_received").parse::<u64>().unwrap();
        let before = made();
        for _ in 0..3 {
            see(&locks).await;
        }
        assert_eq!(made() - before, 3 * own + 1, "three visits and this question");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    let server = RedisServer::start();
    server.kill();
    let error = redis(&server.url("")).diagnose().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_closed_gate_is_a_warning_with_the_time_left() {
    let server = RedisServer::start();
    let seen = look(&server, "?max_ttl=10m").await;
    seen.has_grave(1).has(Warning, "it grants no locks for another ", "wait ").has(
        Note,
        "were not tried",
        "again",
    );
    let left = seen.0.iter().find_map(|finding| finding.what.split_once("for another ")?.1.split_once(" s,"));
    let left: f64 = left.unwrap().0.parse().unwrap();
    assert!((300.0..=605.0).contains(&left), "{left} s of ten minutes and a little");
}

#[tokio::test]
async fn other_settings_are_a_problem_with_the_way_out() {
    let (server, _locks) = healthy("?max_ttl=1s").await;
    let seen = look(&server, "?max_ttl=1m30s").await;
    let what =
        "others use this server with guard=on max_ttl=1s, and this URL has guard=on max_ttl=1m 30s: no lease";
    seen.has_grave(0).has(Note, what, "tenure doctor --adopt --raise");
    let server = RedisServer::start();
    let _locks = granting(&server.url("?max_ttl=2s")).await;
    let seen = look(&server, "?max_ttl=1s").await;
    let what = "others use this server with guard=on max_ttl=2s, and this URL has guard=on max_ttl=1s";
    seen.has_grave(1).has(Problem, what, "?guard=on&max_ttl=2s").has(Note, "were not tried", "mended");
    seen.has(Problem, what, "tenure doctor --adopt");
}

#[tokio::test]
async fn a_guard_that_is_off_is_a_warning() {
    let seen = look(&RedisServer::start(), "?guard=off").await;
    seen.has_grave(1).has(Warning, "the guard is off", "guard=off out of the URL");
}

/// Hazard 37.
#[tokio::test]
async fn a_flush_is_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["FLUSHALL"]);
    see(&locks).await.has_grave(2).has(Warning, "the record of this server is gone", "-flushall");
}

/// A4, hazard 35.
#[tokio::test]
async fn eviction_is_a_problem_where_memory_has_a_bound() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let remedy = "redis-cli CONFIG SET maxmemory-policy noeviction";
    see(&locks).await.has_grave(0).has(Note, "maxmemory-policy is volatile-lru", remedy);
    server.command(&["CONFIG", "SET", "maxmemory", "1gb"]);
    let what = "maxmemory-policy is volatile-lru and maxmemory is 1024 MiB";
    see(&locks).await.has_grave(1).has(Problem, what, remedy);
}

#[tokio::test]
async fn keys_that_were_evicted_are_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    let used: u64 = server.info("memory", "used_memory").parse().unwrap();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    server.command(&["CONFIG", "SET", "maxmemory", &(used + (4 << 20)).to_string()]);
    let value = "x".repeat(1 << 20);
    for n in 0..8 {
        server.command(&["SET", &format!("data{n}"), &value, "EX", "1000"]);
    }
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    see(&locks).await.has_grave(1).has(Warning, "keys were evicted", "noeviction");
}

/// Hazard 36.
#[tokio::test]
async fn memory_that_is_nearly_full_is_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["SET", "data", &"x".repeat(32 << 20)]);
    let used: u64 = server.info("memory", "used_memory").parse().unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", &(used * 100 / 95).to_string()]);
    see(&locks).await.has_grave(1).has(Warning, "the memory is full to 9", "CONFIG SET maxmemory");
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    see(&locks).await.has(Problem, "it was not possible to take a lock: the memory", "tenure doctor");
}

#[tokio::test]
async fn what_a_restart_forgets_is_noted() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    let seen = see(&locks).await;
    seen.has_grave(0).has(Note, "only snapshots are saved", "appendonly yes");
    seen.has(Note, "that is safe: the server grants nothing for 1s after a restart", "appendfsync always");
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    see(&locks).await.has_grave(0).has(Note, "(appendfsync everysec)", "appendfsync always");
    server.command(&["CONFIG", "SET", "appendfsync", "always"]);
    see(&locks).await.has_grave(0).lacks("appendfsync");
}

#[tokio::test]
async fn a_failed_save_is_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["CONFIG", "SET", "save", "3600 100000"]);
    fs::remove_dir_all(server.folder()).unwrap();
    server.command(&["BGSAVE"]);
    until("the snapshot fails", || server.info("persistence", "rdb_last_bgsave_status") == "err");
    // The server refuses writes already.
    let seen = see(&locks).await;
    seen.has(Warning, "the last snapshot failed", "redis-cli BGSAVE");
    seen.has_grave(2).has(Problem, "cannot save its data", "log of the server");
}

#[tokio::test]
async fn replicas_are_noted_and_one_that_is_behind_is_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    let replica = Recipe::new().replica_of(server.port()).start();
    let line = || server.command(&["INFO", "replication"]).text();
    until("the replica is in step", || line().contains("state=online"));
    let seen = see(&locks).await;
    seen.has_grave(0).has(Note, "1 replica may lack the newest locks", "check the fencing token");
    seen.has(Note, "that is safe: the server grants nothing for 11s after a promotion", "?max_ttl=");
    see(&locks).await.has(Note, "min-replicas-to-write is off", "CONFIG SET min-replicas-to-write 1");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    see(&locks).await.has_grave(0).lacks("min-replicas-to-write");
    let seen = look(&replica, "?max_ttl=1s").await;
    let what = format!("this server is a replica of 127.0.0.1:{}:", server.port());
    seen.has_grave(1).has(Problem, &what, "redis://HOST:PORT");
    replica.stop();
    until("the replica is silent", || line().contains("lag=4"));
    let what = format!("1 replica is behind (127.0.0.1:{}:", replica.port());
    see(&locks).await.has_grave(1).has(Warning, &what, "redis-cli INFO replication");
    replica.resume();
}

/// L1: the old side of a fail-over looks like this, and so does a server whose replica is gone for good. It says how to go
/// on, and goes on when told.
#[tokio::test]
async fn a_server_that_lost_its_replica_is_a_problem_until_it_is_told_to_stand_alone() {
    let (server, locks) = without_its_replica().await;
    let claim = claim("first", WaitMode::No);
    let error = refusal(&locks, &claim).await;
    assert!(error.contains("none of them acknowledges") && error.contains("doctor --adopt"), "{error}");
    let grant = Grant::new(claim.name.clone(), claim.owner, FencingToken::new(1), claim.ttl);
    let renewed = locks.renew(&[grant]).await.remove(0).unwrap_err();
    assert!(renewed.to_string().contains("grants and renews no locks"), "{renewed}");
    see(&locks).await.has(Problem, "none of them acknowledges", "tenure doctor --adopt");
    locks.adopt(Adopt::Settings).await.unwrap();
    granting(&server.url("?max_ttl=1s")).await;
    see(&locks).await.has_grave(0).lacks("acknowledges");
}

/// One whose `max_ttl` is larger has the replicas adopted, and is told in the end that its settings were not.
#[tokio::test]
async fn a_server_that_stands_alone_is_adopted_without_a_larger_max_ttl() {
    let (server, locks) = without_its_replica().await;
    refusal(&locks, &claim("first", WaitMode::No)).await;
    let larger = redis(&server.url("?max_ttl=3s"));
    let first = larger.adopt(Adopt::Settings).await.unwrap();
    assert!(!first.wait.is_zero() && first.what.ends_with("then guard=on max_ttl=1s"), "{first:?}");
    assert!(!larger.adopt(Adopt::Settings).await.unwrap().wait.is_zero(), "the wait has not ended");
    granting(&server.url("?max_ttl=1s")).await;
    let end = larger.adopt(Adopt::Settings).await.unwrap();
    assert!(
        end.wait.is_zero() && end.what.contains("the replicas were adopted, and the settings stay"),
        "{end:?}"
    );
    // For one that adopted none it is refused.
    let refused = redis(&server.url("?max_ttl=3s")).adopt(Adopt::Settings).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("--raise"), "{refused}");
}

/// What a claim is refused with, in the end. Until then it is granted, and given back.
async fn refusal(locks: &BackendHandle, claim: &Claim) -> String {
    let refused = async || match locks.claim(claim).await {
        Err(error) => Some(error.to_string()),
        Ok(_) => {
            locks.release(&claim.name, claim.owner).await.ok();
            None
        }
    };
    becomes("it is refused", Duration::from_secs(30), refused).await
}

#[tokio::test]
async fn a_short_memory_of_promotions_is_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["CONFIG", "SET", "repl-backlog-ttl", "2"]);
    let what = "repl-backlog-ttl is 2s, less than 10s";
    see(&locks).await.has_grave(1).has(Warning, what, "redis-cli CONFIG SET repl-backlog-ttl 3600");
}

/// The user `app`, with the rights that a remedy gives, and after that these rules.
fn user(server: &RedisServer, remedy: &str, rules: &[&str]) -> String {
    let given = remedy.split_once("redis-cli ACL SETUSER app ").unwrap().1.replace('\'', "");
    let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">secret"];
    words.extend(given.split_whitespace());
    words.extend(rules);
    assert_eq!(server.command(&words).error(), None);
    format!("redis://app:secret@127.0.0.1:{}/?max_ttl=1s", server.port())
}

#[tokio::test]
async fn a_right_that_is_missing_is_a_problem_and_its_remedy_is_enough() {
    let (server, _locks) = healthy("?max_ttl=1s").await;
    server.command(&["ACL", "SETUSER", "app", "reset", "on", ">secret"]);
    let bare = format!("redis://app:secret@127.0.0.1:{}/?max_ttl=1s", server.port());
    let seen = see(&redis(&bare)).await;
    seen.has_grave(1).has(Problem, "this user may not INFO", "redis-cli ACL SETUSER app '~*' '&tenure:*' ");
    let remedy = seen.0[0].remedy.clone();
    assert!(!format!("{:?}", seen.0).contains("secret"));
    let all = redis(&user(&server, &remedy, &[]));
    assert_eq!(see(&all).await.has_grave(0).0.len(), 1);
    all.list("").await.unwrap();
    all.break_lock(&LockName::new("first").unwrap(), BreakScope::Leases).await.unwrap();
    let cases = [
        ("-hset", Problem, "this user may not take a lock", "+hset"),
        ("-pexpire", Problem, "this user may not renew a lock", "+pexpire"),
        ("-hmget", Problem, "this user may not ", "+hmget"),
        ("-zadd", Problem, "this user may not wait for a lock", "+zadd"),
        ("-del", Problem, "this user may not release a lock", "+del"),
        ("-publish", Problem, "this user may not PUBLISH", "+publish"),
        ("resetchannels", Problem, "this user may not SUBSCRIBE", "'&tenure:*'"),
        ("-scan", Problem, "this user may not look at the keys (SCAN)", "+scan"),
        ("-type", Note, "this user may not look at the keys (TYPE)", "+type"),
        ("-getrange", Problem, "this user may not GETRANGE", "+getrange"),
        ("-eval", Problem, "this user may not EVAL", "+eval"),
        ("-hgetall", Problem, "this user may not read the counter", "+hgetall"),
        ("-hexists", Problem, "this user may not read the record", "+hexists"),
        ("-config|get", Note, "repl-backlog-ttl cannot be read", "redis-cli ACL SETUSER app '+config|get'"),
    ];
    for (rule, severity, what, right) in cases {
        let seen = see(&redis(&user(&server, &remedy, &[rule]))).await;
        seen.has(severity, what, right);
    }
}

/// A2, A6.
#[tokio::test]
async fn a_clock_that_is_wrong_is_a_finding_by_its_size() {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    clock.step(3_000);
    look(&server, "?max_ttl=10s").await.has_grave(2).has(Warning, "ahead of ours", "chrony");
    clock.step(-6_000);
    look(&server, "?max_ttl=10s").await.has(Problem, "behind ours", "chrony");
}

/// Hazard 19.
#[tokio::test]
async fn a_clock_that_was_set_back_is_a_warning() {
    let clock = Clock::new();
    clock.step(3_600_000);
    let server = Recipe::new().clock(&clock).start();
    let locks = granting(&server.url("?max_ttl=1s")).await;
    see(&locks).await.lacks("was set back");
    clock.step(0);
    see(&locks).await.has_grave(1).has(Warning, "it was set back, by no less than that", "tokens go on");
}

#[tokio::test]
async fn foreign_holders_that_ours_wait_for_are_noted_and_endless_ones_a_warning() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["SET", "a", "evil\x1b[31m-and-a-rather-long-secret", "EX", "50"]);
    server.command(&["SET", "b", "left over"]);
    server.command(&["SET", "c", "nobody waits for it"]);
    see(&locks).await.has_grave(0).lacks("foreign");
    for name in ["a", "b"] {
        let answer = locks.claim(&claim(name, WaitMode::Turn)).await.unwrap();
        assert!(matches!(answer, ClaimAnswer::Queued { .. }), "{answer:?}");
    }
    let seen = see(&locks).await;
    let what = "foreign clients hold, which neither queue nor wake ours: 1 (a, ";
    seen.has_grave(1).has(Note, what, "nothing, if they are meant to").lacks("secret");
    let what = "foreign clients hold without an end, until the key is deleted: 1 (b)";
    seen.has(Warning, what, "`tenure break --foreign b`").has(Warning, what, "redis-cli DEL b");
}

#[tokio::test]
async fn under_a_template_of_our_own_other_data_and_endless_keys_are_found() {
    let (server, locks) = healthy("?max_ttl=1s&key=lock:%25s").await;
    server.command(&["SET", "other", "no lock"]);
    server.command(&["SET", "lock:bounded", "foreign", "EX", "50"]);
    see(&locks).await.has_grave(0);
    for n in 1..=4 {
        server.command(&["SET", &format!("lock:{n}"), "left over"]);
    }
    server.command(&["RPUSH", "lock:list", "1"]);
    let seen = see(&locks).await;
    seen.has_grave(2).has(Warning, "waits for ever: 4 (lock:", "redis-cli DEL");
    seen.has(
        Problem,
        "under the template `lock:%s` that hold other data, so that locks of these names fail: 1 (lock:list is a list)",
        "another template",
    );
}

#[tokio::test]
async fn a_walk_over_very_many_keys_ends_early_and_says_so() {
    let (server, locks) = healthy("?max_ttl=1s&key=lock:%25s").await;
    let fill = "for n = 1, 30000 do redis.call('SET', 'lock:' .. n, '', 'EX', 1000) end";
    server.command(&["EVAL", fill, "0"]);
    see(&locks).await.has_grave(0).has(
        Note,
        "not all keys were looked at: only 20",
        "a database of their own",
    );
}

/// Hazard 38.
#[tokio::test]
async fn keys_of_others_under_our_prefix_are_a_problem() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["SET", "tenure:cache", "x"]);
    server.command(&["SET", "tenure:{a}:queue:a", "x"]);
    server.command(&["ZADD", "tenure:{a}:places:a", "1", "x"]);
    let seen = see(&locks).await;
    seen.has_grave(1)
        .has(Problem, "that are not ours, so that locks with such a key fail: 2 (", "RENAME")
        .lacks("places");
    server.command(&["FLUSHALL"]);
    server.command(&["SET", "tenure:one", "x"]);
    let seen = look(&server, "?max_ttl=1s").await;
    seen.has_grave(1).has(Problem, "the record of this server cannot be read", "redis-cli TYPE tenure:one");
}

#[tokio::test]
async fn a_queue_on_other_data_is_a_problem() {
    let (server, locks) = healthy("?max_ttl=1s").await;
    server.command(&["RPUSH", "a", "1"]);
    server.command(&["ZADD", "tenure:{a}:queue:a", "1", "x"]);
    see(&locks).await.has_grave(1).has(
        Problem,
        "locks whose key holds other data, so that they fail: 1 (a)",
        "?key=lock:%25s",
    );
}

#[tokio::test]
async fn a_cluster_is_looked_at_node_by_node() {
    let cluster = Cluster::start();
    let [first, ..] = cluster.nodes() else { panic!("no node") };
    let url = format!("redis-cluster://{}", first.address());
    let seen = see(&redis(&url)).await;
    seen.has_grave(0).has(Note, "a Redis Cluster has no restart guard", "check the token");
    let what =
        "nothing is saved: a restart forgets all locks; without a restart guard two clients may hold one";
    seen.has(Note, what, "appendonly yes").lacks("not tried");
    for node in cluster.nodes() {
        assert_eq!(node.command(&["DBSIZE"]).int(), 0, "the visit leaves nothing behind");
    }
    let owner = cluster.owner_of("a");
    owner.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    owner.command(&["CONFIG", "SET", "maxmemory", "1gb"]);
    owner.command(&["SET", "tenure:{a}:queue:a", "x"]);
    let seen = see(&redis(&url)).await;
    seen.has_grave(2).has(Problem, &format!("{}: maxmemory-policy is", owner.address()), "noeviction");
    seen.has(Problem, "such a key fail: 1 (tenure:{a}:queue:a is a string)", "RENAME");
    look(owner, "").await.has_grave(1).has(Problem, "is a node of a Redis Cluster", "redis-cluster://");
}

#[tokio::test]
async fn behind_sentinels_the_master_is_looked_at() {
    let sentinels = Sentinels::start();
    let [first, ..] = sentinels.sentinels() else { panic!("no Sentinel") };
    let url = format!("redis-sentinel://{}?max_ttl=1s&master={}", first.address(), sentinels.name());
    let locks = granting(&url).await;
    let what = "2 replicas may lack the newest locks, as replication is asynchronous: a fail-over can lose them; that is \
                safe: the server grants nothing for 11s after a promotion";
    see(&locks).await.has(Note, what, "a shorter ?max_ttl=");
    look(first, "").await.has_grave(1).has(Problem, "this server is a Sentinel", "redis-sentinel://");
}

/// L1: a renewal on a master that lost its replicas would outlast what its successor waits for. A claim's check of the server, which
/// goes on at the same time, is no look at the replicas.
#[tokio::test]
async fn a_master_that_stands_alone_renews_nothing_beside_the_check_of_a_claim() {
    let (server, locks) = without_its_replica().await;
    let why = refusal(&locks, &claim("first", WaitMode::No)).await;
    assert!(why.contains("replica"), "{why}");
    let held = claim("held", WaitMode::No);
    let grant = Grant::new(held.name.clone(), held.owner, FencingToken::new(5), held.ttl);
    // A connection that finds it alone when it is made, and is to check it again after a second.
    let again = redis(&server.url("?max_ttl=1s"));
    let other = claim("other", WaitMode::No);
    for _ in 0..4 {
        let text = format!("{}:5:0:", held.owner);
        server.command(&["SET", "held", &text, "PX", "1500"]);
        let grants = std::slice::from_ref(&grant);
        let (claimed, renewed) = tokio::join!(again.claim(&other), again.renew(grants));
        assert!(claimed.is_err());
        assert!(renewed[0].is_err(), "{renewed:?}");
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
}
