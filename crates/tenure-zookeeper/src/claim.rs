//! Claiming: a node is made once, and the queue tells whether it holds.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    future::{Either, select},
    join,
};
use tenure_core::{BackendError, Claim, ClaimAnswer, ErrorKind, Grant, Mode, Moment, Outcome, Timing, Wait};
use zookeeper_client::{CreateMode, Error, Stat};

use crate::{
    error, holders, leave,
    making::Making,
    node::{Contender, token},
    own_nodes::{Entry, Leaver, Node, Part},
    queue::{Queue, Standing},
    record::Record,
    session::Session,
    store::Store,
    wake::Lookout,
};

/// One claim, carried out.
pub(crate) struct Attempt<'a> {
    pub(crate) store: &'a Store,
    pub(crate) session: Arc<Session>,
    pub(crate) claim: &'a Claim,
    /// The directory of the lock.
    pub(crate) lock: String,
    started: Moment,
}

/// The state of an owner's node in this session.
enum Known {
    /// There is no node.
    Nothing,
    /// It may have been made.
    Perhaps,
    /// It is there, or was; whether it is likely to hold by now.
    Node { name: String, may_hold: bool },
}

pub(crate) async fn claim(store: &Store, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
    if claim.wait == Wait::Wake {
        let message = "ZooKeeper cannot be a node of a quorum: its queue grants to every waiter in turn";
        return Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message));
    }
    let started = store.sessions.host.now();
    let session = store.sessions.of(claim.ttl, claim.owner).await?;
    let lock = store.directory_of(&claim.name);
    let attempt = Attempt { store, session, claim, lock, started };
    let asked = async {
        attempt.session.proven(started, claim.ttl).await?;
        attempt.run().await
    };
    let answer = attempt.keeping(asked).await;
    answer.map_err(|error| if attempt.may_have_place() { error.of_unknown_outcome() } else { error })
}

