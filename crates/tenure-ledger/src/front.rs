//! A ledger of which the store has read only the front of the queue.
//!
//! A verb looks at the queue from the front and stops at the first place that waits for a turn and does not fit. So a
//! store that keeps each place in a row of its own reads some rows from the front, and the row of the owner that asks.
//! It
//! runs the
//! verb on these and counts the rest ([`Unseen`]). The answer and the new state are those of the whole queue if
//! [`Ledger::has_place`] still finds the last place of the front that waits for a turn: then no verb has looked
//! further.
//! Expired places behind it may stay in the store until they come to the front. They change no answer, because the
//! place in front of them does not fit.

use std::collections::VecDeque;

use tenure_core::{Audience, Mode, Moment, OwnerId};

use crate::{
    error::LedgerError,
    handoff::WakeList,
    rules::Rules,
    state::{Ledger, Place, Unseen, micros},
};

impl Ledger {
    /// The same ledger with these places as its queue, in this order.
    #[must_use]
    pub fn with_queue(self, places: impl IntoIterator<Item = Place>, unseen: Unseen) -> Self {
        Self { queue: places.into_iter().collect(), unseen, ..self }
    }

    /// Takes the places out, for a store that keeps each in a row of its own.
    pub fn take_queue(&mut self) -> VecDeque<Place> {
        self.unseen = Unseen::default();
        std::mem::take(&mut self.queue)
    }

    /// Notes how many places the store left out of the queue.
    pub fn leave_out(&mut self, unseen: Unseen) {
        self.unseen = unseen;
    }

    /// Takes the last place out of the queue, for a store whose row of the lock has no room for it.
    pub fn take_last(&mut self) -> Option<Place> {
        self.queue.pop_back()
    }

    /// Adds the places that were kept behind the queue, in their order. If the queue was empty, a hand-off follows, as
    /// after a release. Answers the owners to wake.
    pub fn move_up(
        &mut self,
        now: Moment,
        rules: &Rules,
        places: impl IntoIterator<Item = Place>,
    ) -> Vec<(Audience, OwnerId)> {
        let mut wakes = WakeList::new();
        let was_empty = self.queue.is_empty();
        self.queue.extend(places);
        // If the queue was not empty, its first place does not fit, and no place behind it may pass (L7).
        let fits = |place: &Place| place.turn && self.has_room_for(place.mode);
        if was_empty && self.queue.front().is_some_and(fits) {
            self.hand_on(now, rules, &mut wakes);
        }
        wakes
    }

    /// True if the owner holds, was handed the lock, or has a place among those that were read.
    pub fn knows(&self, owner: OwnerId) -> bool {
        self.has_place(owner) || self.holds(owner)
    }

    /// True if the owner holds, or was handed the lock.
    pub fn holds(&self, owner: OwnerId) -> bool {
        self.holders.iter().any(|holder| holder.owner == owner)
    }

    /// True if the owner has a place among those that were read.
    pub fn has_place(&self, owner: OwnerId) -> bool {
        self.queue.iter().any(|place| place.owner == owner)
    }
}

impl Place {
    /// Whose it is.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// True if it waits for a turn; false if it is only woken.
    pub fn waits_for_a_turn(&self) -> bool {
        self.turn
    }

    /// True if others may hold beside it.
    pub fn is_shared(&self) -> bool {
        self.mode != Mode::Exclusive
    }

    /// When it ends, in µs of the store's lease clock.
    pub fn ends_us(&self) -> u64 {
        self.ends_us
    }

    /// True if it has ended by then.
    pub fn is_over(&self, now: Moment) -> bool {
        self.ends_us <= micros(now.boot)
    }

    /// The same place, until the end of the other one.
    #[must_use]
    pub fn lasting_as(self, other: &Self) -> Self {
        Self { ends_us: other.ends_us, ..self }
    }

    /// As text, for a row.
    ///
    /// # Panics
    /// Never: the value has no map keys and no numbers that JSON cannot hold.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("BUG: a place is plain data")
    }

    /// From [`encode`](Self::encode)d text.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is something else.
    pub fn from_text(text: &str) -> Result<Self, LedgerError> {
        Ok(serde_json::from_str(text)?)
    }

    /// From [`encode`](Self::encode)d text, with the end that stands beside it: a place is kept by writing that alone.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is something else.
    pub fn decode(text: &str, ends_us: u64) -> Result<Self, LedgerError> {
        Ok(Self { ends_us, ..serde_json::from_str(text)? })
    }
}
