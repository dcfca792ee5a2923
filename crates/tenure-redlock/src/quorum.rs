//! `Quorum`: the nodes, and asking all of them at the same time; `QuorumMember`: one of them, its identity,
//! whether it answers, and a timeout on every request.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_core::{BackendError, BoxFuture, ErrorKind, Host, LockName, Moment, OwnerId, QuorumNode, locked};
use tokio::sync::oneshot;

use crate::{
    ballot::{Nodes, quorum_of},
    error,
    memory::QuorumMemory,
};

/// The nodes of one configuration, for one handle.
pub(crate) struct Quorum<N> {
    pub(crate) members: Vec<Arc<QuorumMember<N>>>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) memory: Arc<QuorumMemory>,
}

impl<N: QuorumNode> Quorum<N> {
    pub(crate) fn size(&self) -> usize {
        quorum_of(self.members.len())
    }

    /// Starts a task that a dropped caller does not stop; then waits for its answer.
    pub(crate) fn detached<A, F, T>(
        &self,
        task: T,
    ) -> impl Future<Output = Result<A, BackendError>> + use<A, F, N, T>
    where
        A: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
        T: FnOnce(FirstReply<A>) -> F,
    {
        let (reply, answer) = oneshot::channel();
        self.spawn(task(FirstReply(Some(reply))));
        async { answer.await.unwrap_or_else(|_| Err(error::ended())) }
    }

    /// Starts a task for which [`QuorumMemory::drained`] waits.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let running = self.memory.on_task();
        self.host.spawn(Box::pin(async move {
            task.await;
            drop(running);
        }));
    }

    /// Asks all nodes for their identities at the first claim of a process, so that one server under two
    /// names never votes twice. A node that does not answer immediately is not asked until it answers a
    /// probe.
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

    /// Begins a round of requests that have this timeout from now on.
    pub(crate) fn round<F>(&self, timeout: Duration) -> RequestRound<F> {
        let over = self.host.sleep_until(self.host.now() + timeout);
        RequestRound { asked: FuturesUnordered::new(), open: Nodes::default(), timeout, over }
    }

    /// The next answer of a round; for a node that is late, the error that it is silent. `None` when all have
    /// answered.
    ///
    /// # Cancel safety
    /// No answer is lost.
    pub(crate) async fn next_of<A, F>(
        &self,
        round: &mut RequestRound<F>,
    ) -> Option<(usize, Result<A, BackendError>)>
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

    /// Asks all nodes at the same time, each within its timeout, and passes the answers so far to `on_answer` with
    /// each one that arrives.
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

    /// Two members that are one server (A5, H3.5). Every claim checks this, and more than once: it copies nothing.
    pub(crate) fn duplicate_server(&self) -> Option<BackendError> {
        let known: Vec<_> = self.members.iter().map(|member| member.identity()).collect();
        let same = |at: usize| known[..at].iter().position(|other| *other == known[at]);
        let is_known = (0..known.len()).filter(|&at| known[at].is_some());
        let (other, one) = is_known.filter_map(|at| Some((same(at)?, at))).next()?;
        Some(error::duplicate_server(&self.members[other].place, &self.members[one].place))
    }

    /// Releases an owner at a node that does not answer now, as soon as it answers, while the owner may have a lease
    /// there.
    pub(crate) fn release_later(&self, node: usize, name: LockName, owner: OwnerId) {
        let member = self.members[node].clone();
        let until = self.host.now() + member.node.promises().max_ttl;
        let pending = NodeRelease { name, owner, until };
        let sender = locked(&member.state.releases).add(pending);
        if let Some(sender) = sender {
            let host = self.host.clone();
            // On a separate thread, with a separate connection: a caller's runtime may end or rest.
            let start = move || -> BoxFuture<'static, ()> {
                Box::pin(async move {
                    match member.another().await {
                        Ok(member) => member.send_releases(&*host).await,
                        Err(error) => {
                            tracing::warn!(node = %member.place, %error, "not released; its ttl ends it")
                        }
                    }
                    drop(sender);
                })
            };
            if let Err(error) = self.host.spawn_apart("tenure-redlock", Box::new(start)) {
                tracing::warn!(%error, "no thread can be started: a node that does not answer is released later");
            }
        }
    }

    /// Probes silent members in the background, from time to time.
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

