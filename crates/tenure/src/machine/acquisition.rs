//! `Acquisition`: a claim's life, from the first request until it is granted or ends without a grant.

use std::time::Duration;

use tenure_core::{
    BackendError, ClaimAnswer, ErrorKind, Grant, HolderView, Moment, Outcome, Timing, WaitMode,
};

use crate::machine::backoff::Backoff;

/// Grants in a row that came too late to be valid. After these, waiting longer is pointless (hazard 41).
const TOO_LATE_MAX: u32 = 3;

/// What the engine must do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AcquireAction {
    /// Send the claim; under a new owner if an earlier one was released.
    Ask { fresh_owner: bool },
    /// Wait until then, or until notified.
    Wait { until: Moment },
    /// Send a release: the store has, or may have, a grant or place that must not stay.
    Release,
    /// Stop.
    Finish(AcquireEnd),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AcquireEnd {
    Granted { grant: Grant, until: Moment },
    TimedOut { waited: Duration, ahead: Option<usize>, holder: Option<HolderView> },
    Failed(AcquireFailure),
}

/// The place of a claim in the queue of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<'a> {
    /// How many are ahead.
    pub(crate) ahead: Option<usize>,
    pub(crate) holder: Option<&'a HolderView>,
}

/// The error with which it ended; equal if it has the same kind and outcome.
#[derive(Clone, Debug)]
pub(crate) struct AcquireFailure(pub(crate) BackendError);

impl PartialEq for AcquireFailure {
    fn eq(&self, other: &Self) -> bool {
        (self.0.kind(), self.0.outcome()) == (other.0.kind(), other.0.outcome())
    }
}

#[derive(Clone, Debug, PartialEq)]
enum AcquireState {
    Asking {
        sent_at: Option<Moment>,
    },
    Waiting {
        until: Moment,
    },
    /// A release is under way. Afterwards it is either done, or asks again under a new owner.
    Releasing {
        then: Option<AcquireEnd>,
    },
    Done(AcquireEnd),
}

/// A claim's life.
///
/// ```text
///           ┌────────── wake / delay over ──────────┐
/// Asking ───┤ Queued ──────────────────────► Waiting(until)
///   │       │ Err(transient) ──────────────► Waiting(back-off), same owner
///   │       │ no answer before the deadline,
///   │       │   and refused before ────────► Waiting(deadline)
///   │       │ Split ───────────────────────► Waiting(until), new owner
///   │       │ Granted, no validity left ───► Releasing ─► Asking, new owner
///   │       │ Granted, validity left ──────► Done(Granted)
///   │       │ Busy ────────────────────────► Done(TimedOut)
///   └───────┴ Err(permanent) ──────────────► Releasing if it may be there ─► Done(Failed)
/// deadline, from Asking or Waiting ────────► Releasing if it may be there ─► Done(TimedOut)
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    state: AcquireState,
    timing: Timing,
    wait: WaitMode,
    started: Moment,
    /// When to stop waiting; `None` is never.
    deadline: Option<Moment>,
    /// How long the store may fail in a row.
    patience: Duration,
    /// Since when the store has been failing without a break, or the time from which it will serve, and the last
    /// error.
    failing: Option<(Moment, BackendError)>,
    /// How many requests in a row have failed.
    failures: u32,
    backoff: Backoff,
    too_late: u32,
    fresh_owner: bool,
    /// The caller chose the owner: it cannot continue with another one.
    keeps_owner: bool,
    /// The owner of the claim may have a place or the lock.
    may_be_there: bool,
    /// The same, before the request that is on its way.
    was_there: bool,
    /// Another owner had the lock, or was ahead, at some time of this wait.
    was_busy: bool,
    ahead: Option<usize>,
    holder: Option<HolderView>,
}

impl Acquisition {
    /// Begins. `budget` is how long to wait: zero asks once, `None` waits indefinitely.
    pub(crate) fn new(
        now: Moment,
        timing: Timing,
        budget: Option<Duration>,
        patience: Duration,
        seed: u64,
    ) -> Self {
        let wait = if budget.is_some_and(|b| b.is_zero()) { WaitMode::No } else { WaitMode::Turn };
        Self {
            state: AcquireState::Asking { sent_at: None },
            timing,
            wait,
            started: now,
            deadline: budget.map(|b| now + b),
            patience,
            failing: None,
            failures: 0,
            backoff: Backoff::new(seed),
            too_late: 0,
            fresh_owner: false,
            keeps_owner: false,
            may_be_there: false,
            was_there: false,
            was_busy: false,
            ahead: None,
            holder: None,
        }
    }

