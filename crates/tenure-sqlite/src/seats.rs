//! `Seats`: who of this process waits, as the last answers said.

use std::{collections::HashMap, time::Duration};

use tenure_core::{LockName, Moment, OwnerId};

/// From so many answers on, the seats are looked through for those that are over.
const FEW: usize = 64;

/// Places that this process keeps. Only a memory: it decides what is read first and how often, never who holds.
#[derive(Default)]
pub(crate) struct Seats {
    lines: HashMap<LockName, Line>,
    /// Answers since they were looked through, and how many are a reason to do it again.
    taken: usize,
    bound: usize,
}

#[derive(Default)]
struct Line {
    seats: HashMap<OwnerId, Seat>,
    /// Owners who were told that the lock is theirs, or that they are next.
    passed: u64,
}

struct Seat {
    /// When so many have passed, its turn may have come.
    turn: u64,
    until: Moment,
}

impl Seats {
    /// An answer said that the owner waits, and that its place lives for `left` at most.
    pub(crate) fn take(
        &mut self,
        (name, owner): (&LockName, OwnerId),
        ahead: usize,
        now: Moment,
        left: Duration,
    ) {
        self.taken += 1;
        if self.taken >= self.bound.max(FEW) {
            self.forget_old(now);
        }
        let line = self.lines.entry(name.clone()).or_default();
        let turn = line.passed.saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX));
        line.seats.insert(owner, Seat { turn, until: now + left });
    }

    /// A waiter that was dropped has left through another handle, and nobody said so here.
    fn forget_old(&mut self, now: Moment) {
        self.lines.retain(|_, line| {
            line.seats.retain(|_, seat| !seat.until.is_over(now));
            !line.seats.is_empty()
        });
        let left: usize = self.lines.values().map(|line| line.seats.len()).sum();
        (self.taken, self.bound) = (0, left * 2);
    }

    /// The owner does not wait, as far as this process knows.
    pub(crate) fn leave(&mut self, name: &LockName, owner: OwnerId) {
        if let Some(line) = self.lines.get_mut(name) {
            line.seats.remove(&owner);
            if line.seats.is_empty() {
                self.lines.remove(name);
            }
        }
    }

    pub(crate) fn has(&self, name: &LockName, owner: OwnerId) -> bool {
        self.lines.get(name).is_some_and(|line| line.seats.contains_key(&owner))
    }

    /// Somebody was told that this lock is theirs, or that they are next. True if anybody here waits for it.
    pub(crate) fn pass(&mut self, name: &str) -> bool {
        let line = self.lines.get_mut(name);
        line.map(|line| line.passed = line.passed.saturating_add(1)).is_some()
    }

    /// How many places at least are ahead of the foremost of this process; zero if that is not known.
    pub(crate) fn nearest(&self, now: Moment) -> u64 {
        let live = |line: &Line| {
            let seats = line.seats.values().filter(|seat| !seat.until.is_over(now));
            seats.map(|seat| seat.turn.saturating_sub(line.passed)).min()
        };
        self.lines.values().filter_map(live).min().unwrap_or(0)
    }
}
