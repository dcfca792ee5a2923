//! The restart and fail-over guard: from what a server says of itself and its record to whether it may grant.
//!
//! A server that restarted or was promoted may have forgotten locks. It grants nothing until every lease that it may
//! have forgotten is over. The rule is the pure function [`decide`]; the scripts that read the facts and write the
//! record, if the facts are still the same, are `check.lua` and `judge.lua`. Models with the trace of every shortcut
//! below when it is taken wrongly: safety.md S5, `guard.*` and `floor.*`.

use std::{fmt, time::Duration};

use tenure_core::Variant;

use crate::config::{Config, GuardMode};

/// Up-time counts whole seconds and may be almost one too large (model `guard.uptime rounded up`).
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// The settings that all clients of one server must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What a server that may have forgotten locks is allowed to do.
    pub mode: GuardMode,
    /// The longest lease that anybody takes.
    pub max_ttl: Duration,
    /// The database: with SWAPDB its data may come to another one.
    pub db: i64,
    /// How many nodes the quorum has of which this server is one (H3.5).
    pub quorum: Option<usize>,
}

/// What a server says of itself, read in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Of this process of the server.
    pub run_id: String,
    /// Of this history of data.
    pub replid: String,
    /// It takes writes.
    pub is_master: bool,
    /// It was a replica before, or has loaded the data of one: `second_repl_offset` is not -1.
    pub is_promoted: bool,
    /// How long this process has been running.
    pub up: Duration,
    /// Data was flushed, swapped or evicted since it started.
    pub is_lossy: bool,
    /// Its statistics were reset: what they do not show may have happened.
    pub is_reset: bool,
    /// How long it remembers that it was promoted (`repl-backlog-ttl`); zero is for ever, `None` is unknown.
    pub backlog_ttl: Option<Duration>,
    /// This client was granted something by this process of the server.
    pub was_seen: bool,
    /// The server's wall clock, since the Unix epoch.
    pub now: Duration,
}

/// What is kept in the server beside its locks, lost with them or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The process and the history that it was written for.
    pub run_id: String,
    /// See `run_id`.
    pub replid: String,
    /// From when it may grant, on the server's wall clock.
    pub ready: Duration,
    /// The [`Terms`], as text.
    pub settings: String,
    /// The terms that are to be adopted once it is ready, as text.
    pub next: Option<String>,
    /// The gate is open.
    pub is_open: bool,
}

/// Why a server must wait, or need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It restarted.
    Restarted,
    /// It was promoted: it may never have received a lock.
    Promoted,
    /// It has no record: it was flushed, or something was evicted, or nobody can tell.
    Missing,
    /// It has no record, and there is evidence that it was never used.
    Unused,
    /// It forgot its old history, as servers without replicas do after a while.
    BacklogOver,
    /// A wait that had begun goes on, or is over.
    Waiting,
    /// New settings are adopted.
    Adopting,
    /// There is no guard.
    Unguarded,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The gate is open for us: nothing to write.
    Open,
    /// The record is right as it is: the gate may open after this long.
    Wait(Duration),
    /// Write the record; the gate opens if there is nothing to wait for. The counter is floored in any case: a wait ends
    /// on the largest of the old counter, now, and the end of the wait.
    Write {
        /// The reason.
        why: Why,
        /// Until the gate may open; zero opens it.
        wait: Duration,
        /// The settings that go into the record.
        settings: String,
        /// The settings to adopt afterwards.
        next: Option<String>,
    },
    /// This client must not be granted anything here.
    Refuse(Refusal),
}

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server is a replica.
    NotMaster,
    /// Others use other settings.
    Mismatch {
        /// As text.
        theirs: String,
        /// As text.
        ours: String,
    },
}

impl Terms {
    pub(crate) fn of(config: &Config) -> Self {
        Self { mode: config.guard, max_ttl: config.max_ttl, db: config.db, quorum: config.quorum }
    }

    /// True if leases of these terms cannot be told from a promotion that was forgotten too early.
    pub(crate) fn trusts(&self, backlog_ttl: Option<Duration>) -> bool {
        backlog_ttl.is_some_and(|ttl| ttl.is_zero() || ttl >= self.max_ttl + SLACK)
    }
}

/// `guard=on max_ttl=30s`, `quorum=5 guard=on max_ttl=30s`: what a record says, and what people read when two disagree.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nodes) = self.quorum {
            write!(f, "quorum={nodes} ")?;
        }
        match self.mode {
            GuardMode::Off => f.write_str("guard=off")?,
            GuardMode::On | GuardMode::Strict => {
                write!(f, "guard=on max_ttl={}", humantime::format_duration(self.max_ttl))?;
            }
        }
        if self.db == 0 { Ok(()) } else { write!(f, " db={}", self.db) }
    }
}

/// The longest lease that settings in a record allow: without a guard, any.
fn max_ttl_of(settings: &str) -> Duration {
    let text = settings.split("max_ttl=").nth(1).and_then(|rest| rest.split(" db=").next());
    text.and_then(|text| humantime::parse_duration(text).ok()).unwrap_or(tenure_core::Timing::MAX_TTL)
}

