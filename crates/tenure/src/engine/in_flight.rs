//! `InFlight`: claims that were sent, and whose callers no longer wait for them.
//!
//! A claim that was sent may be granted, even if its caller has left. Its release must not arrive before it: it
//! would free nothing, and no process would hold the lock for a whole ttl (L8). So the future of a claim is never
//! dropped. `SentClaim` leaves it to a task, which polls it to its end, and a release of that owner waits for that,
//! over any connection. If the runtime of that task ends first, the outcome is unknown.
//!
//! A claim whose outcome stays unknown may be granted even later, because the server may have buffered it. The
//! release of its owner is repeated until the store has answered one that was sent later than that (L9): a ttl
//! later, a minute at most, and some seconds after the last one that the store did not answer. A server that
//! answers has read by then what it had buffered. One that is granted even later ends with its ttl (L8).

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use tenure_core::{BackendError, BoxFuture, ClaimAnswer, Host, LockName, Moment, Outcome, OwnerId, locked};
use tokio::sync::Notify;

/// How late a claim without an answer may be granted, or get a place, at least: 6 s.
pub(super) const LATE_MIN: Duration = Duration::from_secs(6);
/// The same, at most: 60 s. With a ttl of a day, releases were repeated for a day.
const LATE_MAX: Duration = Duration::from_secs(60);

/// How many owners may be open before those that need no more release are forgotten.
const OPEN_MAX: usize = 1024;

pub(super) type ClaimResult = Result<ClaimAnswer, BackendError>;

/// Owners of claims that may yet be granted without a caller.
#[derive(Default)]
pub(crate) struct InFlight {
    owners: Mutex<HashMap<OwnerId, OwnerClaims>>,
    /// Mostly there are none.
    is_any: AtomicBool,
}

#[derive(Default)]
struct OwnerClaims {
    /// How many claims are polled to their end.
    under_way: usize,
    /// The outcome of one is unknown: it is granted before this moment, or never.
    unknown: Option<Moment>,
    /// How long a grant of such a claim may last.
    life: Duration,
    /// The grant of a claim after its caller had left: a slot of a semaphore has its own name. It ends with its
    /// ttl.
    granted: Option<(LockName, Moment)>,
    /// Notified when none is polled any more.
    settled: Arc<Notify>,
}

/// A claim on its way, owned by a task.
pub(super) struct AbandonedClaim {
    in_flight: Arc<InFlight>,
    host: Arc<dyn Host>,
    owner: OwnerId,
    life: Duration,
    asking: BoxFuture<'static, ClaimResult>,
    is_known: bool,
    is_chosen: bool,
}

impl OwnerClaims {
    fn put_off(&mut self, until: Moment) {
        self.unknown = Some(self.unknown.map_or(until, |known| known.later(until)));
    }
}

