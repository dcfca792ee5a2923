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

    fn sharing(shared: Arc<Shared>) -> Self {
        Self { store: Arc::new(Store::new(shared)) }
    }
}

#[async_trait]
impl Backend for Postgres {
    fn promises(&self) -> Promises {
        Promises {
            backend: "postgres",
            sharing: Sharing::Counted,
            order: Order::Fifo,
            absent: Absent::Passed,
            minting: Minting::Entry,
            restart: Restart::Survives,
            // A standby that is not waited for has not everything yet.
            fail_over: Some(Restart::Lost),
            reach: "all clients of the database",
            end: EndOfGrant::Ttl,
            wake: WakeUp::Pushed,
            max_ttl: Timing::MAX_TTL,
            max_ttl_parameter: None,
            ttl_grain: TOLERANCE,
        }
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let handle = Self::sharing(self.store.shared().clone());
        handle.store.lines.line().await?;
        Ok(Arc::new(handle))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        allow(claim.ttl)?;
        self.store.step(&claim.name, claim.wait != Wait::No, claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.store.renew(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
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

/// # Errors
/// `Invalid` for a lease that is longer than any.
fn allow(ttl: Duration) -> Result<(), BackendError> {
    if ttl <= Timing::MAX_TTL {
        return Ok(());
    }
    let message = format!("postgres takes a ttl of {:?} at most", Timing::MAX_TTL);
    Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message))
}
