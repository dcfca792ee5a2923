//! Which harm was done: a pure function of the referee's record.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::record::{Event, What};

/// The kinds of harm that a scene checks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Two clients work at the same time.
    OneAtATime,
    /// The resource takes a write of a client that had the lock before the client that has written since.
    NoLateWrite,
    /// The number at the end is not the number of additions that were taken.
    NoLostUpdate,
    /// A client waits for `ttls` ttls while no client is inside.
    Served {
        /// How many.
        ttls: f64,
    },
    /// More than `overtaken` clients acquire before a client that came first.
    InTurn {
        /// How many.
        overtaken: usize,
    },
    /// On average, a server receives more requests than this for one entry.
    Requests {
        /// How often.
        each: u64,
    },
}

/// Harm was done.
#[derive(Clone, Debug, PartialEq)]
pub struct Harm {
    /// In one sentence: which client, when, how.
    pub what: String,
    /// In two or three words.
    pub label: &'static str,
    /// From when.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
}

/// A time that a client spent inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lane: String,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

/// The first violation of each of these rules in these events.
pub(crate) fn judge(rules: &[Rule], events: &[Event], ttl: Duration) -> Vec<Harm> {
    rules.iter().filter_map(|rule| broken(*rule, events, ttl)).collect()
}

fn broken(rule: Rule, events: &[Event], ttl: Duration) -> Option<Harm> {
    match rule {
        Rule::OneAtATime => overlaps(events).into_iter().max_by_key(|harm| harm.until - harm.from),
        Rule::NoLateWrite => late_write(events),
        Rule::NoLostUpdate => lost_update(events),
        Rule::Served { ttls } => unserved(events, ttl.mul_f64(ttls)),
        Rule::InTurn { overtaken } => out_of_turn(events, overtaken, ttl / 4),
        Rule::Requests { each } => too_many_requests(events, each),
    }
}

/// When clients treated the lock as held: from entering until they left, abandoned it, noticed the loss, or died.
pub(crate) fn inside(events: &[Event]) -> Vec<Span> {
    spans(
        events,
        |what| matches!(what, What::Enters),
        |what| matches!(what, What::Leaves | What::Abandons | What::Hears { .. } | What::Dies),
    )
}

/// When clients were stopped.
pub(crate) fn stopped(events: &[Event]) -> Vec<Span> {
    spans(events, |what| matches!(what, What::Stops), |what| matches!(what, What::GoesOn | What::Dies))
}

/// When clients waited.
pub(crate) fn waiting(events: &[Event]) -> Vec<Span> {
    spans(events, |what| matches!(what, What::Asks), |what| matches!(what, What::Enters | What::Dies))
}

/// The end of the last event.
pub(crate) fn end(events: &[Event]) -> Duration {
    events.last().map_or(Duration::ZERO, |event| event.at)
}

fn spans(events: &[Event], opens: impl Fn(&What) -> bool, closes: impl Fn(&What) -> bool) -> Vec<Span> {
    let mut open: Vec<Span> = Vec::new();
    let mut done = Vec::new();
    for event in events {
        let at = open.iter().position(|span| span.lane == event.lane);
        match at {
            None if opens(&event.what) => {
                open.push(Span { lane: event.lane.clone(), from: event.at, until: event.at });
            }
            Some(at) if closes(&event.what) => {
                done.push(Span { until: event.at, ..open.swap_remove(at) });
            }
            _ => {}
        }
    }
    let end = end(events);
    done.extend(open.into_iter().map(|span| Span { until: end, ..span }));
    done.sort_by_key(|span| span.from);
    done
}

/// Times inside, without those in which the client was stopped and did nothing.
fn working(events: &[Event]) -> Vec<Span> {
    let stops = stopped(events);
    let mut pieces = inside(events);
    for stop in &stops {
        pieces = pieces.into_iter().flat_map(|span| without(span, stop)).collect();
    }
    pieces
}

fn without(span: Span, stop: &Span) -> Vec<Span> {
    if span.lane != stop.lane || stop.until <= span.from || span.until <= stop.from {
        return vec![span];
    }
    let before = Span { until: stop.from, ..span.clone() };
    let after = Span { from: stop.until, ..span };
    [before, after].into_iter().filter(|piece| piece.from < piece.until).collect()
}

fn overlaps(events: &[Event]) -> Vec<Harm> {
    let spans = working(events);
    let mut harms = Vec::new();
    for (index, one) in spans.iter().enumerate() {
        for other in spans[index + 1..].iter().filter(|other| other.lane != one.lane) {
            let (from, until) = (one.from.max(other.from), one.until.min(other.until));
            if from < until {
                let what = format!(
                    "{} and {} worked at the same time, from {} for {}.",
                    one.lane,
                    other.lane,
                    Seconds(from),
                    Seconds(until - from)
                );
                harms.push(Harm { what, label: "two holders", from, until });
            }
        }
    }
    harms
}

