//! `Sight`: a row as it was read, with those who stand behind its queue.

use std::{collections::HashSet, time::Duration};

use tenure_core::OwnerId;
use tenure_ledger::{Ledger, Place, Rules, Unseen};

use crate::{
    marks::Mark,
    memory::moment,
    sql::READ,
    tail::{FRONT, LOW, MovingUp, Tail},
};

/// A row as it was read, and when by the server's clock.
pub(crate) struct Sight {
    pub(crate) version: i64,
    pub(crate) state: String,
    pub(crate) ledger: Ledger,
    /// It says that somebody may stand behind the queue.
    pub(crate) is_long: bool,
    pub(crate) tail: Tail,
    pub(crate) now: Duration,
}

impl Sight {
    /// Those who stand first behind the queue move up into it if it is short, and the rest is counted.
    pub(crate) fn move_up(&mut self, asker: Option<(OwnerId, &Mark)>, rules: &Rules) -> MovingUp {
        let now = moment(self.now);
        let rows = std::mem::take(&mut self.tail.rows);
        let (is_whole, is_short) = (rows.len() < READ, self.ledger.waiting() <= LOW);
        let (mut room, mut seen) = (FRONT.saturating_sub(self.ledger.waiting()), HashSet::new());
        let (mut up, mut gone, mut rest, mut before) = (Vec::new(), Vec::new(), 0, 0);
        for (key, place) in rows {
            let waits = |place: &Place| {
                !place.is_over(now) && !self.ledger.knows(place.owner()) && seen.insert(place.owner())
            };
            let place = place.filter(waits);
            let moves = |place: &Place| is_short && rest == 0 && (room > 0 || place.is_shared());
            if place.as_ref().is_some_and(|place| !moves(place)) {
                rest += 1;
                continue;
            }
            before += usize::from(asker.is_some_and(|(_, mark)| mark.is_behind(&key)));
            gone.push(key);
            room = room.saturating_sub(usize::from(place.is_some()));
            up.extend(place);
        }
        let news = self.ledger.move_up(now, rules, up);
        let ahead = match asker {
            Some((owner, _)) if self.ledger.knows(owner) => 0,
            Some(_) if self.tail.own.is_some() => self.tail.ahead.saturating_sub(before),
            _ => self.tail.ahead.saturating_sub(before).max(rest),
        };
        self.ledger.leave_out(Unseen { ahead, places: ahead.max(rest) });
        MovingUp { gone, is_more: !is_whole || rest > 0, news }
    }
}
