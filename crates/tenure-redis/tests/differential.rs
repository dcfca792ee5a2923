//! The scripts against the ledger: random histories get the same answers, with the server's time under control. Now and then
//! the gate is closed, and nobody listens to some of those who wait. As a node of a quorum, which counts from the same floor,
//! a server gives the same tokens as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use tenure_core::{
    BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, ErrorKind, FencingToken, Grant, HolderView,
    Label, LockName, LockView, Mode, Moment, Outcome, OwnerId, Priority, ProcessId, QuorumNode, WaitMode,
};
use tenure_ledger::{Floor, Rules};
use tenure_redis::Redis;
use tenure_testkit::{patience::eventually, redis::Raw};

use crate::stage::{
    Clocked, node, redis,
    reference::{Reference, Scene},
};

/// Redis ends a key one millisecond after its last, the ledger at its last: all times are multiples of ten, and all
/// leases end on a five, so that nothing is asked in between.
const STEP: u64 = 10;
const CLAIM_TTL: Duration = Duration::from_millis(505);
const TTLS: [u64; 3] = [105, 1005, 3005];

/// Locks on which all wait for a turn, and one whose waiters are only woken, as Redlock's are.
const NAMES: [&str; 4] = ["a", "{tag}b", "c", "woken"];

/// Clients at a time. Each learns by itself that the gate was closed, from its first claim.
const CLIENTS: usize = 3;

/// No request may be given up among ten thousand: what became of it would not be known.
const PATIENT: &str = "&response_timeout=30s&connect_timeout=30s";

/// For how long a gate that was closed stays so, unless it is opened: longer than any history.
const CLOSED_FOR: Duration = Duration::from_secs(600);

const PATIENCE: Duration = Duration::from_secs(20);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// Both, side by side.
struct Pair {
    server: Clocked,
    is_node: bool,
    /// Claims are of all classes, the gate stays open, and all are heard.
    has_classes: bool,
    clients: Vec<Client>,
    is_open: bool,
    ledgers: BTreeMap<&'static str, Reference>,
    rules: Rules,
    now: Duration,
    chance: Chance,
    processes: Vec<ProcessId>,
    /// Connections on which hints are heard.
    listening: BTreeMap<ProcessId, Raw>,
    heard: BTreeSet<ProcessId>,
    /// Owners that were used, newest last; what is late comes from here.
    owners: Vec<(&'static str, OwnerId, Mode)>,
    /// The last tokens of both, per lock.
    tokens: BTreeMap<&'static str, (FencingToken, FencingToken)>,
    trail: Vec<String>,
}

/// A handle to the server, twice if it is a node of a quorum.
#[derive(Clone)]
struct Client {
    redis: BackendHandle,
    node: Option<Arc<Redis>>,
}

/// What is compared of a holder: not which one, for several leases may end at once.
fn seen(holder: Option<&HolderView>) -> Option<Option<Duration>> {
    holder.map(|h| h.expires_in)
}

type Seen = (Vec<(String, Mode, bool, Option<Duration>)>, Vec<(String, Mode, Priority)>);

fn view(view: &LockView) -> Seen {
    let mut holders: Vec<_> =
        view.holders.iter().map(|h| (h.owner.clone(), h.mode, h.token.is_some(), h.expires_in)).collect();
    holders.sort_by(|a, b| a.0.cmp(&b.0));
    (holders, view.queue.iter().map(|w| (w.owner.clone(), w.mode, w.priority)).collect())
}

impl Pair {
    async fn new(seed: u64, (is_node, has_classes): (bool, bool)) -> Self {
        let server = Clocked::new();
        let now = Duration::from_millis(1_800_000_000_000);
        server.clock.freeze_at(now);
        let processes: Vec<_> = (1..=4).map(|n| ProcessId::from_random([n; 8])).collect();
        let floor = if is_node { Floor::Count(micros(now)) } else { Floor::Clock };
        let ledgers = NAMES.iter().map(|name| (*name, Reference::new(0))).collect();
        let mut pair = Self {
            server,
            is_node,
            has_classes,
            clients: Vec::new(),
            is_open: false,
            ledgers,
            rules: Rules { claim_ttl: CLAIM_TTL, floor, ..Rules::default() },
            now,
            chance: Chance(seed),
            processes: processes.clone(),
            listening: BTreeMap::new(),
            heard: BTreeSet::new(),
            owners: Vec::new(),
            tokens: BTreeMap::new(),
            trail: Vec::new(),
        };
        for process in processes {
            pair.listen(process);
        }
        // The first one finds no record: the server must wait.
        let first = pair.connect();
        assert_shut(first.redis.claim(&pair.any_claim("a")).await.map(drop), "at first");
        pair.now += CLOSED_FOR;
        pair.server.clock.freeze_at(pair.now);
        pair.open_gate();
        pair
    }

