//! Asking the Sentinels: where the master is by the newest configuration, and what became of the one before
//! it.
//!
//! All are asked, and the answer with the largest configuration epoch counts: while a failover spreads, the other Sentinels
//! still name the old master. A process does not go back behind the largest epoch that it has seen, unless a majority names
//! a smaller one for [`RESET`].

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError, RedisResult, Value};
use tenure_core::{BackendError, ErrorKind, Host, Moment, Outcome};

use crate::{
    client::{ServerAddress, ServerRoute, connector, logged_in},
    config::{Config, Topology},
    error,
    guard::{Predecessor, ServerFacts, ServerRecord},
};

/// How long the others may take once a majority has answered.
const STRAGGLERS: Duration = Duration::from_millis(200);

/// For how long a majority must name a smaller epoch before it is accepted: `SENTINEL REMOVE` and `MONITOR` begin at zero
/// again.
///
/// No failover lasts that long: Sentinels inform each other every 2 s, and wait 30 s in TILT mode. If one did, L1 would
/// hold anyway: what is known here is of this process only, and others follow the Sentinels as they are. A master that was
/// replaced stops by itself ([`crate::guard::GRACE`]), and a client that meets another process of the server waits
/// ([`ServerFacts::moved`]).
const RESET: Duration = Duration::from_secs(60);

/// Where the master is, and by which configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterAddress {
    epoch: u64,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The reply of one Sentinel.
struct SentinelReply {
    master: MasterAddress,
    /// Every server that it watches but the master.
    others: Vec<SentinelEntry>,
}

type SentinelEntry = HashMap<String, String>;

/// Nothing where the Sentinel knows none.
type NamedMaster = Option<(String, u16)>;

/// The replies of all Sentinels that have the newest configuration.
pub(crate) struct Survey {
    pub(crate) master: MasterAddress,
    others: Vec<SentinelEntry>,
    /// A majority of the named Sentinels has answered.
    is_majority: bool,
}

/// The newest master that a Sentinel named.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    master: Option<MasterAddress>,
    /// Since when a majority names older masters only.
    behind: Option<Moment>,
}

/// Asks all.
///
/// # Errors
/// `Unavailable`, if no Sentinel answers or none knows the master.
pub(crate) async fn survey(config: &Config, host: &Arc<dyn Host>) -> Result<Survey, BackendError> {
    let Topology::Sentinel { sentinels, master } = &config.topology else {
        unreachable!("BUG: there is no Sentinel to ask")
    };
    let tls = connector(config)?;
    let login = logged_in(RedisConnectionInfo::default(), &config.sentinel_login)?;
    let way = |(name, port): &(String, u16)| ServerRoute {
        address: ServerAddress::Host(name.clone(), *port),
        tls: tls.clone(),
        login: login.clone(),
        host: host.clone(),
        connect_timeout: config.connect_timeout,
        response_timeout: config.response_timeout,
    };
    let mut asked: FuturesUnordered<_> = sentinels.iter().map(|name| ask(way(name), master)).collect();
    let (mut replies, mut failed, mut answers) = (Vec::new(), None, 0);
    let mut until = host.now() + config.connect_timeout * 2;
    loop {
        let late = host.sleep_until(until);
        let answer = tokio::select! {
            biased;
            answer = asked.next() => answer,
            () = late => None,
        };
        match answer {
            Some(Ok(reply)) => {
                replies.extend(reply);
                answers += 1;
                if answers == sentinels.len() / 2 + 1 {
                    until = host.now() + STRAGGLERS;
                }
            }
            Some(Err(error)) => failed = Some(error),
            None => break,
        }
    }
    let is_majority = replies.len() > sentinels.len() / 2;
    newest(replies, is_majority).ok_or_else(|| {
        let place = config.place_name();
        match failed {
            Some(error) if answers == 0 => error::connecting(&place, error),
            _ if answers == 0 => error::no_answer(&place),
            _ => {
                let message = "no Sentinel knows a living master of this name";
                BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place)
            }
        }
    })
}

fn newest(replies: Vec<SentinelReply>, is_majority: bool) -> Option<Survey> {
    let master = replies.iter().map(|reply| &reply.master).max_by_key(|master| master.epoch)?.clone();
    let others = replies.into_iter().filter(|reply| reply.master == master).flat_map(|reply| reply.others);
    Some(Survey { others: others.collect(), master, is_majority })
}

