//! The record of a server: whether its settings are ours, whether it grants, and what its clock did.

use std::{sync::Arc, time::Duration};

use redis::{RedisResult, Value};
use tenure_core::{BackendError, ErrorKind, Finding, Severity};

use super::{Visit, finding, shown};
use crate::{
    check::{self, Gate},
    config::GuardMode,
    guard::{self, Decision, Facts, Record, Refusal, SLACK, Why},
    reply,
    session::Session,
};

/// A counter is on the clock's floor when the gate opens; behind it by more than this, the clock was set back.
const STEP: Duration = Duration::from_secs(1);

/// How this client stands with the servers.
#[derive(Default)]
pub(super) struct Standing {
    /// An ordinary connection; none if it was refused.
    pub(super) session: Option<Arc<Session>>,
    /// The gate is open.
    pub(super) may_grant: bool,
}

impl Visit<'_> {
    pub(super) async fn standing(&mut self) -> Standing {
        if self.redis.is_cluster() {
            self.say([no_guard_in_a_cluster()]);
        } else {
            if self.terms.mode == GuardMode::Off {
                self.say([no_guard()]);
            }
            if !self.record().await {
                return Standing::default();
            }
        }
        match self.session().await {
            Ok(session) => {
                let may_grant = matches!(session.gate(), Gate::Open(_));
                Standing { session: Some(session), may_grant }
            }
            Err(error) => {
                let found = self.refused("look at the server and write its record", &error);
                self.say([found]);
                Standing::default()
            }
        }
    }

    /// Looks at the record; false if this client is refused by it.
    async fn record(&mut self) -> bool {
        let looked = check::look(&self.redis.sessions.shared, &self.wire, &self.place).await;
        let (facts, record) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                let found = if error.kind() == ErrorKind::Corrupt {
                    no_record(self.redis.config().record(), &error)
                } else {
                    self.refused("read the record of the server", &error)
                };
                self.say([found]);
                return false;
            }
        };
        let decision = guard::decide(&self.terms, &facts, record.as_ref());
        match self.counter().await {
            Ok(counter) => self.say(counter.and_then(|it| set_back(it, &facts, record.as_ref(), &decision))),
            Err(error) => {
                let found = self.refused("read the counter of tokens (HGETALL)", &self.failed(error));
                self.say([found]);
            }
        }
        match decision {
            Decision::Refuse(Refusal::Mismatch { theirs, ours }) => {
                self.say([mismatch(&theirs, &ours)]);
                false
            }
            Decision::Refuse(Refusal::Alone) => {
                self.say([alone()]);
                true
            }
            Decision::Refuse(Refusal::NotMaster) => {
                let what =
                    "this server became a replica a moment ago: it takes no writes, so it grants nothing";
                self.say([finding(Severity::Problem, what, "run `tenure doctor` again")]);
                false
            }
            Decision::Write { why: Why::Missing, wait, .. } if facts.is_lossy && !wait.is_zero() => {
                self.say([flushed()]);
                true
            }
            _ => true,
        }
    }

    /// The largest token that was granted here, which is a time in µs if it was never counted past it.
    async fn counter(&self) -> RedisResult<Option<Duration>> {
        let answer = self.wire.ask(redis::cmd("HGETALL").arg(self.redis.config().record())).await?;
        let fields: Vec<(String, Value)> = redis::from_redis_value(answer)?;
        let counters = fields.iter().filter(|(name, _)| name == "token" || name.contains('.'));
        let largest = counters.filter_map(|(_, count)| reply::number(count)).max();
        Ok(largest.and_then(|it| u64::try_from(it).ok()).map(Duration::from_micros))
    }

    /// An ordinary connection, with the gate as it is now.
    async fn session(&mut self) -> Result<Arc<Session>, BackendError> {
        let sessions = &self.redis.sessions;
        let session = sessions.session().await?;
        if !self.redis.is_cluster() {
            sessions.recheck(&session, &session.gate()).await?;
        }
        if let Gate::Closed { why, until, .. } = session.gate()
            && why != Why::Alone
        {
            let left = until.remaining(sessions.host().now());
            self.say([closed(why, left)]);
        }
        Ok(session)
    }
}

fn no_guard() -> Finding {
    finding(
        Severity::Warning,
        "the guard is off: after a restart or a fail-over the server grants at once what others may still hold",
        "take guard=off out of the URL everywhere, then run `tenure doctor --adopt`; or check the token where you write",
    )
}

fn no_guard_in_a_cluster() -> Finding {
    finding(
        Severity::Note,
        "a Redis Cluster has no restart guard: after a fail-over two may hold one lock, and only the token protects",
        "check the token where you write; where that cannot be done, keep locks on one master with Sentinel",
    )
}

fn no_record(key: &str, error: &BackendError) -> Finding {
    finding(
        Severity::Problem,
        format!("the record of this server cannot be read: {}", shown::error(error)),
        format!(
            "the key {key} must be a hash that only Tenure writes: look with redis-cli TYPE {key}, and rename what is there \
             (redis-cli RENAME {key} old:{key}), or give Tenure a database of its own, as in redis://HOST/1"
        ),
    )
}

/// `quorum=5`, and the rest of the settings.
fn nodes_of(settings: &str) -> (&str, &str) {
    settings.split_once(' ').filter(|(first, _)| first.starts_with("quorum=")).unwrap_or(("", settings))
}

