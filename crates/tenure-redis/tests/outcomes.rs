//! Each command that a verb has the server run is refused to its user, in every state of a lock: the answer is still true. So it
//! is with a full memory, and with data of another type under each key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use tenure_core::{
    Adopt, Audience, Backend, BackendError, BreakScope, Claim, ClaimAnswer, FencingToken, Grant, Label,
    LockName, Memo, Mode, Noted, Outcome, OwnerId, Priority, QuorumNode, Raised, Released, Renewal, WaitMode,
};
use tenure_redis::Redis;
use tenure_testkit::{
    conformance::player::Player,
    patience::eventually,
    redis::{Raw, Recipe},
};

use crate::stage::{
    Clocked, calls_of,
    image::{Image, Shelf, kind_of},
    single,
};

/// During a run no lease expires but those of the stories; a slow machine has time to answer.
const SETTINGS: &str = "guard=off&max_ttl=600s&connect_timeout=20s&response_timeout=20s";

/// Longer than any lease of a story.
const TTL: Duration = Duration::from_secs(30);

const PATIENCE: Duration = Duration::from_secs(20);

/// What happened to the lock before; then `me` asks.
///
/// `a:x` claims alone, `a:s` as a reader, `a:2` one of two permits, `a:w` alone to be woken, `a:i` alone and idle, each with `>`
/// behind it as urgent and with `<` as low; with a turn and
/// for 10 s, or for the ms behind `@`. `me>` asks as urgent. A `~` in front: its process is gone. `a-` leaves, `a*` leaves a memo, `+5` lets 5 ms
/// pass, and `!` is a command on a key of the lock.
const STORIES: &[(&str, &str)] = &[
    ("free", ""),
    ("free, and its tokens were counted before", "a:x a-"),
    ("we hold", "me:x"),
    ("we hold, another waits", "me:x b:x"),
    ("we hold, readers and another wait", "me:x b:s c:s d:x"),
    ("we hold, those who are woken wait", "me:x b:w c:w"),
    ("we hold, and one who died waits before another", "me:x ~b:x c:x +3000 c:x"),
    ("another holds", "a:x"),
    ("another holds, and is idle", "a:i"),
    ("another waits", "a:x b:x"),
    ("we wait behind another", "a:x b:x me:x"),
    ("we wait before another", "a:x me:x b:x"),
    ("we wait to be woken", "a:x b:w me:w"),
    ("a lease has expired", "a:x@1000 +1500"),
    ("a lease has expired, and we are next", "a:x@1000 me:x b:x +1500"),
    ("a lease has expired, and we are next to read", "a:x@1000 me:s b:s c:x +1500"),
    ("a lease has expired, and another is next", "a:x@1000 b:x me:x +1500"),
    ("a lease has expired, and others are next", "a:x@1000 b:s c:s d:x +1500"),
    ("a lease has expired, and we were to be woken", "a:x@1000 b:w me:w +1500"),
    ("we are urgent, and one of a lower class waits", "a:x b:x me>"),
    ("we are urgent, and no other waits", "a:x me>"),
    ("we are urgent, and one waits for more permits", "a:3 b:x me>"),
    ("we wait before one of a lower class", "a:x b:x me:x>"),
    ("we wait behind one of a higher class", "a:x me:x b:x>"),
    ("a lease has expired, and we pass one of a lower class", "a:x@1000 b:x me:x> +1500"),
    ("a lease has expired, and we are next of our class", "a:x@1000 me:x> +1500"),
    (
        "a lease has expired, and one of a lower class has waited longest",
        "a:x@1000 b:x< me:x> !HSET/who/passed/8 +1500",
    ),
    ("a lease has expired, and we have waited longest", "a:x@1000 me:s< b:s> c:x !HSET/who/passed/8 +1500"),
    ("another reads, one waits to write, and we are urgent", "a:3 b:x< me:3> !HSET/who/passed/3"),
    ("places have expired", "a:x b:x c:x +5000 d:x +2000"),
    ("our place has expired", "a:x me:x +5000 b:x +2000"),
    ("we read", "me:s"),
    ("another reads", "a:s"),
    ("we and another read", "a:s me:s"),
    ("we read, another waits to write", "me:s b:x"),
    ("others read, we wait to write", "a:s b:s me:x"),
    ("others read, we wait behind one who is to write", "a:s b:x me:s"),
    ("we have one of two permits", "a:2 me:2"),
    ("one of three permits is taken", "a:3"),
    ("permits of two kinds are taken", "a:3 me:2"),
    ("all permits are taken", "a:2 b:2"),
    ("we wait for a permit", "a:2 b:2 me:2"),
    ("a reader's lease has expired", "a:s@1000 b:s +1500"),
    ("a permit has expired", "a:2@1000 b:2 me:2 +1500"),
    ("a permit of ours has expired", "me:2@1000 b:2 +1500"),
    ("all readers' leases have expired", "a:s@1000 b:2@1000 +1500"),
    ("all readers' leases have expired, and we wait", "a:s@1000 me:x +1500"),
    ("we are handed the lock", "a:x me:x b:x a-"),
    ("we are handed the lock to read", "a:x me:s b:s a-"),
    ("another is handed the lock", "a:x b:x a-"),
    ("another was handed the lock and did not enter", "a:x b:x c:x a- +600"),
    ("a memo is there", "a:x a* a- me:x"),
    ("a foreign client holds", "!SET/lock/foreign/PX/60000"),
    ("a foreign client holds without an end", "!SET/lock/foreign"),
    ("a foreign client holds, and we wait", "!SET/lock/foreign/PX/60000 me:x"),
    ("a foreign client took it from readers", "a:s b:2 !SET/lock/foreign/PX/60000"),
    ("the queue is full", "a:x b:x !FILL"),
    ("a place is left in one of two sets", "a:x !ZADD/places/1e14/b !PEXPIRE/places/900000"),
    ("the counter of tokens is missing", "me:x b:x !DEL/fence"),
    ("tokens are spent", "!COUNT/9007199254740991"),
    ("tokens are no number", "!COUNT/many"),
    ("tokens are no number, and we hold", "me:x b:x !COUNT/many"),
    ("the gate is closed", "me:x !HDEL/record/GATE"),
    ("the gate is closed, and another waits", "me:x b:x !HDEL/record/GATE"),
    ("there is no record", "me:x !DEL/record"),
    ("the record is that of another run", "me:x !HSET/record/run/0000"),
    ("the record has other settings", "me:x !HSET/record/settings/0000"),
    ("the server was put back", "a:x a- me:x !COUNT/1000"),
    ("the server was put back, and we are next", "a:x@1000 me:x b:x +1500 !COUNT/1000"),
];