/// Requests to nodes that are sent at the same time and have the same timeout: one timer serves all.
pub(crate) struct RequestRound<F> {
    asked: FuturesUnordered<F>,
    /// Those that have not answered.
    open: Nodes,
    timeout: Duration,
    over: BoxFuture<'static, ()>,
}

impl<F: Future> RequestRound<F> {
    /// Adds a request; the output of `answer` has the number of the node.
    pub(crate) fn ask(&mut self, node: usize, answer: F) {
        self.asked.push(answer);
        self.open.insert(node);
    }
}

/// How long one node may take for one request of a lease of this length: a twelfth, so that two rounds and the
/// engine's own request timeout fit; 50 to 500 ms.
pub(crate) fn node_timeout(ttl: Duration) -> Duration {
    (ttl / 12).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

/// One node, and the knowledge of this process about it.
pub(crate) struct QuorumMember<N> {
    pub(crate) place: String,
    pub(crate) node: Arc<N>,
    state: Arc<MemberState>,
}

impl<N: QuorumNode> QuorumMember<N> {
    pub(crate) fn new(place: String, node: Arc<N>) -> Self {
        Self { place, node, state: Arc::default() }
    }

    /// The same member through another handle.
    pub(crate) async fn another(&self) -> Result<Self, BackendError> {
        let node = Arc::new(self.node.another().await?);
        Ok(Self { place: self.place.clone(), node, state: self.state.clone() })
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.state.is_silent.load(Ordering::Relaxed)
    }

    fn set_silent(&self) {
        self.state.is_silent.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        locked(&self.state.identity).is_some()
    }

    /// Its last known identity.
    fn identity(&self) -> Option<Arc<str>> {
        locked(&self.state.identity).clone()
    }

    /// Asks for its identity, unless it has answered every request since it last reported it. True if it was asked.
    pub(crate) async fn identify(&self) -> Result<bool, BackendError> {
        if self.state.is_identified.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let identity = self.node.identity().await?;
        *locked(&self.state.identity) = Some(identity.into());
        self.state.is_identified.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Waits for an answer of this node, but not for longer than `timeout`.
    pub(crate) async fn within<A>(
        &self,
        host: &dyn Host,
        timeout: Duration,
        answer: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, BackendError> {
        let over = host.sleep_until(host.now() + timeout);
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = over => Err(error::silent(timeout)),
        };
        self.judged(timeout, answer)
    }

    /// The node's answer within this timeout; an error names the node. Notes from the answer whether the node is
    /// silent.
    fn judged<A>(&self, timeout: Duration, answer: Result<A, BackendError>) -> Result<A, BackendError> {
        let answer = answer.map_err(|error| error.with("node", &self.place));
        self.note(timeout, &answer);
        answer
    }

    fn note<A>(&self, timeout: Duration, answer: &Result<A, BackendError>) {
        let Err(error) = answer else { return self.state.is_silent.store(false, Ordering::Relaxed) };
        // It answers, even if it will not serve: a closed gate opens without a probe.
        let answers = error.retry_hint().is_some();
        // With so short a timeout, it may only be far away.
        if !answers && error.kind() == ErrorKind::TimedOut && timeout < PATIENCE {
            return;
        }
        let failed = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable);
        // One that comes back, or will not serve, may be another server than before (A5).
        if failed {
            self.state.is_identified.store(false, Ordering::Relaxed);
        }
        self.state.is_silent.store(failed && !answers, Ordering::Relaxed);
    }

    /// Sends the pending releases one by one, and waits while the node does not answer.
    async fn send_releases(&self, host: &dyn Host) {
        let next = || locked(&self.state.releases).next(host.now());
        while let Some(NodeRelease { name, owner, .. }) = next() {
            let released = self.node.release(&name, owner);
            match self.within(host, PROBE_TIMEOUT, released).await {
                Err(error) if error.kind().is_transient() => host.sleep_until(host.now() + PROBE_EVERY).await,
                _ => locked(&self.state.releases).on_answer(),
            }
        }
    }

    /// True if it is time to probe whether a silent member answers again; once per period.
    fn is_to_be_probed(&self, now: Moment) -> bool {
        if !self.is_silent() {
            return false;
        }
        let mut last = locked(&self.state.last_probe);
        let is_due = last.is_none_or(|last| last.elapsed(now) >= PROBE_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Probes whether it answers; no caller waits for this.
    async fn probe(&self, host: &dyn Host) {
        let asked = async { self.node.identity().await.map(|_| ()) };
        if let Err(error) = self.within(host, PROBE_TIMEOUT, asked).await {
            tracing::debug!(node = %self.place, %error, "still silent");
        }
    }
}

/// The knowledge of a process about a node, shared by all handles.
#[derive(Default)]
struct MemberState {
    /// Did not answer in time when it was asked last: not asked for new locks until a probe is answered.
    is_silent: AtomicBool,
    last_probe: Mutex<Option<Moment>>,
    /// Its last known identity, which is compared with those of the other nodes even after a failure.
    identity: Mutex<Option<Arc<str>>>,
    /// It has not failed since it reported its identity.
    is_identified: AtomicBool,
    releases: Mutex<PendingReleases>,
}

/// An owner that is to be released at a node which does not answer.
#[derive(Clone)]
struct NodeRelease {
    name: LockName,
    owner: OwnerId,
    /// Every lease of the owner has expired by then.
    until: Moment,
}

/// Releases that a node has not answered yet, oldest first.
#[derive(Default)]
struct PendingReleases {
    open: VecDeque<NodeRelease>,
    /// The thread that sends them; if it could not be started, the next release starts it.
    sender: Weak<()>,
}

impl PendingReleases {
    /// Adds a release. If no thread sends releases, returns what a new one must keep.
    fn add(&mut self, release: NodeRelease) -> Option<Arc<()>> {
        if self.open.len() < PENDING_MAX {
            self.open.push_back(release);
        }
        let is_sent = self.sender.strong_count() > 0;
        (!is_sent).then(|| {
            let sender = Arc::new(());
            self.sender = Arc::downgrade(&sender);
            sender
        })
    }

    /// The first one that is still useful, which stays until it is answered; if there is none, the thread ends.
    fn next(&mut self, now: Moment) -> Option<NodeRelease> {
        while self.open.pop_front_if(|release| release.until.is_over(now)).is_some() {}
        if self.open.is_empty() {
            self.sender = Weak::new();
        }
        self.open.front().cloned()
    }

    fn on_answer(&mut self) {
        self.open.pop_front();
    }
}

/// Takes the answer of a task to its caller, which need not wait for it any more. The first answer counts.
pub(crate) struct FirstReply<A>(Option<oneshot::Sender<Result<A, BackendError>>>);

impl<A> FirstReply<A> {
    pub(crate) fn is_sent(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn send(&mut self, answer: Result<A, BackendError>) {
        if let Some(reply) = self.0.take() {
            // OK because a caller that does not listen any more needs no answer.
            let _ = reply.send(answer);
        }
    }
}

/// The timeout of a node's identity, after which the claim continues without it: 100 ms.
const INTRODUCTION: Duration = Duration::from_millis(100);
/// How long until a member that did not answer is probed again: 500 ms.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// A member that has not answered for 50 ms is silent. That is many round trips in one place.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a probe may take: 2 s, more than a claim waits, so that a slow node counts as one that answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many releases may be pending at one member; beyond that, the ttl ends what is there. The first ones are kept,
/// because they are from before the member fell silent. Later claims asked it for nothing, and their releases are
/// pending anyway.
const PENDING_MAX: usize = 1024;
