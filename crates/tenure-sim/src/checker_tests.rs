//! Histories made by hand, each of which breaks one law.

use tenure_core::{Outcome, OwnerId, Priority, ProcessId};

use super::*;
use crate::history::{
    Leaving, NotEntered, Patience, ReleaseAnswer, Served,
    What::{self, *},
};

const CLAIMS: Claims = Claims {
    is_quorum: false,
    nodes: 1,
    is_within: true,
    is_calm: false,
    has_classes: false,
    is_hot: false,
    bars_late: false,
    takes_several: false,
    bound: 10_000_000,
};

fn owner(n: u8) -> OwnerId {
    OwnerId::from_random(ProcessId::from_random([n; 8]), [n; 16])
}

fn history(events: &[(Micros, What)]) -> Vec<Event> {
    events.iter().map(|(at, what)| Event { at: *at, what: what.clone() }).collect()
}

fn laws_of(events: &[(Micros, What)], claims: &Claims) -> Vec<Law> {
    let mut laws: Vec<Law> =
        judge(&history(events), claims).into_iter().map(|violation| violation.law).collect();
    laws.dedup();
    laws
}

fn laws(events: &[(Micros, What)]) -> Vec<Law> {
    laws_of(events, &CLAIMS)
}

fn enters(grant: usize, token: u64, limit: u32) -> What {
    let n = u8::try_from(grant).unwrap();
    Entered { ask: grant, grant, process: 0, lock: 0, owner: owner(n), token, last: token, limit, permits: 1 }
}

fn believes(grant: usize, until: Micros) -> What {
    Believes { grant, until }
}

fn left(grant: usize) -> What {
    Left { grant, how: Leaving::Dropped }
}

fn served(n: u8, did: Served) -> What {
    What::Served { node: 0, lock: 0, owner: owner(n), did, again: false }
}

fn wrote(grant: usize, token: u64, is_accepted: bool) -> What {
    Wrote { grant, lock: 0, token, is_accepted, sent_at: 0 }
}

#[test]
fn two_that_believe_at_once_break_l1_and_two_in_turn_do_not() {
    let one = [(10, enters(1, 1, 1)), (10, believes(1, 100)), (50, left(1))];
    let next = |at| vec![(at, enters(2, 2, 1)), (at, believes(2, 200))];
    assert_eq!(laws(&[one.to_vec(), next(50)].concat()), []);
    let early = [one[..2].to_vec(), next(40), one[2..].to_vec()].concat();
    assert_eq!(laws(&early), [Law::L1]);
    // It never left, but its guard reports when it ends.
    assert_eq!(laws(&[one[..2].to_vec(), next(100)].concat()), []);
    assert_eq!(laws(&[one[..2].to_vec(), next(99)].concat()), [Law::L1]);
}

#[test]
fn a_renewal_lengthens_belief() {
    let renewed =
        [(10, enters(1, 1, 1)), (10, believes(1, 100)), (60, believes(1, 150)), (120, enters(2, 2, 1))];
    assert_eq!(laws(&renewed), [Law::L1]);
}

#[test]
fn an_entry_counts_even_if_its_guard_is_not_believed() {
    let late = [(10, enters(1, 1, 1)), (10, believes(1, 100)), (50, enters(2, 2, 1))];
    assert_eq!(laws(&late), [Law::L1]);
}

#[test]
fn the_smallest_limit_among_those_who_believe_counts() {
    let hold = |grant, limit| vec![(10, enters(grant, grant as u64, limit)), (10, believes(grant, 100))];
    assert_eq!(laws(&[hold(1, 2), hold(2, 2)].concat()), []);
    assert_eq!(laws(&[hold(1, 2), hold(2, 2), hold(3, 2)].concat()), [Law::L1]);
    assert_eq!(laws(&[hold(1, u32::MAX), hold(2, u32::MAX), hold(3, 1)].concat()), [Law::L1]);
    let several = |grant, taken| match enters(grant, grant as u64, 3) {
        Entered { ask, grant, process, lock, owner, token, last, limit, .. } => {
            let entered = Entered { ask, grant, process, lock, owner, token, last, limit, permits: taken };
            vec![(10, entered), (10, believes(grant, 100))]
        }
        _ => unreachable!(),
    };
    assert_eq!(laws(&[several(1, 2), several(2, 1)].concat()), []);
    assert_eq!(laws(&[several(1, 2), several(2, 2)].concat()), [Law::L1]);
}