    fn connect(&self) -> Client {
        let (claim_ttl, max_ttl) = (CLAIM_TTL.as_millis(), CLOSED_FOR.as_secs());
        let url =
            self.server.server.url(&format!("?guard=on&claim_ttl={claim_ttl}ms&max_ttl={max_ttl}s{PATIENT}"));
        if self.is_node {
            let node = node(&url, 3);
            return Client { redis: node.clone(), node: Some(node) };
        }
        Client { redis: redis(&url), node: None }
    }

    fn client(&mut self) -> Client {
        let at = self.chance.below(CLIENTS as u64);
        self.clients[usize::try_from(at).unwrap()].clone()
    }

    fn raw(&self, words: &[&str]) -> tenure_testkit::redis::Reply {
        self.server.server.command(words)
    }

    fn record(&self) -> &'static str {
        if self.is_node { "tenure:quorum" } else { "tenure:one" }
    }

    /// The field of the record that is the open gate.
    fn gate(&self) -> String {
        let fields = self.raw(&["HKEYS", self.record()]).texts();
        fields.into_iter().find(|field| field.contains('.')).expect("the gate is open")
    }

    /// As `rewound.lua` and a restart do: the counter waits in `token`.
    fn close_gate(&mut self) {
        self.trail.push(format!("{:?} the gate is closed", self.now));
        let (gate, record) = (self.gate(), self.record());
        let counter = self.raw(&["HGET", record, &gate]).text();
        let ready = (self.now + CLOSED_FOR).as_millis().to_string();
        let wait = CLOSED_FOR.as_millis().to_string();
        self.raw(&["HSET", record, "ready", &ready, "wait", &wait, "token", &counter]);
        self.raw(&["HDEL", record, &gate]);
        self.is_open = false;
    }

    /// The wait is over, and new clients look at the server; the first of them opens the gate.
    fn open_gate(&mut self) {
        self.trail.push(format!("{:?} the gate is open", self.now));
        let (ready, record) = (self.now.as_millis().to_string(), self.record());
        self.raw(&["HSET", record, "ready", &ready]);
        self.clients = (0..CLIENTS).map(|_| self.connect()).collect();
        self.is_open = true;
        if let Floor::Count(floor) = self.rules.floor {
            self.rules.floor = Floor::Count(floor.max(micros(self.now)));
        }
    }

    fn listen(&mut self, process: ProcessId) {
        let mut raw = self.server.server.raw();
        raw.command(&["SUBSCRIBE", &format!("tenure:p:{process}")]);
        self.listening.insert(process, raw);
        self.heard.insert(process);
    }

    /// As with a connection that was cut, or a process that was killed.
    fn fall_deaf(&mut self, process: ProcessId) {
        self.listening.remove(&process);
        self.heard.remove(&process);
        let channel = format!("tenure:p:{process}");
        let is_gone = || (self.raw(&["PUBSUB", "NUMSUB", &channel]).list().pop()?.int() == 0).then_some(());
        eventually("nobody listens", PATIENCE, is_gone);
    }

    /// The gate is opened or closed, or somebody is heard no more, or again.
    async fn turn_something(&mut self) {
        let process = self.chance.of(&self.processes.clone());
        match self.chance.below(12) {
            0..=1 if self.is_open => self.close_gate(),
            0..=4 if !self.is_open => {
                self.open_gate();
                // Looked at, so that the floor is the time of now.
                for client in self.clients.clone() {
                    client.redis.inspect(&LockName::new("a").unwrap()).await.unwrap();
                }
                self.gate();
            }
            _ if !self.heard.contains(&process) => {
                self.trail.push(format!("{:?} {process} is heard", self.now));
                self.listen(process);
            }
            5..=8 => {
                self.trail.push(format!("{:?} {process} is heard no more", self.now));
                self.fall_deaf(process);
            }
            _ => {}
        }
    }

