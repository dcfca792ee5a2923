//! `Remote`: a client's handle to one server. It does what the client of `tenure-redis` does with its connection and gate.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, EndOfGrant,
    ErrorKind, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting,
    Moment, Noted, Order, Outcome, OwnerId, ProcessId, Promises, QuorumNode, Raised, Released, Renewal,
    Restart, Sharing, WakeStream, WakeSupport, locked,
};
use tenure_redis::{LOOK, Terms, is_recent};
use tokio::sync::Notify;

use crate::{
    history::{Machine, NodeId},
    server::{Kind, Look, Reply, Request},
    world::{NoAnswer, World},
};

/// A handle to one server.
pub(crate) struct Remote {
    world: Arc<World>,
    host: Arc<dyn Host>,
    machine: Machine,
    address: usize,
    kind: Kind,
    sees_deaths: bool,
    terms: Terms,
    /// The runs that this process has met at its address.
    seen: Arc<Mutex<Seen>>,
    /// How far the server has counted for this process.
    known: Arc<Mutex<Known>>,
    listeners: Arc<Mutex<Vec<ProcessId>>>,
    session: Mutex<Option<Session>>,
    /// The check of the replicas that is under way, and its connection.
    looking: Mutex<Option<(Wire, Arc<SharedLook>)>>,
}

/// The result of a check.
type Looked = Result<(), BackendError>;

/// A check that several callers wait for. They go on in the order in which they came: a channel of tokio wakes them in a
/// different order each time.
#[derive(Default)]
struct SharedLook {
    state: Mutex<LookState>,
    ended: Notify,
}

#[derive(Default)]
struct LookState {
    is_over: bool,
    /// `None`: its caller was dropped.
    answer: Option<Looked>,
}

struct EndsLook<'a>(&'a SharedLook);

impl Drop for EndsLook<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).is_over = true;
        self.0.ended.notify_waiters();
    }
}

/// A connection, and the last known state of the gate.
#[derive(Clone)]
struct Session {
    wire: Wire,
    gate: Gate,
    /// When the client last asked the server whether it has its replicas, if it had some.
    looked_at: Moment,
    /// The `max_ttl` under which it serves this client.
    served: Duration,
}

/// The largest token that a process was granted through one gate.
#[derive(Default)]
struct Known(Option<(Arc<str>, u64)>);

impl Known {
    fn through(&self, gate: &str) -> u64 {
        self.0.as_ref().filter(|(known, _)| **known == *gate).map_or(0, |(_, last)| *last)
    }
}

/// The runs of the server that a process has met.
#[derive(Default)]
struct Seen {
    /// The last run whose gate was open to it.
    passed: Option<u64>,
    /// Another run that answered later, and since when.
    later: Option<(u64, Moment)>,
    /// The `max_ttl` under which it was served last.
    served: Option<Duration>,
}

impl Seen {
    fn meet(&mut self, run: u64, is_open: bool, now: Moment) {
        if is_open || self.passed == Some(run) {
            (self.passed, self.later) = (Some(run).filter(|_| is_open).or(self.passed), None);
        } else if self.later.is_none_or(|(later, _)| later != run) {
            self.later = Some((run, now));
        }
    }
}

/// A connection: its server, and the epoch of that server in which it was made. It stays there wherever the address leads
/// later.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wire {
    server: NodeId,
    epoch: u64,
}

#[derive(Clone)]
enum Gate {
    Open(Arc<str>),
    Closed { until: Moment, renews: Option<Moment> },
}

impl Remote {
    /// A client, with the `max_ttl` under which it was served before.
    pub(crate) fn new(
        world: Arc<World>,
        host: Arc<dyn Host>,
        machine: Machine,
        address: usize,
        terms: Terms,
        served: Option<Duration>,
    ) -> Self {
        let (kind, sees_deaths) = {
            let node = locked(&world.nodes[address]);
            (node.kind, node.dead.is_some())
        };
        let seen = Arc::new(Mutex::new(Seen { served, ..Seen::default() }));
        let (known, listeners, session, looking) = Default::default();
        Self {
            world,
            host,
            machine,
            address,
            kind,
            sees_deaths,
            terms,
            seen,
            known,
            listeners,
            session,
            looking,
        }
    }

