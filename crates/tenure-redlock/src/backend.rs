//! `Redlock`: the verbs by quorum. A claim, a renewal, a release and a memo run in a task of their own, which a dropped
//! caller does not stop.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tenure_core::{
    Absent, Adoption, Asker, Audience, Backend, BackendError, BackendHandle, BoxFuture, Claim, ClaimAnswer,
    ErrorKind, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Minting, Mode,
    Moment, Noted, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Released, Renewal, Restart,
    Severity, Sharing, Wait, Wakes,
};
use tokio::sync::oneshot;

use crate::{
    ballot::{Ballot, Event, Nodes, Outcomes, Step},
    config::ConfigError,
    error,
    memory::{Late, Memory, Ticket},
    quorum::{Member, Quorum, node_timeout},
    slots::{SLOTS_MAX, Slots, Trail, slot},
    view,
    wake::Gathered,
};

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
    /// goes on behind it when it asks again.
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
            let answer = claim_everywhere(&self.quorum, &one).await;
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
            Mode::Exclusive => claim_everywhere(&self.quorum, claim).await,
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

/// Asks the nodes, answers the caller, and continues until every unwanted grant is released.
async fn claim_everywhere<N: QuorumNode>(quorum: &Arc<Quorum<N>>, claim: &Claim) -> Answer {
    quorum.identify().await;
    if let Some(twins) = quorum.twins() {
        return Err(twins);
    }
    quorum.probe_silent();
    let Some(ticket) = quorum.memory.begin((claim.owner, claim.name.clone())) else {
        return Ok(ClaimAnswer::Split { retry_after: Duration::from_millis(1), holder: None });
    };
    let (quorum_there, claim) = (quorum.clone(), claim.clone());
    quorum.detached(move |tell| Box::pin(Poll::new(quorum_there, claim, ticket, tell).run())).await
}

/// One ballot under way.
struct Poll<N> {
    quorum: Arc<Quorum<N>>,
    claim: Arc<Claim>,
    ballot: Ballot,
    began: Moment,
    timeout: Duration,
    ticket: Ticket,
    tell: Option<oneshot::Sender<Answer>>,
}

impl<N: QuorumNode> Poll<N> {
    fn new(quorum: Arc<Quorum<N>>, mut claim: Claim, ticket: Ticket, tell: oneshot::Sender<Answer>) -> Self {
        // Woken but never made holder: a lock that is handed on by one node is handed on by one node only (S3.3 g).
        if claim.wait == Wait::Turn {
            claim.wait = Wait::Wake;
        }
        // A node that does not ask says nothing of itself.
        claim.asker = Asker::default();
        let nodes = quorum.members.len();
        let silent: Nodes = (0..nodes).filter(|&node| quorum.members[node].is_silent()).collect();
        // With fewer than a quorum there is nothing to lose by asking.
        let silent = if nodes - silent.len() >= quorum.size() { silent } else { Nodes::default() };
        let ballot = Ballot::new(nodes, silent, quorum.memory.held(&claim.name));
        let (began, timeout) = (quorum.host.now(), node_timeout(claim.ttl));
        Self { quorum, claim: Arc::new(claim), ballot, began, timeout, ticket, tell: Some(tell) }
    }

    async fn run(mut self) {
        let quorum = self.quorum.clone();
        // Those that are asked first have one timer; most ballots ask for nothing else.
        let (mut votes, mut under_way) = (quorum.round(self.timeout), FuturesUnordered::new());
        for step in self.steps() {
            match step {
                Step::Claim(node) => votes.ask(node, vote(quorum.clone(), self.claim.clone(), node)),
                step => under_way.push(self.carry_out(step)),
            }
        }
        loop {
            if self.tell() {
                under_way.extend(self.go_on());
            }
            let event = tokio::select! {
                biased;
                Some((node, answer)) = quorum.next_of(&mut votes) => Event::Vote(node, answer),
                Some(event) = under_way.next() => event,
                else => break,
            };
            self.ballot.on_event(event);
            under_way.extend(self.go_on());
        }
        quorum.memory.end(&self.ticket);
    }

