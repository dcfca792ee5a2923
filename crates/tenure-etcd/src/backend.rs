//! `Etcd`: the verbs, and why a request that is carried out twice, or late, ends no hold of another request.
//!
//! A member that hangs may carry out a request after the other members have gone on without it: any request
//! may have a copy that comes late. Three rules make every such copy harmless (L1, hazard 58):
//!
//! 1. **The id of a lease is random and for one attempt**, and the lease is requested before any key is written on
//!    it. A key moves from lease to lease, as its owner waits, enters and asks for longer, and never back to one that
//!    it has left.
//! 2. **A lease is ended only when its key has left it or its owner leaves**, and the claim that requested its end
//!    writes no key on it any more. So a late request to end a lease finds no key on it.
//! 3. **A write names the state that it starts from**: no key, or the revision at which the key was last written. So
//!    a late write takes effect only if nothing has happened to the key since it was read; then it is not a copy.
//!
//! What late copies can still do: a lease that is requested twice may be created again after its end. Without a key
//! it blocks no owner. An unwanted place needs a late copy of this request and then one of the first write; it ends
//! with that lease. A lease that is kept alive late lasts longer by no more than its length.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use etcd_client::{Client, Txn, TxnOp, TxnOpResponse};
use futures_util::{
    future::{join, join_all, try_join_all},
    stream::{self, StreamExt},
};
use tenure_core::{
    Absent, Audience, Backend, BackendError, BackendHandle, BreakScope, Claim, ClaimAnswer, EndOfGrant,
    Exposure, FencingToken, Finding, Grant, HolderView, Host, LockName, LockView, Memo, Memos, Minting,
    Noted, Notifier, Order, OtherMode, Outcome, OwnerId, Ownership, ProcessId, Promises, Released, Renewal,
    Restart, Sharing, Timing, WaitMode, WakeStream, WakeSupport, locked,
};

use crate::{
    config::Config,
    diagnose, error,
    members::{Kept, KeyChange, MemberAnswer, Members, Watermark, whole_seconds},
    memo,
    owners::{KeyAt, Owners},
    queue::{KeyQueue, QueueKey, Value, folder, key, millis, token},
    view,
    watch::{AwaitedChange, ChangeWatcher, Watching},
};

/// Locks in etcd.
pub struct Etcd {
    shared: Arc<ProcessState>,
    members: Arc<Members>,
}

/// The state that the handles of one process share.
struct ProcessState {
    config: Arc<Config>,
    host: Arc<dyn Host>,
    watermark: Arc<Watermark>,
    owners: Owners,
    /// Has a separate connection.
    watching: Watching,
    notifier: Notifier,
    /// Locks whose name no client of another layout used when it was checked.
    unmixed: Mutex<HashSet<LockName>>,
}

impl Etcd {
    /// A handle; the first request connects.
    pub fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let config = Arc::new(config);
        let watermark = Arc::default();
        let notifier = Notifier::default();
        let members = Arc::new(Members::new(config.clone(), host.clone(), Arc::clone(&watermark)));
        let watching = Watching(ChangeWatcher::new(members.clone(), notifier.clone()));
        let shared = ProcessState {
            config,
            host,
            watermark,
            owners: Owners::default(),
            watching,
            notifier,
            unmixed: Mutex::default(),
        };
        Self { shared: Arc::new(shared), members }
    }

    fn config(&self) -> &Config {
        &self.shared.config
    }
}

#[async_trait]
impl Backend for Etcd {
    fn promises(&self) -> Promises {
        let mut promises = Promises::least("etcd");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::WaitedFor;
        promises.minting = Minting::Place;
        promises.restart = Restart::Survives;
        promises.fail_over = Some(Restart::Survives);
        promises.reach = "all clients of the cluster";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.wake = WakeSupport::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        promises.ttl_grain = Duration::from_secs(2);
        promises
    }

