//! The record of a server: whether its settings are ours, whether it grants, and what its clock did.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tenure_core::{
    BackendError, ErrorKind, Finding,
    Severity::{Note, Problem, Warning},
};

use super::{Visit, described, finding, time};
use crate::{
    check::{self, Gate},
    config::GuardMode,
    guard::{self, Decision, Facts, Record, Refusal, SLACK, Why},
    session::Session,
};

/// The counter of tokens is at the server's time when it opens; a clock behind it by more was set back.
const STEP: Duration = Duration::from_secs(1);

impl Visit<'_> {
    /// An ordinary connection; none if this client is refused.
    pub(super) async fn session(&mut self) -> Option<Arc<Session>> {
        if self.redis.is_cluster() {
            let what =
                "a Redis Cluster has no restart guard: after a fail-over two clients may hold one lock";
            let remedy = "check the token where you write; or keep locks on one master with Sentinel";
            self.say(Note, what, remedy);
        } else {
            if self.terms.mode == GuardMode::Off {
                let what = "the guard is off: after a restart or a fail-over the server grants what others may still hold";
                let remedy = "take guard=off out of the URL everywhere, then run `tenure doctor --adopt`; or check the \
                              token where you write";
                self.say(Warning, what, remedy);
            }
            self.record().await?;
        }
        let opened = self.opened().await;
        self.tried("look at the server and write its record", opened)
    }

    /// Looks at the record; nothing if this client is refused by it.
    async fn record(&mut self) -> Option<()> {
        let place = self.redis.config().place_name();
        let looked = check::look(&self.redis.sessions.shared, &self.wire, &place).await;
        if let Err(error) = &looked
            && error.kind() == ErrorKind::Corrupt
        {
            let key = self.redis.config().record();
            let what = format!("the record of this server cannot be read: {}", described(error));
            let remedy = format!(
                "{key} must be a hash that only Tenure writes: see redis-cli TYPE {key}, then RENAME {key} old:{key}; or \
                 give Tenure a database of its own, as in redis://HOST/1"
            );
            self.say(Problem, what, remedy);
            return None;
        }
        let (facts, record) = self.tried("read the record of the server", looked)?;
        let decision = guard::decide(&self.terms, &facts, record.as_ref());
        if let Some(counter) = self.counter().await {
            self.findings.extend(set_back(counter, &facts, record.as_ref(), &decision));
        }
        match decision {
            Decision::Refuse(Refusal::Mismatch { theirs, ours }) => {
                self.findings.push(mismatch(&theirs, &ours));
                return None;
            }
            Decision::Refuse(Refusal::Alone) => self.say(
                Problem,
                format!("{}, so it grants and renews nothing", Why::Alone),
                "bring a replica back (redis-cli INFO replication shows them); or, if this server is to stand alone from \
                 now on, run `tenure doctor --adopt`",
            ),
            Decision::Write { why: Why::Missing, wait, .. } if facts.is_lossy && !wait.is_zero() => self.say(
                Warning,
                "the record of this server is gone, and its statistics show FLUSHALL, FLUSHDB, SWAPDB or evicted keys: \
                 all earlier locks were lost",
                "see who does that (redis-cli INFO commandstats, ACL LOG), and forbid it: redis-cli ACL SETUSER USER \
                 -flushall -flushdb -swapdb",
            ),
            _ => {}
        }
        Some(())
    }

    /// The largest token that was granted here. It is a time in µs if it was never counted past it.
    async fn counter(&mut self) -> Option<Duration> {
        let mut cmd = redis::cmd("HGETALL");
        let verb = "read the counter of tokens (HGETALL)";
        let answer = self.asked(verb, cmd.arg(self.redis.config().record())).await?;
        let fields: HashMap<String, String> = redis::from_redis_value(answer).ok()?;
        let counters = fields.iter().filter(|(name, _)| *name == "token" || name.contains('.'));
        counters.filter_map(|(_, count)| count.parse().ok()).max().map(Duration::from_micros)
    }

    async fn opened(&mut self) -> Result<Arc<Session>, BackendError> {
        let sessions = &self.redis.sessions;
        let session = sessions.session().await?;
        if !self.redis.is_cluster() {
            session.recheck(&session.gate()).await?;
        }
        if let Gate::Closed { why, until, .. } = session.gate()
            && why != Why::Alone
        {
            let left = format!("{:.1} s", until.remaining(sessions.host().now()).as_secs_f64());
            let what = format!(
                "{why}: it grants nothing for another {left}, until every lease it may have forgotten is over"
            );
            let remedy =
                format!("wait {left}; a shorter ?max_ttl= (the same everywhere) shortens the next wait");
            self.say(Note, what, remedy);
        }
        Ok(session)
    }
}

pub(super) fn mismatch(theirs: &str, ours: &str) -> Finding {
    let split = |settings| match str::split_once(settings, ' ') {
        Some((nodes, rest)) if nodes.starts_with("quorum=") => (nodes, rest),
        _ => ("", settings),
    };
    let ((nodes, rest), (our_nodes, _)) = (split(theirs), split(ours));
    // `guard=on max_ttl=1m 30s` is `guard=on&max_ttl=1m30s` in a URL.
    let query = rest.replacen(' ', "&", 1).replace(' ', "");
    let is_plain = query.chars().all(|c| c.is_ascii_alphanumeric() || "=&_".contains(c));
    let first = match is_plain {
        _ if nodes != our_nodes => "name the same nodes everywhere, all of them".to_owned(),
        true => format!("put ?{query} into this URL"),
        false => "put their ?guard= and ?max_ttl= into this URL".to_owned(),
    };
    let what = format!(
        "others use this server with {theirs}, and this URL has {ours}: this client is granted nothing"
    );
    finding(
        Problem,
        what,
        format!("{first}; or, if all others have {ours} by now, run `tenure doctor --adopt`"),
    )
}

/// Hazard 19. While a wait runs, the counter is at the end of it.
pub(super) fn set_back(
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
    let what = format!(
        "the server's clock is {} behind the time at which tokens began: it was set back, by no less than that; leases of \
         that time last longer",
        time(step)
    );
    let remedy = "have chrony or ntpd slew the clock instead of stepping it (see `chronyc tracking`); tokens go on from \
                  where they were, so nothing is unsafe";
    (step > STEP).then(|| finding(Warning, what, remedy))
}
