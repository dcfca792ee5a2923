//! Places next to a cell: which waiters have one, and which of them move up into the cell.
//!
//! Every client that acquires or releases the lock compares and sets its cell. So the queue in the cell is short:
//! [`FRONT`] places. Any other waiter puts a place next to the cell, without a comparison, and then reads. When few
//! places are left in the cell, the next verb that writes it moves the first places next to it into it, with the
//! same write.
//!
//! **Why no owner is granted twice or forgotten (L1, L6).** A place next to the cell gives no right: only the
//! ledger in the cell decides which owner holds and which is next. A place that could not be deleted and is moved
//! up a second time is left out while its owner holds or waits. A place that was put there while the queue became
//! empty is found by its owner's next request.
//!
//! **Why no place is left when its owner has left (L8).** Another client may have read the place, and be about to
//! move it up. So a release removes the place, and reads the cell after that. If the place has moved up, the
//! release finds it in the queue. No client moves a place up into a long queue, unless the turn of the one that has
//! waited longest has come, which the cell says; and a client that has read a
//! shorter queue compares a version that is gone. Otherwise the release writes the cell, which bars that client.
//!
//! **Why no waiter is overtaken (L7).** Keys grow in the order of arrival. A client that writes a cell without
//! reading it first finds in its text whether there may be places next to it. A place is put there only while the
//! text has that mark, and the write that removes the mark from the text is applied only if there is no such place.
//!
//! A store that has no room next to its cells keeps all places in them. A client that may not delete there puts no
//! place next to a cell that has none. But it sees the places that are there, and puts its own behind them.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
    time::Duration,
};

use tenure_core::{Audience, Claim, LockName, Moment, OwnerId, Priority, locked};
use tenure_ledger::{Ledger, LedgerError, Place, Rules, Unseen};

use crate::{
    cell::{CellReading, Overflow, Until, behind_class},
    encode::{is_long, split},
    memory::moment,
};

/// Places in the cell of a lock, if there can be some next to it.
pub(crate) const FRONT: usize = 4;
/// Places move up when only this many are left in the cell.
pub(crate) const LOW: usize = 1;
/// How many places of claims that hold together move up at the same time.
const TOGETHER: usize = 16;

/// A cell as it was read, and the store's clock at that time.
pub(crate) struct Snapshot {
    pub(crate) version: i64,
    pub(crate) state: String,
    pub(crate) ledger: Ledger,
    /// Its text has the mark that there may be places next to it.
    pub(crate) is_long: bool,
    /// A client that reads this may move up the places next to it.
    pub(crate) may_move: bool,
    /// `None`: there can be none.
    pub(crate) beside: Option<Beside>,
    /// Owners that are handed the lock when their places move into the queue: this must be written, or no hint
    /// reaches them.
    pub(crate) wakes: Vec<(Audience, OwnerId)>,
    pub(crate) now: Duration,
}

/// The places next to a cell, as far as they were read.
pub(crate) struct Beside {
    /// The first few, with their keys. `None`: a row that Tenure did not write.
    first: Vec<(String, Option<Place>)>,
    emptied: Vec<String>,
    is_whole: bool,
    /// The place of the claim's owner.
    pub(crate) own: Option<Place>,
    /// How many are ahead of that place.
    ahead: usize,
    /// This client may put the first one there.
    pub(crate) may_begin: bool,
}

/// The places that move up with the next write.
#[derive(Default)]
pub(crate) struct MovingUp {
    /// The keys that are no longer needed then.
    pub(crate) gone: Vec<String>,
    /// There may be more places next to it.
    pub(crate) is_more: bool,
    /// The place that has waited longest was moved to the front: that is stored, even if the verb changes nothing.
    pub(crate) is_advanced: bool,
}

impl Beside {
    pub(crate) fn of(overflow: Overflow) -> Self {
        let Overflow { first, emptied, is_whole, own, ahead, may_begin } = overflow;
        let place = |text: String| Place::from_text(&text).ok();
        let first = first.into_iter().map(|(key, text)| (key, place(text))).collect();
        Self { first, emptied, is_whole, own: own.and_then(place), ahead, may_begin }
    }

    /// All of them, if all were read.
    pub(crate) fn whole(self) -> Option<Vec<Place>> {
        self.is_whole.then(|| self.first.into_iter().filter_map(|(_, place)| place).collect())
    }
}

