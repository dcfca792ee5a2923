//! The record in a server (`tenure:one`, `tenure:quorum`): which settings all clients of it share, and for which run and
//! history of the server it was written. It is read with the facts in one step, judged by [`guard`], and written if both
//! are still the same.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::Value;
use tenure_core::{Adopt, Adoption, BackendError, ErrorKind, Moment, Outcome, Timing, locked};

use crate::{
    config::Topology,
    connection::Wire,
    error,
    gate::GateName,
    guard::{
        self, ClientRefusal, Decision, LINGER, LOOK, Predecessor, RecordedTerms, ServerFacts, ServerRecord,
        Terms, Why, renewals_wait,
    },
    script::{Reply, number},
    sentinel,
    shared::RedisShared,
};

/// How often facts may change while they are judged.
const ROUNDS: usize = 8;

/// Whether this client may be granted something over this connection.
#[derive(Clone, Debug)]
pub(crate) enum Fitness {
    /// With this gate; a claim with another one is refused by the script.
    Fit(Arc<GateName>),
    /// Not before `until`; and nothing is renewed until `renews`, if that is set. Then it is checked again.
    Unfit { why: Why, until: Moment, renews: Option<Moment> },
    /// It may not be as this client knew it.
    Unknown,
}

impl Fitness {
    /// Of a server without a record.
    pub(crate) fn always() -> Self {
        Self::Fit(Arc::new(GateName::bare("-")))
    }

    /// Nothing was granted.
    pub(crate) fn refusal(&self, place: &str, now: Moment) -> BackendError {
        let Self::Unfit { why, until, .. } = self else {
            let message = "the Redis server changes too fast to be judged";
            return BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message)
                .with("redis", place);
        };
        let left = until.remaining(now).max(Duration::from_millis(1));
        let message = match why {
            Why::Alone => format!(
                "{why}. It grants and renews no locks until a replica is back; if this server stands alone on purpose, run \
                 `tenure doctor --adopt`; only guard=off in the URL of all clients gives this safety up"
            ),
            _ => format!("{why}; it grants no locks for another {}, in case it lost some", described(left)),
        };
        let error =
            BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place);
        // It is not known when a replica comes back.
        if *why == Why::Alone { error } else { error.retry_after(left) }
    }

    /// True if the server was found fit with another history of data than the one with this id.
    pub(crate) fn is_of_another_history(&self, replid: &str) -> bool {
        if let Self::Fit(gate) = self { !gate.is_of_history(replid) } else { false }
    }
}

/// `10 s`, `2.5 s`
pub(crate) fn described(left: Duration) -> String {
    format!("{:.1}", left.as_secs_f64()).trim_end_matches(".0").to_owned() + " s"
}

/// What was read in one step.
struct ServerReading {
    facts: ServerFacts,
    record: Option<ServerRecord>,
    said: String,
    recorded: String,
}

/// Facts and record, not judged.
pub(crate) async fn facts_and_record(
    shared: &RedisShared,
    wire: &Wire,
    place: &str,
) -> Result<(ServerFacts, Option<ServerRecord>), BackendError> {
    let reading = read(shared, wire, place, &Terms::of(&shared.config), backlog_ttl(wire).await).await?;
    Ok((reading.facts, reading.record))
}

/// Adopts the settings of this client in place of those in the record.
pub(crate) async fn adopt(
    shared: &RedisShared,
    wire: &Wire,
    place: &str,
    adopt: Adopt,
) -> Result<Adoption, BackendError> {
    let terms = Terms::of(&shared.config);
    let is_raise = AtomicBool::new(false);
    let rule = |terms: &_, facts: &_, record: Option<&_>| {
        let decision = guard::adopt(terms, facts, record, adopt);
        is_raise.store(matches!(decision, Decision::Refuse(ClientRefusal::Raise { .. })), Relaxed);
        decision
    };
    let (wait, what) = match judge_by(shared, wire, place, rule).await {
        Ok(Judged { fitness: Fitness::Unfit { why, until, .. }, asked_for, .. }) => {
            let replicas_only = why == Why::Adopting && asked_for != terms.into();
            if replicas_only {
                locked(&shared.history).adopted_replicas = Some(until);
            }
            let what = format!("grants nothing until older leases have expired, then {asked_for}");
            (until.remaining(shared.host.now()), what)
        }
        Ok(Judged { asked_for, .. }) => (Duration::ZERO, format!("the record says {asked_for}")),
        Err(error) => {
            let now = shared.host.now();
            let adopted = locked(&shared.history).adopted_replicas.filter(|_| is_raise.load(Relaxed));
            let until = adopted.ok_or_else(|| error.clone())?;
            let left = until.remaining(now);
            if !left.is_zero() {
                (left, "grants nothing until older leases have expired".to_owned())
            } else {
                locked(&shared.history).adopted_replicas = None;
                (left, format!("the replicas were adopted, and the settings stay: {error}"))
            }
        }
    };
    Ok(Adoption::new(wait, format!("{place}: {what}")))
}