impl Newest {
    /// The newer one of what is known and what was found.
    pub(crate) fn of(&mut self, now: Moment, found: Survey) -> MasterAddress {
        if let Some(known) = self.master.as_ref().filter(|known| known.epoch > found.master.epoch) {
            let since = if found.is_majority { *self.behind.get_or_insert(now) } else { now };
            if since.elapsed(now) < RESET {
                return known.clone();
            }
            tracing::warn!(
                known = known.epoch,
                now = found.master.epoch,
                "the Sentinels count their fail-overs anew"
            );
        }
        self.behind = None;
        self.master.insert(found.master).clone()
    }
}

impl Survey {
    /// What became of the master that the record was written for.
    pub(crate) fn predecessor(&self, facts: &ServerFacts, record: Option<&ServerRecord>) -> Predecessor {
        let field = |entry: &SentinelEntry, name: &str| entry.get(name).cloned().unwrap_or_default();
        let is_down = |entry: &SentinelEntry| {
            field(entry, "flags").split(',').any(|flag| matches!(flag, "s_down" | "o_down" | "disconnected"))
        };
        let mut others = self.others.iter().filter(|entry| field(entry, "runid") != facts.run_id);
        if others.clone().any(|entry| field(entry, "role-reported") == "master" && !is_down(entry)) {
            return Predecessor::Serving;
        }
        // A Sentinel lists a server as a replica before it has asked it: only the name of its master proves it.
        let follows = |entry: &SentinelEntry| {
            field(entry, "role-reported") == "slave"
                && field(entry, "master-host") == self.master.host
                && field(entry, "master-port") == self.master.port.to_string()
        };
        let is_former = |entry: &&SentinelEntry| record.is_some_and(|it| field(entry, "runid") == it.run_id);
        let knows_it = others.clone().any(|entry| is_former(&entry));
        if knows_it && others.all(|entry| follows(entry) && !is_down(entry)) {
            Predecessor::Demoted
        } else {
            Predecessor::Unknown
        }
    }
}

