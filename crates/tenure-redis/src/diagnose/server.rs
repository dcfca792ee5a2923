//! What one server says of itself, and whether it is one that locks can be kept on.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tenure_core::{Finding, Host, Severity};

use super::{finding, shown};
use crate::{
    config::GuardMode,
    connect::{Node, Wire},
    guard::{LINGER, Terms},
    reply,
};

/// A difference between clocks that a healthy network does not show.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// What was read from one server. What could not be read is not there, and nothing is found about it.
#[derive(Default)]
pub(super) struct Server {
    info: HashMap<String, String>,
    settings: HashMap<&'static str, String>,
    /// Why settings could not be read.
    refusal: Option<String>,
    clock: Clock,
}

/// The server's clock against ours.
#[derive(Clone, Copy, Default)]
struct Clock {
    is_ahead: bool,
    /// At least this far apart: what the way of the question may account for is taken off.
    apart: Duration,
}

impl Server {
    pub(super) async fn read(wire: &Wire, node: &Node, host: &dyn Host) -> RedisResult<Self> {
        let info: String = redis::from_redis_value(wire.ask_node(node, &redis::cmd("INFO")).await?)?;
        let mut server = Self::of(&info);
        if server.is_sentinel() {
            return Ok(server);
        }
        let asked = host.now();
        let time = wire.ask_node(node, &redis::cmd("TIME")).await?;
        let way = asked.elapsed(host.now());
        let theirs = read_time(&time).ok_or_else(|| strange("TIME"))?;
        server.clock = Clock::compare(theirs, asked.wall, way);
        let names = ["save", "appendfsync", "repl-backlog-ttl"];
        let commands = names.map(|name| {
            let mut cmd = redis::cmd("CONFIG");
            cmd.arg("GET").arg(name);
            cmd
        });
        let answers = join_all(commands.iter().map(|cmd: &Cmd| wire.ask_node(node, cmd))).await;
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(answer) => server.settings.extend(read_setting(&answer).map(|value| (name, value))),
                Err(error) => server.refusal = Some(error.to_string()),
            }
        }
        Ok(server)
    }

    /// From the text that `INFO` answers.
    pub(super) fn of(info: &str) -> Self {
        let field = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { info: info.lines().filter_map(field).collect(), ..Self::default() }
    }

    pub(super) fn text(&self, field: &str) -> &str {
        self.info.get(field).map_or("", String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.text(field).parse().ok()
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn is_sentinel(&self) -> bool {
        self.text("redis_mode") == "sentinel"
    }

    /// What makes looking further useless: this server grants nothing, whatever its state.
    pub(super) fn wrong_place(&self, is_cluster: bool) -> Option<Finding> {
        let (what, remedy) = if self.text("role") == "slave" {
            let (host, port) = (self.text("master_host"), self.text("master_port"));
            (
                format!(
                    "this server is a replica of {host}:{port}: it takes no writes, so it grants nothing"
                ),
                format!(
                    "name the master in the URL, as in redis://{}:{port}; behind Sentinel, use \
                     redis-sentinel://HOST?master=NAME, which finds it after every fail-over",
                    shown::word(host, "MASTER")
                ),
            )
        } else if self.is_sentinel() {
            (
                "this server is a Sentinel: it keeps no locks".to_owned(),
                "begin the URL with redis-sentinel:// and name the master, as in ?master=mymaster".to_owned(),
            )
        } else if self.text("cluster_enabled") == "1" && !is_cluster {
            (
                "this server is a node of a Redis Cluster: most locks lie on other nodes".to_owned(),
                "begin the URL with redis-cluster://".to_owned(),
            )
        } else {
            return None;
        };
        Some(finding(Severity::Problem, what, remedy))
    }

    pub(super) fn findings(&self, terms: &Terms) -> Vec<Finding> {
        let mut found = Vec::new();
        found.extend(self.version());
        found.extend(self.clock.judge(terms));
        found.extend(self.state(terms));
        found
    }

    fn version(&self) -> Option<Finding> {
        let version = self.text("redis_version");
        let mut numbers = version.split('.').map(str::parse::<u32>);
        let major = numbers.next()?.ok()?;
        let (severity, lacks) = match major {
            0..5 => (
                Severity::Problem,
                "its scripts may not write after they have read the time, so no lock can be taken",
            ),
            5 => (
                Severity::Warning,
                "it cannot push hints (RESP3), which come over a second connection, and `tenure ls` finds nothing",
            ),
            6 => (
                Severity::Note,
                "it does not tell CONFIG RESETSTAT from other CONFIG commands, so a server without a record is never \
                 taken for unused and waits for the longest ttl",
            ),
            _ => return None,
        };
        let what = format!("this is Redis {}: {lacks}", shown::value(version));
        Some(finding(severity, what, "use Redis 7 or later, or Valkey"))
    }

    /// Without this setting, a server that was promoted may not know it any more.
    pub(super) fn backlog(&self, terms: &Terms, user: Option<&str>) -> Option<Finding> {
        if terms.mode == GuardMode::Off {
            return None;
        }
        let Some(text) = self.setting("repl-backlog-ttl") else {
            let why = self.refusal.as_deref().unwrap_or("it is not there");
            let user = shown::word(user.unwrap_or("default"), "USER");
            return Some(finding(
                Severity::Note,
                format!(
                    "repl-backlog-ttl cannot be read ({}): a server that is new or restarted waits as a promoted one \
                     does, for {}",
                    shown::words(why),
                    shown::time(terms.max_ttl + LINGER)
                ),
                format!("give the right to read it: redis-cli ACL SETUSER {user} '+config|get'"),
            ));
        };
        let ttl = Duration::from_secs(text.parse().ok()?);
        (!terms.trusts(Some(ttl))).then(|| {
            finding(
                Severity::Warning,
                format!(
                    "repl-backlog-ttl is {}, less than {}: a server cannot prove that it was not promoted, so every \
                     restart costs {}; nor that it was, and may then grant nothing until it has a replica",
                    shown::time(ttl),
                    shown::time(terms.memory()),
                    shown::time(terms.max_ttl + LINGER)
                ),
                "redis-cli CONFIG SET repl-backlog-ttl 3600, and the same line in redis.conf",
            )
        })
    }
}

impl Clock {
    /// The server read its clock at some time on the way, which took this long.
    fn compare(theirs: Duration, ours: Duration, way: Duration) -> Self {
        let is_ahead = theirs > ours + way;
        let apart = if is_ahead { theirs.saturating_sub(ours + way) } else { ours.saturating_sub(theirs) };
        Self { is_ahead, apart }
    }

    /// A6 is about the clocks of servers, and ours is the only other one that is at hand.
    fn judge(self, terms: &Terms) -> Option<Finding> {
        let is_guarded = terms.mode != GuardMode::Off;
        let severity = match self.apart {
            apart if is_guarded && apart > terms.max_ttl / 2 => Severity::Problem,
            apart if apart > CLOCKS_APART => Severity::Warning,
            _ => return None,
        };
        let direction = if self.is_ahead { "ahead of" } else { "behind" };
        let tokens = if is_guarded {
            let max_ttl = shown::time(terms.max_ttl);
            format!(
                "tokens grow over a fail-over only if clocks differ by less than half of max_ttl, {max_ttl}"
            )
        } else {
            "without a restart guard tokens may fall back by as much after a fail-over".to_owned()
        };
        Some(finding(
            severity,
            format!("the server's clock is {} {direction} ours; {tokens}", shown::time(self.apart)),
            "run chrony or ntpd on both machines, so that the clock is never set by a step (look with `chronyc tracking` or \
             `timedatectl`)",
        ))
    }
}

fn read_time(value: &Value) -> Option<Duration> {
    let Value::Array(parts) = value else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let number = |value| reply::number(value).and_then(|n| u64::try_from(n).ok());
    Some(Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?))
}

