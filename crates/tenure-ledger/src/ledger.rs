//! `Ledger`: the state of one lock, its verbs, its stored form and its view.
//!
//! # A store that reads only the front of the queue
//! The queue is in the order in which its places are granted: by class, and by arrival within a class. One place may
//! be ahead of its class, the one that has waited longest, after [some grants](Priority::PASSED_MAX) to others.
//! So a newcomer of a higher class is put before the first place of a lower one. A version of Tenure that knows no class
//! puts its newcomers at the end.
//!
//! A verb reads the queue from the front and stops at the first place that waits for a turn and does not fit. So a
//! store that keeps each place in a separate row reads some rows from the front, and the row of the owner that
//! asks. It runs the verb on these and counts the rest ([`Unseen`]). The answer and the new state are those of the
//! whole queue if [`Ledger::has_place`] still finds the last place of the front that waits for a turn: then no verb
//! has read further. Expired places behind it may stay in the store until they come to the front. They change no
//! answer, because the place in front of them does not fit. Only if the turn of the one that has waited longest has come
//! ([`Ledger::has_compared_all`]), a verb needs all places.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};
use tenure_core::{
    Audience, BreakScope, Claim, ClaimAnswer, ErrorKind, FencingToken, Grant, HolderView, Label, LockName,
    LockView, Memo, MemoView, Mode, Moment, Noted, OtherMode, OwnerId, Priority, Raised, Released, Renewal,
    WaitMode, WaiterView,
};

use crate::rules::{Floor, Rules};

/// The state of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Raised by a version of Tenure whose stored form this one cannot read and must not write back: [`FORMAT`] while an owner
    /// is shown to transactions, which an older version would overlook.
    #[serde(default, skip_serializing_if = "is_zero")]
    format: u32,
    /// The last token minted.
    fence: u64,
    holders: Vec<Holder>,
    queue: VecDeque<Place>,
    /// How many grants to waiters there were since one that had waited longest. `None` while all places are of the default class;
    /// once one was of another class, until the queue is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passed: Option<u32>,
    /// The memo that a holder stored with the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memo: Option<StoredMemo>,
    /// The places that the store left out of `queue`.
    #[serde(skip)]
    unseen: Unseen,
    /// Whether transactions rely on an owner that is [shown](Self::expose).
    #[serde(skip)]
    reliance: Reliance,
    /// See [`has_compared_all`](Self::has_compared_all).
    #[serde(skip)]
    compared_all: bool,
}

impl Ledger {
    /// A free lock whose next token is larger than `floor`.
    pub fn new(floor: u64) -> Self {
        Self { fence: floor, ..Self::default() }
    }

    /// Acquires the lock, or takes or keeps a place in the queue. See the contract of `Backend::claim`.
    ///
    /// # Errors
    /// [`LedgerError::QueueFull`], [`LedgerError::OtherMode`] and [`LedgerError::TokensSpent`]; then only expiry was applied,
    /// which need not be stored.
    pub fn claim(
        &mut self,
        now: Moment,
        rules: &Rules,
        claim: &Claim,
    ) -> Result<Change<ClaimAnswer>, LedgerError> {
        let mut wakes = WakeList::new();
        let mut settled = self.settle(now, rules, &mut wakes);
        if let Some(at) = self.holders.iter().position(|h| h.owner == claim.owner) {
            // A new token needs another text, and a transaction has the row locked that has the present one.
            if self.is_kept(&self.holders[at]) {
                let (retry_after, holder) = (RELIED_ON, self.one(now));
                let answer = match claim.wait {
                    WaitMode::No => ClaimAnswer::Busy { retry_after, holder },
                    _ => ClaimAnswer::Queued { ahead: 0, retry_after, holder },
                };
                return Ok(Change { answer, wakes, changed: settled });
            }
            let Holder { mode: held, token, .. } = self.holders[at];
            let is_alone = self.holders.len() == 1 && held.limit() == 1;
            if held.covers(claim.mode) || is_alone {
                // A hand-off, or its reply was lost: extend *and* mint anew, because the validity of a retry counts
                // from the retry (H1.2, H1.3, H1.5).
                let minted = self.mint(now, rules.floor, claim.block)?;
                let answer = self.enter(at, minted, now, claim);
                return Ok(Change { answer, wakes, changed: true });
            }
            if token.is_some() {
                return Err(OtherMode { held }.into());
            }
            // It was handed what it does not ask for any more, or what an older version has written.
            self.holders.remove(at);
            self.hand_on(now, rules, &mut wakes);
            settled = true;
        }
        let place = self.queue.iter().position(|p| p.owner == claim.owner);
        let place = match place {
            Some(at) if self.queue[at].mode != claim.mode => {
                self.queue.remove(at);
                settled = true;
                None
            }
            place => place,
        };
        let has_room = self.has_room_for(claim.mode);
        let place = if has_room && self.advance_longest() {
            settled = true;
            self.queue.iter().position(|p| p.owner == claim.owner)
        } else {
            place
        };
        if has_room && self.barring(place, claim.priority) == 0 {
            let minted = self.mint(now, rules.floor, claim.block)?;
            let place = place.and_then(|at| self.queue.remove(at));
            self.count_grant(claim.priority, place.is_some_and(|place| place.longest));
            self.holders.push(Holder {
                owner: claim.owner,
                mode: claim.mode,
                ends_us: 0,
                token: None,
                since_ms: millis(now.wall),
                label: (*claim.label).clone(),
                process: None,
                shown: None,
            });
            let answer = self.enter(self.holders.len() - 1, minted, now, claim);
            return Ok(Change { answer, wakes, changed: true });
        }
        if claim.wait == WaitMode::No {
            let answer =
                ClaimAnswer::Busy { retry_after: self.retry_after(now, rules, 0), holder: self.one(now) };
            return Ok(Change { answer, wakes, changed: settled });
        }
        let ahead = self.keep_place(place, now, rules, claim)?;
        let retry_after = self.retry_after(now, rules, ahead);
        let answer = ClaimAnswer::Queued { ahead, retry_after, holder: self.one(now) };
        Ok(Change { answer, wakes, changed: true })
    }