fn mismatch(theirs: &str, ours: &str) -> Finding {
    let what = format!(
        "others use this server with {}, and this URL has {ours}: this client is granted nothing",
        shown::key(theirs.as_bytes())
    );
    let ((nodes, theirs), (our_nodes, _)) = (nodes_of(theirs), nodes_of(ours));
    if nodes != our_nodes {
        let remedy = format!(
            "name the same nodes everywhere, all of them; or, if all others have {ours} by now, run `tenure doctor --adopt`"
        );
        return finding(Severity::Problem, what, remedy);
    }
    let (guard, max_ttl) = theirs.split_once(" max_ttl=").unwrap_or((theirs, ""));
    let max_ttl: String = max_ttl.split_whitespace().collect();
    let parameters = if max_ttl.is_empty() { guard.to_owned() } else { format!("{guard}&max_ttl={max_ttl}") };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "=&_".contains(c);
    let theirs_in_url = if parameters.chars().all(is_plain) { &parameters } else { "guard=…&max_ttl=…" };
    finding(
        Severity::Problem,
        what,
        format!(
            "put ?{theirs_in_url} into this URL; or, if all others have {ours} by now, run `tenure doctor --adopt`"
        ),
    )
}

fn alone() -> Finding {
    finding(
        Severity::Problem,
        "this server had replicas and none of them acknowledges: another one may have been promoted in its place, so it \
         grants nothing and renews nothing",
        "bring a replica back (redis-cli INFO replication shows them); or, if this server is to stand alone from now on, \
         run `tenure doctor --adopt`",
    )
}

/// The record is gone, and there is evidence why.
fn flushed() -> Finding {
    finding(
        Severity::Warning,
        "the record of this server is gone, and its statistics show FLUSHALL, FLUSHDB, SWAPDB or evicted keys: all locks \
         of before were lost",
        "see who does that (redis-cli INFO commandstats, redis-cli ACL LOG), and forbid it: redis-cli ACL SETUSER USER \
         -flushall -flushdb -swapdb",
    )
}

fn closed(why: Why, left: Duration) -> Finding {
    let left = left.as_secs_f64();
    finding(
        Severity::Note,
        format!(
            "{why}: it grants nothing for another {left:.1} s, until every lease it may have forgotten is over"
        ),
        format!("wait {left:.1} s; a shorter ?max_ttl= (equal everywhere) makes this wait shorter next time"),
    )
}

/// Hazard 19. While a wait runs, the counter is on the end of it.
fn set_back(
    counter: Duration,
    facts: &Facts,
    record: Option<&Record>,
    decision: &Decision,
) -> Option<Finding> {
    let allowed = match (record, decision) {
        (Some(record), _) if record.is_open => Duration::ZERO,
        (_, Decision::Wait { wait, .. } | Decision::Write { wait, .. }) => *wait + SLACK,
        // Their waits may be longer than ours.
        (Some(record), _) => record.ready.saturating_sub(facts.now),
        (None, _) => return None,
    };
    let step = counter.saturating_sub(facts.now + allowed);
    (step > STEP).then(|| {
        finding(
            Severity::Warning,
            format!(
                "the server's clock is {} behind the time at which tokens began: it was set back, by no less than that; \
                 leases that ran then last longer",
                shown::time(step)
            ),
            "nothing is unsafe, tokens go on from where they were; have chrony or ntpd slew the clock instead of stepping \
             it (look with `chronyc tracking` or `timedatectl`)",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_says_what_to_put_into_the_url() {
        let found = mismatch("guard=on max_ttl=1m 30s", "guard=off");
        assert!(found.remedy.starts_with("put ?guard=on&max_ttl=1m30s into"), "{found:?}");
        assert!(mismatch("guard=off", "guard=on max_ttl=30s").remedy.contains("?guard=off "));
        let found = mismatch("quorum=5 guard=on max_ttl=1m 30s", "quorum=5 guard=off");
        assert!(found.remedy.starts_with("put ?guard=on&max_ttl=1m30s into"), "{found:?}");
        let found = mismatch("quorum=5 guard=off", "quorum=3 guard=off");
        assert!(found.remedy.starts_with("name the same nodes everywhere"), "{found:?}");
        let found = mismatch("guard=on;rm -rf /\x1b", "guard=off");
        assert!(!found.remedy.contains("rm") && !found.what.contains('\x1b'), "{found:?}");
    }

    #[test]
    fn a_counter_may_be_ahead_by_the_wait_that_it_was_floored_with() {
        let seconds = Duration::from_secs;
        let facts = Facts {
            run_id: "r".into(),
            replid: "h".into(),
            is_master: true,
            is_promoted: false,
            up: seconds(9),
            is_lossy: false,
            backlog_ttl: None,
            acked: None,
            predecessor: guard::Predecessor::Unknown,
            moved: None,
            now: seconds(1000),
        };
        let record = |is_open| Record {
            run_id: "r".into(),
            replid: "h".into(),
            ready: seconds(1030),
            settings: String::new(),
            next: None,
            acked: None,
            is_open,
        };
        let judge = |counter, is_open, decision: &Decision| {
            set_back(seconds(counter), &facts, Some(&record(is_open)), decision).map(|found| found.what)
        };
        assert_eq!(judge(1001, true, &Decision::Open), None);
        assert!(judge(1010, true, &Decision::Open).unwrap().contains("10s behind"));
        let wait = Decision::Wait { why: Why::Waiting, wait: seconds(30) };
        assert_eq!(judge(1030, false, &wait), None);
        assert!(judge(4600, false, &wait).unwrap().contains("59m 28s behind"));
        let refused = Decision::Refuse(Refusal::NotMaster);
        assert_eq!(judge(1031, false, &refused), None);
    }
}
