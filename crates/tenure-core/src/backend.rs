//! The contract of a store: `Backend`, and `QuorumNode` for what Redlock needs in addition.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    claim::{Claim, ClaimAnswer, Grant, Raised, Released, Renewal},
    error::{BackendError, ErrorKind, Outcome},
    memo::{Memo, Noted},
    name::LockName,
    owner::{OwnerId, ProcessId},
    promises::{Memos, Promises},
    token::FencingToken,
    view::{Adoption, Finding, HolderView, LockView},
    wake::{Audience, Wakes},
};

/// A handle of a store that can be cloned and shared.
pub type BackendHandle = Arc<dyn Backend>;

/// A store of locks.
///
/// Every verb is **one attempt**: it does not wait for a turn, does not retry, and decides nothing by a local clock.
/// Every verb is idempotent, and changes only what belongs to the given owner. The server's clock decides when a lease
/// ends; a client sends durations, never points in time.
///
/// # Cancel safety
/// Dropping the future of a verb leaves its outcome [`Unknown`](crate::Outcome::Unknown); ask again with the
/// same owner, or release it. The future of a claim is polled to its end instead: a release that leaves over another connection may
/// come before it. The [`Asker`](crate::Asker) says that the answer is not wanted any more.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this backend promises.
    fn promises(&self) -> Promises;

    /// Another handle of the same store. Its connections belong to the runtime that polls this call.
    ///
    /// # Contract
    /// 1. Both handles see the same locks and wake each other's waiters.
    /// 2. A handle whose connection hangs does not block the other.
    async fn handle(&self) -> Result<BackendHandle, BackendError>;

    /// Takes the lock, or takes or keeps a place.
    ///
    /// # Contract
    /// 1. It is granted if it fits beside the holders, and no live waiter with a turn is ahead.
    /// 2. An owner that already holds (after a lost reply or a hand-off) is granted again: its lease is extended to the
    ///    full ttl, with a **new** token (H1.2, H1.3, H1.5). A store that mints when a place is taken
    ///    ([`Minting`](crate::Minting)) gives the same token again.
    /// 3. The token is larger than every token granted before. It is minted in the atomic step that grants the lock, or
    ///    that took the place (L2).
    /// 4. [`Wait::No`](crate::Wait::No) leaves nothing behind unless it is granted.
    /// 5. A place in the queue is a lease of its own. Repeating the claim keeps it; `retry_after` is shorter than that
    ///    lease.
    /// 6. A claim that finds an expired holder grants the lock to the next waiters (hand-off, L6).
    /// 7. [`Wait::Wake`](crate::Wait::Wake) is for [nodes of a quorum](QuorumNode); others may refuse it as
    ///    [`Unsupported`](ErrorKind::Unsupported).
    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError>;

    /// Extends leases by their ttl from now; one answer per grant, in order.
    ///
    /// # Contract
    /// 1. It never shortens and never re-creates a lease. An owner that does not hold is answered
    ///    [`Gone`](Renewal::Gone), and stays so (L4, L5).
    /// 2. It changes nothing of another owner.
    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>>;

    /// Gives the lock back, or leaves the queue, and grants to the next waiters (hand-off).
    ///
    /// # Contract
    /// 1. It changes nothing of another owner (L4).
    /// 2. All live waiters at the front that fit together become holders for the claim ttl and are woken; the first
    ///    waiter behind them is woken too.
    /// 3. Whoever calls this does not claim the same lock under the same owner again: where a store has several servers, a
    ///    release that is still under way to one of them would free what is granted there (H3.4).
    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError>;

    /// Sends a hint: to a holder that somebody waits, so that one that keeps its lease for a while though it has nothing to do
    /// gives it back; or to [observers](OwnerId::of_observers) that there is something to see.
    ///
    /// # Contract
    /// 1. It changes nothing in the store.
    /// 2. It is a hint, which may be lost. A store that mints a token for each [place](crate::Minting::Place) does nothing.
    async fn tell(&self, _name: &LockName, _whom: Audience, _owner: OwnerId) -> Result<(), BackendError> {
        Ok(())
    }

    /// Leaves a memo beside the lock, in place of the one that is there. [`inspect`](Self::inspect) shows it.
    ///
    /// # Contract
    /// 1. Only while this owner holds; a waiter that was handed the lock and has not entered does not. Otherwise the
    ///    answer is [`Gone`](Noted::Gone), and nothing changes (L4).
    /// 2. It does not replace a memo that was written under a larger token: the answer is `Gone` as well.
    /// 3. Every question that is asked after the answer is shown it, whoever holds the lock by then, until it was kept
    ///    for its time by the store's clock; and no question after that.
    /// 4. It grants, renews and ends no lease, and nothing of it stays in the store for ever.
    /// 5. A store that does not [promise](Promises::memo) it refuses as [`Unsupported`](ErrorKind::Unsupported).
    async fn note(
        &self,
        name: &LockName,
        _owner: OwnerId,
        _token: FencingToken,
        _memo: &Memo,
    ) -> Result<Noted, BackendError> {
        let promises = self.promises();
        let why = if let Memos::None(why) = promises.memo { why } else { "this store keeps no memos" };
        let refused = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, why);
        Err(refused.with("backend", promises.backend).with("lock", name))
    }

    /// A new stream of hints for this process.
    ///
    /// # Contract
    /// 1. Hints addressed to owners of `process` arrive on every stream that was made before.
    /// 2. Correctness never depends on a hint.
    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes>;

    /// The state of one lock. A lock that is free, or was never taken, has no holders and no queue.
    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError>;

    /// Every lock whose name starts with `prefix` and that has a holder or a waiter, sorted by name.
    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError>;

    /// Takes the lock from its holders, and answers who they were. This overrides exclusion: until they stop, only the
    /// fencing token protects.
    ///
    /// # Contract
    /// 1. It raises the fence above every token granted before, even if the lock was free.
    /// 2. It wakes the former holders, and grants to the next waiters.
    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError>;

    /// Waits for the background work of this handle, as long as the store answers. To be called before a program ends.
    ///
    /// # Contract
    /// 1. It starts no work; it only waits.
    async fn drain(&self) {}

    /// What weakens the promises of this store, and what to do about it.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError>;

    /// Replaces the settings recorded in the store by those of this client, for an operator who changed them on
    /// purpose.
    ///
    /// # Contract
    /// 1. It forgets no lease: every lease that the old settings allowed is over before one is granted under the new
    ///    ones (L1). It does not wait for that, but answers how long it takes.
    /// 2. A repeated call with the same settings continues and does not begin anew; `wait` is zero when all is done.
    /// 3. A store without such a record refuses as [`Unsupported`](ErrorKind::Unsupported).
    async fn adopt(&self) -> Result<Adoption, BackendError> {
        let message = "this store keeps no record of settings";
        Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message)
            .with("backend", self.promises().backend))
    }
}

/// A backend that can be one node of a quorum.
#[async_trait]
pub trait QuorumNode: Backend {
    /// An identity of this server that lasts as long as it runs. Two nodes with the same identity are one server
    /// (H3.5).
    async fn identity(&self) -> Result<String, BackendError>;

    /// Another handle of the same node, as [`Backend::handle`] makes one, but without a request: the node may be down.
    async fn another(&self) -> Result<Self, BackendError>
    where
        Self: Sized;

    /// Raises the token counter of a lock to at least `to`.
    ///
    /// # Contract
    /// 1. Only while this owner holds the lock on this node; otherwise the answer is [`Raised::Gone`] and nothing
    ///    changes (H3.3).
    /// 2. Every later grant's token is larger than `to`.
    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError>;
}