#[test]
fn tokens_that_do_not_grow_break_l2() {
    let granted =
        |n, token| served(n, Served::Granted { first: token, last: token, priority: Priority::Normal });
    assert_eq!(laws(&[(1, granted(1, 5)), (2, granted(2, 6))]), []);
    assert_eq!(laws(&[(1, granted(1, 5)), (2, granted(2, 5))]), [Law::L2]);
    assert_eq!(laws(&[(1, served(1, Served::Raised(7))), (2, granted(2, 7))]), [Law::L2]);
    let turn = |first, second| [(1, enters(1, first, 1)), (2, left(1)), (3, enters(2, second, 1))];
    assert_eq!(laws(&turn(5, 6)), []);
    assert_eq!(laws(&turn(6, 5)), [Law::L2]);
    assert_eq!(laws_of(&turn(6, 5), &Claims { is_within: false, ..CLAIMS }), [], "entry is not grant");
    assert_eq!(laws_of(&turn(5, 5), &Claims { is_within: false, ..CLAIMS }), [Law::L2]);
}

#[test]
fn blocks_that_share_a_token_break_l2() {
    let block = |grant, token, last| match enters(grant, token, 1) {
        Entered { ask, grant, process, lock, owner, token, limit, permits, .. } => {
            Entered { ask, grant, process, lock, owner, token, last, limit, permits }
        }
        _ => unreachable!(),
    };
    let turn = |first| [(1, block(1, 3, 4)), (2, left(1)), (3, block(2, first, 6))];
    assert_eq!(laws(&turn(5)), []);
    assert_eq!(laws(&turn(4)), [Law::L2]);
}

#[test]
fn readers_may_enter_out_of_order_but_not_past_a_writer() {
    let all = u32::MAX;
    assert_eq!(laws(&[(1, enters(1, 6, all)), (2, enters(2, 5, all))]), []);
    assert_eq!(laws(&[(1, enters(1, 6, 1)), (2, left(1)), (3, enters(2, 5, all))]), [Law::L2]);
}

#[test]
fn a_holder_that_is_refused_breaks_l2() {
    let held = [(1, enters(1, 5, 1)), (1, believes(1, 100))];
    assert_eq!(laws(&[held.to_vec(), vec![(50, wrote(1, 5, false))]].concat()), [Law::L2]);
    assert_eq!(laws(&[held.to_vec(), vec![(100, wrote(1, 5, false))]].concat()), []);
}

#[test]
fn a_former_holder_that_writes_breaks_l3() {
    let in_turn = [(1, wrote(1, 5, true)), (2, wrote(2, 6, true)), (3, wrote(1, 5, false))];
    assert_eq!(laws(&in_turn), []);
    let back = [(1, wrote(1, 5, true)), (2, wrote(2, 5, true)), (3, wrote(1, 5, true))];
    assert_eq!(laws(&back), [Law::L3]);
    let granted =
        |n, token| served(n, Served::Granted { first: token, last: token, priority: Priority::Normal });
    let first_written_late =
        [(1, granted(1, 9)), (2, granted(2, 8)), (3, wrote(2, 8, true)), (4, wrote(1, 9, true))];
    assert_eq!(laws(&first_written_late), [Law::L2, Law::L3]);
}

#[test]
fn whoever_is_robbed_breaks_l4() {
    assert_eq!(laws(&[(1, served(1, Served::Robbed(owner(2))))]), [Law::L4]);
}

#[test]
fn what_was_lost_and_is_held_again_breaks_l5() {
    let lost = [(1, enters(1, 1, 1)), (2, Lost { grant: 1 })];
    assert_eq!(laws(&lost), []);
    assert_eq!(laws(&[lost.to_vec(), vec![(3, Resurrected { grant: 1 })]].concat()), [Law::L5]);
    assert_eq!(laws(&[lost.to_vec(), vec![(3, believes(1, 9))]].concat()), [Law::L5]);
    assert_eq!(laws(&[(1, served(1, Served::Recreated))]), [Law::L5]);
}