impl Snapshot {
    /// Places that were put into the cell without a comparison move into its queue.
    ///
    /// # Errors
    /// If the text is not a ledger.
    pub(crate) fn of(reading: CellReading, rules: &Rules) -> Result<Self, LedgerError> {
        let CellReading { version, state, now, overflow } = reading;
        let (mut ledger, newcomers) =
            if version == 0 { (Ledger::new(0), Vec::new()) } else { split(&state)? };
        let mut up: Vec<Place> = Vec::new();
        for place in newcomers {
            let is_known =
                ledger.knows(place.owner()) || up.iter().any(|known| known.owner() == place.owner());
            if !is_known && !place.is_over(moment(now)) {
                up.push(place);
            }
        }
        let wakes = ledger.move_up(moment(now), rules, up);
        // With the same text the queue was no shorter before: places that have not expired now had not expired then.
        let may_move = ledger.waiting() <= LOW || ledger.needs_whole_queue();
        let is_long = is_long(&state);
        Ok(Self { version, state, ledger, is_long, may_move, beside: overflow.map(Beside::of), wakes, now })
    }

    /// A new claim has no room in the cell, or would overtake the places next to it.
    pub(crate) fn is_full(&self, up: Option<&MovingUp>) -> bool {
        up.is_some_and(|up| up.is_more || self.may_begin() && self.ledger.waiting() >= FRONT)
    }

    /// This client may put the first place next to the cell.
    pub(crate) fn may_begin(&self) -> bool {
        self.beside.as_ref().is_some_and(|beside| beside.may_begin)
    }

    /// The turn of the place that has waited longest has come, and it may be next to the cell, among places that were not read.
    pub(crate) fn needs_all(&self) -> bool {
        self.ledger.needs_whole_queue() && self.beside.as_ref().is_some_and(|beside| !beside.is_whole)
    }

    /// The place that has waited longest moves to the front if its turn has come. True if it did; and its row, if it was next to
    /// the cell.
    fn take_longest(&mut self) -> (bool, Option<(String, Place)>) {
        let now = moment(self.now);
        let Some(beside) = self.beside.as_mut().filter(|beside| beside.is_whole) else {
            return (false, None);
        };
        let live = beside.first.iter().filter_map(|(_, place)| place.as_ref());
        let (is_advanced, longest) = self.ledger.advance_longest_of(live.filter(|place| !place.is_over(now)));
        let row = longest.and_then(|longest| {
            let is_it = |place: &Place| place.owner() == longest.owner();
            let at = beside.first.iter().position(|(_, place)| place.as_ref().is_some_and(is_it))?;
            Some((beside.first.remove(at).0, longest))
        });
        (is_advanced, row)
    }

