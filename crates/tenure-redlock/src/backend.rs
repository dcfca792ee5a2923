//! `impl Backend`: the verbs by quorum.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure_core::{
    Absent, Adoption, Audience, Backend, BackendError, BackendHandle, BoxFuture, Claim, ClaimAnswer,
    ErrorKind, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Minting, Mode,
    Noted, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Released, Renewal, Restart, Severity,
    Sharing, Wait, Wakes,
};

use tokio::sync::oneshot;

use crate::{
    claim,
    config::ConfigError,
    error,
    member::Member,
    memo::note_everywhere,
    memory::Memory,
    quorum::Quorum,
    release::release_everywhere,
    renew::renew_everywhere,
    slots::{SLOTS_MAX, Slots, Trail, slot},
    view,
    wake::Gathered,
};

/// How long a node may take for a question: 2 s.
const QUESTION: Duration = Duration::from_secs(2);
/// The timeout of a node that lists its locks: 50 s, which is less than the caller's own.
const WALK: Duration = Duration::from_secs(50);
/// A pause after slots that were got in part: 20 ms, some rounds.
const SLOTS_PAUSE: Duration = Duration::from_millis(20);

/// One lock on the quorum of independent nodes.
pub struct Redlock<N> {
    quorum: Arc<Quorum<N>>,
    slots: Arc<Slots>,
}

impl<N: QuorumNode> Redlock<N> {
    /// On these nodes, each with a name for people. All clients must have the same ones.
    ///
    /// # Errors
    /// [`ConfigError`] for fewer than three, an even number, or one that is listed twice.
    pub fn new(nodes: Vec<(String, Arc<N>)>, host: Arc<dyn Host>) -> Result<Self, ConfigError> {
        let places: Vec<&str> = nodes.iter().map(|(place, _)| place.as_str()).collect();
        ConfigError::of(&places)?;
        let members = nodes.into_iter().map(|(place, node)| Arc::new(Member::new(place, node))).collect();
        let quorum = Arc::new(Quorum { members, host, memory: Arc::new(Memory::default()) });
        Ok(Self { quorum, slots: Arc::default() })
    }

    /// Tries the slots of a semaphore, beginning with any, for as long as there is time; waits at the last one, and
    /// goes on
    /// behind it when it asks again.
    async fn claim_slot(&self, claim: &Claim, slots: NonZeroU32) -> Result<ClaimAnswer, BackendError> {
        let mut bits = [0; 4];
        self.quorum.host.random(&mut bits);
        let Claim { name, owner, .. } = claim;
        let mut trail = self.slots.begin(name, *owner, slots, u32::from_be_bytes(bits) % slots);
        let over = self.quorum.host.now() + claim.ttl / 6;
        let (mut soonest, mut is_split) = (None::<Duration>, false);
        for asked in 1..=slots.get() {
            let is_last = asked == slots.get() || over.is_over(self.quorum.host.now());
            // No slot was granted so far. Its release may have come by now, and knows of those that were asked before.
            if let Err(gone) = claim.asker.must_be_there() {
                self.leave_place(claim, trail, None);
                // A minority of the nodes may have granted a slot that was asked before.
                return Err(if asked == 1 { gone } else { gone.of_unknown_outcome() });
            }
            let number = trail.step();
            // Before anything is sent: dropped half way, it must be released there too.
            self.slots.set(name, *owner, trail);
            // What is given back at one slot must not be asked for again by this owner, wherever it waits.
            let wait = if is_last && !is_split { claim.wait } else { Wait::No };
            let one = Claim { name: slot(name, number)?, wait, mode: Mode::Exclusive, ..claim.clone() };
            let answer = claim::claim(&self.quorum, &one).await;
            let sooner = |wait: Duration| soonest.map_or(wait, |known| known.min(wait));
            match answer? {
                ClaimAnswer::Granted(grant) => {
                    // It is released by the name of its slot from here on.
                    self.leave_place(claim, trail, Some(number));
                    self.slots.forget(name, *owner);
                    return Ok(ClaimAnswer::Granted(grant));
                }
                ClaimAnswer::Split { .. } => is_split = true,
                ClaimAnswer::Busy { retry_after, .. } if !is_last => soonest = Some(sooner(retry_after)),
                ClaimAnswer::Queued { ahead, retry_after, holder } => {
                    self.leave_place(claim, trail, Some(number));
                    self.slots.set(name, *owner, Trail { place: Some(number), ..trail });
                    return Ok(ClaimAnswer::Queued { ahead, retry_after: sooner(retry_after), holder });
                }
                ClaimAnswer::Busy { retry_after, holder } if !is_split => {
                    self.slots.forget(name, *owner);
                    return Ok(ClaimAnswer::Busy { retry_after: sooner(retry_after), holder });
                }
                ClaimAnswer::Busy { .. } => {}
            }
            if is_last {
                break;
            }
        }
        self.leave_place(claim, trail, None);
        self.slots.forget(name, *owner);
        Ok(ClaimAnswer::Split { retry_after: SLOTS_PAUSE, holder: None })
    }