    /// The ledger of a lock, and all that it depends on.
    fn sides(&mut self, name: &str) -> (&mut Reference, Scene<'_>) {
        let Self { ledgers, rules, is_open, heard, now, .. } = self;
        let now = Moment { boot: *now, wall: *now };
        (ledgers.get_mut(name).unwrap(), Scene { now, rules, is_open: *is_open, heard })
    }

    fn moment(&self) -> Moment {
        Moment { boot: self.now, wall: self.now }
    }

    fn mode(&mut self, name: &str) -> Mode {
        let several = |permits, limit| {
            let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).unwrap());
            Mode::several(limit, permits).unwrap()
        };
        let shared = |limit| several(1, limit);
        match name {
            // Mostly a mutex: its plain paths must be met as well.
            "a" => self.chance.of(&[Mode::Exclusive; 1]),
            "c" => {
                self.chance.of(&[shared(2), shared(3), several(2, 3), several(3, 4), shared(4), shared(1)])
            }
            // Redlock has mutexes only, and only they are raised.
            "woken" if self.is_node => Mode::Exclusive,
            _ => self.chance.of(&[Mode::Exclusive, Mode::READ, Mode::READ, shared(2)]),
        }
    }

    fn owner(&mut self, name: &'static str) -> (OwnerId, Mode) {
        let recent: Vec<_> = self.owners.iter().rev().take(60).filter(|o| o.0 == name).copied().collect();
        if recent.len() >= 3 && self.chance.below(3) > 0 {
            let (_, owner, mode) = self.chance.of(&recent[..recent.len().min(8)]);
            return (owner, mode);
        }
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&self.chance.below(u64::MAX).to_be_bytes());
        let process = self.chance.of(&self.processes.clone());
        let (owner, mode) = (OwnerId::from_random(process, bits), self.mode(name));
        self.owners.push((name, owner, mode));
        (owner, mode)
    }

    async fn step(&mut self) {
        let name = self.chance.of(&NAMES);
        match self.chance.below(21) {
            0..=8 => self.claim(name).await,
            9..=11 => self.renew(name).await,
            12..=16 => self.release(name).await,
            17 => self.look(name).await,
            18 if self.chance.below(4) == 0 => self.break_lock(name).await,
            18 if self.is_node => self.as_a_node(name).await,
            20 if !self.has_classes => self.turn_something().await,
            _ => {
                let most = self.chance.of(&[10, 60, 300]);
                self.now += Duration::from_millis(STEP * self.chance.below(most));
                self.server.clock.freeze_at(self.now);
            }
        }
    }

    fn any_claim(&mut self, name: &'static str) -> Claim {
        let (owner, mode) = self.owner(name);
        let ttl = Duration::from_millis(self.chance.of(&TTLS));
        let wait = match name {
            "woken" => self.chance.of(&[WaitMode::Wake, WaitMode::Wake, WaitMode::No]),
            _ => self.chance.of(&[WaitMode::Turn, WaitMode::Turn, WaitMode::No]),
        };
        let (label, lock) = (Arc::new(Label::new("host", 1, "user", "test")), LockName::new(name).unwrap());
        let block = if self.is_node { self.chance.of(&[1, 1, 2, 1000, 30_000]) } else { 1 };
        let claim = Claim::new(lock, owner, mode, ttl).with_label(label).with_block(block).with_wait(wait);
        // An owner asks in its class again.
        let class =
            owner.hex()[16..24].iter().map(|digit| usize::from(*digit)).sum::<usize>() % Priority::ALL.len();
        if self.has_classes && wait != WaitMode::Wake {
            claim.with_priority(Priority::ALL[class])
        } else {
            claim
        }
    }

    async fn claim(&mut self, name: &'static str) {
        let claim = self.any_claim(name);
        let Claim { owner, mode, ttl, block, wait, .. } = &claim;
        self.trail.push(format!("{:?} claim {name} {owner} {mode} {ttl:?} {block} {wait:?}", self.now));
        let ours = self.client().redis.claim(&claim).await;
        if !self.is_open {
            return assert_shut(ours.map(drop), &self.story());
        }
        let (ledger, scene) = self.sides(name);
        let (theirs, ours) = (ledger.claim(&scene, &claim), ours.unwrap());
        match (&theirs, &ours) {
            (ClaimAnswer::Granted(theirs), ClaimAnswer::Granted(ours)) => {
                let [theirs_told, ours_told] =
                    [theirs, ours].map(|grant| (grant.owner, grant.ttl, grant.block));
                assert_eq!(theirs_told, ours_told, "{}", self.story());
                self.in_order(name, theirs.token, ours.token);
            }
            (
                ClaimAnswer::Queued { ahead: a, retry_after: r, holder: h },
                ClaimAnswer::Queued { ahead, retry_after, holder },
            ) => assert_eq!(
                (a, r, seen(h.as_ref())),
                (ahead, retry_after, seen(holder.as_ref())),
                "{}",
                self.story()
            ),
            (ClaimAnswer::Busy { retry_after: r, holder: h }, ClaimAnswer::Busy { retry_after, holder }) => {
                assert_eq!((r, seen(h.as_ref())), (retry_after, seen(holder.as_ref())), "{}", self.story());
            }
            _ => panic!("the ledger: {theirs:?}\nRedis: {ours:?}\n{}", self.story()),
        }
    }

    /// L2: tokens of one lock grow on both sides; they are not equal, for each counts from its own floor. A node has the
    /// floor that the ledger has.
    fn in_order(&mut self, name: &'static str, theirs: FencingToken, ours: FencingToken) {
        if self.is_node {
            assert_eq!(theirs, ours, "{}", self.story());
        }
        if let Some((before, before_ours)) = self.tokens.insert(name, (theirs, ours)) {
            assert!(theirs > before && ours > before_ours, "{}", self.story());
        }
    }

    async fn renew(&mut self, name: &'static str) {
        let (owner, _) = self.owner(name);
        let ttl = Duration::from_millis(self.chance.of(&TTLS));
        self.trail.push(format!("{:?} renew {name} {owner} {ttl:?}", self.now));
        let (ledger, scene) = self.sides(name);
        let theirs = ledger.renew(&scene, owner, ttl);
        let grant = Grant::new(LockName::new(name).unwrap(), owner, FencingToken::new(0), ttl);
        let ours = self.client().redis.renew(&[grant]).await.pop().unwrap().unwrap();
        assert_eq!(theirs, ours, "{}", self.story());
    }

    async fn release(&mut self, name: &'static str) {
        let (owner, _) = self.owner(name);
        self.trail.push(format!("{:?} release {name} {owner}", self.now));
        let (ledger, scene) = self.sides(name);
        let theirs = ledger.release(&scene, owner);
        let ours = self.client().redis.release(&LockName::new(name).unwrap(), owner).await.unwrap();
        assert_eq!(theirs, ours, "{}", self.story());
    }

    async fn break_lock(&mut self, name: &'static str) {
        self.trail.push(format!("{:?} break {name}", self.now));
        let (ledger, scene) = self.sides(name);
        let mut theirs: Vec<String> = ledger.break_lock(&scene).into_iter().map(|h| h.owner).collect();
        let robbed =
            self.client().redis.break_lock(&LockName::new(name).unwrap(), BreakScope::Leases).await.unwrap();
        let mut ours: Vec<String> = robbed.into_iter().map(|h| h.owner).collect();
        theirs.sort();
        ours.sort();
        assert_eq!(theirs, ours, "{}", self.story());
    }

    async fn look(&mut self, name: &'static str) {
        self.trail.push(format!("{:?} look {name}", self.now));
        let lock = LockName::new(name).unwrap();
        let theirs = self.ledgers[name].view(name, self.moment());
        let ours = self.client().redis.inspect(&lock).await.unwrap();
        assert_eq!(view(&theirs), view(&ours), "{}", self.story());
        if let Some((_, last)) = self.tokens.get(name) {
            assert!(ours.fence >= *last, "{}", self.story());
        }
        if let Floor::Count(floor) = self.rules.floor {
            assert_eq!(ours.fence.get(), theirs.fence.get().max(floor), "{}", self.story());
        }
    }

    /// What happens to nodes of a quorum only.
    async fn as_a_node(&mut self, name: &'static str) {
        match self.chance.below(8) {
            0 if self.is_open => self.open_anew(),
            1..=2 => self.lose_counter(name),
            _ => self.raise("woken").await,
        }
    }

    async fn raise(&mut self, name: &'static str) {
        let (owner, _) = self.owner(name);
        let fence = self.ledgers[name].fence().max(1000);
        let to = FencingToken::new(fence + self.chance.below(3000) - 1000);
        self.trail.push(format!("{:?} raise {name} {owner} {to}", self.now));
        let node = self.client().node.unwrap();
        let ours = node.raise(&LockName::new(name).unwrap(), owner, to).await;
        if !self.is_open {
            return assert_shut(ours.map(drop), &self.story());
        }
        let (ledger, scene) = self.sides(name);
        let theirs = ledger.raise(&scene, owner, to);
        assert_eq!(theirs, ours.unwrap(), "{}", self.story());
    }

    /// As after a wait that ended with a clock that had been set back: the floor is above counters and clock.
    fn open_anew(&mut self) {
        let floor = micros(self.now) + self.chance.below(100_000);
        self.trail.push(format!("{:?} floor {floor}", self.now));
        self.raw(&["HSET", self.record(), &self.gate(), &floor.to_string()]);
        self.rules.floor = Floor::Count(floor);
    }

    /// The counter of a lock that is free is forgotten, or an old one comes back.
    fn lose_counter(&mut self, name: &'static str) {
        let is_free = self.ledgers[name].view(name, self.moment());
        if !(is_free.holders.is_empty() && is_free.queue.is_empty()) {
            return;
        }
        let old = self.chance.of(&[0, 5, micros(self.now) - 1_000_000]);
        self.trail.push(format!("{:?} counter of {name} is {old}", self.now));
        let tag = name.trim_start_matches('{').split('}').next().unwrap();
        let key = format!("tenure:{{{tag}}}:fence:{name}");
        match old {
            0 => self.raw(&["DEL", &key]),
            _ => self.raw(&["SET", &key, &old.to_string()]),
        };
        self.ledgers.insert(name, Reference::new(old));
        self.tokens.remove(name);
    }

    fn story(&self) -> String {
        let from = self.trail.len().saturating_sub(40);
        format!("the last of {} steps:\n{}", self.trail.len(), self.trail[from..].join("\n"))
    }
}