    /// The answer to a waiter whose claim would only extend its place, if the place lasts for longer than `rest`
    /// anyway. Then the store need not write.
    // L6.
    pub fn standing(&self, now: Moment, rules: &Rules, claim: &Claim, rest: Duration) -> Option<ClaimAnswer> {
        let lasts = |ends_us: u64, rest| ends_us > micros(now.boot.saturating_add(rest));
        let is_over = self.holders.iter().any(|h| !lasts(h.ends_us, Duration::ZERO))
            || self.queue.iter().any(|p| !lasts(p.ends_us, Duration::ZERO));
        let at = self.queue.iter().position(|p| p.owner == claim.owner)?;
        let place = &self.queue[at];
        let is_same = claim.wait == WaitMode::Turn && place.turn && claim.mode == place.mode;
        let ahead = self.barring(Some(at), place.priority);
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

    /// Extends the lease of a holder to `ttl` from now; never shortens, never re-creates.
    ///
    /// After a hand-off, a waiter is `Gone` to a renewal until its own claim.
    // L5, hazard 23.
    pub fn renew(&mut self, now: Moment, rules: &Rules, owner: OwnerId, ttl: Duration) -> Change<Renewal> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        // One that has expired stays only because a transaction relies on it.
        let holds = |h: &&mut Holder| h.owner == owner && h.token.is_some() && h.ends_us > micros(now.boot);
        let Some(holder) = self.holders.iter_mut().find(holds) else {
            return Change { answer: Renewal::Gone, wakes, changed: settled };
        };
        holder.ends_us = holder.ends_us.max(micros(now.boot.saturating_add(ttl)));
        Change { answer: Renewal::Renewed, wakes, changed: true }
    }

    /// Removes an owner from holders and queue; a hand-off follows.
    // L4, L8.
    pub fn release(&mut self, now: Moment, rules: &Rules, owner: OwnerId) -> Change<Released> {
        let mut wakes = WakeList::new();
        // One hand-off for all: an owner that leaves is not handed the lock.
        let has_expired = self.remove_expired(now);
        let (ended, before) = (self.end_leases(now, |h| h.owner == owner), self.queue.len());
        self.queue.retain(|p| p.owner != owner);
        self.forget_count();
        let was_there = !ended.is_empty() || self.queue.len() < before;
        if has_expired || was_there {
            self.hand_on(now, rules, &mut wakes);
        }
        let forgets = self.memo.take_if(|memo| memo.is_over(now)).is_some();
        let answer = if was_there { Released::Released } else { Released::WasGone };
        Change { answer, wakes, changed: has_expired || was_there || forgets }
    }

