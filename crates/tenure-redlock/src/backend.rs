//! `Redlock`: the verbs by quorum. A claim, a renewal, a release and a memo each run in a separate task. It answers
//! the caller as soon as the nodes have decided, and continues with the slower nodes.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_core::{
    Absent, Adopt, Adoption, Asker, Audience, Backend, BackendError, BackendHandle, BoxFuture, BreakScope,
    Claim, ClaimAnswer, ErrorKind, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo,
    Minting, Mode, Moment, Noted, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Released,
    Renewal, Restart, Severity, Sharing, WaitMode, WakeStream,
};

use crate::{
    ballot::{Ballot, BallotOutcome, NodeAnswer, NodeRequest, Nodes},
    config::QuorumError,
    error,
    memory::{AwaitedNodes, InFlightClaim, OwnerAtLock, QuorumMemory, SLOTS_MAX, SlotSearch, slot},
    quorum::{FirstReply, Quorum, QuorumMember, node_timeout},
    view,
    wake::GatheredHints,
};

/// One lock on the quorum of independent nodes.
pub struct Redlock<N> {
    quorum: Arc<Quorum<N>>,
}

impl<N: QuorumNode> Redlock<N> {
    /// On these nodes, each with a name for display. All clients must have the same nodes.
    ///
    /// # Errors
    /// [`QuorumError`] for fewer than three, an even number, or one that is listed twice.
    pub fn new(nodes: Vec<(String, Arc<N>)>, host: Arc<dyn Host>) -> Result<Self, QuorumError> {
        let places: Vec<&str> = nodes.iter().map(|(place, _)| place.as_str()).collect();
        QuorumError::of(&places)?;
        let members =
            nodes.into_iter().map(|(place, node)| Arc::new(QuorumMember::new(place, node))).collect();
        let quorum = Arc::new(Quorum { members, host, memory: Arc::new(QuorumMemory::default()) });
        Ok(Self { quorum })
    }

    /// Tries the slots of a semaphore, beginning with any, as long as there is time. It waits at the last one, and
    /// continues after that one when it asks again.
    async fn claim_slot(&self, claim: &Claim, slots: NonZeroU32) -> Result<ClaimAnswer, BackendError> {
        let (quorum, memory) = (&self.quorum, &self.quorum.memory);
        let mut bits = [0; 4];
        quorum.host.random(&mut bits);
        let key = (claim.owner, claim.name.clone());
        let mut search = memory.begin_search(&key, slots, u32::from_be_bytes(bits) % slots);
        let over = quorum.host.now() + claim.ttl / 6;
        let (mut soonest, mut is_split) = (None::<Duration>, false);
        for asked in 1..=slots.get() {
            let is_last = asked == slots.get() || over.is_over(quorum.host.now());
            // No slot was granted so far. The owner's release may have arrived by now, and covers the slots that were
            // asked before.
            if let Err(gone) = claim.asker.must_be_there() {
                self.leave_place(claim, search, None);
                // A minority of the nodes may have granted a slot that was asked before.
                return Err(if asked == 1 { gone } else { gone.of_unknown_outcome() });
            }
            let number = search.step();
            // Before anything is sent: if this future is dropped half way, the owner must be released there too.
            memory.set_search(&key, search);
            // This owner must not claim a slot again at which it was released, wherever it waits.
            let wait = if is_last && !is_split { claim.wait } else { WaitMode::No };
            let one = claim
                .clone()
                .with_name(slot(&claim.name, number)?)
                .with_mode(Mode::Exclusive)
                .with_wait(wait);
            let answer = claim_everywhere(quorum, &one).await;
            let sooner = |wait: Duration| soonest.map_or(wait, |known| known.min(wait));
            match answer? {
                ClaimAnswer::Granted(grant) => {
                    // It is released by the name of its slot from here on.
                    self.leave_place(claim, search, Some(number));
                    memory.end_search(&key);
                    return Ok(ClaimAnswer::Granted(grant));
                }
                ClaimAnswer::Split { .. } => is_split = true,
                ClaimAnswer::Busy { retry_after, .. } if !is_last => soonest = Some(sooner(retry_after)),
                ClaimAnswer::Queued { ahead, retry_after, holder } => {
                    self.leave_place(claim, search, Some(number));
                    memory.set_search(&key, SlotSearch { place: Some(number), ..search });
                    return Ok(ClaimAnswer::Queued { ahead, retry_after: sooner(retry_after), holder });
                }
                ClaimAnswer::Busy { retry_after, holder } if !is_split => {
                    memory.end_search(&key);
                    return Ok(ClaimAnswer::Busy { retry_after: sooner(retry_after), holder });
                }
                ClaimAnswer::Busy { .. } => {}
            }
            if is_last {
                break;
            }
        }
        self.leave_place(claim, search, None);
        memory.end_search(&key);
        Ok(ClaimAnswer::Split { retry_after: SLOTS_PAUSE, holder: None })
    }