    fn go_on(&mut self) -> Vec<BoxFuture<'static, Event>> {
        self.steps().into_iter().map(|step| self.carry_out(step)).collect()
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = self.ballot.steps();
        let refused = self.ballot.refused();
        if self.claim.wait != Wait::No && !refused.is_empty() {
            self.quorum.memory.on_places(&self.ticket, refused);
        }
        if let Some(left) = self.quorum.memory.set_pending(&self.ticket, self.ballot.pending()) {
            self.ballot.withdraw(left);
            steps.retain(|step| matches!(step, Step::Release(_)));
            steps.extend(self.ballot.steps());
        }
        let gives_back = steps.iter().any(|step| matches!(step, Step::Release(_)));
        // Spent before the first release leaves.
        if gives_back && !self.quorum.memory.spend(&self.ticket) {
            self.ballot.stop();
            steps.retain(|step| !matches!(step, Step::Release(_)));
        }
        steps
    }

    fn carry_out(&self, step: Step) -> BoxFuture<'static, Event> {
        let (quorum, claim, timeout) = (self.quorum.clone(), self.claim.clone(), self.timeout);
        match step {
            Step::Claim(node) => Box::pin(async move {
                let asked = async { vote(quorum.clone(), claim, node).await.1 };
                Event::Vote(node, quorum.members[node].within(&*quorum.host, timeout, asked).await)
            }),
            Step::Raise(node, to) => Box::pin(async move {
                let member = &quorum.members[node];
                let raised = member.node.raise(&claim.name, claim.owner, FencingToken::new(to));
                Event::Raised(node, to, member.within(&*quorum.host, timeout, raised).await)
            }),
            Step::Release(node) => Box::pin(async move {
                give_back(&quorum, node, &claim.name, claim.owner).await;
                Event::Released
            }),
        }
    }

    /// Answers the caller once it is decided; releases everything if the caller has gone. True if there may be more to send.
    fn tell(&mut self) -> bool {
        let Some(tell) = self.tell.take() else { return false };
        if tell.is_closed() {
            self.abandon();
        } else if let Some(answer) = self.answer() {
            if tell.send(answer).is_err() {
                self.abandon();
            }
        } else {
            self.tell = Some(tell);
            return false;
        }
        true
    }

    /// The caller has gone: the grants are released, unless the same attempt continues in another ballot.
    fn abandon(&mut self) {
        if self.quorum.memory.spend(&self.ticket) {
            self.ballot.abandon();
        } else {
            self.ballot.stop();
        }
    }

    fn answer(&mut self) -> Option<Answer> {
        if matches!(self.ballot.outcome(), Outcomes::Open | Outcomes::Stopped) {
            return None;
        }
        if let Some(twins) = self.quorum.twins() {
            self.abandon();
            return Some(Err(twins));
        }
        let memory = &self.quorum.memory;
        let (retry_after, holder) = self.ballot.tally().refusal();
        let retry_after = retry_after.unwrap_or(PAUSE_MAX);
        Some(Ok(match self.ballot.outcome() {
            Outcomes::Kept(tokens) => {
                memory.agreed();
                memory.set_held(&self.claim.name, None);
                let Claim { name, owner, ttl, .. } = &*self.claim;
                let (name, token) = (name.clone(), tokens.first());
                ClaimAnswer::Granted(Grant { name, owner: *owner, token, block: tokens.block, ttl: *ttl })
            }
            Outcomes::Failed => {
                let is_untouched = !self.ballot.has_reached_any();
                return Some(Err(self.quorum.too_few(is_untouched, self.ballot.errors())));
            }
            Outcomes::Open | Outcomes::Stopped => return None,
            Outcomes::Refused if self.claim.wait == Wait::No => ClaimAnswer::Busy { retry_after, holder },
            Outcomes::Refused => ClaimAnswer::Queued { ahead: 0, retry_after, holder },
            Outcomes::GivenBack => {
                let held = self.ballot.held_elsewhere();
                let retry_after = match held {
                    // Asked again, only those who refuse are, and a place is kept there.
                    Some(_) => Duration::from_millis(1),
                    None => self.pause(),
                };
                memory.set_held(&self.claim.name, held);
                ClaimAnswer::Split { retry_after, holder }
            }
        }))
    }

    /// A random part of a round, doubled with every split vote in a row: whoever is alone then gets a quorum (S3.3 f).
    fn pause(&self) -> Duration {
        let round = self.began.elapsed(self.quorum.host.now()).max(Duration::from_millis(1));
        let longest = round * (1 << self.quorum.memory.split().min(SPLITS_MAX));
        let mut bits = [0; 4];
        self.quorum.host.random(&mut bits);
        let part = f64::from(u32::from_be_bytes(bits)) / f64::from(u32::MAX);
        longest.min(PAUSE_MAX).mul_f64(part).max(Duration::from_millis(1))
    }
}

