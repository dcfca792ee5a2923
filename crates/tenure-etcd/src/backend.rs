//! `impl Backend`: each verb in its own room.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, Bells, Claim, ClaimAnswer, EndOfGrant,
    FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting, Noted, Order,
    OwnerId, ProcessId, Promises, Released, Renewal, Restart, Sharing, WakeUp, Wakes,
};

use crate::{
    config::Config,
    members::Members,
    owners::Owners,
    watch::{Watcher, Watchers, Watching},
    watermark::Watermark,
};

/// Locks in etcd.
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
    pub(crate) members: Arc<Members>,
    pub(crate) watching: Watching,
}

/// The state that the handles of one process share.
pub(crate) struct Shared {
    config: Arc<Config>,
    host: Arc<dyn Host>,
    watermark: Arc<Watermark>,
    pub(crate) owners: Owners,
    watchers: Watchers,
    bells: Bells,
}

impl Shared {
    /// This owner needs no more hints, through any handle.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.watchers.forget(owner);
    }
}

impl Etcd {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let config = Arc::new(config);
        let (watermark, owners) = (Arc::default(), Owners::default());
        let (watchers, bells) = (Watchers::default(), Bells::default());
        Self::sharing(Arc::new(Shared { config, host, watermark, owners, watchers, bells }))
    }

    fn sharing(shared: Arc<Shared>) -> Self {
        let members = Members::new(shared.config.clone(), shared.host.clone(), shared.watermark.clone());
        let members = Arc::new(members);
        let watching = Watching(Watcher::new(members.clone(), shared.bells.clone()));
        shared.watchers.add(&watching.0);
        Self { shared, members, watching }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }
}

#[async_trait]
impl Backend for Etcd {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("etcd");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::WaitedFor;
        promises.minting = Minting::Place;
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Survives);
        promises.reach = "all clients of the cluster";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        promises.ttl_grain = Duration::from_secs(2);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self::sharing(self.shared.clone())))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.claim_once(claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        self.renew_all(grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.leave(name, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.leave_memo(name, (owner, token), memo).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(self.shared.bells.listen(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.look(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.queues(prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        self.rob(name).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.examine().await
    }
}
