//! The verb `claim`: takes a place in the queue, keeps it, and takes the lock when its turn has come.

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use tenure_core::{BackendError, Claim, ClaimAnswer, Grant, HolderView, Outcome, Timing, Wait};

use crate::{
    backend::Etcd,
    error,
    keys::{Value, folder, key},
    lease::Purpose,
    owners::KeyAt,
    queue::{Place, Queue, token},
    requests::Change,
    view,
    wake::Awaited,
};

/// How long the place of a dead waiter blocks the places behind it at most, in seconds.
const PLACE_SECONDS: i64 = Timing::PLACE_TTL.as_secs().cast_signed();

/// Steps of one claim: a place, a lease for waiting, one for entering; each anew if something came in between.
const STEPS: usize = 6;

/// One claim on its way.
struct Asking<'a> {
    etcd: &'a Etcd,
    claim: &'a Claim,
    folder: String,
    key: Vec<u8>,
    /// The ttl in the server's seconds, rounded up: its lease ends no sooner than ours.
    seconds: i64,
    patience: Duration,
}

/// The next step: the key goes onto a lease for this purpose, from this state.
struct Step {
    purpose: Purpose,
    /// The modify revision of the key; 0: there is none.
    from: i64,
    /// A lease for this purpose, asked for in this claim, that the key has never been on.
    unused: Option<i64>,
    /// A lease of another process that the key was on.
    left: Option<i64>,
}

impl Step {
    fn new(purpose: Purpose, from: i64) -> Self {
        Self { purpose, from, unused: None, left: None }
    }
}

impl Etcd {
    pub(crate) async fn claim_once(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError> {
        let folder = folder(&self.config().prefix, &claim.name);
        let key = key(&folder, claim.owner);
        let (seconds, patience) = (whole_seconds(claim.ttl), self.members.patience(claim.ttl));
        let asking = Asking { etcd: self, claim, folder, key, seconds, patience };
        match claim.wait {
            Wait::Wake => Err(error::no_turnless_place()),
            Wait::No => asking.ask_in_passing().await,
            Wait::Turn => match self.shared.owners.key_at(claim.owner) {
                // What was done before stays done, whatever fails now (L9).
                Some(key_at) => asking.ask_again(key_at).await.map_err(BackendError::of_unknown_outcome),
                None => asking.arrive().await,
            },
        }
    }
}

impl Asking<'_> {
    /// Reads first: a claim that does not fit leaves nothing behind.
    async fn ask_in_passing(&self) -> Result<ClaimAnswer, BackendError> {
        let queue = self.etcd.members.queue(&self.folder, self.patience).await?;
        if queue.find(self.claim.owner).is_none() && !queue.has_room_for(self.claim.mode) {
            return self.busy(&queue).await;
        }
        self.arrive().await
    }

    /// A place was taken before: keeps it, and looks whether its turn has come.
    async fn ask_again(&self, key_at: KeyAt) -> Result<ClaimAnswer, BackendError> {
        let members = &self.etcd.members;
        let kept = members.keep_place(key_at.lease, self.patience);
        let (kept, queue) = join(kept, members.queue(&self.folder, self.patience)).await;
        let (kept, queue) = (kept?, queue?);
        let at = queue.find(self.claim.owner).filter(|&at| queue.places[at].created == key_at.created);
        match at {
            Some(at) if at < queue.leading() => {
                self.settle(Step::new(Purpose::Ttl, queue.places[at].modified)).await
            }
            Some(at) if kept && queue.places[at].lease == key_at.lease => {
                Ok(self.queued(&queue, at, true).await)
            }
            _ => self.arrive().await,
        }
    }

    /// Takes a place in the queue, unless there is one. Where others wait, it will wait too: it begins with the lease
    /// that it
    /// would need then.
    async fn arrive(&self) -> Result<ClaimAnswer, BackendError> {
        let is_contended =
            self.has_place_lease() && self.etcd.shared.owners.contended.is_contended(&self.claim.name);
        let purpose = if is_contended { Purpose::Place } else { Purpose::Ttl };
        self.settle(Step::new(purpose, 0)).await
    }