/// What a node says to a claim, and which one it is.
async fn vote<N: QuorumNode>(quorum: Arc<Quorum<N>>, claim: Arc<Claim>, node: usize) -> (usize, Answer) {
    let member = &quorum.members[node];
    let answer = async {
        if member.identify().await?
            && let Some(twins) = quorum.twins()
        {
            return Err(twins);
        }
        member.node.claim(&claim).await
    };
    (node, answer.await)
}

type Answer = Result<ClaimAnswer, BackendError>;

/// Extends leases on all nodes. Answers as soon as a quorum has answered for each lease, and continues with the other
/// nodes: a node that is not renewed is one failure less that the lease survives.
async fn renew_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    grants: Arc<[Grant]>,
    tell: oneshot::Sender<Result<Renewals, BackendError>>,
) {
    let timeout = node_timeout(grants.iter().map(|grant| grant.ttl).min().unwrap_or_default());
    let (size, mut tell) = (quorum.size(), Some(tell));
    let ask = |node: Arc<N>| {
        let grants = grants.clone();
        async move {
            let answers = node.renew(&grants).await;
            match answers.first() {
                // All of them: the node did not answer.
                Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
                _ => Ok(answers),
            }
        }
    };
    let all = 0..grants.len();
    let on_answer = |answers: &[_]| {
        let known: Option<Renewals> = all.clone().map(|at| renewal(at, answers, size).map(Ok)).collect();
        if let Some((renewals, tell)) = known.and_then(|renewals| Some((renewals, tell.take()?))) {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(Ok(renewals));
        }
    };
    let answers = quorum.ask_all(timeout, ask, on_answer).await;
    let Some(tell) = tell else { return };
    let failure = || {
        let errors = answers.iter().flatten().filter_map(|answer| answer.as_ref().err()).cloned();
        quorum.too_few(answers.iter().flatten().all(Result::is_err), errors)
    };
    // OK as above.
    let _ = tell.send(Ok(all.map(|at| renewal(at, &answers, size).ok_or_else(failure)).collect()));
}

/// The answer of a quorum about one lease; `None` while it is undecided.
fn renewal(at: usize, answers: &[Option<Result<Renewals, BackendError>>], size: usize) -> Option<Renewal> {
    let of = |answer: &Option<Result<Vec<_>, _>>| match answer {
        Some(Ok(renewals)) => {
            renewals.get(at).and_then(|renewal: &Result<_, _>| renewal.as_ref().ok().copied())
        }
        _ => None,
    };
    let count = |wanted: Renewal| answers.iter().filter(|answer| of(answer) == Some(wanted)).count();
    if count(Renewal::Renewed) >= size {
        Some(Renewal::Renewed)
    } else if count(Renewal::Gone) > answers.len() - size {
        Some(Renewal::Gone)
    } else {
        None
    }
}

/// The answers of one node, a lease each.
type Renewals = Vec<Result<Renewal, BackendError>>;

