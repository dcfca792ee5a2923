//! The rules of the guard against every history of a small world: one lock, two clients, ticks of five
//! seconds. `max_ttl` is two ticks and every lease is that long. The server may restart empty or from its
//! copy, be replaced by a copy that is older, be flushed, and forget its history. After a fail-over the old
//! master may serve on, reached by either client, until it is demoted. The address may lead to another
//! server, a new one or one that others have used. L1 is broken when a client is granted while another one
//! believes.
//!
//! The clients may have different `max_ttl`: in a rollout those with the larger one are served under the smaller one, and
//! no lease is longer than that. One fault is survived then; A3 says what is not.

use std::collections::{HashSet, VecDeque};

use super::*;

const NOW: Duration = Duration::from_secs(1_000_000);
const NONE: Duration = Duration::ZERO;
const TICK: Duration = Duration::from_secs(5);
/// Of a lease, and of `max_ttl`.
const TICKS: u8 = 2;
/// Of a larger `max_ttl`.
const LARGER: u8 = 3;
/// Ages that make no difference any more.
const LONG: u8 = 3;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    main: Server,
    /// The master before it, which serves on.
    beside: Option<Server>,
    /// What an asynchronous replica, or an older snapshot, has.
    copy: Data,
    clients: [Client; 2],
    ids: u8,
    faults: u8,
    /// How often the operator may still adopt settings.
    adoptions: u8,
    age: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Server {
    run: u8,
    replid: u8,
    promoted: bool,
    up: u8,
    has_replica: bool,
    /// Sentinel knows what became of the one before it.
    is_watched: bool,
    /// It was used at another address before.
    is_strange: bool,
    data: Data,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Data {
    /// The holder and its ticks left.
    lock: Option<(u8, u8)>,
    record: Option<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Entry {
    run: u8,
    replid: u8,
    wait: u8,
    is_open: bool,
    /// Its `max_ttl`.
    max: u8,
    /// That which is being adopted.
    next: Option<u8>,
    /// Ticks since a replica acknowledged.
    acked: Option<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    /// Ticks it still believes.
    believes: u8,
    /// The run and history its connection has passed, and the `max_ttl` under which it is served there.
    gate: Option<(u8, u8, u8)>,
    /// The run it passed the gate of last.
    seen: u8,
    /// Another run that it saw later, and how long ago.
    moved: Option<(u8, u8)>,
    /// The `max_ttl` under which it was served last.
    served: Option<u8>,
    /// A larger one than its own that it saw in a record.
    longest: Option<u8>,
    claims: u8,
}

type Rule = fn(&Terms, &ServerFacts, Option<&ServerRecord>) -> Decision;

struct Rules {
    decide: Rule,
    /// Looks at the replicas before a claim.
    looks: bool,
    faults: u8,
    /// The `max_ttl` of each client.
    max: [u8; 2],
    /// That of the record at the start.
    recorded: u8,
    /// Both were served under the smaller one before.
    are_known: bool,
    /// A client takes leases of its own `max_ttl`, whatever the record allows.
    takes_its_own: bool,
    /// What the first client has adopted, once.
    adopts: Option<Adopt>,
    /// The smaller one is being adopted from the start, while the second client holds; the first has just looked.
    is_under_way: bool,
    /// A client forgets the settings that are being replaced.
    forgets_the_old: bool,
}

impl Rules {
    fn of(decide: Rule, looks: bool) -> Self {
        let max = [TICKS; 2];
        Self {
            decide,
            looks,
            faults: 2,
            max,
            recorded: TICKS,
            are_known: false,
            takes_its_own: false,
            adopts: None,
            is_under_way: false,
            forgets_the_old: false,
        }
    }
}

fn terms(max: u8) -> Terms {
    Terms { mode: GuardMode::On, max_ttl: TICK * u32::from(max), db: 0, quorum: None }
}

fn id(n: u8) -> String {
    n.to_string()
}

fn ticks(d: Duration) -> u8 {
    // A wait is over at the tick that is not before its end.
    u8::try_from(d.as_millis().div_ceil(TICK.as_millis())).unwrap()
}

fn ago(ticks: u8) -> Duration {
    NOW - TICK * u32::from(ticks)
}

impl Server {
    fn acked(&self) -> Option<Duration> {
        self.has_replica.then_some(NOW)
    }

    fn is_alone(&self) -> bool {
        let before = self.data.record.and_then(|record| record.acked).map(ago);
        is_alone(NOW, self.acked(), before)
    }

    fn facts(&self, predecessor: Predecessor, moved: Option<Duration>) -> ServerFacts {
        ServerFacts {
            run_id: id(self.run),
            replid: id(self.replid),
            is_master: true,
            is_promoted: self.promoted,
            up: TICK * u32::from(self.up),
            is_lossy: false,
            backlog_ttl: Some(NONE),
            acked: self.acked(),
            predecessor,
            moved,
            served: None,
            longest: None,
            now: NOW,
        }
    }

    fn record(&self) -> Option<ServerRecord> {
        self.data.record.map(|it| ServerRecord {
            run_id: id(it.run),
            replid: id(it.replid),
            ready: NOW + TICK * u32::from(it.wait),
            wait: TICK * u32::from(it.wait),
            renews: NONE,
            settings: terms(it.max).into(),
            next: it.next.map(|max| terms(max).into()),
            acked: it.acked.map(ago),
            is_open: it.is_open,
        })
    }

    fn write(&mut self, wait: u8, (max, next): (u8, Option<u8>), acked: Option<Duration>) {
        let (run, replid, acked) = (self.run, self.replid, acked.map(|at| ticks(NOW - at)));
        self.data.record = Some(Entry { run, replid, wait, is_open: wait == 0, max, next, acked });
    }

    fn tick(&mut self) {
        self.up = (self.up + 1).min(LONG);
        let has_replica = self.has_replica;
        self.data.tick();
        // Somebody looks all the time.
        if let Some(Entry { acked: Some(acked), .. }) = &mut self.data.record {
            *acked = if has_replica { 0 } else { (*acked + 1).min(LONG) };
        }
    }
}

impl Data {
    fn tick(&mut self) {
        self.lock = self.lock.and_then(|(who, left)| (left > 1).then_some((who, left - 1)));
        if let Some(Entry { wait, .. }) = &mut self.record {
            *wait = wait.saturating_sub(1);
        }
    }
}

impl World {
    fn server(&mut self, is_beside: bool) -> Option<&mut Server> {
        if is_beside { self.beside.as_mut() } else { Some(&mut self.main) }
    }

    /// A client that asks a Sentinel knows what became of the old master; others do not. One that adopts closes the gate.
    fn check(
        &self,
        rules: &Rules,
        who: usize,
        (is_beside, asks_sentinel): (bool, bool),
        adopts: Option<Adopt>,
    ) -> Option<Self> {
        let terms = terms(rules.max[who]);
        let mut next = self.clone();
        let client = &mut next.clients[who];
        let server = if is_beside { self.beside.clone()? } else { self.main.clone() };
        let predecessor = match &self.beside {
            _ if !asks_sentinel || is_beside || !server.is_watched => Predecessor::Unknown,
            Some(_) => Predecessor::Serving,
            None => Predecessor::Demoted,
        };
        // Of a fail-over a client with an address of its own for each server sees nothing.
        let mut moved = None;
        if server.is_strange && client.seen != 0 && client.seen != server.run {
            let since = client.moved.filter(|(run, _)| *run == server.run).map_or(0, |(_, since)| since);
            client.moved = Some((server.run, since));
            moved = Some(TICK * u32::from(since));
        }
        let record = server.record();
        let seen = if rules.forgets_the_old { ServerRecord::max_ttl } else { ServerRecord::longest_lease };
        let longest = record.as_ref().and_then(seen).map(ticks);
        client.longest = client.longest.max(longest.filter(|longest| *longest > rules.max[who]));
        let asked_for = record.as_ref().and_then(ServerRecord::max_ttl).map(ticks);
        client.served = asked_for.filter(|theirs| *theirs <= rules.max[who]).or(client.served);
        let mut facts = server.facts(predecessor, moved);
        facts.served = client.served.map(|it| TICK * u32::from(it));
        facts.longest = client.longest.map(|it| TICK * u32::from(it));
        let served = terms.served(&facts, record.as_ref());
        let served = served.map_or(rules.max[who], |served| ticks(served.max_ttl));
        let decision = match adopts {
            Some(how) => adopt(&terms, &facts, record.as_ref(), how),
            None => (rules.decide)(&terms, &facts, record.as_ref()),
        };
        match decision {
            Decision::Write { wait, settings, next: adopting, acked, .. } => {
                let wait = ticks(wait);
                let max = |settings: &RecordedTerms| match settings {
                    RecordedTerms::Known(terms) if terms.mode == GuardMode::On => ticks(terms.max_ttl),
                    _ => served,
                };
                let settings = (max(&settings), adopting.as_ref().map(max));
                next.server(is_beside)?.write(wait, settings, acked);
                if wait > 0 {
                    return Some(next);
                }
            }
            Decision::Open => {}
            Decision::Wait { .. } => return Some(next),
            // What it has seen it remembers.
            Decision::Refuse(_) => return (next != *self).then_some(next),
        }
        let client = &mut next.clients[who];
        client.gate = Some((server.run, server.replid, served));
        (client.seen, client.moved, client.longest) = (server.run, None, None);
        Some(next)
    }

    /// Granted if the gate is open for the connection; `Err` if another client believes.
    fn claim(&self, rules: &Rules, who: usize, is_beside: bool) -> Option<Result<Self, ()>> {
        let client = &self.clients[who];
        let (run, replid, max) = client.gate?;
        let server = if is_beside { self.beside.as_ref()? } else { &self.main };
        let is_open = server
            .data
            .record
            .is_some_and(|it| it.is_open && (it.run, it.replid, it.max) == (run, replid, max));
        // A connection leads to one process.
        let is_open = is_open && server.run == run;
        let is_busy = server.data.lock.is_some() || client.believes > 0 || client.claims == 0;
        if !is_open || is_busy || rules.looks && server.is_alone() {
            return None;
        }
        if self.clients[1 - who].believes > 0 {
            return Some(Err(()));
        }
        let mut next = self.clone();
        let lasts = if rules.takes_its_own { rules.max[who] } else { max };
        next.server(is_beside)?.data.lock = Some((u8::try_from(who).unwrap(), lasts));
        next.clients[who].believes = lasts;
        next.clients[who].claims -= 1;
        Some(Ok(next))
    }

    fn tick(&self) -> Self {
        let mut next = self.clone();
        next.main.tick();
        next.copy.tick();
        if let Some(server) = &mut next.beside {
            server.tick();
        }
        for client in &mut next.clients {
            client.believes = client.believes.saturating_sub(1);
            if let Some((_, since)) = &mut client.moved {
                *since = (*since + 1).min(LONG);
            }
        }
        next.age += 1;
        next
    }

    /// Another process takes the place of the main one.
    fn process(&mut self, data: Data, promoted: bool) {
        let run = self.ids;
        self.ids += 2;
        // A replica has been up for long; its claim to that is the trap.
        let up = if promoted { LONG } else { 0 };
        let (has_replica, is_watched, is_strange) = (!promoted, false, false);
        self.copy = data.clone();
        self.main = Server { run, replid: run + 1, promoted, up, has_replica, is_watched, is_strange, data };
    }

    fn is_led_elsewhere(&mut self, data: Data) {
        self.process(data, false);
        (self.main.up, self.main.is_strange) = (LONG, true);
        self.close();
    }

    fn close(&mut self) {
        self.beside = None;
        self.clients.iter_mut().for_each(|client| client.gate = None);
    }

    fn faults(&self) -> Vec<Self> {
        let mut out = Vec::new();
        let mut fault = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            next.faults -= 1;
            change(&mut next);
            out.push(next);
        };
        let dies = |w: &mut Self, data: Data, promoted: bool| {
            w.process(data, promoted);
            w.close();
        };
        fault(&|w| dies(w, Data::default(), false));
        fault(&|w| dies(w, w.copy.clone(), false));
        fault(&|w| dies(w, w.copy.clone(), true));
        fault(&|w| w.main.data = Data::default());
        fault(&|w| {
            w.main.replid = w.ids;
            w.ids += 1;
        });
        // As `SENTINEL FAILOVER` does. A server that lost its record and its replicas before anybody looked
        // again does not know that it had any: only the demotion stops it, and that has no bound here.
        let knows = self.main.data.record.is_some_and(|record| record.acked.is_some());
        if self.beside.is_none() && self.main.has_replica && knows {
            fault(&|w| {
                let mut old = w.main.clone();
                old.has_replica = false;
                w.process(w.copy.clone(), true);
                (w.beside, w.main.is_watched) = (Some(old), true);
            });
        }
        fault(&|w| w.is_led_elsewhere(Data::default()));
        // Backups are restored elsewhere.
        fault(&|w| w.is_led_elsewhere(w.copy.clone()));
        // Only those who knew the other one can tell that this one, which grants, is none of theirs.
        if self.clients.iter().all(|client| client.seen == self.main.run) {
            fault(&|w| {
                w.is_led_elsewhere(Data::default());
                w.main.write(0, (TICKS, None), None);
            });
        }
        out
    }

    fn next(&self, rules: &Rules) -> Result<Vec<Self>, ()> {
        let mut out = vec![Self { copy: self.main.data.clone(), ..self.clone() }];
        if self.age < 6 {
            out.push(self.tick());
        }
        for who in 0..2 {
            for is_beside in [false, true] {
                out.extend(self.check(rules, who, (is_beside, false), None));
                if self.main.is_watched && !is_beside {
                    out.extend(self.check(rules, who, (is_beside, true), None));
                }
                if let Some(claimed) = self.claim(rules, who, is_beside) {
                    out.push(claimed?);
                }
            }
        }
        if self.beside.is_some() {
            // It is demoted.
            out.push(Self { beside: None, ..self.clone() });
        }
        if self.faults > 0 {
            out.extend(self.faults());
        }
        if rules.adopts.is_some() && self.adoptions > 0 {
            let adopting = Self { adoptions: self.adoptions - 1, ..self.clone() };
            out.extend(adopting.check(rules, 0, (false, false), rules.adopts));
        }
        Ok(out)
    }
}

/// How many worlds there are, or that L1 breaks in one.
fn explore(rules: &Rules) -> Result<usize, ()> {
    // They have seen the record before.
    let client = |max: u8| Client {
        claims: 1,
        served: Some(rules.recorded).filter(|recorded| rules.are_known && *recorded <= max),
        longest: Some(rules.recorded).filter(|recorded| rules.are_known && *recorded > max),
        ..Client::default()
    };
    let (max, next) = (rules.recorded, None);
    let record = Some(Entry { run: 1, replid: 2, wait: 0, is_open: true, max, next, acked: Some(0) });
    let main = Server {
        run: 1,
        replid: 2,
        promoted: false,
        up: LONG,
        has_replica: true,
        is_watched: false,
        is_strange: false,
        data: Data { lock: None, record },
    };
    let mut first = World {
        main,
        beside: None,
        copy: Data::default(),
        clients: rules.max.map(client),
        ids: 3,
        faults: rules.faults,
        adoptions: 1,
        age: 0,
    };
    if rules.is_under_way {
        first.main.write(LARGER, (LARGER, Some(TICKS)), Some(NOW));
        first.main.data.lock = Some((1, LARGER));
        first.clients[1].believes = LARGER;
        first = first.check(rules, 0, (false, false), None).expect("it waits");
    }
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
    let worlds = explore(&Rules::of(decide, true)).expect("L1 broke");
    assert!(worlds > 50_000, "only {worlds} worlds were looked at");
}

/// L1, A3: while a larger `max_ttl` is rolled out, in every history of one fault, a flush among them; and of two, if the clients
/// were there before.
#[test]
fn no_history_lets_two_in_while_a_larger_max_ttl_is_rolled_out() {
    for (faults, are_known) in [(1, false), (2, true)] {
        let rules = Rules { faults, are_known, max: [TICKS, LARGER], ..Rules::of(decide, true) };
        let worlds = explore(&rules).expect("L1 broke");
        assert!(worlds > 2_000, "only {worlds} worlds were looked at");
        let greedy = Rules { takes_its_own: true, ..rules };
        assert!(
            explore(&greedy).is_err(),
            "a lease is longer than the record allows, and the model did not notice"
        );
    }
}

/// L1: in every history of one fault, while a larger `max_ttl` is adopted that all clients have, or a smaller one that one of them has.
#[test]
fn no_history_lets_two_in_while_another_max_ttl_is_adopted() {
    let base = || Rules { faults: 1, are_known: true, ..Rules::of(decide, true) };
    let raise = Rules { max: [LARGER; 2], adopts: Some(Adopt::LargerMaxTtl), ..base() };
    let lower = || {
        let (max, recorded) = ([TICKS, LARGER], LARGER);
        Rules { max, recorded, adopts: Some(Adopt::Settings), ..base() }
    };
    for rules in [raise, lower()] {
        let worlds = explore(&rules).expect("L1 broke");
        assert!(worlds > 2_000, "only {worlds} worlds were looked at");
    }
    let under_way = || Rules { is_under_way: true, are_known: false, ..lower() };
    explore(&under_way()).expect("L1 broke");
    let forgetful = Rules { forgets_the_old: true, ..under_way() };
    assert!(explore(&forgetful).is_err(), "the longer leases were forgotten, and the model did not notice");
}

/// What A3 leaves out: a record with the larger `max_ttl` is lost before a client with the smaller one has seen it.
#[test]
fn a_client_that_did_not_see_the_larger_max_ttl_waits_too_short() {
    let rules = Rules { max: [TICKS, LARGER], recorded: LARGER, faults: 1, ..Rules::of(decide, true) };
    assert!(explore(&rules).is_err());
}

// The rules of the guard taken wrongly: each lets two in somewhere in the small world.

fn promoted_is_restarted(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    decide(terms, &ServerFacts { is_promoted: false, ..facts.clone() }, record)
}

/// The rule before: who has been up for longer than any lease has forgotten none.
fn uptime_counts(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Missing | Why::Restarted, wait, settings, .. } if !facts.is_promoted => {
            write(Why::Missing, wait.saturating_sub(facts.up), NONE, settings)
        }
        other => other,
    }
}

