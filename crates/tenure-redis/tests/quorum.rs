//! A server as one node of a quorum: its record, its counters, and what is raised.

use std::{fs, sync::Arc, time::Duration};

use tenure_core::{
    Adopt, Audience, Backend, BreakScope, ErrorKind, FencingToken, Outcome, QuorumNode, Raised, Released,
    Severity, WaitMode,
};
use tenure_redis::Redis;
use tenure_testkit::{
    clock::Clock,
    conformance::player::Player,
    redis::{Recipe, RedisServer},
};

use crate::stage::{
    Clocked, calls,
    entry::{LEASE, SHORT, claimant, let_in, look, passes, refusal},
    hint, hints, node,
};

/// A claimant of `job` at a node of three, with the handle by which it is raised.
struct Candidate {
    node: Arc<Redis>,
    player: Player,
}

impl Candidate {
    fn new(url: &str) -> Self {
        let node = node(url, 3);
        let mut player = Player::new(node.clone(), "job").waiting(WaitMode::Wake);
        player.claim.ttl = LEASE;
        Self { node, player }
    }

    fn at(server: &RedisServer) -> Self {
        Self::new(&server.url(SHORT))
    }

    async fn raise(&self, to: FencingToken) -> Raised {
        self.node.raise(&self.player.claim.name, self.player.claim.owner, to).await.unwrap()
    }

    async fn waits(&self) {
        self.player.queue_behind(0).await;
    }

    /// The fence, and the token that the holder is shown with.
    async fn counts(&self) -> (FencingToken, Option<FencingToken>) {
        let view = look(&self.player).await;
        (view.fence, view.holders.first().and_then(|holder| holder.token))
    }
}

/// A server that has waited already, as a node of three, and its clock, which is right.
fn aged() -> (RedisServer, Clock) {
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    server.has_waited("tenure:quorum", "quorum=3 guard=on max_ttl=1s");
    (server, clock)
}

fn plus(token: FencingToken, more: u64) -> FencingToken {
    FencingToken::new(token.get() + more)
}

fn settings(server: &RedisServer, record: &str) -> String {
    server.command(&["HGET", record, "settings"]).text()
}

const COUNTER: &str = "tenure:{job}:fence:job";

fn day_left(server: &RedisServer) -> i64 {
    server.command(&["PTTL", COUNTER]).int()
}

/// H3.3: a raise that comes late must not lift the counter over the tokens of the next holder, nor let it fall.
#[tokio::test]
async fn a_node_is_raised_only_for_its_holder_and_only_upwards() {
    let (server, clock) = aged();
    clock.freeze();
    let [holder, other, next] = [(); 3].map(|()| Candidate::at(&server));
    let token = holder.player.enter().await.token;
    let left = server.command(&["PTTL", "job"]).int();

    assert_eq!(holder.raise(plus(token, 100)).await, Raised::Raised);
    assert_eq!(
        holder.counts().await,
        (plus(token, 100), Some(plus(token, 100))),
        "`show` says what was granted"
    );
    assert_eq!(server.command(&["PTTL", "job"]).int(), left, "the lease is as long as it was");
    assert_eq!(holder.raise(plus(token, 50)).await, Raised::Raised, "it counts up to there already");
    assert_eq!(holder.counts().await, (plus(token, 100), Some(plus(token, 100))));

    assert_eq!(other.raise(plus(token, 500)).await, Raised::Gone);
    assert_eq!(holder.counts().await, (plus(token, 100), Some(plus(token, 100))));
    holder.player.leave().await;
    assert_eq!(holder.raise(plus(token, 500)).await, Raised::Gone);
    assert_eq!(next.player.enter().await.token, plus(token, 101));
    assert_eq!(holder.raise(plus(token, 500)).await, Raised::Gone);
    assert_eq!(next.counts().await, (plus(token, 101), Some(plus(token, 101))));
}

/// H1.1: whose turn has come holds nothing before it has entered.
#[tokio::test]
async fn a_waiter_that_was_handed_the_lock_is_not_raised() {
    let (server, clock) = aged();
    clock.freeze();
    let (holder, mut heir) = (Candidate::at(&server), Candidate::at(&server));
    heir.player.claim.wait = WaitMode::Turn;
    let token = holder.player.enter().await.token;
    heir.waits().await;
    holder.player.leave().await;
    assert_eq!(look(&heir.player).await.holders[0].owner, heir.player.claim.owner.to_string(), "handed on");
    assert_eq!(heir.raise(plus(token, 500)).await, Raised::Gone);
    assert_eq!(heir.player.enter().await.token, plus(token, 1));
}