/// Compares, at each write that was taken, when the writing clients had entered.
fn late_write(events: &[Event]) -> Option<Harm> {
    let mut entered: BTreeMap<&str, Duration> = BTreeMap::new();
    let mut last: Option<(&str, Duration)> = None;
    for event in events {
        match &event.what {
            What::Enters => {
                entered.insert(&event.lane, event.at);
            }
            What::Writes { text, is_taken: true } => {
                let since = *entered.get(event.lane.as_str())?;
                if let Some((other, later)) = last
                    && later > since
                    && other != event.lane
                {
                    let what = format!(
                        "The resource took \"{text}\" of {} at {}, over that of {other}, which had the lock since {}.",
                        event.lane,
                        Seconds(event.at),
                        Seconds(later)
                    );
                    return Some(Harm { what, label: "late write", from: event.at, until: event.at });
                }
                last = Some((&event.lane, since));
            }
            _ => {}
        }
    }
    None
}

fn lost_update(events: &[Event]) -> Option<Harm> {
    let taken = events.iter().filter(|event| matches!(event.what, What::Adds { is_taken: true })).count();
    let (sum, at) = events.iter().find_map(|event| match event.what {
        What::Sum(sum) => Some((sum, event.at)),
        _ => None,
    })?;
    let taken = u64::try_from(taken).expect("BUG: a small number");
    (sum != taken).then(|| Harm {
        what: format!("{taken} clients added one and were told that it was done; the number is {sum}."),
        label: "lost update",
        from: at,
        until: at,
    })
}

/// The longest time in which a client waited and no client was inside.
fn unserved(events: &[Event], limit: Duration) -> Option<Harm> {
    let (waiting, inside) = (waiting(events), inside(events));
    let mut instants: Vec<Duration> =
        waiting.iter().chain(&inside).flat_map(|span| [span.from, span.until]).collect();
    instants.sort_unstable();
    let covers = |spans: &[Span], from: Duration, until: Duration| {
        spans.iter().find(|span| span.from <= from && until <= span.until).map(|span| span.lane.clone())
    };
    let mut gap: Option<(Duration, Duration, String)> = None;
    let mut worst: Option<(Duration, Duration, String)> = None;
    for pair in instants.windows(2) {
        let (from, until) = (pair[0], pair[1]);
        let waits = covers(&waiting, from, until).filter(|_| covers(&inside, from, until).is_none());
        gap = match (gap, waits) {
            (Some((since, _, _)), Some(who)) => Some((since, until, who)),
            (None, Some(who)) => Some((from, until, who)),
            (_, None) => None,
        };
        if let Some((since, until, who)) = &gap
            && worst.as_ref().is_none_or(|(a, b, _)| *b - *a < *until - *since)
        {
            worst = Some((*since, *until, who.clone()));
        }
    }
    let (from, until, who) = worst.filter(|(from, until, _)| *until - *from > limit)?;
    let what = format!(
        "From {} on {who} waited {} for a lock that no client used.",
        Seconds(from),
        Seconds(until - from)
    );
    Some(Harm { what, label: "waits indefinitely", from, until })
}

/// Only a client that came clearly later counts: requests of two processes may cross on their way.
fn out_of_turn(events: &[Event], limit: usize, clearly: Duration) -> Option<Harm> {
    let waits = waiting(events);
    let overtakers = |span: &Span| {
        waits.iter().filter(|other| other.from > span.from + clearly && other.until < span.until).count()
    };
    let (worst, count) = waits.iter().map(|span| (span, overtakers(span))).max_by_key(|(_, count)| *count)?;
    (count > limit).then(|| Harm {
        what: format!(
            "{} came at {} and waited {}: {count} that came more than {} later acquired the lock first.",
            worst.lane,
            Seconds(worst.from),
            Seconds(worst.until - worst.from),
            Seconds(clearly)
        ),
        label: "is overtaken",
        from: worst.from,
        until: worst.until,
    })
}

fn too_many_requests(events: &[Event], each: u64) -> Option<Harm> {
    let (requests, at) = events.iter().rev().find_map(|event| match event.what {
        What::Requests(count) => Some((count, event.at)),
        _ => None,
    })?;
    let since = events.iter().find(|event| matches!(event.what, What::Requests(_)))?.at;
    let entries = inside(events).iter().filter(|span| span.from >= since).count();
    let mean = requests / u64::try_from(entries).expect("BUG: a small number").max(1);
    (mean > each).then(|| Harm {
        what: format!("The server was asked {requests} times for {entries} entries, {mean} times for each."),
        label: "all poll",
        from: since,
        until: at,
    })
}

/// A time as a person reads it.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(1) {
            write!(f, "{} ms", self.0.as_millis())
        } else {
            write!(f, "{:.1} s", self.0.as_secs_f64())
        }
    }
}