    /// Leaves the place at the slot where it waited before, in the background, unless it is this one.
    fn leave_place(&self, claim: &Claim, search: SlotSearch, but: Option<u32>) {
        if let Some(place) = search.place.filter(|place| Some(*place) != but)
            && let Ok(name) = slot(&claim.name, place)
        {
            drop(release(&self.quorum, (claim.owner, name)));
        }
    }

    /// The answers of a quorum to a request that changes nothing.
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
        let served = self.quorum.members.iter().map(|member| member.node.promises().served_ttl);
        promises.served_ttl = served.min().unwrap_or(promises.served_ttl);
        promises.backend = "redlock";
        promises.sharing = Sharing::Slots { most: SLOTS_MAX };
        promises.order = Order::Any;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        // After a split vote the next attempt needs a new owner (H3.4).
        promises.chosen_owner = false;
        promises.classes = false;
        // The other nodes continue.
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
        Ok(Arc::new(Self { quorum }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let answer = match claim.mode {
            Mode::Exclusive => claim_everywhere(&self.quorum, claim).await,
            Mode::Shared { limit: Some(slots), .. } if slots.get() > SLOTS_MAX => {
                let message = format!("a semaphore on a quorum has {SLOTS_MAX} slots at most");
                return Err(BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message));
            }
            Mode::Shared { limit: Some(slots), permits: NonZeroU32::MIN } => {
                self.claim_slot(claim, slots).await
            }
            Mode::Shared { limit: Some(_), .. } => {
                let message = "a claim takes one slot of a semaphore on a quorum";
                return Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message));
            }
            Mode::Shared { limit: None, .. } => {
                let message = "a quorum of nodes has no read locks";
                return Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message));
            }
        };
        match answer? {
            // A claim that does not wait is not repeated.
            ClaimAnswer::Split { retry_after, holder } if claim.wait == WaitMode::No => {
                Ok(ClaimAnswer::Busy { retry_after, holder })
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let task = |reply| renew_everywhere(self.quorum.clone(), grants.into(), reply);
        match self.quorum.detached(task).await {
            Ok(renewals) => renewals,
            Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let key = (owner, name.clone());
        let Some(search) = self.quorum.memory.search(&key) else { return release(&self.quorum, key).await };
        let names: Result<Vec<_>, _> = search.asked().map(|number| slot(name, number)).collect();
        let releases = names?.into_iter().map(|name| release(&self.quorum, (owner, name)));
        let answers: Result<Vec<_>, _> = join_all(releases).await.into_iter().collect();
        let held = answers?.contains(&Released::Released);
        // Only now: a release that is tried again must reach all slots again.
        self.quorum.memory.end_search(&key);
        Ok(if held { Released::Released } else { Released::WasGone })
    }

    async fn tell(&self, name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        // In the background: a node that hangs delays no waiter.
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
        self.quorum.detached(|reply| note_everywhere(quorum, name, (owner, token), memo, reply)).await
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        let members = self.quorum.members.iter();
        let streams = members.map(|member| member.node.wakes(process, audience)).collect();
        // A holder that lost its lock asks immediately, and so does an observer.
        let quorum = if audience == Audience::Waiters { self.quorum.size() } else { 1 };
        Box::new(GatheredHints::new(streams, quorum, self.quorum.host.clone()))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let views = self.question(QUESTION, |node| async move { node.inspect(name).await }).await?;
        Ok(view::merge(name.clone(), &views, self.quorum.size()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let lists = self.question(WALK, |node| async move { node.list(prefix).await }).await?;
        Ok(view::merge_all(lists, self.quorum.size()))
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        let mut holders = self.inspect(name).await?.holders;
        self.question(QUESTION, |node| async move { node.break_lock(name, scope).await }).await?;
        if let BreakScope::Owner(owner) = scope {
            let owner = owner.to_string();
            holders.retain(|holder| holder.owner == owner);
        }
        Ok(holders)
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
            // The identity is not known before the node was asked once. Errors are findings already.
            let _ = member.within(&*self.quorum.host, QUESTION, member.identify()).await;
        }
        findings.extend(self.quorum.duplicate_server().map(|duplicate| {
            Finding::new(Severity::Problem, duplicate.to_string(), "list every server once, in all clients")
        }));
        Ok(findings)
    }

    async fn may_grant(&self) -> Result<(), BackendError> {
        self.question(QUESTION, |node| async move { node.may_grant().await }).await.map(drop)
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        let answers =
            self.quorum.ask_all(QUESTION, |node| async move { node.adopt(adopt).await }, |_| {}).await;
        let (done, failed): (Vec<_>, Vec<_>) = answers.into_iter().flatten().partition(Result::is_ok);
        let done: Vec<Adoption> = done.into_iter().filter_map(Result::ok).collect();
        // A node that keeps the old settings refuses every client with the new ones.
        if !failed.is_empty() {
            let errors: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
            return Err(error::not_adopted(self.quorum.members.len(), &errors));
        }
        let wait = done.iter().map(|adoption| adoption.wait).max().unwrap_or_default();
        let what: Vec<String> = done.into_iter().map(|adoption| adoption.what).collect();
        Ok(Adoption::new(wait, what.join("\n")))
    }
}

/// Asks the nodes, answers the caller, and continues until all have answered.
async fn claim_everywhere<N: QuorumNode>(quorum: &Arc<Quorum<N>>, claim: &Claim) -> NodeClaim {
    quorum.identify().await;
    if let Some(duplicate) = quorum.duplicate_server() {
        return Err(duplicate);
    }
    quorum.probe_silent();
    let Some(in_flight) = quorum.memory.begin((claim.owner, claim.name.clone())).await else {
        return Ok(ClaimAnswer::Split { retry_after: Duration::from_millis(1), holder: None });
    };
    quorum.detached(|reply| ClaimTask::new(quorum.clone(), claim.clone(), in_flight, reply).run()).await
}

/// One claim, from the first request until every node has answered.
struct ClaimTask<N> {
    quorum: Arc<Quorum<N>>,
    claim: Arc<Claim>,
    ballot: Ballot,
    began: Moment,
    timeout: Duration,
    in_flight: InFlightClaim,
    reply: FirstReply<ClaimAnswer>,
}

impl<N: QuorumNode> ClaimTask<N> {
    fn new(
        quorum: Arc<Quorum<N>>,
        mut claim: Claim,
        in_flight: InFlightClaim,
        reply: FirstReply<ClaimAnswer>,
    ) -> Self {
        // Nodes notify the waiter but never make it the holder: a lock that one node hands on is handed on by one
        // node only (S3.3 g).
        if claim.wait == WaitMode::Turn {
            claim.wait = WaitMode::Wake;
        }
        // A node that skips its request because the caller has left would report nothing about itself.
        claim.asker = Asker::default();
        let nodes = quorum.members.len();
        let silent: Nodes = (0..nodes).filter(|&node| quorum.members[node].is_silent()).collect();
        // With fewer than a quorum of other nodes, there is nothing to lose by asking.
        let silent = if nodes - silent.len() >= quorum.size() { silent } else { Nodes::default() };
        let ballot = Ballot::new(nodes, silent, quorum.memory.held(&claim.name));
        let began = quorum.host.now();
        let timeout = node_timeout(claim.ttl);
        Self { quorum, claim: Arc::new(claim), ballot, began, timeout, in_flight, reply }
    }

    async fn run(mut self) {
        let quorum = self.quorum.clone();
        // The first requests share one timer; most ballots send no others.
        let (mut votes, mut under_way) = (quorum.round(self.timeout), FuturesUnordered::new());
        for request in self.requests() {
            match request {
                NodeRequest::Claim(node) => votes.ask(node, vote(quorum.clone(), self.claim.clone(), node)),
                request => under_way.push(self.send(request)),
            }
        }
        loop {
            if let Some(answer) = self.answer() {
                self.reply.send(answer);
            }
            let answer = tokio::select! {
                biased;
                Some((node, answer)) = quorum.next_of(&mut votes) => NodeAnswer::Vote(node, answer),
                Some(answer) = under_way.next() => answer,
                else => break,
            };
            let answered = if let NodeAnswer::Vote(node, _) = answer { Some(node) } else { None };
            self.ballot.on_answer(answer);
            under_way.extend(self.requests().into_iter().map(|request| self.send(request)));
            if let Some(node) = answered.filter(|&node| self.in_flight.is_to_be_released_again(node)) {
                quorum.release_later(node, self.claim.name.clone(), self.claim.owner);
            }
        }
    }

    fn requests(&mut self) -> Vec<NodeRequest> {
        let requests = self.ballot.requests();
        if *self.ballot.outcome() == BallotOutcome::Released {
            self.release();
        }
        if self.in_flight.set_unanswered(self.ballot.unanswered()) {
            return requests;
        }
        self.ballot.release();
        Vec::new()
    }

    /// Releases the owner everywhere, in the background, unless that is done already.
    fn release(&self) {
        if !self.in_flight.is_released() {
            drop(release(&self.quorum, (self.claim.owner, self.claim.name.clone())));
        }
    }

    fn send(&self, request: NodeRequest) -> BoxFuture<'static, NodeAnswer> {
        let (quorum, claim, timeout) = (self.quorum.clone(), self.claim.clone(), self.timeout);
        match request {
            NodeRequest::Claim(node) => Box::pin(async move {
                let asked = async { vote(quorum.clone(), claim, node).await.1 };
                NodeAnswer::Vote(node, quorum.members[node].within(&*quorum.host, timeout, asked).await)
            }),
            NodeRequest::Raise(node, to) => Box::pin(async move {
                let member = &quorum.members[node];
                let raised = member.node.raise(&claim.name, claim.owner, FencingToken::new(to));
                NodeAnswer::Raised(node, to, member.within(&*quorum.host, timeout, raised).await)
            }),
        }
    }

    /// The answer, once, when it is decided.
    fn answer(&mut self) -> Option<NodeClaim> {
        if self.reply.is_sent() || *self.ballot.outcome() == BallotOutcome::Open {
            return None;
        }
        if let Some(duplicate) = self.quorum.duplicate_server() {
            self.ballot.release();
            self.release();
            return Some(Err(duplicate));
        }
        let memory = &self.quorum.memory;
        let (retry_after, holder) = self.ballot.votes().refusal();
        let retry_after = retry_after.unwrap_or(PAUSE_MAX);
        Some(Ok(match self.ballot.outcome() {
            BallotOutcome::Kept(tokens) => {
                memory.agreed();
                memory.set_held(&self.claim.name, None);
                let Claim { name, owner, ttl, .. } = &*self.claim;
                let (name, token) = (name.clone(), tokens.first());
                ClaimAnswer::Granted(Grant::new(name, *owner, token, *ttl).with_block(tokens.block))
            }
            BallotOutcome::Failed => {
                let is_untouched = !self.ballot.has_reached_any();
                return Some(Err(self.quorum.too_few(is_untouched, self.ballot.errors())));
            }
            BallotOutcome::Open => return None,
            BallotOutcome::Refused if self.claim.wait == WaitMode::No => {
                ClaimAnswer::Busy { retry_after, holder }
            }
            BallotOutcome::Refused => ClaimAnswer::Queued { ahead: 0, retry_after, holder },
            BallotOutcome::Released => {
                let held = self.ballot.held_elsewhere();
                let retry_after = match held {
                    // The next claim asks only the nodes that refuse, and keeps a place there.
                    Some(_) => Duration::from_millis(1),
                    None => self.pause(),
                };
                memory.set_held(&self.claim.name, held);
                ClaimAnswer::Split { retry_after, holder }
            }
        }))
    }

    /// A random part of a round, doubled with every split vote in a row: a client that is alone for a while gets a
    /// quorum (S3.3 f).
    fn pause(&self) -> Duration {
        let round = self.began.elapsed(self.quorum.host.now()).max(Duration::from_millis(1));
        let longest = round * (1 << self.quorum.memory.split().min(SPLITS_MAX));
        let mut bits = [0; 4];
        self.quorum.host.random(&mut bits);
        let part = f64::from(u32::from_be_bytes(bits)) / f64::from(u32::MAX);
        longest.min(PAUSE_MAX).mul_f64(part).max(Duration::from_millis(1))
    }
}

/// The answer of a node to a claim, with the number of the node.
async fn vote<N: QuorumNode>(quorum: Arc<Quorum<N>>, claim: Arc<Claim>, node: usize) -> (usize, NodeClaim) {
    let member = &quorum.members[node];
    let answer = async {
        if member.identify().await?
            && let Some(duplicate) = quorum.duplicate_server()
        {
            return Err(duplicate);
        }
        member.node.claim(&claim).await
    };
    (node, answer.await)
}

type NodeClaim = Result<ClaimAnswer, BackendError>;

/// Extends leases on all nodes. Answers as soon as a quorum has answered for each lease, and continues with
/// the other nodes: a node that is not renewed is one failure less that the lease survives.
async fn renew_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    grants: Arc<[Grant]>,
    mut reply: FirstReply<NodeRenewals>,
) {
    let timeout = node_timeout(grants.iter().map(|grant| grant.ttl).min().unwrap_or_default());
    let size = quorum.size();
    let ask = |node: Arc<N>| {
        let grants = grants.clone();
        async move {
            let answers = node.renew(&grants).await;
            match answers.first() {
                // All are errors: the node did not answer.
                Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
                _ => Ok(answers),
            }
        }
    };
    let all = 0..grants.len();
    let on_answer = |answers: &[_]| {
        let known = |at| RenewalVotes::of(at, answers).decided(size);
        if let Some(renewals) = all.clone().map(known).collect() {
            reply.send(Ok(renewals));
        }
    };
    let answers = quorum.ask_all(timeout, ask, on_answer).await;
    let settled = |at| {
        let votes = RenewalVotes::of(at, &answers);
        votes.decided(size).unwrap_or_else(|| {
            let is_untouched = votes.renewed + votes.gone + votes.missing == 0;
            Err(quorum.too_few(is_untouched, votes.failed.into_iter().chain(votes.refused)))
        })
    };
    reply.send(Ok(all.map(settled).collect()));
}

