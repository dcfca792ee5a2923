//! `Quorum`: the nodes, and asking all of them at once.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_core::{BackendError, BoxFuture, Host, LockName, OwnerId, QuorumNode};
use tokio::sync::oneshot;

use crate::{
    error,
    member::{Debt, Member},
    memory::{Memory, UnderWay},
    tally::quorum_of,
};

/// The timeout of a node's identity, after which the claim continues without it: 100 ms.
const INTRODUCTION: Duration = Duration::from_millis(100);

/// The nodes of one configuration, for one handle.
pub(crate) struct Quorum<N> {
    pub(crate) members: Vec<Arc<Member<N>>>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) memory: Arc<Memory>,
}

/// How long one node may take for one request of a lease of this length: a twelfth, so that two rounds and the engine's
/// own request time-out fit; 50 to 500 ms.
pub(crate) fn node_timeout(ttl: Duration) -> Duration {
    (ttl / 12).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

impl<N: QuorumNode> Quorum<N> {
    pub(crate) fn size(&self) -> usize {
        quorum_of(self.members.len())
    }

    /// Runs a task that a dropped caller does not stop, and waits for its answer.
    pub(crate) async fn detached<A: Send + 'static>(
        &self,
        task: impl FnOnce(oneshot::Sender<Result<A, BackendError>>) -> BoxFuture<'static, ()>,
    ) -> Result<A, BackendError> {
        let (tell, told) = oneshot::channel();
        self.spawn(task(tell));
        told.await.unwrap_or_else(|_| Err(error::ended()))
    }

    /// Starts a task for which [`Memory::drained`] waits.
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        let under_way = UnderWay::new(self.memory.clone());
        self.host.spawn(Box::pin(async move {
            task.await;
            drop(under_way);
        }));
    }

    /// Asks all nodes for their identities at the first claim of a process, so that one server under two names never
    /// votes twice. A node that does not answer at once is not asked until it answers a probe.
    pub(crate) async fn identify(&self) {
        if self.members.iter().all(|member| member.identity().is_some() || member.is_silent()) {
            return;
        }
        let over = self.host.sleep_until(self.host.now() + INTRODUCTION);
        let all = join_all(self.members.iter().map(|member| member.identify()));
        tokio::select! {
            biased;
            _ = all => {}
            () = over => {
                let unknown = self.members.iter().filter(|member| member.identity().is_none());
                unknown.for_each(|member| member.set_silent());
            }
        }
    }

    /// Asks every node at once, each within its time-out, and shows the answers so far at each one that comes.
    pub(crate) async fn ask_all<A, F>(
        &self,
        timeout: Duration,
        ask: impl Fn(Arc<N>) -> F,
        mut on_answer: impl FnMut(&[Option<Result<A, BackendError>>]),
    ) -> Vec<Option<Result<A, BackendError>>>
    where
        F: Future<Output = Result<A, BackendError>>,
    {
        let mut asked: FuturesUnordered<_> = (self.members.iter().enumerate())
            .map(|(at, member)| {
                let answer = ask(member.node.clone());
                async move { (at, member.within(&*self.host, timeout, answer).await) }
            })
            .collect();
        let mut answers: Vec<Option<Result<A, BackendError>>> = self.members.iter().map(|_| None).collect();
        while let Some((at, answer)) = asked.next().await {
            answers[at] = Some(answer);
            on_answer(&answers);
        }
        answers
    }

    /// Two members that are one server (A5, H3.5). Every claim looks, and more than once: it copies nothing.
    pub(crate) fn twins(&self) -> Option<BackendError> {
        let known: Vec<_> = self.members.iter().map(|member| member.identity()).collect();
        let twin = |at: usize| known[..at].iter().position(|other| *other == known[at]);
        let is_known = (0..known.len()).filter(|&at| known[at].is_some());
        let (other, one) = is_known.filter_map(|at| Some((twin(at)?, at))).next()?;
        Some(error::twins(&self.members[other].place, &self.members[one].place))
    }

    /// Has an owner leave a node that does not answer once it does, as long as there can be a lease of its.
    pub(crate) fn owe(&self, node: usize, name: LockName, owner: OwnerId) {
        let member = self.members[node].clone();
        let until = self.host.now() + member.node.promises().max_ttl;
        if member.owe(Debt { name, owner, until }) {
            let host = self.host.clone();
            self.host.spawn(Box::pin(async move { member.pay(&*host).await }));
        }
    }

    /// Has members that were silent looked at in the background, now and then.
    pub(crate) fn probe_silent(&self) {
        let now = self.host.now();
        for member in self.members.iter().filter(|member| member.is_to_be_probed(now)) {
            let (member, host) = (member.clone(), self.host.clone());
            self.host.spawn(Box::pin(async move { member.probe(&*host).await }));
        }
    }

    /// Fewer than a quorum answered. `is_untouched`: those that did have changed nothing (L9).
    pub(crate) fn too_few(
        &self,
        is_untouched: bool,
        errors: impl IntoIterator<Item = BackendError>,
    ) -> BackendError {
        error::too_few(self.members.len(), is_untouched, &errors.into_iter().collect::<Vec<_>>())
    }
}
