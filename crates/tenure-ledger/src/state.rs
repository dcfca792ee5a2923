//! `Ledger`: the value itself, how it is stored and how it is shown.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};
use tenure_core::{
    Audience, FencingToken, HolderView, Label, LockName, LockView, Mode, Moment, OwnerId, WaiterView,
};

use crate::{error::LedgerError, memo::Stored};

/// The state of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The last token minted.
    pub(crate) fence: u64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: VecDeque<Place>,
    /// What a holder left beside the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memo: Option<Stored>,
    /// The places that the store left out of `queue`.
    #[serde(skip)]
    pub(crate) unseen: Unseen,
}

/// Points in time are µs of the store's lease clock; `since_ms` is ms of its wall clock, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) ends_us: u64,
    /// `None` after a hand-off, until the owner's own claim (H1.1).
    pub(crate) token: Option<u64>,
    pub(crate) since_ms: u64,
    pub(crate) label: Label,
}

/// A waiter's entry in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    /// False: it is woken, but a hand-off never makes it a holder.
    pub(crate) turn: bool,
    pub(crate) ends_us: u64,
    pub(crate) since_ms: u64,
    pub(crate) label: Label,
    /// It came behind many others, and may look for its turn rarely ([`Rules::far`](crate::Rules::far)).
    #[serde(default, skip_serializing_if = "is_near")]
    pub(crate) far: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about so")]
fn is_near(far: &bool) -> bool {
    !far
}

/// The places that a store left out of the queue of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Live places with a turn, behind the front and ahead of the place of the owner that asks, or of the end.
    pub ahead: usize,
    /// All live places that were left out. Counts for the bound of the queue.
    pub places: usize,
}

/// The result of a verb.
#[derive(Debug)]
#[must_use = "a change that is not stored did not happen"]
pub struct Change<A> {
    /// The answer to the caller.
    pub answer: A,
    /// The owners to wake once the change is stored.
    pub wakes: Vec<(Audience, OwnerId)>,
    /// False if the ledger is unchanged and need not be stored.
    pub changed: bool,
}

pub(crate) fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl Ledger {
    /// A free lock whose next token is larger than `floor`.
    pub fn new(floor: u64) -> Self {
        Self { fence: floor, ..Self::default() }
    }

    /// True if there is no holder and no waiter: only the counter of tokens must be kept, and a memo if there is one.
    pub fn is_free(&self) -> bool {
        self.is_deserted() && self.unseen.places == 0
    }

    /// True if nobody holds it or waits in its queue; whoever waits elsewhere was [left out](Self::leave_out).
    pub fn is_deserted(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// True if there is a memo that is not over: a free lock with one is not forgotten yet.
    pub fn has_memo(&self, now: Moment) -> bool {
        self.memo.as_ref().is_some_and(|memo| !memo.is_over(now))
    }

    /// The last token minted.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Forgets holders and places that end after `furthest` on the lease clock: they are of an earlier boot. The
    /// counter of tokens stays.
    pub fn forget_leases_beyond(&mut self, furthest: Duration) {
        self.holders.retain(|holder| holder.ends_us <= micros(furthest));
        self.queue.retain(|place| place.ends_us <= micros(furthest));
    }

    /// As text, for a row.
    ///
    /// # Panics
    /// Never: the value has no map keys and no numbers that JSON cannot hold.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("BUG: a ledger is plain data")
    }

    /// From [`encode`](Self::encode)d text.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is something else.
    pub fn decode(text: &str) -> Result<Self, LedgerError> {
        Ok(serde_json::from_str(text)?)
    }

    /// Its visible state at `now`; expired holders and places, and a memo that is over, are left out.
    pub fn view(&self, name: LockName, now: Moment) -> LockView {
        let live = |ends_us: u64| ends_us > micros(now.boot);
        let holders = self.holders.iter().filter(|h| live(h.ends_us)).map(|h| h.view(now)).collect();
        let queue = self.queue.iter().filter(|p| live(p.ends_us)).map(|p| p.view(now)).collect();
        let mut view = LockView::new(name, holders, queue, FencingToken::new(self.fence));
        view.memo = self.memo.as_ref().filter(|memo| !memo.is_over(now)).map(|memo| memo.view(now));
        view
    }
}

impl Holder {
    pub(crate) fn view(&self, now: Moment) -> HolderView {
        let mut holder = HolderView::new(self.owner.to_string(), self.mode);
        holder.token = self.token.map(FencingToken::new);
        holder.label = Some(self.label.clone());
        holder.since = Some(Duration::from_millis(self.since_ms));
        holder.expires_in = Some(Duration::from_micros(self.ends_us.saturating_sub(micros(now.boot))));
        holder
    }
}

impl Place {
    fn view(&self, now: Moment) -> WaiterView {
        let waiting = now.wall.saturating_sub(Duration::from_millis(self.since_ms));
        WaiterView::new(self.owner.to_string(), self.mode, Some(self.label.clone()), waiting)
    }
}