    /// Shows the owner of an exclusive lease to transactions of the database that has this ledger. In the same step as
    /// this, the store writes [what they look for](Self::shown), and removes it in the step that ends the lease.
    // L1, L3.
    pub fn expose(
        &mut self,
        now: Moment,
        rules: &Rules,
        (owner, token): (OwnerId, FencingToken),
        slot: u32,
    ) -> Change<Exposed> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        // A chosen owner may come back, with another token.
        let is_it = |h: &&mut Holder| {
            h.owner == owner && h.token == Some(token.get()) && h.ends_us > micros(now.boot)
        };
        let (answer, changed) = match self.holders.iter_mut().find(is_it) {
            None => (Exposed::Gone, settled),
            Some(holder) if holder.mode != Mode::Exclusive => (Exposed::Shared, settled),
            Some(holder) => {
                let slot = *holder.shown.get_or_insert(slot);
                (Exposed::Exposed { slot }, true)
            }
        };
        Change { answer, wakes, changed }
    }

    /// The owner that transactions can look for: its slot, and the text that only this lease has.
    pub fn shown(&self) -> Option<(u32, String)> {
        let shown = |h: &Holder| Some((h.shown?, proof(h.owner, h.token?)));
        self.holders.iter().find_map(shown)
    }

    /// An owner that is [shown](Self::expose) has expired: only a transaction that relies on it keeps the lock.
    pub fn shows_an_expired_owner(&self, now: Moment) -> bool {
        self.holders.iter().any(|h| h.shown.is_some() && h.ends_us <= micros(now.boot))
    }

    /// Says whether transactions rely on the owner that is shown. Call this before a verb.
    ///
    /// **Why the lock is not stuck (L6).** A transaction ends with its connection, and the statement bounds how long it
    /// rests.
    pub fn rely(&mut self, reliance: Reliance) {
        self.reliance = reliance;
    }

    /// An owner that has not ended because a transaction relies on it.
    fn is_kept(&self, holder: &Holder) -> bool {
        self.reliance != Reliance::Unknown && holder.shown.is_some()
    }

    /// Ends these leases, and returns them. An owner on which a transaction relies stays without a lease: its client is told
    /// that it has lost the lock, and the next client enters as soon as the transaction has ended.
    // L6, L8.
    fn end_leases(&mut self, now: Moment, is_meant: impl Fn(&Holder) -> bool) -> Vec<Holder> {
        let (ended, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.holders).into_iter().partition(is_meant);
        self.holders = left;
        if self.reliance == Reliance::Found {
            let kept = ended.iter().filter(|h| h.shown.is_some()).cloned();
            self.holders.extend(kept.map(|h| Holder { ends_us: h.ends_us.min(micros(now.boot)), ..h }));
        }
        ended
    }

    /// Makes the lease of this owner end with this process, or with its ttl only.
    pub fn tie(&mut self, owner: OwnerId, process: Option<&str>) {
        if let Some(holder) = self.holders.iter_mut().find(|h| h.owner == owner) {
            holder.process = process.map(str::to_owned);
        }
    }

    /// The processes without which a lease ends.
    pub fn processes(&self) -> impl Iterator<Item = &str> {
        self.holders.iter().filter_map(|h| h.process.as_deref())
    }

    /// Ends the leases of the processes that have ended; a hand-off follows. Call this before a verb.
    // L8, A11.
    pub fn end_dead(&mut self, now: Moment, rules: &Rules, is_dead: impl Fn(&str) -> bool) -> Change<usize> {
        let mut wakes = WakeList::new();
        let ended = self.remove_dead(is_dead);
        if ended > 0 {
            // Before the hand-off: an expired place must not get it.
            self.remove_expired(now);
            self.hand_on(now, rules, &mut wakes);
        }
        Change { answer: ended, wakes, changed: ended > 0 }
    }

    /// Removes the leases of the processes that have ended, for a view; returns how many.
    pub fn remove_dead(&mut self, is_dead: impl Fn(&str) -> bool) -> usize {
        let before = self.holders.len();
        self.holders.retain(|h| !h.process.as_deref().is_some_and(&is_dead));
        before - self.holders.len()
    }

    /// Stores a memo with the lock, in place of an earlier one, with the time of `dated`. See the contract of `Backend::note`.
    // L4.
    pub fn note(
        &mut self,
        (now, dated): (Moment, Moment),
        rules: &Rules,
        (owner, token): (OwnerId, FencingToken),
        memo: &Memo,
    ) -> Change<Noted> {
        let mut wakes = WakeList::new();
        let settled = self.settle(now, rules, &mut wakes);
        let lasts = |h: &&Holder| h.ends_us > micros(now.boot);
        let holds = self.holders.iter().filter(lasts).any(|h| h.owner == owner && h.token.is_some());
        let is_late = self.memo.as_ref().is_some_and(|there| there.token > token.get());
        if !holds || is_late {
            return Change { answer: Noted::Gone, wakes, changed: settled };
        }
        self.memo = Some(StoredMemo::new(dated, (owner, token), memo));
        Change { answer: Noted::Noted, wakes, changed: true }
    }

    /// Raises the counter of tokens to at least `to` while this owner holds.
    // H3.3.
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

    /// Raises the counter of tokens, ends the holds and notifies the holders; a hand-off follows.
    ///
    /// # Errors
    /// [`LedgerError::TokensSpent`]; then the holders keep the lock.
    pub fn break_lock(
        &mut self,
        now: Moment,
        rules: &Rules,
        scope: BreakScope,
    ) -> Result<Change<Vec<HolderView>>, LedgerError> {
        let mut wakes = WakeList::new();
        // A waiter that got a hand-off and has not claimed yet is not a holder, and keeps its turn. One that has expired is, if a
        // transaction relies on it: then the store refuses the change, and says why.
        let reliance = self.reliance;
        let is_robbed = |h: &Holder| {
            let is_meant = if let BreakScope::Owner(owner) = scope { h.owner == owner } else { true };
            let is_live = h.ends_us > micros(now.boot);
            let counts = match reliance {
                Reliance::Unknown => is_live,
                Reliance::Found => is_live || h.shown.is_some(),
                // An earlier try has ended the lease that it found: another owner may have come since.
                Reliance::Open => !is_live && h.shown.is_some(),
            };
            is_meant && h.token.is_some() && counts
        };
        let is_narrow = matches!(scope, BreakScope::Owner(_)) || reliance == Reliance::Open;
        if is_narrow && !self.holders.iter().any(is_robbed) {
            // A lease that has expired is removed: a store whose reading is not of its own clock confirms that.
            let changed = self.settle(now, rules, &mut wakes);
            return Ok(Change { answer: Vec::new(), wakes, changed });
        }
        self.mint(now, rules.floor, 1)?;
        self.settle(now, rules, &mut wakes);
        let robbed = self.end_leases(now, is_robbed);
        wakes.extend(robbed.iter().map(|h| (Audience::Holders, h.owner)));
        self.hand_on(now, rules, &mut wakes);
        Ok(Change { answer: robbed.iter().map(|h| h.view(now)).collect(), wakes, changed: true })
    }

    /// Removes expired entries and hands the lock on if that made room. Every verb starts with this; true if
    /// anything changed.
    fn settle(&mut self, now: Moment, rules: &Rules, wakes: &mut WakeList) -> bool {
        let changed = self.remove_expired(now);
        if changed {
            self.hand_on(now, rules, wakes);
        }
        self.memo.take_if(|memo| memo.is_over(now)).is_some() || changed
    }

    fn remove_expired(&mut self, now: Moment) -> bool {
        let before = self.holders.len() + self.queue.len();
        let live = |ends_us: u64| ends_us > micros(now.boot);
        let is_known = self.reliance != Reliance::Unknown;
        self.holders.retain(|h| live(h.ends_us) || is_known && h.shown.is_some());
        self.queue.retain(|p| live(p.ends_us));
        self.forget_count();
        self.holders.len() + self.queue.len() != before
    }

    /// Makes all waiters at the front that fit together holders for the claim ttl; notifies them and the first
    /// waiter behind.
    ///
    /// They get a token only by their own claim (H1.1). Until then they count as holders, so that the limit holds
    /// (mutant `handed_not_counted`). The waiter behind them is notified, because it is the one that notices if
    /// they are dead (H1.6).
    fn hand_on(&mut self, now: Moment, rules: &Rules, wakes: &mut WakeList) {
        let mut bells = BELLS;
        let mut at = 0;
        loop {
            if self.advance_longest() {
                at = 0;
            }
            let Some(place) = self.queue.get(at) else { return };
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
            self.count_grant(place.priority, place.longest);
            let claim_ttl = rules.claim_ttl * if place.far || place.longest { rules.rare_turns } else { 1 };
            self.holders.push(Holder {
                owner: place.owner,
                mode: place.mode,
                ends_us: micros(now.boot.saturating_add(claim_ttl)),
                token: None,
                since_ms: millis(now.wall),
                label: place.label,
                process: None,
                shown: None,
            });
        }
    }

    /// Moves the place that has waited longest to the front if its turn has come. If it is one of these, which the store keeps
    /// behind the queue, it is returned, and must be put there. True if the order has changed.
    pub fn advance_longest_of<'a>(
        &mut self,
        behind: impl Iterator<Item = &'a Place>,
    ) -> (bool, Option<Place>) {
        if !self.needs_whole_queue() {
            return (false, None);
        }
        let mut all = self.clone();
        all.unseen = Unseen::default();
        behind.cloned().for_each(|place| all.add(place));
        let is_moved = all.advance_longest();
        let Some(longest) = all.queue.pop_front().filter(|_| is_moved) else { return (false, None) };
        if let Some(at) = self.queue.iter().position(|place| place.owner == longest.owner) {
            self.queue.remove(at);
            self.queue.push_front(longest);
            return (true, None);
        }
        (true, Some(longest))
    }

    /// Moves the place that has waited longest to the front if its turn has come. True if it did.
    ///
    /// Within a class the first one has waited longest, so it is the first one of a class. Places that are only notified are
    /// in no class.
    // L7.
    fn advance_longest(&mut self) -> bool {
        if !self.needs_whole_queue() || self.unseen.is_partial {
            return false;
        }
        self.compared_all = true;
        let mut first: [Option<(u64, usize)>; Priority::ALL.len()] = Default::default();
        for (at, place) in self.queue.iter().enumerate().filter(|(_, place)| place.turn) {
            first[place.priority as usize].get_or_insert((place.since_ms, at));
        }
        // Of two that came in the same millisecond, the one of the lower class.
        let Some((_, at)) = first.into_iter().flatten().min_by_key(|(since_ms, _)| *since_ms) else {
            return false;
        };
        let Some(place) = self.queue.remove(at) else { return false };
        self.queue.push_front(Place { longest: true, ..place });
        true
    }

    /// True if the last verbs have compared all places: then a store that keeps each place in a separate row must have read
    /// all of them.
    pub fn has_compared_all(&self) -> bool {
        self.compared_all
    }

    /// True if the next verb compares all places, because the turn of the one that has waited longest has come.
    pub fn needs_whole_queue(&self) -> bool {
        self.passed >= Some(Priority::PASSED_MAX) && !self.queue.iter().any(|place| place.longest)
    }

    /// Counts a grant to a waiter, or to a claim that passed waiters, if some are of another class.
    fn count_grant(&mut self, priority: Priority, is_longest: bool) {
        if is_longest {
            self.passed = Some(0);
        } else if self.passed.is_some() || !priority.is_normal() {
            self.passed = Some(self.passed.unwrap_or(0) + 1);
        }
        self.forget_count();
    }

    /// A queue that is empty has passed no waiter.
    fn forget_count(&mut self) {
        if self.queue.is_empty() && self.unseen.places == 0 && !self.unseen.is_partial {
            self.passed = None;
        }
    }

    /// Where a newcomer of this class is put in the queue.
    fn position_of_newcomer(&self, priority: Priority) -> usize {
        let is_behind = |place: &Place| !place.longest && place.priority < priority;
        self.queue.iter().position(is_behind).unwrap_or(self.queue.len())
    }

    fn has_room_for(&self, mode: Mode) -> bool {
        mode.fits_beside(self.holders.iter().map(|h| h.mode))
    }

    /// How long a waiter with `ahead` live places in front sleeps before it asks again: a safety timer (H1.6, H1.7).
    fn retry_after(&self, now: Moment, rules: &Rules, ahead: usize) -> Duration {
        let ends_us = self.holders.iter().map(|h| h.ends_us).min().unwrap_or(0);
        let left = match Duration::from_micros(ends_us.saturating_sub(micros(now.boot))) {
            Duration::ZERO if self.reliance != Reliance::Unknown => RELIED_ON,
            left => left,
        };
        let turns = u32::try_from(ahead).unwrap_or(u32::MAX);
        // The place of a dead waiter ends before 2 s have passed; the waiters behind it must ask then, not later. A
        // waiter far back need not know: otherwise all of them would ask at that moment (L6).
        let seen = if ahead < NEAR { self.queue.len() } else { 0 };
        let dies_us = self.queue.iter().take(seen).map(|p| p.ends_us).min().unwrap_or(u64::MAX);
        let dies = Duration::from_micros(dies_us.saturating_sub(micros(now.boot)));
        left.saturating_add(rules.claim_ttl.saturating_mul(turns))
            .min(dies)
            .clamp(Duration::from_millis(1), rules.retry_max)
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
        // Transactions look for the former token.
        holder.shown = None;
        let grant = Grant::new(claim.name.clone(), claim.owner, token, claim.ttl).with_block(block);
        ClaimAnswer::Granted(grant.ending_with_process(claim.ends_with_process))
    }

    /// The number of places with a turn in front of the place `at`, or of a newcomer of this class (L7).
    ///
    /// Every waiter blocks the claims behind it, whatever its mode. Otherwise a waiter with a smaller limit is
    /// overtaken forever (model `shared.mixed limits overtake`), and readers starve a writer.
    fn barring(&self, at: Option<usize>, priority: Priority) -> usize {
        let at = at.unwrap_or_else(|| self.position_of_newcomer(priority));
        let seen = self.queue.iter().take(at).filter(|p| p.turn).count();
        seen + self.unseen.ahead
    }

    fn keep_place(
        &mut self,
        at: Option<usize>,
        now: Moment,
        rules: &Rules,
        claim: &Claim,
    ) -> Result<usize, LedgerError> {
        let ahead = self.barring(at, claim.priority);
        if let Some(at) = at {
            self.queue[at].ends_us = micros(now.boot.saturating_add(rules.place_ttl));
            return Ok(ahead);
        }
        let waiting = self.queue.len() + self.unseen.places;
        if waiting >= rules.places_max {
            return Err(LedgerError::QueueFull { waiting });
        }
        self.put(Place::of(claim, now, rules, ahead));
        Ok(ahead)
    }

    fn one(&self, now: Moment) -> Option<HolderView> {
        self.holders.iter().max_by_key(|h| h.ends_us).map(|h| h.view(now))
    }

    /// Mints up to `block` tokens; returns the first one and their number.
    ///
    /// Tokens are never below the floor, so that a lost counter does not go back. They are never ahead of the clock by
    /// more than one token, so that after a loss the floor is not below a granted token (A10).
    ///
    /// # Errors
    /// [`LedgerError::TokensSpent`]; then nothing was changed.
    fn mint(&mut self, now: Moment, floor: Floor, block: u32) -> Result<(FencingToken, u32), LedgerError> {
        let time = micros(now.wall);
        // The last token before, and the minimum of the new last one. A block begins above a floor of `Count`.
        let skip_to = |floor: u64| (self.fence.max(floor.saturating_sub(1)), floor);
        let (before, least) = match floor {
            Floor::Clock => (self.fence, time),
            Floor::Above(counted) => (self.fence.max(counted), time),
            Floor::Count(floor) if self.fence == 0 => skip_to(floor.max(time)),
            Floor::Count(floor) => skip_to(floor.max(time - time % micros(Floor::GRAIN))),
        };
        let count = time.saturating_sub(before).clamp(1, u64::from(block.max(1)));
        let last = before.saturating_add(count).max(least);
        if last > FencingToken::MAX.get() {
            return Err(LedgerError::TokensSpent);
        }
        self.fence = last;
        let first = FencingToken::new(last - count + 1);
        Ok((first, u32::try_from(count).expect("BUG: count is clamped to a u32")))
    }

    /// True if there is no holder and no waiter: only the counter of tokens must be kept, and a memo if there is one.
    pub fn is_free(&self) -> bool {
        self.is_deserted() && self.unseen.places == 0
    }

    /// True if no process holds it or waits in its queue; a waiter elsewhere was [left out](Self::leave_out).
    pub fn is_deserted(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// True if there is a memo that has not expired: a free lock with one is not forgotten yet.
    pub fn has_memo(&self, now: Moment) -> bool {
        self.memo.as_ref().is_some_and(|memo| !memo.is_over(now))
    }

    /// The last token minted.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Forgets holders and places that end after `furthest` on the lease clock: they are from an earlier boot. The
    /// counter of tokens stays.
    pub fn forget_leases_beyond(&mut self, furthest: Duration) {
        self.holders.retain(|holder| holder.ends_us <= micros(furthest));
        self.queue.retain(|place| place.ends_us <= micros(furthest));
    }

    /// The same ledger with these places as its queue, in this order.
    #[must_use]
    pub fn with_queue(self, places: impl IntoIterator<Item = Place>, unseen: Unseen) -> Self {
        Self { queue: places.into_iter().collect(), unseen, ..self }
    }

    /// Takes the places out, for a store that keeps each in a separate row.
    pub fn take_queue(&mut self) -> VecDeque<Place> {
        self.unseen = Unseen::default();
        std::mem::take(&mut self.queue)
    }

    /// Notes how many places the store left out of the queue.
    pub fn leave_out(&mut self, unseen: Unseen) {
        self.unseen = unseen;
    }

    /// Takes this place out of the queue, for a store whose row of the lock has no room for it.
    pub fn take_place(&mut self, owner: OwnerId) -> Option<Place> {
        let at = self.queue.iter().position(|place| place.owner == owner)?;
        self.queue.remove(at)
    }

    /// The number of places with a turn that this one would pass if it were put into the queue.
    pub fn behind_newcomer(&self, priority: Priority) -> usize {
        self.queue.iter().skip(self.position_of_newcomer(priority)).filter(|place| place.turn).count()
    }

    /// Adds a place to the queue, unless its owner is known.
    pub fn add(&mut self, place: Place) {
        if !self.knows(place.owner) {
            self.put(place);
        }
    }

    /// True if grants are counted, because a waiter of another class than the default waits, or did since the queue was empty.
    pub fn counts_grants(&self) -> bool {
        self.passed.is_some()
    }

    /// Puts a place into the queue: behind those that are granted before it.
    fn put(&mut self, place: Place) {
        if !place.priority.is_normal() {
            self.passed.get_or_insert(0);
        }
        let at = if place.longest { 0 } else { self.position_of_newcomer(place.priority) };
        self.queue.insert(at, place);
    }

    /// Adds the places that were kept behind the queue, in their order. If another place is the first one then, a hand-off
    /// follows, as after a release. Returns the owners to notify.
    pub fn move_up(
        &mut self,
        now: Moment,
        rules: &Rules,
        places: impl IntoIterator<Item = Place>,
    ) -> Vec<(Audience, OwnerId)> {
        let mut wakes = WakeList::new();
        let first = self.queue.front().map(Place::owner);
        for place in places {
            self.put(place);
        }
        // If the first place is the same, it does not fit, and no place behind it may overtake (L7).
        let fits = |place: &Place| Some(place.owner) != first && place.turn && self.has_room_for(place.mode);
        if self.queue.front().is_some_and(fits) {
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

    /// The last moment of the owner's lease, on the store's lease clock; `None` if it holds nothing.
    pub fn last_moment(&self, owner: OwnerId) -> Option<Duration> {
        let holder = self.holders.iter().find(|holder| holder.owner == owner)?;
        Some(Duration::from_micros(holder.ends_us.saturating_sub(1)))
    }

    /// True if the owner has a place among those that were read.
    pub fn has_place(&self, owner: OwnerId) -> bool {
        self.queue.iter().any(|place| place.owner == owner)
    }

    /// As text, for a row.
    ///
    /// # Panics
    /// Never: the value has no map keys and no numbers that JSON cannot hold.
    pub fn encode(&self) -> String {
        let format = u32::from(self.holders.iter().any(|h| h.shown.is_some()));
        if format == self.format {
            return serde_json::to_string(self).expect("BUG: a ledger is plain data");
        }
        Self { format, ..self.clone() }.encode()
    }

    /// From [`encode`](Self::encode)d text.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is other text.
    pub fn decode(text: &str) -> Result<Self, LedgerError> {
        #[derive(Deserialize)]
        struct Stored {
            format: u32,
        }
        match serde_json::from_str::<Self>(text) {
            Ok(ledger) if ledger.format <= FORMAT => Ok(Self { format: 0, ..ledger }),
            Ok(_) => Err(LedgerError::Newer),
            Err(error) => match serde_json::from_str(text) {
                Ok(Stored { format }) if format > FORMAT => Err(LedgerError::Newer),
                _ => Err(error.into()),
            },
        }
    }

    /// Its visible state at `now`; expired holders and places, and an expired memo, are left out.
    pub fn view(&self, name: LockName, now: Moment) -> LockView {
        let live = |ends_us: u64| ends_us > micros(now.boot);
        let holders = self.holders.iter().filter(|h| live(h.ends_us)).map(|h| h.view(now)).collect();
        let queue = self.queue.iter().filter(|p| live(p.ends_us)).map(|p| p.view(now)).collect();
        let mut view = LockView::new(name, holders, queue, FencingToken::new(self.fence));
        view.memo = self.memo.as_ref().filter(|memo| !memo.is_over(now)).map(|memo| memo.view(now));
        view
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(format: &u32) -> bool {
    *format == 0
}

/// What a store has found out about the transactions that rely on the owner that a ledger [shows](Ledger::expose).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reliance {
    /// Nothing yet: a write that ends the owner finds out.
    #[default]
    Unknown,
    /// One was found: a release or a break ends the lease, and leaves the owner. An expired lease of it stays, held, though not by a
    /// client that may act on it. So a claim waits.
    Found,
    /// It was open a moment ago: an expired lease stays, and a write that ends the owner finds out whether it still is.
    Open,
}

/// The answer to [`Ledger::expose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposed {
    /// Transactions see this owner in this slot.
    Exposed {
        /// Its number.
        slot: u32,
    },
    /// This owner does not hold the lock under this token; nothing was changed.
    Gone,
    /// Others may hold the lock at the same time.
    Shared,
}

/// The result of a verb.
#[derive(Debug)]
#[must_use = "a change that is not stored did not happen"]
pub struct Change<A> {
    /// The answer to the caller.
    pub answer: A,
    /// The owners to notify once the change is stored.
    pub wakes: Vec<(Audience, OwnerId)>,
    /// False if the ledger is unchanged and need not be stored.
    pub changed: bool,
}

/// The places that a store left out of the queue of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Live places with a turn, behind the front and ahead of the place of the owner that asks, or of where it would be put.
    pub ahead: usize,
    /// All live places that were left out. Counts for the maximum length of the queue.
    pub places: usize,
    /// There may be others, of which nothing is known: no place is compared with them, and the queue is not empty.
    pub is_partial: bool,
}

/// A waiter's entry in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    owner: OwnerId,
    mode: Mode,
    /// False: it is notified, but a hand-off never makes it a holder.
    turn: bool,
    ends_us: u64,
    since_ms: u64,
    label: Label,
    /// It came behind many others, and may poll for its turn rarely ([`Rules::far`](crate::Rules::far)).
    #[serde(default, skip_serializing_if = "is_near")]
    far: bool,
    /// Its class.
    #[serde(default, skip_serializing_if = "Priority::is_normal")]
    priority: Priority,
    /// It is ahead of its class, because it has waited longest.
    #[serde(default, skip_serializing_if = "is_near")]
    longest: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about so")]
fn is_near(far: &bool) -> bool {
    !far
}

impl Place {
    /// The place of a claim, with `ahead` waiters before it.
    pub fn of(claim: &Claim, now: Moment, rules: &Rules, ahead: usize) -> Self {
        Self {
            owner: claim.owner,
            mode: claim.mode,
            turn: claim.wait == WaitMode::Turn,
            ends_us: micros(now.boot.saturating_add(rules.place_ttl)),
            since_ms: millis(now.wall),
            label: (*claim.label).clone(),
            far: rules.is_far(claim.mode, ahead),
            priority: claim.priority,
            longest: false,
        }
    }

    /// Its owner.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// How it will hold.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// True if it waits for a turn; false if it is only notified.
    pub fn waits_for_a_turn(&self) -> bool {
        self.turn
    }

    /// Its class.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// True if it is ahead of its class, because it has waited longest.
    pub fn is_ahead_of_its_class(&self) -> bool {
        self.longest
    }

    /// True if others may hold at the same time.
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
    /// [`LedgerError::Unreadable`] if it is other text.
    pub fn from_text(text: &str) -> Result<Self, LedgerError> {
        Ok(serde_json::from_str(text)?)
    }

    /// From [`encode`](Self::encode)d text, with the end that is stored separately: a place is kept by writing only
    /// that.
    ///
    /// # Errors
    /// [`LedgerError::Unreadable`] if it is other text.
    pub fn decode(text: &str, ends_us: u64) -> Result<Self, LedgerError> {
        Ok(Self { ends_us, ..serde_json::from_str(text)? })
    }

    fn view(&self, now: Moment) -> WaiterView {
        let waiting = now.wall.saturating_sub(Duration::from_millis(self.since_ms));
        let view = WaiterView::new(self.owner.to_string(), self.mode, Some(self.label.clone()), waiting);
        view.with_priority(self.priority)
    }
}

/// Points in time are µs of the store's lease clock; `since_ms` is ms of its wall clock, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    owner: OwnerId,
    mode: Mode,
    ends_us: u64,
    /// `None` after a hand-off, until the owner's own claim (H1.1).
    token: Option<u64>,
    since_ms: u64,
    label: Label,
    /// The process without which the lease ends. The store writes and reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    /// The slot in which the store shows this owner to transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shown: Option<u32>,
}

