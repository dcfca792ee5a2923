//! `Places`: the waiters of this process, and how far from the front each one is.

use std::{collections::HashMap, time::Duration};

use tenure_core::{LockName, Moment, OwnerId};

/// After so many answers, expired places are removed.
const FEW: usize = 64;

/// The places of this process. Only a memory: it decides what is read first and how often, never who holds.
pub(crate) struct Places {
    places: HashMap<(LockName, OwnerId), Place>,
    /// Answers since they were looked through, and how many are a reason to do it again.
    taken: usize,
    bound: usize,
    /// How many were ahead of the foremost one, when that was last asked.
    least: usize,
}

struct Place {
    /// The number of places ahead at most: it was so when it was last read, and no place passes another.
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
    /// The owner waits, by an answer of the store, and its place lives for `left` at most. True if no known place is
    /// nearer to the front.
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

    /// A dropped waiter leaves through another handle, which does not say so here.
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

    /// The place whose turn comes first, as far as is known.
    pub(crate) fn foremost(&mut self, now: Moment) -> Option<Foremost> {
        let live = self.places.iter().filter(|(_, place)| !place.until.is_over(now));
        let first = live.min_by_key(|(_, place)| place.ahead);
        self.least = first.map_or(usize::MAX, |(_, place)| place.ahead);
        let ((name, owner), place) = first?;
        Some(Foremost { name: name.clone(), owner: *owner, ahead: place.ahead, number: place.number })
    }
}
