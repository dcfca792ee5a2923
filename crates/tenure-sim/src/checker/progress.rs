//! Progress, order and what is left: L6, L7 and L8.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::{OwnerId, Priority};

use super::{Claims, Law, Violation, broken, phases, seconds};
use crate::{
    clockwork::{Micros, Pid},
    history::{AskId, Event, LockId, NotEntered, Patience, Served, What},
};

struct Ask {
    at: Micros,
    lock: LockId,
    patience: Patience,
    over: Option<(Micros, Option<NotEntered>)>,
}

fn asks(events: &[Event]) -> BTreeMap<AskId, Ask> {
    let mut asks: BTreeMap<AskId, Ask> = BTreeMap::new();
    for event in events {
        let (ask, over, entered) = match event.what {
            What::Asked { ask, lock, patience, .. } => {
                asks.insert(ask, Ask { at: event.at, lock, patience, over: None });
                continue;
            }
            What::Entered { ask, lock, .. } => (ask, (event.at, None), Some(lock)),
            What::NotEntered { ask, why } => (ask, (event.at, Some(why)), None),
            _ => continue,
        };
        if let Some(known) = asks.get_mut(&ask) {
            // A program that asked for one of several locks has acquired this one.
            (known.over, known.lock) = (Some(over), entered.unwrap_or(known.lock));
        }
    }
    asks
}

/// L6, after all faults have ended.
pub(super) fn liveness(events: &[Event], claims: &Claims, found: &mut Vec<Violation>) {
    let Some((healed, closed)) = phases(events) else { return };
    let asks = asks(events);
    let waiting = asks.iter().filter(|(_, ask)| ask.patience == Patience::Endless);
    for (id, ask) in waiting {
        let (end, why) = ask.over.unwrap_or((closed, None));
        if end < healed {
            continue;
        }
        let waited = end.min(closed).saturating_sub(ask.at.max(healed));
        let lock = ask.lock;
        if waited > claims.bound && !claims.is_quorum {
            let what = format!("lock {lock:#06x}: acquisition {id} waited for {:.6} s", seconds(waited));
            found.push(broken(Law::L6, end, what));
        }
        if let Some(NotEntered::Failed(_)) = why
            && end > healed + claims.bound
        {
            found.push(broken(Law::L6, end, format!("lock {lock:#06x}: acquisition {id} failed")));
        }
    }
    if claims.is_quorum {
        nobody_enters(&asks, (healed, closed), claims.bound, found);
    }
}

/// Where no order is promised, some waiter must acquire while there are waiters.
fn nobody_enters(
    asks: &BTreeMap<AskId, Ask>,
    (healed, closed): (Micros, Micros),
    bound: Micros,
    found: &mut Vec<Violation>,
) {
    let locks: BTreeSet<LockId> = asks.values().map(|ask| ask.lock).collect();
    for lock in locks {
        let of_lock = || asks.values().filter(move |ask| ask.lock == lock);
        let entries = of_lock().filter_map(|ask| match ask.over {
            Some((at, None)) if (healed..closed).contains(&at) => Some(at),
            _ => None,
        });
        let mut marks: Vec<Micros> = entries.chain([healed, closed]).collect();
        marks.sort_unstable();
        for pair in marks.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let end_of = |ask: &Ask| ask.over.map_or(closed, |(at, _)| at.min(closed));
            let waits = |ask: &&Ask| {
                ask.patience == Patience::Endless
                    && end_of(ask).min(to).saturating_sub(ask.at.max(from)) > bound
            };
            if of_lock().any(|ask| waits(&ask)) {
                let what = format!("lock {lock:#06x}: nobody entered from {:.6} s on", seconds(from));
                found.push(broken(Law::L6, to, what));
            }
        }
    }
}

/// L8.
pub(super) fn leftovers(events: &[Event], found: &mut Vec<Violation>) {
    for event in events {
        if let What::Leftover { node, lock, holders, places } = event.what {
            let what =
                format!("node {node}, lock {lock:#06x}: {holders} holders and {places} places are left");
            found.push(broken(Law::L8, event.at, what));
        }
        if let What::LeftAfterDrain { node, lock, owner } = event.what {
            let what =
                format!("node {node}, lock {lock:#06x}: {owner} is there, and its process was drained");
            found.push(broken(Law::L8, event.at, what));
        }
    }
}