/// Locks that are asked for in one script; each of the first four goes alone.
const TOGETHER: &[&str] = &[
    "free",
    "free",
    "free",
    "free",
    "a lease has expired, and we are next",
    "a lease has expired, and we are next",
    "free",
    "free, and its tokens were counted before",
    "we hold",
    "we hold",
    "we hold, another waits",
    "we hold, readers and another wait",
    "another holds",
    "another holds, and is idle",
    "another waits",
    "another reads",
    "a foreign client holds",
    "we are handed the lock",
];

/// Where tokens are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    One,
    Own,
    Quorum,
}

/// No record and no gate: the scripts that look at them are not called.
const NOT_IN_A_CLUSTER: &[&str] = &["check.", "facts.", "judge.", "look.", "raise.", "replicas.", "rewound."];

impl Way {
    fn record(self) -> &'static str {
        if self == Self::Quorum { "tenure:quorum" } else { "tenure:one" }
    }

    /// A part of scripts that it has.
    fn has(self, part: &str) -> bool {
        let (others, absent): ([&str; 2], &[&str]) = match self {
            Self::One => ([".own.", ".quorum."], &["raise."]),
            Self::Own => ([".one.", ".quorum."], NOT_IN_A_CLUSTER),
            Self::Quorum => ([".one.", ".own."], &["rewound."]),
        };
        !others.iter().any(|way| part.contains(way)) && !absent.iter().any(|name| part.starts_with(name))
    }

    /// A story that can be told of it.
    fn knows(self, (name, story): (&str, &str)) -> bool {
        match self {
            Self::One => true,
            Self::Own => !story.contains("record") && !name.contains("put back"),
            Self::Quorum => !name.contains("put back"),
        }
    }

    fn handle(self, server: &Clocked, login: &str) -> Arc<Redis> {
        let scheme = if self == Self::Own { "redis-cluster" } else { "redis" };
        let url = format!("{scheme}://{login}{}/?{SETTINGS}", server.server.address());
        single(&url, (self == Self::Quorum).then_some(3))
    }

    /// What its scripts call, by their text.
    fn commands(self) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scripts");
        let parts = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let mine = parts.filter(|path| self.has(&path.file_name().unwrap().to_string_lossy()));
        let texts: Vec<String> = mine.map(|path| fs::read_to_string(path).unwrap()).collect();
        let calls = texts.iter().flat_map(|text| text.split("call('").skip(1));
        calls.map(|rest| rest.split('\'').next().unwrap().to_lowercase()).collect()
    }
}