impl Holder {
    fn view(&self, now: Moment) -> HolderView {
        let mut holder = HolderView::new(self.owner.to_string(), self.mode);
        holder.token = self.token.map(FencingToken::new);
        holder.label = Some(self.label.clone());
        holder.since = Some(Duration::from_millis(self.since_ms));
        holder.expires_in = Some(Duration::from_micros(self.ends_us.saturating_sub(micros(now.boot))));
        holder
    }
}

/// What a transaction looks for: text that no other lease has.
pub fn proof(owner: OwnerId, token: u64) -> String {
    format!("{owner} {token}")
}

/// A memo of a lock, as it is stored: it outlives the lease of its holder.
///
/// Times are ms of the store's wall clock, which continues across a boot. `ends_ms` is the first field, because a
/// sweep of rows reads it in the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredMemo {
    ends_ms: u64,
    since_ms: u64,
    owner: OwnerId,
    token: u64,
    text: String,
}

impl StoredMemo {
    fn new(now: Moment, (owner, token): (OwnerId, FencingToken), memo: &Memo) -> Self {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        // A part of a millisecond counts as one, so that it is never kept for less than its time.
        let since_ms = millis(now.wall).saturating_add(1);
        let ends_ms = since_ms.saturating_add(millis(memo.kept()));
        Self { ends_ms, since_ms, owner, token: token.get(), text: memo.text().to_owned() }
    }

