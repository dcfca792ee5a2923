//! A stage for the real binary: a home of its own, processes that end with the test, and what they left in files.

pub(crate) mod files;
pub(crate) mod process;

use std::{
    any::Any,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use tempfile::TempDir;
#[cfg(feature = "etcd")]
use tenure_testkit::etcd;
#[cfg(feature = "mysql")]
use tenure_testkit::mysql;
use tenure_testkit::{
    patience::{eventually, slowness, stretch},
    postgres,
    redis::RedisServer,
    shared::Shared,
    zookeeper::{self, TICK},
};

pub(crate) use process::{Ended, Process};

/// An owner that no other test has. The watcher process of a killed `attach` kills what carries its owner, in the whole session.
pub(crate) fn an_owner() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{:032x}{:016x}", now.as_nanos(), std::process::id())
}

/// How long a test waits for what must come: long, because nobody waits for it unless it does not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What may pass between an event and the first word of the program that it lets start.
pub(crate) const START: Duration = Duration::from_millis(500);

/// A home of its own in which `tenure` runs; it goes with the test.
pub(crate) struct Stage {
    home: Home,
    /// The servers of its locks and the URL that names them, if they are not the file in its home.
    servers: Vec<RedisServer>,
    /// Servers of another kind, which live as long as the stage at least.
    _server: Option<Box<dyn Any + Send + Sync>>,
    url: Option<String>,
    /// By how much a lease may last longer than its ttl.
    grain: Duration,
    /// How long a lease of `tenure run` lasts if a test does not say; `None` if the command knows.
    ttl: Option<&'static str>,
    has_long_turns: AtomicBool,
    /// Its servers may elect another leader at any time, and answer nothing until they have.
    elects: bool,
}

/// The folder of a stage, and how many processes were started there.
struct Home {
    folder: TempDir,
    started: AtomicU32,
}

impl Home {
    /// The file for what a process prints, `out`, or says, `err`.
    fn file(&self, number: u32, kind: &str) -> PathBuf {
        self.folder.path().join(format!(".{number}.{kind}"))
    }
}

/// What the processes said goes with the folder: of a test that is red, it is told before.
impl Drop for Home {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for number in 0..self.started.load(Ordering::Relaxed) {
            let said = fs::read_to_string(self.file(number, "err")).unwrap_or_default();
            for line in said.lines() {
                eprintln!("process {number} said: {line}");
            }
        }
    }
}

/// Runs tests on every store: of `fn a(stage: &Stage)` it makes `sqlite::a`, `redis::a` and so on. What not all promise
/// stands behind a word of who does:
///
/// * `but_quorums`: an order among those who wait, readers, slots that are one lock;
/// * `but_sessions`: leases that outlive their process;
/// * `queues`: a turn that is handed over, for half a second;
/// * `lines`: a turn that stays until its place ends.
macro_rules! on_every_store {
    ($($all:ident),* $(,)?
     $(; but_quorums: $($ordered:ident),+ $(,)?)?
     $(; but_sessions: $($lasting:ident),+ $(,)?)?
     $(; queues: $($queue:ident),+ $(,)?)?
     $(; lines: $($line:ident),+ $(,)?)?
    ) => {
        stage::on_every_store!(@on sqlite, new, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($queue,)+)?);
        stage::on_every_store!(@on redis, on_redis, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($queue,)+)?);
        stage::on_every_store!(@on redlock, on_quorum, $($all,)* $($($lasting,)+)?);
        stage::on_every_store!(@on postgres, on_postgres, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($queue,)+)?);
        #[cfg(feature = "mysql")]
        stage::on_every_store!(@on mysql, on_mysql, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($queue,)+)?);
        stage::on_every_store!(@on zookeeper, on_zookeeper, $($all,)* $($($ordered,)+)? $($($line,)+)?);
        stage::on_every_store!(@on ensemble, on_ensemble, $($all,)* $($($ordered,)+)? $($($line,)+)?);
        #[cfg(feature = "etcd")]
        stage::on_every_store!(@on etcd, on_etcd, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($line,)+)?);
        #[cfg(feature = "etcd")]
        stage::on_every_store!(@on cluster, on_cluster, $($all,)* $($($ordered,)+)? $($($lasting,)+)? $($($line,)+)?);
    };
    (@on $store:ident, $stage:ident, $($case:ident),* $(,)?) => {
        mod $store {
            $(#[test]
            fn $case() {
                super::$case(&super::Stage::$stage());
            })*
        }
    };
}

