//! The restart and failover guard: decides from a server's facts and its record whether it may grant.
//!
//! A server that restarted or was promoted may have forgotten locks. It grants nothing until every lease that it may have
//! forgotten has expired. The rule is the pure function [`decide`]; the scripts that read the facts and write the record,
//! if the facts are still the same, are `check.lua` and `judge.lua`. Each shortcut below, if taken wrongly, grants a lock
//! to two holders: see `guard_world_tests.rs`.
//!
//! No wait counts from before the check. Uptime proves that a process ran, not that it served this address
//! (`docs/decisions/redis-restart-guard.md`).
//!
//! A master that was replaced may not know it yet, and still grants. It stops by itself: a master that had replicas grants
//! nothing once none has acknowledged for [`GRACE`]. The server in its place waits for [`LINGER`] more than the longest
//! lease:
//!
//! ```text
//! last acknowledgement + 1.1 s (lag counts whole seconds) + GRACE + LOOK + max_ttl ≤ promotion + max_ttl + LINGER
//! ```
//!
//! `LOOK` is the time from when the check of the replicas was sent to when the claim began, from which its holder counts:
//! see [`is_recent`]. It is not the time that the answer took.

use std::{fmt, str::FromStr, time::Duration};

use tenure_core::{Adopt, Moment, Timing};

use crate::config::{Config, GuardMode};

/// Beyond `max_ttl`: for how long a promotion must be remembered.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// Begins the settings of a newer version whose keys this one cannot read. They are refused, as other settings are.
pub(crate) const NEWER: &str = "format=";

/// How long a master that had replicas goes on without an acknowledgement of any. A replica that reboots costs nothing.
pub const GRACE: Duration = Duration::from_secs(7);

/// How long a client relies on a check of the replicas, from before it was sent: see [`is_recent`].
pub const LOOK: Duration = Duration::from_secs(1);

/// How long a master may go on granting after another one was promoted: `GRACE`, `LOOK`, and what a lag in
/// whole seconds hides, with 0.9 s to spare for clocks that run at different rates (A1).
pub const LINGER: Duration = Duration::from_secs(10);

/// The settings that all clients of one server must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What a server that may have forgotten locks is allowed to do.
    pub mode: GuardMode,
    /// The longest lease that a client takes.
    pub max_ttl: Duration,
    /// The database: with SWAPDB its data may come to another one.
    pub db: i64,
    /// How many nodes the quorum has of which this server is one (H3.5).
    pub quorum: Option<usize>,
}

/// The terms in a record. Equal terms have the same text, which the scripts compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedTerms {
    /// Those of some client of this version.
    Known(Terms),
    /// A text that no client of this version writes.
    Foreign(String),
}

/// What a server reports about itself, read in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Of this process of the server.
    pub run_id: String,
    /// Of this history of data.
    pub replid: String,
    /// It takes writes.
    pub is_master: bool,
    /// It was a replica before, or has loaded the data of one: `second_repl_offset` is not -1.
    pub is_promoted: bool,
    /// How long this process has been running. It shortens no wait: the process may have served another address.
    pub up: Duration,
    /// Data was flushed, swapped or evicted since it started.
    pub is_lossy: bool,
    /// How long it remembers that it was promoted (`repl-backlog-ttl`); zero is indefinitely, `None` is unknown.
    pub backlog_ttl: Option<Duration>,
    /// When a connected replica acknowledged last, on the server's wall clock.
    pub acked: Option<Duration>,
    /// What becomes of the master before this one.
    pub predecessor: Predecessor,
    /// How long ago this client first saw this server process, if it found another one fit at the same
    /// address before.
    pub moved: Option<Duration>,
    /// The `max_ttl` under which this client was last served at this address, if it was.
    pub served: Option<Duration>,
    /// The longest `max_ttl` that this client has seen in a record at this address.
    pub longest: Option<Duration>,
    /// The server's wall clock, since the Unix epoch.
    pub now: Duration,
}