/// L7, for mutexes on one server where nothing goes wrong.
pub(super) fn order(events: &[Event], found: &mut Vec<Violation>) {
    let shared: BTreeSet<LockId> = (events.iter())
        .filter_map(|event| match event.what {
            What::Asked { lock, limit, .. } if limit != 1 => Some(lock),
            _ => None,
        })
        .collect();
    let mut queues: BTreeMap<LockId, Vec<OwnerId>> = BTreeMap::new();
    let mut holders: BTreeSet<OwnerId> = BTreeSet::new();
    // Owners that have left. If a release came before its claim, the place belongs to no process, and expires (L8).
    let mut gone: BTreeSet<OwnerId> = BTreeSet::new();
    for event in events {
        let What::Served { lock, owner, did, .. } = event.what else { continue };
        if shared.contains(&lock) {
            continue;
        }
        let queue = queues.entry(lock).or_default();
        match did {
            Served::Queued { has_turn: true, .. } if !queue.contains(&owner) && !gone.contains(&owner) => {
                queue.push(owner);
            }
            Served::Left(_) => {
                gone.insert(owner);
                queue.retain(|waiter| *waiter != owner);
            }
            Served::Granted { .. } if holders.insert(owner) => {
                if queue.first().is_some_and(|first| *first != owner) {
                    let what = format!("lock {lock:#06x}: {owner} was let in before {}", queue[0]);
                    found.push(broken(Law::L7, event.at, what));
                }
                queue.retain(|waiter| *waiter != owner);
            }
            _ => {}
        }
    }
}

/// L7, for mutexes on one server where programs ask in classes and nothing goes wrong: a grant goes to the oldest of the highest
/// class, and one of nine to the waiter that has waited longest.
pub(super) fn order_of_classes(events: &[Event], found: &mut Vec<Violation>) {
    /// The server reads its clock in milliseconds.
    const SAME: Micros = 2_000;
    /// It was handed the lock at most this long before it acquired it, and who came since was not there yet.
    const HANDED: Micros = 600_000;
    struct Waiter {
        owner: OwnerId,
        priority: Priority,
        since: Micros,
    }
    #[derive(Default)]
    struct Line {
        /// In the order of arrival.
        waiters: Vec<Waiter>,
        /// Grants since one to the first of them.
        passed: u32,
        /// The same, and owners that left: one of them may have been handed the lock.
        passed_at_most: u32,
    }
    let shared: BTreeSet<LockId> = (events.iter())
        .filter_map(|event| match event.what {
            What::Asked { lock, limit, .. } if limit != 1 => Some(lock),
            _ => None,
        })
        .collect();
    let mut lines: BTreeMap<LockId, Line> = BTreeMap::new();
    let (mut holders, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let What::Served { lock, owner, did, .. } = event.what else { continue };
        if shared.contains(&lock) {
            continue;
        }
        let line = lines.entry(lock).or_default();
        let is_known = line.waiters.iter().any(|waiter| waiter.owner == owner);
        match did {
            Served::Queued { has_turn: true, priority } if !is_known && !gone.contains(&owner) => {
                line.waiters.push(Waiter { owner, priority, since: event.at });
            }
            Served::Left(_) => {
                gone.insert(owner);
                line.waiters.retain(|waiter| waiter.owner != owner);
                line.passed_at_most += 1;
                if line.waiters.is_empty() {
                    line.passed = 0;
                }
            }
            Served::Granted { priority, .. } if holders.insert(owner) => {
                let at = line.waiters.iter().position(|waiter| waiter.owner == owner);
                let is_before = |(n, waiter): (usize, &Waiter)| {
                    let is_better = waiter.priority > priority
                        || waiter.priority == priority && at.is_none_or(|at| n < at);
                    is_better && waiter.since + HANDED < event.at
                };
                let better = line.waiters.iter().enumerate().any(is_before);
                // The first of those that came in the same moment.
                let longest = line.waiters.first().map_or(0, |first| first.since + SAME);
                let is_longest = at.is_some_and(|at| line.waiters[at].since <= longest);
                let others = line.waiters.len() > usize::from(at.is_some());
                let has_turn = line.passed_at_most >= Priority::PASSED_MAX;
                if better && !(is_longest && has_turn) {
                    let what = format!(
                        "lock {lock:#06x}: {owner} ({priority}) passed a waiter that comes before it"
                    );
                    found.push(broken(Law::L7, event.at, what));
                }
                if others && !is_longest && line.passed >= Priority::PASSED_MAX {
                    let what = format!(
                        "lock {lock:#06x}: {} was passed {} times",
                        line.waiters[0].owner,
                        line.passed + 1
                    );
                    found.push(broken(Law::L7, event.at, what));
                }
                line.waiters.retain(|waiter| waiter.owner != owner);
                if better || !others {
                    line.passed_at_most = 0;
                } else {
                    line.passed_at_most += 1;
                }
                line.passed = if is_longest || !others { 0 } else { line.passed + 1 };
            }
            _ => {}
        }
    }
}

