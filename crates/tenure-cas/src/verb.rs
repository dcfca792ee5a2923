//! The verbs of a ledger, as values that can be run again on a newer one.

use std::time::Duration;

use tenure_core::{
    BackendError, Claim, ClaimAnswer, FencingToken, HolderView, Memo, Moment, Noted, OwnerId, Released,
    Renewal, Wait,
};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

use crate::cell::Patience;

/// When a verb runs.
pub(crate) struct At {
    /// Lengthened by the slack.
    rules: Rules,
    now: Moment,
    /// The store's clock reached that time at most so long ago.
    slack: Duration,
}

impl At {
    pub(crate) fn new(rules: &Rules, now: Moment, slack: Duration) -> Self {
        let (claim_ttl, place_ttl) = (rules.claim_ttl + slack, rules.place_ttl + slack);
        Self { rules: Rules { claim_ttl, place_ttl, ..*rules }, now, slack }
    }
}

/// One verb.
pub(crate) trait Verb: Sync {
    /// What the caller is told.
    type Answer: Send + Sync;

    /// Whether the cell is made if it is not there.
    const CREATES: bool;

    /// Whether it waits for who has the cell locked.
    const WAITS: bool = true;

    /// How long its writes wait for that, at first.
    const PATIENCE: Patience = if Self::WAITS { Patience::Any } else { Patience::None };

    /// Whether it waits for other verbs of this handle on the lock, so that they do not race each other. Who holds does not.
    const IN_TURN: bool = false;

    /// Runs on a ledger: every lease that it gives is longer by the slack.
    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<Self::Answer>, LedgerError>;

    /// The claim, if this is one that waits for a place or the lock.
    fn claim(&self) -> Option<&Claim> {
        None
    }

    /// # Errors
    /// If it was cancelled, and is to go no further.
    fn must_be_wanted(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Whether the cell is written even if nothing changes, so that no client moves up whom it has read beside the cell before.
    fn bars(&self) -> bool {
        false
    }

    /// What can be answered without a write.
    fn glance(&self, _ledger: &Ledger, _rules: &Rules, _now: Moment) -> Option<Self::Answer> {
        None
    }

    /// It may be tried later, so that those who hold, or are about to, win the races for the cell (L6).
    fn yields(&self, _answer: &Self::Answer) -> bool {
        false
    }

    /// It did what was asked for, so that what is stored is worth a try without being read first: the store compares.
    fn is_plain(&self, answer: &Self::Answer) -> bool;

    /// With `answer` nobody can say whether an earlier try of ours, which would have been answered with `maybe`, has done it.
    fn is_unsettled(&self, maybe: &Self::Answer, answer: &Self::Answer) -> bool;
}

/// The more stand before one who waits, the more rarely it asks, and the longer its place lasts without (L6).
pub(crate) fn crowded(rules: &Rules, waiting: usize) -> Rules {
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    let retry_max =
        (Duration::from_secs(1) * waiting / ASKS).clamp(rules.retry_max, rules.retry_max * ASKS_LESS);
    Rules { retry_max, place_ttl: rules.place_ttl.max(retry_max * 3), ..*rules }
}

/// A second for so many that stand before one.
const ASKS: u32 = 50;
/// How many times more rarely than by the rules one asks at most: every 10 s instead of 2 s.
const ASKS_LESS: u32 = 5;

impl Verb for Claim {
    type Answer = ClaimAnswer;
    const CREATES: bool = true;
    const IN_TURN: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<ClaimAnswer>, LedgerError> {
        let rules = crowded(&at.rules, ledger.waiting());
        if at.slack.is_zero() {
            return ledger.claim(at.now, &rules, self);
        }
        let longer = Self { ttl: self.ttl + at.slack, ..self.clone() };
        let mut change = ledger.claim(at.now, &rules, &longer)?;
        // What was asked for is what may be believed.
        if let ClaimAnswer::Granted(grant) = &mut change.answer {
            grant.ttl = self.ttl;
        }
        Ok(change)
    }

    fn claim(&self) -> Option<&Claim> {
        (self.wait != Wait::No).then_some(self)
    }

    fn must_be_wanted(&self) -> Result<(), BackendError> {
        self.asker.must_be_there()
    }