impl InFlight {
    fn owners(&self) -> MutexGuard<'_, HashMap<OwnerId, OwnerClaims>> {
        // OK because the map is consistent whenever code that can panic runs.
        locked(&self.owners)
    }

    fn with<A>(&self, owner: OwnerId, change: impl FnOnce(&mut OwnerClaims) -> A) -> A {
        let mut owners = self.owners();
        let open = owners.entry(owner).or_default();
        let answer = change(open);
        if open.under_way == 0 && open.unknown.is_none() && open.granted.is_none() {
            owners.remove(&owner);
        }
        self.is_any.store(!owners.is_empty(), Ordering::Release);
        answer
    }

    fn get<A>(&self, owner: OwnerId, look: impl FnOnce(&OwnerClaims) -> A) -> Option<A> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        self.owners().get(&owner).map(look)
    }

    /// The number of owners whose claims may yet be granted without a caller.
    pub(crate) fn len(&self) -> usize {
        self.owners().len()
    }

    /// A claim of this owner is polled to its end.
    pub(crate) fn is_under_way(&self, owner: OwnerId) -> bool {
        self.get(owner, |open| open.under_way > 0).unwrap_or_default()
    }

    /// Until when a claim of this owner that has no answer any more may be granted.
    pub(crate) fn unknown_until(&self, owner: OwnerId) -> Option<Moment> {
        self.get(owner, |open| open.unknown).flatten()
    }

    /// A claim of this owner may yet be granted.
    pub(crate) fn is_open(&self, owner: OwnerId) -> bool {
        self.get(owner, |_| ()).is_some()
    }

    /// Waits until no claim of this owner is polled any more.
    pub(crate) async fn settled(&self, owner: OwnerId) {
        while let Some(settled) = self.settled_of(owner) {
            let settled = settled.notified();
            tokio::pin!(settled);
            // From here on no notification is missed.
            settled.as_mut().enable();
            if self.is_under_way(owner) {
                settled.await;
            }
        }
    }

    fn settled_of(&self, owner: OwnerId) -> Option<Arc<Notify>> {
        self.get(owner, |open| (open.under_way > 0).then(|| open.settled.clone())).flatten()
    }

    /// The name under which this owner is released.
    pub(crate) fn name_of(&self, owner: OwnerId, name: &LockName) -> LockName {
        let granted = self.get(owner, |open| open.granted.clone()).flatten();
        granted.map_or_else(|| name.clone(), |(granted, _)| granted)
    }

    /// No unknown claim of this owner can be granted any more, or this process is no longer responsible for it.
    pub(crate) fn close(&self, owner: OwnerId) {
        if self.is_open(owner) {
            self.with(owner, |open| (open.unknown, open.granted) = (None, None));
        }
    }

    /// How long a grant may last of a claim of this owner that has no answer any more.
    pub(crate) fn unknown_life(&self, owner: OwnerId) -> Option<Duration> {
        self.get(owner, |open| open.unknown.map(|_| open.life)).flatten()
    }

    /// The outcome of a claim of this life is unknown now.
    pub(super) fn set_unknown(&self, owner: OwnerId, now: Moment, life: Duration) {
        self.with(owner, |open| {
            open.life = open.life.max(life);
            open.put_off(now + life.min(LATE_MAX));
        });
    }

    /// A claim whose outcome is unknown may be granted until then, too.
    pub(super) fn put_off(&self, owner: OwnerId, until: Moment) {
        self.with(owner, |open| open.put_off(until));
    }

    pub(super) fn leave(
        self: &Arc<Self>,
        owner: OwnerId,
        life: Duration,
        is_chosen: bool,
        host: Arc<dyn Host>,
        asking: BoxFuture<'static, ClaimResult>,
    ) -> AbandonedClaim {
        self.forget_passed(host.now());
        self.with(owner, |open| open.under_way += 1);
        AbandonedClaim { in_flight: self.clone(), host, owner, life, asking, is_known: false, is_chosen }
    }

    /// Forgets grants and unknown outcomes whose release was abandoned, because the store had failed for the whole
    /// time.
    fn forget_passed(&self, now: Moment) {
        let mut owners = self.owners();
        if owners.len() < OPEN_MAX {
            return;
        }
        owners.retain(|_, open| {
            let is_open = |until: Moment| now.boot < until.boot;
            let granted = open.granted.as_ref().map(|(_, until)| *until);
            open.under_way > 0 || open.unknown.is_some_and(is_open) || granted.is_some_and(is_open)
        });
    }
}

/// How long a claim is polled after its caller has left, and how late it may be granted.
pub(crate) fn life_of(ttl: Duration) -> Duration {
    ttl.max(LATE_MIN)
}

pub(super) fn is_unknown(answer: &ClaimResult) -> bool {
    matches!(answer, Err(error) if error.outcome() == Outcome::Unknown)
}

impl AbandonedClaim {
    /// Polls it to its end, but no longer than a grant of it may last.
    pub(super) async fn finish(mut self) {
        let over = self.host.sleep_until(self.host.now() + self.life);
        tokio::select! {
            biased;
            answer = &mut self.asking => {
                self.is_known = !is_unknown(&answer);
                if let Ok(ClaimAnswer::Granted(grant)) = answer {
                    let until = self.host.now() + self.life;
                    self.in_flight.with(self.owner, |open| open.granted = Some((grant.name, until)));
                }
            }
            () = over => {}
        }
    }
}

impl Drop for AbandonedClaim {
    /// Runs even if the runtime of its task has ended.
    fn drop(&mut self) {
        if !self.is_known && !self.is_chosen {
            self.in_flight.set_unknown(self.owner, self.host.now(), self.life);
        }
        self.in_flight.with(self.owner, |open| {
            open.under_way -= 1;
            if open.under_way == 0 {
                open.settled.notify_waiters();
            }
        });
    }
}
