//! The verb `claim`.

use std::time::Duration;

use tenure_core::{Claim, ClaimAnswer, FencingToken, Grant, HolderView, Moment, Wait};

use crate::{
    error::LedgerError,
    handoff::WakeList,
    rules::Rules,
    state::{Change, Holder, Ledger, Place, micros, millis},
};

impl Ledger {
    /// Takes the lock, or takes or keeps a place in the queue. See the contract of `Backend::claim`.
    ///
    /// # Errors
    /// [`LedgerError::QueueFull`] and [`LedgerError::TokensSpent`]; then only expiry was applied, which need not be
    /// stored.
    pub fn claim(
        &mut self,
        now: Moment,
        rules: &Rules,
        claim: &Claim,
    ) -> Result<Change<ClaimAnswer>, LedgerError> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        if let Some(at) = self.holders.iter().position(|h| h.owner == claim.owner) {
            // A hand-off, or its reply was lost: extend *and* mint anew, because the validity of a retry counts
            // from the retry (H1.2, H1.3, H1.5).
            let minted = self.mint(now, rules.floor, claim.block)?;
            let answer = self.enter(at, minted, now, claim);
            return Ok(Change { answer, wakes, changed: true });
        }
        let place = self.queue.iter().position(|p| p.owner == claim.owner);
        if self.has_room_for(claim.mode) && self.barring(place) == 0 {
            let minted = self.mint(now, rules.floor, claim.block)?;
            if let Some(at) = place {
                self.queue.remove(at);
            }
            self.holders.push(Holder {
                owner: claim.owner,
                mode: claim.mode,
                ends_us: 0,
                token: None,
                since_ms: millis(now.wall),
                label: (*claim.label).clone(),
            });
            let answer = self.enter(self.holders.len() - 1, minted, now, claim);
            return Ok(Change { answer, wakes, changed: true });
        }
        if claim.wait == Wait::No {
            let answer =
                ClaimAnswer::Busy { retry_after: self.retry_after(now, rules, 0), holder: self.one(now) };
            return Ok(Change { answer, wakes, changed: settled });
        }
        let ahead = self.keep_place(place, now, rules, claim)?;
        let retry_after = self.retry_after(now, rules, ahead);
        let answer = ClaimAnswer::Queued { ahead, retry_after, holder: self.one(now) };
        Ok(Change { answer, wakes, changed: true })
    }

    /// The answer to a waiter whose claim would only extend its place, while the place lasts for longer than `rest`
    /// anyway. Then the store need not write (L6).
    pub fn standing(&self, now: Moment, rules: &Rules, claim: &Claim, rest: Duration) -> Option<ClaimAnswer> {
        let lasts = |ends_us: u64, rest| ends_us > micros(now.boot.saturating_add(rest));
        let is_over = self.holders.iter().any(|h| !lasts(h.ends_us, Duration::ZERO))
            || self.queue.iter().any(|p| !lasts(p.ends_us, Duration::ZERO));
        let at = self.queue.iter().position(|p| p.owner == claim.owner)?;
        let place = &self.queue[at];
        let is_same = claim.wait == Wait::Turn && place.turn && claim.mode == place.mode;
        let ahead = self.barring(Some(at));
        let may_enter = ahead == 0 && self.has_room_for(place.mode);
        if !is_same || is_over || may_enter || !lasts(place.ends_us, rest) {
            return None;
        }
        let retry_after = self.retry_after(now, rules, ahead);
        Some(ClaimAnswer::Queued { ahead, retry_after, holder: self.one(now) })
    }

    /// The number of waiters, read or not.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.unseen.places
    }

    /// Extends the lease of the holder at `at` to the full ttl; never shortens it.
    fn enter(
        &mut self,
        at: usize,
        (token, block): (FencingToken, u32),
        now: Moment,
        claim: &Claim,
    ) -> ClaimAnswer {
        let holder = &mut self.holders[at];
        holder.ends_us = holder.ends_us.max(micros(now.boot.saturating_add(claim.ttl)));
        holder.token = Some(token.get() + u64::from(block) - 1);
        ClaimAnswer::Granted(Grant {
            name: claim.name.clone(),
            owner: claim.owner,
            token,
            block,
            ttl: claim.ttl,
        })
    }

    /// The number of places with a turn in front of the place `at`, or in the whole queue (L7).
    ///
    /// Every waiter blocks the claims behind it, whatever its mode. Otherwise a waiter with a smaller limit is passed
    /// for ever (model `shared.mixed limits overtake`), and readers starve a writer.
    fn barring(&self, at: Option<usize>) -> usize {
        let seen = self.queue.iter().take(at.unwrap_or(self.queue.len())).filter(|p| p.turn).count();
        seen + self.unseen.ahead
    }

    fn keep_place(
        &mut self,
        at: Option<usize>,
        now: Moment,
        rules: &Rules,
        claim: &Claim,
    ) -> Result<usize, LedgerError> {
        let ahead = self.barring(at);
        if let Some(at) = at {
            self.queue[at].ends_us = micros(now.boot.saturating_add(rules.place_ttl));
            return Ok(ahead);
        }
        let waiting = self.queue.len() + self.unseen.places;
        if waiting >= rules.places_max {
            return Err(LedgerError::QueueFull { waiting });
        }
        self.queue.push_back(Place::of(claim, now, rules, ahead));
        Ok(ahead)
    }

    fn one(&self, now: Moment) -> Option<HolderView> {
        self.holders.iter().max_by_key(|h| h.ends_us).map(|h| h.view(now))
    }
}

impl Place {
    /// The place of a claim that comes behind `waiting` others.
    pub fn of(claim: &Claim, now: Moment, rules: &Rules, ahead: usize) -> Self {
        Self {
            owner: claim.owner,
            mode: claim.mode,
            turn: claim.wait == Wait::Turn,
            ends_us: micros(now.boot.saturating_add(rules.place_ttl)),
            since_ms: millis(now.wall),
            label: (*claim.label).clone(),
            far: rules.is_far(claim.mode, ahead),
        }
    }
}