/// What the nodes have answered about one lease.
#[derive(Default)]
struct RenewalVotes {
    all: usize,
    renewed: usize,
    gone: usize,
    /// The answer of a node is too short for it.
    missing: usize,
    /// Errors of nodes that renew nothing.
    failed: Vec<BackendError>,
    /// Errors of nodes that renew other leases: this lease is too long there.
    refused: Vec<BackendError>,
}

impl RenewalVotes {
    fn of(at: usize, answers: &[Option<Result<NodeRenewals, BackendError>>]) -> Self {
        let mut votes = Self { all: answers.len(), ..Self::default() };
        for answer in answers.iter().flatten() {
            match answer.as_ref().map(|renewals| renewals.get(at)) {
                Ok(Some(Ok(Renewal::Renewed))) => votes.renewed += 1,
                Ok(Some(Ok(Renewal::Gone))) => votes.gone += 1,
                Ok(Some(Err(error))) => votes.refused.push(error.clone()),
                Ok(None) => votes.missing += 1,
                Err(error) => votes.failed.push(error.clone()),
            }
        }
        votes
    }

    /// The answer of a quorum of this size; `None` while there is none.
    fn decided(&self, size: usize) -> Option<Result<Renewal, BackendError>> {
        let most = self.all - size;
        if self.renewed >= size {
            Some(Ok(Renewal::Renewed))
        } else if self.gone > most {
            Some(Ok(Renewal::Gone))
        } else if self.refused.len() > most {
            Some(Err(error::too_few(self.all, false, &self.refused)))
        } else {
            None
        }
    }
}

