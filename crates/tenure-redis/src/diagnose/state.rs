//! How one server keeps its data: memory and eviction, what survives a restart, replicas.

use std::time::Duration;

use tenure_core::{Finding, Severity};

use super::{finding, server::Server, shown};
use crate::{
    config::GuardMode,
    guard::{LINGER, Terms},
};

/// A replica says every second how far it is.
const LAG: u64 = 3;
/// What a replica in step may be behind by, in bytes.
const BEHIND: u64 = 1 << 20;
/// Of the memory, in percent.
const NEARLY_FULL: u64 = 90;

impl Server {
    pub(super) fn state(&self, terms: &Terms) -> Vec<Finding> {
        let found = [
            self.eviction(),
            self.evicted(),
            self.full(),
            self.persistence(terms),
            self.saving(),
            self.replication(terms),
            self.stops_alone(terms),
            self.lag(),
        ];
        found.into_iter().flatten().collect()
    }

    /// A4, hazard 35.
    fn eviction(&self) -> Option<Finding> {
        let (policy, most) = (self.text("maxmemory_policy"), self.number("maxmemory")?);
        if policy.is_empty() || policy == "noeviction" {
            return None;
        }
        let (severity, what) = if most > 0 {
            (
                Severity::Problem,
                format!(
                    "maxmemory-policy is {policy} and maxmemory is {}: locks may be evicted, and then two may hold one",
                    size(most)
                ),
            )
        } else {
            (Severity::Note, format!("maxmemory-policy is {policy}; nothing is evicted while maxmemory is 0"))
        };
        let remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same line in redis.conf; a cache that \
                      needs eviction needs a server of its own";
        Some(finding(severity, what, remedy))
    }

    fn evicted(&self) -> Option<Finding> {
        let count = self.number("evicted_keys").filter(|count| *count > 0)?;
        Some(finding(
            Severity::Warning,
            format!(
                "{count} keys were evicted since this server started or its statistics were reset: locks may have been \
                 among them"
            ),
            "redis-cli CONFIG SET maxmemory-policy noeviction if it is not set yet; the count begins anew with the next \
             start of the server",
        ))
    }

    /// Hazard 36: releases pass, claims do not.
    fn full(&self) -> Option<Finding> {
        let (used, most) = (self.number("used_memory")?, self.number("maxmemory")?);
        let percent = used.saturating_mul(100).checked_div(most)?;
        (percent > NEARLY_FULL).then(|| {
            finding(
                Severity::Warning,
                format!(
                    "the memory is full to {percent} % ({} of {}): once it is full, nothing is granted",
                    size(used),
                    size(most)
                ),
                "give it more (redis-cli CONFIG SET maxmemory BYTES), or delete what is not needed",
            )
        })
    }

    fn persistence(&self, terms: &Terms) -> Option<Finding> {
        let (what, better) = match (self.text("aof_enabled"), self.setting("save"), self.setting("appendfsync")) {
            ("1", _, Some("always")) => return None,
            ("1", _, fsync) => (
                format!(
                    "the append-only file is not written through for every lock (appendfsync {}): a power failure \
                     forgets the last ones",
                    fsync.map_or_else(|| "unknown".to_owned(), shown::value)
                ),
                "redis-cli CONFIG SET appendfsync always, which costs a disk write per lock",
            ),
            ("0", Some(""), _) => (
                "nothing is saved: a restart forgets all locks, and who held one learns it at the next renewal"
                    .to_owned(),
                "redis-cli CONFIG SET appendonly yes, and the same line in redis.conf",
            ),
            ("0", Some(_), _) => (
                "only snapshots are saved: a restart forgets the locks taken since the last one".to_owned(),
                "redis-cli CONFIG SET appendonly yes, and the same line in redis.conf",
            ),
            _ => return None,
        };
        let guarded = match terms.mode {
            GuardMode::Off => "without a restart guard two may hold one lock then".to_owned(),
            GuardMode::On => {
                let wait = shown::time(terms.max_ttl);
                format!("that is safe: it grants nothing for {wait} after a restart")
            }
        };
        Some(finding(Severity::Note, what, format!("{guarded}; to keep locks: {better}")))
    }