#[test]
fn a_waiter_that_waits_too_long_breaks_l6() {
    let asked = Asked {
        ask: 1,
        process: 0,
        lock: 0,
        patience: Patience::Endless,
        limit: 1,
        is_queue: true,
        keeps: false,
    };
    let waits = |end| [(0, asked.clone()), (5_000_000, Healed), (end, enters(1, 1, 1)), (90_000_000, Closed)];
    assert_eq!(laws(&waits(15_000_000)), []);
    assert_eq!(laws(&waits(15_000_001)), [Law::L6]);
    let for_ever = [(0, asked.clone()), (5_000_000, Healed), (90_000_000, Closed)];
    assert_eq!(laws(&for_ever), [Law::L6]);
    let quorum = Claims { is_quorum: true, ..CLAIMS };
    assert_eq!(laws_of(&for_ever, &quorum), [Law::L6], "nobody enters at all");
    let failed = What::NotEntered { ask: 1, why: NotEntered::Failed(true) };
    let fails = [(0, asked), (1_000_000, Healed), (50_000_000, failed), (90_000_000, Closed)];
    assert_eq!(laws(&fails), [Law::L6]);
}

#[test]
fn whoever_passes_the_queue_breaks_l7() {
    let claims = Claims { is_calm: true, ..CLAIMS };
    let granted =
        |n, token| served(n, Served::Granted { first: token, last: token, priority: Priority::Normal });
    let queued = |n| served(n, Served::Queued { has_turn: true, priority: Priority::Normal });
    let waiting = [(1, granted(1, 1)), (2, queued(2)), (3, queued(3)), (4, served(1, Served::Left(true)))];
    assert_eq!(laws_of(&[waiting.to_vec(), vec![(5, granted(2, 2))]].concat(), &claims), []);
    assert_eq!(laws_of(&[waiting.to_vec(), vec![(5, granted(3, 2))]].concat(), &claims), [Law::L7]);
    assert_eq!(laws_of(&[waiting.to_vec(), vec![(5, granted(4, 2))]].concat(), &claims), [Law::L7]);
}

/// A waiter of a higher class comes first; after eight grants to others it is the one that has waited longest.
#[test]
fn a_grant_out_of_the_order_of_classes_breaks_l7() {
    let claims = Claims { is_calm: true, has_classes: true, ..CLAIMS };
    let queued = |at, n, priority| (at, served(n, Served::Queued { has_turn: true, priority }));
    let granted =
        |at: Micros, n, priority| (at, served(n, Served::Granted { first: at, last: at, priority }));
    let left = |at, n| (at, served(n, Served::Left(true)));
    let (low, high) = (Priority::Low, Priority::High);
    let waiting = [
        granted(1_000_000, 1, low),
        queued(2_000_000, 2, low),
        queued(3_000_000, 3, high),
        left(4_000_000, 1),
    ];
    let then = |next: &[(Micros, What)]| laws_of(&[waiting.to_vec(), next.to_vec()].concat(), &claims);
    assert_eq!(then(&[granted(5_000_000, 3, high), left(6_000_000, 3), granted(7_000_000, 2, low)]), []);
    assert_eq!(then(&[granted(5_000_000, 2, low)]), [Law::L7]);
    // One that has no place passes the low one only.
    assert_eq!(then(&[granted(5_000_000, 4, Priority::Urgent)]), []);
    assert_eq!(then(&[granted(5_000_000, 4, high)]), [Law::L7]);
    let passes = |count: u64| {
        let pass = |n: u64| {
            let at = 5_000_000 + n * 1_000_000;
            let passer = u8::try_from(n).unwrap() + 10;
            [queued(at, passer, high), granted(at + 1, passer, high), left(at + 2, passer)]
        };
        let high_first = [granted(4_500_000, 3, high), left(4_600_000, 3)];
        high_first.into_iter().chain((0..count).flat_map(pass)).collect::<Vec<_>>()
    };
    assert_eq!(then(&passes(7)), []);
    assert_eq!(then(&passes(8)), [Law::L7]);
}

/// Each of these has the lease of the first one, with the next token.
fn shares(grant: usize, token: u64) -> What {
    Entered {
        ask: grant,
        grant,
        process: 0,
        lock: 0,
        owner: owner(1),
        token,
        last: token,
        limit: 1,
        permits: 1,
    }
}