/// What Sentinel reports about the master before this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Predecessor {
    /// Nothing: no Sentinel can be asked, or that master cannot be reached.
    #[default]
    Unknown,
    /// It is reachable, and acts as a master.
    Serving,
    /// It is a replica of this server.
    Demoted,
}

/// What is stored in the server next to its locks, lost with them or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    /// The process and the history that it was written for.
    pub run_id: String,
    /// See `run_id`.
    pub replid: String,
    /// From when it may grant, on the server's wall clock.
    pub ready: Duration,
    /// How long the wait was when it was written: after the clock was set back, no more is left.
    pub wait: Duration,
    /// From when it may renew, on the server's wall clock: see [`renewals_wait`].
    pub renews: Duration,
    /// The terms under which it grants.
    pub settings: RecordedTerms,
    /// The terms that are to be adopted once it is ready.
    pub next: Option<RecordedTerms>,
    /// When a replica was last known to acknowledge, on the server's wall clock; `None` if it never had one.
    pub acked: Option<Duration>,
    /// The gate is open.
    pub is_open: bool,
}

impl ServerRecord {
    /// The settings that a client must have: those to be adopted, if there are some.
    fn asked_for(&self) -> &RecordedTerms {
        self.next.as_ref().unwrap_or(&self.settings)
    }

    /// The longest lease that they allow, if there is a guard.
    pub(crate) fn max_ttl(&self) -> Option<Duration> {
        self.asked_for().known().filter(|terms| terms.mode == GuardMode::On).map(|terms| terms.max_ttl)
    }

    /// The longest lease that there may be under it: while settings are adopted, leases of the old ones may be valid.
    pub(crate) fn longest_lease(&self) -> Option<Duration> {
        let old = self.next.as_ref().map(|_| self.settings.longest_lease());
        self.max_ttl().max(old)
    }

    /// What is left of its wait. A client with a smaller `max_ttl` than the writer's shortens nothing: a lease may be that
    /// long, and the counter is at the end of the wait, ahead of the clock until then.
    fn left(&self, now: Duration) -> Duration {
        self.ready.saturating_sub(now).min(self.wait)
    }

    fn quiet(&self, now: Duration) -> Duration {
        self.renews.saturating_sub(now).min(LINGER)
    }
}

/// Why a server must wait, or need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It restarted.
    Restarted,
    /// It was promoted: it may never have received a lock.
    Promoted,
    /// It has no record: it is new, or it was flushed, or something was evicted. No client can distinguish these.
    Missing,
    /// The master before it still acts as a master.
    Overlapping,
    /// Another server answered at this address before.
    Moved,
    /// It had replicas, and none acknowledges: another one may have been promoted.
    Alone,
    /// It forgot its old history, as servers without replicas do after a while.
    BacklogOver,
    /// A wait that had begun goes on, or has ended.
    Waiting,
    /// New settings are adopted.
    Adopting,
    /// There is no guard.
    Unguarded,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The gate is open for this client: nothing to write.
    Open,
    /// The record is right as it is: for this client, the gate may open after a while.
    Wait {
        /// The reason.
        why: Why,
        /// Until then.
        wait: Duration,
    },
    /// Write the record; the gate opens if there is nothing to wait for. The counter is floored in any case:
    /// a wait ends on the largest of the old counter, now, and the end of the wait.
    Write {
        /// The reason.
        why: Why,
        /// Until the gate may open; zero opens it.
        wait: Duration,
        /// For how long nothing is renewed: see [`renewals_wait`].
        quiet: Duration,
        /// The settings that go into the record.
        settings: RecordedTerms,
        /// The settings to adopt afterwards.
        next: Option<RecordedTerms>,
        /// See [`ServerRecord::acked`].
        acked: Option<Duration>,
    },
    /// This client must not be granted anything here.
    Refuse(ClientRefusal),
}

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientRefusal {
    /// The server is a replica.
    NotMaster,
    /// It had replicas, and none has acknowledged for [`GRACE`]: another server may have been promoted in its
    /// place.
    Alone,
    /// `--adopt` asks for a larger `max_ttl` without `--raise`: clients with the smaller one may still run.
    Raise {
        /// As text.
        theirs: String,
        /// As text.
        ours: String,
    },
    /// Other clients use other settings.
    Mismatch {
        /// As text.
        theirs: String,
        /// As text.
        ours: String,
    },
}

