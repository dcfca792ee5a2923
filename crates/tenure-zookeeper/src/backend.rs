//! `ZooKeeper`: the verbs.
//!
//! A claim makes a node once, and the queue shows whether that node holds the lock. A renewal is one quorum write
//! that changes nothing and checks that all the nodes are there.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    future::{Either, join_all, select, try_join_all},
    join,
};
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, EndOfGrant,
    ErrorKind, Exposure, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos,
    Minting, Mode, Moment, Noted, Order, Outcome, OwnerId, Ownership, ProcessId, Promises, Released, Renewal,
    Restart, Sharing, Timing, WaitMode, WakeStream, WakeSupport,
};
use zookeeper_client::{CreateMode, Error, MultiWriteError, Stat};

use crate::{
    config::Config,
    diagnose, error, memo,
    node::{self, Contender, NodeRecord, token},
    own_nodes::{CreatedNode, LastAnswer, NodeDeletion, OwnNode},
    queue::{NodeQueue, QueuePosition},
    session::{ANY_VERSION, EnsembleSession, NodeWatch},
    sessions::SessionPool,
    store::{Directories, Ensemble, KnownHolders, SharedState},
    view,
};

/// Locks in a ZooKeeper ensemble. Clones share their sessions.
///
/// # Dropping
/// When the last clone is dropped, its sessions end, and with them all locks that they hold.
#[derive(Clone)]
pub struct ZooKeeper(Arc<SharedState>);

impl ZooKeeper {
    /// No request is sent: the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let sessions = SessionPool::new(config, host);
        Self(Arc::new(SharedState {
            sessions,
            directories: Directories::default(),
            known_holders: KnownHolders::default(),
            ensemble: Ensemble::default(),
            newest: AtomicI64::default(),
        }))
    }

    #[cfg(test)]
    pub(crate) fn sessions(&self) -> Vec<Arc<EnsembleSession>> {
        self.0.sessions.living()
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("zookeeper");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::WaitedFor;
        promises.minting = Minting::Place;
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Survives);
        promises.reach = "all clients of the ensemble";
        promises.end = EndOfGrant::Session;
        promises.wake = WakeSupport::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        // With many ttls, some share a session of a longer ttl, where a crash is noticed later: see the README.
        promises.ttl_grain = self.0.sessions.config.tick * 3;
        promises
    }

    /// Shares the sessions: each has its own thread, and a session is what holds the locks.
    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        Ok(Arc::new(self.clone()))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        if claim.wait == WaitMode::Wake {
            let message = "ZooKeeper cannot be a node of a quorum: its queue grants to every waiter in turn";
            return Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message));
        }
        let started = self.0.sessions.host.now();
        let session = self.0.sessions.of(claim.ttl, claim.owner).await?;
        let lock = self.0.directory_of(&claim.name);
        let attempt = ClaimAttempt { store: &self.0, session, claim, lock, started };
        let asked = async {
            attempt.session.proven(started, claim.ttl).await?;
            attempt.run().await
        };
        let answer = attempt.keeping(asked).await;
        answer.map_err(|error| if attempt.may_have_place() { error.of_unknown_outcome() } else { error })
    }

    /// One answer per grant, in order. Only the session of a node can renew it.
    ///
    /// All sessions are asked at the same time. One that hangs does not hold back the answers of the others: with
    /// several sessions, each has an eighth of the shortest ttl, less than the caller waits for all.
    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let started = self.0.sessions.host.now();
        let mut answers: Vec<RenewalResult> = vec![Ok(Renewal::Gone); grants.len()];
        let mut asked = Vec::new();
        for session in self.0.sessions.living() {
            let held = held(&session, grants, started, &mut answers);
            if !held.is_empty() {
                asked.push((session, held));
            }
        }
        let shortest = asked.iter().flat_map(|(_, held)| held).map(|held| held.ttl).min().unwrap_or_default();
        let deadline = (asked.len() > 1).then(|| started + shortest / 8);
        let renewed = asked.iter().map(|(session, held)| renew_in(session, held, started, deadline));
        for (at, answer) in join_all(renewed).await.into_iter().flatten() {
            answers[at] = answer;
        }
        answers
    }

    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let session = match self.0.sessions.with(owner) {
            Some(session) => session,
            None => self.0.sessions.any().await?,
        };
        release(&session, self.0.directory_of(name), owner).await
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        memo::note(&self.0, name, (owner, token), memo).await
    }

    /// No request: the `multi` checks. The node of another lease has another name.
    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        let Some(session) = self.0.sessions.with(grant.owner) else { return Ok(Exposure::Gone) };
        let node =
            session.with_entry(grant.owner, |entry| entry.node.clone().filter(|_| entry.holds())).flatten();
        let node = node.filter(|node| node.token == grant.token);
        let path = node.map(|node| format!("{}/{}", self.0.directory_of(&grant.name), node.name));
        Ok(path.map_or(Exposure::Gone, |path| Exposure::Exposed(Ownership::ZooKeeper { path })))
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(self.0.sessions.notifier.subscribe(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::inspect(&self.0, &session, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::list(&self.0, &session, prefix).await
    }

    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        view::break_lock(&self.0, &session, name, scope).await
    }

    /// Waits until no expired node is left to delete.
    async fn drain(&self) {
        let host = &self.0.sessions.host;
        let is_at_it = || {
            let now = host.now();
            self.0.sessions.living().iter().any(|session| session.own_nodes().has_expired(now))
        };
        while is_at_it() {
            host.sleep_until(host.now() + DRAINING).await;
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let session = self.0.sessions.any().await?;
        session.connected().await?;
        diagnose::diagnose(self, &self.0, &session).await
    }
}

/// One claim under way.
struct ClaimAttempt<'a> {
    store: &'a SharedState,
    session: Arc<EnsembleSession>,
    claim: &'a Claim,
    /// The directory of the lock.
    lock: String,
    started: Moment,
}

