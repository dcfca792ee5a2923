//! The rules of the guard: each alone, and all of them against every history of a small world.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::*;

const MAX: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(1_000_000);

fn terms(mode: GuardMode) -> Terms {
    Terms { mode, max_ttl: MAX }
}

fn facts() -> Facts {
    Facts {
        run_id: "run".into(),
        replid: "history".into(),
        is_master: true,
        is_promoted: false,
        up: Duration::from_secs(3600),
        is_lossy: false,
        is_reset: false,
        backlog_ttl: Some(Duration::from_secs(3600)),
        was_seen: false,
        now: NOW,
    }
}

fn record() -> Record {
    let (run_id, replid, settings) = ("run".into(), "history".into(), terms(GuardMode::On).to_string());
    Record { run_id, replid, ready: Duration::ZERO, settings, next: None, is_open: true }
}

#[track_caller]
fn waits(mode: GuardMode, facts: &Facts, record: Option<&Record>, expected: (Why, Duration)) {
    match decide(&terms(mode), facts, record) {
        Decision::Write { why, wait, .. } => assert_eq!((why, wait), expected),
        other => panic!("{other:?}"),
    }
}

const NONE: Duration = Duration::ZERO;

#[test]
fn an_open_gate_of_this_process_and_history_stays_open() {
    for mode in [GuardMode::On, GuardMode::Strict] {
        assert_eq!(decide(&terms(mode), &facts(), Some(&record())), Decision::Open);
    }
}

/// H4.3, hazard 21.
#[test]
fn a_restarted_server_waits_from_its_start() {
    let other = Record { run_id: "before".into(), ..record() };
    for (up, left) in [(0, 32), (5, 27), (31, 1), (32, 0), (9999, 0)] {
        let facts = Facts { up: Duration::from_secs(up), ..facts() };
        waits(GuardMode::On, &facts, Some(&other), (Why::Restarted, Duration::from_secs(left)));
    }
}

/// Hazard 8, model `guard.uptime_shortcut_for_promoted`: it may have been a replica for days.
#[test]
fn a_promoted_server_waits_in_full_however_long_it_has_been_up() {
    let promoted = Facts { is_promoted: true, ..facts() };
    for record in [
        Record { run_id: "before".into(), ..record() },
        Record { replid: "before".into(), ..record() },
        Record { run_id: "before".into(), replid: "before".into(), ..record() },
    ] {
        waits(GuardMode::On, &promoted, Some(&record), (Why::Promoted, MAX));
    }
    waits(GuardMode::On, &promoted, None, (Why::Missing, MAX));
}

/// Model `guard.backlog_rule_clears_a_wait`, `guard.backlog_ttl_below_max_ttl`.
#[test]
fn a_history_that_was_forgotten_keeps_a_wait_that_had_begun() {
    let old =
        Record { replid: "before".into(), ready: NOW + Duration::from_secs(7), is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&old), (Why::BacklogOver, Duration::from_secs(7)));
    let done = Record { ready: NONE, ..old.clone() };
    waits(GuardMode::On, &facts(), Some(&done), (Why::BacklogOver, NONE));
    for backlog_ttl in [None, Some(Duration::from_secs(31))] {
        let facts = Facts { backlog_ttl, ..facts() };
        waits(GuardMode::On, &facts, Some(&done), (Why::Promoted, MAX));
        let restarted = Record { run_id: "before".into(), ..record() };
        waits(GuardMode::On, &facts, Some(&restarted), (Why::Promoted, MAX));
        waits(GuardMode::On, &facts, None, (Why::Missing, MAX));
    }
    let for_ever = Facts { backlog_ttl: Some(NONE), ..facts() };
    waits(GuardMode::On, &for_ever, Some(&done), (Why::BacklogOver, NONE));
}

/// A server that was started a moment ago may have forgotten what was granted before; it has granted nothing since.
#[test]
fn a_young_server_without_a_record_waits_from_its_start() {
    for (up, left) in [(0, 32), (20, 12), (31, 1)] {
        let facts = Facts { up: Duration::from_secs(up), ..facts() };
        waits(GuardMode::On, &facts, None, (Why::Restarted, Duration::from_secs(left)));
        waits(GuardMode::Strict, &facts, None, (Why::Missing, MAX));
    }
    waits(GuardMode::On, &Facts { up: MAX + SLACK, ..facts() }, None, (Why::Unused, NONE));
}

/// H4.1, H4.2, hazards 35 and 37; models `guard.missing_is_unused`, `guard.config_resetstat_hides_flush`.
#[test]
fn without_a_record_only_evidence_spares_the_wait() {
    waits(GuardMode::On, &facts(), None, (Why::Unused, NONE));
    waits(GuardMode::Strict, &facts(), None, (Why::Missing, MAX));
    for evidence in [
        Facts { is_promoted: true, ..facts() },
        Facts { is_lossy: true, ..facts() },
        Facts { is_reset: true, ..facts() },
        Facts { was_seen: true, ..facts() },
    ] {
        waits(GuardMode::On, &evidence, None, (Why::Missing, MAX));
    }
}