/// The result of a check.
pub(crate) struct Judged {
    pub(crate) fitness: Fitness,
    /// The longest lease that the server grants to this client.
    pub(crate) max_ttl: Duration,
    /// The settings that the record asks for now.
    asked_for: RecordedTerms,
}

/// Reads facts and record, judges them by this rule, and writes what was decided.
pub(crate) async fn judge_by(
    shared: &RedisShared,
    wire: &Wire,
    place: &str,
    rule: impl Fn(&Terms, &ServerFacts, Option<&ServerRecord>) -> Decision,
) -> Result<Judged, BackendError> {
    let terms = Terms::of(&shared.config);
    for _ in 0..ROUNDS {
        let backlog_ttl = backlog_ttl(wire).await;
        let reading = read(shared, wire, place, &terms, backlog_ttl).await?;
        let (facts, record) = (&reading.facts, reading.record.as_ref());
        let decision = rule(&terms, facts, record);
        let refused_for = renewals_wait(facts, record, &decision);
        let served = terms.served(facts, record).unwrap_or(terms);
        let asked_for = match &decision {
            Decision::Write { settings, next, .. } => next.clone().unwrap_or_else(|| settings.clone()),
            _ => served.into(),
        };
        let judged = |fitness| Ok(Judged { fitness, max_ttl: served.max_ttl, asked_for });
        let unfit = |why, from: Moment, wait| Fitness::Unfit {
            why,
            until: from + wait,
            renews: (!refused_for.is_zero()).then(|| from + refused_for),
        };
        match decision {
            Decision::Open => {
                return judged(fit(
                    shared,
                    facts,
                    GateName::of(&facts.run_id, &facts.replid, &served.into()),
                ));
            }
            Decision::Wait { why, wait } => {
                return judged(unfit(why, shared.host.now(), wait));
            }
            // It serves requests that only read, and is checked again.
            Decision::Refuse(ClientRefusal::Alone) => {
                return judged(unfit(Why::Alone, shared.host.now(), LOOK));
            }
            Decision::Refuse(refusal) => return Err(refused(place, &refusal)),
            Decision::Write { why, wait, quiet, settings, next, acked } => {
                let (now, gate) = (shared.host.now(), GateName::of(&facts.run_id, &facts.replid, &settings));
                let update = RecordUpdate { wait, quiet, settings: &settings, next: next.as_ref(), acked };
                if !write(shared, wire, place, &reading, gate.as_str(), update).await? {
                    continue;
                }
                if record.is_none() && served.max_ttl < terms.max_ttl {
                    tracing::warn!(%place, %settings, "a Redis server lost its record: written with the max_ttl of before");
                }
                if wait.is_zero() {
                    tracing::info!(%place, %why, "a Redis server may grant");
                    return judged(fit(shared, facts, gate));
                }
                tracing::warn!(%place, %why, ?wait, "a Redis server must wait before it grants");
                return judged(unfit(why, now, wait));
            }
        }
    }
    Err(Fitness::Unknown.refusal(place, shared.host.now()))
}

fn fit(shared: &RedisShared, facts: &ServerFacts, gate: GateName) -> Fitness {
    locked(&shared.history).found_fit(&facts.run_id);
    Fitness::Fit(Arc::new(gate))
}

fn refused(place: &str, refusal: &ClientRefusal) -> BackendError {
    let (kind, message) = match refusal {
        ClientRefusal::NotMaster => {
            (ErrorKind::Unavailable, "the Redis server is a replica and takes no writes".to_owned())
        }
        ClientRefusal::Alone => (ErrorKind::Unavailable, Why::Alone.to_string()),
        ClientRefusal::Mismatch { theirs, .. } if theirs.starts_with(guard::NEWER) => (
            ErrorKind::Unsupported,
            format!(
                "this Redis server is used by a version that is newer than this tenure ({theirs}): upgrade it"
            ),
        ),
        ClientRefusal::Raise { theirs, ours } => (
            ErrorKind::Invalid,
            format!(
                "this Redis server is used with {theirs}, and this URL has {ours}. Once the larger max_ttl is adopted, clients with \
                 the smaller one are refused; when none of them runs or will be started: `tenure doctor --adopt --raise`"
            ),
        ),
        ClientRefusal::Mismatch { theirs, ours } => (
            ErrorKind::Invalid,
            format!(
                "this Redis server is used with {theirs}, and this client has {ours}; make them equal everywhere, or have the \
                 server adopt those of this client with `tenure doctor --adopt`"
            ),
        ),
    };
    BackendError::new(kind, Outcome::NotApplied, message).with("redis", place)
}