fn missing_is_unused(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Missing, settings, .. } => write(Why::Missing, NONE, NONE, settings),
        other => other,
    }
}

fn no_guard(terms: &Terms, facts: &ServerFacts, _: Option<&ServerRecord>) -> Decision {
    decide(&Terms { mode: GuardMode::Off, ..*terms }, facts, None)
}

fn backlog_clears_a_wait(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::BacklogOver, settings, .. } => {
            write(Why::BacklogOver, NONE, NONE, settings)
        }
        other => other,
    }
}

/// The rule before: the old master is over when the new one begins.
fn no_demotion_wait(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    match decide(terms, facts, record) {
        Decision::Write { why: Why::Promoted, settings, .. } => {
            write(Why::Promoted, terms.max_ttl, NONE, settings)
        }
        other => other,
    }
}

fn all_are_demoted(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    decide(terms, &ServerFacts { predecessor: Predecessor::Demoted, ..facts.clone() }, record)
}

fn nobody_moved(terms: &Terms, facts: &ServerFacts, record: Option<&ServerRecord>) -> Decision {
    decide(terms, &ServerFacts { moved: None, ..facts.clone() }, record)
}

/// The model bites: each of these rules, taken wrongly, breaks L1.
#[test]
fn every_shortcut_taken_wrongly_lets_two_in() {
    let wrong: [(&str, Rule, bool); 9] = [
        ("a promoted server is taken for a restarted one", promoted_is_restarted, true),
        ("a missing record is taken for an unused server", missing_is_unused, true),
        ("up-time spares the wait", uptime_counts, true),
        ("there is no guard", no_guard, true),
        ("the end of the backlog ends a wait", backlog_clears_a_wait, true),
        ("a promoted server does not wait for the demotion", no_demotion_wait, true),
        ("a master is taken for demoted before it is", all_are_demoted, true),
        ("a master that lost its replicas goes on", decide, false),
        ("another server at the same address is taken for the same", nobody_moved, true),
    ];
    for (what, decide, looks) in wrong {
        assert!(explore(&Rules::of(decide, looks)).is_err(), "{what}, and the model did not notice");
    }
}
