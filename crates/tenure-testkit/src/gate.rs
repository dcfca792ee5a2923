//! `Gated`: a backend whose verbs answer, fail, are late or never answer, as a test plans.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, ErrorKind, Exposure,
    FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, MemoView, Noted, Outcome,
    OwnerId, ProcessId, Promises, Released, Renewal, WakeStream,
};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It is done and answered.
    Open,
    /// It is refused and certainly not done.
    Refuse,
    /// It is done, but the answer is lost: an error of unknown outcome.
    LoseReply,
    /// It is done immediately, and answered this much later.
    Slow(Duration),
    /// It is done this much later, and answered then.
    Late(Duration),
    /// It is never done and never answered.
    Hang,
}

/// The verb that a gate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `claim`
    Claim,
    /// `renew`
    Renew,
    /// `release`
    Release,
    /// `note`
    Note,
    /// `tell`
    Tell,
    /// `inspect`
    Inspect,
}

#[derive(Default)]
struct Plan {
    gates: Vec<(Verb, VecDeque<Gate>, Gate)>,
    asked: Vec<Verb>,
    replica: Option<LockView>,
}

/// A backend behind gates. Its handles share the gates.
#[derive(Clone)]
pub struct Gated {
    inner: BackendHandle,
    host: Arc<dyn Host>,
    plan: Arc<Mutex<Plan>>,
}

impl Gated {
    /// A backend whose gates are all open.
    pub fn new(inner: BackendHandle, host: Arc<dyn Host>) -> Self {
        Self { inner, host, plan: Arc::default() }
    }

    /// The next requests of this verb meet `first`, one each; later ones meet `then`.
    pub fn plan(&self, verb: Verb, first: &[Gate], then: Gate) {
        let mut plan = self.locked();
        plan.gates.retain(|(v, ..)| *v != verb);
        plan.gates.push((verb, first.iter().copied().collect(), then));
    }

    /// How many requests of this verb have arrived.
    pub fn asked(&self, verb: Verb) -> usize {
        self.locked().asked.iter().filter(|v| **v == verb).count()
    }

    /// From now on a replica that is behind answers each `inspect`, whatever the name: with the view of this lock as
    /// it is now.
    pub async fn look_at_a_replica(&self, name: &LockName) -> Result<(), BackendError> {
        let view = self.inner.inspect(name).await?;
        self.locked().replica = Some(view);
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, Plan> {
        tenure_core::locked(&self.plan)
    }

    fn gate(&self, verb: Verb) -> Gate {
        let mut plan = self.locked();
        plan.asked.push(verb);
        let at = plan.gates.iter_mut().find(|(v, ..)| *v == verb);
        at.map_or(Gate::Open, |(_, first, then)| first.pop_front().unwrap_or(*then))
    }

    async fn pass<A>(&self, verb: Verb, request: impl Future<Output = A>) -> Result<A, BackendError> {
        let failed = |outcome| BackendError::new(ErrorKind::Unavailable, outcome, "the gate is shut");
        match self.gate(verb) {
            Gate::Open => Ok(request.await),
            Gate::Refuse => Err(failed(Outcome::NotApplied)),
            Gate::LoseReply => {
                request.await;
                Err(failed(Outcome::Unknown))
            }
            Gate::Slow(by) => {
                let answer = request.await;
                self.host.sleep_until(self.host.now() + by).await;
                Ok(answer)
            }
            Gate::Late(by) => {
                self.host.sleep_until(self.host.now() + by).await;
                Ok(request.await)
            }
            Gate::Hang => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Backend for Gated {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(Self { inner: self.inner.handle().await?, ..self.clone() }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        self.pass(Verb::Claim, self.inner.claim(claim)).await?
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        match self.pass(Verb::Renew, self.inner.renew(grants)).await {
            Ok(answers) => answers,
            Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        self.pass(Verb::Release, self.inner.release(name, owner)).await?
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        self.pass(Verb::Tell, self.inner.tell(name, whom, owner)).await?
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        self.pass(Verb::Note, self.inner.note(name, owner, token, memo)).await?
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
        let shown = self.locked().replica.clone();
        if let Some(shown) = shown {
            return Ok(shown);
        }
        self.pass(Verb::Inspect, self.inner.inspect(name)).await?
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