pub(crate) use on_every_store;

/// When a lease ends on the store, as exactly as it can be seen from outside; wall clock since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseEnd {
    pub(crate) earliest: Duration,
    pub(crate) latest: Duration,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let home = Home { folder: tempfile::tempdir().unwrap(), started: AtomicU32::new(0) };
        fs::create_dir_all(home.folder.path().join(".local/state/tenure")).unwrap();
        Self {
            home,
            servers: Vec::new(),
            _server: None,
            url: None,
            grain: Duration::ZERO,
            ttl: None,
            has_long_turns: AtomicBool::new(false),
            elects: false,
        }
    }

    /// From now on a turn that is handed over lasts for as long as it may: by default a process that has no processor for half a
    /// second loses it, and others enter before it.
    pub(crate) fn gives_long_turns(&self) {
        self.has_long_turns.store(true, Ordering::Relaxed);
    }

    /// Where its processes find their locks.
    fn url(&self) -> Option<String> {
        let longest = "claim_ttl=6s";
        match &self.url {
            // Named, because a default is announced.
            None if !self.has_long_turns.load(Ordering::Relaxed) => {
                Some(format!("sqlite:{}", self.database().display()))
            }
            url if !self.has_long_turns.load(Ordering::Relaxed) => url.clone(),
            None => Some(format!("sqlite:{}?{longest}", self.path("locks.db").display())),
            Some(url) if ["redis", "postgres", "mysql"].iter().any(|store| url.starts_with(store)) => {
                Some(format!("{url}&{longest}"))
            }
            // Nothing is handed over in a line.
            Some(url) => Some(url.clone()),
        }
    }

    /// On the store that this URL names; the caller keeps it alive.
    pub(crate) fn at(url: String) -> Self {
        Self { url: Some(url), ..Self::new() }
    }

    /// On a server of this run, in a table of its own.
    pub(crate) fn on_postgres() -> Self {
        let (server, table) = (postgres::shared(), Shared::part().replace('-', "_"));
        postgres::make_table(server.address(), &format!("t{table}"));
        let url = format!("postgres://tenure@{}/tenure?table=t{table}", server.address());
        Self::on(url, server, Duration::from_millis(100))
    }

    /// On a server of this run, in a table of its own.
    #[cfg(feature = "mysql")]
    pub(crate) fn on_mysql() -> Self {
        let (server, table) = (mysql::shared(), Shared::part().replace('-', "_"));
        mysql::make_table(server.address(), &format!("t{table}"));
        let url = format!("mysql://tenure@{}/tenure?table=t{table}&connect_timeout=10s", server.address());
        Self::on(url, server, Duration::from_millis(100))
    }

    /// On a server of this run, whose sessions end in ticks of half a second.
    pub(crate) fn on_zookeeper() -> Self {
        Self::on_path(zookeeper::shared())
    }

    /// On a server of this run, which counts in seconds.
    #[cfg(feature = "etcd")]
    pub(crate) fn on_etcd() -> Self {
        Self::on_prefix(etcd::shared())
    }

    /// On three ZooKeeper servers of this run, of which one hangs: the first of the URL, unless that leads.
    pub(crate) fn on_ensemble() -> Self {
        Self::on_path(zookeeper::shared_with_one_hung())
    }

    /// On three etcd servers of this run, of which one hangs: the first of the URL.
    #[cfg(feature = "etcd")]
    pub(crate) fn on_cluster() -> Self {
        Self { elects: true, ..Self::on_prefix(etcd::shared_with_one_hung()) }
    }

    /// In a part of these ZooKeeper servers that no other test has.
    fn on_path(servers: Shared) -> Self {
        let (part, tick) = (Shared::part(), TICK.as_millis());
        let url = format!("zookeeper://{}/tenure-{part}?tick={tick}ms", servers.address());
        Self { ttl: Some(LASTING), ..Self::on(url, servers, Duration::from_millis(1500)) }
    }

    /// In a part of these etcd servers that no other test has.
    #[cfg(feature = "etcd")]
    fn on_prefix(servers: Shared) -> Self {
        let url = format!("etcd://{}?prefix={}/", servers.address(), Shared::part());
        Self { ttl: Some(LASTING), ..Self::on(url, servers, Duration::from_secs(2)) }
    }

    fn on(url: String, server: impl Any + Send + Sync, grain: Duration) -> Self {
        Self { _server: Some(Box::new(server)), grain, ..Self::at(url) }
    }

    /// On a server of its own. Without its guard, which would have every test wait for a young server.
    pub(crate) fn on_redis() -> Self {
        Self::on_redis_with("?guard=off")
    }

    /// On a server of its own, with these settings.
    pub(crate) fn on_redis_with(query: &str) -> Self {
        let server = RedisServer::start();
        Self { url: Some(server.url(query)), servers: vec![server], ..Self::new() }
    }

    /// On a quorum of five servers of its own, without their guards.
    pub(crate) fn on_quorum() -> Self {
        Self::on_quorum_with("?guard=off")
    }

    /// On a quorum of five servers of its own, with these settings.
    pub(crate) fn on_quorum_with(query: &str) -> Self {
        let servers: Vec<RedisServer> = thread::scope(|scope| {
            let starts: Vec<_> = (0..5).map(|_| scope.spawn(RedisServer::start)).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        Self { url: Some(quorum_url(&servers, query)), servers, ..Self::new() }
    }

    /// By how much a lease may last longer than its ttl here.
    pub(crate) fn grain(&self) -> Duration {
        self.grain
    }

    pub(crate) fn server(&mut self) -> &mut RedisServer {
        self.servers.first_mut().expect("this stage has a server")
    }

    /// The nodes of its quorum.
    pub(crate) fn nodes(&self) -> &[RedisServer] {
        &self.servers
    }

    /// In the working directory of all that runs here, which is also its home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.folder.path().join(name)
    }

    /// Where the locks are if nobody says otherwise.
    pub(crate) fn database(&self) -> PathBuf {
        self.path(".local/state/tenure/locks.db")
    }

    /// `tenure` with these arguments, and nothing of the outer world but the search path.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_tenure"));
        match (self.ttl, arguments) {
            (Some(ttl), ["run", rest @ ..]) if !rest.contains(&"--ttl") => {
                command.args(["run", "--ttl", ttl]).args(rest)
            }
            _ => command.args(arguments),
        };
        command
    }

    /// Another program, in the same place and with the same environment.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.home.folder.path()).env_clear().envs(self.environment());
        command
    }

    /// What a program on this stage finds in its environment.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".into());
        let home = self.home.folder.path().to_str().unwrap();
        let mut variables = vec![("PATH", path), ("HOME", home.into()), ("LC_ALL", "C".into())];
        variables.extend(self.url().map(|url| ("TENURE_URL", url)));
        variables
    }

    /// Starts `tenure`; it is killed with its command when the test ends.
    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        self.start_command(self.command(arguments))
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Process {
        let number = self.home.started.fetch_add(1, Ordering::Relaxed);
        let [out, err] = ["out", "err"].map(|kind| self.home.file(number, kind));
        let file = |path| fs::File::create(path).unwrap();
        command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err));
        Process::new(command.spawn().unwrap(), out, err)
    }

    /// Runs `tenure` to its end. What only reads or renews is run again, as a script would, while its servers elect.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        let ended = || self.start(arguments).ended();
        if !self.elects || !arguments.iter().any(|word| ["show", "ls", "renew"].contains(word)) {
            return ended();
        }
        eventually("the servers have elected", PATIENCE, || {
            let ended = ended();
            let is_answer = ended.code != 69 || !ended.err.contains("the store did not answer within");
            is_answer.then_some(ended)
        })
    }

    pub(crate) fn run_command(&self, command: Command) -> Ended {
        self.start_command(command).ended()
    }

    /// Runs a line of a guide, in which `tenure` is the one of this build and `$DATABASE` leads to the data.
    pub(crate) fn shell(&self, line: &str, database: &str) -> Ended {
        let bin = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap().display().to_string();
        let mut shell = self.program("sh");
        let path = std::env::var("PATH").unwrap();
        shell.args(["-c", line]).env("PATH", format!("{bin}:{path}")).env("DATABASE", database);
        self.run_command(shell)
    }

    /// What `tenure` says with these arguments and `--json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let (verb, rest) = arguments.split_first().unwrap();
        // Quiet: on a busy machine a store may take long to answer, which would be said.
        let ended = self.run(&[&[verb, "-q", "--json"], rest].concat());
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{arguments:?}");
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        self.json(&["show", name])
    }

    /// The pids of those who wait for a lock, first come first.
    pub(crate) fn queue(&self, name: &str) -> Vec<u64> {
        let view = self.show(name);
        view["queue"].as_array().unwrap().iter().map(|w| w["label"]["pid"].as_u64().unwrap()).collect()
    }

    /// Waits until this process stands in the queue.
    pub(crate) fn queued(&self, name: &str, process: &Process) {
        eventually("a waiter is in the queue", PATIENCE, || {
            self.queue(name).contains(&u64::from(process.pid())).then_some(())
        });
    }

    /// Starts `tenure` and waits until it stands in the queue of `name`.
    pub(crate) fn start_waiter(&self, name: &str, arguments: &[&str]) -> Process {
        let waiter = self.start(arguments);
        self.queued(name, &waiter);
        waiter
    }

    /// When the only holder's lease ends. True for as long as nobody renews it.
    pub(crate) fn lease_end(&self, name: &str) -> LeaseEnd {
        let before = now();
        let view = self.show(name);
        let after = now();
        let left = view["holders"][0]["expires_in_ms"].as_u64().unwrap_or_else(|| panic!("not held: {view}"));
        let left = Duration::from_millis(left);
        LeaseEnd { earliest: before + left, latest: after + left + Duration::from_millis(1) }
    }

    /// When the only holder's lease of length `ttl` ends if its holder has just died. Where the store does not show it: the
    /// last renewal was sent a third of the ttl ago, and a sixth before that at most if it was slow.
    pub(crate) fn end_of_the_dead(&self, name: &str, ttl: Duration) -> LeaseEnd {
        let (before, view) = (now(), self.show(name));
        if view["holders"][0]["expires_in_ms"].is_null() {
            return LeaseEnd { earliest: before + ttl / 2, latest: now() + ttl };
        }
        self.lease_end(name)
    }

    /// When the only holder's lease of length `ttl` ends, seen just after a renewal: the next one is far away.
    pub(crate) fn fresh_lease_end(&self, name: &str, ttl: Duration) -> LeaseEnd {
        eventually("a lease has just been renewed", PATIENCE, || {
            let end = self.lease_end(name);
            (end.earliest + ttl / 10 > now() + ttl).then_some(end)
        })
    }

    /// The same on Redis servers, in the words of the first that ends it: how long a look takes makes no difference.
    pub(crate) fn fresh_end_on_servers(&self, key: &str, ttl: Duration) -> Duration {
        let end_on = |server: &RedisServer| {
            let millis = server.command(&["PEXPIRETIME", key]).int();
            u64::try_from(millis).ok().map(Duration::from_millis)
        };
        eventually("each server has just renewed a lease", PATIENCE, || {
            let ends: Option<Vec<Duration>> = self.servers.iter().map(end_on).collect();
            let end = ends?.into_iter().min()?;
            (end + ttl / 10 > now() + ttl).then_some(end)
        })
    }
}

