//! Five real Redis servers, as one lock, keep the contract; and what only real ones show: data that are gone, and counted
//! commands.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use tenure::backend::TokioHost;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, ErrorKind, FencingToken,
    Finding, Grant, HolderView, LockName, LockView, Memo, Mode, Noted, OwnerId, ProcessId, Promises,
    Released, Renewal, WaitMode, WakeStream,
};
use tenure_redis::{Config, Redis};
use tenure_redlock::Redlock;
use tenure_testkit::{
    clock::Clock,
    conformance::{
        Arena,
        player::{Player, TTL},
    },
    entry::{Entry, let_in_within},
    patience::{becomes, becomes_ok, slowness},
    redis::{Recipe, RedisServer, Reply},
};

const NODES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(20);
/// The shortest guard: a lease is a second at most, and a server grants nothing for three after its start.
const SHORT: &str = "?max_ttl=1s";
const LEASE: Duration = Duration::from_secs(1);

/// As many as a quorum has, each by its own recipe.
fn five(recipe: impl Fn(usize) -> Recipe + Sync) -> Vec<RedisServer> {
    thread::scope(|scope| {
        let recipe = &recipe;
        let starts: Vec<_> = (0..NODES).map(|at| scope.spawn(move || recipe(at).start())).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    })
}

/// The quorum behind these ports, as one process has it.
fn quorum(ports: &[u16], query: &str) -> BackendHandle {
    let node = |port: &u16| {
        let config = Config::from_url(&format!("redis://127.0.0.1:{port}{query}")).unwrap();
        let config = config.in_quorum(ports.len()).unwrap();
        (config.place_name(), Arc::new(Redis::new(config, Arc::new(TokioHost))))
    };
    Arc::new(Redlock::new(ports.iter().map(node).collect(), Arc::new(TokioHost)).unwrap())
}

fn ports(servers: &[RedisServer]) -> Vec<u16> {
    servers.iter().map(RedisServer::port).collect()
}

/// A quorum of answers is enough for a verb, and its requests to the other nodes are still under way. The cases go on, and
/// clocks jump, only when nothing is: so what they see is the same every time.
struct Step {
    quorum: BackendHandle,
    servers: Arc<Vec<RedisServer>>,
}

impl Step {
    fn through(servers: &Arc<Vec<RedisServer>>) -> BackendHandle {
        Arc::new(Self { quorum: quorum(&ports(servers), "?guard=off"), servers: servers.clone() })
    }

    fn is_everywhere(&self, claim: &Claim) -> bool {
        let (key, owner) = (claim.name.as_str(), claim.owner.to_string());
        let holds = |server: &RedisServer| matches!(server.command(&["GET", key]), Reply::Text(value) if value.starts_with(&owner));
        self.servers.iter().all(holds)
    }

