//! `Hold`: the life of a grant, from belief in it until it is released or lost.

use std::time::Duration;

use tenure_core::{FencingToken, Moment, Renewal, Timing};

use crate::error::{Loss, Lost};

/// What the engine must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldAction {
    /// Send a renewal now.
    Renew,
    /// Do nothing until then, unless a clock steps.
    Wait { until: Moment },
    /// No holder has taken it since it was passed on, or it was kept idle for its time: release it.
    Release,
    /// Nothing is left to do.
    Done,
}

/// Statistics of the renewals of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewals {
    /// How many succeeded.
    pub succeeded: u32,
    /// How many failed, or stayed unanswered.
    pub failed: u32,
    /// How long the slowest of those that succeeded took, from before it was sent.
    pub slowest: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldState {
    Believing {
        renew_at: Moment,
    },
    /// A hint after the renewal was sent is not answered by it.
    Renewing {
        sent_at: Moment,
        hinted: bool,
    },
    /// The state that a lease reports after its guard.
    Released(Lost),
    Lost(Lost),
}

/// A grant's life.
///
/// ```text
/// Believing ── due ──► Renewing ── Renewed ──► Believing     until := max(until, sent_at + ttl − drift)
///     │                    │  Err(_) ─────────► Believing     until unchanged, try again sooner
///     │ now ≥ until        │  Gone ───────────► Lost(Taken)
///     ▼                    ▼
///   Lost(Expired)       Lost(Expired)
/// release ─► Released: nothing is a loss any more, and nothing is believed
/// pass on, from Believing ─► Released here, Believing with the next token there
/// ```
///
/// * `until` counts from before the request was sent; it never moves back (H2.2).
/// * Lost is terminal: a later answer is ignored (H2.3, L5).
/// * The clock decides, not a timer: every method first checks whether `until` has passed (L1).
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    state: HoldState,
    until: Moment,
    timing: Timing,
    /// The lease that the server granted; a renewal extends by it.
    ttl: Duration,
    /// `max_hold`: no renewal extends beyond it (hazard 25).
    cap: Option<Moment>,
    failed: u32,
    token: FencingToken,
    /// It has no holder yet, and must be taken by this moment.
    take_by: Option<Moment>,
    /// It has no next holder yet, but is kept for one.
    is_idle: bool,
    /// A client elsewhere may wait for it, or may have acquired it: it is passed on no more.
    is_wanted: bool,
    renewals: Renewals,
}

impl Hold {
    /// Begins with a grant that is valid `until`, counted from when its request was sent.
    pub(crate) fn new(
        until: Moment,
        ttl: Duration,
        timing: Timing,
        cap: Option<Moment>,
        token: FencingToken,
    ) -> Self {
        let sent_at = until.minus(ttl.saturating_sub(timing.drift()));
        let until = cap.map_or(until, |cap| until.earlier(cap));
        let state = HoldState::Believing { renew_at: until };
        let mut hold = Self {
            state,
            until,
            timing,
            ttl,
            cap,
            failed: 0,
            token,
            take_by: None,
            is_idle: false,
            is_wanted: false,
            renewals: Renewals::default(),
        };
        hold.state = HoldState::Believing { renew_at: hold.next_after(sent_at) };
        hold
    }

    /// From now on it is not valid beyond `cap`; it has no cap yet.
    pub(crate) fn cap_at(&mut self, cap: Moment) {
        (self.cap, self.until) = (Some(cap), self.until.earlier(cap));
    }

    /// Reads the clock, then returns the next step.
    pub(crate) fn poll(&mut self, now: Moment) -> HoldAction {
        self.look(now);
        match self.state {
            HoldState::Believing { .. } | HoldState::Renewing { .. } if self.is_abandoned(now) => {
                HoldAction::Release
            }
            HoldState::Believing { renew_at } if renew_at.is_over(now) => HoldAction::Renew,
            HoldState::Believing { renew_at } => self.wait(renew_at),
            HoldState::Renewing { .. } => self.wait(self.until),
            HoldState::Released(_) | HoldState::Lost(_) => HoldAction::Done,
        }
    }