/// The answers of one node, one for each lease.
type NodeRenewals = Vec<Result<Renewal, BackendError>>;

/// Starts to release an owner at all nodes. The owner is spent immediately, before a claim of it can begin again.
fn release<N: QuorumNode>(
    quorum: &Arc<Quorum<N>>,
    key: OwnerAtLock,
) -> impl Future<Output = Result<Released, BackendError>> + use<N> {
    let unanswered = quorum.memory.on_release(&key);
    let quorum_there = quorum.clone();
    quorum.detached(|reply| release_everywhere(quorum_there, key, unanswered, reply))
}

/// Releases an owner at all nodes. Answers as soon as it is known whether a quorum of them held for it, and continues
/// with the nodes that did not answer.
async fn release_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    key: OwnerAtLock,
    unanswered: Option<AwaitedNodes>,
    mut reply: FirstReply<Released>,
) {
    let (all, size) = (quorum.members.len(), quorum.size());
    let mut round = quorum.round(RELEASE);
    for node in 0..all {
        let unanswered = unanswered.clone().filter(|nodes| nodes.contains(node));
        round.ask(node, release_at(&quorum, node, &key, unanswered));
    }
    let (mut released, mut gone) = (0, 0);
    let (mut errors, mut again) = (Vec::new(), Vec::new());
    while let Some((node, answer)) = quorum.next_of(&mut round).await {
        match answer {
            Ok(Released::Released) => released += 1,
            Ok(Released::WasGone) => gone += 1,
            Err(error) => {
                if error.kind().is_transient() {
                    again.push(node);
                }
                errors.push(error);
            }
        }
        if released >= size {
            reply.send(Ok(Released::Released));
        } else if gone > all - size {
            // Held by fewer than a quorum: it was lost, and may have another holder.
            reply.send(Ok(Released::WasGone));
        } else if released + gone + errors.len() == all {
            reply.send(Err(quorum.too_few(released == 0, errors.clone())));
        }
    }
    for node in again {
        quorum.release_later(node, key.1.clone(), key.0);
    }
}