/// The value in the answer to `CONFIG GET` of one name; nothing if there is no such setting.
fn read_setting(answer: &Value) -> Option<String> {
    let value = match answer {
        Value::Map(pairs) => &pairs.first()?.1,
        Value::Array(items) => items.get(1)?,
        _ => return None,
    };
    redis::from_redis_value_ref(value).ok()
}

fn strange(command: &str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "an answer that is none", command.to_owned()))
}

#[cfg(test)]
impl Server {
    pub(super) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.settings.insert(name, value.to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(mode: GuardMode, seconds: u64) -> Terms {
        Terms { mode, max_ttl: Duration::from_secs(seconds), db: 0, quorum: None }
    }

    #[test]
    fn old_versions_lack_something() {
        let judge = |version: &str| Server::of(&format!("redis_version:{version}\r\n")).version();
        for (version, severity) in
            [("4.0.14", Severity::Problem), ("5.0.3", Severity::Warning), ("6.2.1", Severity::Note)]
        {
            let found = judge(version).unwrap();
            assert!(found.severity == severity && found.what.contains(version), "{found:?}");
        }
        for version in ["7.0.15", "8.2.0", "255.255.255", "what?"] {
            assert_eq!(judge(version), None, "{version}");
        }
    }

    #[test]
    fn servers_that_keep_no_locks_are_named() {
        let judge =
            |info: &str, is_cluster| Server::of(info).wrong_place(is_cluster).map(|found| found.remedy);
        let replica = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7000\r\n";
        assert!(judge(replica, false).unwrap().contains("redis://10.0.0.1:7000"));
        assert!(judge("redis_mode:sentinel\r\n", false).unwrap().contains("redis-sentinel://"));
        assert!(judge("role:master\r\ncluster_enabled:1\r\n", false).unwrap().contains("redis-cluster://"));
        assert_eq!(judge("role:master\r\ncluster_enabled:1\r\n", true), None);
        assert_eq!(judge("role:master\r\ncluster_enabled:0\r\n", false), None);
    }

    /// A6: half of max_ttl is the end of the promise; one second is worth a word. The way of the question is no skew.
    #[test]
    fn clocks_are_judged_by_what_the_way_does_not_explain() {
        let judge_in = |mode, theirs_ms: u64, way_ms: u64, max_ttl: u64| {
            let ms = Duration::from_millis;
            let clock = Clock::compare(ms(theirs_ms), ms(100_000), ms(way_ms));
            clock.judge(&terms(mode, max_ttl)).map(|found| (found.severity, found.what))
        };
        let judge = |theirs_ms, way_ms, max_ttl| judge_in(GuardMode::On, theirs_ms, way_ms, max_ttl);
        assert_eq!(judge(100_999, 0, 30), None);
        assert_eq!(judge(103_000, 2_000, 30), None);
        assert_eq!(judge(99_001, 0, 30), None);
        let (severity, what) = judge(103_500, 500, 30).unwrap();
        assert!(severity == Severity::Warning && what.contains("3s ahead of"), "{what}");
        let (severity, what) = judge(84_000, 0, 30).unwrap();
        assert!(severity == Severity::Problem && what.contains("16s behind"), "{what}");
        assert_eq!(judge(100_600, 0, 1).unwrap().0, Severity::Problem);
        assert_eq!(judge_in(GuardMode::Off, 100_600, 0, 1), None);
        assert_eq!(judge_in(GuardMode::Off, 200_000, 0, 1).unwrap().0, Severity::Warning);
    }

    #[test]
    fn a_backlog_that_is_forgotten_too_early_is_a_warning_and_an_unknown_one_a_note() {
        let judge = |ttl: &str, terms| Server::default().with("repl-backlog-ttl", ttl).backlog(&terms, None);
        let on = |seconds| terms(GuardMode::On, seconds);
        assert_eq!(judge("3600", on(30)), None);
        assert_eq!(judge("0", on(30)), None);
        assert_eq!(judge("32", on(30)), None);
        let found = judge("31", on(30)).unwrap();
        assert!(found.severity == Severity::Warning && found.what.contains("31s"), "{found:?}");
        assert!(found.what.contains("every restart costs 40s"), "{found:?}");
        assert_eq!(judge("1", terms(GuardMode::Off, 86_400)), None);
        let server = Server { refusal: Some("NOPERM".into()), ..Server::default() };
        let found = server.backlog(&on(30), Some("app")).unwrap();
        assert_eq!(found.severity, Severity::Note);
        assert!(found.what.contains("waits as a promoted one does, for 40s"), "{found:?}");
        assert!(found.remedy.contains("ACL SETUSER app '+config|get'"), "{found:?}");
    }
}