#[derive(Clone, Debug)]
enum Verb {
    /// With this many tokens at most.
    Claim(Mode, WaitMode, u32),
    Renew,
    Release,
    Tell,
    Note,
    Inspect,
    List,
    Break,
    Raise,
    /// Over a new connection.
    Connect,
    Adopt,
}

/// What is wrong while the verb is asked for.
#[derive(Clone, Debug)]
enum Fault {
    None,
    /// The user lacks the right to this command.
    Right(String),
    /// This key holds data of another type.
    Kind(&'static str),
    Memory,
}

#[derive(Debug)]
enum Said {
    Granted(Grant),
    Queued,
    Busy,
    Renewed,
    NotRenewed,
    Released,
    WasGone,
    Noted,
    NotNoted,
    Raised(u64),
    NotRaised,
    Broken,
    /// No lock was to change.
    Looked,
}

/// A story, and what stands in the server when it is told.
struct Scene {
    name: &'static str,
    shelf: Shelf,
    image: Image,
    me: Claim,
    /// How we hold or wait.
    mode: Option<Mode>,
    /// What stood there before the story changed the record, if it did.
    unchanged: Option<Image>,
    /// Their processes listen.
    _others: Vec<Player>,
}

/// A server that counts tokens in this way, and a user that lacks rights.
struct Sweep {
    way: Way,
    server: Clocked,
    raw: Raw,
    run_id: String,
    poor: Arc<Redis>,
    used: BTreeSet<String>,
    wrong: Vec<String>,
    runs: usize,
}

fn mode_of(code: &str) -> Mode {
    match code {
        "x" | "w" | "i" => Mode::Exclusive,
        "s" => Mode::READ,
        limit => Mode::permit(limit.parse().unwrap()),
    }
}

/// The owners of a story.
struct Cast {
    way: Way,
    rich: Arc<Redis>,
    lock: String,
    players: BTreeMap<String, Player>,
    gone: Vec<OwnerId>,
}

impl Cast {
    /// As `a:x@1000`.
    async fn claims(&mut self, server: &Clocked, act: &str) {
        let (who, what) = act.split_once(':').unwrap();
        let (code, ttl) = what.split_once('@').unwrap_or((what, "10000"));
        let (name, is_gone) = (who.trim_start_matches('~'), who.starts_with('~'));
        let handle = || if is_gone { self.way.handle(server, "") } else { self.rich.clone() };
        let player = self.players.entry(name.to_owned()).or_insert_with(|| Player::new(handle(), &self.lock));
        let claim = &mut player.claim;
        claim.priority = match code.chars().last() {
            Some('>') => Priority::Urgent,
            Some('<') => Priority::Low,
            _ => Priority::Normal,
        };
        let code = code.trim_end_matches(['<', '>']);
        (claim.mode, claim.ttl) = (mode_of(code), Duration::from_millis(ttl.parse().unwrap()));
        claim.wait = if code == "w" { WaitMode::Wake } else { WaitMode::Turn };
        if code == "i" {
            claim.label = Arc::new(Label::new("h", 1, "u", "idle").idling(true));
        }
        player.ask().await;
        if is_gone {
            self.gone.push(self.players.remove(name).unwrap().claim.owner);
        }
    }
}

impl Sweep {
    fn new(way: Way) -> Self {
        let recipe = match way {
            Way::Own => Recipe::new().config("cluster-enabled yes\ncluster-announce-ip 127.0.0.1"),
            _ => Recipe::new(),
        };
        let server = Clocked::with(recipe);
        let mut raw = server.server.raw();
        if way == Way::Own {
            raw.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
            let is_up = || raw.command(&["CLUSTER", "INFO"]).text().contains("state:ok").then_some(());
            eventually("the cluster is up", PATIENCE, is_up);
        }
        server.clock.freeze();
        raw.command(&["ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all"]);
        let poor = way.handle(&server, "poor:pw@");
        let run_id = server.server.info("server", "run_id");
        Self { way, server, raw, run_id, poor, used: BTreeSet::new(), wrong: Vec::new(), runs: 0 }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.server.clock.shows().as_millis()).unwrap()
    }

    fn may(&mut self, rules: &[&str]) {
        let answer = self.raw.command(&[&["ACL", "SETUSER", "poor"], rules].concat());
        assert_eq!(answer.error(), None, "{rules:?}");
    }

