//! The verbs of a ledger, as values that can be run again on a newer one.

use std::time::Duration;

use tenure_core::{Claim, ClaimAnswer, HolderView, Moment, OwnerId, Released, Renewal};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

/// One verb.
pub(crate) trait Verb: Sync {
    /// What the caller is told.
    type Answer: Send + Sync;

    /// Whether the row, and the table, are made if they are not there.
    const CREATES: bool;

    /// Whether it waits for who has the row locked.
    const WAITS: bool = true;

    /// Runs on a ledger at a time that the server's clock reached at most `slack` ago: every lease that it gives is longer by that.
    fn run(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        now: Moment,
        slack: Duration,
    ) -> Result<Change<Self::Answer>, LedgerError>;

    /// It did what was asked for, so that what is stored is worth a try without being read first: the server compares.
    fn is_plain(&self, answer: &Self::Answer) -> bool;

    /// With `answer` nobody can say whether an earlier try of ours, which would have been answered with `maybe`, has done it.
    fn is_unsettled(&self, maybe: &Self::Answer, answer: &Self::Answer) -> bool;
}

fn lengthened(rules: &Rules, slack: Duration) -> Rules {
    Rules { claim_ttl: rules.claim_ttl + slack, place_ttl: rules.place_ttl + slack, ..*rules }
}

impl Verb for Claim {
    type Answer = ClaimAnswer;
    const CREATES: bool = true;

    fn run(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        now: Moment,
        slack: Duration,
    ) -> Result<Change<ClaimAnswer>, LedgerError> {
        let rules = lengthened(rules, slack);
        if slack.is_zero() {
            return ledger.claim(now, &rules, self);
        }
        let longer = Self { ttl: self.ttl + slack, ..self.clone() };
        let mut change = ledger.claim(now, &rules, &longer)?;
        // What was asked for is what may be believed.
        if let ClaimAnswer::Granted(grant) = &mut change.answer {
            grant.ttl = self.ttl;
        }
        Ok(change)
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
    // A stranger's lock on one row would be the end of every lease that is renewed behind it in the same connection.
    const WAITS: bool = false;

    fn run(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        now: Moment,
        slack: Duration,
    ) -> Result<Change<Renewal>, LedgerError> {
        Ok(ledger.renew(now, &lengthened(rules, slack), self.owner, self.ttl + slack))
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
pub(crate) struct Leaving(pub(crate) OwnerId);

impl Verb for Leaving {
    type Answer = Released;
    const CREATES: bool = false;

    fn run(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        now: Moment,
        slack: Duration,
    ) -> Result<Change<Released>, LedgerError> {
        Ok(ledger.release(now, &lengthened(rules, slack), self.0))
    }

    fn is_plain(&self, answer: &Released) -> bool {
        *answer == Released::Released
    }

    /// L9: it was there, and is not any more. Our own try may have released it, or it was over or broken before that.
    fn is_unsettled(&self, maybe: &Released, answer: &Released) -> bool {
        (*maybe, *answer) == (Released::Released, Released::WasGone)
    }
}

/// Takes the lock from its holders.
pub(crate) struct Breaking;

impl Verb for Breaking {
    type Answer = Vec<HolderView>;
    const CREATES: bool = true;

    fn run(
        &self,
        ledger: &mut Ledger,
        rules: &Rules,
        now: Moment,
        slack: Duration,
    ) -> Result<Change<Vec<HolderView>>, LedgerError> {
        ledger.break_lock(now, &lengthened(rules, slack))
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