    async fn handle(&self) -> Result<BackendHandle, BackendError> {
        let ProcessState { config, host, watermark, .. } = &*self.shared;
        let members = Arc::new(Members::new(config.clone(), host.clone(), watermark.clone()));
        Ok(Arc::new(Self { shared: self.shared.clone(), members }))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        if self.shared.owners.key_at(claim.owner).is_none() {
            self.must_be_unmixed(&claim.name, self.members.patience(claim.ttl)).await?;
        }
        let folder = folder(&self.config().prefix, &claim.name);
        let key = key(&folder, claim.owner);
        let asking = KeyClaim {
            etcd: self,
            claim,
            folder,
            key,
            seconds: whole_seconds(claim.ttl),
            patience: self.members.patience(claim.ttl),
        };
        match claim.wait {
            WaitMode::Wake => Err(error::no_turnless_place()),
            WaitMode::No => asking.ask_in_passing().await,
            WaitMode::Turn => match self.shared.owners.key_at(claim.owner) {
                // The effect of an earlier request stays, whatever fails now (L9).
                Some(key_at) => asking.ask_again(key_at).await.map_err(BackendError::of_unknown_outcome),
                None => asking.arrive().await,
            },
        }
    }

    /// A renewal is true because of both its halves, in this order. Only the leader counts leases. If it kept this
    /// one alive, it keeps it for the ttl from then, and so do its successors, which begin anew with the full ttl.
    /// But a leader that was replaced may not know it yet. So a read through the quorum comes after it: if the leader
    /// had been replaced before, the term would be a later one. The key shows that the lease has not ended and was
    /// not broken (hazard 58, etcd #15247).
    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let lease = |grant: &Grant| self.shared.owners.key_at(grant.owner).map(|key_at| key_at.lease);
        let begin = |grant| OpenRenewal { grant, lease: lease(grant), answer: None };
        let mut all: Vec<OpenRenewal<'_>> = grants.iter().map(begin).collect();
        for _ in 0..RENEW_ROUNDS {
            let open: Vec<&mut OpenRenewal<'_>> = all.iter_mut().filter(|one| one.answer.is_none()).collect();
            let mut open = open.into_iter();
            loop {
                let batch: Vec<_> = open.by_ref().take(BATCH).collect();
                if batch.is_empty() {
                    break;
                }
                self.renew_batch(batch).await;
            }
        }
        let unsettled = || Err(error::unsettled(&self.members.place()));
        all.into_iter().map(|one| one.answer.unwrap_or_else(unsettled)).collect()
    }

    /// Ends the owner's leases. The key was still there exactly if its lease was: except a person, nothing deletes a
    /// key of Tenure without its lease (L9).
    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let patience = self.config().response_timeout;
        self.shared.watching.0.forget(owner);
        let Some(known) = self.shared.owners.get(owner) else {
            return self.leave_unseen(name, owner, patience).await;
        };
        let on = match known.key_at {
            Some(key_at) => Some(key_at.lease),
            None => self.place_of(name, owner, patience).await?.map(|place| place.lease),
        };
        let others: Vec<i64> = known.leases.into_iter().filter(|lease| Some(*lease) != on).collect();
        let leases = on.iter().chain(&others);
        let revoked = join_all(leases.map(|lease| self.members.revoke(*lease, patience))).await;
        let is_one = revoked.len() == 1;
        let revoked: Result<Vec<_>, _> = revoked.into_iter().collect();
        let revoked = revoked.map_err(|error| if is_one { error } else { error.of_unknown_outcome() })?;
        self.shared.owners.forget(owner);
        match (on, revoked.first()) {
            (Some(_), Some(MemberAnswer { value: true, .. })) => Ok(Released::Released),
            (Some(_), Some(MemberAnswer { was_repeated: true, .. })) => {
                Err(error::left_or_gone(&self.members.place()))
            }
            // The owner was about to enter, and it is not known which of its leases had the key.
            (Some(_), _) if known.key_at.is_none() && revoked.iter().any(|revoked| revoked.value) => {
                Err(error::left_or_gone(&self.members.place()))
            }
            // Another process may have made it longer, or claimed for the same owner.
            (Some(_), _) => {
                let left = self.leave_unseen(name, owner, patience).await;
                left.map_err(BackendError::of_unknown_outcome)
            }
            (None, _) => Ok(Released::WasGone),
        }
    }

    async fn note(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        memo: &Memo,
    ) -> Result<Noted, BackendError> {
        memo::leave_memo(&self.members, name, (owner, token), memo).await
    }

    /// No request: the transaction compares.
    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        let folder = folder(&self.config().prefix, &grant.name);
        let create_revision = i64::try_from(grant.token.get()).unwrap_or(i64::MAX);
        Ok(Exposure::Exposed(Ownership::Etcd { key: key(&folder, grant.owner), create_revision }))
    }

    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(self.shared.notifier.subscribe(process, audience))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        view::look(&self.members, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        view::queues(&self.members, prefix).await
    }

    /// Takes the lock from its holders. Every write raises the revision of the store, and so the fence.
    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError> {
        let patience = self.config().response_timeout;
        let folder = folder(&self.config().prefix, name);
        let queue = self.members.queue(&folder, patience).await?;
        let mut holders = queue.holders().to_vec();
        match scope {
            BreakScope::Owner(owner) => {
                holders.retain(|holder| holder.ours.as_ref().is_some_and(|value| value.owner == owner));
                if holders.is_empty() {
                    return Ok(Vec::new());
                }
            }
            BreakScope::Leases if holders.iter().any(|holder| holder.ours.is_none()) => {
                return Err(BackendError::foreign_holder(name));
            }
            BreakScope::Leases | BreakScope::All => {}
        }
        if holders.is_empty() {
            self.raise(&folder, patience).await?;
            return Ok(Vec::new());
        }
        let broken = view::with_time_left(&self.members, &holders).await?;
        try_join_all(holders.iter().map(|holder| self.break_one(name, holder, patience))).await?;
        Ok(broken)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        diagnose::examine(self, &self.members).await
    }
}