/// H3.1, L1, L2: a node that forgot its counters starts above all of them, also if its clock is set back meanwhile.
#[tokio::test]
async fn a_node_that_restarted_empty_waits_and_then_counts_above_its_past() {
    let (server, clock) = aged();
    clock.freeze();
    let (a, b) = (Candidate::at(&server), Candidate::at(&server));
    let first = let_in(&a.player).await;
    assert!(first.refusals().is_empty());
    assert_eq!(
        a.raise(plus(first.grant.token, 400_000)).await,
        Raised::Raised,
        "by a node whose clock is ahead"
    );
    let before = b.node.identity().await.unwrap();

    server.kill();
    clock.run();
    server.start_again();
    let told = Candidate::at(&server);
    passes(&refusal(&told.player).await, "the Redis server is new to Tenure");
    assert_ne!(told.node.identity().await.unwrap(), before);
    clock.step(-30_000);
    let second = let_in(&b.player).await;
    second.is_after(&first, "it grants no locks for another");
    assert!(second.grant.token > plus(first.grant.token, 400_000), "{:?}", second.grant);
    assert!(u128::from(second.grant.token.get()) > clock.shows().as_micros(), "only the floor did that");
}

/// H3.5, H4.5: a majority of three and one of five need not meet, so both may not be counted on one server.
#[tokio::test]
async fn clients_that_count_other_majorities_are_refused_and_both_are_named() {
    let (server, _clock) = aged();
    let of_three = Candidate::at(&server);
    let grant = of_three.player.enter().await;
    let five = node(&server.url(SHORT), 5);
    let mut of_five = Player::new(five.clone(), "other").waiting(WaitMode::Wake);
    of_five.claim.ttl = LEASE;
    let names_both = |error: String| {
        error.contains("quorum=3 guard=on max_ttl=1s") && error.contains("quorum=5 guard=on max_ttl=1s")
    };
    let error = refusal(&of_five).await;
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Invalid, Outcome::NotApplied));
    assert!(names_both(error.to_string()), "{error}");
    assert!(names_both(five.identity().await.unwrap_err().to_string()), "also when it is asked who it is");
    node(&server.url("?max_ttl=2s"), 3).identity().await.expect("a larger max_ttl is served");

    let adoption = five.adopt(Adopt::Settings).await.unwrap();
    assert!(adoption.wait > Duration::from_millis(500), "{adoption:?}");
    let renewal = of_three.node.renew(std::slice::from_ref(&grant)).await.remove(0).unwrap_err();
    assert!(names_both(renewal.to_string()), "a lease of the old settings must end: {renewal}");
    let_in(&of_five).await;
    assert_eq!(settings(&server, "tenure:quorum"), "quorum=5 guard=on max_ttl=1s");
    assert!(names_both(refusal(&of_three.player).await.to_string()));
}

/// One server, alone and in a quorum: neither sees the other's settings, counters, or losses.
#[tokio::test]
async fn a_server_of_both_kinds_keeps_its_records_apart() {
    let (server, _clock) = aged();
    server.has_waited("tenure:one", "guard=on max_ttl=1s");
    let (alone, voter) = (claimant(&server.url(SHORT), "alone"), Candidate::at(&server));
    alone.enter().await;
    voter.player.enter().await;
    assert_eq!(settings(&server, "tenure:one"), "guard=on max_ttl=1s");
    assert_eq!(settings(&server, "tenure:quorum"), "quorum=3 guard=on max_ttl=1s");
    let records = || ["tenure:one", "tenure:quorum"].map(|key| server.command(&["HGETALL", key]));
    let before = records();
    voter.player.leave().await;
    voter.player.enter().await;
    assert_eq!(records(), before, "a mint touches no record, only the counter of the lock");
    assert_eq!(server.command(&["EXISTS", COUNTER, "tenure:{alone}:fence:alone"]).int(), 1);

    server.command(&["DEL", "tenure:quorum"]);
    alone.leave().await;
    alone.enter().await;
    passes(&refusal(&voter.player).await, "is new to Tenure");
    assert_eq!(settings(&server, "tenure:one"), "guard=on max_ttl=1s");
}

