//! One server: what it says of itself, read once (`INFO`, its clock, three settings), and the table of what may be wrong with it:
//! what that weakens, how gravely, and what to do.

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, RedisResult};
use tenure_core::{
    Finding, Severity,
    Severity::{Note, Problem, Warning},
    shown,
};

use crate::{
    backend::Redis,
    config::GuardMode,
    guard::{LINGER, Terms},
    wire::{Node, Wire},
};

/// What was read from one server. What could not be read is not there, and no finding is made of it.
#[derive(Default)]
pub(super) struct Server {
    pub(super) fields: HashMap<String, String>,
    /// Why a setting could not be read.
    pub(super) refusal: Option<String>,
    pub(super) clock: Clock,
    /// The URL says that it is a node of a Cluster.
    pub(super) is_node: bool,
    /// The user that asks.
    pub(super) user: Option<String>,
}

/// The server's clock against that of this machine.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    pub(super) is_ahead: bool,
    /// The least difference: the time that the question took is taken off.
    pub(super) apart: Duration,
}

impl Server {
    pub(super) async fn read(wire: &Wire, node: &Node, redis: &Redis) -> RedisResult<Self> {
        let info: String = redis::from_redis_value(wire.ask_node(node, &redis::cmd("INFO")).await?)?;
        let mut server = Self::of(&info);
        server.is_node = redis.is_cluster();
        server.user.clone_from(&redis.config().login.user);
        if server.is_sentinel() {
            return Ok(server);
        }
        let host = redis.sessions.host();
        let asked = host.now();
        let time = wire.ask_node(node, &redis::cmd("TIME")).await?;
        let (seconds, micros) = redis::from_redis_value(time)?;
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        server.clock = Clock::compare(theirs, asked.wall, asked.elapsed(host.now()));
        for name in ["save", "appendfsync", "repl-backlog-ttl"] {
            match wire.ask_node(node, Cmd::new().arg("CONFIG").arg("GET").arg(name)).await {
                Ok(answer) => {
                    server.fields.extend(redis::from_redis_value::<HashMap<String, String>>(answer)?);
                }
                Err(error) => server.refusal = Some(error.to_string()),
            }
        }
        Ok(server)
    }

    pub(super) fn keeps_locks(&self, terms: &Terms) -> bool {
        self.seen(&KEEPS_NO_LOCKS, terms).is_empty()
    }

    pub(super) fn findings(&self, terms: &Terms) -> Vec<Finding> {
        let wrong = self.seen(&KEEPS_NO_LOCKS, terms);
        if !wrong.is_empty() {
            return wrong;
        }
        self.seen(&WEAKENS, terms).into_iter().chain(self.unread(terms)).collect()
    }

    fn seen(&self, rows: &[Row], terms: &Terms) -> Vec<Finding> {
        let row = |(see, remedy): &Row| see(self, terms).map(|(how, what)| finding(how, what, remedy));
        rows.iter().filter_map(row).collect()
    }

    /// The one setting without which a server has to wait longer.
    fn unread(&self, terms: &Terms) -> Option<Finding> {
        if terms.mode == GuardMode::Off || self.get("repl-backlog-ttl").is_some() {
            return None;
        }
        let why = shown(self.refusal.as_deref().unwrap_or("the server has no such setting")).within(240);
        let user = word(self.user.as_deref().unwrap_or("default"), "USER");
        let what = format!(
            "repl-backlog-ttl cannot be read ({why}): a server that is new or restarted waits as a promoted one does, for {}",
            time(terms.max_ttl + LINGER)
        );
        let remedy = format!("give the right to read it: redis-cli ACL SETUSER {user} '+config|get'");
        Some(finding(Note, what, remedy))
    }

    /// From the text that `INFO` answers.
    pub(super) fn of(info: &str) -> Self {
        let field = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { fields: info.lines().filter_map(field).collect(), ..Self::default() }
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.text("redis_mode") == "sentinel"
    }

    /// A field of `INFO`, or a setting.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }
}

impl Clock {
    /// The server read its clock at some time on the way of the question, which took this long.
    pub(super) fn compare(theirs: Duration, ours: Duration, way: Duration) -> Self {
        let is_ahead = theirs > ours + way;
        let apart = if is_ahead { theirs.saturating_sub(ours + way) } else { ours.saturating_sub(theirs) };
        Self { is_ahead, apart }
    }
}