impl Attempt<'_> {
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
                Known::Node { name, may_hold } => self.look(&name, may_hold).await?,
                Known::Perhaps => self.settle().await?,
                Known::Nothing if self.claim.wait == Wait::No && !self.is_free().await? => {
                    return self.busy().await;
                }
                Known::Nothing => self.take_place().await?,
            };
            let Some((queue, name, is_proven)) = queue else { continue };
            match queue.standing(&name) {
                Some(Standing::Holds) if is_proven => return self.granted(&name),
                Some(Standing::Holds) => {
                    // It was only looked at: the ensemble is asked now.
                    self.session.with_entry(self.claim.owner, Entry::rung);
                }
                Some(Standing::Waits(_)) if self.claim.wait == Wait::No => return self.step_back().await,
                Some(Standing::Waits(ahead)) => {
                    if let Some(queued) = self.wait_behind(&queue, ahead).await? {
                        return Ok(queued);
                    }
                }
                // Somebody took it away.
                None => drop(self.session.own_nodes().remove(self.claim.owner)),
            }
        }
        let holder = None;
        Ok(match self.claim.wait {
            Wait::No => return self.step_back().await,
            _ => ClaimAnswer::Queued { ahead: 0, retry_after: SOON, holder },
        })
    }

    /// Keeps the place, if there is one.
    fn known(&self) -> Result<Known, BackendError> {
        let now = self.session.host.now();
        let known = self.session.with_entry(self.claim.owner, |entry| {
            if entry.is_leaving() {
                return Err(error::lapsed(&self.session.place()));
            }
            entry.ask(now);
            if entry.holds() {
                entry.keep_until(self.started + self.claim.ttl);
            }
            // It was there when somebody else may have looked.
            entry.was_seen();
            Ok(match &entry.node {
                Some(node) => Known::Node { name: node.name.clone(), may_hold: !entry.is_watching() },
                None => Known::Perhaps,
            })
        });
        known.unwrap_or(Ok(Known::Nothing))
    }

    /// The queue as it is now, and whether the ensemble has said so; `None` if the node is gone.
    async fn look(&self, name: &str, may_hold: bool) -> Result<Option<(Queue, String, bool)>, BackendError> {
        let looked = |error| error::looked(&self.session.place(), error);
        let children = if may_hold {
            let node = format!("{}/{name}", self.lock);
            leave::seen_by_quorum(&self.session, &self.lock, &node).await.map_err(looked)?
        } else {
            leave::seen_now(&self.session, &self.lock).await.map_err(looked)?
        };
        if children.is_none() {
            self.session.own_nodes().remove(self.claim.owner);
        }
        Ok(children.map(|children| (Queue::read(&children), name.to_owned(), may_hold)))
    }

    /// The reply to its creation was lost. The node exists under a name that has its owner, or it was never created
    /// (H6.5,
    /// hazard 57).
    async fn settle(&self) -> Result<Option<(Queue, String, bool)>, BackendError> {
        let (owner, session) = (self.claim.owner, &self.session);
        let looked = |error| error::looked(&session.place(), error);
        let Some(found) = leave::find(session, &self.lock, owner).await.map_err(looked)? else {
            session.own_nodes().remove(owner);
            return Ok(None);
        };
        let path = format!("{}/{}", self.lock, found.name);
        let stat = session.client.check_stat(&path).await.map_err(looked)?;
        match stat {
            Some(stat) if stat.ephemeral_owner == session.client.session_id().0 => {
                session.with_entry(owner, |entry| entry.node = Some(node_of(found.name, &stat)));
            }
            // An earlier session of ours made it, and will not keep it.
            Some(stat) => {
                let wrote = |error| error::wrote(&session.place(), error);
                let leaver =
                    Leaver { owner, lock: self.lock.clone(), node: Some(node_of(found.name, &stat)) };
                leave::delete(session, &leaver).await.map_err(wrote)?;
            }
            None => {}
        }
        Ok(None)
    }

    /// Makes the node, and looks at the queue behind that.
    async fn take_place(&self) -> Result<Option<(Queue, String, bool)>, BackendError> {
        let session = &self.session;
        self.store.directories.ready(session, &self.lock).await?;
        let owner = self.claim.owner;
        // An earlier claim that ran out of time, and this one, which follows it, must not both make a node: one would wait for the other,
        // and the session keeps both alive.
        self.claim.asker.must_be_there()?;
        if session.with_entry(owner, |_| ()).is_some() {
            return Ok(None);
        }
        let entry = Entry::new(self.claim, self.lock.clone(), session.host.now());
        let data = entry.record.written();
        // Before it is sent: if this is broken off, the session's thread finds the node and deletes it.
        if !session.own_nodes().add(owner, entry) {
            return Err(error::over(&session.place()));
        }
        let prefix = session.config.layout.prefix(owner, self.claim.mode);
        let path = format!("{}/{prefix}", self.lock);
        let options = CreateMode::EphemeralSequential.with_acls(session.acls());
        let newest = self.store.newest.load(Ordering::Acquire);
        let making = Making::of(session, &self.lock, owner);
        // Both are sent at once, in this order.
        let create = session.client.create(&path, &data, &options);
        let (made, listed) = join!(create, session.client.get_children(&self.lock));
        let (stat, sequence) = match made {
            Ok(made) => made,
            Err(error) => return self.not_made(making, error).map(|()| None),
        };
        making.answered();
        let name = format!("{prefix}{sequence}");
        let listed = listed.map_err(|error| error::wrote(&session.place(), error));
        // Since it was made somebody came or went: it may have been seen in a queue that was longer.
        let was_seen = listed.as_ref().is_ok_and(|(_, directory)| directory.pzxid != stat.czxid);
        self.made(node_of(name.clone(), &stat), was_seen)?;
        if stat.czxid <= newest {
            let now = session.host.now();
            session.with_entry(owner, |entry| entry.leave(now));
            return Err(error::put_back(&session.place()));
        }
        self.store.newest.fetch_max(stat.czxid, Ordering::AcqRel);
        Ok(Some((Queue::read(&listed?.0), name, true)))
    }

    fn made(&self, node: Node, was_seen: bool) -> Result<(), BackendError> {
        let (owner, mut own_nodes) = (self.claim.owner, self.session.own_nodes());
        if let Some(entry) = own_nodes.get(owner) {
            entry.node = Some(node);
            if was_seen {
                entry.was_seen();
            }
            return Ok(());
        }
        // It was given up before it was sent. The session's thread deletes it.
        let now = self.session.host.now();
        let mut entry = Entry::new(self.claim, self.lock.clone(), now);
        entry.node = Some(node);
        entry.leave(now);
        own_nodes.add(owner, entry);
        Err(error::lapsed(&self.session.place()))
    }

    /// Forgets the entry if the node was certainly not made (L9).
    fn not_made(&self, making: Making, error: Error) -> Result<(), BackendError> {
        let vanished = error == Error::NoNode;
        let error = error::wrote(&self.session.place(), error);
        if error.outcome() == Outcome::NotApplied {
            making.answered();
            self.session.own_nodes().remove(self.claim.owner);
        }
        if vanished {
            self.store.directories.forget(&self.lock);
            return Ok(());
        }
        Err(error)
    }

    async fn is_free(&self) -> Result<bool, BackendError> {
        let children = leave::seen_now(&self.session, &self.lock).await;
        let children = children.map_err(|error| error::looked(&self.session.place(), error))?;
        Ok(children.is_none_or(|children| Queue::read(&children).fits(self.claim.mode)))
    }

    /// Grants the lock, unless its time ran out meanwhile: then its node is being deleted, and the next waiter is
    /// granted (L1, L5).
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
            // The next one may fit beside us. It is sent by this, and nobody waits for the answer: it is a hint.
            let data = Record { entered: true, ..record }.written();
            drop(self.session.client.set_data(&format!("{}/{name}", self.lock), &data, None));
        }
        Ok(ClaimAnswer::Granted(Grant { name: lock.clone(), owner: *owner, token, block: 1, ttl: *ttl }))
    }

    /// Watches the nodes whose deletion may make it the holder; `None` if the queue has changed meanwhile.
    async fn wait_behind(&self, queue: &Queue, ahead: usize) -> Result<Option<ClaimAnswer>, BackendError> {
        let is_kept = self.session.with_entry(self.claim.owner, |entry| {
            entry.part = Part::Waits;
            !entry.is_leaving()
        });
        match is_kept {
            Some(true) => {}
            Some(false) => return Err(error::lapsed(&self.session.place())),
            None => return Ok(None),
        }
        let (session, known_holders) = (&*self.session, &self.store.known_holders);
        let lookout = Lookout { session, known_holders, lock: &self.lock, owner: self.claim.owner };
        let holder = self.holder(queue.holders());
        let (is_watched, holder) = if ahead == 0 {
            // It is read while it is watched.
            (lookout.watch(queue, ahead).await, holder.await)
        } else {
            join!(lookout.watch(queue, ahead), holder)
        };
        if !is_watched? {
            self.session.with_entry(self.claim.owner, Entry::rung);
            return Ok(None);
        }
        Ok(Some(ClaimAnswer::Queued { ahead, retry_after: Timing::RETRY_MAX, holder }))
    }

    async fn holder(&self, holders: &[Contender]) -> Option<tenure_core::HolderView> {
        holders::first_holder(&self.store.known_holders, &self.session, &self.lock, holders.first()?).await
    }

    /// Without having left anything.
    async fn busy(&self) -> Result<ClaimAnswer, BackendError> {
        let looked = |error| error::looked(&self.session.place(), error);
        let children = match self.session.client.list_children(&self.lock).await {
            Err(Error::NoNode) => Vec::new(),
            children => children.map_err(looked)?,
        };
        let holder = self.holder(Queue::read(&children).holders()).await;
        Ok(ClaimAnswer::Busy { retry_after: Timing::RETRY_MAX, holder })
    }

    /// Another owner was faster: the node is deleted.
    async fn step_back(&self) -> Result<ClaimAnswer, BackendError> {
        leave::release(&self.session, self.lock.clone(), self.claim.owner).await?;
        self.busy().await
    }
}

fn node_of(name: String, stat: &Stat) -> Node {
    Node { name, token: token(stat.czxid) }
}

/// The queue changes faster than it can be watched.
const SOON: Duration = Duration::from_millis(20);
const TRIES: usize = 4;
