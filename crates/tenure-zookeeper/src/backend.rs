//! `ZooKeeper`: the verbs.

use std::{
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, Claim, ClaimAnswer, EndOfGrant, FencingToken,
    Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting, Noted, Order, OwnerId,
    ProcessId, Promises, Released, Renewal, Restart, Sharing, WakeUp, Wakes,
};

use crate::{
    claim, config::Config, diagnose, directory::Directories, ensemble::Ensemble, holders::KnownHolders,
    leave, memo, renew, sessions::Sessions, store::Store, view,
};

/// Locks in a ZooKeeper ensemble. Clones share their sessions.
///
/// # Dropping
/// With the last clone its sessions end, and with them all that they hold.
#[derive(Clone)]
pub struct ZooKeeper(Arc<Store>);

impl ZooKeeper {
    /// No request is sent: the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let sessions = Sessions::new(config, host);
        let (directories, known_holders) = (Directories::default(), KnownHolders::default());
        let (ensemble, newest) = (Ensemble::default(), AtomicI64::default());
        Self(Arc::new(Store { sessions, directories, known_holders, ensemble, newest }))
    }

    #[cfg(test)]
    pub(crate) fn sessions(&self) -> Vec<Arc<crate::session::Session>> {
        self.0.sessions.living()
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("zookeeper");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::WaitedFor;
        promises.minting = Minting::Place;
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Survives);
        promises.reach = "all clients of the ensemble";
        promises.end = EndOfGrant::Session;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        // In the rounded session of one of many ttls a crash is noticed later: see the README.
        promises.ttl_grain = self.0.sessions.config.tick * 3;
        promises
    }

    /// The same sessions: they live on threads of their own, and a session is what holds the locks.
    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.clone()))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        claim::claim(&self.0, claim).await
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        renew::renew(&self.0.sessions, grants).await
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let session = match self.0.sessions.with(owner) {
            Some(session) => session,
            None => self.0.sessions.any().await?,
        };
        leave::release(&session, self.0.directory_of(name), owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        memo::note(&self.0, name, (owner, token), memo).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(self.0.sessions.bells.listen(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::inspect(&self.0, &session, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::list(&self.0, &session, prefix).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::break_lock(&self.0, &session, name).await
    }

    /// Waits until no expired node is left to delete.
    async fn drain(&self) {
        let host = &self.0.sessions.host;
        let is_at_it = || {
            let now = host.now();
            self.0.sessions.living().iter().any(|session| session.own_nodes().has_overdue(now))
        };
        while is_at_it() {
            host.sleep_until(host.now() + DRAINING).await;
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        diagnose::diagnose(&session).await
    }
}

/// How often it is looked whether all is done.
const DRAINING: Duration = Duration::from_millis(10);