impl Terms {
    pub(crate) fn of(config: &Config) -> Self {
        Self { mode: config.guard, max_ttl: config.max_ttl(), db: config.db, quorum: config.quorum }
    }

    /// The `max_ttl` that a record asks for, if all else in it is as in these terms.
    pub fn max_ttl_in(&self, record: &ServerRecord) -> Option<Duration> {
        let theirs = record.asked_for().known()?;
        // Without a guard there is no longest lease, whatever these terms have.
        let max_ttl = if self.mode == GuardMode::On { theirs.max_ttl } else { self.max_ttl };
        (Self { max_ttl, ..theirs } == Self { max_ttl, ..*self }).then_some(max_ttl)
    }

    /// The terms under which this client is served; `None` if it is refused. A client with a larger `max_ttl` than the
    /// record's takes no lease that other clients do not expect (A3), and waits for its own after a loss. A client with a
    /// smaller one would wait too short. A server that has lost its record gets the terms of before: other clients still
    /// run with them.
    pub fn served(&self, facts: &ServerFacts, record: Option<&ServerRecord>) -> Option<Self> {
        let max_ttl = match record {
            Some(record) => self.max_ttl_in(record).filter(|theirs| *theirs <= self.max_ttl)?,
            None => facts.served.unwrap_or(self.max_ttl).min(self.max_ttl),
        };
        Some(Self { max_ttl, ..*self })
    }

    /// True if a server with this `backlog_ttl` remembers a promotion for as long as these terms require.
    pub(crate) fn trusts(&self, backlog_ttl: Option<Duration>) -> bool {
        backlog_ttl.is_some_and(|ttl| ttl.is_zero() || ttl >= self.memory())
    }

    /// For how long a promotion must be remembered. A wait of `max_ttl` after that time covers the master before as well.
    pub(crate) fn memory(&self) -> Duration {
        (self.max_ttl + SLACK).max(LINGER)
    }
}

/// `guard=on max_ttl=30s`, `quorum=5 guard=on max_ttl=30s`: the text in a record, and in a message when the terms of two
/// clients differ.
impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nodes) = self.quorum {
            write!(f, "quorum={nodes} ")?;
        }
        match self.mode {
            GuardMode::Off => f.write_str("guard=off")?,
            GuardMode::On => {
                write!(f, "guard=on max_ttl={}", humantime::format_duration(self.max_ttl))?;
            }
        }
        if self.db == 0 { Ok(()) } else { write!(f, " db={}", self.db) }
    }
}

/// Exactly as [`Display`](fmt::Display) writes them: the scripts compare texts.
impl FromStr for Terms {
    type Err = ForeignTerms;

    fn from_str(text: &str) -> Result<Self, ForeignTerms> {
        let of_text = |text: &str| {
            let (quorum, rest) = match text.strip_prefix("quorum=") {
                Some(rest) => rest.split_once(' ').map(|(nodes, rest)| (nodes.parse().ok(), rest))?,
                None => (None, text),
            };
            let (rest, db) = rest.split_once(" db=").unwrap_or((rest, "0"));
            let (mode, max_ttl) = match rest.strip_prefix("guard=on max_ttl=") {
                Some(max_ttl) => (GuardMode::On, humantime::parse_duration(max_ttl).ok()?),
                None => (GuardMode::Off, Timing::MAX_TTL),
            };
            Some(Self { mode, max_ttl, db: db.parse().ok()?, quorum })
        };
        of_text(text).filter(|terms| terms.to_string() == text).ok_or(ForeignTerms)
    }
}

/// A text that is not one of [`Terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignTerms;

impl RecordedTerms {
    fn known(&self) -> Option<Terms> {
        if let Self::Known(terms) = self { Some(*terms) } else { None }
    }