/// What is weakened and how gravely, if it is and the server tells; and what to do.
type Row = (fn(&Server, &Terms) -> Option<(Severity, String)>, &'static str);

/// A server of one of these rows grants no lock, whatever its state.
const KEEPS_NO_LOCKS: [Row; 3] = [
    (
        replica,
        "name the master in the URL, as in redis://HOST:PORT; or use redis-sentinel://HOST?master=NAME, which finds it \
         after every fail-over",
    ),
    (sentinel, "begin the URL with redis-sentinel:// and name the master, as in ?master=mymaster"),
    (cluster_node, "begin the URL with redis-cluster://"),
];

/// What weakens the promises of a server that keeps locks.
const WEAKENS: [Row; 11] = [
    (version, "use Redis 7 or later, or Valkey"),
    (
        clock,
        "run chrony or ntpd on both machines, so that no clock is set by a step (see `chronyc tracking`)",
    ),
    (
        eviction,
        "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; give a cache a server of its own",
    ),
    (
        evicted,
        "redis-cli CONFIG SET maxmemory-policy noeviction if it is not set yet; a restart of the server resets the count",
    ),
    (memory, "give it more (redis-cli CONFIG SET maxmemory BYTES), or delete what is not needed"),
    (
        persistence,
        "to keep locks: redis-cli CONFIG SET appendonly yes and CONFIG SET appendfsync always, and the same in redis.conf \
         (a disk write per lock)",
    ),
    (
        saving,
        "read the log of the server; make room or set the rights in its directory (redis-cli CONFIG GET dir), then \
         redis-cli BGSAVE",
    ),
    (
        replication,
        "check the fencing token where you write; a shorter ?max_ttl= (the same everywhere) shortens the wait",
    ),
    (
        no_least_replicas,
        "redis-cli CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 5 on all servers, and in \
         redis.conf (with several replicas, their number): then the server itself refuses the writes of an old master",
    ),
    (lag, "on the replica: redis-cli INFO replication (see master_link_status), and read its log"),
    (backlog_ttl, "redis-cli CONFIG SET repl-backlog-ttl 3600, and the same in redis.conf"),
];

fn replica(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let (host, port) = (server.text("master_host"), server.text("master_port"));
    let what = format!("this server is a replica of {host}:{port}: it takes no writes, so it grants nothing");
    (server.text("role") == "slave").then_some((Problem, what))
}

fn sentinel(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    server.is_sentinel().then(|| (Problem, "this server is a Sentinel: it keeps no locks".into()))
}

fn cluster_node(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let is_one = server.text("cluster_enabled") == "1" && !server.is_node;
    let what = "this server is a node of a Redis Cluster: most locks are on other nodes";
    is_one.then(|| (Problem, what.into()))
}

fn version(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let version = server.text("redis_version");
    let (severity, lacks) = match version.split('.').next()?.parse().ok()? {
        0..5 => (Problem, "its scripts may not write after they have read the time, so no lock can be taken"),
        5 => (Warning, "`tenure ls` finds nothing, and each client needs a second connection for messages"),
        6 => (Note, "it cannot show that it is new, so without a record it waits for the longest ttl"),
        _ => return None,
    };
    Some((severity, format!("this is Redis {version}: {lacks}")))
}

/// A6 is about the clocks of servers; ours is the only other one at hand.
fn clock(server: &Server, terms: &Terms) -> Option<(Severity, String)> {
    let (apart, half) = (server.clock.apart, terms.max_ttl / 2);
    let is_guarded = terms.mode == GuardMode::On;
    let severity = match apart {
        _ if is_guarded && apart > half => Problem,
        _ if apart > CLOCKS_APART => Warning,
        _ => return None,
    };
    let side = if server.clock.is_ahead { "ahead of" } else { "behind" };
    let least =
        if is_guarded { format!(" unless clocks differ by less than {}", time(half)) } else { String::new() };
    let what = format!(
        "the server's clock is {} {side} ours; tokens may fall back after a fail-over{least}",
        time(apart)
    );
    Some((severity, what))
}

/// A4, hazard 35.
fn eviction(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let (policy, most) = (server.text("maxmemory_policy"), server.number("maxmemory")?);
    let what = format!("maxmemory-policy is {policy} and maxmemory is {}", size(most));
    match (policy, most) {
        ("" | "noeviction", _) => None,
        (_, 0) => Some((Note, format!("{what}: nothing is evicted until maxmemory is set"))),
        _ => Some((Problem, format!("{what}: locks may be evicted, and then two clients may hold one"))),
    }
}

fn evicted(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let count = server.number("evicted_keys").filter(|count| *count > 0)?;
    Some((
        Warning,
        format!("{count} keys were evicted since the server started: locks may have been among them"),
    ))
}

/// Hazard 36: releases pass, claims do not.
fn memory(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let (used, most) = (server.number("used_memory")?, server.number("maxmemory")?);
    let percent = used.saturating_mul(100).checked_div(most)?;
    let of = format!("{percent} % ({} of {})", size(used), size(most));
    let what = format!("the memory is full to {of}: once it is full, nothing is granted");
    (percent > NEARLY_FULL_PERCENT).then_some((Warning, what))
}

fn persistence(server: &Server, terms: &Terms) -> Option<(Severity, String)> {
    let what = match (server.text("aof_enabled"), server.get("save"), server.get("appendfsync")) {
        ("1", _, Some("always")) => return None,
        ("1", _, fsync) => {
            let fsync = fsync.unwrap_or("unknown");
            format!(
                "the append-only file is late (appendfsync {fsync}): a power failure forgets the last locks"
            )
        }
        ("0", Some(""), _) => "nothing is saved: a restart forgets all locks".into(),
        ("0", Some(_), _) => {
            "only snapshots are saved: a restart forgets the locks since the last one".into()
        }
        _ => return None,
    };
    Some((Note, format!("{what}; {}", after_a_loss(terms, terms.max_ttl, "a restart"))))
}

/// It refuses writes soon (MISCONF), if it does not already.
fn saving(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let failed = |field| server.text(field) == "err";
    let has_log = server.text("aof_enabled") == "1";
    let what = if has_log && (failed("aof_last_write_status") || failed("aof_last_bgrewrite_status")) {
        "the last write of the append-only file"
    } else if server.get("save") != Some("") && failed("rdb_last_bgsave_status") {
        "the last snapshot"
    } else {
        return None;
    };
    Some((
        Warning,
        format!("{what} failed: a server that cannot save refuses writes (MISCONF) and grants nothing"),
    ))
}

fn replication(server: &Server, terms: &Terms) -> Option<(Severity, String)> {
    let count = server.number("connected_slaves").filter(|count| *count > 0)?;
    let noun = if count == 1 { "replica" } else { "replicas" };
    let then = after_a_loss(terms, terms.max_ttl + LINGER, "a promotion");
    let why = "may lack the newest locks, as replication is asynchronous: a fail-over can lose them";
    Some((Note, format!("{count} {noun} {why}; {then}")))
}

/// What stops an old master by itself: a client looks once a second, the server at every write.
fn no_least_replicas(server: &Server, terms: &Terms) -> Option<(Severity, String)> {
    // The field is there only if both settings are.
    let is_off = server.number("connected_slaves")? > 0 && server.text("min_slaves_good_slaves").is_empty();
    let what = "min-replicas-to-write is off: after a fail-over, an old master that keeps a replica grants until it is \
                demoted, and one without a replica for up to 9 s, for which the new one waits";
    (is_off && terms.mode == GuardMode::On).then(|| (Note, what.into()))
}

/// Replicas that are behind, from lines as `ip=…,port=…,state=online,offset=…,lag=…`.
fn lag(server: &Server, _: &Terms) -> Option<(Severity, String)> {
    let head = server.number("master_repl_offset")?;
    let lags = |n| {
        let line = server.text(&format!("slave{n}"));
        let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name)).unwrap_or("");
        let number = |name| field(name).parse::<u64>().unwrap_or(0);
        let (ip, port, state) = (field("ip="), field("port="), field("state="));
        let (behind, lag) = (head.saturating_sub(number("offset=")), number("lag="));
        let is_behind = behind > BEHIND_BYTES || lag > LAG_S || state != "online";
        is_behind.then(|| format!("{ip}:{port}: state {state}, {} behind, silent for {lag} s", size(behind)))
    };
    let slow: Vec<String> = (0..server.number("connected_slaves")?).filter_map(lags).collect();
    let (count, slow) = (slow.len(), slow.join(", "));
    let noun = if count == 1 { "replica is" } else { "replicas are" };
    let what = format!("{count} {noun} behind ({slow}): a fail-over to it loses that many locks more");
    (count > 0).then_some((Warning, what))
}