    fn is_over(&self, now: Moment) -> bool {
        Duration::from_millis(self.ends_ms) <= now.wall
    }

    fn view(&self, now: Moment) -> MemoView {
        let (since, ends) = (Duration::from_millis(self.since_ms), Duration::from_millis(self.ends_ms));
        let (age, left) = (now.wall.saturating_sub(since), ends.saturating_sub(now.wall));
        let by = (self.owner.to_string(), FencingToken::new(self.token));
        MemoView::new(self.text.clone(), by, age, left.min(ends.saturating_sub(since)))
    }
}

/// Why a ledger refused a verb.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The queue is full; nothing was changed.
    #[error("the queue of this lock is full: {waiting} owners wait already; try again later")]
    QueueFull {
        /// The number of waiters.
        waiting: usize,
    },
    /// The owner holds in another mode; nothing was changed.
    #[error(transparent)]
    OtherMode(#[from] OtherMode),
    /// The counter of fencing tokens is at [`FencingToken::MAX`](tenure_core::FencingToken::MAX); nothing was changed.
    #[error(
        "the counter of fencing tokens is at its maximum, 2^53 - 1: a wrong clock or another program has set it; \
         nothing is granted"
    )]
    TokensSpent,
    /// A newer version of Tenure wrote the stored text.
    #[error("the stored state of the lock is newer than this tenure: upgrade it")]
    Newer,
    /// The stored text is not a ledger.
    #[error("the stored state of the lock is damaged, or another program wrote it")]
    Unreadable(#[from] serde_json::Error),
}

