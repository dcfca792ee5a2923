//! One server: what it reports about itself, read once (`INFO`, its clock, three settings), and the table of what may be
//! wrong with it: what that weakens, how severe it is, and what to do.

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, RedisResult};
use tenure_client::doctor::{Check, finding, found, judged};
use tenure_core::{
    Finding,
    Severity::{Note, Problem, Warning},
    shown,
};

use crate::{
    backend::Redis,
    config::GuardMode,
    connection::{LockNode, Wire},
    guard::{LINGER, Terms},
};

/// What was read from one server. There is no finding about what could not be read.
pub(super) struct NodeReport {
    pub(super) fields: HashMap<String, String>,
    /// Why a setting could not be read.
    pub(super) refusal: Option<String>,
    pub(super) clock: ServerClock,
    /// By the URL, it is a node of a Cluster.
    pub(super) is_node: bool,
    /// The user that asks.
    pub(super) user: Option<String>,
    /// What its clients agreed on.
    pub(super) terms: Terms,
}

/// The server's clock against that of this machine.
#[derive(Clone, Copy, Default)]
pub(super) struct ServerClock {
    pub(super) is_ahead: bool,
    /// The least difference: the time that the request took is subtracted.
    pub(super) apart: Duration,
}

impl NodeReport {
    pub(super) async fn read(
        wire: &Wire,
        node: &LockNode,
        redis: &Redis,
        terms: &Terms,
    ) -> RedisResult<Self> {
        let info: String = redis::from_redis_value(wire.ask_node(node, &redis::cmd("INFO")).await?)?;
        let mut server = Self::of(&info, *terms);
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
        server.clock = ServerClock::compare(theirs, asked.wall, asked.elapsed(host.now()));
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

    /// What makes it a server that grants no lock, whatever its state.
    pub(super) fn keeps_no_locks(&self) -> Vec<Finding> {
        judged(&KEEPS_NO_LOCKS, self)
    }

    /// What weakens the promises of a server that keeps locks.
    pub(super) fn weaknesses(&self) -> Vec<Finding> {
        judged(&WEAKENS, self)
    }

    /// From the text that `INFO` returns.
    pub(super) fn of(info: &str, terms: Terms) -> Self {
        let field = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.to_owned()));
        let fields = info.lines().filter_map(field).collect();
        Self { fields, refusal: None, clock: ServerClock::default(), is_node: false, user: None, terms }
    }

    fn is_guarded(&self) -> bool {
        self.terms.mode == GuardMode::On
    }

    fn is_sentinel(&self) -> bool {
        self.text("redis_mode") == "sentinel"
    }

    /// A field of `INFO`, or a setting.
    fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    /// What follows from locks that it lost by such an event.
    fn after_a_loss(&self, wait: Duration, event: &str) -> String {
        match self.terms.mode {
            GuardMode::Off => "without a restart guard two clients may hold one lock then".to_owned(),
            GuardMode::On => {
                format!("that is safe: the server grants nothing for {} after {event}", time(wait))
            }
        }
    }
}

impl ServerClock {
    /// The server read its clock at some time during the request, which took the time `way`.
    pub(super) fn compare(theirs: Duration, ours: Duration, way: Duration) -> Self {
        let is_ahead = theirs > ours + way;
        let apart = if is_ahead { theirs.saturating_sub(ours + way) } else { ours.saturating_sub(theirs) };
        Self { is_ahead, apart }
    }
}

const KEEPS_NO_LOCKS: [Check<NodeReport>; 3] = [
    Check::new("replica", |server| {
        let (host, port) = (server.text("master_host"), server.text("master_port"));
        let what =
            format!("this server is a replica of {host}:{port}: it takes no writes, so it grants nothing");
        let remedy = "name the master in the URL, as in redis://HOST:PORT; or use \
                      redis-sentinel://HOST?master=NAME, which finds it after every fail-over";
        found(server.text("role") == "slave", Problem, what, remedy)
    }),
    Check::new("Sentinel", |server| {
        let what = "this server is a Sentinel: it keeps no locks";
        let remedy = "begin the URL with redis-sentinel:// and name the master, as in ?master=mymaster";
        found(server.is_sentinel(), Problem, what, remedy)
    }),
    Check::new("node of a Cluster", |server| {
        let is_one = server.text("cluster_enabled") == "1" && !server.is_node;
        let what = "this server is a node of a Redis Cluster: most locks are on other nodes";
        found(is_one, Problem, what, "begin the URL with redis-cluster://")
    }),
];