    /// When the renewal after the request sent at `sent_at` is due: never, if it could not move the end.
    fn next_after(&self, sent_at: Moment) -> Moment {
        if self.is_capped() { self.until } else { sent_at + self.timing.renewal_period() }
    }

    fn wait(&self, until: Moment) -> HoldAction {
        let until = self.take_by.map_or(until, |take_by| until.earlier(take_by));
        HoldAction::Wait { until: until.earlier(self.until) }
    }

    /// As [`poll`](Self::poll), while others are renewed: a renewal that is due soon joins their request.
    pub(crate) fn poll_beside(&mut self, now: Moment) -> HoldAction {
        match self.poll(now) {
            HoldAction::Wait { .. } if self.is_nearly_due(now) => HoldAction::Renew,
            action => action,
        }
    }

    /// Within a thirty-second of the pause between two renewals.
    fn is_nearly_due(&self, now: Moment) -> bool {
        let soon = now + self.timing.renewal_period() / 32;
        let HoldState::Believing { renew_at } = self.state else { return false };
        renew_at.is_over(soon) && self.failed == 0 && !self.is_capped()
    }

    /// A renewal is about to be sent.
    pub(crate) fn on_sent(&mut self, now: Moment) {
        self.look(now);
        if matches!(self.state, HoldState::Believing { .. }) {
            self.state = HoldState::Renewing { sent_at: now, hinted: false };
        }
    }

    /// The renewal was answered; `None` if it failed or stayed unanswered.
    pub(crate) fn on_renewal(&mut self, now: Moment, answer: Option<Renewal>) {
        self.look(now);
        let HoldState::Renewing { sent_at, hinted } = self.state else { return };
        match answer {
            Some(Renewal::Renewed) => {
                self.failed = 0;
                self.renewals.succeeded += 1;
                self.renewals.slowest = self.renewals.slowest.max(sent_at.elapsed(now));
                let until = self.timing.believed_until(sent_at, self.ttl);
                let until = self.cap.map_or(until, |cap| until.earlier(cap));
                if until.remaining(now) > self.until.remaining(now) {
                    self.until = until;
                }
                let renew_at = if hinted { now } else { self.next_after(sent_at) };
                self.state = HoldState::Believing { renew_at };
            }
            Some(Renewal::Gone) => self.lose(now, Loss::Taken),
            None => {
                self.failed += 1;
                self.renewals.failed += 1;
                // ttl/24: soon enough to use the rest of the lease, without flooding a store that refuses.
                self.state = HoldState::Believing { renew_at: now + self.timing.renewal_timeout() / 4 };
            }
        }
    }

    /// The lease may have been broken, or a client waits: ask immediately, or release an unused lease.
    pub(crate) fn on_wake(&mut self, now: Moment) {
        self.on_wanted(now);
        match &mut self.state {
            HoldState::Believing { renew_at } => *renew_at = now,
            HoldState::Renewing { hinted, .. } => *hinted = true,
            HoldState::Released(_) | HoldState::Lost(_) => {}
        }
    }

    /// A client elsewhere may wait: it is passed on no more, and released if no holder uses it.
    pub(crate) fn on_wanted(&mut self, now: Moment) {
        self.is_wanted = true;
        if self.is_idle {
            self.take_by = Some(now);
        }
    }

    /// The holder releases it: from now on nothing is a loss, nothing is renewed and nothing is valid.
    ///
    /// Returns the loss if it was lost before.
    pub(crate) fn release(&mut self, now: Moment) -> Result<(), Lost> {
        self.look(now);
        if let HoldState::Lost(lost) = self.state {
            return Err(lost);
        }
        if !matches!(self.state, HoldState::Released(_)) {
            self.state = HoldState::Released(Lost::new(Loss::Released, self.token, now.wall));
        }
        Ok(())
    }