    fn sharing(&self) -> Self {
        Self {
            world: self.world.clone(),
            host: self.host.clone(),
            seen: self.seen.clone(),
            known: self.known.clone(),
            listeners: self.listeners.clone(),
            session: Mutex::default(),
            looking: Mutex::default(),
            ..*self
        }
    }

    async fn session(&self) -> Result<Session, BackendError> {
        let known = locked(&self.session).clone();
        match known {
            Some(session) => Ok(session),
            None => self.look(None).await,
        }
    }

    /// Checks the server, over a new connection if there is none.
    async fn look(&self, wire: Option<Wire>) -> Result<Session, BackendError> {
        let asked_at = self.host.now();
        let server =
            wire.map_or_else(|| self.world.server_at(self.machine, self.address), |wire| wire.server);
        let look = {
            let seen = locked(&self.seen);
            let later = seen.later.map(|(run, since)| (run, since.elapsed(asked_at)));
            let (terms, served, passed) = (self.terms, seen.served, seen.passed);
            Look { terms, served, passed, later, predecessor: self.world.predecessor_of(server) }
        };
        let (run, epoch, gate, after, served) = match self.ask_at(server, wire, Request::Check(look)).await? {
            Reply::Checked { run, epoch, gate, renews_after, served } => {
                locked(&self.seen).served = Some(served);
                (run, epoch, gate, renews_after, served)
            }
            Reply::ReadOnly => return Err(self.read_only(server)),
            Reply::Alone => return Err(self.alone(server)),
            Reply::OtherTerms => {
                let message = "the server is used with other settings";
                return Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message));
            }
            other => unreachable!("BUG: {other:?} to a check"),
        };
        let now = self.host.now();
        locked(&self.seen).meet(run, gate.is_ok(), now);
        let gate = match gate {
            Ok(text) => Gate::Open(text),
            Err(wait) => {
                let from = now.later(asked_at);
                Gate::Closed { until: from + wait, renews: (!after.is_zero()).then(|| from + after) }
            }
        };
        let session = Session { wire: Wire { server, epoch }, gate, looked_at: asked_at, served };
        *locked(&self.session) = Some(session.clone());
        Ok(session)
    }

    /// Returns the connection. What was seen of its server's replicas counts for a limited time only.
    async fn fresh(&self) -> Result<Session, BackendError> {
        let began = self.host.now();
        loop {
            let session = self.session().await?;
            if self.kind == Kind::Store || is_recent(session.looked_at, began) {
                return Ok(session);
            }
            self.join_look(session.wire).await?;
        }
    }

    /// Checks the replicas, or takes the answer of the caller that is checking.
    async fn join_look(&self, wire: Wire) -> Looked {
        let under_way =
            locked(&self.looking).clone().filter(|(at, look)| *at == wire && !locked(&look.state).is_over);
        if let Some((_, look)) = under_way {
            loop {
                let ended = look.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                // If that caller was dropped, the next one checks.
                let over = |state: &LookState| state.is_over.then(|| state.answer.clone().unwrap_or(Ok(())));
                if let Some(looked) = over(&locked(&look.state)) {
                    return looked;
                }
                ended.await;
            }
        }
        let look = Arc::<SharedLook>::default();
        *locked(&self.looking) = Some((wire, look.clone()));
        let _ended = EndsLook(&look);
        let looked = self.look(Some(wire)).await.map(drop);
        locked(&look.state).answer = Some(looked.clone());
        looked
    }

    fn learn(&self, gate: &Arc<str>, reply: &Reply) {
        let Reply::Claimed(ClaimAnswer::Granted(grant)) = reply else { return };
        let last = grant.token.get() + u64::from(grant.block) - 1;
        let mut known = locked(&self.known);
        let last = known.through(gate).max(last);
        *known = Known(Some((gate.clone(), last)));
    }

    /// Another server may have been promoted in its place: the client checks again next time.
    fn alone(&self, server: NodeId) -> BackendError {
        locked(&self.session).take_if(|session| session.wire.server == server);
        let message = "the server had replicas, and none of them acknowledges";
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).retry_after(LOOK)
    }

    /// A replica takes no writes. The next connection may lead to its master.
    fn read_only(&self, server: NodeId) -> BackendError {
        locked(&self.session).take_if(|session| session.wire.server == server);
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "the server is a replica")
    }

    async fn ask(&self, wire: Wire, request: Request) -> Result<Reply, BackendError> {
        match self.ask_at(wire.server, Some(wire), request).await? {
            Reply::ReadOnly => Err(self.read_only(wire.server)),
            reply => Ok(reply),
        }
    }

    async fn ask_at(
        &self,
        server: NodeId,
        wire: Option<Wire>,
        request: Request,
    ) -> Result<Reply, BackendError> {
        let told = self.world.send(self.machine, server, wire.map(|wire| wire.epoch), request);
        let failure = match told.await.unwrap_or(Err(NoAnswer::Silent)) {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        let mut session = locked(&self.session);
        if session.as_ref().is_some_and(|session| Some(session.wire) == wire) {
            *session = None;
            // Hints may have been missed.
            for listener in locked(&self.listeners).iter() {
                self.world.notifier[self.address].notify_all(*listener, Audience::Waiters);
            }
        }
        let (kind, outcome, message) = match failure {
            NoAnswer::Refused => (ErrorKind::Unavailable, Outcome::NotApplied, "nobody listens there"),
            NoAnswer::Reset => (ErrorKind::Unavailable, Outcome::Unknown, "the connection was cut"),
            NoAnswer::Silent => (ErrorKind::TimedOut, Outcome::Unknown, "no answer"),
        };
        // A check takes no lock.
        let outcome = if wire.is_none() { Outcome::NotApplied } else { outcome };
        Err(BackendError::new(kind, outcome, message))
    }

    fn closed(&self, until: Moment) -> BackendError {
        let left = until.remaining(self.host.now()).max(Duration::from_millis(1));
        let message = "the server grants nothing until every lease it may have forgotten is over";
        BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message).retry_after(left)
    }

    /// Runs a request that needs an open gate. Checks again if the gate is not in the assumed state.
    async fn through_gate(
        &self,
        ttl: Option<Duration>,
        request: impl Fn(Arc<str>) -> Request,
    ) -> Result<Reply, BackendError> {
        let mut closed = None;
        for _ in 0..3 {
            let session = self.fresh().await?;
            if ttl > Some(session.served) {
                return Err(too_long());
            }
            match &session.gate {
                Gate::Open(text) => match self.ask(session.wire, request(text.clone())).await? {
                    Reply::GateClosed => {}
                    Reply::PutBack => {
                        let (gate, known) = (text.clone(), locked(&self.known).through(text));
                        let wait = self.terms.max_ttl;
                        self.ask(session.wire, Request::Close { gate, known, wait }).await?;
                    }
                    reply => {
                        self.learn(text, &reply);
                        return Ok(reply);
                    }
                },
                Gate::Closed { until, .. } if !until.is_over(self.host.now()) => {
                    return Err(self.closed(*until));
                }
                Gate::Closed { .. } => {}
            }
            // Nothing was applied: the gate was closed.
            match self.look(Some(session.wire)).await {
                Ok(Session { gate: Gate::Closed { until, .. }, .. }) => closed = Some(until),
                Ok(_) => {}
                Err(error) => {
                    let error =
                        BackendError::new(error.kind(), Outcome::NotApplied, "it could not be judged");
                    return Err(error);
                }
            }
        }
        Err(self.closed(closed.unwrap_or_else(|| self.host.now())))
    }
}

