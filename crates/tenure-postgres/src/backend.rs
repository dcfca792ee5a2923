//! `Postgres`: the backend.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_cas::Locks;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, Finding, Grant, HolderView, Host,
    LockName, LockView, OwnerId, ProcessId, Promises, Released, Renewal, Wakes,
};

use crate::{config::Config, shared::Shared, store::Store};

/// Locks in a table of a PostgreSQL database.
pub struct Postgres {
    locks: Locks<Store>,
}

impl Postgres {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let rules = config.rules;
        let store = Store::new(Arc::new(Shared::new(config, host.clone())));
        Self { locks: Locks::new(store, host, rules) }
    }
}

/// Each verb is that of a lock in a cell: see `tenure-cas`.
#[async_trait]
impl Backend for Postgres {
    fn promises(&self) -> Promises {
        self.locks.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        self.locks.handle().await
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.locks.claim(claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.locks.renew(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.locks.release(name, owner).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        self.locks.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.locks.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.locks.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        self.locks.break_lock(name).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.locks.diagnose().await
    }
}