/// Names are many: a counter that nobody uses is forgotten, and the time is above it by then.
#[tokio::test]
async fn a_counter_lasts_for_a_day_after_its_last_use() {
    const DAY: i64 = 86_400_000;
    const HOUR: Duration = Duration::from_secs(3600);
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    clock.freeze();
    let holder = Candidate::new(&server.url("?guard=off"));
    let token = holder.player.enter().await.token;
    assert_eq!(day_left(&server), DAY);
    clock.advance(HOUR);
    let again = holder.player.enter().await.token;
    assert!(again > token && day_left(&server) == DAY);
    let late = clock.shows().as_micros() - u128::from(again.get());
    assert!(late < 100_000, "it counts on from the clock's last tenth of a second: {late}");
    assert_eq!(holder.player.enter().await.token, plus(again, 1), "within that, whatever the time is");
    clock.advance(LEASE / 2);
    holder.raise(plus(again, 2)).await;
    assert_eq!(day_left(&server), DAY);
    clock.advance(24 * HOUR + Duration::from_millis(1));
    assert_eq!(server.command(&["EXISTS", COUNTER]).int(), 0);
    assert_eq!(u128::from(holder.player.enter().await.token.get()), clock.shows().as_micros());
}

/// H4.1: without its record a node knows of nothing that it granted. Both verbs are refused with the reason and the time.
#[tokio::test]
async fn a_closed_gate_refuses_claims_and_raises_and_says_for_how_long() {
    let (server, _clock) = aged();
    let (mut holder, other) = (Candidate::at(&server), Candidate::at(&server));
    let token = holder.player.enter().await.token;
    other.waits().await;
    server.command(&["DEL", "tenure:quorum"]);
    let (name, owner) = (holder.player.claim.name.clone(), holder.player.claim.owner);
    let raised = holder.node.raise(&name, owner, plus(token, 9)).await.unwrap_err();
    for error in [raised, refusal(&other.player).await] {
        passes(&error, "it grants no locks for another");
        assert!(error.retry_hint().is_some_and(|wait| wait <= LEASE && !wait.is_zero()), "{error:?}");
    }
    assert_eq!(server.command(&["GET", COUNTER]).text(), token.to_string(), "nothing was raised");
    other.node.break_lock(&name, BreakScope::Leases).await.unwrap();
    let broken: u64 = server.command(&["GET", COUNTER]).text().parse().unwrap();
    assert!(broken > token.get(), "but a break raises it");
    let_in(&other.player).await;
    holder.player.claim.owner = other.player.claim.owner;
    assert_eq!(holder.raise(plus(token, 100_000_000)).await, Raised::Raised, "it is open again");
}

/// Nobody holds it and nobody waits: two calls, one look at gate, queue and lock, and a counter that is counted up.
#[tokio::test]
async fn a_free_lock_takes_no_more_than_the_plain_path() {
    let (server, _clock) = aged();
    let one = Candidate::at(&server);
    let commands = || calls(&server).iter().filter(|(name, _)| *name != "info").map(|(_, count)| count).sum();
    let mut least = u64::MAX;
    for _ in 0..5 {
        let before: u64 = commands();
        one.player.enter().await;
        assert_eq!(one.player.leave().await, Released::Released);
        // Once a second a server is looked at.
        least = least.min(commands() - before);
    }
    assert_eq!(least, 2 + 5 + 2, "evalsha; hget, exists, time, incr, set; get, del");
}

/// L2: a counter that is ahead of the clock is kept for as long as it is used, though no time comes that would raise it.
#[tokio::test]
async fn a_counter_that_is_ahead_of_the_clock_lasts_while_it_is_used() {
    const HOURS: Duration = Duration::from_secs(12 * 3600);
    let clock = Clock::new();
    let server = Recipe::new().clock(&clock).start();
    clock.freeze();
    let holder = Candidate::new(&server.url("?guard=off"));
    let mut last = plus(holder.player.enter().await.token, 48 * 3600 * 1_000_000);
    holder.raise(last).await;
    for _ in 0..4 {
        holder.player.leave().await;
        clock.advance(HOURS - Duration::from_secs(1));
        let token = holder.player.enter().await.token;
        assert_eq!(token, plus(last, 1));
        last = token;
    }
}

/// S3.3: a claim that is refused mints nothing, so that the nodes go on counting alike.
#[tokio::test]
async fn who_is_refused_leaves_the_counter_alone() {
    let (server, _clock) = aged();
    let (one, other) = (Candidate::at(&server), Candidate::at(&server));
    let token = one.player.enter().await.token;
    other.waits().await;
    assert_eq!(server.command(&["GET", COUNTER]).text(), token.to_string());
}