    /// A server that cannot save refuses writes soon (MISCONF), if it does not already.
    fn saving(&self) -> Option<Finding> {
        let snapshots = self.text("rdb_last_bgsave_status") == "err" && self.setting("save") != Some("");
        let log = self.text("aof_enabled") == "1"
            && ["aof_last_write_status", "aof_last_bgrewrite_status"].iter().any(|f| self.text(f) == "err");
        let what = match (snapshots, log) {
            (false, false) => return None,
            (true, false) => "the last snapshot",
            (false, true) => "the last write of the append-only file",
            (true, true) => "the last snapshot and the last write of the append-only file",
        };
        Some(finding(
            Severity::Warning,
            format!(
                "{what} failed: a server that cannot save refuses writes (MISCONF), and grants nothing then"
            ),
            "read the log of the server; make room or set the rights in its directory (redis-cli CONFIG GET dir), then \
             redis-cli BGSAVE",
        ))
    }

    fn replicas(&self) -> impl Iterator<Item = Replica<'_>> {
        let lines =
            (0..self.number("connected_slaves").unwrap_or(0)).map(|n| self.text(&format!("slave{n}")));
        lines.map(Replica::read)
    }

    fn replication(&self, terms: &Terms) -> Option<Finding> {
        let count = self.number("connected_slaves").filter(|count| *count > 0)?;
        let replicas = if count == 1 { "1 replica" } else { &format!("{count} replicas") };
        let remedy = match terms.mode {
            GuardMode::Off => {
                "without a restart guard nothing waits for them to end: check the token where you write"
                    .to_owned()
            }
            GuardMode::On => format!(
                "that is safe: a server that was promoted grants nothing for {}, which is max_ttl and what the old \
                 master may still grant; a shorter ?max_ttl= shortens the wait",
                shown::time(terms.max_ttl + LINGER)
            ),
        };
        let what = format!(
            "{replicas} may lack the newest locks, as replication is asynchronous: a fail-over can lose them"
        );
        Some(finding(Severity::Note, what, remedy))
    }

    /// What stops an old master by itself: we look once a second, and the server at every write.
    fn stops_alone(&self, terms: &Terms) -> Option<Finding> {
        let has_replicas = self.number("connected_slaves").is_some_and(|count| count > 0);
        // This field is there only if both settings are.
        if !has_replicas || !self.text("min_slaves_good_slaves").is_empty() || terms.mode == GuardMode::Off {
            return None;
        }
        Some(finding(
            Severity::Note,
            "min-replicas-to-write is off: after a fail-over, an old master that keeps a replica grants on until it is \
             demoted, and one that has none for up to 9 s, which the new one waits for",
            "redis-cli CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 5 (on all servers, and in \
             redis.conf): then the server itself refuses each write of an old master, also those of other programs; with \
             several replicas, as many as there are stop it after every fail-over",
        ))
    }

    fn lag(&self) -> Option<Finding> {
        let head = self.number("master_repl_offset")?;
        let mut slow = shown::Tally::default();
        let mut first = String::new();
        for replica in self.replicas() {
            let Some(why) = replica.lags(head) else { continue };
            if slow.is_empty() {
                first = replica.command();
            }
            slow.add(|| format!("{}: {why}", replica.name()));
        }
        (!slow.is_empty()).then(|| {
            let what = slow.of("replica is behind", "replicas are behind");
            finding(
                Severity::Warning,
                format!("{what}: a fail-over to it loses that many locks more"),
                format!("look at its master_link_status and its log: {first} INFO replication"),
            )
        })
    }
}