    /// Leaves the place at the slot where it waited before, in the background, unless it is this one.
    fn leave_place(&self, claim: &Claim, trail: Trail, but: Option<u32>) {
        if let Some(place) = trail.place.filter(|place| Some(*place) != but)
            && let Ok(name) = slot(&claim.name, place)
        {
            let (quorum, owner) = (self.quorum.clone(), claim.owner);
            let (tell, _) = oneshot::channel();
            let late = quorum.memory.withdraw(&(owner, name.clone()));
            self.quorum.spawn(Box::pin(release_everywhere(quorum, name, owner, late, tell)));
        }
    }

    async fn release_one(&self, name: LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let quorum = self.quorum.clone();
        let late = quorum.memory.withdraw(&(owner, name.clone()));
        let task = move |tell| -> BoxFuture<'static, ()> {
            Box::pin(release_everywhere(quorum, name, owner, late, tell))
        };
        self.quorum.detached(task).await
    }

    /// The answers of a quorum to a question that changes nothing.
    async fn question<A, F>(
        &self,
        timeout: Duration,
        ask: impl Fn(Arc<N>) -> F,
    ) -> Result<Vec<A>, BackendError>
    where
        F: Future<Output = Result<A, BackendError>>,
    {
        let answers = self.quorum.ask_all(timeout, ask, |_| {}).await;
        let (answered, failed): (Vec<_>, Vec<_>) = answers.into_iter().flatten().partition(Result::is_ok);
        if answered.len() < self.quorum.size() {
            return Err(self.quorum.too_few(answered.is_empty(), failed.into_iter().filter_map(Result::err)));
        }
        Ok(answered.into_iter().filter_map(Result::ok).collect())
    }
}