    /// The first places next to the cell move up into its queue if that is short, and the rest is counted. The one that has waited
    /// longest moves up when its turn has come. `asker`: the claim that asks, and how far places were counted for it.
    ///
    /// The places in the cell stay ahead of those next to it, whatever their classes.
    pub(crate) fn move_up(&mut self, asker: Option<(&Claim, &Until)>, rules: &Rules) -> Option<MovingUp> {
        let (now, claim) = (moment(self.now), asker.map(|(claim, _)| claim));
        let is_counted = |key: &str| asker.is_some_and(|(_, until)| until.is_behind(key));
        let (is_advanced, longest) = self.take_longest();
        let beside = self.beside.as_mut()?;
        let (is_whole, is_short) = (beside.is_whole, self.ledger.waiting() <= LOW);
        let (mut room, mut seen) = (FRONT.saturating_sub(self.ledger.waiting()), HashSet::new());
        let (mut up, mut class, mut before) = (Vec::new(), None, 0);
        let (mut rest, mut rest_ahead) = (0, 0);
        let mut gone = std::mem::take(&mut beside.emptied);
        if let Some((key, place)) = longest {
            before += usize::from(is_counted(&key));
            gone.push(key);
            seen.insert(place.owner());
            up.push(place);
        }
        let counts = self.ledger.counts_grants();
        for (key, place) in std::mem::take(&mut beside.first) {
            let waits = |place: &Place| {
                !place.is_over(now) && !self.ledger.knows(place.owner()) && seen.insert(place.owner())
            };
            let place = place.filter(waits);
            // Not of two classes: those in the cell would stay ahead of the next ones of the higher class.
            let is_of_class = |place: &Place| class.is_none_or(|class| class == place.priority());
            // Those that hold together move up together; where classes count, no more than are stated.
            let has_room = |place: &Place| room > 0 || place.is_shared() && !counts && up.len() < TOGETHER;
            let moves = |place: &Place| is_short && rest == 0 && is_of_class(place) && has_room(place);
            if let Some(place) = place.as_ref().filter(|place| !moves(place)) {
                rest += 1;
                rest_ahead += usize::from(claim.is_some_and(|claim| place.priority() >= claim.priority));
                continue;
            }
            before += usize::from(is_counted(&key));
            gone.push(key);
            if let Some(place) = place {
                room = room.saturating_sub(1);
                class = Some(place.priority());
                up.push(place);
            }
        }
        let is_more = !is_whole || rest > 0;
        let (ahead, has_place) = (beside.ahead.saturating_sub(before), beside.own.is_some());
        self.ledger.leave_out(Unseen { is_partial: is_more, ..Unseen::default() });
        self.wakes.extend(self.ledger.move_up(now, rules, up));
        let up = MovingUp { gone, is_more, is_advanced };
        let (ahead, passed) = match claim {
            None => (ahead.max(rest), 0),
            Some(claim) if self.ledger.knows(claim.owner) => (0, 0),
            // Its place is next to the cell, or will be: then it passes none in the cell.
            Some(claim) if has_place => (ahead, self.ledger.behind_newcomer(claim.priority)),
            Some(claim) if self.is_full(Some(&up)) => {
                (ahead.max(rest_ahead), self.ledger.behind_newcomer(claim.priority))
            }
            Some(_) => (ahead.max(rest_ahead), 0),
        };
        let places = ahead.max(rest);
        self.ledger.leave_out(Unseen { ahead: ahead + passed, places, is_partial: is_more });
        Some(up)
    }
}

/// The waiters of all locks. Only a memory of where their places may be; it never decides which owner holds.
#[derive(Default)]
pub(crate) struct OwnPlaces(Mutex<HashMap<LockName, Vec<OwnWaiter>>>);

struct OwnWaiter {
    owner: OwnerId,
    asked: Moment,
    /// How many were ahead of it at its last request, and since when.
    ahead: Option<(usize, Moment)>,
    /// A claim of it was answered with its position.
    is_answered: bool,
    /// The key of its place next to the cell.
    key: Option<String>,
    /// The store has not acknowledged such a place: it may exist, or come later.
    is_unacknowledged: bool,
    /// Such a place was removed.
    had_one: bool,
}

/// Where a place next to the cell of a lock may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnPlace {
    /// Its key; empty if that is not known.
    pub(crate) key: String,
    /// It may exist under another key.
    pub(crate) is_unacknowledged: bool,
    /// It was removed, by an earlier release.
    pub(crate) had_one: bool,
}

impl OwnPlaces {
    /// The owner is about to ask.
    pub(crate) fn ask(&self, name: &LockName, owner: OwnerId, now: Moment) {
        self.entry(name, owner, now, |waiter| waiter.asked = now);
    }

    fn entry<A>(
        &self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
        run: impl FnOnce(&mut OwnWaiter) -> A,
    ) -> A {
        let mut waiting = locked(&self.0);
        let is_here = |waiter: &OwnWaiter| waiter.owner == owner || waiter.asked.elapsed(now) < AWAY;
        if waiting.len() >= AWAY_NAMES_MAX {
            waiting.retain(|_, waiters| waiters.iter().any(is_here));
        }
        let waiters = waiting.entry(name.clone()).or_default();
        waiters.retain(is_here);
        let at = waiters.iter().position(|waiter| waiter.owner == owner).unwrap_or_else(|| {
            waiters.push(OwnWaiter {
                owner,
                asked: now,
                ahead: None,
                is_answered: false,
                key: None,
                is_unacknowledged: false,
                had_one: false,
            });
            waiters.len() - 1
        });
        run(&mut waiters[at])
    }

    fn with<A>(&self, name: &LockName, owner: OwnerId, run: impl FnOnce(&mut OwnWaiter) -> A) -> Option<A> {
        let mut waiting = locked(&self.0);
        let waiter = waiting.get_mut(name)?.iter_mut().find(|waiter| waiter.owner == owner)?;
        Some(run(waiter))
    }