/// One claim under way.
struct KeyClaim<'a> {
    etcd: &'a Etcd,
    claim: &'a Claim,
    folder: String,
    key: Vec<u8>,
    /// The ttl in the server's seconds, rounded up: the server's lease ends no sooner than the holder's.
    seconds: i64,
    patience: Duration,
}

impl KeyClaim<'_> {
    /// Reads first: a claim that does not fit leaves nothing behind.
    async fn ask_in_passing(&self) -> Result<ClaimAnswer, BackendError> {
        let queue = self.etcd.members.queue(&self.folder, self.patience).await?;
        if queue.find(self.claim.owner).is_none() && !queue.has_room_for(self.claim.mode) {
            return self.busy(&queue).await;
        }
        self.arrive().await
    }

    /// Keeps the place that was taken before, and checks whether its turn has come.
    async fn ask_again(&self, key_at: KeyAt) -> Result<ClaimAnswer, BackendError> {
        let members = &self.etcd.members;
        let kept = members.keep_place(key_at.lease, self.patience);
        let (kept, queue) = join(kept, members.queue(&self.folder, self.patience)).await;
        let (kept, queue) = (kept?, queue?);
        let at = queue.find(self.claim.owner).filter(|&at| queue.places[at].created == key_at.created);
        match at {
            Some(at) if at < queue.leading() => {
                self.must_be_the_same(&queue.places[at])?;
                self.settle(NextWrite::new(LeasePurpose::Ttl, queue.places[at].modified)).await
            }
            Some(at) if kept && queue.places[at].lease == key_at.lease => {
                Ok(self.queued(&queue, at, true).await)
            }
            _ => self.arrive().await,
        }
    }

    /// Takes a place in the queue, unless there is one. Where others wait, this claim will wait too: it begins with
    /// the lease that it would need then.
    async fn arrive(&self) -> Result<ClaimAnswer, BackendError> {
        let is_contended =
            self.has_place_lease() && self.etcd.shared.owners.contended.is_contended(&self.claim.name);
        let purpose = if is_contended { LeasePurpose::Place } else { LeasePurpose::Ttl };
        self.settle(NextWrite::new(purpose, 0)).await
    }

    /// Takes steps until its key is on the right lease: on that of a place while it waits, on that of the ttl to
    /// hold.
    async fn settle(&self, mut step: NextWrite) -> Result<ClaimAnswer, BackendError> {
        let is_new = step.from == 0;
        for number in 0..STEPS {
            let taken = match self.claim.asker.must_be_there() {
                Ok(()) => self.take(&mut step).await,
                Err(gone) => Err(gone),
            };
            match taken {
                Ok(Some(answer)) => {
                    self.end_left(&step).await.map_err(BackendError::of_unknown_outcome)?;
                    return Ok(answer);
                }
                Ok(None) => {}
                Err(error) if is_new && number == 0 => return Err(self.undo(&step, error).await),
                // The store has something of this claim by now (L9).
                Err(error) => return Err(error.of_unknown_outcome()),
            }
        }
        Err(error::unsettled(&self.etcd.members.place()))
    }

    /// Ends the lease of another process that the key has left. Otherwise that process would still find this lease
    /// without a key, and report that its release ended something.
    async fn end_left(&self, step: &NextWrite) -> Result<(), BackendError> {
        match step.left {
            Some(lease) => self.etcd.members.revoke(lease, self.patience).await.map(drop),
            None => Ok(()),
        }
    }

    /// Requests a lease, writes the key on it if nothing has come in between, and reads the queue in the same step.
    /// Only that read shows whether the owner holds: a lease may end while its owner waits (hazard 47, etcd #11456).
    async fn take(&self, step: &mut NextWrite) -> Result<Option<ClaimAnswer>, BackendError> {
        let lease = match step.unused {
            Some(lease) => lease,
            None => self.lease(step.purpose).await?,
        };
        step.unused = Some(lease);
        let Some(queue) = self.write(step, lease).await? else {
            // The lease has ended.
            step.unused = None;
            return Ok(None);
        };
        let Some(at) = queue.find(self.claim.owner) else {
            // Its place has ended.
            step.from = 0;
            return Ok(None);
        };
        if at < queue.leading() {
            self.must_be_the_same(&queue.places[at])?;
        }
        let answer = self.look(&queue, at, step.purpose, lease).await;
        let answer = answer.map_err(BackendError::of_unknown_outcome)?;
        if answer.is_none() {
            let (place, purpose) = (&queue.places[at], self.purpose(&queue, at));
            step.unused = step.unused.filter(|_| place.lease != lease && purpose == step.purpose);
            step.left = step.left.or_else(|| self.is_strange(place).then_some(place.lease));
            (step.purpose, step.from) = (purpose, place.modified);
        }
        Ok(answer)
    }

    /// A chosen owner that holds claims again in the mode that its key has: its next write would change that.
    // L1.
    fn must_be_the_same(&self, place: &QueueKey) -> Result<(), OtherMode> {
        let held = place.mode();
        let holds = place.ours.as_ref().is_some_and(|value| !value.waits);
        if !holds || held == self.claim.mode { Ok(()) } else { Err(OtherMode { held }) }
    }

    /// True if this process did not request its lease, as far as it remembers.
    fn is_strange(&self, place: &QueueKey) -> bool {
        let known = self.etcd.shared.owners.get(self.claim.owner);
        known.is_none_or(|known| !known.leases.contains(&place.lease))
    }

    /// The answer about its place; `None` if its key is not on the lease that it should be on.
    async fn look(
        &self,
        queue: &KeyQueue,
        at: usize,
        purpose: LeasePurpose,
        lease: i64,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        let (place, holds) = (&queue.places[at], at < queue.leading());
        if !holds && self.claim.wait == WaitMode::No {
            self.leave_line(place).await?;
            return self.busy(queue).await.map(Some);
        }
        self.etcd.shared.owners.contended.set(&self.claim.name, queue.places.len() > 1);
        match place.lease == lease && purpose == self.purpose(queue, at) {
            true if holds => Ok(Some(self.granted(place, queue.revision))),
            true => Ok(Some(self.queued(queue, at, false).await)),
            false => Ok(None),
        }
    }

    /// The purpose that its lease must have.
    fn purpose(&self, queue: &KeyQueue, at: usize) -> LeasePurpose {
        if at >= queue.leading() && self.has_place_lease() { LeasePurpose::Place } else { LeasePurpose::Ttl }
    }

    /// The key was certainly not written. If the lease is ended as well, nothing was applied (L9).
    async fn undo(&self, step: &NextWrite, error: BackendError) -> BackendError {
        let Some(lease) = step.unused.filter(|_| error.outcome() == Outcome::NotApplied) else {
            return error;
        };
        if self.etcd.members.revoke(lease, self.patience).await.is_err() {
            return error.of_unknown_outcome();
        }
        self.etcd.shared.owners.forget_lease(self.claim.owner, lease);
        error
    }

    /// Leaves the queue: the claim does not wait, and leaves nothing behind.
    async fn leave_line(&self, place: &QueueKey) -> Result<(), BackendError> {
        let owners = &self.etcd.shared.owners;
        let mut leases = owners.get(self.claim.owner).unwrap_or_default().leases;
        leases.retain(|lease| *lease != place.lease);
        leases.push(place.lease);
        try_join_all(leases.iter().map(|lease| self.etcd.members.revoke(*lease, self.patience))).await?;
        owners.forget(self.claim.owner);
        Ok(())
    }

    async fn lease(&self, purpose: LeasePurpose) -> Result<i64, BackendError> {
        let seconds = match purpose {
            LeasePurpose::Place => PLACE_SECONDS,
            LeasePurpose::Ttl => self.seconds,
        };
        self.etcd.new_lease(self.claim.owner, seconds, self.patience).await
    }

    async fn write(&self, step: &NextWrite, lease: i64) -> Result<Option<KeyQueue>, BackendError> {
        let (members, waits) = (&self.etcd.members, step.purpose == LeasePurpose::Place);
        let value = Value::of(self.claim, members.host.now().wall, lease, waits).write();
        let change =
            KeyChange { folder: &self.folder, key: &self.key, modified: step.from, value: &value, lease };
        members.change(&change, self.patience).await
    }

    /// A place has a separate lease where that of the ttl lasts longer.
    fn has_place_lease(&self) -> bool {
        self.seconds > PLACE_SECONDS && self.claim.wait == WaitMode::Turn
    }

    fn granted(&self, place: &QueueKey, revision: i64) -> ClaimAnswer {
        let Claim { name, owner, ttl, .. } = self.claim.clone();
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.etcd.shared.owners.saw_key(owner, key_at);
        self.etcd.shared.watching.0.listen(owner, AwaitedChange::end_of(self.key.clone()), revision + 1);
        ClaimAnswer::Granted(Grant::new(name, owner, token(place.created), ttl))
    }

    async fn queued(&self, queue: &KeyQueue, at: usize, again: bool) -> ClaimAnswer {
        let place = &queue.places[at];
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.etcd.shared.owners.saw_key(self.claim.owner, key_at);
        if let Some(awaited) = AwaitedChange::by(queue, at) {
            self.etcd.shared.watching.0.listen(self.claim.owner, awaited, queue.revision + 1);
        }
        let seconds = if self.has_place_lease() { PLACE_SECONDS } else { self.seconds };
        let place_ttl = Duration::from_secs(seconds.unsigned_abs());
        // Only a waiter that has waited for a while gets the holder's time left: it costs a request.
        let holder = self.first_holder(queue, again).await;
        ClaimAnswer::Queued {
            ahead: at - queue.leading(),
            retry_after: Timing::RETRY_MAX.min(place_ttl / 3),
            holder,
        }
    }

    async fn busy(&self, queue: &KeyQueue) -> Result<ClaimAnswer, BackendError> {
        let holder = self.first_holder(queue, true).await;
        let left = holder.as_ref().and_then(|holder| holder.expires_in).unwrap_or(Timing::RETRY_MAX);
        Ok(ClaimAnswer::Busy {
            retry_after: left.clamp(Duration::from_millis(100), Timing::RETRY_MAX),
            holder,
        })
    }

    async fn first_holder(&self, queue: &KeyQueue, with_time_left: bool) -> Option<HolderView> {
        let first = queue.holders().first()?;
        // The time left is for display: the holder is worth showing without it.
        let left = match with_time_left {
            true => self.etcd.members.time_left(first.lease, self.patience).await.ok().flatten(),
            false => None,
        };
        Some(view::holder(first, left))
    }
}

