//! The contract of a store: `Backend`, with its requests and its answers, and `QuorumNode` for what Redlock needs in addition.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    error::{BackendError, ErrorKind, Outcome},
    label::Label,
    mode::Mode,
    name::LockName,
    notify::{Audience, WakeStream},
    owner::{OwnerId, ProcessId},
    promises::{Memos, Promises},
    token::FencingToken,
    view::{Adoption, Finding, HolderView, LockView},
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
    /// 4. [`WaitMode::No`](crate::WaitMode::No) leaves nothing behind unless it is granted.
    /// 5. A place in the queue is a lease of its own. Repeating the claim keeps it; `retry_after` is shorter than that
    ///    lease.
    /// 6. A claim that finds an expired holder grants the lock to the next waiters (hand-off, L6).
    /// 7. [`WaitMode::Wake`](crate::WaitMode::Wake) is for [nodes of a quorum](QuorumNode); others may refuse it as
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
    /// 3. The caller does not claim the same lock under the same owner again: where a store has several servers, a
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
    /// 3. Every question that is asked after the answer is shown it, whichever owner holds the lock by then, until it was kept
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
    /// 1. Hints addressed to owners of `process` arrive on every stream that was made before. Where waiters are
    ///    [asked](crate::WakeSupport::Asked) to repeat their claims, those to waiters arrive from this process alone.
    /// 2. Correctness never depends on a hint.
    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream>;

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
    /// 3. The [scope](BreakScope) says from which holders. An owner that does not hold loses nothing, and then nothing changes.
    ///    A waiter that was handed the lock and has not entered keeps its turn.
    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError>;

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

/// The request of one owner for one lock.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which lock.
    pub name: LockName,
    /// The owner that asks: new for every attempt, the same for every retry of that attempt.
    pub owner: OwnerId,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The requested length of the lease.
    pub ttl: Duration,
    /// Host, process and command of the owner, for people.
    pub label: Arc<Label>,
    /// The requested number of tokens; at least 1.
    pub block: u32,
    /// What to do if it cannot be granted immediately.
    pub wait: WaitMode,
    /// Whether an answer is still wanted.
    pub asker: Asker,
}

/// Says of the asker of a claim whether it has gone. Clones share it; the default never goes.
///
/// A claim whose asker has gone is polled to its end all the same, since it may be granted: a verb of several requests ends before the
/// next one.
#[derive(Clone, Debug, Default)]
pub struct Asker(Option<Arc<AtomicBool>>);

impl Asker {
    /// One that may go.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// It wants no answer any more.
    pub fn leave(&self) {
        if let Some(is_gone) = &self.0 {
            is_gone.store(true, Ordering::Release);
        }
    }

    /// True once it has gone.
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|is_gone| is_gone.load(Ordering::Acquire))
    }

    /// To be asked before a request of the claim is sent.
    ///
    /// # Errors
    /// `NotApplied`, if it has gone.
    pub fn must_be_there(&self) -> Result<(), BackendError> {
        if self.is_gone() {
            let message = "the claim was cancelled";
            return Err(BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message));
        }
        Ok(())
    }
}

/// What a claim that cannot be granted immediately leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitMode {
    /// Nothing: the answer is [`ClaimAnswer::Busy`].
    No,
    /// A place that is woken, is never made holder by a hand-off, and blocks no other claim (for the nodes of Redlock,
    /// S3.3 g).
    Wake,
    /// A place in the FIFO queue, with hand-off.
    Turn,
}

/// The answer to a claim. Busy is an answer, not an error.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    /// The lock is held by this owner.
    Granted(Grant),
    /// The owner has a place in the queue. The place is a lease of its own, which the owner keeps by repeating the
    /// claim.
    Queued {
        /// The number of live places ahead.
        ahead: usize,
        /// Repeat the claim after this long, or when woken.
        retry_after: Duration,
        /// One of the holders, for people.
        holder: Option<HolderView>,
    },
    /// Only some nodes granted it, which is too few; their grants are being released. Claim again **under a new owner**
    /// after this long, so that a late release cannot end the next attempt (H3.4).
    Split {
        /// Claim again after this long.
        retry_after: Duration,
        /// One of the holders, for people.
        holder: Option<HolderView>,
    },
    /// Not granted; nothing was left behind.
    Busy {
        /// After this long, another attempt may succeed.
        retry_after: Duration,
        /// One of the holders, for people.
        holder: Option<HolderView>,
    },
}