    /// How long the number of waiters ahead of it has been the same.
    pub(crate) fn stood(&self, name: &LockName, owner: OwnerId, ahead: usize, now: Moment) -> Duration {
        let stood = |waiter: &mut OwnWaiter| {
            let since = waiter.ahead.filter(|(before, _)| *before == ahead).map_or(now, |(_, since)| since);
            waiter.ahead = Some((ahead, since));
            since.elapsed(now)
        };
        self.with(name, owner, stood).unwrap_or_default()
    }

    /// A claim of it was answered.
    pub(crate) fn answered(&self, name: &LockName, owner: OwnerId) {
        self.with(name, owner, |waiter| waiter.is_answered = true);
    }

    /// How far places are counted for this owner: to its own, or to the end of its class until a claim of it was answered.
    pub(crate) fn until(&self, name: &LockName, (owner, priority): (OwnerId, Priority)) -> Until {
        let until = |waiter: &mut OwnWaiter| match &waiter.key {
            Some(key) => Until::Key(key.clone()),
            None if waiter.is_answered => Until::Nothing,
            None => behind_class(priority),
        };
        self.with(name, owner, until).unwrap_or_default()
    }

    /// The key of its place next to the cell, if that is known.
    pub(crate) fn key(&self, name: &LockName, owner: OwnerId) -> String {
        self.with(name, owner, |waiter| waiter.key.clone()).flatten().unwrap_or_default()
    }

    /// A place next to the cell is about to be made, even if its owner has been released since it asked: the next
    /// release finds it. True if there may be one.
    pub(crate) fn send(&self, name: &LockName, owner: OwnerId, now: Moment) -> bool {
        self.entry(name, owner, now, |waiter| std::mem::replace(&mut waiter.is_unacknowledged, true))
    }

    /// Its place has this key.
    pub(crate) fn stands(&self, name: &LockName, owner: OwnerId, key: String, now: Moment) {
        self.entry(name, owner, now, |waiter| (waiter.key, waiter.is_unacknowledged) = (Some(key), false));
    }

    /// Where a place of it may be left.
    pub(crate) fn find(&self, name: &LockName, owner: OwnerId) -> Option<OwnPlace> {
        let found = |waiter: &mut OwnWaiter| {
            let (key, is_unacknowledged, had_one) =
                (waiter.key.clone(), waiter.is_unacknowledged, waiter.had_one);
            (key.is_some() || is_unacknowledged).then(|| OwnPlace {
                key: key.unwrap_or_default(),
                is_unacknowledged,
                had_one,
            })
        };
        self.with(name, owner, found).flatten()
    }

    /// Its place was removed.
    pub(crate) fn taken(&self, name: &LockName, owner: OwnerId) {
        self.with(name, owner, |waiter| waiter.had_one = true);
    }

    /// It no longer waits.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId) {
        let mut waiting = locked(&self.0);
        let Some(waiters) = waiting.get_mut(name) else { return };
        waiters.retain(|waiter| waiter.owner != owner);
        if waiters.is_empty() {
            waiting.remove(name);
        }
    }
}

/// An owner that has not asked for this long has left without a release.
const AWAY: Duration = Duration::from_secs(40);

/// The maximum number of names whose departed waiters are forgotten only when the name is used again; beyond it,
/// they are forgotten immediately.
const AWAY_NAMES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// L8: a release came while the claim was on its way, and forgot where its place would be. The release after
    /// the claim left it there.
    #[test]
    fn a_place_that_is_made_after_a_release_is_found_by_the_next_one() {
        let places = OwnPlaces::default();
        let (name, now) = (LockName::new("one").unwrap(), Moment { boot: AWAY, wall: AWAY });
        let owner: OwnerId = "0000000000000009000000000000000000000000000000aa".parse().unwrap();
        places.ask(&name, owner, now);
        places.leave(&name, owner);
        places.send(&name, owner, now);
        assert!(places.find(&name, owner).is_some_and(|own| own.is_unacknowledged));
        places.leave(&name, owner);
        places.stands(&name, owner, "key".to_owned(), now);
        assert_eq!(places.find(&name, owner).map(|own| own.key).as_deref(), Some("key"));
        places.leave(&name, owner);
        assert!(places.find(&name, owner).is_none());
    }
}