/// S3.3 g: they are woken, and nobody is made a holder; also those who were there before the holder came, and after a raise.
#[tokio::test]
async fn those_who_wait_are_woken_by_a_release_and_handed_nothing() {
    let (server, clock) = aged();
    clock.freeze();
    let [first, second, waiter] = [(); 3].map(|()| Candidate::at(&server));
    let mut stream = waiter.node.wakes(waiter.player.claim.owner.process(), Audience::Waiters);
    first.player.enter().await;
    waiter.waits().await;
    assert_eq!(hints(&server), 0);
    assert_eq!(first.player.leave().await, Released::Released);
    hint(&mut stream, waiter.player.claim.owner).await;
    assert!(look(&waiter.player).await.holders.is_empty());

    let token = second.player.enter().await.token;
    assert_eq!(hints(&server), 1, "who comes first takes it: nobody need be told");
    assert_eq!(second.raise(plus(token, 7)).await, Raised::Raised);
    assert_eq!(second.player.leave().await, Released::Released);
    hint(&mut stream, waiter.player.claim.owner).await;
    assert!(look(&waiter.player).await.holders.is_empty());
    assert_eq!((hints(&server), waiter.player.enter().await.token), (2, plus(token, 8)));
}

/// H3.5: whoever asks who a node is also wants to know whether it answers, and what is no node cannot be raised.
#[tokio::test]
async fn a_node_says_which_server_it_is_for_as_long_as_it_answers() {
    let (one, two) = (Clocked::new().server, RedisServer::start());
    let [a, b, other] =
        [&one, &one, &two].map(|server| node(&server.url("?guard=off&response_timeout=200ms"), 3));
    let run_id = a.identity().await.unwrap();
    assert_eq!(run_id, one.info("server", "run_id"));
    assert_eq!(a.another().await.unwrap().identity().await.unwrap(), run_id);
    assert_eq!(b.identity().await.unwrap(), run_id);
    assert_ne!(other.identity().await.unwrap(), run_id);
    one.stop();
    assert_eq!(a.identity().await.unwrap_err().kind(), ErrorKind::TimedOut);
    one.resume();

    let alone = Redis::new(
        tenure_redis::Config::from_url(&two.url("?guard=off")).unwrap(),
        Arc::new(tenure::backend::TokioHost),
    );
    let player = claimant(&two.url("?guard=off"), "job");
    let token = player.enter().await.token;
    let error = alone.raise(&player.claim.name, player.claim.owner, token).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotApplied));
}

/// The line in the README is enough for a node, and `diagnose` sees the record of the quorum.
#[tokio::test]
async fn a_node_needs_no_other_rights_and_is_diagnosed_by_its_own_record() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("ACL SETUSER tenure ")).expect("it has the line");
    let (server, clock) = aged();
    clock.freeze();
    assert_eq!(server.command(&line.split(' ').collect::<Vec<_>>()).error(), None);
    let poor = Candidate::new(&format!("redis://tenure:PASSWORD@{}/{SHORT}", server.address()));
    let token = poor.player.enter().await.token;
    assert_eq!(poor.raise(plus(token, 1)).await, Raised::Raised);
    poor.player.leave().await;
    poor.node.identity().await.unwrap();
    server.command(&["DEL", COUNTER]);

    clock.step(0);
    clock.run();
    let found = poor.node.diagnose().await.unwrap();
    assert!(found.iter().all(|finding| finding.severity == Severity::Note), "{found:#?}");
    let left = server.command(&["KEYS", "*"]);
    assert_eq!(format!("{left:?}"), r#"List([Text("tenure:quorum")])"#, "the visit leaves nothing behind");
    let found = node(&server.url(SHORT), 5).diagnose().await.unwrap();
    let grave: Vec<_> = found.iter().filter(|finding| finding.severity == Severity::Problem).collect();
    assert!(grave.len() == 1 && grave[0].remedy.contains("name the same nodes everywhere"), "{found:#?}");
    server.command(&["SET", "tenure:quorum", "theirs"]);
    let found = node(&server.url(SHORT), 3).diagnose().await.unwrap();
    assert!(found.iter().any(|finding| finding.remedy.contains("RENAME tenure:quorum")), "{found:#?}");
}