/// A lease that the server gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which lock.
    pub name: LockName,
    /// The owner that holds it.
    pub owner: OwnerId,
    /// The first fencing token of the block.
    pub token: FencingToken,
    /// The number of tokens, counting up from `token`: at least 1, at most the requested number.
    pub block: u32,
    /// The length of the lease, counted by the server from its answer.
    pub ttl: Duration,
}

/// The answer to a renewal of one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The owner held the lock when the server read the request, and holds it for at least the ttl from then.
    Renewed,
    /// This owner does not hold the lock; nothing was changed.
    Gone,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The owner held the lock or had a place; it has neither any more.
    Released,
    /// The owner neither held nor waited; nothing was changed.
    WasGone,
}

/// From which holders a [break](crate::Backend::break_lock) takes a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakScope {
    /// From all that are clients of Tenure. If another client holds the lock, the break is refused as
    /// [`Invalid`](ErrorKind::Invalid) and changes nothing: its key may be data of an application.
    Leases,
    /// From this owner only.
    Owner(OwnerId),
    /// From all, other clients included: their keys are deleted.
    All,
}

/// The answer to a [`raise`](crate::QuorumNode::raise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The counter is now at least the number asked for.
    Raised,
    /// This owner does not hold the lock here; nothing was changed.
    Gone,
}

/// A short text that a holder leaves beside its lock, and how long the store keeps it.
///
/// It outlives the lease: it says where the holder can be reached, or when a job ran last. Only a holder writes one, in
/// place of the one before; everybody reads it, in [`LockView::memo`](crate::LockView::memo). No decision of the lock
/// depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memo {
    text: String,
    kept: Duration,
}

impl Memo {
    /// 1024 bytes: an address, or a line about a run. More belongs into a store of its own.
    pub const MAX_BYTES: usize = 1024;
    /// 366 days: longer than any interval of a job.
    pub const MAX_KEPT: Duration = Duration::from_secs(366 * 24 * 3600);

    /// A memo that is kept for so long, counted by the store from when it writes it. A fraction of a millisecond is
    /// rounded up.
    ///
    /// # Errors
    /// [`InvalidMemo`] for a text of more than [`MAX_BYTES`](Self::MAX_BYTES), and for a time that is zero or more than
    /// [`MAX_KEPT`](Self::MAX_KEPT).
    pub fn new(text: impl Into<String>, kept: Duration) -> Result<Self, InvalidMemo> {
        let text = text.into();
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidMemo::TooLong { bytes: text.len() });
        }
        if kept.is_zero() || kept > Self::MAX_KEPT {
            return Err(InvalidMemo::Kept { kept });
        }
        let millis = u64::try_from(kept.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Ok(Self { text, kept: Duration::from_millis(millis) })
    }

    /// What it says.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How long it is kept, in whole milliseconds.
    pub fn kept(&self) -> Duration {
        self.kept
    }
}

/// A memo that no store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMemo {
    /// Its text is too long.
    #[error("a memo of {bytes} bytes is too long: {} at most", Memo::MAX_BYTES)]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It would be kept for no time at all, or for too long.
    #[error("a memo is kept for 1 ms to 366 days, not for {kept:?}")]
    Kept {
        /// For how long it was to be kept.
        kept: Duration,
    },
}

/// The answer to a [`note`](crate::Backend::note).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The memo is there.
    Noted,
    /// This owner does not hold the lock, or a holder with a larger token has left a memo; nothing was changed.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_has_a_bounded_text_and_a_bounded_time() {
        let second = Duration::from_secs(1);
        assert!(Memo::new("x".repeat(1024), second).is_ok());
        assert_eq!(Memo::new("é".repeat(513), second), Err(InvalidMemo::TooLong { bytes: 1026 }));
        assert_eq!(Memo::new("", Duration::ZERO), Err(InvalidMemo::Kept { kept: Duration::ZERO }));
        assert!(Memo::new("", Memo::MAX_KEPT).is_ok());
        assert!(Memo::new("", Memo::MAX_KEPT + second).is_err());
        assert_eq!(Memo::new("", Duration::from_nanos(1)).unwrap().kept(), Duration::from_millis(1));
    }
}
