//! `Quorum`: the nodes, and asking all of them at once.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_core::{BackendError, BoxFuture, Host, LockName, OwnerId, QuorumNode};
use tokio::sync::oneshot;

use crate::{
    error,
    member::{Debt, Member},
    memory::{Memory, UnderWay},
    nodes::Nodes,
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

/// Requests to nodes that are sent at the same time and have as much time each: one timer serves all.
pub(crate) struct Round<F> {
    asked: FuturesUnordered<F>,
    /// Those that have not answered.
    open: Nodes,
    timeout: Duration,
    over: BoxFuture<'static, ()>,
}

impl<F: Future> Round<F> {
    /// One more; `answer` says which node it is.
    pub(crate) fn ask(&mut self, node: usize, answer: F) {
        self.asked.push(answer);
        self.open.insert(node);
    }
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
        if self.members.iter().all(|member| member.is_known() || member.is_silent()) {
            return;
        }
        let over = self.host.sleep_until(self.host.now() + INTRODUCTION);
        let all = join_all(self.members.iter().map(|member| member.identify()));
        tokio::select! {
            biased;
            _ = all => {}
            () = over => {
                let unknown = self.members.iter().filter(|member| !member.is_known());
                unknown.for_each(|member| member.set_silent());
            }
        }
    }

    /// Begins a round of requests that have so much time from now on.
    pub(crate) fn round<F>(&self, timeout: Duration) -> Round<F> {
        let over = self.host.sleep_until(self.host.now() + timeout);
        Round { asked: FuturesUnordered::new(), open: Nodes::default(), timeout, over }
    }

    /// The next answer of a round; of a node that is late, that it is silent. Nothing when all have answered.
    ///
    /// # Cancel safety
    /// No answer is lost.
    pub(crate) async fn next_of<A, F>(&self, round: &mut Round<F>) -> Option<(usize, Result<A, BackendError>)>
    where
        F: Future<Output = (usize, Result<A, BackendError>)>,
    {
        let answered = tokio::select! {
            biased;
            answered = round.asked.next() => answered,
            () = &mut round.over => None,
        };
        let (node, answer) = match answered {
            Some(answered) => answered,
            None => {
                round.asked.clear();
                (round.open.iter().next()?, Err(error::silent(round.timeout)))
            }
        };
        round.open.remove(node);
        Some((node, self.members[node].judged(round.timeout, answer)))
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
        let mut round = self.round(timeout);
        for (node, member) in self.members.iter().enumerate() {
            let answer = ask(member.node.clone());
            round.ask(node, async move { (node, answer.await) });
        }
        let mut answers: Vec<Option<Result<A, BackendError>>> = self.members.iter().map(|_| None).collect();
        while let Some((node, answer)) = self.next_of(&mut round).await {
            answers[node] = Some(answer);
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