/// Releases an owner at one node, after its claim: see [`QuorumMemory`].
async fn release_at<N: QuorumNode>(
    quorum: &Quorum<N>,
    node: usize,
    key: &OwnerAtLock,
    unanswered: Option<AwaitedNodes>,
) -> (usize, Result<Released, BackendError>) {
    if let Some(nodes) = unanswered {
        tokio::select! {
            biased;
            () = nodes.until(|nodes| !nodes.contains(node)) => {}
            () = quorum.host.sleep_until(quorum.host.now() + ANSWER) => {
                quorum.memory.release_again_when_answered(key, node);
            }
        }
    }
    (node, quorum.members[node].node.release(&key.1, key.0).await)
}

/// Writes a memo on all nodes. Answers as soon as a majority has written it, or cannot any more, and continues with
/// the others.
async fn note_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    name: LockName,
    (owner, token): (OwnerId, FencingToken),
    memo: Memo,
    mut reply: FirstReply<Noted>,
) {
    let size = quorum.size();
    let ask = |node: Arc<N>| {
        let (name, memo) = (name.clone(), memo.clone());
        async move { node.note(&name, owner, token, &memo).await }
    };
    let on_answer = |answers: &[Option<Result<Noted, BackendError>>]| {
        let said =
            |wanted: Noted| answers.iter().flatten().filter(|a| a.as_ref().ok() == Some(&wanted)).count();
        if said(Noted::Noted) >= size {
            reply.send(Ok(Noted::Noted));
        } else if said(Noted::Gone) > answers.len() - size {
            reply.send(Ok(Noted::Gone));
        }
    };
    let answers = quorum.ask_all(NOTE, ask, on_answer).await;
    let is_untouched = !answers.iter().flatten().any(|answer| matches!(answer, Ok(Noted::Noted)));
    let errors = answers.into_iter().flatten().filter_map(Result::err);
    reply.send(Err(quorum.too_few(is_untouched, errors)));
}