/// The URL of a quorum of these servers.
pub(crate) fn quorum_url(servers: &[RedisServer], query: &str) -> String {
    let nodes: Vec<String> = servers.iter().map(|server| server.url("")).collect();
    format!("redlock:{}{query}", nodes.join(","))
}

/// The wall clock, which the scripts of the tests read as well.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Asserts that something that took `took` was quick enough for a bound that is scaled with the slowness.
#[track_caller]
pub(crate) fn assert_within(bound: Duration, took: Duration, what: &str) {
    let scaled = bound * slowness();
    assert!(
        took <= scaled,
        "{what} took {took:?}, more than {bound:?} (× {} for a slow machine)",
        slowness()
    );
}

/// Servers that many tests share, and each of which is several threads, have no processor for ten seconds on some busy machines:
/// a lease of the default length is lost by then, and truly so. No ZooKeeper of the tests allows much more.
const LASTING: &str = "40s";

/// A ttl for a lease that must not be lost, however slow the machine: a store accepts ten seconds unless it is told otherwise.
pub(crate) fn scaled_ttl(ttl: Duration) -> (Duration, String) {
    let ttl = (ttl * stretch()).min(Duration::from_secs(10));
    (ttl, format!("{}ms", ttl.as_millis()))
}

/// The blocks of this kind in a guide, in their order.
pub(crate) fn blocks<'a>(guide: &'a str, kind: &str) -> Vec<&'a str> {
    guide.split(&format!("```{kind}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}