/// Asks one Sentinel; nothing if it does not know the master.
async fn ask(way: ServerRoute, master: &str) -> RedisResult<Option<SentinelReply>> {
    let (mut connection, _) = way.connect(AsyncConnectionConfig::new(), || {}).await?;
    let sentinel = |verb: &str| {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg(verb).arg(master);
        cmd
    };
    // In one write, and with the epoch on both sides of the address: both are of one configuration.
    let mut together = redis::pipe();
    together.add_command(sentinel("MASTER")).add_command(sentinel("GET-MASTER-ADDR-BY-NAME"));
    together.add_command(sentinel("MASTER"));
    let answers: RedisResult<(SentinelEntry, NamedMaster, SentinelEntry)> =
        together.query_async(&mut connection).await;
    let (before, address, after) = match answers {
        Ok(answers) => answers,
        Err(error) if is_unknown(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let epoch = |entry: &SentinelEntry| entry.get("config-epoch").and_then(|text| text.parse().ok());
    let (Some((host, port)), Some(epoch)) = (address, epoch(&before).filter(|e| Some(*e) == epoch(&after)))
    else {
        return Ok(None);
    };
    // Sentinels before Redis 5 have another word for this command; then nothing is known of the others.
    let answer: RedisResult<Value> = sentinel("REPLICAS").query_async(&mut connection).await;
    let mut others: Vec<SentinelEntry> =
        answer.ok().and_then(|it| redis::from_redis_value(it).ok()).unwrap_or_default();
    let is_at = |name: &str, value: &str| after.get(name).is_some_and(|text| text == value);
    if !(is_at("ip", &host) && is_at("port", &port.to_string())) {
        // The switch is under way: the master by this entry is the old one.
        others.push(after);
    }
    Ok(Some(SentinelReply { master: MasterAddress { epoch, host, port }, others }))
}

fn is_unknown(error: &RedisError) -> bool {
    error.to_string().to_lowercase().contains("no such master")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(epoch: u64, port: u16, others: Vec<SentinelEntry>) -> SentinelReply {
        SentinelReply { master: MasterAddress { epoch, host: "h".into(), port }, others }
    }

    fn entry(fields: &[(&str, &str)]) -> SentinelEntry {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// L1: while a failover spreads, most Sentinels still name the old master.
    #[test]
    fn the_largest_epoch_is_believed_and_nobody_goes_back_behind_it() {
        let replies =
            vec![reply(4, 1, vec![]), reply(5, 2, vec![entry(&[("flags", "slave")])]), reply(4, 1, vec![])];
        let survey = newest(replies, true).unwrap();
        assert_eq!((survey.master.port, survey.others.len()), (2, 1));
        let mut known = Newest::default();
        assert_eq!(known.of(at(0), survey).port, 2);
        assert_eq!(known.of(at(0), named(4, 1, true)).port, 2, "led back");
        assert_eq!(known.of(at(0), named(6, 3, true)).port, 3);
        assert!(newest(Vec::new(), true).is_none());
    }

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), wall: Duration::from_secs(seconds) }
    }

    fn named(epoch: u64, port: u16, is_majority: bool) -> Survey {
        newest(vec![reply(epoch, port, vec![])], is_majority).unwrap()
    }

    /// L6: after `SENTINEL REMOVE` and `MONITOR`, which begin to count at zero, a process used the master that it knew for
    /// as long as it ran, wherever the Sentinels led all others.
    #[test]
    fn a_smaller_epoch_is_believed_once_a_majority_has_kept_to_it() {
        let mut known = Newest::default();
        assert_eq!(known.of(at(0), named(5, 1, true)).port, 1);
        // A single Sentinel behind a partition proves nothing, however long it lasts.
        for now in [1, 100, 1000] {
            assert_eq!(known.of(at(now), named(0, 2, false)).port, 1);
        }
        // A failover that spreads: the majority learns of it.
        assert_eq!(known.of(at(1000), named(4, 2, true)).port, 1);
        assert_eq!(known.of(at(1030), named(5, 1, true)).port, 1);
        for (now, port) in [(1059, 1), (1060, 1), (1118, 1), (1119, 2), (1120, 2)] {
            assert_eq!(known.of(at(now), named(0, 2, true)).port, port, "after {now} s");
        }
        assert_eq!(known.of(at(1121), named(1, 3, true)).port, 3);
    }

    /// What became of the master `old-run`, by the entries of the other servers in a Sentinel.
    fn judge(others: &[&[(&str, &str)]]) -> Predecessor {
        let (old, run) = ("old-run", "new-run");
        let survey = newest(vec![reply(1, 7, others.iter().map(|it| entry(it)).collect())], true).unwrap();
        let (run_id, replid, settings) = (run.to_owned(), String::new(), "".into());
        let zero = Duration::ZERO;
        let facts = ServerFacts {
            run_id,
            replid: replid.clone(),
            is_master: true,
            is_promoted: true,
            up: zero,
            is_lossy: false,
            backlog_ttl: None,
            acked: None,
            predecessor: Predecessor::Unknown,
            moved: None,
            served: None,
            longest: None,
            now: zero,
        };
        let record = ServerRecord {
            run_id: old.into(),
            replid,
            ready: zero,
            wait: zero,
            renews: zero,
            settings,
            next: None,
            acked: None,
            is_open: true,
        };
        survey.predecessor(&facts, Some(&record))
    }

    /// L1: a Sentinel calls a server a replica before it has asked it.
    #[test]
    fn a_former_master_is_demoted_when_it_says_whom_it_follows() {
        let (old, run) = ("old-run", "new-run");
        let follows = [
            ("runid", old),
            ("flags", "slave"),
            ("role-reported", "slave"),
            ("master-host", "h"),
            ("master-port", "7"),
        ];
        assert_eq!(judge(&[&follows]), Predecessor::Demoted);
        assert_eq!(judge(&[]), Predecessor::Unknown);
        assert_eq!(
            judge(&[&[("runid", ""), ("flags", "slave"), ("role-reported", "slave"), ("master-host", "?")]]),
            Predecessor::Unknown
        );
        let serves = [("runid", old), ("flags", "slave"), ("role-reported", "master")];
        assert_eq!(judge(&[&serves, &follows]), Predecessor::Serving);
        assert_eq!(
            judge(&[&[("runid", old), ("flags", "slave,s_down"), ("role-reported", "master")]]),
            Predecessor::Unknown
        );
        assert_eq!(
            judge(&[&follows, &[("runid", run), ("flags", "slave,promoted"), ("role-reported", "master")]]),
            Predecessor::Demoted
        );
        let gone = [
            ("runid", "third"),
            ("flags", "slave,s_down"),
            ("role-reported", "slave"),
            ("master-host", "h"),
            ("master-port", "7"),
        ];
        assert_eq!(judge(&[&follows, &gone]), Predecessor::Unknown, "it may have been master in between");
    }
}
