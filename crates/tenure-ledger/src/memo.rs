//! A memo beside a lock, as it is stored: it outlives the lease of its holder.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{FencingToken, Memo, MemoView, Moment, OwnerId};

/// Times are ms of the store's wall clock, which goes on over a boot. `ends_ms` is the first field: who sweeps rows reads it in
/// the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    ends_ms: u64,
    since_ms: u64,
    owner: OwnerId,
    pub(crate) token: u64,
    text: String,
}

impl Stored {
    pub(crate) fn new(now: Moment, (owner, token): (OwnerId, FencingToken), memo: &Memo) -> Self {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        // A part of a millisecond counts as one, so that it is never kept for less than its time.
        let since_ms = millis(now.wall).saturating_add(1);
        let ends_ms = since_ms.saturating_add(millis(memo.kept()));
        Self { ends_ms, since_ms, owner, token: token.get(), text: memo.text().to_owned() }
    }

    pub(crate) fn is_over(&self, now: Moment) -> bool {
        Duration::from_millis(self.ends_ms) <= now.wall
    }

    pub(crate) fn view(&self, now: Moment) -> MemoView {
        let (since, ends) = (Duration::from_millis(self.since_ms), Duration::from_millis(self.ends_ms));
        let (age, left) = (now.wall.saturating_sub(since), ends.saturating_sub(now.wall));
        let by = (self.owner.to_string(), FencingToken::new(self.token));
        MemoView::new(self.text.clone(), by, age, left.min(ends.saturating_sub(since)))
    }
}