/// The next step: the key moves to a lease for this purpose, from this state.
struct NextWrite {
    purpose: LeasePurpose,
    /// The modify revision of the key; 0: there is none.
    from: i64,
    /// A lease for this purpose, asked for in this claim, that the key has never been on.
    unused: Option<i64>,
    /// A lease of another process that the key was on.
    left: Option<i64>,
}

impl NextWrite {
    fn new(purpose: LeasePurpose, from: i64) -> Self {
        Self { purpose, from, unused: None, left: None }
    }
}

/// The purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeasePurpose {
    /// A place in the queue, kept alive by repeating the claim: a dead waiter must not block the places
    /// behind it for a long ttl.
    Place,
    /// The ttl: to hold, or to wait where that is short.
    Ttl,
}

impl Etcd {
    /// A new lease of this ttl for this owner. It is granted through the quorum. The leader of that time counts it,
    /// and a later leader begins it anew.
    ///
    /// # Errors
    /// Those of the request; of unknown outcome if the server grants a shorter lease.
    async fn new_lease(&self, owner: OwnerId, seconds: i64, patience: Duration) -> Result<i64, BackendError> {
        let lease = self.members.fresh_id();
        self.shared.owners.will_use(owner, lease);
        match self.members.grant_lease(lease, seconds, patience).await {
            Ok(granted) if granted >= seconds => Ok(lease),
            Ok(granted) => Err(error::too_short(seconds, granted)),
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    self.shared.owners.forget_lease(owner, lease);
                }
                Err(error)
            }
        }
    }

    async fn renew_batch(&self, batch: Vec<&mut OpenRenewal<'_>>) {
        let shortest = batch.iter().map(|one| one.grant.ttl).min().unwrap_or_default();
        let patience = self.members.patience(shortest);
        let keeping: Vec<_> = batch.iter().map(|one| self.keep(one.lease, patience)).collect();
        let kept: Vec<_> = stream::iter(keeping).buffered(AT_ONCE).collect().await;
        let grants: Vec<&Grant> = batch.iter().map(|one| one.grant).collect();
        let read = match self.read(&grants, patience).await {
            Ok(read) => read,
            Err(error) => return batch.into_iter().for_each(|one| one.answer = Some(Err(error.clone()))),
        };
        let judged = batch.into_iter().zip(kept).zip(read);
        let steps = judged.map(|((one, kept), read)| self.settle(one, kept, read, patience));
        join_all(steps.collect::<Vec<_>>()).await;
    }

    async fn keep(&self, lease: Option<i64>, patience: Duration) -> Result<Option<Kept>, BackendError> {
        match lease {
            Some(lease) => self.members.keep_alive(lease, patience).await,
            None => Ok(None),
        }
    }

    async fn settle(
        &self,
        one: &mut OpenRenewal<'_>,
        kept: Result<Option<Kept>, BackendError>,
        read: KeyRead,
        patience: Duration,
    ) {
        one.answer = match judge(one.grant, one.lease, kept, read) {
            Next::Answer(Ok(Renewal::Renewed)) if one.grant.token == FencingToken::new(0) => {
                Some(self.holds(one.grant, patience).await)
            }
            Next::Answer(answer) => Some(answer),
            Next::Again(place) => {
                one.lease = Some(place.lease);
                self.saw_key(one.grant.owner, &place);
                None
            }
            Next::Lengthen(place) => self.lengthen(one.grant, &place, patience).await.transpose(),
        };
    }

    /// A manual renewal has no token: its owner may still wait.
    async fn holds(&self, grant: &Grant, patience: Duration) -> Result<Renewal, BackendError> {
        let queue = self.members.queue(&folder(&self.config().prefix, &grant.name), patience).await?;
        let holds = queue.find(grant.owner).is_some_and(|at| at < queue.leading());
        Ok(if holds { Renewal::Renewed } else { Renewal::Gone })
    }

    /// etcd cannot change the length of a lease: the key moves to a new one of the requested length. `None` if
    /// something came in between.
    async fn lengthen(
        &self,
        grant: &Grant,
        place: &QueueKey,
        patience: Duration,
    ) -> Result<Option<Renewal>, BackendError> {
        let Some(value) = place.ours.clone() else { return Ok(None) };
        let lease = self.new_lease(grant.owner, whole_seconds(grant.ttl), patience).await?;
        let value = Value { ttl_ms: millis(grant.ttl), lease, ..value }.write();
        let folder = folder(&self.config().prefix, &grant.name);
        let change =
            KeyChange { folder: &folder, key: &place.key, modified: place.modified, value: &value, lease };
        let Some(queue) = self.members.change(&change, patience).await? else { return Ok(None) };
        let at = queue.find(grant.owner).filter(|&at| queue.places[at].lease == lease);
        let Some(at) = at else { return Ok(None) };
        // No key is on it any more, nor will be.
        self.members.revoke(place.lease, patience).await?;
        self.shared.owners.forget_lease(grant.owner, place.lease);
        self.saw_key(grant.owner, &queue.places[at]);
        Ok(Some(if at < queue.leading() { Renewal::Renewed } else { Renewal::Gone }))
    }

    /// From now on this process finds the owner's key there.
    fn saw_key(&self, owner: OwnerId, place: &QueueKey) {
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.shared.owners.saw_key(owner, key_at);
    }

    /// Reads the keys of the grants, through the quorum.
    async fn read(&self, grants: &[&Grant], patience: Duration) -> Result<Vec<KeyRead>, BackendError> {
        let folders: Vec<String> =
            grants.iter().map(|grant| folder(&self.config().prefix, &grant.name)).collect();
        let keys: Vec<Vec<u8>> =
            folders.iter().zip(grants).map(|(folder, grant)| key(folder, grant.owner)).collect();
        let request = async |mut client: Client| {
            let reads: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(&key[..], None)).collect();
            client.txn(Txn::new().and_then(reads)).await
        };
        let done = self.members.ask(patience, request).await?.value;
        let term = done.header().map_or(0, |header| header.raft_term());
        let place = |(answer, folder): (TxnOpResponse, &String)| {
            let TxnOpResponse::Get(read) = answer else { return KeyRead { place: None, term } };
            KeyRead { place: read.kvs().first().and_then(|kv| QueueKey::read(folder.as_bytes(), kv)), term }
        };
        Ok(done.op_responses().into_iter().zip(&folders).map(place).collect())
    }

    /// Releases an owner of which this process does not know the lease.
    async fn leave_unseen(
        &self,
        name: &LockName,
        owner: OwnerId,
        patience: Duration,
    ) -> Result<Released, BackendError> {
        let Some(place) = self.place_of(name, owner, patience).await? else { return Ok(Released::WasGone) };
        match self.end(name, owner, place, patience).await? {
            MemberAnswer { value: true, .. } => Ok(Released::Released),
            MemberAnswer { was_repeated: true, .. } => Err(error::left_or_gone(&self.members.place())),
            MemberAnswer { .. } => Ok(Released::WasGone),
        }
    }

    /// The owner's key, if there is one.
    async fn place_of(
        &self,
        name: &LockName,
        owner: OwnerId,
        patience: Duration,
    ) -> Result<Option<QueueKey>, BackendError> {
        let folder = folder(&self.config().prefix, name);
        let key = &key(&folder, owner)[..];
        let read = self.members.ask(patience, async |mut client: Client| client.get(key, None).await).await?;
        let place = read.value.kvs().first().and_then(|kv| QueueKey::read(folder.as_bytes(), kv));
        Ok(place.filter(|place| place.is_of(owner)))
    }

    /// Ends the lease that an owner's key is on, and the next one if the key moves there in between. Leases first: so
    /// a later release finds nothing, and reports that. Returns whether any was there.
    async fn end(
        &self,
        name: &LockName,
        owner: OwnerId,
        mut place: QueueKey,
        patience: Duration,
    ) -> Result<MemberAnswer<bool>, BackendError> {
        let mut ended = self.members.revoke(place.lease, patience).await?;
        for _ in 0..RELEASE_ROUNDS {
            let next =
                self.place_of(name, owner, patience).await.map_err(BackendError::of_unknown_outcome)?;
            let Some(next) = next.filter(|next| next.created == place.created) else { return Ok(ended) };
            place = next;
            let revoked = self.members.revoke(place.lease, patience).await;
            let revoked = revoked.map_err(BackendError::of_unknown_outcome)?;
            ended.value |= revoked.value;
            ended.was_repeated |= revoked.was_repeated;
        }
        let deleted = self.members.delete(&place.key, place.created, patience).await;
        deleted.map(|()| ended).map_err(BackendError::of_unknown_outcome)
    }

    /// At the first claim of a name, checks that no client keeps a lock of this name in a single key, which has no
    /// queue. Such a client would not exclude clients of Tenure, nor be excluded.
    async fn must_be_unmixed(&self, name: &LockName, patience: Duration) -> Result<(), BackendError> {
        if locked(&self.shared.unmixed).contains(name) {
            return Ok(());
        }
        if view::single_key(&self.members, name, patience).await?.is_some() {
            return Err(error::single_key(&format!("{}{name}", self.config().prefix)));
        }
        let mut unmixed = locked(&self.shared.unmixed);
        if unmixed.len() >= UNMIXED_MAX {
            unmixed.clear();
        }
        unmixed.insert(name.clone());
        Ok(())
    }

    /// The lease of a foreign key is not revoked: its owner may have other keys on it.
    async fn break_one(
        &self,
        name: &LockName,
        holder: &QueueKey,
        patience: Duration,
    ) -> Result<(), BackendError> {
        match &holder.ours {
            Some(value) => self.end(name, value.owner, holder.clone(), patience).await.map(drop),
            None => self.members.delete(&holder.key, holder.created, patience).await,
        }
    }

    /// Raises the fence: writes a key that is not a place in the queue, and deletes it.
    async fn raise(&self, folder: &str, patience: Duration) -> Result<(), BackendError> {
        let marker = format!("{folder}!");
        let marker = marker.as_str();
        self.members.ask(patience, async |mut client: Client| client.put(marker, "", None).await).await?;
        self.members.ask(patience, async |mut client: Client| client.delete(marker, None).await).await?;
        Ok(())
    }
}