/// A line of `INFO replication`: `ip=…,port=…,state=online,offset=…,lag=…`.
struct Replica<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Replica<'a> {
    fn read(line: &'a str) -> Self {
        Self(line.split(',').filter_map(|part| part.split_once('=')).collect())
    }

    fn field(&self, name: &str) -> &'a str {
        self.0.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    fn name(&self) -> String {
        shown::key(format!("{}:{}", self.field("ip"), self.field("port")).as_bytes())
    }

    fn command(&self) -> String {
        format!(
            "redis-cli -h {} -p {}",
            shown::word(self.field("ip"), "HOST"),
            shown::word(self.field("port"), "PORT")
        )
    }

    fn lags(&self, head: u64) -> Option<String> {
        let state = self.field("state");
        if state != "online" {
            return Some(format!("state {}", shown::value(state)));
        }
        let number = |name| self.field(name).parse::<u64>().unwrap_or(0);
        let (behind, lag) = (head.saturating_sub(number("offset")), Duration::from_secs(number("lag")));
        (behind > BEHIND || lag > Duration::from_secs(LAG))
            .then(|| format!("{} behind, silent for {}", size(behind), shown::time(lag)))
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(mode: GuardMode) -> Terms {
        Terms { mode, max_ttl: Duration::from_secs(30), db: 0, quorum: None }
    }

    /// Severity and text of all findings.
    fn judge(server: &Server) -> Vec<(Severity, String)> {
        let found = server.state(&terms(GuardMode::On)).into_iter();
        found.map(|finding| (finding.severity, format!("{} / {}", finding.what, finding.remedy))).collect()
    }

    #[test]
    fn a_server_of_which_nothing_is_known_is_not_judged() {
        assert_eq!(judge(&Server::default()), []);
    }

    #[test]
    fn eviction_is_a_problem_only_where_it_can_happen() {
        let judge = |policy: &str, most: u64| {
            let info = format!("maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            Server::of(&info).eviction().map(|finding| finding.severity)
        };
        assert_eq!(judge("noeviction", 1 << 30), None);
        assert_eq!(judge("volatile-ttl", 1 << 30), Some(Severity::Problem));
        assert_eq!(judge("allkeys-lru", 0), Some(Severity::Note));
    }

    #[test]
    fn memory_is_nearly_full_above_90_percent() {
        let judge = |used: u64, most: u64| {
            Server::of(&format!("used_memory:{used}\r\nmaxmemory:{most}\r\n"))
                .full()
                .map(|finding| finding.what)
        };
        assert_eq!(judge(900, 1000), None);
        assert_eq!(judge(900, 0), None);
        assert!(judge(910 << 20, 1000 << 20).unwrap().contains("91 % (910 MiB of 1000 MiB)"));
    }

    #[test]
    fn what_a_restart_forgets_is_noted() {
        let judge = |aof: &str, save: &str, fsync: &str| {
            let server =
                Server::of(&format!("aof_enabled:{aof}\r\n")).with("save", save).with("appendfsync", fsync);
            server.persistence(&terms(GuardMode::On)).map(|finding| finding.what)
        };
        assert_eq!(judge("1", "", "always"), None);
        assert!(judge("1", "", "everysec").unwrap().contains("appendfsync everysec"));
        assert!(judge("0", "", "always").unwrap().contains("nothing is saved"));
        assert!(judge("0", "3600 1", "everysec").unwrap().contains("only snapshots"));
        let unsaved = Server::of("aof_enabled:0\r\n").with("save", "");
        assert!(unsaved.persistence(&terms(GuardMode::Off)).unwrap().remedy.contains("two may hold"));
        assert!(unsaved.persistence(&terms(GuardMode::On)).unwrap().remedy.contains("for 30s"));
    }

    #[test]
    fn a_failed_save_is_a_warning_where_saving_is_wanted() {
        let snapshot = "aof_enabled:0\r\nrdb_last_bgsave_status:err\r\n";
        let judge =
            |info: &str, save: &str| Server::of(info).with("save", save).saving().map(|found| found.what);
        assert!(judge(snapshot, "3600 1").unwrap().contains("last snapshot failed"));
        assert_eq!(judge(snapshot, ""), None);
        assert_eq!(judge("aof_enabled:0\r\naof_last_write_status:err\r\n", ""), None);
        let log = "aof_enabled:1\r\naof_last_write_status:err\r\nrdb_last_bgsave_status:ok\r\n";
        assert!(judge(log, "").unwrap().contains("append-only file failed"));
    }

    #[test]
    fn a_replica_that_is_behind_is_a_warning() {
        let judge = |line: &str| {
            let info = format!("connected_slaves:1\r\nslave0:{line}\r\nmaster_repl_offset:2000000\r\n");
            Server::of(&info).lag().map(|finding| (finding.what, finding.remedy))
        };
        assert_eq!(judge("ip=10.0.0.2,port=1,state=online,offset=1999999,lag=3"), None);
        let (what, remedy) = judge("ip=10.0.0.2,port=1,state=online,offset=2000000,lag=4").unwrap();
        assert!(
            what.starts_with("1 replica is behind (10.0.0.2:1: 0 bytes behind, silent for 4s)"),
            "{what}"
        );
        assert!(remedy.contains("redis-cli -h 10.0.0.2 -p 1 INFO replication"), "{remedy}");
        assert!(judge("ip=h,port=1,state=online,offset=1,lag=0").unwrap().0.contains("1953 KiB behind"));
        assert!(judge("ip=h,port=1,state=wait_bgsave,offset=0,lag=0").unwrap().0.contains("wait_bgsave"));
    }
}