/// `None` if it cannot be read; then no shortcut is taken.
async fn backlog_ttl(wire: &Wire) -> Option<Duration> {
    let mut cmd = redis::cmd("CONFIG");
    let answer = wire.ask(cmd.arg("GET").arg("repl-backlog-ttl")).await.ok()?;
    let seconds = match &answer {
        Value::Map(pairs) => number(&pairs.first()?.1),
        Value::Array(items) => number(items.get(1)?),
        _ => None,
    }?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

async fn read(
    shared: &RedisShared,
    wire: &Wire,
    place: &str,
    terms: &Terms,
    backlog_ttl: Option<Duration>,
) -> Result<ServerReading, BackendError> {
    let script = &shared.scripts.check;
    let call = script.call(&[shared.config.record()]);
    let answer = wire.eval(script, &call).await.map_err(|error| error::asked(place, error).1)?;
    let reading = Reply::new(answer).and_then(|reply| parse(reply, backlog_ttl));
    let mut reading = reading.ok_or_else(|| error::unreadable(place, "what it is"))?;
    let is_settled = reading.record.as_ref().is_some_and(|record| record.is_open) && is_of_record(&reading);
    if reading.facts.is_promoted && !is_settled && matches!(shared.config.topology, Topology::Sentinel { .. })
    {
        reading.facts.predecessor = predecessor(shared, &reading).await;
    }
    let (mut history, now) = (locked(&shared.history), shared.host.now());
    history.complete(&mut reading.facts, terms, reading.record.as_ref(), now);
    drop(history);
    Ok(reading)
}

fn is_of_record(reading: &ServerReading) -> bool {
    reading.record.as_ref().is_some_and(|record| guard::is_of_this_history(record, &reading.facts))
}

/// What the Sentinels report about the master before; nothing, if they cannot be asked.
async fn predecessor(shared: &RedisShared, reading: &ServerReading) -> Predecessor {
    let survey = sentinel::survey(&shared.config, &shared.host).await;
    survey.map_or(Predecessor::Unknown, |it| it.predecessor(&reading.facts, reading.record.as_ref()))
}

fn parse(mut reply: Reply, backlog_ttl: Option<Duration>) -> Option<ServerReading> {
    let (said, up, recorded) = (reply.text()?, reply.text()?, reply.text()?);
    let (acked, acked_before) = (reply.text()?, reply.text()?);
    let (now, is_open) = (reply.text()?, reply.count()? == 1);
    let mut fields = said.split('|');
    let run_id = fields.next()?.to_owned();
    let role = fields.next()?;
    let replid = fields.next()?.to_owned();
    let second_offset = fields.next()?;
    let mut count = || fields.next()?.parse::<u64>().ok();
    let (evicted, flushes) = (count()?, count()?);
    let facts = ServerFacts {
        is_master: role == "master",
        is_promoted: second_offset != "-1",
        // Negative after the clock was set back to before its start.
        up: Duration::from_secs(u64::try_from(up.parse::<i64>().ok()?).unwrap_or(0)),
        is_lossy: evicted + flushes > 0,
        backlog_ttl,
        acked: millis(&acked),
        predecessor: Predecessor::Unknown,
        moved: None,
        served: None,
        longest: None,
        now: Duration::from_micros(now.parse().ok()?),
        run_id,
        replid,
    };
    let record = parse_record(&recorded, millis(&acked_before), is_open);
    Some(ServerReading { facts, record, said, recorded })
}

/// Nothing, where there is none.
fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

fn parse_record(text: &str, acked: Option<Duration>, is_open: bool) -> Option<ServerRecord> {
    let mut fields = text.split('|').map(str::to_owned);
    let run_id = fields.next()?;
    let replid = fields.next()?;
    let ready = Duration::from_millis(fields.next()?.parse().ok()?);
    let settings = fields.next()?.as_str().into();
    let next = fields.next()?;
    let next = Some(next.as_str()).filter(|next| !next.is_empty()).map(Into::into);
    // Without it, the longest there may be.
    let wait = fields.next().and_then(|text| millis(&text)).unwrap_or(Timing::MAX_TTL + LINGER);
    let renews = fields.next().and_then(|text| millis(&text)).unwrap_or(ready);
    Some(ServerRecord { run_id, replid, ready, wait, renews, settings, next, acked, is_open })
}

/// What is written besides what was judged.
struct RecordUpdate<'a> {
    wait: Duration,
    quiet: Duration,
    settings: &'a RecordedTerms,
    next: Option<&'a RecordedTerms>,
    acked: Option<Duration>,
}

/// True if facts and record were still what was judged.
async fn write(
    shared: &RedisShared,
    wire: &Wire,
    place: &str,
    judged: &ServerReading,
    gate: &str,
    update: RecordUpdate<'_>,
) -> Result<bool, BackendError> {
    let script = &shared.scripts.judge;
    let mut call = script.call(&[shared.config.record()]);
    call.arg(&judged.said).arg(&judged.recorded).arg(update.wait.as_millis().to_string()).arg(gate);
    call.arg(&judged.facts.run_id).arg(&judged.facts.replid);
    call.arg(update.settings.to_string()).arg(update.next.map(ToString::to_string).unwrap_or_default());
    call.arg(update.acked.map_or_else(String::new, |at| at.as_millis().to_string()));
    call.arg(update.quiet.as_millis().to_string());
    let answer = wire.eval(script, &call).await.map_err(|error| error::asked(place, error).1)?;
    Ok(number(&answer) == Some(1))
}