/// The record of the server allows shorter leases only.
fn too_long() -> BackendError {
    BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, "the ttl is too long for this server")
}

/// What the API never asks of a simulated store.
fn unsupported() -> BackendError {
    BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, "not in a simulated world")
}

#[async_trait]
impl Backend for Remote {
    fn promises(&self) -> Promises {
        let is_node = self.kind == Kind::Quorum;
        let mut promises = Promises::least("simulated");
        promises.sharing = if is_node { Sharing::No } else { Sharing::Counted };
        promises.order = if is_node { Order::Any } else { Order::Fifo };
        promises.classes = !is_node;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::WaitedFor;
        promises.fail_over = Some(Restart::WaitedFor);
        promises.reach = "one world";
        promises.end = EndOfGrant::Ttl;
        promises.free_at_death = self.sees_deaths;
        promises.wake = WakeSupport::Pushed;
        promises.memo = Memos::Kept;
        promises.max_ttl = self.terms.max_ttl;
        promises.ttl_grain = Duration::from_millis(1);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.another().await?))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let request = |gate: Arc<str>| {
            let known = locked(&self.known).through(&gate);
            Request::Claim { claim: claim.clone(), gate, known }
        };
        match self.through_gate(Some(claim.ttl), request).await? {
            Reply::Claimed(answer) => Ok(answer),
            Reply::QueueFull => {
                Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, "the queue is full"))
            }
            other => unreachable!("BUG: {other:?} to a claim"),
        }
    }

    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let answer = async {
            let mut session = self.fresh().await?;
            if let Gate::Closed { renews: Some(renews), .. } = &session.gate {
                if renews.is_over(self.host.now()) {
                    session = self.look(Some(session.wire)).await?;
                }
                if let Gate::Closed { until, renews: Some(_) } = &session.gate {
                    return Err(self.closed(*until));
                }
            }
            let allowed = grants.iter().filter(|grant| grant.ttl <= session.served);
            self.ask(session.wire, Request::Renew(allowed.cloned().collect()))
                .await
                .map(|it| (it, session.served))
        };
        match answer.await {
            Ok((Reply::Renewed(answers), served)) => {
                let mut answers = answers.into_iter();
                let answer = |grant: &Grant| match grant.ttl <= served {
                    true => Ok(answers.next().expect("BUG: each is answered")),
                    false => Err(too_long()),
                };
                grants.iter().map(answer).collect()
            }
            Ok((other, _)) => unreachable!("BUG: {other:?} to a renewal"),
            Err(error) => grants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let session = self.session().await?;
        match self.ask(session.wire, Request::Release { name: name.clone(), owner }).await? {
            Reply::Released(answer) => Ok(answer),
            other => unreachable!("BUG: {other:?} to a release"),
        }
    }

    async fn tell(&self, _name: &LockName, whom: Audience, owner: OwnerId) -> Result<(), BackendError> {
        let session = self.session().await?;
        self.ask(session.wire, Request::Tell(whom, owner)).await.map(drop)
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        let session = self.session().await?;
        let request = Request::Note { name: name.clone(), owner, token, memo: memo.clone() };
        match self.ask(session.wire, request).await? {
            Reply::Noted(answer) => Ok(answer),
            other => unreachable!("BUG: {other:?} to a memo"),
        }
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        let mut listeners = locked(&self.listeners);
        if !listeners.contains(&process) {
            listeners.push(process);
        }
        Box::new(self.world.notifier[self.address].subscribe(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let session = self.session().await?;
        match self.ask(session.wire, Request::Inspect(name.clone())).await? {
            Reply::Seen(view) => Ok(view),
            other => unreachable!("BUG: {other:?} to a look"),
        }
    }

    async fn list(&self, _prefix: &str) -> Result<Vec<LockView>, BackendError> {
        Err(unsupported())
    }

    async fn break_lock(
        &self,
        _name: &LockName,
        _scope: BreakScope,
    ) -> Result<Vec<HolderView>, BackendError> {
        Err(unsupported())
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl QuorumNode for Remote {
    async fn identity(&self) -> Result<String, BackendError> {
        let session = self.session().await?;
        match self.ask(session.wire, Request::Identity).await? {
            Reply::Identity(run) => Ok(run.to_string()),
            other => unreachable!("BUG: {other:?} to a question"),
        }
    }

    async fn another(&self) -> Result<Self, BackendError> {
        let handle = self.sharing();
        handle.session().await?;
        Ok(handle)
    }

    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError> {
        let raise = |gate| Request::Raise { name: name.clone(), owner, to, gate };
        match self.through_gate(None, raise).await? {
            Reply::Raised(answer) => Ok(answer),
            other => unreachable!("BUG: {other:?} to a raise"),
        }
    }
}