/// L9: nothing was applied, and why is said.
fn assert_shut(answer: Result<(), BackendError>, story: &str) {
    let error = answer.expect_err(story);
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{story}");
    assert!(error.retry_hint().is_some(), "{error:?}\n{story}");
}

async fn history(seed: u64, is_node: bool) {
    play(Pair::new(seed, (is_node, false)).await).await;
}

async fn play(mut pair: Pair) {
    for _ in 0..10_000 {
        pair.step().await;
    }
    for name in NAMES {
        pair.look(name).await;
    }
}

/// L1, L2, L4 to L8 by the ledger, whose tests hold them over random histories.
#[tokio::test]
async fn ten_thousand_operations_get_the_ledgers_answers_seed_1() {
    history(1, false).await;
}

/// The same with another seed.
#[tokio::test]
async fn ten_thousand_operations_get_the_ledgers_answers_seed_2() {
    history(2, false).await;
}

/// The same with another seed: `TENURE_TEST_SEED`, or 3.
#[tokio::test]
async fn ten_thousand_operations_get_the_ledgers_answers_seed_of_yours() {
    let seed = std::env::var("TENURE_TEST_SEED")
        .map_or(3, |seed| seed.parse().expect("TENURE_TEST_SEED is a number"));
    history(seed, false).await;
}

/// The same of a node of a quorum, token by token (H3.1, H3.3).
#[tokio::test]
async fn ten_thousand_operations_of_a_node_get_the_ledgers_answers_and_tokens_seed_4() {
    history(4, true).await;
}

/// The same with another seed.
#[tokio::test]
async fn ten_thousand_operations_of_a_node_get_the_ledgers_answers_and_tokens_seed_5() {
    history(5, true).await;
}

/// L7: the same of claims in classes.
#[tokio::test]
async fn ten_thousand_operations_in_classes_get_the_ledgers_answers_seed_6() {
    play(Pair::new(6, (false, true)).await).await;
}

/// The same with another seed.
#[tokio::test]
async fn ten_thousand_operations_in_classes_get_the_ledgers_answers_seed_7() {
    play(Pair::new(7, (false, true)).await).await;
}