const WEAKENS: [Check<NodeReport>; 12] = [
    Check::new("version", |server| {
        let version = server.text("redis_version");
        let (severity, lacks) = match version.split('.').next()?.parse().ok()? {
            0..5 => {
                (Problem, "its scripts may not write after they have read the time, so no lock can be taken")
            }
            5 => {
                (Warning, "`tenure ls` finds nothing, and each client needs a second connection for messages")
            }
            6 => (Note, "it cannot show that it is new, so without a record it waits for the longest ttl"),
            _ => return None,
        };
        let what = format!("this is Redis {version}: {lacks}");
        Some(finding(severity, what, "use Redis 7 or later, or Valkey"))
    }),
    // A6 is about the clocks of servers; that of this machine is the only other one at hand.
    Check::new("clock", |server| {
        let (apart, half) = (server.clock.apart, server.terms.max_ttl / 2);
        let severity = match apart {
            _ if server.is_guarded() && apart > half => Problem,
            _ if apart > CLOCKS_APART => Warning,
            _ => return None,
        };
        let side = if server.clock.is_ahead { "ahead of" } else { "behind" };
        let least = match server.terms.mode {
            GuardMode::On => format!(" unless clocks differ by less than {}", time(half)),
            GuardMode::Off => String::new(),
        };
        let what = format!(
            "the server's clock is {} {side} ours; tokens may fall back after a fail-over{least}",
            time(apart)
        );
        let remedy =
            "run chrony or ntpd on both machines, so that no clock is set by a step (see `chronyc tracking`)";
        Some(finding(severity, what, remedy))
    }),
    // A4, hazard 35.
    Check::new("eviction", |server| {
        let (policy, most) = (server.text("maxmemory_policy"), server.number("maxmemory")?);
        let (severity, then) = match (policy, most) {
            ("" | "noeviction", _) => return None,
            (_, 0) => (Note, "nothing is evicted until maxmemory is set"),
            _ => (Problem, "locks may be evicted, and then two clients may hold one"),
        };
        let what = format!("maxmemory-policy is {policy} and maxmemory is {}: {then}", size(most));
        let remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; give a \
                      cache a server of its own";
        Some(finding(severity, what, remedy))
    }),
    Check::new("evicted keys", |server| {
        let count = server.number("evicted_keys")?;
        let what =
            format!("{count} keys were evicted since the server started: locks may have been among them");
        let remedy = "redis-cli CONFIG SET maxmemory-policy noeviction if it is not set yet; a restart of \
                      the server resets the count";
        found(count > 0, Warning, what, remedy)
    }),
    // Hazard 36: releases pass, claims do not.
    Check::new("memory", |server| {
        let (used, most) = (server.number("used_memory")?, server.number("maxmemory")?);
        let percent = used.saturating_mul(100).checked_div(most)?;
        let of = format!("{percent} % ({} of {})", size(used), size(most));
        let what = format!("the memory is full to {of}: once it is full, nothing is granted");
        let remedy = "give it more (redis-cli CONFIG SET maxmemory BYTES), or delete what is not needed";
        found(percent > NEARLY_FULL_PERCENT, Warning, what, remedy)
    }),
    Check::new("persistence", |server| {
        let what = match (server.text("aof_enabled"), server.get("save"), server.get("appendfsync")) {
            ("1", _, Some("always")) => return None,
            ("1", _, fsync) => format!(
                "the append-only file is late (appendfsync {}): a power failure forgets the last locks",
                fsync.unwrap_or("unknown")
            ),
            ("0", Some(""), _) => "nothing is saved: a restart forgets all locks".into(),
            ("0", Some(_), _) => {
                "only snapshots are saved: a restart forgets the locks since the last one".into()
            }
            _ => return None,
        };
        let what = format!("{what}; {}", server.after_a_loss(server.terms.max_ttl, "a restart"));
        let remedy = "to keep locks: redis-cli CONFIG SET appendonly yes and CONFIG SET appendfsync always, \
                      and the same in redis.conf (a disk write per lock)";
        Some(finding(Note, what, remedy))
    }),
    // It refuses writes soon (MISCONF), if it does not already.
    Check::new("saving", |server| {
        let failed = |field| server.text(field) == "err";
        let has_log = server.text("aof_enabled") == "1";
        let what = if has_log && (failed("aof_last_write_status") || failed("aof_last_bgrewrite_status")) {
            "the last write of the append-only file"
        } else if server.get("save") != Some("") && failed("rdb_last_bgsave_status") {
            "the last snapshot"
        } else {
            return None;
        };
        let what =
            format!("{what} failed: a server that cannot save refuses writes (MISCONF) and grants nothing");
        let remedy = "read the log of the server; make room or set the rights in its directory (redis-cli \
                      CONFIG GET dir), then redis-cli BGSAVE";
        Some(finding(Warning, what, remedy))
    }),
    Check::new("replication", |server| {
        let count = server.number("connected_slaves")?;
        let noun = if count == 1 { "replica" } else { "replicas" };
        let then = server.after_a_loss(server.terms.max_ttl + LINGER, "a promotion");
        let why = "may lack the newest locks, as replication is asynchronous: a fail-over can lose them";
        let remedy = "check the fencing token where you write; a shorter ?max_ttl= (the same everywhere) \
                      shortens the wait";
        found(count > 0, Note, format!("{count} {noun} {why}; {then}"), remedy)
    }),
    // What stops an old master by itself: a client checks the replicas once a second, the server at every write.
    Check::new("least replicas", |server| {
        // The field exists only if both settings are set.
        let is_off =
            server.number("connected_slaves")? > 0 && server.text("min_slaves_good_slaves").is_empty();
        let what = "min-replicas-to-write is off: after a fail-over, an old master that keeps a replica \
                    grants until it is demoted, and one without a replica for up to 9 s, for which the new \
                    one waits";
        let remedy = "redis-cli CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 5 on \
                      all servers, and in redis.conf (with several replicas, their number): then the server \
                      itself refuses the writes of an old master";
        found(is_off && server.is_guarded(), Note, what, remedy)
    }),
    // Replicas that are behind, from lines as `ip=…,port=…,state=online,offset=…,lag=…`.
    Check::new("lag", |server| {
        let head = server.number("master_repl_offset")?;
        let lags = |n| {
            let line = server.text(&format!("slave{n}"));
            let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name)).unwrap_or("");
            let number = |name| field(name).parse::<u64>().unwrap_or(0);
            let (ip, port, state) = (field("ip="), field("port="), field("state="));
            let (behind, lag) = (head.saturating_sub(number("offset=")), number("lag="));
            let is_behind = behind > BEHIND_BYTES || lag > LAG_S || state != "online";
            is_behind
                .then(|| format!("{ip}:{port}: state {state}, {} behind, silent for {lag} s", size(behind)))
        };
        let slow: Vec<String> = (0..server.number("connected_slaves")?).filter_map(lags).collect();
        let (count, slow) = (slow.len(), slow.join(", "));
        let noun = if count == 1 { "replica is" } else { "replicas are" };
        let what = format!("{count} {noun} behind ({slow}): a fail-over to it loses that many locks more");
        let remedy = "on the replica: redis-cli INFO replication (see master_link_status), and read its log";
        found(count > 0, Warning, what, remedy)
    }),
    // Without it, a server that was promoted may not know any more that it was.
    Check::new("backlog", |server| {
        let ttl = Duration::from_secs(server.number("repl-backlog-ttl")?);
        let what = format!(
            "repl-backlog-ttl is {}, less than {}: a server cannot prove that it was not promoted, so every \
             restart costs {}; nor that it was, and may then grant nothing until it has a replica",
            time(ttl),
            time(server.terms.memory()),
            time(server.terms.max_ttl + LINGER)
        );
        let is_short = server.is_guarded() && !server.terms.trusts(Some(ttl));
        found(
            is_short,
            Warning,
            what,
            "redis-cli CONFIG SET repl-backlog-ttl 3600, and the same in redis.conf",
        )
    }),
    // The one setting without which a server has to wait longer.
    Check::new("unknown backlog", |server| {
        let why = shown(server.refusal.as_deref().unwrap_or("the server has no such setting")).within(240);
        let user = word(server.user.as_deref().unwrap_or("default"), "USER");
        let what = format!(
            "repl-backlog-ttl cannot be read ({why}): a server that is new or restarted waits as a promoted \
             one does, for {}",
            time(server.terms.max_ttl + LINGER)
        );
        let remedy = format!("give the right to read it: redis-cli ACL SETUSER {user} '+config|get'");
        let is_unknown = server.is_guarded() && server.get("repl-backlog-ttl").is_none();
        found(is_unknown, Note, what, remedy)
    }),
];

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
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
/// A replica in step acknowledges within `LAG_S` seconds, and lacks `BEHIND_BYTES` bytes at most.
const LAG_S: u64 = 3;
const BEHIND_BYTES: u64 = 1 << 20;
const NEARLY_FULL_PERCENT: u64 = 90;
