//! Memos and jobs: a holder's memo is seen, no other owner leaves one, and a job runs once per interval.

use std::collections::{BTreeMap, BTreeSet};

use super::{Law, Violation, broken};
use crate::{
    clockwork::Micros,
    history::{AskId, Event, LockId, Served, What},
    jobs::INTERVAL,
};

/// L4: a server takes memos from holders only, and none with a smaller token than that of the stored memo.
pub(super) fn guarded(events: &[Event], found: &mut Vec<Violation>) {
    for event in events {
        if let What::Served { owner, did: Served::Noted { is_holder, was_later }, .. } = event.what
            && (!is_holder || was_later)
        {
            let why = if is_holder { "over one of a larger token" } else { "and did not hold" };
            found.push(broken(Law::L4, event.at, format!("{owner} left a memo {why}")));
        }
    }
}

/// L9: a memo that the store acknowledged is seen by each later read, until it expires or a later memo is seen.
pub(super) fn seen(events: &[Event], found: &mut Vec<Violation>) {
    let mut left: BTreeMap<LockId, Vec<(Micros, u64, Micros)>> = BTreeMap::new();
    for event in events {
        match event.what {
            What::MemoLeft { lock, token, until } => {
                left.entry(lock).or_default().push((event.at, token, until));
            }
            What::MemoSeen { lock, token, asked_at } => {
                let is_due = |(at, _, until): &&(Micros, u64, Micros)| *at < asked_at && event.at < *until;
                let due =
                    left.entry(lock).or_default().iter().filter(is_due).map(|(_, token, _)| *token).max();
                if due > token {
                    let what = format!("the memo of token {due:?} was answered for, and {token:?} was seen");
                    found.push(broken(Law::L9, event.at, what));
                }
            }
            _ => {}
        }
    }
}

/// L1 of jobs: after a run that counts, no other run starts within the interval. Where runs may begin early, n intervals
/// hold at most n + 1 starts.
pub(super) fn intervals(events: &[Event], found: &mut Vec<Violation>) {
    let mut started: BTreeMap<AskId, (Micros, Micros)> = BTreeMap::new();
    // By job: the jobs differ in how early they may begin.
    let mut counted: BTreeMap<Micros, BTreeSet<Micros>> = BTreeMap::new();
    for event in events {
        match event.what {
            What::JobStarted { run, early } => {
                started.insert(run, (early, event.at));
                let before = counted.entry(early).or_default().iter().rev();
                for (intervals, began) in (1..).zip(before) {
                    let apart = event.at - began;
                    // Clocks differ by at most 1 % (A1). A due time is kept to 0.1 %, and a run takes a while.
                    let slack = INTERVAL / 100 + if early > 0 { INTERVAL / 50 } else { 0 };
                    if apart + early < intervals * (INTERVAL - slack) {
                        let what = format!(
                            "a job ran again {apart} µs after a run that counts, of {intervals} of them"
                        );
                        found.push(broken(Law::L1, event.at, what));
                        break;
                    }
                }
            }
            What::JobCounted { run } => {
                if let Some((early, began)) = started.get(&run) {
                    counted.entry(*early).or_default().insert(*began);
                }
            }
            _ => {}
        }
    }
}
