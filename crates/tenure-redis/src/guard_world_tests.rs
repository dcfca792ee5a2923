//! The rules of the guard against every history of a small world: one lock, two clients, ticks of a second. `max_ttl` is two
//! ticks and every lease is that long. The server may restart empty or from its copy, be replaced by a copy that is older,
//! be flushed, and forget its history. L1 is broken when a client is granted while another one believes.

use std::collections::{HashSet, VecDeque};

use super::*;

const NOW: Duration = Duration::from_secs(1_000_000);
const NONE: Duration = Duration::ZERO;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    run: u8,
    replid: u8,
    promoted: bool,
    up: u8,
    lossy: bool,
    data: Data,
    /// What an asynchronous replica, or an older snapshot, has.
    copy: Data,
    clients: [Client; 2],
    faults: u8,
    age: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Data {
    /// The holder and its ticks left.
    lock: Option<(u8, u8)>,
    record: Option<(u8, u8, u8, bool)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    /// Ticks it still believes.
    believes: u8,
    /// The run and history its connection has passed.
    gate: Option<(u8, u8)>,
    seen: u8,
    claims: u8,
}

const TICKS: u8 = 2;

type Rule = fn(&Terms, &Facts, Option<&Record>) -> Decision;

struct Rules {
    decide: Rule,
    faults: u8,
}

fn id(n: u8) -> String {
    n.to_string()
}

fn ticks(d: Duration) -> u8 {
    // A wait is over at the tick that is not before its end.
    u8::try_from(d.as_millis().div_ceil(1000)).unwrap()
}

impl World {
    fn check(&self, rules: &Rules, who: usize) -> Option<Self> {
        let max_ttl = Duration::from_secs(u64::from(TICKS));
        let terms = Terms { mode: GuardMode::On, max_ttl, db: 0, quorum: None };
        let facts = Facts {
            run_id: id(self.run),
            replid: id(self.replid),
            is_master: true,
            is_promoted: self.promoted,
            up: Duration::from_secs(u64::from(self.up)),
            is_lossy: self.lossy,
            is_reset: false,
            backlog_ttl: Some(NONE),
            was_seen: self.clients[who].seen == self.run,
            now: NOW,
        };
        let record = self.data.record.map(|(run, replid, wait, is_open)| Record {
            run_id: id(run),
            replid: id(replid),
            ready: NOW + Duration::from_secs(u64::from(wait)),
            settings: terms.to_string(),
            next: None,
            is_open,
        });
        let mut next = self.clone();
        let wait = match (rules.decide)(&terms, &facts, record.as_ref()) {
            Decision::Open => 0,
            Decision::Wait(wait) | Decision::Write { wait, .. } => ticks(wait),
            Decision::Refuse(_) => return None,
        };
        next.data.record = Some((self.run, self.replid, wait, wait == 0));
        if wait == 0 {
            next.clients[who].gate = Some((self.run, self.replid));
            next.clients[who].seen = self.run;
        }
        Some(next)
    }

    /// Granted if the gate is open for the connection; `Err` if another client believes.
    fn claim(&self, who: usize) -> Option<Result<Self, ()>> {
        let client = &self.clients[who];
        let (run, replid) = client.gate?;
        let is_open = self.data.record == Some((run, replid, 0, true));
        if !is_open || self.data.lock.is_some() || client.believes > 0 || client.claims == 0 {
            return None;
        }
        if self.clients[1 - who].believes > 0 {
            return Some(Err(()));
        }
        let mut next = self.clone();
        next.data.lock = Some((u8::try_from(who).unwrap(), TICKS));
        next.clients[who].believes = TICKS;
        next.clients[who].claims -= 1;
        Some(Ok(next))
    }

    fn tick(&self) -> Self {
        let mut next = self.clone();
        next.up = (self.up + 1).min(9);
        for data in [&mut next.data, &mut next.copy] {
            data.lock = data.lock.and_then(|(who, left)| (left > 1).then_some((who, left - 1)));
        }
        if let Some((_, _, wait, _)) = &mut next.data.record {
            *wait = wait.saturating_sub(1);
        }
        if let Some((_, _, wait, _)) = &mut next.copy.record {
            *wait = wait.saturating_sub(1);
        }
        for client in &mut next.clients {
            client.believes = client.believes.saturating_sub(1);
        }
        next.age += 1;
        next
    }

