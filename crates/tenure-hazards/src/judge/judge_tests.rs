//! The referee's rules, each with a history that breaks it and one that does not.

use std::time::Duration;

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
    assert_eq!(said, "A and B were inside at once, from 500 ms for 300 ms.");
    for after in [Leaves, What::Abandons, What::Hears { by_clock: true }, Dies] {
        let turns = [(10, "A", Enters), (400, "A", after.clone()), (500, "B", Enters), (900, "B", Leaves)];
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
    let on =
        [(10, "A", Enters), (400, "A", Stops), (500, "B", Enters), (600, "A", GoesOn), (700, "A", Leaves)];
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
    let again =
        [(1, "A", Enters), (2, "B", Enters), (3, "B", write(true)), (4, "A", Enters), (5, "A", write(true))];
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
        [(0, "A", Enters), (100, "B", Asks), (200, "A", Dies), (ends, "B", Enters), (ends + 1, "B", Leaves)]
    };
    assert!(verdict(rule, &waits(1800)).is_some());
    assert_eq!(verdict(rule, &waits(1600)), None);
    let for_ever = [(0, "A", Enters), (100, "B", Asks), (200, "A", Dies), (3000, "B", Note(String::new()))];
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