    /// The longest lease that they allow: without a guard, any. A text of another version names it in the same way.
    fn longest_lease(&self) -> Duration {
        let named = match self {
            Self::Known(terms) => Some(terms.max_ttl).filter(|_| terms.mode == GuardMode::On),
            Self::Foreign(text) => text
                .split("max_ttl=")
                .nth(1)
                .and_then(|rest| humantime::parse_duration(rest.split(" db=").next()?).ok()),
        };
        named.unwrap_or(Timing::MAX_TTL)
    }
}

impl From<&str> for RecordedTerms {
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|ForeignTerms| Self::Foreign(text.to_owned()), Self::Known)
    }
}

impl From<Terms> for RecordedTerms {
    fn from(terms: Terms) -> Self {
        Self::Known(terms)
    }
}

impl fmt::Display for RecordedTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(terms) => terms.fmt(f),
            Self::Foreign(text) => f.write_str(text),
        }
    }
}

/// The longest lease that there may be, whatever was lost.
fn longest_lease(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Duration {
    let recorded = record.map_or(Duration::ZERO, |record| record.settings.longest_lease());
    terms.max_ttl.max(recorded).max(facts.longest.unwrap_or_default())
}

/// Whether a server may grant, from its facts and its record.
pub fn decide(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    if !facts.is_master {
        return Decision::Refuse(ClientRefusal::NotMaster);
    }
    let Some(served) = terms.served(facts, record) else { return mismatch(terms, record) };
    let ours = served.into();
    if terms.mode == GuardMode::Off {
        let is_ours = record.is_some_and(|r| r.is_open && is_of_this_history(r, facts));
        let zero = Duration::ZERO;
        return if is_ours { Decision::Open } else { write(Why::Unguarded, zero, zero, ours) };
    }
    let decision = match record {
        None => without_record(terms, facts, ours),
        Some(record) => with_record(terms, facts, record, ours),
    };
    held_back(terms, facts, record, decision)
}

/// True if the server had replicas and none has acknowledged for [`GRACE`]. From what is seen now and what
/// was seen before.
pub fn is_alone(now: Duration, acked: Option<Duration>, before: Option<Duration>) -> bool {
    // After the clock was set back, nothing is known from before.
    let last = acked.max(before.filter(|at| *at <= now));
    (acked.is_some() || before.is_some()) && last.is_none_or(|at| now.saturating_sub(at) > GRACE)
}

/// Whether a check of the replicas, sent at `asked`, is recent enough for a claim or a renewal that began at `began`.
///
/// A lease counts from when its request began. So a check that was sent after that is recent, however late it is answered.
/// A check that another caller had sent before is as old as it was at `began`, even if it is answered now.
pub fn is_recent(asked: Moment, began: Moment) -> bool {
    asked.elapsed(began) < LOOK
}

/// The settings of the record and those of this client, as text.
fn both(terms: &Terms, record: Option<&ServerRecord>) -> (String, String) {
    (record.map_or_else(String::new, |record| record.asked_for().to_string()), terms.to_string())
}

fn mismatch(terms: &Terms, record: Option<&ServerRecord>) -> Decision {
    let (theirs, ours) = both(terms, record);
    Decision::Refuse(ClientRefusal::Mismatch { theirs, ours })
}

fn raise(terms: &Terms, record: Option<&ServerRecord>) -> Decision {
    let (theirs, ours) = both(terms, record);
    Decision::Refuse(ClientRefusal::Raise { theirs, ours })
}

fn write(why: Why, wait: Duration, quiet: Duration, settings: RecordedTerms) -> Decision {
    Decision::Write { why, wait, quiet, settings, next: None, acked: None }
}

pub(crate) fn is_of_this_history(record: &ServerRecord, facts: &ServerFacts) -> bool {
    record.run_id == facts.run_id && record.replid == facts.replid
}

/// For how long the master before this server may go on. A server that forgets its backlog too early may have been
/// promoted without showing it.
fn lingering(terms: &Terms, facts: &ServerFacts) -> Duration {
    let is_first = !facts.is_promoted && terms.trusts(facts.backlog_ttl);
    let is_over = is_first || facts.predecessor == Predecessor::Demoted;
    if is_over { Duration::ZERO } else { LINGER }
}

fn without_record(terms: &Terms, facts: &ServerFacts, ours: RecordedTerms) -> Decision {
    let quiet = lingering(terms, facts);
    write(Why::Missing, longest_lease(terms, facts, None) + quiet, quiet, ours)
}

fn with_record(terms: &Terms, facts: &ServerFacts, record: &ServerRecord, ours: RecordedTerms) -> Decision {
    // While settings are being adopted there may be leases of the old ones.
    let longest = longest_lease(terms, facts, Some(record));
    let (left, lingers) = (record.left(facts.now), lingering(terms, facts));
    let anew = |why| (why, left.max(longest + lingers), lingers.max(record.quiet(facts.now)));
    let (why, wait, quiet) = if is_of_this_history(record, facts) {
        let overlaps = facts.predecessor == Predecessor::Serving;
        if overlaps && !record.is_open && left < longest {
            // Whatever the other master grants now expires by then.
            (Why::Overlapping, longest, record.quiet(facts.now))
        } else {
            (Why::Waiting, left, record.quiet(facts.now))
        }
    } else if facts.is_promoted || !terms.trusts(facts.backlog_ttl) {
        anew(Why::Promoted)
    } else if record.run_id != facts.run_id {
        anew(Why::Restarted)
    } else {
        (Why::BacklogOver, left, record.quiet(facts.now))
    };
    let is_adopting = record.next.is_some();
    match why {
        Why::Waiting if wait.is_zero() && record.is_open && !is_adopting => Decision::Open,
        // If it were written anew, the end of the wait would move with every client that checks.
        Why::Waiting if !wait.is_zero() && record.ready == facts.now.saturating_add(wait) => {
            Decision::Wait { why, wait }
        }
        _ if is_adopting && !wait.is_zero() => Decision::Write {
            why,
            wait,
            quiet,
            settings: record.settings.clone(),
            next: record.next.clone(),
            acked: None,
        },
        _ => write(why, wait, quiet, ours),
    }
}

/// A decision that opens the gate opens it only for clients that may pass; and what was known of the replicas is kept.
fn held_back(
    terms: &Terms,
    facts: &ServerFacts,
    record: Option<&ServerRecord>,
    decision: Decision,
) -> Decision {
    let before = record.and_then(|record| record.acked);
    let opens = match &decision {
        Decision::Open => true,
        Decision::Write { wait, .. } => wait.is_zero(),
        _ => false,
    };
    if opens && is_alone(facts.now, facts.acked, before) {
        return Decision::Refuse(ClientRefusal::Alone);
    }
    let left =
        facts.moved.map_or(Duration::ZERO, |ago| longest_lease(terms, facts, None).saturating_sub(ago));
    if opens && !left.is_zero() {
        return Decision::Wait { why: Why::Moved, wait: left };
    }
    match decision {
        Decision::Write { why, wait, quiet, settings, next, .. } => {
            // The replicas that a promoted server knows of were those of the master before it: no server can be promoted in
            // the place of one that never had a replica. A server that was started since may be that master itself, with
            // its data loaded.
            let ran = |at: Duration| at >= facts.now.saturating_sub(facts.up);
            let is_heir = facts.is_promoted && why == Why::Promoted && before.is_some_and(ran);
            let acked = facts.acked.or_else(|| before.filter(|_| !is_heir));
            Decision::Write { why, wait, quiet, settings, next, acked }
        }
        other => other,
    }
}

/// For how long renewals are refused, by what was decided from these facts; then the server is checked again.
///
/// The master before a promoted server may go on for [`LINGER`]. What is renewed here is not renewed there. There, its copy
/// of the lease expires, and the next owner is granted the lock while the holder relies on the renewal here (L1). So
/// nothing is renewed until that master has stopped. The record has the time, because a client with another `max_ttl` may
/// have written the wait.
///
/// A client that is still connected to the old master renews there. Once the old master follows the new one, it grants
/// nothing. What it granted before came after the end of a lease that its holder did not treat as held any more. So
/// renewals then go on immediately.
pub fn renewals_wait(facts: &ServerFacts, record: Option<&ServerRecord>, decision: &Decision) -> Duration {
    let quiet = match decision {
        // What only this client waits for shows nothing about a failover.
        Decision::Wait { why: Why::Moved, .. } | Decision::Write { why: Why::Unguarded, .. } => {
            return Duration::ZERO;
        }
        Decision::Wait { .. } => record.map_or(Duration::ZERO, |record| record.quiet(facts.now)),
        Decision::Write { quiet, .. } => *quiet,
        Decision::Open | Decision::Refuse(_) => return Duration::ZERO,
    };
    match facts.predecessor {
        Predecessor::Demoted => Duration::ZERO,
        Predecessor::Serving => quiet.max(LOOK),
        Predecessor::Unknown => quiet,
    }
}

/// What `doctor --adopt` does: closes the gate for as long as a lease of the old settings may last, and records that the
/// master has no replicas but those that are connected. A larger `max_ttl` is adopted only if the operator confirms that no
/// client with the smaller one runs or will be started: its waits would be too short.
pub(crate) fn adopt(
    terms: &Terms,
    facts: &ServerFacts,
    record: Option<&ServerRecord>,
    adopt: Adopt,
) -> Decision {
    let is_alone = is_alone(facts.now, facts.acked, record.and_then(|record| record.acked));
    let is_on = terms.mode == GuardMode::On;
    let is_shorter = is_on && record.and_then(ServerRecord::max_ttl).is_some_and(|it| it < terms.max_ttl);
    // Then only the replicas are adopted, and the settings stay.
    let is_served = is_alone && record.is_some_and(|it| terms.max_ttl_in(it).is_some());
    let decision = match adopt {
        _ if !facts.is_master => decide(terms, facts, record),
        Adopt::LargerMaxTtl if is_shorter => mismatch(terms, record),
        Adopt::Settings if is_shorter && !is_served => return raise(terms, record),
        _ => decide(terms, facts, record),
    };
    let adopting = |next, acked| {
        let settings = record.map_or_else(|| (*terms).into(), |record| record.settings.clone());
        let now = facts.now;
        // An open record of this process bounds all leases, and the master before it has stopped, if there was a guard.
        // Another record may be older than some of the leases.
        let is_current = |it: &ServerRecord| {
            let guarded = it.settings.known().is_some_and(|terms| terms.mode == GuardMode::On);
            it.is_open && guarded && is_of_this_history(it, facts)
        };
        let is_current = record.is_some_and(is_current);
        let (longest, lingers) = match is_current {
            true => (Duration::ZERO, Duration::ZERO),
            false => (longest_lease(terms, facts, record), lingering(terms, facts)),
        };
        let longest = longest.max(settings.longest_lease());
        let quiet = lingers.max(record.map_or(Duration::ZERO, |record| record.quiet(now)));
        let left = record.map_or(Duration::ZERO, |record| record.left(now));
        let wait = left.max(longest + lingers);
        Decision::Write { why: Why::Adopting, wait, quiet, settings, next, acked }
    };
    match decision {
        // Without a guard no client waits for anything.
        Decision::Refuse(ClientRefusal::Mismatch { .. }) if !is_on => {
            write(Why::Unguarded, Duration::ZERO, Duration::ZERO, (*terms).into())
        }
        Decision::Refuse(ClientRefusal::Mismatch { .. }) => adopting(Some((*terms).into()), facts.acked),
        refused @ Decision::Refuse(ClientRefusal::NotMaster) => refused,
        _ if is_alone && is_on => adopting(record.and_then(|record| record.next.clone()), None),
        other => other,
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Restarted => "the Redis server was started a moment ago and may have lost locks",
            Self::Promoted => "the Redis server was promoted and may never have received some locks",
            Self::Missing => "the Redis server is new to Tenure, or was emptied",
            Self::Overlapping => "the master before this Redis server was not demoted yet and may still grant",
            Self::Moved => "another Redis server answered at this address before",
            Self::Alone => {
                "the Redis server had replicas and none of them acknowledges; another one may have been promoted in its place"
            }
            Self::BacklogOver | Self::Waiting => "the Redis server may have lost locks",
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
