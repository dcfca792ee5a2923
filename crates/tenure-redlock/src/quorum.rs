//! `Quorum`: the nodes, and asking all of them at once; `Member`: one of them, its identity, whether it answers, and a timeout
//! on every request.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
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
    memory::{Memory, UnderWay},
};

/// The nodes of one configuration, for one handle.
pub(crate) struct Quorum<N> {
    pub(crate) members: Vec<Arc<Member<N>>>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) memory: Arc<Memory>,
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

/// One node, and the knowledge of this process about it.
pub(crate) struct Member<N> {
    pub(crate) place: String,
    pub(crate) node: Arc<N>,
    known: Arc<Known>,
}

impl<N: QuorumNode> Member<N> {
    pub(crate) fn new(place: String, node: Arc<N>) -> Self {
        Self { place, node, known: Arc::default() }
    }

    /// The same member through another handle.
    pub(crate) async fn another(&self) -> Result<Self, BackendError> {
        let node = Arc::new(self.node.another().await?);
        Ok(Self { place: self.place.clone(), node, known: self.known.clone() })
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.known.is_silent.load(Ordering::Relaxed)
    }

    fn set_silent(&self) {
        self.known.is_silent.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        locked(&self.known.identity).is_some()
    }

    /// Its last known identity.
    fn identity(&self) -> Option<Arc<str>> {
        locked(&self.known.identity).clone()
    }

    /// Asks for its identity, unless it has answered every request since it last said so. True if it was asked.
    pub(crate) async fn identify(&self) -> Result<bool, BackendError> {
        if self.known.is_identified.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let identity = self.node.identity().await?;
        *locked(&self.known.identity) = Some(identity.into());
        self.known.is_identified.store(true, Ordering::Relaxed);
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

    /// What it answered when it had so much time, as its own; whether it is silent is known from that.
    fn judged<A>(&self, timeout: Duration, answer: Result<A, BackendError>) -> Result<A, BackendError> {
        let answer = answer.map_err(|error| error.with("node", &self.place));
        self.note(timeout, &answer);
        answer
    }

    fn note<A>(&self, timeout: Duration, answer: &Result<A, BackendError>) {
        let Err(error) = answer else { return self.known.is_silent.store(false, Ordering::Relaxed) };
        // It answers, even if it will not serve: a closed gate opens without a probe.
        let answers = error.retry_hint().is_some();
        // Asked with so little patience, it may only be far away.
        if !answers && error.kind() == ErrorKind::TimedOut && timeout < PATIENCE {
            return;
        }
        let failed = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unavailable);
        // Who comes back, or will not serve, may be another one than before (A5).
        if failed {
            self.known.is_identified.store(false, Ordering::Relaxed);
        }
        self.known.is_silent.store(failed && !answers, Ordering::Relaxed);
    }

    /// Adds a release to send; true if no task is sending them yet.
    fn owe(&self, debt: Debt) -> bool {
        let mut debts = locked(&self.known.debts);
        if debts.open.len() < DEBTS_MAX {
            debts.open.push_back(debt);
        }
        !std::mem::replace(&mut debts.is_being_paid, true)
    }

    /// The first release that is still useful; if there is none, the task that sends them ends.
    fn next_debt(&self, now: Moment) -> Option<Debt> {
        let mut debts = locked(&self.known.debts);
        while let Some(debt) = debts.open.pop_front() {
            if !debt.until.is_over(now) {
                return Some(debt);
            }
        }
        debts.is_being_paid = false;
        None
    }

    /// Sends the releases one by one, and waits while the node does not answer.
    ///
    /// # Dropping
    /// As when a runtime ends: the next release that is owed has all of them sent.
    async fn pay(&self, host: &dyn Host) {
        let mut paying = Paying { debts: &self.known.debts, in_hand: None };
        while let Some(debt) = self.next_debt(host.now()) {
            let debt = paying.in_hand.insert(debt);
            let released = self.node.release(&debt.name, debt.owner);
            match self.within(host, PROBE_TIMEOUT, released).await {
                Err(error) if error.kind().is_transient() => {
                    host.sleep_until(host.now() + PROBE_EVERY).await;
                    paying.put_back();
                }
                _ => paying.in_hand = None,
            }
        }
        // Whoever owes now has begun another task.
        std::mem::forget(paying);
    }

    /// True if it is time to look whether a silent member answers again; says so once per period.
    fn is_to_be_probed(&self, now: Moment) -> bool {
        if !self.is_silent() {
            return false;
        }
        let mut last = locked(&self.known.last_probe);
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
struct Known {
    /// Did not answer in time when it was asked last: not asked for new locks until a probe is answered.
    is_silent: AtomicBool,
    last_probe: Mutex<Option<Moment>>,
    /// Its last known identity, which is compared with those of the other nodes even after a failure.
    identity: Mutex<Option<Arc<str>>>,
    /// It has not failed since it said so.
    is_identified: AtomicBool,
    debts: Mutex<Debts>,
}

/// An owner that is to leave a node which does not answer.
struct Debt {
    name: LockName,
    owner: OwnerId,
    /// Any lease of its is over then.
    until: Moment,
}

/// Releases that a node has not confirmed yet, oldest first.
#[derive(Default)]
struct Debts {
    open: VecDeque<Debt>,
    is_being_paid: bool,
}

/// The task that sends them. When it is dropped, nothing is forgotten, and another one may be begun.
struct Paying<'a> {
    debts: &'a Mutex<Debts>,
    in_hand: Option<Debt>,
}

impl Paying<'_> {
    fn put_back(&mut self) {
        if let Some(debt) = self.in_hand.take() {
            locked(self.debts).open.push_front(debt);
        }
    }
}

impl Drop for Paying<'_> {
    fn drop(&mut self) {
        self.put_back();
        locked(self.debts).is_being_paid = false;
    }
}

/// The timeout of a node's identity, after which the claim continues without it: 100 ms.
const INTRODUCTION: Duration = Duration::from_millis(100);
/// A member that did not answer is looked at again after this long: 500 ms.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Not to have answered for so long is to be silent: 50 ms, many round trips in one place.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a probe may take: 2 s, more than a claim waits, so that a slow node is found to be one that answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Releases that one member may be owed; more, and the ttl ends what is there. The first are kept: they are of before it fell silent.
/// After that it was asked for nothing, and is owed a release all the same.
const DEBTS_MAX: usize = 1024;
