//! `Postgres`: the backend.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, EndOfGrant, ErrorKind,
    Finding, Grant, HolderView, Host, LockName, LockView, Minting, Order, Outcome, OwnerId, ProcessId,
    Promises, Released, Renewal, Restart, Sharing, Timing, Wait, WakeUp, Wakes,
};

use crate::{
    config::Config,
    memory::TOLERANCE,
    shared::Shared,
    store::Store,
    verb::{Breaking, Leaving},
    wake::Hints,
};

/// Locks in a table of a PostgreSQL database.
pub struct Postgres {
    pub(crate) store: Arc<Store>,
}

impl Postgres {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        Self::sharing(Arc::new(Shared::new(config, host)))
    }

    /// When to ask again.
    ///
    /// Waiters that ask only for their own safety do not all ask at the same moment. A waiter that no hint reaches asks often: see
    /// [`unheard_pause`].
    fn spread(&self, retry_after: &mut Duration, ahead: usize, took: Duration) {
        let shared = self.store.shared();
        let rules = &shared.config.rules;
        if !self.store.hears() {
            *retry_after = unheard_pause(rules.claim_ttl, ahead, took).min(*retry_after);
        }
        if *retry_after >= rules.claim_ttl / 5 {
            let mut chance = [0];
            shared.host.random(&mut chance);
            *retry_after -= *retry_after * u32::from(chance[0]) / 1024;
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let shared = self.store.shared();
        shared.marks.ask(&claim.name, claim.owner, shared.host.now());
        let answer = self.store.step(&claim.name, true, claim).await;
        match &answer {
            Ok(ClaimAnswer::Granted(_)) => drop(shared.marks.leave(&claim.name, claim.owner)),
            Ok(_) => shared.marks.told(&claim.name, claim.owner),
            Err(_) => {}
        }
        answer
    }

    fn sharing(shared: Arc<Shared>) -> Self {
        Self { store: Arc::new(Store::new(shared)) }
    }
}

#[async_trait]
impl Backend for Postgres {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("postgres");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Survives;
        // A standby that is not waited for has not everything yet.
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "all clients of the database";
        promises.end = EndOfGrant::Ttl;
        promises.wake = WakeUp::Pushed;
        promises.places = Some(8);
        promises.max_ttl = Timing::MAX_TTL;
        promises.max_ttl_parameter = None;
        promises.ttl_grain = TOLERANCE;
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let handle = Self::sharing(self.store.shared().clone());
        handle.store.lines.line().await?;
        Ok(Arc::new(handle))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        allow(claim.ttl)?;
        let host = &self.store.shared().host;
        let asked = host.now();
        let mut answer = if claim.wait == Wait::No {
            self.store.step(&claim.name, false, claim).await?
        } else {
            self.wait(claim).await?
        };
        if let ClaimAnswer::Queued { ahead, retry_after, .. } = &mut answer {
            self.spread(retry_after, *ahead, asked.elapsed(host.now()));
        }
        Ok(answer)
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.store.renew(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        if let Some(mark) = self.store.shared().marks.leave(name, owner)
            && self.store.withdraw(name, owner, &mark).await?
        {
            return Ok(Released::Released);
        }
        self.store.step(name, false, &Leaving(owner)).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(Hints::new(self.store.clone(), process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.store.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.store.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        self.store.step(name, false, &Breaking).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.store.examine().await
    }
}

/// When a waiter asks again that no hint reaches, if its last question took so long.
///
/// A turn lasts for the claim ttl, so a waiter near the front asks at least twice in that time. A waiter further behind leaves the
/// server alone for [`SHARE`] times as long as its question took. So at most a ninth of the waiters ask at a time, however slow the server
/// is, and a holder's release finds a free connection in a pool.
fn unheard_pause(claim_ttl: Duration, ahead: usize, took: Duration) -> Duration {
    let (often, rarely) = (claim_ttl * 2 / 5, claim_ttl * 4 / 5);
    if ahead < NEAR { (took * SHARE).clamp(often, rarely) } else { (took * SHARE).max(rarely) }
}

/// Places from the front whose turn may come at any moment.
const NEAR: usize = 4;

/// How much longer a waiter pauses than its question took.
const SHARE: u32 = 8;

/// # Errors
/// `Invalid` for a lease that is longer than any.
fn allow(ttl: Duration) -> Result<(), BackendError> {
    if ttl <= Timing::MAX_TTL {
        return Ok(());
    }
    let message = format!("postgres takes a ttl of {:?} at most", Timing::MAX_TTL);
    Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
}

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
