//! `Locks` is a backend.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, ErrorKind, FencingToken, Finding,
    Grant, Hint, HolderView, LockName, LockView, Memo, Noted, Outcome, OwnerId, ProcessId, Promises,
    Released, Renewal, Wait, Wakes,
};

use crate::{
    cell::{Cell, Purpose},
    locks::Locks,
    verb::{Breaking, Leaving, Noting},
};

#[async_trait]
impl<C: Cell> Backend for Locks<C> {
    fn promises(&self) -> Promises {
        self.cell.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self::sharing(self.cell.another().await?, self.shared.clone())))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.allow(claim.ttl)?;
        let asked = self.shared.host.now();
        let mut answer = if claim.wait == Wait::No {
            self.step(&claim.name, claim).await?
        } else {
            self.wait(claim).await?
        };
        if let ClaimAnswer::Queued { ahead, retry_after, .. } = &mut answer {
            self.spread(retry_after, *ahead, asked.elapsed(self.shared.host.now()));
        }
        Ok(answer)
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.renew_all(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let own_places = &self.shared.own_places;
        let Some(own) = own_places.find(name, owner) else {
            own_places.leave(name, owner);
            return self.step(name, &Leaving { owner, had_place: false }).await;
        };
        let is_taken = self.withdraw(name, owner, &own).await?;
        if is_taken {
            own_places.taken(name, owner);
        }
        let had_place = is_taken || own.had_one;
        let released = self.step(name, &Leaving { owner, had_place }).await;
        let released = if is_taken { released.map_err(BackendError::of_unknown_outcome)? } else { released? };
        // A place whose making had no answer may come yet: the next release looks for it again.
        if had_place || !own.is_doubted {
            own_places.leave(name, owner);
        }
        Ok(if is_taken { Released::Released } else { released })
    }

    async fn tell(&self, _name: &LockName, audience: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let hint = Hint { audience, owner, is_behind: false };
        if self.cell.reaches(hint) {
            self.cell.ring(hint);
            // Observers are everywhere; a holder is in one process.
            if audience != Audience::Observers {
                return Ok(());
            }
        }
        let over = self.cell.connect(Purpose::Use).await?;
        self.cell.tell(&over, hint).await.map_err(|failure| self.failed(failure))
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.step(name, &Noting { owner, token, memo }).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        self.cell.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.look_at(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.look_at_all(prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        self.step(name, &Breaking).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.cell.diagnose().await
    }
}

impl<C: Cell> Locks<C> {
    async fn wait(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let own_places = &self.shared.own_places;
        own_places.ask(&claim.name, claim.owner, self.shared.host.now());
        let answer = self.step(&claim.name, claim).await;
        match &answer {
            Ok(ClaimAnswer::Granted(_)) => own_places.leave(&claim.name, claim.owner),
            Ok(_) => own_places.told(&claim.name, claim.owner),
            Err(_) => {}
        }
        answer
    }

    /// When to ask again.
    ///
    /// Waiters that ask only for their own safety do not all ask at the same moment. A waiter that no hint reaches asks often: see
    /// [`unheard_pause`].
    fn spread(&self, retry_after: &mut Duration, ahead: usize, took: Duration) {
        let rules = &self.shared.rules;
        if !self.cell.hears() {
            *retry_after = unheard_pause(rules.claim_ttl, ahead, took).min(*retry_after);
        }
        if *retry_after >= rules.claim_ttl / 5 {
            let mut chance = [0];
            self.shared.host.random(&mut chance);
            *retry_after -= *retry_after * u32::from(chance[0]) / 1024;
        }
    }

    /// # Errors
    /// `Invalid` for a lease that is longer than any.
    fn allow(&self, ttl: Duration) -> Result<(), BackendError> {
        let Promises { backend, max_ttl, .. } = self.cell.promises();
        if ttl <= max_ttl {
            return Ok(());
        }
        let message = format!("{backend} takes a ttl of {max_ttl:?} at most");
        Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
    }
}

/// When a waiter asks again that no hint reaches, if its last question took so long.
///
/// A turn lasts for the claim ttl, so a waiter near the front asks at least twice in that time. A waiter further behind leaves the
/// store alone for [`SHARE`] times as long as its question took. So at most a ninth of the waiters ask at a time, however slow the store
/// is, and a holder's release finds a free connection in a pool.
fn unheard_pause(claim_ttl: Duration, ahead: usize, took: Duration) -> Duration {
    let (often, rarely) = (claim_ttl * 2 / 5, claim_ttl * 4 / 5);
    if ahead < NEAR { (took * SHARE).clamp(often, rarely) } else { (took * SHARE).max(rarely) }
}

/// Places from the front whose turn may come at any moment.
const NEAR: usize = 4;

/// How much longer a waiter pauses than its question took.
const SHARE: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// With 50 processes behind a pooler on a busy machine the questions of the waiters filled the pool, and the holder's release was not
    /// answered for seconds: they asked at a fixed pace, faster than the server could answer.
    #[test]
    fn a_waiter_asks_a_slow_server_less_often() {
        let pause =
            |ahead, took| unheard_pause(Duration::from_millis(500), ahead, Duration::from_millis(took));
        for (ahead, took, expected) in [
            (0, 2, 200),
            (3, 30, 240),
            // Or it would miss its turn.
            (3, 900, 400),
            (4, 2, 400),
            (4, 50, 400),
            (40, 100, 800),
            (40, 900, 7200),
        ] {
            assert_eq!(pause(ahead, took), Duration::from_millis(expected), "{ahead} ahead, {took} ms");
        }
    }
}
