//! `Player`: a process that claims, for the cases.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tenure_core::{
    Absent, Audience, BackendError, BackendHandle, Claim, ClaimAnswer, Grant, Label, LockName, Mode, Order,
    Outcome, OwnerId, Priority, ProcessId, Released, Renewal, WaitMode, WakeStream,
};

use super::Arena;
use crate::patience::{becomes_ok, slowness, until};

/// How long the votes of a quorum may be split.
const PATIENCE: Duration = Duration::from_secs(10);
/// The default ttl of claims.
pub const TTL: Duration = Duration::from_secs(10);

static COUNT: AtomicU64 = AtomicU64::new(1);

/// Bits that no other call in this process gets.
pub fn fresh() -> u64 {
    COUNT.fetch_add(1, Ordering::SeqCst)
}

/// One claimant with a handle.
pub struct Player {
    /// Its handle to the store.
    pub backend: BackendHandle,
    /// What it claims; change it before claiming.
    pub claim: Claim,
    /// A waiting process listens: a store may treat a waiter as dead if no hint reaches it.
    _listens: Box<dyn WakeStream>,
}

impl Player {
    /// A claimant of the lock `name`: exclusive, with `WaitMode::Turn`.
    pub fn new(backend: BackendHandle, name: &str) -> Self {
        let process = ProcessId::from_random(fresh().to_be_bytes());
        let label = Arc::new(Label::new("test-host", 4711, "tester", "player"));
        let (name, wait) = (LockName::new(name).expect("BUG: a good name"), WaitMode::Turn);
        let owner = OwnerId::from_random(process, u128::from(fresh()).to_be_bytes());
        let _listens = backend.wakes(process, Audience::Waiters);
        let claim = Claim::new(name, owner, Mode::Exclusive, TTL).with_label(label).with_wait(wait);
        Self { backend, claim, _listens }
    }

    /// The errors of each verb of a lease, where no connection can be made. The verbs are a claim, a claim that
    /// waits, a renewal, a release and an inspection.
    ///
    /// # Panics
    /// If a verb is not refused.
    pub async fn refusals(&self) -> Vec<BackendError> {
        let Claim { name, owner, ttl, .. } = self.claim.clone();
        let (mut tries, token) = (self.claim.clone(), tenure_core::FencingToken::new(1));
        tries.wait = WaitMode::No;
        let grant = Grant::new(name.clone(), owner, token, ttl);
        let errors = [
            self.backend.claim(&tries).await.err(),
            self.backend.claim(&self.claim).await.err(),
            self.backend.renew(&[grant]).await.remove(0).err(),
            self.backend.release(&name, owner).await.err(),
            self.backend.inspect(&name).await.err(),
        ];
        errors.into_iter().map(|error| error.expect("each verb is refused")).collect()
    }

    /// The same with leases of this length.
    #[must_use]
    pub fn lasting(mut self, ttl: Duration) -> Self {
        self.claim.ttl = ttl;
        self
    }

    /// The same as a reader.
    #[must_use]
    pub fn reading(mut self) -> Self {
        self.claim.mode = Mode::READ;
        self
    }

    /// The same with one of `limit` permits.
    #[must_use]
    pub fn slots(mut self, limit: u32) -> Self {
        self.claim.mode = Mode::permit(NonZeroU32::new(limit).expect("a limit"));
        self
    }

    /// The same with several of `limit` permits.
    #[must_use]
    pub fn taking(mut self, permits: u32, limit: u32) -> Self {
        let [limit, permits] = [limit, permits].map(|number| NonZeroU32::new(number).expect("a number"));
        self.claim.mode = Mode::several(limit, permits).expect("no more than there are");
        self
    }

    /// The same in another class.
    #[must_use]
    pub fn classed(mut self, priority: Priority) -> Self {
        self.claim.priority = priority;
        self
    }

    /// The same with another way to wait.
    #[must_use]
    pub fn waiting(mut self, wait: WaitMode) -> Self {
        self.claim.wait = wait;
        self
    }

    /// Claims once. Claims again, as the engine does, if the votes of a quorum were split. Also claims again if a
    /// server on a busy machine did not take the claim.
    pub async fn ask(&self) -> ClaimAnswer {
        let decided = async || match self.backend.claim(&self.claim).await {
            Ok(ClaimAnswer::Split { .. }) => Err("the votes were split".to_owned()),
            Ok(answer) => Ok(answer),
            Err(error) if slowness() > 1 && is_refused_for_now(&error) => Err(error.to_string()),
            Err(error) => panic!("the store answers: {error:?}"),
        };
        becomes_ok("the store decides", PATIENCE, decided).await
    }

    /// Claims once, without a place. True if the lock is busy.
    pub async fn finds_it_busy(self) -> bool {
        matches!(self.waiting(WaitMode::No).ask().await, ClaimAnswer::Busy { .. })
    }

    /// Claims once and expects a grant.
    pub async fn enter(&self) -> Grant {
        match self.ask().await {
            ClaimAnswer::Granted(grant) => grant,
            other => panic!("{} should have been granted: {other:?}", self.claim.owner),
        }
    }

    /// Claims once and expects to be queued, behind `expected` others where there is an order. Returns how long to wait.
    pub async fn queue_behind(&self, expected: usize) -> Duration {
        let expected = if self.backend.promises().order == Order::Fifo { expected } else { 0 };
        match self.ask().await {
            ClaimAnswer::Queued { ahead, retry_after, .. } if ahead == expected => retry_after,
            other => panic!("{} should be queued behind {expected}: {other:?}", self.claim.owner),
        }
    }

    /// Claims once and returns whether the lock was granted.
    pub async fn try_enter(&self) -> bool {
        matches!(self.ask().await, ClaimAnswer::Granted(_))
    }

    /// Waits until its lease, or its first place in the queue, has expired; `left` is the time left. On a busy machine it may
    /// expire late in a line of places, and on a store that allows for the time of its answers.
    pub async fn lapse(&self, arena: &impl Arena, left: Duration) {
        let promises = self.backend.promises();
        arena.pass(left + promises.ttl_grain).await;
        if promises.absent == Absent::WaitedFor || slowness() > 1 {
            let owner = self.claim.owner.to_string();
            let is_over = async || {
                let view = self.backend.inspect(&self.claim.name).await;
                view.is_ok_and(|view| !view.holders.iter().any(|holder| holder.owner == owner))
            };
            until("it is over", promises.ttl_grain, is_over).await;
        }
    }

    /// Renews once.
    pub async fn renew(&self, grant: &Grant) -> Renewal {
        let answers = self.backend.renew(std::slice::from_ref(grant)).await;
        answers.into_iter().next().expect("one answer per grant").expect("the store answers")
    }

    /// Releases the lock, or leaves the queue.
    pub async fn leave(&self) -> Released {
        self.backend.release(&self.claim.name, self.claim.owner).await.expect("the store answers")
    }
}

fn is_refused_for_now(error: &BackendError) -> bool {
    error.kind().is_transient() && error.outcome() == Outcome::NotApplied
}
