//! Tenure on Redis, next to the same written directly against the driver, and to rslock.
//!
//! `cargo bench -p tenure-bench --bench redis`: needs `redis-server` and two cores; takes about 110 s. The words `cycles`,
//! `handoff`, `commands`, `fairness`, `turns`, `idle` and `leases` after `--` choose parts of it.

mod by_hand;
mod cycles;
mod fairness;
mod handoff;
mod idle;
mod leases;
mod meter;
#[allow(dead_code, reason = "the bench of a quorum uses the rest")]
mod server;
mod table;
mod turns;

use std::{error::Error, time::Duration};

use tenure::backend::{Host, TokioHost};
use tenure_bench::{Rounds, Spread};
use tenure_testkit::proxy::Proxy;
use tokio::runtime::{Builder, Runtime};

use crate::{
    fairness::{Contender, Fairness},
    handoff::{Crowd, Seen},
    meter::{CLIENT_CORE, Cost, SERVER_CORE, pin},
    server::{MAX_TTL, Server},
    table::{Row, Table, number},
};

/// Whose processor time, and where it stands.
type Part<T> = (&'static str, fn(&T) -> f64);

const HAND_OFF_ROUNDS: usize = 15;
const IDLE_ROUNDS: usize = 9;
/// In each direction: so long that nothing else counts.
const FAR: Duration = Duration::from_millis(5);
const WINDOW: Duration = Duration::from_millis(150);
/// To count commands: what a keeper sends must be little among them.
const LONG_WINDOW: Duration = Duration::from_secs(1);

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|word| word == part);
    let server = Server::start(SERVER_CORE);
    let mut table = Table::default();
    let rslock = while_the_guard_waits(&server, wants("fairness"));
    for (core, how) in [(SERVER_CORE, "all on one core"), (CLIENT_CORE, "two cores")] {
        pin(core);
        if wants("cycles") {
            cycles(&server, &mut table, core, how);
        }
        if wants("handoff") {
            hand_off(&server, &mut table, how);
        }
    }
    if wants("commands") {
        commands(&server, &mut table);
    }
    if let Some(rslock) = rslock {
        fairness(&server, &mut table, &rslock);
    }
    if wants("turns") {
        turns(&server, &mut table);
    }
    if wants("idle") {
        idle(&server, &mut table);
    }
    if wants("leases") {
        keeping(&server, &mut table);
    }
    println!("\nRedis {}, guard on, max_ttl={MAX_TTL}, leases of 10 s.\n", server.version());
    table.print();
}

/// Three rounds each; the one in the middle is shown, and the others beside it.
fn turns(server: &Server, table: &mut Table) {
    pin(CLIENT_CORE);
    let courses: [(&[usize], bool, &str); 4] = [
        (&[64], false, "64 tasks of one process, one name, no hold"),
        (&[64], true, "the same in strict order"),
        (&[64, 64], false, "two such processes"),
        (&[64, 64, 1], false, "two such processes and a third with one task"),
    ];
    for (tasks, strict, what) in courses {
        let mut seen: Vec<_> = (0..3).map(|_| turns::measure(server, tasks, strict)).collect();
        assert!(seen.iter().all(|seen| seen.unordered == 0), "a token is not larger than the one before");
        seen.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let [slow, seen, fast] = &seen[..] else { unreachable!("three rounds") };
        let spread = format!("{} to {}", number(slow.per_second), number(fast.per_second));
        let row = |kind: &str, tenure: String, spread: &str| Row {
            what: format!("{what}: {kind}"),
            tenure,
            spread: spread.to_owned(),
            ..Row::default()
        };
        table.add(row("acquisitions/s", number(seen.per_second), &spread));
        table.add(row("commands each", number(seen.commands), ""));
        table.add(row("client + server CPU each, µs", number(seen.cost.both()), ""));
        if tasks.len() > 1 {
            let waits: Vec<String> =
                seen.longest.iter().map(|wait| format!("{:.1}", wait.as_secs_f64() * 1e3)).collect();
            table.add(row("longest wait in each, ms", waits.join(", "), ""));
            table.add(row("Jain among processes", format!("{:.4}", seen.jain), ""));
        }
    }
}

