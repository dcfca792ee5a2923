//! Noticing expiry and handing on.

use std::time::Duration;

use tenure_core::{Audience, Mode, Moment, OwnerId};

use crate::{
    rules::Rules,
    state::{Holder, Ledger, micros, millis},
};

/// Places of the kind `Wake` that one hand-off wakes: the first, and one more in case it is dead.
const BELLS: usize = 2;

/// Waiters from the front that ask again as soon as a place of another one may be over.
const NEAR: usize = 16;

/// Who is woken.
pub(crate) type WakeList = Vec<(Audience, OwnerId)>;

impl Ledger {
    /// Removes what is over and hands on if that made room. Every verb starts with this; true if anything changed.
    pub(crate) fn settle(&mut self, now: Moment, rules: &Rules, wakes: &mut WakeList) -> bool {
        let before = self.holders.len() + self.queue.len();
        let live = |ends_us: u64| ends_us > micros(now.boot);
        self.holders.retain(|h| live(h.ends_us));
        self.queue.retain(|p| live(p.ends_us));
        let changed = self.holders.len() + self.queue.len() != before;
        if changed {
            self.hand_on(now, rules, wakes);
        }
        self.memo.take_if(|memo| memo.is_over(now)).is_some() || changed
    }

    /// Makes all waiters at the front that fit together holders for the claim ttl; wakes them and the first waiter
    /// behind.
    ///
    /// They get a token only by their own claim (H1.1). Until then they count as holders, so that the limit holds
    /// (mutant `handed_not_counted`). The waiter behind them is woken, because it is the one that notices
    /// if they are dead (H1.6).
    pub(crate) fn hand_on(&mut self, now: Moment, rules: &Rules, wakes: &mut WakeList) {
        let mut bells = BELLS;
        let mut at = 0;
        while let Some(place) = self.queue.get(at) {
            if !place.turn {
                if bells > 0 {
                    wakes.push((Audience::Waiters, place.owner));
                    bells -= 1;
                }
                at += 1;
                continue;
            }
            wakes.push((Audience::Waiters, place.owner));
            if !self.has_room_for(place.mode) {
                return;
            }
            let place = self.queue.remove(at).expect("BUG: the place was there a line ago");
            let claim_ttl = if place.far { rules.claim_ttl * 2 } else { rules.claim_ttl };
            self.holders.push(Holder {
                owner: place.owner,
                mode: place.mode,
                ends_us: micros(now.boot.saturating_add(claim_ttl)),
                token: None,
                since_ms: millis(now.wall),
                label: place.label,
            });
        }
    }

    pub(crate) fn has_room_for(&self, mode: Mode) -> bool {
        mode.fits_beside(self.holders.iter().map(|h| h.mode))
    }

    /// How long a waiter with `ahead` live places in front sleeps before it asks again: a safety timer (H1.6, H1.7).
    pub(crate) fn retry_after(&self, now: Moment, rules: &Rules, ahead: usize) -> Duration {
        let ends_us = self.holders.iter().map(|h| h.ends_us).min().unwrap_or(0);
        let left = Duration::from_micros(ends_us.saturating_sub(micros(now.boot)));
        let turns = u32::try_from(ahead).unwrap_or(u32::MAX);
        // The place of a dead waiter ends before the 2 s are over; the waiters behind it must ask then, not later. A
        // waiter far back need not know: otherwise all of them would ask at that moment (L6).
        let seen = if ahead < NEAR { self.queue.len() } else { 0 };
        let dies_us = self.queue.iter().take(seen).map(|p| p.ends_us).min().unwrap_or(u64::MAX);
        let dies = Duration::from_micros(dies_us.saturating_sub(micros(now.boot)));
        left.saturating_add(rules.claim_ttl.saturating_mul(turns))
            .min(dies)
            .clamp(Duration::from_millis(1), rules.retry_max)
    }
}