    fn empty(&mut self) {
        Image::default().write(&mut self.raw, "");
        self.poor = self.way.handle(&self.server, "poor:pw@");
    }

    /// Tells the story of a lock.
    async fn scene(&mut self, lock: &str, (name, story): (&'static str, &str)) -> Scene {
        let rich = self.way.handle(&self.server, "");
        let players = BTreeMap::from([("me".to_owned(), Player::new(rich.clone(), lock))]);
        let mut cast = Cast { way: self.way, rich, lock: lock.to_owned(), players, gone: Vec::new() };
        let (shelf, mut unchanged) = (Shelf::of(lock, self.way.record()), None);
        for act in story.split_whitespace() {
            if let Some(ms) = act.strip_prefix('+') {
                self.server.clock.advance(Duration::from_millis(ms.parse().unwrap()));
            } else if let Some(words) = act.strip_prefix('!') {
                unchanged = Some(self.interfere(&shelf, words).await);
            } else if act == "me>" {
                cast.players.get_mut("me").unwrap().claim.priority = Priority::Urgent;
            } else if let Some(who) = act.strip_suffix('-') {
                assert_eq!(cast.players[who].leave().await, Released::Released, "{name}: {act}");
            } else if let Some(who) = act.strip_suffix('*') {
                let (Player { backend, claim, .. }, image) = (&cast.players[who], Image::read(&mut self.raw));
                let memo = Memo::new("a memo", Duration::from_secs(60)).unwrap();
                let (token, _) = shelf.holds(&image, &claim.owner.to_string(), self.now()).unwrap();
                let noted = backend.note(&claim.name, claim.owner, FencingToken::new(token), &memo).await;
                assert_eq!(noted.unwrap(), Noted::Noted);
            } else {
                cast.claims(&self.server, act).await;
            }
        }
        for owner in cast.gone {
            let channel = format!("tenure:p:{}", owner.process());
            let mut heard = || self.raw.command(&["PUBSUB", "NUMSUB", &channel]).list().pop().unwrap().int();
            eventually("no connection listens", PATIENCE, || (heard() == 0).then_some(()));
        }
        let has_record = story.contains("record") || story.contains("COUNT") && self.way == Way::One;
        let me = cast.players["me"].claim.clone();
        let mode = story.contains("me:").then_some(me.mode);
        let (unchanged, image) = (unchanged.filter(|_| has_record), Image::read(&mut self.raw));
        Scene { name, shelf, image, me, mode, unchanged, _others: cast.players.into_values().collect() }
    }

    /// Changes the keys of a lock as another program would. Gives what was there before.
    async fn interfere(&mut self, shelf: &Shelf, words: &str) -> Image {
        // There is a record once one has connected.
        self.poor.inspect(&LockName::new(&shelf.lock).unwrap()).await.unwrap();
        let image = Image::read(&mut self.raw);
        let gate = image.gate(shelf.record).map(|gate| gate.0.to_owned()).unwrap_or_default();
        let words: Vec<&str> = words.split('/').collect();
        let answer = match words[..] {
            ["FILL"] => {
                let script = "for i = 1, 4096 do redis.call('ZADD', KEYS[1], i, 'filler' .. i) end";
                self.raw.command(&["EVAL", script, "1", &shelf.queue])
            }
            ["COUNT", count] if self.way == Way::One => {
                self.raw.command(&["HSET", shelf.record, &gate, count])
            }
            ["COUNT", count] => self.raw.command(&["SET", &shelf.fence, count, "PX", "86400000"]),
            _ => {
                let keys = shelf.keys();
                let word = |word: &&str| match keys.iter().find(|(name, _)| name == word) {
                    Some((_, key)) => (*key).to_owned(),
                    None if *word == "GATE" => gate.clone(),
                    None => (*word).to_owned(),
                };
                let words: Vec<String> = words.iter().map(word).collect();
                self.raw.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
            }
        };
        assert_eq!(answer.error(), None, "{words:?}");
        image
    }

    fn verbs(&self, scene: &Scene) -> Vec<Verb> {
        let modes = scene.mode.map_or_else(|| ["x", "s", "2"].map(mode_of).to_vec(), |mode| vec![mode]);
        let waits = scene.shelf.waits(&scene.image, &scene.me.owner.to_string(), self.now());
        let mut verbs = vec![Verb::Renew, Verb::Release, Verb::Note, Verb::Break];
        for mode in modes {
            let waiting = if scene.name.contains("woken") { WaitMode::Wake } else { WaitMode::Turn };
            verbs.push(Verb::Claim(mode, waiting, 1));
            // An owner that has a place keeps it by asking.
            if !waits {
                verbs.push(Verb::Claim(mode, WaitMode::No, if mode == Mode::Exclusive { 8 } else { 1 }));
            }
        }
        verbs.extend((self.way == Way::Quorum).then_some(Verb::Raise));
        verbs.extend([Verb::Tell, Verb::Inspect, Verb::List, Verb::Connect]);
        verbs.extend((self.way != Way::Own).then_some(Verb::Adopt));
        verbs
    }

    /// All verbs in one story; with all that may be wrong, or with nothing.
    async fn through(&mut self, story: (&'static str, &str), has_faults: bool) {
        self.empty();
        let scene = self.scene("job", story).await;
        for verb in self.verbs(&scene) {
            let is_plain = matches!(verb, Verb::Claim(Mode::Exclusive, ..) | Verb::Release);
            for is_warm in if is_plain { &[false, true][..] } else { &[false] } {
                let used = self.attempt(&scene, &verb, *is_warm, &Fault::None).await;
                if has_faults {
                    for fault in self.faults(&verb, used) {
                        self.attempt(&scene, &verb, *is_warm, &fault).await;
                    }
                }
            }
        }
    }

    /// What may be wrong with a verb that has the server do this.
    fn faults(&self, verb: &Verb, used: impl IntoIterator<Item = String>) -> Vec<Fault> {
        let mut faults: Vec<Fault> = used.into_iter().map(Fault::Right).collect();
        let looks = matches!(verb, Verb::Tell | Verb::Inspect | Verb::List);
        let kinds = ["lock", "queue", "places", "shared", "who"].into_iter().chain(match verb {
            Verb::Note => Some("memo"),
            _ if self.way == Way::One => Some("record"),
            _ => Some("fence"),
        });
        faults.extend(kinds.filter(|_| !looks).map(Fault::Kind));
        faults.push(Fault::Memory);
        faults
    }

    /// Gives the commands that the server ran.
    async fn attempt(
        &mut self,
        scene: &Scene,
        verb: &Verb,
        is_warm: bool,
        fault: &Fault,
    ) -> BTreeSet<String> {
        self.may(&["+@all"]);
        if let Some(unchanged) = &scene.unchanged {
            unchanged.write(&mut self.raw, "");
        }
        self.learn(&scene.shelf.lock, is_warm).await;
        let kept = if scene.unchanged.is_some() { "" } else { self.way.record() };
        scene.image.write(&mut self.raw, kept);
        let whole = Image::read(&mut self.raw);
        let before = self.begin(fault, &[scene]);
        let said = self.ask(&self.poor, scene, verb, &before).await;
        let (after, used) = self.end(fault);
        if matches!(fault, Fault::Kind("record")) {
            whole.write(&mut self.raw, "");
        }
        let what = format!("{verb:?}{}", if is_warm { ", known to be waited for" } else { "" });
        self.judge(scene, &what, fault, (&before, &said, &after));
        used.into_keys().collect()
    }

    /// The handle believes from here on that there are waiters, or none.
    async fn learn(&mut self, lock: &str, is_warm: bool) {
        Image::default().write(&mut self.raw, self.way.record());
        let stranger = Player::new(self.poor.clone(), lock).waiting(WaitMode::No);
        if is_warm {
            self.raw.command(&["SET", lock, "foreign"]);
            assert!(!stranger.try_enter().await);
        } else {
            assert_eq!(stranger.leave().await, Released::WasGone);
        }
    }

    /// From here on there is this fault. Gives what stands there.
    fn begin(&mut self, fault: &Fault, scenes: &[&Scene]) -> Image {
        if let Fault::Kind(what) = fault {
            for scene in scenes {
                let key = scene.shelf.keys().into_iter().find(|(name, _)| name == what).unwrap().1;
                self.raw.command(&["DEL", key]);
                if kind_of(what) == "hash" {
                    self.raw.command(&["SET", key, "1"]);
                } else {
                    self.raw.command(&["HSET", key, "a", "1"]);
                }
                self.raw.command(&["PEXPIRE", key, "60000"]);
            }
        }
        let image = Image::read(&mut self.raw);
        match fault {
            Fault::Right(command) => self.may(&[&format!("-{command}")]),
            Fault::Memory => drop(self.raw.command(&["CONFIG", "SET", "maxmemory", "1"])),
            Fault::None => drop(self.raw.command(&["CONFIG", "RESETSTAT"])),
            Fault::Kind(_) => {}
        }
        image
    }

    /// From here on there is none. Gives what stands there; and how often the server ran which command, if there was no fault.
    fn end(&mut self, fault: &Fault) -> (Image, BTreeMap<String, u64>) {
        let mut used = BTreeMap::new();
        match fault {
            Fault::Memory => drop(self.raw.command(&["CONFIG", "SET", "maxmemory", "0"])),
            Fault::None => {
                used = calls_of(self.raw.command(&["INFO", "commandstats"]).text().as_str());
                used.remove("config|resetstat");
                self.used.extend(used.keys().cloned());
            }
            Fault::Right(_) | Fault::Kind(_) => {}
        }
        self.runs += 1;
        (Image::read(&mut self.raw), used)
    }

    async fn ask(
        &self,
        poor: &Arc<Redis>,
        scene: &Scene,
        verb: &Verb,
        before: &Image,
    ) -> Result<Said, BackendError> {
        let (name, owner) = (&scene.me.name, scene.me.owner);
        let held = scene.shelf.holds(before, &owner.to_string(), self.now());
        let token = FencingToken::new(held.map_or(1, |held| held.0));
        Ok(match verb {
            Verb::Claim(mode, wait, block) => {
                let claim =
                    scene.me.clone().with_mode(*mode).with_ttl(TTL).with_block(*block).with_wait(*wait);
                match poor.claim(&claim).await? {
                    ClaimAnswer::Granted(grant) => Said::Granted(grant),
                    ClaimAnswer::Queued { .. } => Said::Queued,
                    _ => Said::Busy,
                }
            }
            Verb::Renew => {
                let grant = Grant::new(name.clone(), owner, token, TTL);
                renewed(poor.renew(&[grant]).await.remove(0)?)
            }
            Verb::Release => released(poor.release(name, owner).await?),
            Verb::Tell => poor.tell(name, Audience::Holders, owner).await.map(|()| Said::Looked)?,
            Verb::Note => {
                let memo = Memo::new("another memo", Duration::from_secs(60)).unwrap();
                match poor.note(name, owner, token, &memo).await? {
                    Noted::Noted => Said::Noted,
                    _ => Said::NotNoted,
                }
            }
            Verb::Inspect => poor.inspect(name).await.map(|_| Said::Looked)?,
            Verb::List => poor.list("").await.map(|_| Said::Looked)?,
            Verb::Break => poor.break_lock(name, BreakScope::All).await.map(|_| Said::Broken)?,
            Verb::Raise => {
                let to = scene.shelf.count(before) + 5;
                match poor.raise(name, owner, FencingToken::new(to)).await? {
                    Raised::Raised => Said::Raised(to),
                    _ => Said::NotRaised,
                }
            }
            Verb::Connect => {
                let anew = self.way.handle(&self.server, "poor:pw@");
                anew.inspect(name).await.map(|_| Said::Looked)?
            }
            Verb::Adopt => poor.adopt(Adopt::Settings).await.map(|_| Said::Looked)?,
        })
    }

    /// Notes what is wrong.
    fn judge(
        &mut self,
        scene: &Scene,
        what: &str,
        fault: &Fault,
        (before, said, after): (&Image, &Result<Said, BackendError>, &Image),
    ) {
        let mut wrong = self.untrue(scene, before, said, after);
        let is_known = !said.as_ref().is_err_and(|error| error.outcome() == Outcome::Unknown);
        let shelf = &scene.shelf;
        let endless = shelf.endless(before, after);
        if !endless.is_empty() {
            wrong.push(format!("without an end now: {endless:?}"));
        }
        if is_known && shelf.has_true_least(before) && !shelf.has_true_least(after) {
            wrong.push("the least limit is another one".to_owned());
        }
        if shelf.count(after) < shelf.count(before) {
            wrong.push("tokens are counted anew".to_owned());
        }
        if !shelf.has_sound_record(before, after, &self.run_id) {
            wrong.push("the record is damaged".to_owned());
        }
        let is_refused = ["tokens", "full", "settings"].iter().any(|word| scene.name.contains(word));
        if matches!(fault, Fault::None) && said.is_err() && !is_refused {
            wrong.push("it is refused".to_owned());
        }
        let said = |why| format!("{}: {what} with {fault:?} said {said:?}: {why}", scene.name);
        self.wrong.extend(wrong.into_iter().map(said));
    }

    /// What became of the lock, if the answer is not true.
    fn untrue(
        &self,
        scene: &Scene,
        before: &Image,
        said: &Result<Said, BackendError>,
        after: &Image,
    ) -> Vec<String> {
        let (shelf, now, me) = (&scene.shelf, self.now(), scene.me.owner.to_string());
        let (was, is) = (shelf.matters(before, now), shelf.matters(after, now));
        let (held, holds) = (shelf.holds(before, &me, now), shelf.holds(after, &me, now));
        let lasts = |(_, left)| Duration::from_millis(left) >= TTL;
        let is_true = match said {
            Err(error) => error.outcome() == Outcome::Unknown || was == is,
            Ok(Said::Granted(grant)) => {
                let last = grant.token.get() + u64::from(grant.block) - 1;
                holds.is_some_and(|held| held.0 == last && lasts(held))
            }
            Ok(Said::Queued) => shelf.has_place(after, &me, now),
            Ok(Said::Busy) => was == is || shelf.is_rid_of(after, &me, now),
            Ok(Said::Renewed) => holds.is_some_and(|held| held.0 > 0 && lasts(held)),
            Ok(Said::NotRenewed) => held.is_none_or(|(token, _)| token == 0),
            Ok(Said::Released | Said::WasGone) => {
                let was_there = held.is_some() || shelf.waits(before, &me, now);
                shelf.is_rid_of(after, &me, now) && was_there == matches!(said, Ok(Said::Released))
            }
            Ok(Said::Noted) => after.text(&shelf.memo).is_some_and(|memo| memo.starts_with(&me)),
            Ok(Said::Raised(to)) => shelf.count(after) >= *to && holds.is_some(),
            Ok(Said::Broken) => {
                holds.is_none_or(|(token, _)| token == 0) && shelf.count(after) > shelf.count(before)
            }
            Ok(Said::NotNoted | Said::NotRaised | Said::Looked) => was == is,
        };
        if is_true { Vec::new() } else { vec![format!("it was\n{was}and is\n{is}")] }
    }
}

impl Sweep {
    /// A verb on all these locks at the same time, or one after the other, over a connection of its own. Gives the commands that the
    /// server ran.
    async fn attempt_all(
        &mut self,
        scenes: &[Scene],
        verb: &Verb,
        fault: &Fault,
        are_together: bool,
    ) -> BTreeMap<String, u64> {
        self.may(&["+@all"]);
        scenes[0].image.write(&mut self.raw, self.way.record());
        let poor = self.way.handle(&self.server, "poor:pw@");
        poor.inspect(&scenes[0].me.name).await.unwrap();
        let before = self.begin(fault, &scenes.iter().collect::<Vec<_>>());
        let said = if are_together && matches!(verb, Verb::Renew) {
            self.renew_all(&poor, scenes, &before).await
        } else if are_together {
            join_all(scenes.iter().map(|scene| self.ask(&poor, scene, verb, &before))).await
        } else {
            let mut said = Vec::new();
            for scene in scenes {
                said.push(self.ask(&poor, scene, verb, &before).await);
            }
            said
        };
        let (after, used) = self.end(fault);
        for (scene, said) in scenes.iter().zip(&said) {
            self.judge(scene, &format!("{verb:?} beside others"), fault, (&before, said, &after));
        }
        used
    }

    /// As the engine does it.
    async fn renew_all(
        &self,
        poor: &Arc<Redis>,
        scenes: &[Scene],
        before: &Image,
    ) -> Vec<Result<Said, BackendError>> {
        let grant = |Scene { me, shelf, .. }: &Scene| {
            let held = shelf.holds(before, &me.owner.to_string(), self.now());
            let token = FencingToken::new(held.map_or(1, |held| held.0));
            Grant::new(me.name.clone(), me.owner, token, TTL)
        };
        let grants: Vec<Grant> = scenes.iter().map(grant).collect();
        poor.renew(&grants).await.into_iter().map(|answer| answer.map(renewed)).collect()
    }

    /// Gives the commands that the server ran.
    fn all_is_true(self) -> BTreeSet<String> {
        let Self { wrong, runs, used, .. } = self;
        assert!(wrong.is_empty(), "{} of {runs} runs:\n{}", wrong.len(), wrong.join("\n"));
        used
    }

    async fn through_together(&mut self) {
        self.empty();
        let mut scenes = Vec::new();
        for (n, name) in TOGETHER.iter().enumerate() {
            let story = STORIES.iter().find(|story| story.0 == *name).unwrap();
            scenes.push(self.scene(&format!("job/{n}"), *story).await);
        }
        scenes[0].image = Image::read(&mut self.raw);
        let claims = [(WaitMode::No, 8), (WaitMode::Turn, 1)]
            .map(|(wait, block)| Verb::Claim(Mode::Exclusive, wait, block));
        for verb in claims.into_iter().chain([Verb::Release, Verb::Renew]) {
            let alone = self.attempt_all(&scenes, &verb, &Fault::None, false).await;
            let together = self.attempt_all(&scenes, &verb, &Fault::None, true).await;
            let scripts = |used: &BTreeMap<String, u64>| used.get("evalsha").copied();
            assert!(scripts(&together) < scripts(&alone), "{verb:?}: {together:?} and one by one {alone:?}");
            let mut faults = self.faults(&verb, together.into_keys());
            faults.retain(|fault| !matches!(fault, Fault::Kind("record")));
            for fault in faults {
                self.attempt_all(&scenes, &verb, &fault, true).await;
            }
        }
    }
}

fn renewed(renewal: Renewal) -> Said {
    if renewal == Renewal::Renewed { Said::Renewed } else { Said::NotRenewed }
}

fn released(released: Released) -> Said {
    if released == Released::Released { Said::Released } else { Said::WasGone }
}

/// L8, L9: an error says `NotApplied` only if nothing of a lock, a place, a memo or a counter has changed; an answer is true; and whatever
/// fails, no key without an end is left where it had one. Readers were refused and still held, waiters were refused and kept a
/// place whose keys never ended, because scripts went on after their first write.
async fn sweep(way: Way) {
    let mut sweep = Sweep::new(way);
    for story in STORIES.iter().copied().filter(|story| way.knows(*story)) {
        sweep.through(story, true).await;
    }
    let used = sweep.all_is_true();
    let unused: Vec<_> = way.commands().into_iter().filter(|command| !used.contains(command)).collect();
    assert!(unused.is_empty(), "no story leads to {unused:?}");
}

#[tokio::test]
async fn an_answer_is_true_whatever_is_refused_on_a_server() {
    sweep(Way::One).await;
}

#[tokio::test]
async fn an_answer_is_true_whatever_is_refused_in_a_cluster() {
    sweep(Way::Own).await;
}

#[tokio::test]
async fn an_answer_is_true_whatever_is_refused_on_a_node() {
    sweep(Way::Quorum).await;
}

/// The same of claims, releases and renewals that leave in one script. In a Cluster each goes alone.
#[tokio::test]
async fn an_answer_is_true_whatever_is_refused_to_many_at_the_same_time() {
    for way in [Way::One, Way::Quorum] {
        let mut sweep = Sweep::new(way);
        sweep.through_together().await;
        sweep.all_is_true();
    }
}

/// A user needs the rights of the line in the README, and no others.
#[tokio::test]
async fn the_rights_of_the_readme_are_those_that_are_needed() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let rights = |from: &str, to: char| -> BTreeSet<String> {
        let line = readme.split_once(from).unwrap().1.split(to).next().unwrap();
        line.split_whitespace().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect()
    };
    let (everywhere, in_a_cluster) =
        (rights("ACL SETUSER tenure ", '\n'), rights("In a Cluster also `", '`'));
    let (one, own, node) =
        tokio::join!(all_commands(Way::One), all_commands(Way::Own), all_commands(Way::Quorum));
    let mut only_there: BTreeSet<_> =
        own.difference(&one).filter(|it| !node.contains(*it)).cloned().collect();
    // In a Cluster of one node no slot moves.
    only_there.insert("asking".to_owned());
    assert_eq!(&one | &node, everywhere);
    assert_eq!(only_there, in_a_cluster);
}

/// The commands of all verbs, in all stories.
async fn all_commands(way: Way) -> BTreeSet<String> {
    let mut sweep = Sweep::new(way);
    for story in STORIES.iter().copied().filter(|story| way.knows(*story)) {
        sweep.through(story, false).await;
    }
    sweep.empty();
    sweep.begin(&Fault::None, &[]);
    sweep.poor.diagnose().await.unwrap();
    if way != Way::Own {
        // Hints over a connection of their own, and a database of one's own.
        let url = format!("redis://poor:pw@{}/1?protocol=2&{SETTINGS}", sweep.server.server.address());
        Player::new(single(&url, (way == Way::Quorum).then_some(3)), "job").enter().await;
    }
    sweep.end(&Fault::None);
    let mut used = sweep.all_is_true();
    // No user can be refused these.
    used.retain(|command| !["auth", "hello", "client|setinfo"].contains(&command.as_str()));
    used
}