/// Whether a server may grant, from its facts and its record.
pub fn decide(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    if !facts.is_master {
        return Decision::Refuse(Refusal::NotMaster);
    }
    let ours = terms.to_string();
    if let Some(record) = record {
        let theirs = record.next.as_ref().unwrap_or(&record.settings);
        if *theirs != ours {
            return Decision::Refuse(Refusal::Mismatch { theirs: theirs.clone(), ours });
        }
    }
    if terms.mode == GuardMode::Off || Variant::NoRestartGuard.is_on() {
        let is_ours = record.is_some_and(|r| r.is_open && is_of_this_history(r, facts));
        return if is_ours { Decision::Open } else { write(Why::Unguarded, Duration::ZERO, ours) };
    }
    match record {
        None => without_record(terms, facts, ours),
        Some(record) => with_record(terms, facts, record, ours),
    }
}

fn write(why: Why, wait: Duration, settings: String) -> Decision {
    let wait = if Variant::WaitTooShort.is_on() { wait / 8 } else { wait };
    Decision::Write { why, wait, settings, next: None }
}

fn is_of_this_history(record: &Record, facts: &Facts) -> bool {
    record.run_id == facts.run_id && record.replid == facts.replid
}

fn without_record(terms: &Terms, facts: &Facts, ours: String) -> Decision {
    if Variant::MissingIsUnused.is_on() {
        return write(Why::Unused, Duration::ZERO, ours);
    }
    let has_evidence = facts.is_promoted || facts.is_lossy || facts.is_reset || facts.was_seen;
    if terms.mode != GuardMode::On || has_evidence || !terms.trusts(facts.backlog_ttl) {
        return write(Why::Missing, terms.max_ttl, ours);
    }
    // Nothing was lost since it started, and nobody was granted anything before it had been up for as long as this: what
    // it may have forgotten was granted before its start.
    let wait = (terms.max_ttl + SLACK).saturating_sub(facts.up);
    write(if wait.is_zero() { Why::Unused } else { Why::Restarted }, wait, ours)
}

fn with_record(terms: &Terms, facts: &Facts, record: &Record, ours: String) -> Decision {
    // While settings are being adopted there may be leases of the old ones.
    let longest = terms.max_ttl.max(max_ttl_of(&record.settings));
    // After a step back of the clock no more is left than the longest wait there is.
    let left = record.ready.saturating_sub(facts.now).min(longest + SLACK);
    let (why, wait) = if is_of_this_history(record, facts) {
        (Why::Waiting, left)
    } else if facts.is_promoted && !Variant::UptimeForPromoted.is_on() {
        // However long it has been up: it may have been a replica that never received the lock.
        (Why::Promoted, longest)
    } else if !terms.trusts(facts.backlog_ttl) {
        // It may have been promoted and have forgotten it.
        (Why::Promoted, longest)
    } else if record.run_id != facts.run_id {
        (Why::Restarted, left.max((longest + SLACK).saturating_sub(facts.up)))
    } else {
        (Why::BacklogOver, if Variant::BacklogClearsWait.is_on() { Duration::ZERO } else { left })
    };
    let is_adopting = record.next.is_some();
    match why {
        Why::Waiting if wait.is_zero() && record.is_open && !is_adopting => Decision::Open,
        // Written anew, the end of the wait would move with every client that looks.
        Why::Waiting if !wait.is_zero() && record.ready == facts.now.saturating_add(wait) => {
            Decision::Wait(wait)
        }
        _ if is_adopting && !wait.is_zero() => {
            Decision::Write { why, wait, settings: record.settings.clone(), next: record.next.clone() }
        }
        _ => write(why, wait, ours),
    }
}

/// What `doctor --adopt` does: closes the gate for as long as a lease of the old settings may last.
pub(crate) fn adopt(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
    match decide(terms, facts, record) {
        // Without a guard nobody waits for anything.
        Decision::Refuse(Refusal::Mismatch { ours, .. }) if terms.mode == GuardMode::Off => {
            write(Why::Unguarded, Duration::ZERO, ours)
        }
        Decision::Refuse(Refusal::Mismatch { ours, .. }) => {
            let settings = record.map_or_else(|| ours.clone(), |record| record.settings.clone());
            let wait = terms.max_ttl.max(max_ttl_of(&settings));
            Decision::Write { why: Why::Adopting, wait, settings, next: Some(ours) }
        }
        other => other,
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restarted => "the Redis server was started a moment ago and may have forgotten locks",
            Self::Promoted => "the Redis server was promoted and may never have received some locks",
            Self::Missing => "the Redis server has no record of tenure: it was emptied, or is new",
            Self::Unused => "the Redis server was never used for locks",
            Self::BacklogOver | Self::Waiting => "the Redis server may have forgotten locks",
            Self::Adopting => "new settings are being adopted on this Redis server",
            Self::Unguarded => "the Redis server has no restart guard",
        })
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "guard_world_tests.rs"]
mod world_tests;