/// How long a node may take for a question: 2 s.
const QUESTION: Duration = Duration::from_secs(2);
/// The timeout of a node that lists its locks: 50 s, which is less than the caller's own.
const WALK: Duration = Duration::from_secs(50);
/// The pause after partial grants of slots: 20 ms, some rounds.
const SLOTS_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause after a split vote: 500 ms.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The largest power of two by which pauses grow while votes are split.
const SPLITS_MAX: u32 = 6;
/// How long a node may take for a release: 500 ms.
const RELEASE: Duration = Duration::from_millis(500);
/// How long a release waits at a node for the answer to the claim: 250 ms, so that the release has as much time.
const ANSWER: Duration = Duration::from_millis(250);
/// How long a node may take to write a memo: 500 ms.
const NOTE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal() -> BackendError {
        BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, "too long")
    }

    /// One lease is longer than two of three nodes allow. Neither this lease nor the one next to it waits for the
    /// third node, and its error has the reason.
    #[test]
    fn a_lease_that_is_too_long_is_refused_and_the_one_beside_it_renewed() {
        let node = || Some(Ok(vec![Err(refusal()), Ok(Renewal::Renewed)]));
        let one = [node(), None, None];
        assert!(
            RenewalVotes::of(0, &one).decided(2).is_none() && RenewalVotes::of(1, &one).decided(2).is_none()
        );
        let two = [node(), None, node()];
        let error = RenewalVotes::of(0, &two).decided(2).unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("too long"), "{error}");
        assert_eq!(RenewalVotes::of(1, &two).decided(2).unwrap().unwrap(), Renewal::Renewed);
    }

    #[test]
    fn a_lease_is_gone_once_no_quorum_can_have_it() {
        let node = |renewal| Some(Ok(vec![Ok(renewal)]));
        let failed = || Some(Err(refusal()));
        let of = |answers: [_; 3]| RenewalVotes::of(0, &answers).decided(2).map(Result::unwrap);
        assert_eq!(of([node(Renewal::Gone), node(Renewal::Gone), None]), Some(Renewal::Gone));
        assert_eq!(of([node(Renewal::Gone), node(Renewal::Renewed), None]), None);
        // Nodes that do not answer decide nothing: there may be others.
        assert_eq!(of([failed(), failed(), None]), None);
    }
}
