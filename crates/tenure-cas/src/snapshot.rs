//! `Snapshot`: a cell as it was read, decoded, and who of those beside it moves up into it.

use std::{collections::HashSet, time::Duration};

use tenure_core::{Audience, OwnerId};
use tenure_ledger::{Ledger, LedgerError, Place, Rules, Unseen};

use crate::{
    cell::{Overflow, Reading, Until},
    memory::moment,
    text::{is_long, split},
};

/// Places in the cell of a lock, where there can be some beside it.
pub(crate) const FRONT: usize = 4;
/// Who stands beside it moves up when so many of them are left.
pub(crate) const LOW: usize = 1;

/// A cell as it was read, and when by the store's clock.
pub(crate) struct Snapshot {
    pub(crate) version: i64,
    pub(crate) state: String,
    pub(crate) ledger: Ledger,
    /// It says that places may stand beside it.
    pub(crate) is_long: bool,
    /// A client that reads this may move places up that stand beside it.
    pub(crate) may_move: bool,
    /// None: there can be none.
    pub(crate) beside: Option<Beside>,
    /// Owners that are handed the lock by moving into the queue: that is written, or no hint reaches them.
    pub(crate) news: Vec<(Audience, OwnerId)>,
    pub(crate) now: Duration,
}

/// The places beside a cell, as far as they were read.
pub(crate) struct Beside {
    /// The first few, with their keys; none is somebody's joke.
    first: Vec<(String, Option<Place>)>,
    is_whole: bool,
    /// That of whoever asks.
    pub(crate) own: Option<Place>,
    /// How many stand before whoever asks.
    ahead: usize,
}

/// Who moves up with the next write.
#[derive(Default)]
pub(crate) struct MovingUp {
    /// The keys that are of no use then.
    pub(crate) gone: Vec<String>,
    /// Somebody may stand beside it still.
    pub(crate) is_more: bool,
}

impl Beside {
    pub(crate) fn of(overflow: Overflow) -> Self {
        let Overflow { first, is_whole, own, ahead } = overflow;
        let place = |text: String| Place::from_text(&text).ok();
        let first = first.into_iter().map(|(key, text)| (key, place(text))).collect();
        Self { first, is_whole, own: own.and_then(place), ahead }
    }

    /// All of them, if they were read.
    pub(crate) fn whole(self) -> Option<Vec<Place>> {
        self.is_whole.then(|| self.first.into_iter().filter_map(|(_, place)| place).collect())
    }
}

impl Snapshot {
    /// Those who were put into the cell without comparing move into its queue.
    ///
    /// # Errors
    /// If the text is no ledger.
    pub(crate) fn of(reading: Reading, rules: &Rules) -> Result<Self, LedgerError> {
        let Reading { version, state, now, overflow } = reading;
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
        let news = ledger.move_up(moment(now), rules, up);
        // With the same text it was no shorter before: what has not expired now had not then.
        let may_move = ledger.waiting() <= LOW;
        let (is_long, beside) = (is_long(&state), overflow.map(Beside::of));
        Ok(Self { version, state, ledger, is_long, may_move, beside, news, now })
    }

    /// A new claim has no room in the cell, or would pass the places beside it.
    pub(crate) fn is_full(&self, up: Option<&MovingUp>) -> bool {
        up.is_some_and(|up| up.is_more || self.ledger.waiting() >= FRONT)
    }

    /// Those who stand first beside the cell move up into its queue if that is short, and the rest is counted. `asker`: who asks,
    /// and how far was counted for it.
    pub(crate) fn move_up(&mut self, asker: Option<(OwnerId, &Until)>, rules: &Rules) -> Option<MovingUp> {
        let now = moment(self.now);
        let beside = self.beside.as_mut()?;
        let (is_whole, is_short) = (beside.is_whole, self.ledger.waiting() <= LOW);
        let (mut room, mut seen) = (FRONT.saturating_sub(self.ledger.waiting()), HashSet::new());
        let (mut up, mut gone, mut rest, mut before) = (Vec::new(), Vec::new(), 0, 0);
        for (key, place) in std::mem::take(&mut beside.first) {
            let waits = |place: &Place| {
                !place.is_over(now) && !self.ledger.knows(place.owner()) && seen.insert(place.owner())
            };
            let place = place.filter(waits);
            let moves = |place: &Place| is_short && rest == 0 && (room > 0 || place.is_shared());
            if place.as_ref().is_some_and(|place| !moves(place)) {
                rest += 1;
                continue;
            }
            before += usize::from(asker.is_some_and(|(_, until)| until.is_behind(&key)));
            gone.push(key);
            room = room.saturating_sub(usize::from(place.is_some()));
            up.extend(place);
        }
        let (ahead, has_place) = (beside.ahead.saturating_sub(before), beside.own.is_some());
        self.news.extend(self.ledger.move_up(now, rules, up));
        let ahead = match asker {
            Some((owner, _)) if self.ledger.knows(owner) => 0,
            Some(_) if has_place => ahead,
            _ => ahead.max(rest),
        };
        self.ledger.leave_out(Unseen { ahead, places: ahead.max(rest) });
        Some(MovingUp { gone, is_more: !is_whole || rest > 0 })
    }
}
