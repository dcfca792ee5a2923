//! One history as a picture: a lane for each lock and process, and for each server.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
    time::Duration,
};

use tenure_core::OwnerId;
use tenure_picture::{Bar, Lane, Look, Mark, Picture, Shade, Sign};
use tenure_sim::{Event, GrantId, LockId, Outcome, Served, What};

/// The part of a history in this window.
pub(crate) fn picture(title: &str, outcome: &Outcome, window: &Range<Duration>) -> Picture {
    let mut drawing = Drawing { window: window.clone(), ..Drawing::default() };
    for event in &outcome.events {
        drawing.add(event);
    }
    drawing.close(outcome.simulated.min(window.end));
    for violation in &outcome.violations {
        let at = Duration::from_micros(violation.at);
        let from = at.saturating_sub(HARM);
        drawing.shades.extend(drawing.within(from, at + HARM).map(|(from, until)| Shade {
            from,
            until,
            label: format!("{}: {}", violation.law, violation.what),
        }));
    }
    let span = window.end.min(outcome.simulated).saturating_sub(window.start);
    Picture {
        id: "history".into(),
        title: title.to_owned(),
        description: format!("{title}, {} events", outcome.events.len()),
        span,
        width: span.as_secs_f64() * PER_SECOND,
        begins: window.start,
        lanes: drawing.lanes.into_iter().map(|(key, lane)| Lane { name: key.2, ..lane }).collect(),
        shades: drawing.shades,
    }
}

/// The order on the page, a number, the name.
type Key = (u8, u64, String);

/// Something that has not ended yet, and its lane.
struct Open {
    lane: Key,
    from: Duration,
    look: Look,
    label: String,
}

#[derive(Default)]
struct Drawing {
    window: Range<Duration>,
    lanes: BTreeMap<Key, Lane>,
    shades: Vec<Shade>,
    asks: BTreeMap<usize, Open>,
    grants: BTreeMap<GrantId, Open>,
    held: BTreeMap<(usize, LockId, OwnerId), Open>,
    processes: BTreeMap<OwnerId, String>,
}

impl Drawing {
    fn add(&mut self, event: &Event) {
        let at = Duration::from_micros(event.at);
        match &event.what {
            What::Asked { ask, process, lock, .. } => {
                let open = Open {
                    lane: client(*lock, *process),
                    from: at,
                    look: Look::Waits,
                    label: "waits".into(),
                };
                self.asks.insert(*ask, open);
            }
            What::NotEntered { ask, .. } => self.end_ask(*ask, at),
            What::Entered { ask, grant, process, lock, owner, .. } => {
                self.end_ask(*ask, at);
                self.processes.insert(*owner, format!("p{process}"));
                let open = Open {
                    lane: client(*lock, *process),
                    from: at,
                    look: Look::Believes,
                    label: String::new(),
                };
                self.grants.insert(*grant, open);
            }
            What::Lost { grant } => {
                let lane = self.grants.get(grant).map(|open| open.lane.clone());
                self.mark(lane, at, Sign::Note, "knows that its lease is lost".into());
                self.end_grant(*grant, at);
            }
            What::Left { grant, .. } => self.end_grant(*grant, at),
            What::Wrote { grant, token, is_accepted: false, .. } => {
                let lane = self.grants.get(grant).map_or_else(resource, |open| open.lane.clone());
                self.mark(
                    Some(lane),
                    at,
                    Sign::Refused,
                    format!("writes with token {token}, and is refused"),
                );
            }
            What::Served { node, lock, owner, did, .. } => self.served(at, (*node, *lock, *owner), did),
            What::Fault(words) => self.mark(Some(faults()), at, Sign::Fault, words.clone()),
            What::Healed => self.mark(Some(faults()), at, Sign::Note, "are over".into()),
            _ => {}
        }
    }

    fn served(&mut self, at: Duration, place: (usize, LockId, OwnerId), did: &Served) {
        let (node, lock, owner) = place;
        match did {
            Served::Granted { .. } | Served::Recreated => {
                let lane = (2, node as u64 * 65_536 + u64::from(lock), format!("n{node} {}", letter(lock)));
                if let Entry::Vacant(entry) = self.held.entry(place) {
                    entry.insert(Open { lane, from: at, look: Look::Holds, label: String::new() });
                }
            }
            Served::Left(_) | Served::Renewed(false) | Served::Robbed(_) => {
                let label = self.processes.get(&owner).cloned().unwrap_or_default();
                if let Some(open) = self.held.remove(&place) {
                    self.bar(Open { label, ..open }, at);
                }
            }
            Served::Queued { .. }
            | Served::Refused
            | Served::Renewed(true)
            | Served::Noted { .. }
            | Served::Raised(_) => {}
        }
    }