/// The renewal of one grant, under way.
struct OpenRenewal<'a> {
    grant: &'a Grant,
    /// The lease on which its key was last seen; `None` if this process has not seen it.
    lease: Option<i64>,
    answer: Option<Result<Renewal, BackendError>>,
}

/// The next step for one grant.
enum Next {
    Answer(Result<Renewal, BackendError>),
    /// Its key is there; ask again, about this lease.
    Again(QueueKey),
    /// Its lease is shorter than the requested ttl.
    Lengthen(QueueKey),
}

/// The key of a grant as a linearizable read of this term saw it.
struct KeyRead {
    place: Option<QueueKey>,
    term: u64,
}

fn judge(grant: &Grant, lease: Option<i64>, kept: Result<Option<Kept>, BackendError>, read: KeyRead) -> Next {
    let any = FencingToken::new(0);
    let is_held = |place: &QueueKey| {
        let is_its_own = grant.token == token(place.created) || grant.token == any;
        is_its_own && place.ours.as_ref().is_some_and(|value| value.owner == grant.owner && !value.waits)
    };
    let Some(place) = read.place.filter(is_held) else { return Next::Answer(Ok(Renewal::Gone)) };
    match kept {
        _ if lease != Some(place.lease) => Next::Again(place),
        Err(error) => Next::Answer(Err(error)),
        Ok(Some(kept)) if kept.term == read.term && kept.seconds >= whole_seconds(grant.ttl) => {
            Next::Answer(Ok(Renewal::Renewed))
        }
        Ok(Some(kept)) if kept.term == read.term => Next::Lengthen(place),
        Ok(_) => Next::Again(place),
    }
}

/// How long the place of a dead waiter blocks the places behind it at most, in seconds.
const PLACE_SECONDS: i64 = Timing::PLACE_TTL.as_secs().cast_signed();

/// Steps of one claim: a place, a lease for waiting, one for entering; each anew if something came in
/// between.
const STEPS: usize = 6;

/// Keys that one transaction reads: a member takes 128 operations.
const BATCH: usize = 100;

/// Leases that are kept alive at the same time.
const AT_ONCE: usize = 128;

/// Rounds for leases that are uncertain after a change of the leader, or that were changed by hand.
const RENEW_ROUNDS: usize = 3;

/// How often a key is followed that moves to another lease.
const RELEASE_ROUNDS: usize = 3;

/// How many names are remembered as those of one layout; with more, all are forgotten.
const UNMIXED_MAX: usize = 4096;
