//! The verbs `renew`, `release`, `note`, `raise` and `break`.

use std::time::Duration;

use tenure_core::{
    Audience, FencingToken, HolderView, Memo, Moment, Noted, OwnerId, Raised, Released, Renewal,
};

use crate::{
    error::LedgerError,
    handoff::WakeList,
    memo::Stored,
    rules::Rules,
    state::{Change, Holder, Ledger, micros},
};

impl Ledger {
    /// Extends the lease of a holder to `ttl` from now; never shortens, never re-creates (L5, hazard 23).
    ///
    /// After a hand-off, a waiter is `Gone` to a renewal until its own claim.
    pub fn renew(&mut self, now: Moment, rules: &Rules, owner: OwnerId, ttl: Duration) -> Change<Renewal> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        let Some(holder) = self.holders.iter_mut().find(|h| h.owner == owner && h.token.is_some()) else {
            return Change { answer: Renewal::Gone, wakes, changed: settled };
        };
        holder.ends_us = holder.ends_us.max(micros(now.boot.saturating_add(ttl)));
        Change { answer: Renewal::Renewed, wakes, changed: true }
    }

    /// Removes an owner from holders and queue; a hand-off follows (L4, L8).
    pub fn release(&mut self, now: Moment, rules: &Rules, owner: OwnerId) -> Change<Released> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        let before = self.holders.len() + self.queue.len();
        self.holders.retain(|h| h.owner != owner);
        self.queue.retain(|p| p.owner != owner);
        if self.holders.len() + self.queue.len() == before {
            return Change { answer: Released::WasGone, wakes, changed: settled };
        }
        self.hand_on(now, rules, &mut wakes);
        // An owner that leaves needs no hint of its own.
        wakes.retain(|&(_, woken)| woken != owner);
        Change { answer: Released::Released, wakes, changed: true }
    }

    /// Leaves a memo beside the lock, in place of the one that is there. See the contract of `Backend::note` (L4).
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
        self.memo = Some(Stored::new(now, (owner, token), memo));
        Change { answer: Noted::Noted, wakes, changed: true }
    }

    /// Raises the counter of tokens to at least `to` while this owner holds (H3.3).
    pub fn raise(&mut self, now: Moment, rules: &Rules, owner: OwnerId, to: FencingToken) -> Change<Raised> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        let holds = self.holders.iter().any(|h| h.owner == owner && h.token.is_some());
        if !holds {
            return Change { answer: Raised::Gone, wakes, changed: settled };
        }
        let raised = self.fence < to.get();
        self.fence = self.fence.max(to.get());
        Change { answer: Raised::Raised, wakes, changed: settled || raised }
    }

    /// Raises the counter of tokens, takes the lock from its holders and wakes them; a hand-off follows.
    ///
    /// # Errors
    /// [`LedgerError::TokensSpent`]; then the holders keep the lock.
    pub fn break_lock(&mut self, now: Moment, rules: &Rules) -> Result<Change<Vec<HolderView>>, LedgerError> {
        let mut wakes = WakeList::new();
        self.mint(now, rules.floor, 1)?;
        self.settle(now, rules, &mut wakes);
        // A waiter that got a hand-off and has not claimed yet is not a holder, and keeps its turn.
        let (robbed, handed): (Vec<Holder>, Vec<Holder>) =
            std::mem::take(&mut self.holders).into_iter().partition(|h| h.token.is_some());
        self.holders = handed;
        wakes.extend(robbed.iter().map(|h| (Audience::Holders, h.owner)));
        self.hand_on(now, rules, &mut wakes);
        Ok(Change { answer: robbed.iter().map(|h| h.view(now)).collect(), wakes, changed: true })
    }
}