/// Has an owner leave all nodes. Tells as soon as it is known whether a quorum of them held for it, and goes on with
/// those that did not answer, and with those where its claim comes later.
async fn release_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    name: LockName,
    owner: OwnerId,
    late: Late,
    tell: oneshot::Sender<Result<Released, BackendError>>,
) {
    let (all, size) = (quorum.members.len(), quorum.size());
    let mut round = quorum.round(RELEASE);
    for (node, member) in quorum.members.iter().enumerate() {
        let released = member.node.release(&name, owner);
        round.ask(node, async move { (node, released.await) });
    }
    let (mut tell, mut released, mut gone) = (Some(tell), 0, 0);
    let (mut errors, mut again) = (Vec::new(), Vec::new());
    while let Some((node, answer)) = quorum.next_of(&mut round).await {
        let is_released = matches!(answer, Ok(Released::Released));
        if late.may_come(node, is_released) && !quorum.memory.leave_to_ballot(&(owner, name.clone()), node) {
            again.push(node);
        }
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
        let verdict = if released >= size {
            Some(Ok(Released::Released))
        } else if gone > all - size {
            // Held by fewer than a quorum: it was lost, whoever has it now.
            Some(Ok(Released::WasGone))
        } else if released + gone + errors.len() == all {
            Some(Err(quorum.too_few(released == 0, errors.clone())))
        } else {
            None
        };
        if let Some((verdict, tell)) = verdict.and_then(|verdict| Some((verdict, tell.take()?))) {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(verdict);
        }
    }
    for node in again {
        quorum.owe(node, name.clone(), owner);
    }
}

/// Has this owner leave a node. Where it does not answer, it is owed.
async fn give_back<N: QuorumNode>(quorum: &Quorum<N>, node: usize, name: &LockName, owner: OwnerId) {
    let (host, member) = (&*quorum.host, &quorum.members[node]);
    if !member.is_silent() {
        let Err(error) = member.within(host, RELEASE, member.node.release(name, owner)).await else { return };
        if !error.kind().is_transient() {
            tracing::debug!(lock = %name, %error, "not given back; its ttl ends it");
            return;
        }
    }
    quorum.owe(node, name.clone(), owner);
}

/// Writes a memo on all nodes. Tells as soon as a majority has, or cannot any more, and goes on with the others.
async fn note_everywhere<N: QuorumNode>(
    quorum: Arc<Quorum<N>>,
    name: LockName,
    (owner, token): (OwnerId, FencingToken),
    memo: Memo,
    tell: oneshot::Sender<Result<Noted, BackendError>>,
) {
    let (size, mut tell) = (quorum.size(), Some(tell));
    let ask = |node: Arc<N>| {
        let (name, memo) = (name.clone(), memo.clone());
        async move { node.note(&name, owner, token, &memo).await }
    };
    let on_answer = |answers: &[Option<Result<Noted, BackendError>>]| {
        let said =
            |wanted: Noted| answers.iter().flatten().filter(|a| a.as_ref().ok() == Some(&wanted)).count();
        let verdict = if said(Noted::Noted) >= size {
            Noted::Noted
        } else if said(Noted::Gone) > answers.len() - size {
            Noted::Gone
        } else {
            return;
        };
        if let Some(tell) = tell.take() {
            // OK because whoever does not listen any more needs no answer.
            let _ = tell.send(Ok(verdict));
        }
    };
    let answers = quorum.ask_all(NOTE, ask, on_answer).await;
    let Some(tell) = tell else { return };
    let is_untouched = !answers.iter().flatten().any(|answer| matches!(answer, Ok(Noted::Noted)));
    let errors = answers.into_iter().flatten().filter_map(Result::err);
    // OK as above.
    let _ = tell.send(Err(quorum.too_few(is_untouched, errors)));
}

/// How long a node may take for a question: 2 s.
const QUESTION: Duration = Duration::from_secs(2);
/// The timeout of a node that lists its locks: 50 s, which is less than the caller's own.
const WALK: Duration = Duration::from_secs(50);
/// A pause after slots that were got in part: 20 ms, some rounds.
const SLOTS_PAUSE: Duration = Duration::from_millis(20);
/// A pause after a split vote is no longer than this: 500 ms.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Powers of two of a round, by which pauses grow while votes are split.
const SPLITS_MAX: u32 = 6;
/// How long a node may take for a release: 500 ms.
const RELEASE: Duration = Duration::from_millis(500);
/// How long a node may take to write one: 500 ms.
const NOTE: Duration = Duration::from_millis(500);