/// H5.2, H5.5.
#[test]
fn a_lease_that_is_passed_on_too_often_or_too_long_or_out_of_order_breaks_l7() {
    let claims = Claims { is_calm: true, ..CLAIMS };
    let turn = |at, grant| [(at, shares(grant, grant as u64)), (at, believes(grant, at)), (at, left(grant))];
    let turns = |count, step| (1..=count).flat_map(|n| turn(n as Micros * step, n)).collect::<Vec<_>>();
    assert_eq!(laws_of(&turns(33, 10), &claims), []);
    assert_eq!(laws_of(&turns(34, 10), &claims), [Law::L7]);
    assert_eq!(laws_of(&turns(3, 5_000), &claims), []);
    assert_eq!(laws_of(&turns(4, 5_000), &claims), [Law::L7]);
    let asked = |ask| {
        (
            0,
            Asked {
                ask,
                process: 0,
                lock: 0,
                patience: Patience::Endless,
                limit: 1,
                is_queue: true,
                keeps: false,
            },
        )
    };
    let in_order = [vec![asked(1), asked(2)], turn(1, 1).to_vec(), turn(2, 2).to_vec()].concat();
    assert_eq!(laws_of(&in_order, &claims), []);
    let passed_by = [vec![asked(2), asked(1)], turn(1, 1).to_vec(), turn(2, 2).to_vec()].concat();
    assert_eq!(laws_of(&passed_by, &claims), [Law::L7]);
}

/// H5.2.
#[test]
fn a_token_that_no_server_granted_breaks_l2() {
    let granted = (1, served(1, Served::Granted { first: 1, last: 2, priority: Priority::Normal }));
    let turn = |at, grant| [(at, shares(grant, grant as u64)), (at, believes(grant, at)), (at, left(grant))];
    let two = [vec![granted], turn(2, 1).to_vec(), turn(3, 2).to_vec()].concat();
    assert_eq!(laws(&two), []);
    assert_eq!(laws(&[two, turn(4, 3).to_vec()].concat()), [Law::L2]);
}

#[test]
fn what_is_left_breaks_l8() {
    assert_eq!(laws(&[(1, Leftover { node: 0, lock: 0, holders: 0, places: 1 })]), [Law::L8]);
    assert_eq!(laws(&[(1, LeftAfterDrain { node: 0, lock: 0, owner: owner(1) })]), [Law::L8]);
}

#[test]
fn an_untrue_outcome_breaks_l9() {
    let taken = served(1, Served::Granted { first: 1, last: 1, priority: Priority::Normal });
    let fails = |outcome| {
        [(1, Claimed { owner: owner(1) }), (2, taken.clone()), (3, ClaimFailed { owner: owner(1), outcome })]
    };
    assert_eq!(laws(&fails(Outcome::Unknown)), []);
    assert_eq!(laws(&fails(Outcome::NotApplied)), [Law::L9]);
    let did = Served::Granted { first: 1, last: 1, priority: Priority::Normal };
    let again = What::Served { node: 0, lock: 0, owner: owner(1), did, again: true };
    let [claimed, _, failed] = fails(Outcome::NotApplied);
    assert_eq!(laws(&[claimed, (2, again), failed]), [], "an earlier claim came again");
    let answered = Answered { grant: 1, answer: ReleaseAnswer::Released };
    let done = |was_there| {
        [(1, enters(1, 1, 1)), (2, left(1)), (3, served(1, Served::Left(was_there))), (4, answered.clone())]
    };
    assert_eq!(laws(&done(true)), []);
    assert_eq!(laws(&done(false)), [Law::L9]);
    // With a token left, the lease may have been passed on: to a waiter that acquires with it or releases it.
    let passed = |then: Option<What>| {
        let granted = served(1, Served::Granted { first: 1, last: 2, priority: Priority::Normal });
        let done = [(1, granted), (2, enters(1, 1, 1)), (3, left(1)), (4, answered.clone())];
        [done.to_vec(), then.map(|then| (5, then)).into_iter().collect()].concat()
    };
    assert_eq!(laws(&passed(Some(shares(2, 2)))), []);
    assert_eq!(laws(&passed(Some(served(1, Served::Left(true))))), []);
    assert_eq!(laws(&passed(None)), [Law::L9]);
}