#[async_trait]
impl<N: QuorumNode> Backend for Redlock<N> {
    fn promises(&self) -> Promises {
        let mut promises = self.quorum.members[0].node.promises();
        promises.backend = "redlock";
        promises.sharing = Sharing::Slots { most: SLOTS_MAX };
        promises.order = Order::Any;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        // After a split vote the next try needs a new one (H3.4).
        promises.chosen_owner = false;
        // The others go on.
        promises.fail_over = Some(Restart::Survives);
        promises.reach = "all clients of the nodes";
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        // No node is asked for anything here: one that hangs must not keep the others from being used.
        let others = self.quorum.members.iter().map(|member| member.another());
        let members = join_all(others).await.into_iter().map(|member| member.map(Arc::new));
        let members = members.collect::<Result<_, _>>()?;
        let (host, memory) = (self.quorum.host.clone(), self.quorum.memory.clone());
        let quorum = Arc::new(Quorum { members, host, memory });
        Ok(Arc::new(Self { quorum, slots: self.slots.clone() }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let answer = match claim.mode {
            Mode::Exclusive => claim::claim(&self.quorum, claim).await,
            Mode::Shared { limit: Some(slots) } if slots.get() > SLOTS_MAX => {
                let message = format!("a semaphore on a quorum has {SLOTS_MAX} slots at most");
                return Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message));
            }
            Mode::Shared { limit: Some(slots) } => self.claim_slot(claim, slots).await,
            Mode::Shared { limit: None } => {
                let message = "a quorum of nodes has no read locks";
                return Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message));
            }
        };
        match answer? {
            // Who does not wait does not ask again.
            ClaimAnswer::Split { retry_after, holder } if claim.wait == Wait::No => {
                Ok(ClaimAnswer::Busy { retry_after, holder })
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let (quorum, all): (_, Arc<[Grant]>) = (self.quorum.clone(), grants.into());
        let task = move |tell| -> BoxFuture<'static, ()> { Box::pin(renew_everywhere(quorum, all, tell)) };
        match self.quorum.detached(task).await {
            Ok(renewals) => renewals,
            Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let Some(trail) = self.slots.get(name, owner) else {
            return self.release_one(name.clone(), owner).await;
        };
        let names: Result<Vec<_>, _> = trail.asked().map(|number| slot(name, number)).collect();
        let releases = names?.into_iter().map(|name| self.release_one(name, owner));
        let answers: Result<Vec<_>, _> = join_all(releases).await.into_iter().collect();
        let held = answers?.contains(&Released::Released);
        // Only now: tried again, it must reach all slots again.
        self.slots.forget(name, owner);
        Ok(if held { Released::Released } else { Released::WasGone })
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        // In the background: a node that hangs keeps nobody from waiting.
        let (quorum, name) = (self.quorum.clone(), name.clone());
        self.quorum.spawn(Box::pin(async move {
            let tell = |node: Arc<N>| {
                let name = name.clone();
                async move { node.tell(&name, whom, owner).await }
            };
            quorum.ask_all(QUESTION, tell, |_| {}).await;
        }));
        Ok(())
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        let (quorum, name, memo) = (self.quorum.clone(), name.clone(), memo.clone());
        let task = move |tell| -> BoxFuture<'static, ()> {
            Box::pin(note_everywhere(quorum, name, (owner, token), memo, tell))
        };
        self.quorum.detached(task).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        let members = self.quorum.members.iter();
        let streams = members.map(|member| member.node.wakes(process, audience)).collect();
        // Who was robbed asks at once, and so does who looks on.
        let quorum = if audience == Audience::Waiters { self.quorum.size() } else { 1 };
        Box::new(Gathered::new(streams, quorum, self.quorum.host.clone()))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let views = self.question(QUESTION, |node| async move { node.inspect(name).await }).await?;
        Ok(view::merge(name.clone(), &views, self.quorum.size()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let lists = self.question(WALK, |node| async move { node.list(prefix).await }).await?;
        Ok(view::merge_all(lists, self.quorum.size()))
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        let before = self.inspect(name).await?;
        self.question(QUESTION, |node| async move { node.break_lock(name).await }).await?;
        Ok(before.holders)
    }

    async fn drain(&self) {
        self.quorum.memory.drained().await;
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let answers =
            self.quorum.ask_all(QUESTION, |node| async move { node.diagnose().await }, |_| {}).await;
        let mut findings: Vec<Finding> = Vec::new();
        for (member, answer) in self.quorum.members.iter().zip(answers.into_iter().flatten()) {
            let place = &member.place;
            match answer {
                Ok(found) => findings.extend(found.into_iter().map(|mut finding| {
                    finding.what = format!("{place}: {}", finding.what);
                    finding
                })),
                Err(error) => findings.push(Finding::new(
                    Severity::Problem,
                    format!("{place} cannot be looked at: {error}"),
                    "bring it back: every node that is down is one failure less that the quorum survives",
                )),
            }
            // Not known before it has been asked once; errors have been told above.
            let _ = member.within(&*self.quorum.host, QUESTION, member.identify()).await;
        }
        findings.extend(self.quorum.twins().map(|twins| {
            Finding::new(Severity::Problem, twins.to_string(), "list every server once, in all clients")
        }));
        Ok(findings)
    }

    async fn adopt(&self) -> Result<Adoption, BackendError> {
        let answers = self.quorum.ask_all(QUESTION, |node| async move { node.adopt().await }, |_| {}).await;
        let (done, failed): (Vec<_>, Vec<_>) = answers.into_iter().flatten().partition(Result::is_ok);
        let done: Vec<Adoption> = done.into_iter().filter_map(Result::ok).collect();
        // A node that keeps the old settings refuses everybody who has the new ones.
        if !failed.is_empty() {
            let errors: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
            return Err(error::not_adopted(self.quorum.members.len(), &errors));
        }
        let wait = done.iter().map(|adoption| adoption.wait).max().unwrap_or_default();
        let what: Vec<String> = done.into_iter().map(|adoption| adoption.what).collect();
        Ok(Adoption::new(wait, what.join("\n")))
    }
}