/// The state of an owner's node in this session.
enum KnownNode {
    /// There is no node.
    Nothing,
    /// It may have been made.
    Perhaps,
    /// It is there, or was; whether it is likely to hold by now.
    Node { name: String, may_hold: bool },
}

impl ClaimAttempt<'_> {
    /// Keeps the place that the owner may have already, even if ZooKeeper does not answer.
    async fn keeping<T>(&self, asked: impl Future<Output = T>) -> T {
        let host = &self.session.host;
        let mut asked = pin!(asked);
        loop {
            let now = host.now();
            self.session.with_entry(self.claim.owner, |entry| entry.ask(now));
            match select(asked.as_mut(), host.sleep_until(now + Timing::RETRY_MAX)).await {
                Either::Left((answer, _)) => return answer,
                Either::Right(_) => {}
            }
        }
    }

    /// After any failure, the place of an earlier request, or of this one, may be there (L9).
    fn may_have_place(&self) -> bool {
        self.session.is_over() || self.session.with_entry(self.claim.owner, |_| ()).is_some()
    }

    async fn run(&self) -> Result<ClaimAnswer, BackendError> {
        for _ in 0..TRIES {
            self.claim.asker.must_be_there()?;
            let queue = match self.known()? {
                KnownNode::Node { name, may_hold } => self.look(&name, may_hold).await?,
                KnownNode::Perhaps => self.settle().await?,
                KnownNode::Nothing if self.claim.wait == WaitMode::No && !self.is_free().await? => {
                    return self.busy().await;
                }
                KnownNode::Nothing => self.take_place().await?,
            };
            let Some((queue, name, is_proven)) = queue else { continue };
            self.must_be_unmixed(&queue).await?;
            match queue.position(&name) {
                Some(QueuePosition::Holds) if is_proven => return self.granted(&name),
                Some(QueuePosition::Holds) => {
                    // No quorum write has confirmed this: the next round sends one.
                    self.session.with_entry(self.claim.owner, OwnNode::on_watched_change);
                }
                Some(QueuePosition::Waits(_)) if self.claim.wait == WaitMode::No => {
                    return self.step_back().await;
                }
                Some(QueuePosition::Waits(ahead)) => {
                    if let Some(queued) = self.wait_behind(&queue, ahead).await? {
                        return Ok(queued);
                    }
                }
                // Another client deleted it.
                None => drop(self.session.own_nodes().remove(self.claim.owner)),
            }
        }
        let holder = None;
        Ok(match self.claim.wait {
            WaitMode::No => return self.step_back().await,
            _ => ClaimAnswer::Queued { ahead: 0, retry_after: SOON, holder },
        })
    }

    /// Keeps the place, if there is one.
    fn known(&self) -> Result<KnownNode, BackendError> {
        let now = self.session.host.now();
        let known = self.session.with_entry(self.claim.owner, |entry| {
            if entry.is_leaving() {
                return Err(error::lapsed(&self.session.place()));
            }
            entry.ask(now);
            if entry.holds() {
                entry.keep_until(self.started + self.claim.ttl);
            }
            // The node was there when another client may have read the queue.
            entry.was_seen();
            Ok(match &entry.node {
                Some(node) => KnownNode::Node { name: node.name.clone(), may_hold: !entry.is_watching() },
                None => KnownNode::Perhaps,
            })
        });
        known.unwrap_or(Ok(KnownNode::Nothing))
    }

    /// The queue as it is now, and whether a quorum write has confirmed it; `None` if the node is gone.
    async fn look(
        &self,
        name: &str,
        may_hold: bool,
    ) -> Result<Option<(NodeQueue, String, bool)>, BackendError> {
        let looked = |error| error::looked(&self.session.place(), error);
        let children = if may_hold {
            let node = format!("{}/{name}", self.lock);
            self.session.seen_by_quorum(&self.lock, &node).await.map_err(looked)?
        } else {
            self.session.seen_now(&self.lock).await.map_err(looked)?
        };
        if children.is_none() {
            self.session.own_nodes().remove(self.claim.owner);
        }
        Ok(children.map(|children| (NodeQueue::read(&children), name.to_owned(), may_hold)))
    }

    /// The reply to its creation was lost. Either the node exists under a name that has its owner, or it was never
    /// created (H6.5, hazard 57).
    async fn settle(&self) -> Result<Option<(NodeQueue, String, bool)>, BackendError> {
        let (owner, session) = (self.claim.owner, &self.session);
        let looked = |error| error::looked(&session.place(), error);
        let Some(found) = session.find(&self.lock, owner).await.map_err(looked)? else {
            session.own_nodes().remove(owner);
            return Ok(None);
        };
        let path = format!("{}/{}", self.lock, found.name);
        let stat = session.client.check_stat(&path).await.map_err(looked)?;
        match stat {
            Some(stat) if stat.ephemeral_owner == session.client.session_id().0 => {
                session.with_entry(owner, |entry| entry.node = Some(node_of(found.name, &stat)));
            }
            // An earlier session of this client made it, and will not keep it.
            Some(stat) => {
                let wrote = |error| error::wrote(&session.place(), error);
                let deletion =
                    NodeDeletion { owner, lock: self.lock.clone(), node: Some(node_of(found.name, &stat)) };
                session.delete(&deletion).await.map_err(wrote)?;
            }
            None => {}
        }
        Ok(None)
    }

    /// Makes the node, and reads the queue after that.
    async fn take_place(&self) -> Result<Option<(NodeQueue, String, bool)>, BackendError> {
        let session = &self.session;
        self.store.directories.ready(session, &self.lock).await?;
        let owner = self.claim.owner;
        // Two claims of one owner must not both make a node: an earlier one that ran out of time, and this one, which
        // follows it. One node would wait for the other, and the session keeps both alive.
        self.claim.asker.must_be_there()?;
        if session.with_entry(owner, |_| ()).is_some() {
            return Ok(None);
        }
        let entry = OwnNode::new(self.claim, self.lock.clone(), session.host.now());
        let data = entry.record.written();
        // Before the request is sent: if this future is dropped, the session's thread finds the node and deletes it.
        if !session.own_nodes().begin(owner, entry, session.host.now()) {
            return Err(error::over(&session.place()));
        }
        let prefix = session.config.layout.prefix(owner, self.claim.mode);
        let path = format!("{}/{prefix}", self.lock);
        let options = CreateMode::EphemeralSequential.with_acls(session.acls());
        let newest = self.store.newest.load(Ordering::Acquire);
        // Both are sent together, in this order.
        let create = session.client.create(&path, &data, &options);
        let (made, listed) = join!(create, session.client.get_children(&self.lock));
        let (stat, sequence) = match made {
            Ok(made) => made,
            Err(error) => return self.not_made(error).map(|()| None),
        };
        session.own_nodes().in_flight.on_answer(&self.lock, owner);
        let name = format!("{prefix}{sequence}");
        let listed = listed.map_err(|error| error::wrote(&session.place(), error));
        // If another node came or went since this one was made, another client may have seen this one in a longer
        // queue.
        let was_seen = listed.as_ref().is_ok_and(|(_, directory)| directory.pzxid != stat.czxid);
        self.made(node_of(name.clone(), &stat), was_seen)?;
        if stat.czxid <= newest {
            let now = session.host.now();
            session.with_entry(owner, |entry| entry.leave(now));
            return Err(error::put_back(&session.place()));
        }
        self.store.newest.fetch_max(stat.czxid, Ordering::AcqRel);
        Ok(Some((NodeQueue::read(&listed?.0), name, true)))
    }

    fn made(&self, node: CreatedNode, was_seen: bool) -> Result<(), BackendError> {
        let (owner, mut own_nodes) = (self.claim.owner, self.session.own_nodes());
        if let Some(entry) = own_nodes.get(owner) {
            entry.node = Some(node);
            if was_seen {
                entry.was_seen();
            }
            return Ok(());
        }
        // The claim was given up before the request was sent. The session's thread deletes the node.
        let now = self.session.host.now();
        let mut entry = OwnNode::new(self.claim, self.lock.clone(), now);
        entry.node = Some(node);
        entry.leave(now);
        own_nodes.add(owner, entry);
        Err(error::lapsed(&self.session.place()))
    }

    /// Forgets the entry if the node was certainly not made (L9).
    fn not_made(&self, error: Error) -> Result<(), BackendError> {
        let vanished = error == Error::NoNode;
        let error = error::wrote(&self.session.place(), error);
        if error.outcome() == Outcome::NotApplied {
            let (owner, mut own_nodes) = (self.claim.owner, self.session.own_nodes());
            own_nodes.in_flight.on_answer(&self.lock, owner);
            own_nodes.remove(owner);
        }
        if vanished {
            self.store.directories.forget(&self.lock);
            return Ok(());
        }
        Err(error)
    }

    async fn is_free(&self) -> Result<bool, BackendError> {
        let children = self.session.seen_now(&self.lock).await;
        let children = children.map_err(|error| error::looked(&self.session.place(), error))?;
        let Some(children) = children else { return Ok(true) };
        let queue = NodeQueue::read(&children);
        self.must_be_unmixed(&queue).await?;
        Ok(queue.fits(self.claim.mode))
    }

    /// Refuses a lock with nodes of another library in another layout: its clients would not wait for Tenure's nodes
    /// (L1). Releases the claim's own place.
    async fn must_be_unmixed(&self, queue: &NodeQueue) -> Result<(), BackendError> {
        let Some(refusal) = self.stranger(queue).await? else { return Ok(()) };
        if self.session.with_entry(self.claim.owner, |_| ()).is_some() {
            release(&self.session, self.lock.clone(), self.claim.owner).await?;
        }
        Err(refusal)
    }

    async fn stranger(&self, queue: &NodeQueue) -> Result<Option<BackendError>, BackendError> {
        let session = &self.session;
        for node in queue.unknown_to(session.config.layout) {
            let path = format!("{}/{}", self.lock, node.name);
            match session.client.get_data(&path).await {
                Ok((data, _)) if node::is_newer(&data) => {
                    return Ok(Some(error::newer(&session.place(), &path)));
                }
                // Tenure counts all nodes, whatever its own layout.
                Ok((data, _)) if NodeRecord::read(&data).is_some() => {}
                Ok(_) | Err(Error::NoAuth) => return Ok(Some(error::mixed(&session.place(), &path))),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error::looked(&session.place(), error)),
            }
        }
        Ok(None)
    }

    /// Grants the lock, unless its time has run out by now. Then its node is being deleted, and the next waiter is
    /// granted the lock (L1, L5).
    fn granted(&self, name: &str) -> Result<ClaimAnswer, BackendError> {
        let Claim { name: lock, owner, ttl, .. } = self.claim;
        let now = self.session.host.now();
        let entered = self.session.with_entry(*owner, |entry| {
            if entry.is_leaving() {
                return Err(error::lapsed(&self.session.place()));
            }
            let Some(node) = entry.node.clone().filter(|node| node.name == name) else { return Ok(None) };
            let has_waited = entry.enter(now, self.started + *ttl);
            let is_shared = has_waited && entry.mode != Mode::Exclusive;
            Ok(Some((node.token, is_shared.then(|| entry.record.clone()))))
        });
        let Some((token, record)) = entered.unwrap_or(Ok(None))? else {
            return Ok(ClaimAnswer::Queued { ahead: 0, retry_after: SOON, holder: None });
        };
        if let Some(record) = record {
            // The next waiter may fit next to this holder. The call itself sends the request, and no caller waits for
            // the answer: it is a hint.
            let data = NodeRecord { entered: true, ..record }.written();
            drop(self.session.client.set_data(&format!("{}/{name}", self.lock), &data, None));
        }
        Ok(ClaimAnswer::Granted(Grant::new(lock.clone(), *owner, token, *ttl)))
    }

    /// Watches the nodes whose deletion may make it the holder; `None` if the queue has changed since it was read.
    async fn wait_behind(
        &self,
        queue: &NodeQueue,
        ahead: usize,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        let is_kept = self.session.with_entry(self.claim.owner, |entry| {
            entry.last_answer = LastAnswer::Waits;
            !entry.is_leaving()
        });
        match is_kept {
            Some(true) => {}
            Some(false) => return Err(error::lapsed(&self.session.place())),
            None => return Ok(None),
        }
        let holder = self.holder(queue.holders());
        let (is_watched, holder) = if ahead == 0 {
            // The watch comes first, because it also reads the holder.
            (self.watch(queue, ahead).await, holder.await)
        } else {
            join!(self.watch(queue, ahead), holder)
        };
        if !is_watched? {
            self.session.with_entry(self.claim.owner, OwnNode::on_watched_change);
            return Ok(None);
        }
        Ok(Some(ClaimAnswer::Queued { ahead, retry_after: Timing::RETRY_MAX, holder }))
    }

    /// Watches for a waiter with `ahead` others before it. False if a node to watch is gone already, or has
    /// become a holder.
    ///
    /// The request that sets a watch also reads the node, so no change between the two is missed.
    async fn watch(&self, queue: &NodeQueue, ahead: usize) -> Result<bool, BackendError> {
        let targets = queue.watched_by(ahead).into_iter().map(|node| self.watch_one(node, ahead > 0));
        let watched = try_join_all(targets).await?;
        Ok(watched.into_iter().all(|is_watched| is_watched))
    }

    async fn watch_one(&self, node: &str, waits: bool) -> Result<bool, BackendError> {
        let (session, owner) = (&self.session, self.claim.owner);
        if session.with_entry(owner, |entry| entry.watches(node)) == Some(true) {
            return Ok(true);
        }
        let path = format!("{}/{node}", self.lock);
        let (data, stat, watcher) = match session.client.get_and_watch_data(&path).await {
            Ok(read) => read,
            Err(Error::NoNode) => return Ok(false),
            Err(error) => return Err(error::looked(&session.place(), error)),
        };
        // That waiter has entered since the queue was read: the change to be notified of has already happened.
        if waits && NodeRecord::read(&data).is_some_and(|record| record.entered) {
            return Ok(false);
        }
        if let Some(holder) = Contender::read(node).filter(|_| !waits) {
            self.store.known_holders.read(path, session.config.layout, &holder, &data, &stat);
        }
        let Some(end) = session.with_entry(owner, |entry| entry.watch(node)) else { return Ok(false) };
        if !session.watch(NodeWatch { owner, audience: Audience::Waiters, watcher, end }) {
            // The waiter asks again anyway, and then watches anew.
            session.with_entry(owner, |entry| entry.unwatch(node));
        }
        Ok(true)
    }

    async fn holder(&self, holders: &[Contender]) -> Option<HolderView> {
        self.store.known_holders.first_holder(&self.session, &self.lock, holders.first()?).await
    }

    /// The answer to a claim that has left nothing in the store.
    async fn busy(&self) -> Result<ClaimAnswer, BackendError> {
        let looked = |error| error::looked(&self.session.place(), error);
        let children = match self.session.client.list_children(&self.lock).await {
            Err(Error::NoNode) => Vec::new(),
            children => children.map_err(looked)?,
        };
        let holder = self.holder(NodeQueue::read(&children).holders()).await;
        Ok(ClaimAnswer::Busy { retry_after: Timing::RETRY_MAX, holder })
    }

    /// Another owner was faster: the node is deleted.
    async fn step_back(&self) -> Result<ClaimAnswer, BackendError> {
        release(&self.session, self.lock.clone(), self.claim.owner).await?;
        self.busy().await
    }
}

