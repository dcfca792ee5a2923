//! A claim and a release while an earlier claim of the same owner was given up, and may yet be granted (L9, decision 0073).

use std::time::Duration;

use tenure_core::{BackendError, Claim, ClaimAnswer, LockName, Outcome, OwnerId, Released};

use crate::{backend::Redis, error, given_up::Claimant, session::Sessions};

/// How long a claim or a release waits for claims of its owner that were given up; whoever asks, asks again. A runtime that stands
/// still and has them must not keep others for long.
const UNSETTLED: Duration = Duration::from_millis(250);

impl Redis {
    /// A claim of this owner that was given up, and may yet be granted.
    pub(crate) fn doubt(&self, name: &LockName, owner: OwnerId) -> Option<Claimant> {
        let given_up = &self.sessions.shared.given_up;
        // Most of the time there is none at all.
        if given_up.is_empty() {
            return None;
        }
        let claimant = (owner.hex(), name.clone());
        given_up.has(&claimant).then_some(claimant)
    }

    /// An earlier claim of this owner may come after this one, and be granted.
    pub(crate) async fn claim_in_doubt(
        &self,
        claim: &Claim,
        doubt: Claimant,
    ) -> Result<ClaimAnswer, BackendError> {
        match self.try_claim(claim).await? {
            ClaimAnswer::Busy { .. } => {
                self.settled(&doubt).await?;
                self.try_claim(claim).await
            }
            answer => Ok(answer),
        }
    }

    pub(crate) async fn release_in_doubt(
        &self,
        name: &LockName,
        owner: OwnerId,
        doubt: Claimant,
    ) -> Result<Released, BackendError> {
        // At once, since the claim may have been granted and its answer lost.
        let first = self.try_release(name, owner).await;
        self.settled(&doubt).await?;
        both(first, self.try_release(name, owner).await)
    }

    /// Waits for the earlier claims of an owner that were given up.
    async fn settled(&self, claimant: &Claimant) -> Result<(), BackendError> {
        let Sessions { shared, .. } = &*self.sessions;
        let over = shared.host.sleep_until(shared.host.now() + UNSETTLED);
        tokio::select! {
            biased;
            () = shared.given_up.settled(claimant) => Ok(()),
            () = over => Err(error::unsettled(&shared.config.place_name(), UNSETTLED)),
        }
    }
}

/// What two releases of one owner come to, one after the other.
fn both(
    first: Result<Released, BackendError>,
    second: Result<Released, BackendError>,
) -> Result<Released, BackendError> {
    match (first, second) {
        (Ok(Released::Released), Ok(_)) => Ok(Released::Released),
        // It may have been the first one that freed it.
        (Err(error), Ok(Released::WasGone)) if error.outcome() == Outcome::Unknown => Err(error),
        (Ok(Released::Released), Err(error)) => Err(error.of_unknown_outcome()),
        (Err(first), Err(error)) if first.outcome() == Outcome::Unknown => Err(error.of_unknown_outcome()),
        (_, second) => second,
    }
}

#[cfg(test)]
mod tests {
    use Outcome::{NotApplied, Unknown};
    use Released::{Released as Freed, WasGone};
    use tenure_core::ErrorKind::Unavailable;

    use super::*;

    /// L9: whatever each of two releases came to, both together claim no more than is known.
    #[test]
    fn two_releases_say_no_more_than_both_know() {
        type Said = Result<Released, Outcome>;
        let cases: [(Said, Said, Said); 9] = [
            (Ok(Freed), Ok(WasGone), Ok(Freed)),
            (Ok(Freed), Ok(Freed), Ok(Freed)),
            (Ok(Freed), Err(NotApplied), Err(Unknown)),
            (Ok(WasGone), Ok(Freed), Ok(Freed)),
            (Ok(WasGone), Err(NotApplied), Err(NotApplied)),
            (Err(NotApplied), Ok(WasGone), Ok(WasGone)),
            (Err(Unknown), Ok(WasGone), Err(Unknown)),
            (Err(Unknown), Ok(Freed), Ok(Freed)),
            (Err(Unknown), Err(NotApplied), Err(Unknown)),
        ];
        let said = |said: Said| said.map_err(|outcome| BackendError::new(Unavailable, outcome, "no"));
        for (first, second, expected) in cases {
            let came = both(said(first), said(second)).map_err(|error| error.outcome());
            assert_eq!(came, expected, "{first:?} and {second:?}");
        }
    }
}
