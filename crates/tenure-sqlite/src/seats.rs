//! `Seats`: who of this process waits, and how far from the front.

use std::{collections::HashMap, time::Duration};

use tenure_core::{LockName, Moment, OwnerId};

/// From so many answers on, the seats are looked through for those that are over.
const FEW: usize = 64;

/// Places that this process keeps. Only a memory: it decides what is read first and how often, never who holds.
pub(crate) struct Seats {
    seats: HashMap<(LockName, OwnerId), Seat>,
    /// Answers since they were looked through, and how many are a reason to do it again.
    taken: usize,
    bound: usize,
    /// How many were ahead of the foremost one, when that was last asked.
    least: usize,
}

struct Seat {
    /// How many are ahead at most: it was so when that was last heard or read, and nobody passes.
    ahead: usize,
    /// The number of the place, if it was read.
    number: Option<i64>,
    until: Moment,
}

/// The place of this process that is nearest to the front of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foremost {
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) ahead: usize,
    pub(crate) number: Option<i64>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { seats: HashMap::new(), taken: 0, bound: 0, least: usize::MAX }
    }
}

impl Seats {
    /// An answer said that the owner waits, and that its place lives for `left` at most. True if none was known to be nearer to
    /// its front.
    pub(crate) fn take(
        &mut self,
        (name, owner): (&LockName, OwnerId),
        ahead: usize,
        now: Moment,
        left: Duration,
    ) -> bool {
        self.taken += 1;
        if self.taken >= self.bound.max(FEW) {
            self.forget_old(now);
        }
        let seat =
            self.seats.entry((name.clone(), owner)).or_insert(Seat { ahead, number: None, until: now });
        // More are ahead only of a place that was lost and taken anew, under another number.
        let number = seat.number.filter(|_| ahead <= seat.ahead);
        *seat = Seat { ahead, number, until: now + left };
        ahead < self.least
    }

    /// A waiter that was dropped has left through another handle, and nobody said so here.
    fn forget_old(&mut self, now: Moment) {
        self.seats.retain(|_, seat| !seat.until.is_over(now));
        (self.taken, self.bound) = (0, self.seats.len() * 2);
    }

    /// The owner does not wait, as far as this process knows.
    pub(crate) fn leave(&mut self, name: &LockName, owner: OwnerId) {
        self.seats.remove(&(name.clone(), owner));
    }

    pub(crate) fn has(&self, name: &LockName, owner: OwnerId) -> bool {
        self.seats.contains_key(&(name.clone(), owner))
    }

    /// The rows say how many are ahead at most.
    pub(crate) fn advance(&mut self, seat: &Foremost) {
        if let Some(known) = self.seats.get_mut(&(seat.name.clone(), seat.owner)) {
            (known.ahead, known.number) = (known.ahead.min(seat.ahead), seat.number);
        }
    }

    /// Whose turn comes first, as far as is known.
    pub(crate) fn foremost(&mut self, now: Moment) -> Option<Foremost> {
        let live = self.seats.iter().filter(|(_, seat)| !seat.until.is_over(now));
        let first = live.min_by_key(|(_, seat)| seat.ahead);
        self.least = first.map_or(usize::MAX, |(_, seat)| seat.ahead);
        let ((name, owner), seat) = first?;
        Some(Foremost { name: name.clone(), owner: *owner, ahead: seat.ahead, number: seat.number })
    }
}