fn node_of(name: String, stat: &Stat) -> CreatedNode {
    CreatedNode { name, token: token(stat.czxid) }
}

type RenewalResult = Result<Renewal, BackendError>;

/// A grant whose node this session has.
struct HeldNode<'a> {
    /// The position in the list of grants.
    at: usize,
    grant: &'a Grant,
    node: String,
    ttl: Duration,
}

/// The grants that this session holds. Each is kept for its ttl from now on, so that it is not deleted during the
/// renewal.
fn held<'a>(
    session: &Arc<EnsembleSession>,
    grants: &'a [Grant],
    now: Moment,
    answers: &mut [RenewalResult],
) -> Vec<HeldNode<'a>> {
    let mut held = Vec::new();
    for (at, grant) in grants.iter().enumerate() {
        if let Err(error) = session.vouches_for(grant.ttl) {
            if session.with_entry(grant.owner, |entry| entry.holds()) == Some(true) {
                answers[at] = Err(error);
            }
            continue;
        }
        let node = session.with_entry(grant.owner, |entry| {
            let node = entry.node.as_ref().filter(|_| entry.holds())?;
            let path = format!("{}/{}", entry.lock, node.name);
            entry.keep_until(now + grant.ttl);
            Some(path)
        });
        held.extend(node.flatten().map(|node| HeldNode { at, grant, node, ttl: grant.ttl }));
    }
    held
}

