//! `Places`: who of this process waits, and how far from the front.

use std::{collections::HashMap, time::Duration};

use tenure_core::{LockName, Moment, OwnerId};

/// From so many answers on, the places are looked through for those that are over.
const FEW: usize = 64;

/// Places that this process keeps. Only a memory: it decides what is read first and how often, never who holds.
pub(crate) struct Places {
    places: HashMap<(LockName, OwnerId), Place>,
    /// Answers since they were looked through, and how many are a reason to do it again.
    taken: usize,
    bound: usize,
    /// How many were ahead of the foremost one, when that was last asked.
    least: usize,
}

struct Place {
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

impl Default for Places {
    fn default() -> Self {
        Self { places: HashMap::new(), taken: 0, bound: 0, least: usize::MAX }
    }
}

impl Places {
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
        let place =
            self.places.entry((name.clone(), owner)).or_insert(Place { ahead, number: None, until: now });
        // More are ahead only of a place that was lost and taken anew, under another number.
        let number = place.number.filter(|_| ahead <= place.ahead);
        *place = Place { ahead, number, until: now + left };
        ahead < self.least
    }

    /// A waiter that was dropped has left through another handle, and nobody said so here.
    fn forget_old(&mut self, now: Moment) {
        self.places.retain(|_, place| !place.until.is_over(now));
        (self.taken, self.bound) = (0, self.places.len() * 2);
    }

    /// The owner does not wait, as far as this process knows.
    pub(crate) fn leave(&mut self, name: &LockName, owner: OwnerId) {
        self.places.remove(&(name.clone(), owner));
    }

    pub(crate) fn has(&self, name: &LockName, owner: OwnerId) -> bool {
        self.places.contains_key(&(name.clone(), owner))
    }

    /// The rows say how many are ahead at most.
    pub(crate) fn advance(&mut self, place: &Foremost) {
        if let Some(known) = self.places.get_mut(&(place.name.clone(), place.owner)) {
            (known.ahead, known.number) = (known.ahead.min(place.ahead), place.number);
        }
    }

    /// Whose turn comes first, as far as is known.
    pub(crate) fn foremost(&mut self, now: Moment) -> Option<Foremost> {
        let live = self.places.iter().filter(|(_, place)| !place.until.is_over(now));
        let first = live.min_by_key(|(_, place)| place.ahead);
        self.least = first.map_or(usize::MAX, |(_, place)| place.ahead);
        let ((name, owner), place) = first?;
        Some(Foremost { name: name.clone(), owner: *owner, ahead: place.ahead, number: place.number })
    }
}
