//! Looking at a server: reading its facts and its record in one step, and writing what was judged if they are the same.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tenure_core::{BackendError, ErrorKind, Moment, Outcome, locked};

use crate::{
    config::Place,
    error,
    guard::{self, Decision, Facts, LOOK, Predecessor, Record, Refusal, Terms, Why, renewals_wait},
    script::{Reply, number},
    sentinel,
    shared::Shared,
    wire::Wire,
};

/// How often facts may change while they are judged.
const ROUNDS: usize = 8;

/// Whether this client may be granted something over this connection.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    /// With this text; a claim without it is refused by the script.
    Open(Arc<str>),
    /// Not before then; and nothing is renewed until `renews`, if that is said, when it is to be looked at again.
    Closed { why: Why, until: Moment, renews: Option<Moment> },
}

impl Gate {
    /// Where there is no gate.
    pub(crate) fn always() -> Self {
        Self::Open(Arc::from("-"))
    }

    /// The gate stays closed; nothing was granted.
    pub(crate) fn refusal(&self, place: &str, now: Moment) -> BackendError {
        let Self::Closed { why, until, .. } = self else {
            let message = "the Redis server changes too fast to be judged";
            return BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message)
                .with("redis", place);
        };
        let left = until.remaining(now).max(Duration::from_millis(1));
        let message = match why {
            Why::Alone => format!(
                "{why}: it grants and renews nothing until one does; if it is to stand alone from now on, run `tenure doctor \
                 --adopt`"
            ),
            _ => format!(
                "{why}: it grants nothing for another {:.1} s, until every lease it may have forgotten is over",
                left.as_secs_f64()
            ),
        };
        let error =
            BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place);
        // Nobody knows when a replica comes back.
        if *why == Why::Alone { error } else { error.retry_after(left) }
    }

    /// Nothing is renewed yet.
    pub(crate) fn no_renewal(&self, place: &str, now: Moment) -> BackendError {
        let left = match self {
            Self::Closed { renews: Some(renews), .. } => renews.remaining(now),
            _ => Duration::ZERO,
        };
        let message = format!(
            "the Redis server was promoted: it renews nothing for another {:.1} s, while the master before it may let others in",
            left.as_secs_f64()
        );
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).with("redis", place)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// True if it was opened for another history of data than the one with this id.
    pub(crate) fn is_of_another_history(&self, replid: &str) -> bool {
        let Self::Open(text) = self else { return false };
        text.split('.').nth(1).is_some_and(|known| !replid.starts_with(known))
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Open(a), Self::Open(b)) => Arc::ptr_eq(a, b),
            (Self::Closed { until: a, .. }, Self::Closed { until: b, .. }) => a == b,
            _ => false,
        }
    }
}

/// What was read in one step.
struct Reading {
    facts: Facts,
    record: Option<Record>,
    said: String,
    recorded: String,
}

/// Looks at the server, and opens its gate if it may be opened.
pub(crate) async fn check(shared: &Shared, wire: &Wire, place: &str) -> Result<Gate, BackendError> {
    judge_by(shared, wire, place, guard::decide).await
}

/// Facts and record, judged by nobody.
pub(crate) async fn look(
    shared: &Shared,
    wire: &Wire,
    place: &str,
) -> Result<(Facts, Option<Record>), BackendError> {
    let reading = read(shared, wire, place, &Terms::of(&shared.config), backlog_ttl(wire).await).await?;
    Ok((reading.facts, reading.record))
}

/// Has the settings of this client adopted in place of those in the record.
pub(crate) async fn adopt(shared: &Shared, wire: &Wire, place: &str) -> Result<Gate, BackendError> {
    judge_by(shared, wire, place, guard::adopt).await
}

type Rule = fn(&Terms, &Facts, Option<&Record>) -> Decision;

async fn judge_by(shared: &Shared, wire: &Wire, place: &str, rule: Rule) -> Result<Gate, BackendError> {
    let terms = Terms::of(&shared.config);
    for _ in 0..ROUNDS {
        let backlog_ttl = backlog_ttl(wire).await;
        let reading = read(shared, wire, place, &terms, backlog_ttl).await?;
        let gate = gate_of(&reading.facts, &terms);
        let decision = rule(&terms, &reading.facts, reading.record.as_ref());
        let refused_for = renewals_wait(&terms, &reading.facts, reading.record.as_ref(), &decision);
        let closed = |why, from: Moment, wait| Gate::Closed {
            why,
            until: from + wait,
            renews: (!refused_for.is_zero()).then(|| from + refused_for),
        };
        match decision {
            Decision::Open => return Ok(opened(shared, &reading.facts, gate)),
            Decision::Wait { why, wait } => {
                return Ok(closed(why, shared.host.now(), wait));
            }
            // It serves those who only look, and is looked at again.
            Decision::Refuse(Refusal::Alone) => {
                return Ok(closed(Why::Alone, shared.host.now(), LOOK));
            }
            Decision::Refuse(refusal) => return Err(refused(place, &refusal)),
            Decision::Write { why, wait, settings, next, acked } => {
                let now = shared.host.now();
                let entry = Entry { wait, settings: &settings, next: next.as_deref(), acked };
                if !write(shared, wire, place, &reading, &gate, entry).await? {
                    continue;
                }
                if wait.is_zero() {
                    tracing::info!(%place, %why, "a Redis server may grant");
                    return Ok(opened(shared, &reading.facts, gate));
                }
                tracing::warn!(%place, %why, ?wait, "a Redis server must wait before it grants");
                return Ok(closed(why, now, wait));
            }
        }
    }
    Err(Gate::always().refusal(place, shared.host.now()))
}