/// The answers for the grants of one session, with their positions in the list.
async fn renew_in(
    session: &EnsembleSession,
    held: &[HeldNode<'_>],
    started: Moment,
    deadline: Option<Moment>,
) -> Vec<(usize, RenewalResult)> {
    let longest = held.iter().map(|held| held.ttl).max().unwrap_or_default();
    let checked = async {
        session.proven(started, longest).await?;
        check_all(session, held).await
    };
    let outcome = match deadline {
        None => checked.await,
        Some(deadline) => match select(pin!(checked), session.host.sleep_until(deadline)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(error::unanswered(&session.place())),
        },
    };
    let answer = |(index, held): (usize, &HeldNode<'_>)| match &outcome {
        Ok(gone) if gone.contains(&index) || !still_holds(session, held) => (held.at, Ok(Renewal::Gone)),
        Ok(_) => (held.at, Ok(Renewal::Renewed)),
        // Its node is kept for another ttl anyway (L9).
        Err(error) => (held.at, Err(error.clone().of_unknown_outcome())),
    };
    held.iter().enumerate().map(answer).collect()
}

/// True if it was not released, and has not expired, during the renewal.
fn still_holds(session: &EnsembleSession, held: &HeldNode<'_>) -> bool {
    session.with_entry(held.grant.owner, |entry| entry.holds()) == Some(true)
}

/// Returns which of them are gone. All batches are in flight at the same time.
async fn check_all(session: &EnsembleSession, held: &[HeldNode<'_>]) -> Result<Vec<usize>, BackendError> {
    let batches = held.chunks(BATCH).enumerate().map(|(number, batch)| async move {
        let gone = check(session, batch).await?;
        Ok::<_, BackendError>(gone.into_iter().map(move |index| number * BATCH + index))
    });
    Ok(try_join_all(batches).await?.into_iter().flatten().collect())
}

/// Returns which of them are gone. All others were there at one moment, while the session was alive.
async fn check(session: &EnsembleSession, held: &[HeldNode<'_>]) -> Result<Vec<usize>, BackendError> {
    let mut gone = Vec::new();
    loop {
        let left: Vec<usize> = (0..held.len()).filter(|index| !gone.contains(index)).collect();
        let mut writer = session.client.new_multi_writer();
        for &index in &left {
            let added = writer.add_check_version(&held[index].node, ANY_VERSION);
            added.map_err(|error| error::looked(&session.place(), error))?;
        }
        match writer.commit().await {
            Ok(_) => return Ok(gone),
            Err(MultiWriteError::OperationFailed { index, source: Error::NoNode }) if index < left.len() => {
                session.own_nodes().remove(held[left[index]].grant.owner);
                gone.push(left[index]);
            }
            Err(error) => return Err(error::looked(&session.place(), error.into())),
        }
    }
}

/// Deletes the node of an owner, whether it holds or waits.
async fn release(session: &EnsembleSession, lock: String, owner: OwnerId) -> Result<Released, BackendError> {
    session.connected().await?;
    let due = session.host.now() + GRACE;
    let node = session.with_entry(owner, |entry| {
        // From here on it holds nothing. If this future is dropped, the session's thread continues.
        entry.leave(due);
        entry.node.clone()
    });
    let deletion = NodeDeletion { owner, lock, node: node.flatten() };
    let released = session.delete(&deletion).await.map_err(|error| error::wrote(&session.place(), error))?;
    session.own_nodes().remove(owner);
    Ok(released)
}

/// When to ask again if the queue changes faster than it can be watched.
const SOON: Duration = Duration::from_millis(20);
const TRIES: usize = 4;

/// This many of the longest names are far below the megabyte that a request may have.
const BATCH: usize = 128;

/// After this time the session's thread deletes a node whose owner has begun to delete it.
const GRACE: Duration = Duration::from_secs(1);

/// How often `drain` checks whether all is done.
const DRAINING: Duration = Duration::from_millis(10);