    fn faults(&self) -> Vec<Self> {
        let mut out = Vec::new();
        let fault = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            next.faults -= 1;
            change(&mut next);
            next
        };
        let process = |world: &mut Self, data: Data, promoted: bool| {
            (world.run, world.replid) = (world.run + 1, world.replid + 1);
            (world.promoted, world.lossy) = (promoted, false);
            // A replica has been up for long; its claim to that is the trap.
            world.up = if promoted { 9 } else { 0 };
            world.data = data.clone();
            world.copy = data;
            world.clients.iter_mut().for_each(|client| client.gate = None);
        };
        out.push(fault(&|w| process(w, Data::default(), false)));
        out.push(fault(&|w| process(w, w.copy.clone(), false)));
        out.push(fault(&|w| process(w, w.copy.clone(), true)));
        out.push(fault(&|w| {
            w.data = Data::default();
            w.lossy = true;
        }));
        out.push(fault(&|w| w.replid += 1));
        out
    }

    fn next(&self, rules: &Rules) -> Result<Vec<Self>, ()> {
        let mut out = vec![Self { copy: self.data.clone(), ..self.clone() }];
        if self.age < 9 {
            out.push(self.tick());
        }
        for who in 0..2 {
            out.extend(self.check(rules, who));
            if let Some(claimed) = self.claim(who) {
                out.push(claimed?);
            }
        }
        if self.faults > 0 {
            out.extend(self.faults());
        }
        Ok(out)
    }
}

/// How many worlds there are, or that L1 breaks in one.
fn explore(rules: &Rules) -> Result<usize, ()> {
    let client = Client { claims: 2, ..Client::default() };
    let first = World {
        run: 1,
        replid: 1,
        promoted: false,
        up: 9,
        lossy: false,
        data: Data::default(),
        copy: Data::default(),
        clients: [client.clone(), client],
        faults: rules.faults,
        age: 0,
    };
    let (mut seen, mut open) = (HashSet::from([first.clone()]), VecDeque::from([first]));
    while let Some(world) = open.pop_front() {
        for next in world.next(rules)? {
            if seen.insert(next.clone()) {
                open.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

/// L1 in every history of two faults.
#[test]
fn no_history_of_two_faults_lets_two_in() {
    let worlds = explore(&Rules { decide, faults: 2 }).expect("L1 broke");
    assert!(worlds > 50_000, "only {worlds} worlds were looked at");
}

/// The model bites: each of these rules, taken wrongly, breaks L1.
#[test]
fn every_shortcut_taken_wrongly_lets_two_in() {
    fn promoted_is_restarted(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
        decide(terms, &Facts { is_promoted: false, ..facts.clone() }, record)
    }
    fn missing_is_unused(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
        decide(terms, &Facts { is_lossy: false, was_seen: false, ..facts.clone() }, record)
    }
    fn uptime_without_end(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
        decide(terms, &Facts { up: Duration::from_secs(99), ..facts.clone() }, record)
    }
    fn no_guard(terms: &Terms, facts: &Facts, _: Option<&Record>) -> Decision {
        decide(&Terms { mode: GuardMode::Off, ..*terms }, facts, None)
    }
    fn backlog_clears_a_wait(terms: &Terms, facts: &Facts, record: Option<&Record>) -> Decision {
        match decide(terms, facts, record) {
            Decision::Write { why: Why::BacklogOver, settings, .. } => {
                write(Why::BacklogOver, NONE, settings)
            }
            other => other,
        }
    }
    let wrong: [(&str, Rule); 5] = [
        ("a promoted server is taken for a restarted one", promoted_is_restarted),
        ("a missing record is taken for an unused server", missing_is_unused),
        ("the time since the start is not looked at", uptime_without_end),
        ("there is no guard", no_guard),
        ("the end of the backlog ends a wait", backlog_clears_a_wait),
    ];
    for (what, decide) in wrong {
        assert!(explore(&Rules { decide, faults: 2 }).is_err(), "{what}, and the model did not notice");
    }
}