    async fn done<A>(&self, answer: A) -> A {
        let mut before = Vec::new();
        loop {
            let run: Vec<u64> = self.servers.iter().map(scripts_run).collect();
            if run == before {
                return answer;
            }
            before = run;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl Backend for Step {
    fn promises(&self) -> Promises {
        self.quorum.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        self.quorum.handle().await
    }

    /// A node that was too slow for the claim is free: whoever comes next would be let in there, give that back, and need another owner,
    /// which a case does not have. So whoever was let in asks again until it holds everywhere.
    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let began = Instant::now();
        loop {
            let answer = self.done(self.quorum.claim(claim).await).await;
            let is_granted = matches!(answer, Ok(ClaimAnswer::Granted(_))) && claim.mode == Mode::Exclusive;
            if !is_granted || self.is_everywhere(claim) {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE * slowness(), "it holds on some nodes only");
        }
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.done(self.quorum.renew(grants).await).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.done(self.quorum.release(name, owner).await).await
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        self.quorum.tell(name, whom, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.done(self.quorum.note(name, owner, token, memo).await).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.quorum.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.quorum.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.quorum.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.done(self.quorum.break_lock(name, scope).await).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.quorum.diagnose().await
    }
}

struct Five {
    clock: Clock,
    servers: Arc<Vec<RedisServer>>,
    here: BackendHandle,
    passed_ms: AtomicU64,
}

#[async_trait]
impl Arena for Five {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    /// Another process: it remembers nothing of what this one saw.
    async fn elsewhere(&self) -> BackendHandle {
        Step::through(&self.servers)
    }

    async fn pass(&self, d: Duration) {
        let ms = u64::try_from(d.as_millis()).unwrap();
        let passed = self.passed_ms.fetch_add(ms, Ordering::SeqCst) + ms;
        self.clock.step(i64::try_from(passed).unwrap());
    }
}

async fn arena() -> Five {
    let clock = Clock::new();
    let servers = Arc::new(five(|_| Recipe::new().clock(&clock)));
    let here = Step::through(&servers);
    Five { clock, servers, here, passed_ms: AtomicU64::new(0) }
}

tenure_testkit::conformance!(arena, real_time);

/// A world of five servers; the clock of the first is so much ahead.
struct World {
    servers: Vec<RedisServer>,
    /// Ports that take connections and never say a word: what a client sees of a node that it cannot reach.
    holes: Vec<TcpListener>,
}

impl World {
    fn new(ahead_ms: i64) -> Self {
        let clocks: Vec<Clock> = (0..NODES).map(|_| Clock::new()).collect();
        clocks[0].step(ahead_ms);
        let servers = five(|at| Recipe::new().clock(&clocks[at]));
        let holes = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        Self { servers, holes }
    }

    /// Its nodes have waited already.
    fn guarded(ahead_ms: i64) -> Self {
        let world = Self::new(ahead_ms);
        for server in &world.servers {
            server.has_waited("tenure:quorum", &format!("quorum={NODES} guard=on max_ttl=1s"));
        }
        world
    }

    /// A claimant of `job` as another process has it, which reaches all nodes but these two.
    fn claimant(&self, query: &str, unreachable: [usize; 2]) -> Player {
        let mut ports = ports(&self.servers);
        for (hole, node) in self.holes.iter().zip(unreachable) {
            ports[node] = hole.local_addr().unwrap().port();
        }
        let mut player = Player::new(quorum(&ports, query), "job").waiting(WaitMode::No);
        player.claim.ttl = LEASE;
        player
    }

    /// A node forgets everything.
    fn forget(&self, node: usize) {
        self.servers[node].kill();
        self.servers[node].start_again();
    }
}

/// Claims until it is let in. A refusal must be one that passes.
async fn let_in(player: &Player) -> Entry {
    let_in_within(PATIENCE, player).await
}

/// H3.1, L1, L2: the one node that both quorums have in common forgot the lease and its counter. It waits, and so does the
/// second quorum; then the lease is over, and the counter begins above all that it may have forgotten.
#[tokio::test]
async fn a_node_that_came_back_empty_lets_no_second_quorum_in_beside_the_first() {
    let world = World::guarded(400);
    let (first, second) = (world.claimant(SHORT, [3, 4]), world.claimant(SHORT, [0, 1]));
    let held = let_in(&first).await;
    world.forget(2);
    let next = let_in(&second).await;
    assert!(next.asked >= held.believed_until(), "two held at once");
    assert!(next.grant.token > held.grant.token, "{:?} after {:?}", next.grant, held.grant);
    let told = next.errors.iter().any(|error| error.to_string().contains("it grants no locks for another"));
    assert!(told, "{:?}", next.errors);
}

/// H3.1: without the guard the second comes in at once, and with a smaller token where clocks differ: nothing protects.
#[tokio::test]
async fn without_the_guard_a_second_quorum_comes_in_beside_the_first_with_a_smaller_token() {
    const HOUR: i64 = 3_600_000;
    let world = World::new(HOUR);
    let mut first = world.claimant("?guard=off", [3, 4]);
    first.claim.ttl = Duration::from_secs(600);
    let second = world.claimant("?guard=off", [0, 1]);
    let held = let_in(&first).await;
    world.forget(2);
    let next = let_in(&second).await;
    assert!(next.asked < held.believed_until(), "the hazard did not show");
    assert!(next.grant.token < held.grant.token, "{:?} after {:?}", next.grant, held.grant);
}

/// The requests of ours that a server has run.
fn scripts_run(server: &RedisServer) -> u64 {
    let text = server.command(&["INFO", "commandstats"]).text();
    let calls = |line: &str| -> Option<u64> {
        let stats = line
            .strip_prefix("cmdstat_evalsha:calls=")
            .or_else(|| line.strip_prefix("cmdstat_eval:calls="))?;
        stats.split(',').next()?.parse().ok()
    };
    text.lines().filter_map(calls).sum()
}

/// A waiter behind a client that notifies no waiter asked every two seconds, and entered never while that client came back immediately.
#[tokio::test]
async fn the_first_waiter_follows_a_foreign_holder_and_asks_little() {
    let servers = five(|_| Recipe::new());
    let quorum = quorum(&ports(&servers), "?guard=off");
    let (first, next) = (Player::new(quorum.clone(), "job"), Player::new(quorum, "job"));
    let retry_after = async |player: &Player| match player.ask().await {
        ClaimAnswer::Queued { retry_after, holder: Some(holder), .. } if holder.is_foreign() => retry_after,
        other => panic!("{other:?}"),
    };
    let set = |value| {
        servers.iter().for_each(|server| drop(server.command(&["SET", "job", value, "PX", "100000"])))
    };
    set("a");
    // A waiter asks again: a node that did not answer in time has no place for it.
    becomes("it waits at every node", PATIENCE, async || {
        retry_after(&first).await;
        servers.iter().all(|server| waiting(server) == 1).then_some(())
    })
    .await;
    assert!(retry_after(&next).await > Duration::from_secs(1), "only the first one asks often");
    let before: u64 = servers.iter().map(|server| counted(server, "zadd")).sum();
    for value in ["b", "c", "d"] {
        set(value);
        assert_eq!(retry_after(&first).await, Duration::from_millis(20), "{value}");
    }
    let after = servers.iter().map(|server| counted(server, "zadd")).sum::<u64>();
    assert!(after - before <= NODES as u64, "no claim in full each time: {before}, {after}");
    servers.iter().for_each(|server| drop(server.command(&["DEL", "job"])));
    first.enter().await;
}

fn waiting(server: &RedisServer) -> i64 {
    server.command(&["ZCARD", "tenure:{job}:queue:job"]).int()
}

/// How often a server ran this command, also in scripts.
fn counted(server: &RedisServer, command: &str) -> u64 {
    let text = server.command(&["INFO", "commandstats"]).text();
    let calls = text
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls="));
    calls.map_or(0, |calls| {
        calls.split(',').next().and_then(|calls| calls.parse().ok()).expect("BUG: a number")
    })
}

/// S3.3: each node counts this lock alone, and who granted late is raised afterwards as well. So the counters agree, and
/// from then on an acquisition is one request per node, and so is a release.
#[tokio::test]
async fn once_the_counters_agree_an_acquisition_is_one_round() {
    const CYCLES: u64 = 5;
    let servers = five(|_| Recipe::new());
    let here = quorum(&ports(&servers), "?guard=off");
    let cycle = async || {
        let player = Player::new(here.clone(), "job").waiting(WaitMode::No);
        player.enter().await;
        assert_eq!(player.leave().await, Released::Released);
    };
    let counters = || -> Vec<String> {
        servers
            .iter()
            .map(|server| format!("{:?}", server.command(&["GET", "tenure:{job}:fence:job"])))
            .collect()
    };
    // Nodes that have never counted begin at their own time.
    let agree = || {
        let counters = counters();
        if counters.iter().all(|counter| *counter == counters[0]) { Ok(()) } else { Err(counters) }
    };
    let nobody_holds = || servers.iter().all(|server| server.command(&["EXISTS", "job"]).int() == 0);
    let become_equal = async || {
        cycle().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        agree()
    };
    becomes_ok("the counters agree", PATIENCE, become_equal).await;
    let run_since = |before: &[u64]| -> Vec<u64> {
        servers.iter().zip(before).map(|(server, before)| scripts_run(server) - before).collect()
    };
    // Each node raises its counter to its clock in steps of 100 ms, and not all at the same moment: between two steps they agree.
    let step = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() / 100;
    let before = async || {
        let deadline = Instant::now() + PATIENCE * slowness();
        loop {
            cycle().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            // A node whose last script ran in the next step is ahead, and one that still holds is yet to be told to release: the
            // scripts of that would be counted among those of the five.
            let at_rest = agree().is_ok() && nobody_holds();
            let before: Vec<u64> = servers.iter().map(scripts_run).collect();
            let begun = step();
            for cycles in 1..=CYCLES {
                cycle().await;
                // A quorum decides: on a slow node the next claim could come before this release, and ask twice.
                while run_since(&before).iter().any(|run| *run < 2 * cycles) && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            if at_rest && step() == begun {
                break before;
            }
            assert!(Instant::now() < deadline, "five cycles never fit into a step");
        }
    };
    let five_cycles = async || {
        let before = before().await;
        // The last answers may still be under way, and whatever was too much.
        let answered = Instant::now() + PATIENCE * slowness();
        let run = loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let run = run_since(&before);
            if run.iter().all(|run| *run >= 2 * CYCLES) || Instant::now() > answered {
                break run;
            }
        };
        assert_eq!(run, [2 * CYCLES; NODES]);
        // A node that ran its last script in the next step is ahead: then they are counted once more.
        agree()
    };
    becomes_ok("the counters agree afterwards", PATIENCE, five_cycles).await;
}

/// L6: a quorum of answers decides, and the other nodes are renewed all the same: without them the next node that fails
/// would take the lease with it.
#[tokio::test]
async fn a_renewal_reaches_every_node() {
    let arena = arena().await;
    let here = quorum(&ports(&arena.servers), "?guard=off");
    let player = Player::new(here, "job").waiting(WaitMode::No);
    let grant = player.enter().await;
    for round in 0..3 {
        arena.pass(TTL * 2 / 3).await;
        assert_eq!(player.renew(&grant).await, Renewal::Renewed);
        let left = || -> Vec<i64> {
            arena.servers.iter().map(|server| server.command(&["PTTL", "job"]).int()).collect()
        };
        let deadline = Instant::now() + TTL / 10 * slowness();
        while left().iter().any(|left| Duration::from_millis((*left).max(0).cast_unsigned()) < TTL / 2) {
            assert!(Instant::now() < deadline, "round {round}, ms left on the nodes: {:?}", left());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// H3.5: whoever finds one server under two names asks it for nothing.
#[tokio::test]
async fn one_server_under_two_names_is_refused() {
    let servers = five(|_| Recipe::new());
    let named = |place: &str, port: u16| {
        let config = Config::from_url(&format!("redis://{place}:{port}?guard=off")).unwrap().in_quorum(NODES);
        let config = config.unwrap();
        (config.place_name(), Arc::new(Redis::new(config, Arc::new(TokioHost))))
    };
    let mut nodes: Vec<_> = ports(&servers[..4]).into_iter().map(|port| named("127.0.0.1", port)).collect();
    nodes.push(named("localhost", servers[0].port()));
    let quorum: BackendHandle = Arc::new(Redlock::new(nodes, Arc::new(TokioHost)).unwrap());
    // Three servers that are three may grant before the name that is slow is known.
    let refused = async || {
        let player = Player::new(quorum.clone(), "job").waiting(WaitMode::No);
        match player.backend.claim(&player.claim).await {
            Ok(_) => {
                player.leave().await;
                None
            }
            Err(error) => Some(error),
        }
    };
    let error = becomes("it is refused", PATIENCE, refused).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("one server under two names"), "{error}");
    let deadline = Instant::now() + TTL / 2;
    loop {
        let left: Vec<_> = servers.iter().map(|server| server.command(&["GET", "job"])).collect();
        if left.iter().all(|left| *left == Reply::Nil) {
            return;
        }
        assert!(Instant::now() < deadline, "left there: {left:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