    fn end_ask(&mut self, ask: usize, at: Duration) {
        if let Some(open) = self.asks.remove(&ask) {
            self.bar(open, at);
        }
    }

    fn end_grant(&mut self, grant: GrantId, at: Duration) {
        if let Some(open) = self.grants.remove(&grant) {
            self.bar(open, at);
        }
    }

    /// What has not ended ends with the history. Leases on servers that no client released have their own end, and are left
    /// out.
    fn close(&mut self, at: Duration) {
        let asks = std::mem::take(&mut self.asks).into_values();
        let open: Vec<Open> = asks.chain(std::mem::take(&mut self.grants).into_values()).collect();
        open.into_iter().for_each(|open| self.bar(open, at));
    }

    fn bar(&mut self, open: Open, until: Duration) {
        if let Some((from, until)) = self.within(open.from, until) {
            let bar = Bar { from, until, look: open.look, label: open.label };
            self.lanes.entry(open.lane).or_default().bars.push(bar);
        }
    }

    fn mark(&mut self, lane: Option<Key>, at: Duration, sign: Sign, label: String) {
        if let (Some(lane), true) = (lane, self.window.contains(&at)) {
            let mark = Mark { at: at - self.window.start, sign, label };
            self.lanes.entry(lane).or_default().marks.push(mark);
        }
    }

    /// The part of a time that is in the window, counted from its beginning.
    fn within(&self, from: Duration, until: Duration) -> Option<(Duration, Duration)> {
        let (from, until) = (from.max(self.window.start), until.min(self.window.end));
        (from <= until).then(|| (from - self.window.start, until - self.window.start))
    }
}

fn client(lock: LockId, process: usize) -> Key {
    (1, u64::from(lock) * 65_536 + process as u64, format!("{} p{process}", letter(lock)))
}

fn faults() -> Key {
    (0, 0, "faults".into())
}

/// The lane of late writes: their program has already left.
fn resource() -> Key {
    (3, 0, "resource".into())
}

/// The name of a lock: `a`, or `a#1` for a slot.
fn letter(lock: LockId) -> String {
    let (letter, slot) = (lock / 256, lock % 256);
    let letter = char::from(b'a' + u8::try_from(letter % 26).expect("BUG: below 26"));
    if slot == 0 { letter.to_string() } else { format!("{letter}#{slot}") }
}

/// How wide a second is.
const PER_SECOND: f64 = 40.0;
/// Around the instant at which a law broke.
const HARM: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use tenure_sim::{Law, PlanKind, Violation, WorldKind, run};

    use super::*;

    #[test]
    fn a_history_has_lanes_of_clients_servers_and_faults_and_a_broken_law_is_shaded() {
        let mut outcome = run(WorldKind::Redis, PlanKind::Pauses, 5);
        let (from, until) = (Duration::from_secs(10), Duration::from_secs(60));
        outcome.violations.push(Violation { law: Law::ALL[0], at: 30_000_000, what: "two hold".into() });
        let picture = picture("a history", &outcome, &(from..until));
        let lane = |word: &str| picture.lanes.iter().find(|lane| lane.name.starts_with(word));
        assert!(lane("faults").is_some_and(|lane| !lane.marks.is_empty()), "{:?}", picture.lanes);
        assert!(lane("a p").is_some_and(|lane| !lane.bars.is_empty()));
        assert!(lane("n0").is_some_and(|lane| lane.bars.iter().all(|bar| bar.look == Look::Holds)));
        let bars = picture.lanes.iter().flat_map(|lane| &lane.bars);
        assert!(bars.into_iter().all(|bar| bar.from <= bar.until && bar.until <= until - from));
        assert_eq!(picture.shades[0].from, Duration::from_millis(19_900));
        let svg = picture.svg();
        assert!(svg.contains("two hold") && svg.contains("waits"), "{svg}");
    }
}
