//! `Witness`: sits between the engine and the store, and notes what the store reports about claims (L9).

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, Exposure, FencingToken,
    Finding, Grant, HolderView, LockName, LockView, Memo, MemoView, Noted, Outcome, OwnerId, ProcessId,
    Promises, Released, Renewal, WakeStream,
};

use crate::{history::What, world::World};

/// A store that is watched.
pub(crate) struct Witness {
    pub(crate) inner: BackendHandle,
    pub(crate) world: Arc<World>,
}

/// A claim under way. If no caller waits for it any more, it may arrive later.
struct Claiming<'a> {
    world: &'a World,
    owner: OwnerId,
    is_answered: bool,
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.world.note(What::ClaimFailed { owner: self.owner, outcome: Outcome::Unknown });
        }
    }
}

/// Renewals under way.
struct Renewing<'a> {
    world: &'a World,
    owners: Vec<OwnerId>,
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        for owner in self.owners.drain(..) {
            self.world.note(What::RenewFailed { owner, outcome: Outcome::Unknown });
        }
    }
}

#[async_trait]
impl Backend for Witness {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let inner = self.inner.handle().await?;
        Ok(Arc::new(Self { inner, world: self.world.clone() }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let owner = claim.owner;
        self.world.note(What::Claimed { owner });
        let mut claiming = Claiming { world: &self.world, owner, is_answered: false };
        let answer = self.inner.claim(claim).await;
        claiming.is_answered = true;
        if let Ok(ClaimAnswer::Granted(grant)) = &answer {
            self.world.on_granted(grant);
        }
        self.world.note(match &answer {
            Ok(_) => What::ClaimAnswered { owner },
            Err(error) => What::ClaimFailed { owner, outcome: error.outcome() },
        });
        answer
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let owners: Vec<OwnerId> = grants.iter().map(|grant| grant.owner).collect();
        owners.iter().for_each(|owner| self.world.note(What::Renewing { owner: *owner }));
        let mut renewing = Renewing { world: &self.world, owners };
        let answers = self.inner.renew(grants).await;
        for (owner, answer) in std::mem::take(&mut renewing.owners).into_iter().zip(&answers) {
            if let Err(error) = answer {
                self.world.note(What::RenewFailed { owner, outcome: error.outcome() });
            }
        }
        answers
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let answer = self.inner.release(name, owner).await;
        if answer.is_ok() {
            self.world.note(What::Gone { owner });
        }
        answer
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        self.inner.tell(name, whom, owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.inner.note(name, owner, token, memo).await
    }

    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        self.inner.expose(grant).await
    }

    async fn memo(&self, name: &LockName) -> Result<Option<MemoView>, BackendError> {
        self.inner.memo(name).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        self.inner.wakes(process, audience)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.inner.list(prefix).await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        self.inner.break_lock(name, scope).await
    }

    async fn drain(&self) {
        self.inner.drain().await;
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.inner.diagnose().await
    }
}