    /// Passes the lease on to the next holder in this process, with this token: from now on it is released here,
    /// and valid there until the same end.
    ///
    /// It must be [taken](Self::take) within the claim ttl, like a lock that the store hands off.
    ///
    /// `None`, and nothing changes, unless two thirds of the ttl are left, no renewal is under way or has
    /// failed, and nothing ends it but its ttl (H5.1). Once it is released or lost it is not passed on any
    /// more (H5.3).
    pub(crate) fn pass_on(&mut self, now: Moment, token: FencingToken) -> Option<Self> {
        self.look(now);
        let is_passed = matches!(self.state, HoldState::Believing { .. }) && self.cap.is_none();
        let is_fresh = self.failed == 0 && self.until.remaining(now) * 3 >= self.ttl * 2;
        if !is_passed || self.is_wanted || !is_fresh {
            return None;
        }
        let (take_by, renewals) = (Some(now + Timing::CLAIM_TTL), Renewals::default());
        let passed = Self { token, take_by, renewals, ..self.clone() };
        self.state = HoldState::Released(Lost::new(Loss::Released, self.token, now.wall));
        Some(passed)
    }

    /// As [`pass_on`](Self::pass_on), but to the holder that takes it within this time.
    pub(crate) fn keep_idle(&mut self, now: Moment, token: FencingToken, idle: Duration) -> Option<Self> {
        let kept = self.pass_on(now, token)?;
        Some(Self { take_by: Some(now + idle), is_idle: true, ..kept })
    }

    /// The holder that it was passed on to has seen it; returns the loss, if it has ended.
    pub(crate) fn take(&mut self, now: Moment) -> Result<(), Lost> {
        (self.take_by, self.is_idle) = (None, false);
        self.check(now)
    }

    /// It was kept idle, and may be taken. Its renewals succeed, at least half of the ttl is left, no client is
    /// known to wait for it elsewhere, and its idle time has not passed (H5.1).
    pub(crate) fn may_be_taken(&mut self, now: Moment) -> bool {
        let is_fresh = self.failed == 0 && self.until.remaining(now) * 2 >= self.ttl;
        self.check(now).is_ok() && is_fresh && !self.is_wanted && !self.is_abandoned(now)
    }

    /// Released if it is kept idle; true if so. One that was taken at this moment is left alone.
    pub(crate) fn end_idle(&mut self, now: Moment) -> bool {
        if !self.is_idle {
            return false;
        }
        self.on_wanted(now);
        self.is_idle = false;
        self.abandon(now)
    }

    /// Released if it was passed on and no holder has taken it in time; true if so.
    pub(crate) fn abandon(&mut self, now: Moment) -> bool {
        self.is_abandoned(now) && self.release(now).is_ok()
    }

    fn is_abandoned(&self, now: Moment) -> bool {
        self.take_by.is_some_and(|take_by| take_by.is_over(now))
    }

    /// Whether it is valid at `now`, by the clock itself.
    pub(crate) fn check(&mut self, now: Moment) -> Result<(), Lost> {
        self.look(now);
        match self.state {
            HoldState::Lost(lost) | HoldState::Released(lost) => Err(lost),
            HoldState::Believing { .. } | HoldState::Renewing { .. } => Ok(()),
        }
    }

    /// How long it stays valid.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match self.state {
            HoldState::Lost(_) | HoldState::Released(_) => Duration::ZERO,
            HoldState::Believing { .. } | HoldState::Renewing { .. } => self.until.remaining(now),
        }
    }

    /// How its renewals went.
    pub(crate) fn renewals(&self) -> Renewals {
        self.renewals
    }

    /// A renewal has failed and none has succeeded since.
    pub(crate) fn is_at_risk(&self) -> bool {
        self.failed > 0
    }

    fn is_capped(&self) -> bool {
        self.cap.is_some_and(|cap| cap == self.until)
    }

    fn look(&mut self, now: Moment) {
        let believing = matches!(self.state, HoldState::Believing { .. } | HoldState::Renewing { .. });
        if believing && self.until.is_over(now) {
            let over = self.is_capped();
            self.lose(now, if over { Loss::MaxHold } else { Loss::Expired });
        }
    }

    fn lose(&mut self, now: Moment, cause: Loss) {
        self.state = HoldState::Lost(Lost::new(cause, self.token, now.wall));
    }
}