#[test]
fn a_wait_goes_on_where_it_is_and_its_end_does_not_move() {
    let waiting = Record { ready: NOW + Duration::from_secs(9), is_open: false, ..record() };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&waiting)),
        Decision::Wait(Duration::from_secs(9))
    );
    let over = Record { ready: NOW, is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&over), (Why::Waiting, NONE));
}

/// Hazard 19: a step back of the clock costs one wait, not the size of the step.
#[test]
fn a_step_back_of_the_clock_does_not_close_the_gate_for_long() {
    let far = Record { ready: NOW + Duration::from_secs(86_400), is_open: false, ..record() };
    waits(GuardMode::On, &facts(), Some(&far), (Why::Waiting, MAX + SLACK));
}

/// H4.5.
#[test]
fn other_settings_are_refused_and_both_are_named() {
    let theirs = Record { settings: "guard=on max_ttl=1m".into(), ..record() };
    let Decision::Refuse(Refusal::Mismatch { theirs, ours }) =
        decide(&terms(GuardMode::On), &facts(), Some(&theirs))
    else {
        panic!("was not refused")
    };
    assert_eq!((theirs.as_str(), ours.as_str()), ("guard=on max_ttl=1m", "guard=on max_ttl=30s"));
    let unguarded = decide(&terms(GuardMode::Off), &facts(), Some(&record()));
    assert!(matches!(unguarded, Decision::Refuse(Refusal::Mismatch { .. })), "{unguarded:?}");
    let replica = decide(&terms(GuardMode::On), &Facts { is_master: false, ..facts() }, Some(&record()));
    assert_eq!(replica, Decision::Refuse(Refusal::NotMaster));
}

/// Leases of the old settings are over before any is granted under the new ones.
#[test]
fn adopting_waits_for_the_longest_lease_of_either_settings() {
    let theirs = Record { settings: "guard=on max_ttl=1m".into(), ..record() };
    let ours = terms(GuardMode::On).to_string();
    let minute = Duration::from_secs(60);
    let adopting = adopt(&terms(GuardMode::On), &facts(), Some(&theirs));
    assert_eq!(
        adopting,
        Decision::Write {
            why: Why::Adopting,
            wait: minute,
            settings: theirs.settings.clone(),
            next: Some(ours.clone())
        }
    );
    let under_way = Record {
        ready: NOW + Duration::from_secs(20),
        next: Some(ours.clone()),
        is_open: false,
        ..theirs.clone()
    };
    assert_eq!(
        decide(&terms(GuardMode::On), &facts(), Some(&under_way)),
        Decision::Wait(Duration::from_secs(20))
    );
    let old = Terms { mode: GuardMode::On, max_ttl: minute };
    assert!(
        matches!(decide(&old, &facts(), Some(&under_way)), Decision::Refuse(_)),
        "the others are out already"
    );
    let restarted = Facts { run_id: "new".into(), up: NONE, ..facts() };
    match decide(&terms(GuardMode::On), &restarted, Some(&under_way)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (minute + SLACK, theirs.settings.clone(), Some(ours.clone())));
        }
        other => panic!("{other:?}"),
    }
    let over = Record { ready: NOW, ..under_way };
    match decide(&terms(GuardMode::On), &facts(), Some(&over)) {
        Decision::Write { wait, settings, next, .. } => {
            assert_eq!((wait, settings, next), (NONE, ours, None))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_guard_nothing_waits() {
    let settings = terms(GuardMode::Off).to_string();
    waits(GuardMode::Off, &facts(), None, (Why::Unguarded, NONE));
    let other = Record { run_id: "before".into(), settings: settings.clone(), ..record() };
    waits(GuardMode::Off, &facts(), Some(&other), (Why::Unguarded, NONE));
    let ours = Record { settings, ..record() };
    assert_eq!(decide(&terms(GuardMode::Off), &facts(), Some(&ours)), Decision::Open);
}

// --- every history of a small world ---------------------------------------------------------------------------------

/// One lock, two clients, ticks of a second; `max_ttl` is two ticks and every lease is that long. The server may restart
/// empty or from its copy, be replaced by a copy that is older, be flushed, and forget its history. L1 is broken when a
/// client is granted while another one believes.
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

struct Rules {
    decide: fn(&Terms, &Facts, Option<&Record>) -> Decision,
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
        let terms = Terms { mode: GuardMode::On, max_ttl: Duration::from_secs(u64::from(TICKS)) };
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
    let wrong: [(&str, fn(&Terms, &Facts, Option<&Record>) -> Decision); 5] = [
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