fn opened(shared: &Shared, facts: &Facts, gate: String) -> Gate {
    locked(&shared.seen).pass(&facts.run_id);
    Gate::Open(Arc::from(gate))
}

/// 16 digits of each id are 64 random bits: enough that no two are ever equal by chance.
fn gate_of(facts: &Facts, terms: &Terms) -> String {
    let short = |id: &str| id.chars().take(16).collect::<String>();
    format!("{}.{}.{terms}", short(&facts.run_id), short(&facts.replid))
}

fn refused(place: &str, refusal: &Refusal) -> BackendError {
    let (kind, message) = match refusal {
        Refusal::NotMaster => {
            (ErrorKind::Unavailable, "the Redis server is a replica and takes no writes".to_owned())
        }
        Refusal::Alone => (ErrorKind::Unavailable, Why::Alone.to_string()),
        Refusal::Mismatch { theirs, ours } => (
            ErrorKind::Invalid,
            format!(
                "this Redis server is used with {theirs}, and this client has {ours}; make them equal everywhere, or \
                 have the server adopt these with `tenure doctor --adopt`"
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
    shared: &Shared,
    wire: &Wire,
    place: &str,
    terms: &Terms,
    backlog_ttl: Option<Duration>,
) -> Result<Reading, BackendError> {
    let script = &shared.scripts.check;
    let mut call = script.call(&[shared.config.record()]);
    call.arg(terms.to_string());
    let answer = wire.eval(script, &call).await.map_err(|error| error::asked(place, error).1)?;
    let reading = Reply::new(answer).and_then(|reply| parse(reply, backlog_ttl));
    let mut reading = reading.ok_or_else(|| error::unreadable(place, "what it is"))?;
    let is_settled = reading.record.as_ref().is_some_and(|record| record.is_open) && is_of_record(&reading);
    if reading.facts.is_promoted && !is_settled && matches!(shared.config.place, Place::Sentinel { .. }) {
        reading.facts.predecessor = predecessor(shared, &reading).await;
    }
    reading.facts.moved = locked(&shared.seen).see(&reading.facts.run_id, shared.host.now());
    Ok(reading)
}

fn is_of_record(reading: &Reading) -> bool {
    reading.record.as_ref().is_some_and(|record| guard::is_of_this_history(record, &reading.facts))
}

/// What the Sentinels say of the master before; nothing, if they cannot be asked.
async fn predecessor(shared: &Shared, reading: &Reading) -> Predecessor {
    let survey = sentinel::survey(&shared.config, &shared.host).await;
    survey.map_or(Predecessor::Unknown, |it| it.predecessor(&reading.facts, reading.record.as_ref()))
}

fn parse(mut reply: Reply, backlog_ttl: Option<Duration>) -> Option<Reading> {
    let (said, up, recorded) = (reply.text()?, reply.text()?, reply.text()?);
    let (acked, acked_before) = (reply.text()?, reply.text()?);
    let (now, is_open) = (reply.text()?, reply.count()? == 1);
    let mut fields = said.split('|');
    let (run_id, role) = (fields.next()?.to_owned(), fields.next()?);
    let (replid, second_offset) = (fields.next()?.to_owned(), fields.next()?);
    let mut count = || fields.next()?.parse::<u64>().ok();
    let (evicted, flushes) = (count()?, count()?);
    let facts = Facts {
        is_master: role == "master",
        is_promoted: second_offset != "-1",
        // Negative after a step back of the clock to before its start.
        up: Duration::from_secs(u64::try_from(up.parse::<i64>().ok()?).unwrap_or(0)),
        is_lossy: evicted + flushes > 0,
        backlog_ttl,
        acked: millis(&acked),
        predecessor: Predecessor::Unknown,
        moved: None,
        now: Duration::from_micros(now.parse().ok()?),
        run_id,
        replid,
    };
    let record = parse_record(&recorded, millis(&acked_before), is_open);
    Some(Reading { facts, record, said, recorded })
}

/// Nothing, where there is none.
fn millis(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

fn parse_record(text: &str, acked: Option<Duration>, is_open: bool) -> Option<Record> {
    let mut fields = text.split('|').map(str::to_owned);
    let (run_id, replid) = (fields.next()?, fields.next()?);
    let ready = Duration::from_millis(fields.next()?.parse().ok()?);
    let (settings, next) = (fields.next()?, fields.next()?);
    let next = Some(next).filter(|n| !n.is_empty());
    Some(Record { run_id, replid, ready, settings, next, acked, is_open })
}

/// What is written besides what was judged.
struct Entry<'a> {
    wait: Duration,
    settings: &'a str,
    next: Option<&'a str>,
    acked: Option<Duration>,
}

/// True if facts and record were still what was judged.
async fn write(
    shared: &Shared,
    wire: &Wire,
    place: &str,
    judged: &Reading,
    gate: &str,
    entry: Entry<'_>,
) -> Result<bool, BackendError> {
    let script = &shared.scripts.judge;
    let mut call = script.call(&[shared.config.record()]);
    call.arg(&judged.said).arg(&judged.recorded).arg(entry.wait.as_millis().to_string()).arg(gate);
    call.arg(&judged.facts.run_id).arg(&judged.facts.replid);
    call.arg(entry.settings).arg(entry.next.unwrap_or_default());
    call.arg(entry.acked.map_or_else(String::new, |at| at.as_millis().to_string()));
    let answer = wire.eval(script, &call).await.map_err(|error| error::asked(place, error).1)?;
    Ok(number(&answer) == Some(1))
}