/// Without it, a server that was promoted may not know so any more.
fn backlog_ttl(server: &Server, terms: &Terms) -> Option<(Severity, String)> {
    let ttl = Duration::from_secs(server.number("repl-backlog-ttl")?);
    let what = format!(
        "repl-backlog-ttl is {}, less than {}: a server cannot prove that it was not promoted, so every restart costs {}; \
         nor that it was, and may then grant nothing until it has a replica",
        time(ttl),
        time(terms.memory()),
        time(terms.max_ttl + LINGER)
    );
    (terms.mode == GuardMode::On && !terms.trusts(Some(ttl))).then_some((Warning, what))
}

/// What follows from locks that a server lost by such an event.
fn after_a_loss(terms: &Terms, wait: Duration, event: &str) -> String {
    match terms.mode {
        GuardMode::Off => "without a restart guard two clients may hold one lock then".to_owned(),
        GuardMode::On => format!("that is safe: the server grants nothing for {} after {event}", time(wait)),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Both texts may quote the server, or data of others.
pub(super) fn finding(severity: Severity, what: impl AsRef<str>, remedy: impl AsRef<str>) -> Finding {
    let plain = |text: &str| shown(text).within(4096).to_string();
    Finding::new(severity, plain(what.as_ref()), plain(remedy.as_ref()))
}

/// `30s`, `1m 30s`; never finer than ms.
pub(super) fn time(d: Duration) -> String {
    // OK because no duration here is anywhere near 2^64 ms.
    let ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// A word of a shell command; text that a shell could take for more than a word is replaced.
pub(super) fn word<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.:@%+=-".contains(c);
    let is_word = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    if is_word { text } else { otherwise }
}

/// A healthy network shows no larger difference between clocks.
const CLOCKS_APART: Duration = Duration::from_secs(1);
/// A replica in step acknowledges within so many seconds, and lacks at most so many bytes.
const LAG_S: u64 = 3;
const BEHIND_BYTES: u64 = 1 << 20;
const NEARLY_FULL_PERCENT: u64 = 90;