    /// The same, under an owner that the caller chose: where another one would be needed, it fails.
    pub(crate) fn keeping_owner(self) -> Self {
        Self { keeps_owner: true, ..self }
    }

    /// The same, asking once, and no longer than the budget.
    pub(crate) fn asking_once(self) -> Self {
        Self { wait: WaitMode::No, ..self }
    }

    /// The next step at `now`. Without an event in between, a second call returns the same.
    pub(crate) fn poll(&mut self, now: Moment) -> AcquireAction {
        match &self.state {
            AcquireState::Asking { .. } if self.fresh_owner && self.keeps_owner => {
                self.finish(AcquireEnd::Failed(AcquireFailure(spent())));
                self.poll(now)
            }
            AcquireState::Asking { .. } => AcquireAction::Ask { fresh_owner: self.fresh_owner },
            AcquireState::Waiting { .. } if self.is_out_of_time(now) => {
                let verdict = self.timed_out(now);
                self.finish(verdict);
                self.poll(now)
            }
            AcquireState::Waiting { until } if until.is_over(now) => {
                self.state = AcquireState::Asking { sent_at: None };
                self.poll(now)
            }
            AcquireState::Waiting { until } => AcquireAction::Wait {
                until: self.deadline.map_or(*until, |deadline| until.earlier(deadline)),
            },
            AcquireState::Releasing { .. } => AcquireAction::Release,
            AcquireState::Done(verdict) => AcquireAction::Finish(verdict.clone()),
        }
    }

    /// How long the request may take: no longer than the caller wants to wait, if the store is slow.
    pub(crate) fn request_timeout(&self, now: Moment) -> Duration {
        let usual = self.timing.request_timeout();
        let left = self.limit().map(|deadline| deadline.boot.saturating_sub(now.boot));
        left.map_or(usual, |left| left.max(Duration::from_millis(50)).min(usual))
    }

    /// How the claim waits.
    pub(crate) fn wait(&self) -> WaitMode {
        self.wait
    }

    /// True if a release is needed should the caller leave now.
    pub(crate) fn may_be_there(&self) -> bool {
        self.may_be_there
    }