/// The one that keeps the lease and the one that wants it share a core.
fn idle(server: &Server, table: &mut Table) {
    pin(CLIENT_CORE);
    let rounds = Rounds::measure(IDLE_ROUNDS, 1, |_| idle::measure(server.port()));
    let far = Proxy::to(server.port(), 0);
    far.delay(FAR..=FAR);
    let far = Rounds::measure(3, 1, |_| idle::measure(far.port()));
    let mut add = |rounds: &Rounds<idle::Seen>, what: &str, wanted: &str, part: fn(&idle::Seen) -> f64| {
        let Spread { least, median, most } = rounds.spread(|round| part(&round[0]));
        let spread = format!("{} to {}", number(least), number(most));
        let (what, wanted) = (what.into(), wanted.into());
        table.add(Row { what, tenure: number(median), wanted, spread, ..Row::default() });
    };
    add(&rounds, "a lease that is kept idle: acquire again, median, µs", "≤ 2", |seen| seen.taken);
    add(&rounds, "· its release, median, µs", "", |seen| seen.released);
    add(&rounds, "· both, with each 257th cycle that asks the server, mean, µs", "", |seen| seen.mean);
    add(&rounds, "· a waiter elsewhere waits, median, µs", "", |seen| seen.elsewhere);
    add(&rounds, "· a round trip (PING), µs", "", |seen| seen.round_trip);
    add(&rounds, "· the wait in round trips", "", |seen| seen.elsewhere / seen.round_trip);
    add(&far, "· a server 5 ms away: a round trip (PING), ms", "", |seen| seen.round_trip / 1e3);
    add(&far, "· a waiter elsewhere waits, median, ms", "", |seen| seen.elsewhere / 1e3);
    add(&far, "· the wait in round trips", "2 and a hint: 3", |seen| seen.elsewhere / seen.round_trip);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A new server grants nothing to Tenure for as long as a lease may last; rslock has its turn then.
fn while_the_guard_waits(server: &Server, is_wanted: bool) -> Option<Fairness> {
    let begun = TokioHost.now();
    pin(CLIENT_CORE);
    let runtime = runtime();
    let locks = runtime.block_on(tenure::connect(&server.tenure_url())).expect("a URL");
    let refused = runtime.block_on(locks.mutex("tenure/first").try_acquire());
    let refused = refused.expect_err("a new server may have forgotten leases");
    let why = refused.source().map(ToString::to_string).unwrap_or_default();
    eprintln!("the guard says: {refused}: {why}");
    let rslock = is_wanted.then(|| fairness::measure(&runtime, server, &Contender::rslock(server)));
    let guard = runtime.block_on(locks.mutex("tenure/first").acquire()).expect("open after a while");
    eprintln!("the guard opened after {:.1?}", begun.elapsed(TokioHost.now()));
    runtime.block_on(guard.release()).expect("held");
    rslock
}

fn cycles(server: &Server, table: &mut Table, core: usize, how: &str) {
    use cycles::{BY_HAND, RSLOCK, TENURE};
    let (tasks, what, wanted) = match core {
        SERVER_CORE => (1, "one task", "≥ 0.90"),
        _ => (64, "64 tasks, 64 names, one connection", "≥ 0.85"),
    };
    let rounds = cycles::measure(&runtime(), server, tasks);
    let of = |which: usize, part: fn(&Cost) -> f64| number(rounds.spread(|round| part(&round[which])).median);
    let row = |what: String, part: fn(&Cost) -> f64| Row {
        what,
        by_hand: of(BY_HAND, part),
        tenure: of(TENURE, part),
        rslock: of(RSLOCK, part),
        ..Row::default()
    };
    let quotient =
        |part: fn(&Cost) -> f64| rounds.spread(move |round| part(&round[BY_HAND]) / part(&round[TENURE]));
    let wall = row(format!("acquire + release, {what}, {how}, µs"), |cost| cost.wall);
    table.add(wall.compared(quotient(|cost| cost.wall), wanted));
    let parts: [Part<Cost>; 3] =
        [("both", Cost::both), ("the client", |cost| cost.client), ("the server", |cost| cost.server)];
    for (whose, part) in parts {
        table.add(row(format!("· CPU of {whose}, µs"), part).compared(quotient(part), ""));
    }
}

fn hand_off(server: &Server, table: &mut Table, how: &str) {
    use handoff::{LIST, TENURE, TURNS};
    let runtime = runtime();
    let mut crowds = [TURNS, TENURE, LIST].map(|which| Crowd::connect(&runtime, server, which, 16));
    for crowd in &mut crowds {
        crowd.watch(WINDOW);
    }
    let rounds = Rounds::measure(HAND_OFF_ROUNDS, 3, |which| crowds[which].watch(WINDOW));
    let of = |which: usize, part: fn(&Seen) -> f64| rounds.spread(move |round| part(&round[which])).median;
    let row = |what: String, part: fn(&Seen) -> f64| Row {
        what,
        by_hand: number(of(TURNS, part)),
        tenure: number(of(TENURE, part)),
        ..Row::default()
    };
    let quotient =
        |part: fn(&Seen) -> f64| rounds.spread(move |round| part(&round[TENURE]) / part(&round[TURNS]));
    let wall = row(format!("change of owner, 16 waiters, {how}, µs"), |seen| seen.cost.wall);
    table.add(wall.compared(quotient(|seen| seen.cost.wall), "≤ 1.25"));
    let parts: [Part<Seen>; 3] = [
        ("both", |seen| seen.cost.both()),
        ("the client", |seen| seen.cost.client),
        ("the server", |seen| seen.cost.server),
    ];
    for (whose, part) in parts {
        table.add(row(format!("· CPU of {whose}, µs"), part).compared(quotient(part), ""));
    }
    table.add(Row {
        what: "· a list and LPOP, nothing for who dies, µs".into(),
        by_hand: number(of(LIST, |seen| seen.cost.wall)),
        ..Row::default()
    });
    for (name, which) in [("by hand", TURNS), ("tenure", TENURE)] {
        let longest = rounds.spread(|round| ms(round[which].longest));
        let jain = rounds.spread(|round| round[which].jain);
        let expired = rounds.spread(|round| round[which].expired as f64);
        eprintln!(
            "  {name}: longest wait of a round {:.1} to {:.1} ms, Jain {:.4} to {:.4}, handed on and not entered {} to {}",
            longest.least, longest.most, jain.least, jain.most, expired.least, expired.most,
        );
    }
}

fn commands(server: &Server, table: &mut Table) {
    let mut counts = Vec::new();
    for waiters in [16, 128] {
        let runtime = runtime();
        let [by_hand, tenure] = [handoff::TURNS, handoff::TENURE].map(|which| {
            let mut crowd = Crowd::connect(&runtime, server, which, waiters);
            crowd.settle();
            let seen = crowd.watch(LONG_WINDOW);
            let (longest, expired) = (ms(seen.longest), seen.expired);
            eprintln!("  {} changes, {:.1?} µs each: {}", seen.changes, seen.cost, seen.list);
            eprintln!("  longest wait {longest:.1} ms, handed on and not entered: {expired}");
            seen.commands
        });
        counts.push(tenure);
        let more = counts.get(1).map(|many| format!("**{:+.2}**", many - counts[0]));
        let wanted = if waiters == 128 { "± 1 of those of 16" } else { "" };
        table.add(Row {
            what: format!("commands per change of owner, {waiters} waiters"),
            by_hand: number(by_hand),
            tenure: number(tenure),
            quotient: more.unwrap_or_default(),
            wanted: wanted.into(),
            ..Row::default()
        });
    }
}

fn fairness(server: &Server, table: &mut Table, rslock: &Fairness) {
    let runtime = runtime();
    let tenure = fairness::measure(&runtime, server, &Contender::tenure(&runtime, server));
    let mut add = |what: &str, wanted: &str, text: fn(&Fairness) -> String| {
        let (tenure, rslock) = (text(&tenure), text(rslock));
        table.add(Row { what: what.into(), tenure, rslock, wanted: wanted.into(), ..Row::default() });
    };
    add("128 waiters of one process, 1 ms hold, 5 s: acquisitions/s", "", |f| number(f.per_second));
    add("· hold as measured, ms", "", |f| number(ms(f.hold)));
    add("· Jain", "≥ 0.99", |f| format!("{:.3}", f.jain));
    add("· never served", "0", |f| f.starved.to_string());
    add("· longest wait, ms", "", |f| number(ms(f.longest)));
    add("· commands per acquisition", "", |f| number(f.commands));
    add("· CPU of the client, µs per acquisition", "", |f| number(f.cost.client));
    add("· CPU of the server, µs per acquisition", "", |f| number(f.cost.server));
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn keeping(server: &Server, table: &mut Table) {
    for (leases, wanted) in [(10_000, ""), (100_000, "≤ 10")] {
        keep(server, table, leases, wanted);
    }
}

fn keep(server: &Server, table: &mut Table, leases: usize, wanted: &str) {
    let kept = leases::measure(&runtime(), server, leases);
    table.add(Row {
        what: format!("{leases} leases of 10 s: CPU of the client, % of a core"),
        tenure: number(kept.client_percent),
        wanted: wanted.into(),
        ..Row::default()
    });
    let mut add = |what: String, tenure: String| table.add(Row { what, tenure, ..Row::default() });
    add("· CPU of the server, % of a core".into(), number(kept.server_percent));
    add("· leases per call".into(), number(kept.leases_per_call));
    add("· calls/s".into(), number(kept.calls_per_second));
    add("· renewals in 10 s".into(), kept.renewed.to_string());
    add("· lost or at risk".into(), (kept.lost + kept.at_risk).to_string());
}