impl LedgerError {
    /// The kind of the error for the caller: a full queue may have room later, any other error needs a person.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::QueueFull { .. } => ErrorKind::Unavailable,
            Self::Newer => ErrorKind::Unsupported,
            Self::OtherMode(_) => ErrorKind::Invalid,
            Self::TokensSpent | Self::Unreadable(_) => ErrorKind::Corrupt,
        }
    }
}

/// The newest stored form that this version reads and writes back.
const FORMAT: u32 = 1;

/// The owners to notify.
type WakeList = Vec<(Audience, OwnerId)>;

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Places of the kind `Wake` that one hand-off notifies: the first, and one more in case it is dead.
const BELLS: usize = 2;

/// How soon a waiter asks again while a transaction relies on a lease that has expired: no hint reports its end.
const RELIED_ON: Duration = Duration::from_millis(100);

/// Waiters from the front that ask again as soon as the place of another one may have expired.
const NEAR: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(wall_us: u64) -> Moment {
        Moment { boot: Duration::ZERO, wall: Duration::from_micros(wall_us) }
    }

    fn mint(ledger: &mut Ledger, wall_us: u64, floor: Floor, block: u32) -> (u64, u32) {
        let (first, count) = ledger.mint(at(wall_us), floor, block).unwrap();
        (first.get(), count)
    }

    /// L2, hazard 19: a step back of the clock does not take tokens back.
    #[test]
    fn tokens_grow_while_the_clock_stands_still_or_steps_back() {
        let mut ledger = Ledger::new(0);
        let tokens = [1000, 1000, 10, 0, 2000].map(|t| mint(&mut ledger, t, Floor::Clock, 1).0);
        assert_eq!(tokens, [1000, 1001, 1002, 1003, 2000]);
    }

    /// Model `floor.block 4 not clamped`: a block must not run ahead of the clock.
    #[test]
    fn a_block_is_clamped_to_the_clock_and_lies_above_every_earlier_token() {
        let mut ledger = Ledger::new(997);
        assert_eq!(mint(&mut ledger, 1000, Floor::Clock, 8), (998, 3));
        assert_eq!(mint(&mut ledger, 1000, Floor::Clock, 8), (1001, 1));
        assert_eq!(mint(&mut ledger, 5000, Floor::Clock, 8), (4993, 8));
        assert_eq!(ledger.fence(), 5000);
    }

    /// L2: nodes whose clocks differ count alike once they agree, and a counter that was lost starts above its
    /// past.
    #[test]
    fn a_node_of_a_quorum_counts_from_what_it_has_and_never_below_its_floor() {
        let mut ledger = Ledger::new(0);
        let tokens = [(1000, 0), (2000, 0), (3000, 0), (3000, 2500), (3000, 2500)];
        let tokens = tokens.map(|(t, floor)| mint(&mut ledger, t, Floor::Count(floor), 1).0);
        assert_eq!(tokens, [1000, 1001, 1002, 2500, 2501]);
        assert_eq!(mint(&mut Ledger::new(0), 900, Floor::Count(2600), 1).0, 2600);
        // A block as well: its first token is no smaller than the floor.
        assert_eq!(mint(&mut Ledger::new(0), 900, Floor::Count(2600), 8), (2600, 1));
        assert_eq!(mint(&mut Ledger::new(500), 900, Floor::Count(700), 8), (700, 8));
    }

    /// L2: a server that was restored to an earlier state counted the same tokens again, under the same run and
    /// history. Only its clock continued, so no token is smaller than the clock at its mint, with a quorum's nodes
    /// than its last grain.
    #[test]
    fn a_counter_that_was_put_back_repeats_no_token() {
        let grain = micros(Floor::GRAIN);
        for floor in [Floor::Clock, Floor::Above(20), Floor::Count(20)] {
            let snapshot = Ledger::new(10);
            let [first, second] =
                [7 * grain + 3, 8 * grain].map(|t| mint(&mut snapshot.clone(), t, floor, 8).0);
            assert!(first >= 7 * grain - 8 && second > first, "{floor:?}: {first}, then {second}");
        }
        let mut node = Ledger::new(10);
        let tokens = [7 * grain + 3, 7 * grain + 9, 8 * grain - 1, 8 * grain].map(|t| {
            let (first, _) = mint(&mut node, t, Floor::Count(20), 1);
            first - 7 * grain
        });
        assert_eq!(tokens, [0, 1, 2, grain], "within a grain, nodes count alike");
    }

    /// L2: at 2^53 the same number came again and again, because a store that keeps it as a double cannot count
    /// further.
    #[test]
    fn at_the_end_of_what_can_be_counted_a_mint_is_refused_and_changes_nothing() {
        let max = FencingToken::MAX.get();
        for floor in [Floor::Clock, Floor::Above(max - 1), Floor::Count(0)] {
            let mut ledger = Ledger::new(max - 1);
            assert_eq!(mint(&mut ledger, 1000, floor, 8).0, max);
            assert!(matches!(ledger.mint(at(1000), floor, 1), Err(LedgerError::TokensSpent)));
            assert!(matches!(Ledger::new(0).mint(at(max + 1), floor, 1), Err(LedgerError::TokensSpent)));
            assert_eq!(ledger.fence(), max);
        }
    }
}