/// Each rule with a history that breaks it and one that does not.
#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(1);

    /// Events from lines such as "10 A enters".
    fn events(lines: &[(u64, &str, What)]) -> Vec<Event> {
        let event = |(ms, lane, what): &(u64, &str, What)| Event {
            at: Duration::from_millis(*ms),
            lane: (*lane).to_owned(),
            what: what.clone(),
        };
        lines.iter().map(event).collect()
    }

    fn verdict(rule: Rule, lines: &[(u64, &str, What)]) -> Option<String> {
        judge(&[rule], &events(lines), TTL).pop().map(|harm| harm.what)
    }

    fn write(is_taken: bool) -> What {
        What::Writes { text: "w".into(), is_taken }
    }

    #[test]
    fn two_that_work_at_once_are_seen_and_one_that_is_stopped_does_not_work() {
        use What::{Dies, Enters, GoesOn, Leaves, Stops};
        let both = [(10, "A", Enters), (500, "B", Enters), (800, "A", Leaves), (900, "B", Leaves)];
        let said = verdict(Rule::OneAtATime, &both).expect("they overlap");
        assert_eq!(said, "A and B worked at the same time, from 500 ms for 300 ms.");
        for after in [Leaves, What::Abandons, What::Hears { by_clock: true }, Dies] {
            let turns =
                [(10, "A", Enters), (400, "A", after.clone()), (500, "B", Enters), (900, "B", Leaves)];
            assert_eq!(verdict(Rule::OneAtATime, &turns), None);
        }
        let stopped = [
            (10, "A", Enters),
            (400, "A", Stops),
            (500, "B", Enters),
            (600, "B", Leaves),
            (700, "A", GoesOn),
            (900, "A", Leaves),
        ];
        assert_eq!(verdict(Rule::OneAtATime, &stopped), None);
        let on = [
            (10, "A", Enters),
            (400, "A", Stops),
            (500, "B", Enters),
            (600, "A", GoesOn),
            (700, "A", Leaves),
        ];
        assert!(verdict(Rule::OneAtATime, &on).is_some());
    }

    #[test]
    fn a_write_over_that_of_a_later_holder_is_late() {
        use What::Enters;
        let late = |is_taken| {
            [
                (1, "A", Enters),
                (2, "A", write(true)),
                (3, "B", Enters),
                (4, "B", write(true)),
                (5, "A", write(is_taken)),
            ]
        };
        assert!(verdict(Rule::NoLateWrite, &late(true)).is_some());
        assert_eq!(verdict(Rule::NoLateWrite, &late(false)), None);
        let again = [
            (1, "A", Enters),
            (2, "B", Enters),
            (3, "B", write(true)),
            (4, "A", Enters),
            (5, "A", write(true)),
        ];
        assert_eq!(verdict(Rule::NoLateWrite, &again), None, "it had the lock again");
    }

    #[test]
    fn an_addition_that_was_taken_and_is_not_there_is_lost() {
        let adds = |sum| {
            [
                (1, "A", What::Adds { is_taken: true }),
                (2, "B", What::Adds { is_taken: true }),
                (3, "row", What::Sum(sum)),
            ]
        };
        assert!(verdict(Rule::NoLostUpdate, &adds(1)).is_some());
        assert_eq!(verdict(Rule::NoLostUpdate, &adds(2)), None);
    }

    #[test]
    fn somebody_who_waits_for_nobody_is_not_served() {
        use What::{Asks, Dies, Enters, Leaves, Note};
        let rule = Rule::Served { ttls: 1.5 };
        let waits = |ends| {
            [
                (0, "A", Enters),
                (100, "B", Asks),
                (200, "A", Dies),
                (ends, "B", Enters),
                (ends + 1, "B", Leaves),
            ]
        };
        assert!(verdict(rule, &waits(1800)).is_some());
        assert_eq!(verdict(rule, &waits(1600)), None);
        let for_ever =
            [(0, "A", Enters), (100, "B", Asks), (200, "A", Dies), (3000, "B", Note(String::new()))];
        assert!(verdict(rule, &for_ever).is_some());
        let worked = [(0, "A", Enters), (100, "B", Asks), (2900, "A", Leaves), (3000, "B", Enters)];
        assert_eq!(verdict(rule, &worked), None, "somebody was inside");
    }

    #[test]
    fn who_is_overtaken_by_many_is_out_of_turn() {
        use What::{Asks, Enters, Leaves};
        let turns = |first: &'static str, last: &'static str| {
            let leave = |ms, who| [(ms, who, Enters), (ms + 1, who, Leaves)];
            [vec![(0, "A", Asks), (300, "B", Asks)], leave(500, first).to_vec(), leave(800, last).to_vec()]
                .concat()
        };
        assert!(verdict(Rule::InTurn { overtaken: 0 }, &turns("B", "A")).is_some());
        assert_eq!(verdict(Rule::InTurn { overtaken: 0 }, &turns("A", "B")), None);
        assert_eq!(verdict(Rule::InTurn { overtaken: 1 }, &turns("B", "A")), None);
    }

    #[test]
    fn a_server_that_is_asked_too_often_is_counted_for_each_entry() {
        use What::{Enters, Leaves, Requests};
        let asked = |count| {
            [(0, "server", Requests(0)), (0, "A", Enters), (1, "A", Leaves), (2, "server", Requests(count))]
        };
        assert!(verdict(Rule::Requests { each: 5 }, &asked(6)).is_some());
        assert_eq!(verdict(Rule::Requests { each: 5 }, &asked(5)), None);
    }
}
