//! The contract: `Backend`, and `QuorumNode` for what Redlock needs besides.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    claim::{Claim, ClaimAnswer, Grant, Raised, Released, Renewal},
    error::{BackendError, ErrorKind, Outcome},
    name::LockName,
    owner::{OwnerId, ProcessId},
    promises::Promises,
    token::FencingToken,
    view::{Adoption, Finding, HolderView, LockView},
    wake::{Audience, Wakes},
};

/// A handle that can be shared.
pub type BackendHandle = Arc<dyn Backend>;

/// A store of locks.
///
/// Every verb is **one attempt**: it does not sleep for a turn, does not retry and does not ask a local clock to
/// decide. Every verb is idempotent and conditional by owner. Expiry is counted by the server's clock; what we
/// add to it is a duration, never a point in time.
///
/// # Cancel safety
/// Dropping the future of a verb leaves its outcome [`Unknown`](crate::Outcome::Unknown); ask again with the
/// same owner, or release it.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this backend promises.
    fn promises(&self) -> Promises;

    /// Another handle to the same store, with what I/O it needs made on the runtime that polls this call.
    ///
    /// # Contract
    /// 1. Both handles see the same locks and wake each other's waiters.
    /// 2. A handle that is stuck does not stop the other.
    async fn handle(&self) -> Result<BackendHandle, BackendError>;

    /// Takes the lock, or takes or keeps a place.
    ///
    /// # Contract
    /// 1. Granted if the claim fits beside the holders, and nobody live that waits for a turn is ahead.
    /// 2. An owner that already holds (a lost reply, a hand-off) is granted again: extended to the full ttl, with
    ///    a **new** token (H1.2, H1.3, H1.5), or with that of its place where places are let in strictly in the order of
    ///    their tokens ([`Minting`](crate::Minting)).
    /// 3. The token is larger than every token granted before, minted in the atomic step that lets in, or that took the
    ///    place (L2).
    /// 4. [`Wait::No`](crate::Wait::No) leaves no trace unless granted.
    /// 5. A place is a lease of its own, kept by asking again; `retry_after` is shorter than it.
    /// 6. Whoever finds an expiry hands on (L6).
    /// 7. [`Wait::Wake`](crate::Wait::Wake) is for [nodes of a quorum](QuorumNode); others may refuse it as
    ///    [`Unsupported`](ErrorKind::Unsupported).
    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError>;

    /// Extends leases by their ttl from now; one answer per grant, in order.
    ///
    /// # Contract
    /// 1. Never shortens, never re-creates: who does not hold is [`Gone`](Renewal::Gone) and stays so (L4, L5).
    /// 2. Touches nothing that is not this owner's.
    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>>;

    /// Leaves, whether holding or waiting, and hands on.
    ///
    /// # Contract
    /// 1. Touches nothing that is not this owner's (L4).
    /// 2. All leading live waiters that fit become holders for the claim ttl and are woken, and the first one
    ///    behind them is woken too.
    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError>;

    /// A new stream of hints for this process.
    ///
    /// # Contract
    /// 1. Hints addressed to owners of `process` arrive on every stream that was made before.
    /// 2. Correctness never depends on them.
    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn Wakes>;

    /// The state of one lock; without holders and queue if it is free or was never taken.
    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError>;

    /// Every lock that is held or waited for and whose name starts with `prefix`, by name.
    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError>;

    /// Takes the lock from its holders and says who they were. Overrides exclusion: only the token protects then.
    ///
    /// # Contract
    /// 1. Raises the fence above every token granted before, also if nobody holds.
    /// 2. Wakes the robbed, and hands on.
    async fn break_lock(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError>;

    /// Waits until what it does in the background is done, as long as the store answers: before a program ends.
    ///
    /// # Contract
    /// 1. Does nothing that would not be done without it.
    async fn drain(&self) {}

    /// Findings about the server and our assumptions.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError>;

    /// Rewrites the store's record of settings to those of this client, for a person who changed them on purpose.
    ///
    /// # Contract
    /// 1. Forgets no lease: what the old record allowed is over before anything is granted under the new one (L1).
    ///    Does not wait for that, but says how long it takes.
    /// 2. Asked again with the same settings, it goes on and does not begin anew; `wait` is zero once there is
    ///    nothing left to do.
    /// 3. A store that keeps no such record refuses as [`Unsupported`](ErrorKind::Unsupported).
    async fn adopt(&self) -> Result<Adoption, BackendError> {
        let message = "this store keeps no record of settings";
        Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message)
            .with("backend", self.promises().backend))
    }
}

/// A backend that can be one node of a quorum.
#[async_trait]
pub trait QuorumNode: Backend {
    /// What tells this server from every other one, as long as it runs: two nodes with the same are one (H3.5).
    async fn identity(&self) -> Result<String, BackendError>;

    /// Another handle to the same node, as [`Backend::handle`] makes one, but without asking the node for anything: it may
    /// be down.
    async fn another(&self) -> Result<Self, BackendError>
    where
        Self: Sized;

    /// Lifts the token counter of a lock to at least `to`.
    ///
    /// # Contract
    /// 1. Only while this owner holds the lock here; otherwise [`Raised::Gone`] and nothing changes (H3.3).
    /// 2. Every later grant's token is larger than `to`.
    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError>;
}