    /// The store's last answer.
    pub(crate) fn position(&self) -> Position<'_> {
        Position { ahead: self.ahead, holder: self.holder.as_ref() }
    }

    /// The caller has been waiting behind another owner, perhaps of its own process.
    pub(crate) fn on_busy(&mut self) {
        self.was_busy = true;
    }

    /// Another owner had the lock, or was ahead.
    pub(crate) fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// The claim is about to be sent: validity counts from here (H1.1).
    pub(crate) fn on_sent(&mut self, now: Moment) {
        if matches!(self.state, AcquireState::Asking { .. }) {
            self.state = AcquireState::Asking { sent_at: Some(now) };
            self.fresh_owner = false;
            self.was_there = self.may_be_there;
            self.may_be_there = true;
        }
    }

    /// The claim was answered.
    pub(crate) fn on_answer(&mut self, now: Moment, answer: Result<ClaimAnswer, BackendError>) {
        let AcquireState::Asking { sent_at: Some(sent_at) } = self.state else { return };
        match answer {
            Ok(answer) => {
                (self.failing, self.failures) = (None, 0);
                self.backoff.reset();
                self.on_verdict(now, sent_at, answer);
            }
            Err(error) => self.on_error(now, error),
        }
    }

    fn on_verdict(&mut self, now: Moment, sent_at: Moment, answer: ClaimAnswer) {
        self.was_busy |= !matches!(answer, ClaimAnswer::Granted(_));
        match answer {
            ClaimAnswer::Granted(grant) => self.on_granted(now, sent_at, grant),
            ClaimAnswer::Queued { ahead, retry_after, holder } => {
                (self.ahead, self.holder) = (Some(ahead), holder);
                self.state = AcquireState::Waiting { until: now + retry_after };
            }
            ClaimAnswer::Split { retry_after, holder } => {
                (self.ahead, self.holder) = (None, holder);
                // The store releases the partial grants; this owner must not be used again (H3.4).
                self.may_be_there = false;
                self.fresh_owner = true;
                if self.wait == WaitMode::No {
                    let verdict = self.timed_out(now);
                    self.finish(verdict);
                } else {
                    self.state = AcquireState::Waiting { until: now + retry_after };
                }
            }
            ClaimAnswer::Busy { holder, .. } => {
                (self.ahead, self.holder) = (None, holder);
                self.may_be_there = false;
                let verdict = self.timed_out(now);
                self.finish(verdict);
            }
        }
    }

    fn on_granted(&mut self, now: Moment, sent_at: Moment, grant: Grant) {
        let until = self.timing.believed_until(sent_at, grant.ttl);
        // Elapsed check after every reply that grants (hazards 12, 47).
        if !until.is_over(now) {
            self.state = AcquireState::Done(AcquireEnd::Granted { grant, until });
            return;
        }
        self.too_late += 1;
        let hopeless = self.too_late >= TOO_LATE_MAX;
        let verdict = if hopeless {
            Some(AcquireEnd::Failed(AcquireFailure(too_slow(self.timing.ttl()))))
        } else {
            None
        };
        self.state = AcquireState::Releasing { then: verdict };
    }

    fn on_error(&mut self, now: Moment, error: BackendError) {
        if error.outcome() == Outcome::NotApplied {
            self.may_be_there = self.was_there;
        }
        if let Some(until) = self.cut_short_until(now, &error).filter(|_| self.has_reason()) {
            self.failures += u32::from(self.failing.is_some());
            self.state = AcquireState::Waiting { until };
            return;
        }
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        // A store that has announced when it will serve is not failing until then.
        let since = error.retry_hint().map_or(since, |hint| (now + hint).later(since));
        let worth_it = error.kind().is_transient() && self.wait != WaitMode::No;
        if !worth_it || since.elapsed(now) >= self.patience {
            self.finish(AcquireEnd::Failed(AcquireFailure(error)));
        } else {
            self.failing = Some((since, error.clone()));
            self.failures += 1;
            let delay = self.backoff.delay();
            let delay = error.retry_hint().map_or(delay, |hint| hint.clamp(delay, Duration::from_secs(2)));
            self.state = AcquireState::Waiting { until: now + delay };
        }
    }

    /// The caller's time ended the request, and not the store: until when it could have been repeated. It tells
    /// nothing of the store.
    pub(crate) fn cut_short_until(&self, now: Moment, error: &BackendError) -> Option<Moment> {
        let until = match error.kind() {
            ErrorKind::TimedOut => now,
            ErrorKind::Throttled => now + error.retry_hint().unwrap_or(Duration::from_millis(1)),
            _ => return None,
        };
        self.limit().is_some_and(|limit| limit.boot <= until.boot).then_some(until)
    }

    /// When the caller's time ends. One that asks once without a limit gives a request the usual time.
    fn limit(&self) -> Option<Moment> {
        self.deadline.filter(|deadline| *deadline != self.started)
    }

    /// What came before explains more than a request that was cut short: that another owner held the lock, or why
    /// the store cannot serve.
    fn has_reason(&self) -> bool {
        self.was_busy || self.failing.is_some()
    }

    /// A hint arrived: ask now rather than later.
    pub(crate) fn on_wake(&mut self) {
        if matches!(self.state, AcquireState::Waiting { .. }) {
            self.state = AcquireState::Asking { sent_at: None };
        }
    }

    /// The release was sent; whatever its result, that owner is finished.
    pub(crate) fn on_released(&mut self) {
        if let AcquireState::Releasing { then } = &mut self.state {
            let next = then.take();
            self.may_be_there = false;
            self.ahead = None;
            self.fresh_owner = true;
            self.state = next.map_or(AcquireState::Asking { sent_at: None }, AcquireState::Done);
        }
    }

    fn finish(&mut self, verdict: AcquireEnd) {
        self.state = if self.may_be_there {
            AcquireState::Releasing { then: Some(verdict) }
        } else {
            AcquireState::Done(verdict)
        };
    }

    fn is_out_of_time(&self, now: Moment) -> bool {
        // By the clock that does not step: the length of the wait does not affect safety.
        self.deadline.is_some_and(|deadline| deadline.boot <= now.boot)
    }

    fn timed_out(&self, now: Moment) -> AcquireEnd {
        // A store that missed one request after it had named a holder is busy, and has not failed.
        let is_known_busy = self.failures == 1 && self.holder.is_some();
        if let Some((_, error)) = self.failing.as_ref().filter(|_| !is_known_busy) {
            return AcquireEnd::Failed(AcquireFailure(error.clone()));
        }
        AcquireEnd::TimedOut {
            waited: self.started.elapsed(now),
            ahead: self.ahead,
            holder: self.holder.clone(),
        }
    }
}

fn too_slow(ttl: Duration) -> BackendError {
    let message = format!("the store answers more slowly than a lease of {ttl:?} lasts; use a longer ttl");
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message)
}

fn spent() -> BackendError {
    let message =
        "the owner that was chosen was given up by the store before it could enter; choose another one";
    BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message)
}