    /// A place that lasts until the next question but one is kept by no write.
    fn glance(&self, ledger: &Ledger, rules: &Rules, now: Moment) -> Option<ClaimAnswer> {
        let rules = crowded(rules, ledger.waiting());
        ledger.standing(now, &rules, self, rules.retry_max * 3 / 2)
    }

    fn yields(&self, answer: &ClaimAnswer) -> bool {
        !matches!(answer, ClaimAnswer::Granted(_))
    }

    fn is_plain(&self, answer: &ClaimAnswer) -> bool {
        matches!(answer, ClaimAnswer::Granted(_))
    }

    /// The same owner asks again: it holds, or waits, or does not, and the ledger says which.
    fn is_unsettled(&self, _maybe: &ClaimAnswer, _answer: &ClaimAnswer) -> bool {
        false
    }
}

/// Extends the lease of an owner.
pub(crate) struct Renewing {
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Duration,
}

impl Verb for Renewing {
    type Answer = Renewal;
    const CREATES: bool = false;
    // A stranger's lock on one cell would be the end of every lease that is renewed behind it in the same connection.
    const WAITS: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<Renewal>, LedgerError> {
        Ok(ledger.renew(at.now, &at.rules, self.owner, self.ttl + at.slack))
    }

    fn is_plain(&self, answer: &Renewal) -> bool {
        *answer == Renewal::Renewed
    }

    /// Who is gone now is gone, whatever became of an earlier try.
    fn is_unsettled(&self, _maybe: &Renewal, _answer: &Renewal) -> bool {
        false
    }
}

/// Takes an owner out.
pub(crate) struct Leaving {
    pub(crate) owner: OwnerId,
    /// It had a place beside the cell, which may be about to move up.
    pub(crate) had_place: bool,
}

impl Verb for Leaving {
    type Answer = Released;
    const CREATES: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<Released>, LedgerError> {
        Ok(ledger.release(at.now, &at.rules, self.owner))
    }

    fn bars(&self) -> bool {
        self.had_place
    }

    fn is_plain(&self, answer: &Released) -> bool {
        *answer == Released::Released
    }

    /// L9: it was there, and is not any more. Our own try may have released it, or it was over or broken before that.
    fn is_unsettled(&self, maybe: &Released, answer: &Released) -> bool {
        (*maybe, *answer) == (Released::Released, Released::WasGone)
    }
}

/// Leaves a memo.
pub(crate) struct Noting<'a> {
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) memo: &'a Memo,
}

impl Verb for Noting<'_> {
    type Answer = Noted;
    const CREATES: bool = false;

    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<Noted>, LedgerError> {
        // It is kept for its time from when it is written.
        let longer = Memo::new(self.memo.text(), self.memo.kept() + at.slack);
        let memo = longer.as_ref().unwrap_or(self.memo);
        Ok(ledger.note(at.now, &at.rules, (self.owner, self.token), memo))
    }

    fn is_plain(&self, answer: &Noted) -> bool {
        *answer == Noted::Noted
    }

    /// L9: an earlier try may have left it, before the lease ended.
    fn is_unsettled(&self, maybe: &Noted, answer: &Noted) -> bool {
        (*maybe, *answer) == (Noted::Noted, Noted::Gone)
    }
}

/// Takes the lock from its holders.
pub(crate) struct Breaking;

impl Verb for Breaking {
    type Answer = Vec<HolderView>;
    const CREATES: bool = true;
    const IN_TURN: bool = true;

    fn run(&self, ledger: &mut Ledger, at: &At) -> Result<Change<Vec<HolderView>>, LedgerError> {
        ledger.break_lock(at.now, &at.rules)
    }

    /// Whom it robs is read first: a person wants to know.
    fn is_plain(&self, _answer: &Vec<HolderView>) -> bool {
        false
    }

    /// L9: an earlier try may have robbed somebody of whom this one knows nothing.
    fn is_unsettled(&self, maybe: &Vec<HolderView>, answer: &Vec<HolderView>) -> bool {
        maybe.iter().any(|robbed| !answer.iter().any(|again| again.owner == robbed.owner))
    }
}
