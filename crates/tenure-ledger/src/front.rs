//! A ledger of which a store has read only the front of the queue.
//!
//! A verb looks at the queue from the front and stops at the first place that waits for a turn and does not fit. So a
//! store that keeps a place in a row of its own reads some rows from the front, and the row of the owner who asks. It runs the
//! verb on these and counts the rest ([`Unseen`]). The answer and the new state are those of the whole queue if
//! [`Ledger::has_place`] still finds the last place of the front that waits for a turn: then no verb looked further.
//! Places behind it that are over may stay in the store until they come to the front. They enable nobody: the place in
//! front of them does not fit.

use std::collections::VecDeque;

use tenure_core::OwnerId;

use crate::{
    error::LedgerError,
    state::{Ledger, Place, Unseen},
};

impl Ledger {
    /// With these places as its queue, in their order.
    #[must_use]
    pub fn with_queue(self, places: impl IntoIterator<Item = Place>, unseen: Unseen) -> Self {
        Self { queue: places.into_iter().collect(), unseen, ..self }
    }

    /// Takes the places out, for a store that keeps each in a row of its own.
    pub fn take_queue(&mut self) -> VecDeque<Place> {
        self.unseen = Unseen::default();
        std::mem::take(&mut self.queue)
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

    /// When it ends, in µs of the store's lease clock.
    pub fn ends_us(&self) -> u64 {
        self.ends_us
    }

    /// As text, for a row.
    ///
    /// # Panics
    /// Never: the value has no map keys and no numbers that JSON cannot hold.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("BUG: a place is plain data")
    }

    /// From [`encode`](Self::encode)d text, with the end that stands beside it: a place is kept by writing that alone.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is something else.
    pub fn decode(text: &str, ends_us: u64) -> Result<Self, LedgerError> {
        Ok(Self { ends_us, ..serde_json::from_str(text)? })
    }
}