    /// Step by step, until its key is where it belongs: on the lease of a place while it waits, on that of the ttl to
    /// hold.
    async fn settle(&self, mut step: Step) -> Result<ClaimAnswer, BackendError> {
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
                // Something is in the store by now (L9).
                Err(error) => return Err(error.of_unknown_outcome()),
            }
        }
        Err(error::unsettled(&self.etcd.members.place()))
    }

    /// A lease without a key must not make that other process believe that its release ends something.
    async fn end_left(&self, step: &Step) -> Result<(), BackendError> {
        match step.left {
            Some(lease) => self.etcd.members.revoke(lease, self.patience).await.map(drop),
            None => Ok(()),
        }
    }

    /// A lease, and the key on it, if nothing has come in between; and the queue as it was then. That read alone says
    /// whether it
    /// holds: a lease may end while its owner waits (hazard 47, etcd #11456).
    async fn take(&self, step: &mut Step) -> Result<Option<ClaimAnswer>, BackendError> {
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
            // Its place has.
            step.from = 0;
            return Ok(None);
        };
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

    /// Its lease was not asked for in this process, as far as is remembered.
    fn is_strange(&self, place: &Place) -> bool {
        let known = self.etcd.shared.owners.get(self.claim.owner);
        known.is_none_or(|known| !known.leases.contains(&place.lease))
    }

    /// The answer about its place; `None` if its key is not on the lease that it should be on.
    async fn look(
        &self,
        queue: &Queue,
        at: usize,
        purpose: Purpose,
        lease: i64,
    ) -> Result<Option<ClaimAnswer>, BackendError> {
        let (place, holds) = (&queue.places[at], at < queue.leading());
        if !holds && self.claim.wait == Wait::No {
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
    fn purpose(&self, queue: &Queue, at: usize) -> Purpose {
        if at >= queue.leading() && self.has_place_lease() { Purpose::Place } else { Purpose::Ttl }
    }

    /// The key was certainly not written. If the lease is ended as well, nothing was applied (L9).
    async fn undo(&self, step: &Step, error: BackendError) -> BackendError {
        let Some(lease) = step.unused.filter(|_| error.outcome() == Outcome::NotApplied) else {
            return error;
        };
        if self.etcd.members.revoke(lease, self.patience).await.is_err() {
            return error.of_unknown_outcome();
        }
        self.etcd.shared.owners.forget_lease(self.claim.owner, lease);
        error
    }

    /// It does not wait, and leaves nothing behind.
    async fn leave_line(&self, place: &Place) -> Result<(), BackendError> {
        let owners = &self.etcd.shared.owners;
        let mut leases = owners.get(self.claim.owner).unwrap_or_default().leases;
        leases.retain(|lease| *lease != place.lease);
        leases.push(place.lease);
        try_join_all(leases.iter().map(|lease| self.etcd.members.revoke(*lease, self.patience))).await?;
        owners.forget(self.claim.owner);
        Ok(())
    }

    async fn lease(&self, purpose: Purpose) -> Result<i64, BackendError> {
        let seconds = match purpose {
            Purpose::Place => PLACE_SECONDS,
            Purpose::Ttl => self.seconds,
        };
        self.etcd.new_lease(self.claim.owner, seconds, self.patience).await
    }

    async fn write(&self, step: &Step, lease: i64) -> Result<Option<Queue>, BackendError> {
        let (members, waits) = (&self.etcd.members, step.purpose == Purpose::Place);
        let value = Value::of(self.claim, members.host.now().wall, lease, waits).write();
        let change =
            Change { folder: &self.folder, key: &self.key, modified: step.from, value: &value, lease };
        members.change(&change, self.patience).await
    }

    /// A place has a lease of its own where that of the ttl lasts longer.
    fn has_place_lease(&self) -> bool {
        self.seconds > PLACE_SECONDS && self.claim.wait == Wait::Turn
    }

    fn granted(&self, place: &Place, revision: i64) -> ClaimAnswer {
        let Claim { name, owner, ttl, .. } = self.claim.clone();
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.etcd.shared.owners.saw_key(owner, key_at);
        self.etcd.watching.0.listen(owner, Awaited::end_of(self.key.clone()), revision + 1);
        ClaimAnswer::Granted(Grant { name, owner, token: token(place.created), block: 1, ttl })
    }

    async fn queued(&self, queue: &Queue, at: usize, again: bool) -> ClaimAnswer {
        let place = &queue.places[at];
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.etcd.shared.owners.saw_key(self.claim.owner, key_at);
        if let Some(awaited) = Awaited::by(queue, at) {
            self.etcd.watching.0.listen(self.claim.owner, awaited, queue.revision + 1);
        }
        let seconds = if self.has_place_lease() { PLACE_SECONDS } else { self.seconds };
        let place_ttl = Duration::from_secs(seconds.unsigned_abs());
        // How long it still lasts is said to those who have waited for a while: it costs a request.
        let holder = self.first_holder(queue, again).await;
        ClaimAnswer::Queued {
            ahead: at - queue.leading(),
            retry_after: Timing::RETRY_MAX.min(place_ttl / 3),
            holder,
        }
    }

    async fn busy(&self, queue: &Queue) -> Result<ClaimAnswer, BackendError> {
        let holder = self.first_holder(queue, true).await;
        let left = holder.as_ref().and_then(|holder| holder.expires_in).unwrap_or(Timing::RETRY_MAX);
        Ok(ClaimAnswer::Busy {
            retry_after: left.clamp(Duration::from_millis(100), Timing::RETRY_MAX),
            holder,
        })
    }

    async fn first_holder(&self, queue: &Queue, with_time_left: bool) -> Option<HolderView> {
        let first = queue.holders().first()?;
        // It is for people: who holds is worth knowing without it.
        let left = match with_time_left {
            true => self.etcd.members.time_left(first.lease, self.patience).await.ok().flatten(),
            false => None,
        };
        Some(view::holder(first, left))
    }
}

/// At least 1: etcd counts in seconds.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).max(1)
}
