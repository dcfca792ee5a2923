//! The verb `claim`: carries out a ballot, in a task of its own that also tidies up after it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tenure_core::{
    Asker, BackendError, BoxFuture, Claim, ClaimAnswer, FencingToken, Grant, Moment, QuorumNode, Wait,
};
use tokio::sync::oneshot;

use crate::{
    ballot::{Ballot, Event, Outcomes, Step},
    memory::Ticket,
    nodes::Nodes,
    quorum::{Quorum, node_timeout},
    release::give_back,
};

/// A pause after a split vote is no longer than this: 500 ms.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Powers of two of a round, by which pauses grow while votes are split.
const SPLITS_MAX: u32 = 6;

type Answer = Result<ClaimAnswer, BackendError>;

/// Asks the nodes, answers the caller, and continues until every unwanted grant is released.
pub(crate) async fn claim<N: QuorumNode>(quorum: &Arc<Quorum<N>>, claim: &Claim) -> Answer {
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
