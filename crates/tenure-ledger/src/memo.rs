//! The verb `note`: a memo beside the lock, which outlives the lease of its holder.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{FencingToken, Memo, MemoView, Moment, Noted, OwnerId};

use crate::{
    handoff::WakeList,
    rules::Rules,
    state::{Change, Ledger, millis},
};

/// A memo as it is stored. Times are ms of the store's wall clock, which goes on over a boot. `ends_ms` is the first field:
/// who sweeps rows reads it in the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    ends_ms: u64,
    since_ms: u64,
    owner: OwnerId,
    token: u64,
    text: String,
}

impl Stored {
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        self.ends_ms <= millis(now.wall)
    }

    pub(crate) fn view(&self, now: Moment) -> MemoView {
        let (since, ends) = (Duration::from_millis(self.since_ms), Duration::from_millis(self.ends_ms));
        let (age, left) = (now.wall.saturating_sub(since), ends.saturating_sub(now.wall));
        let by = (self.owner.to_string(), FencingToken::new(self.token));
        MemoView::new(self.text.clone(), by, age, left.min(ends.saturating_sub(since)))
    }
}

impl Ledger {
    /// Leaves a memo, in place of the one that is there. See the contract of `Backend::note`.
    pub fn note(
        &mut self,
        now: Moment,
        rules: &Rules,
        (owner, token): (OwnerId, FencingToken),
        memo: &Memo,
    ) -> Change<Noted> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        let holds = self.holders.iter().any(|h| h.owner == owner && h.token.is_some());
        let is_late = self.memo.as_ref().is_some_and(|there| there.token > token.get());
        if !holds || is_late {
            return Change { answer: Noted::Gone, wakes, changed: settled };
        }
        // A part of a millisecond counts as one, so that it is never kept for less than its time.
        let since_ms = millis(now.wall) + 1;
        let (ends_ms, text) = (since_ms.saturating_add(millis(memo.kept())), memo.text().to_owned());
        self.memo = Some(Stored { ends_ms, since_ms, owner, token: token.get(), text });
        Change { answer: Noted::Noted, wakes, changed: true }
    }

    /// True if there is a memo, over or not: a free lock with one is not forgotten yet.
    pub fn has_memo(&self) -> bool {
        self.memo.is_some()
    }

    /// Forgets a memo that is over; true if there was one.
    pub(crate) fn forget_memo(&mut self, now: Moment) -> bool {
        self.memo.take_if(|memo| memo.is_over(now)).is_some()
    }
}