/// L7, where each process asks for one lock repeatedly: the store receives a waiter's claim before another process has had
/// many turns.
pub(super) fn passed(events: &[Event], found: &mut Vec<Violation>) {
    const PASSED_MAX: usize = 6;
    let mut waiting: BTreeMap<AskId, (LockId, BTreeMap<Pid, usize>)> = BTreeMap::new();
    // Only processes that have acquired count: until then a server may have been started too recently to grant anything.
    let mut known: BTreeSet<Pid> = BTreeSet::new();
    for event in events {
        match event.what {
            What::Asked { ask, process, lock, patience: Patience::Endless, .. }
                if known.contains(&process) =>
            {
                waiting.insert(ask, (lock, BTreeMap::new()));
            }
            What::NotEntered { ask, .. } => {
                waiting.remove(&ask);
            }
            What::Entered { ask, process, lock, .. } => {
                waiting.remove(&ask);
                known.insert(process);
                for (other, (_, passes)) in waiting.iter_mut().filter(|(_, (asked, _))| *asked == lock) {
                    let passes = passes.entry(process).or_default();
                    *passes += 1;
                    if *passes > PASSED_MAX {
                        let what = format!("lock {lock:#06x}: acquisition {other} was passed {passes} times");
                        found.push(broken(Law::L7, event.at, what));
                    }
                }
            }
            _ => {}
        }
    }
}

/// L7 inside a process, where nothing goes wrong: which waiter acquires next, and how often and how long one lease is passed
/// on (H5.2, H5.5).
pub(super) fn turns(events: &[Event], found: &mut Vec<Violation>) {
    const HOLDERS_MAX: usize = 33;
    /// 10 ms by a clock that is up to 1 % slow, and a moment until the next holder acquires.
    const WITHIN: Micros = 10_200;
    let mut leases: BTreeMap<OwnerId, (Micros, usize)> = BTreeMap::new();
    let mut queues: BTreeMap<(Pid, LockId), Vec<AskId>> = BTreeMap::new();
    for event in events {
        match event.what {
            What::Asked { ask, process, lock, patience, is_queue: true, .. }
                if patience != Patience::None =>
            {
                queues.entry((process, lock)).or_default().push(ask);
            }
            What::NotEntered { ask, .. } => {
                queues.values_mut().for_each(|queue| queue.retain(|other| *other != ask));
            }
            What::Entered { ask, process, lock, owner, .. } => {
                let (since, holders) = leases.entry(owner).or_insert((event.at, 0));
                *holders += 1;
                if *holders > HOLDERS_MAX || event.at > *since + WITHIN {
                    let what = format!("lock {lock:#06x}: the lease of {owner} was passed on for too long");
                    found.push(broken(Law::L7, event.at, what));
                }
                let queue = queues.entry((process, lock)).or_default();
                if queue.contains(&ask) && queue[0] != ask {
                    let what = format!("lock {lock:#06x}: acquisition {ask} came before {}", queue[0]);
                    found.push(broken(Law::L7, event.at, what));
                }
                queue.retain(|other| *other != ask);
            }
            _ => {}
        }
    }
}
