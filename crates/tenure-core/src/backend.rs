//! The contract of a store: `Backend`, with its requests and answers, and `QuorumNode`, which Redlock needs in
//! addition.

use std::{
    sync::{
        Arc, LazyLock,
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
    ownership::Exposure,
    priority::Priority,
    promises::{Memos, Promises},
    token::FencingToken,
    view::{Adopt, Adoption, Finding, HolderView, LockView, MemoView},
};

/// A shared handle of a store, which can be cloned.
pub type BackendHandle = Arc<dyn Backend>;

/// A store of locks.
///
/// Every verb is **one attempt**: it does not wait for a turn, does not retry, and decides nothing by a local
/// clock. Every verb is idempotent, and changes only what belongs to the given owner. The server's clock decides
/// when a lease ends; a client sends durations, never points in time.
///
/// # Cancel safety
/// Dropping the future of a verb leaves its outcome [`Unknown`](crate::Outcome::Unknown); ask again with the same
/// owner, or release it. A claim is different: poll its future to the end, because a release over another
/// connection may arrive before it. The [`Asker`](crate::Asker) reports that the answer is no longer wanted.
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

    /// Acquires the lock, or takes or keeps a place.
    ///
    /// # Contract
    /// 1. It is granted if it fits with the holders, and no live waiter with a turn is ahead.
    /// 2. An owner that already holds (after a lost reply or a hand-off) is granted again. Its lease is extended to
    ///    the full ttl, with a **new** token. A store that mints when a place is taken
    ///    ([`Minting`](crate::Minting)) returns the same token again.
    /// 3. The token is larger than every token granted before. It is minted in the atomic step that grants the
    ///    lock, or that took the place.
    /// 4. [`WaitMode::No`](crate::WaitMode::No) leaves nothing behind unless it is granted.
    /// 5. A place in the queue is a separate lease. Repeating the claim keeps it; `retry_after` is shorter than
    ///    that lease.
    /// 6. A claim that finds an expired holder grants the lock to the next waiters (hand-off).
    /// 7. [`WaitMode::Wake`](crate::WaitMode::Wake) is for [nodes of a quorum](QuorumNode); others may refuse it as
    ///    [`Unsupported`](ErrorKind::Unsupported).
    // L2, L6, H1.2, H1.3, H1.5.
    async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, BackendError>;

    /// Extends leases by their ttl from now; one answer per grant, in order.
    ///
    /// # Contract
    /// 1. It never shortens and never re-creates a lease. For an owner that does not hold, the answer is
    ///    [`Gone`](Renewal::Gone), and stays so.
    /// 2. It changes nothing of another owner.
    // L4, L5.
    async fn renew(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>>;

    /// Releases the lock, or leaves the queue, and grants to the next waiters (hand-off).
    ///
    /// # Contract
    /// 1. It changes nothing of another owner.
    /// 2. All live waiters at the front that fit together become holders for the claim ttl and are notified. The
    ///    first waiter behind them is notified too.
    /// 3. The caller does not claim the same lock under the same owner again. On a store with several servers, a
    ///    release still on its way to one of them would free a later grant there.
    // L4, H3.4.
    async fn release(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError>;

    /// Sends a hint. To a holder: a client waits, so a holder that keeps an idle lease should release it. To
    /// [observers](OwnerId::of_observers): the lock has changed.
    ///
    /// # Contract
    /// 1. It changes nothing in the store.
    /// 2. The hint may be lost. A store that mints a token for each [place](crate::Minting::Place) sends none.
    async fn tell(&self, _name: &LockName, _whom: Audience, _owner: OwnerId) -> Result<(), BackendError> {
        Ok(())
    }

    /// Stores a memo with the lock and replaces an earlier one. [`inspect`](Self::inspect) returns it.
    ///
    /// # Contract
    /// 1. Only while this owner holds; a waiter that was handed the lock and has not acquired it does not hold.
    ///    Otherwise the answer is [`Gone`](Noted::Gone), and nothing changes.
    /// 2. It does not replace a memo that was written under a larger token: the answer is `Gone` then, too.
    /// 3. Every query after the answer returns the memo, whichever owner holds the lock then, until its time has
    ///    passed by the store's clock. No later query returns it.
    /// 4. It grants, renews and ends no lease, and nothing of it stays in the store indefinitely.
    /// 5. A store that does not [promise](Promises::memo) it refuses as [`Unsupported`](ErrorKind::Unsupported).
    // L4.
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

    /// The memo of a lock, for a decision that rests on it, such as whether a job has run. A view for people has it
    /// from [`inspect`](Self::inspect).
    ///
    /// # Contract
    /// 1. It is the memo at the time of the answer, on the server that stores memos and by its clock. A store of which
    ///    a proxy may send readings to a replica confirms its reading with a write.
    /// 2. It grants, renews and ends no lease.
    // L9.
    async fn memo(&self, name: &LockName) -> Result<Option<MemoView>, BackendError> {
        Ok(self.inspect(name).await?.memo)
    }

    /// Shows the owner of an exclusive lease to transactions of the store, and returns by what they rely on it.
    ///
    /// # Contract
    /// 1. A transaction that has found the owner, and has not ended, is followed by no grant to another owner, and by no
    ///    release or break: these fail as [`Unavailable`](ErrorKind::Unavailable), and a claim waits.
    /// 2. A transaction that looks for the owner after another owner was granted the lock does not find it. Expiry alone
    ///    changes nothing.
    /// 3. It delays no renewal, no place in the queue, and no other lock.
    /// 4. If it is repeated, the transactions of both answers find the owner.
    /// 5. A store whose transactions are single requests may answer without one, even if the lease has ended: the condition
    ///    finds that.
    /// 6. A store whose transactions cannot do that refuses it as [`Unsupported`](ErrorKind::Unsupported), and so does any
    ///    store for a shared lock.
    // L1, L3, L5.
    async fn expose(&self, grant: &Grant) -> Result<Exposure, BackendError> {
        let message =
            "no transaction of this store can rely on the owner of a lock: check the fencing token instead";
        let refused = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message);
        Err(refused.with("backend", self.promises().backend).with("lock", &grant.name))
    }

    /// A new stream of hints for this process.
    ///
    /// # Contract
    /// 1. Hints addressed to owners of `process` arrive on every stream that was made before. Where waiters are
    ///    [asked](crate::WakeSupport::Asked) to repeat their claims, hints to waiters come only from this process.
    /// 2. Correctness never depends on a hint.
    fn wakes(&self, process: ProcessId, audience: Audience) -> Box<dyn WakeStream>;

    /// The state of one lock. A lock that is free, or was never acquired, has no holders and no queue.
    async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError>;

    /// Every lock whose name starts with `prefix` and that has a holder or a waiter, sorted by name.
    async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError>;

    /// Releases the lock by force, and returns its former holders. This overrides exclusion: until they stop, only
    /// the fencing token protects the resource.
    ///
    /// # Contract
    /// 1. It raises the last token above every token granted before, even if the lock was free.
    /// 2. It notifies the former holders, and grants to the next waiters.
    /// 3. The [scope](BreakScope) selects the holders. An owner that does not hold loses nothing, and then nothing changes.
    ///    A waiter that was handed the lock and has not acquired it yet keeps its turn.
    async fn break_lock(&self, name: &LockName, scope: BreakScope) -> Result<Vec<HolderView>, BackendError>;

    /// Waits for the background work of this handle, as long as the store answers. Call it before a program ends.
    ///
    /// # Contract
    /// 1. It starts no work; it only waits.
    async fn drain(&self) {}

    /// Conditions that weaken the promises of this store, and the remedy for each.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError>;

    /// Looks whether the server grants anything at present. One that restarted may wait, in case it lost leases.
    ///
    /// # Errors
    /// Why it grants nothing, and for [how long](BackendError::retry_hint) if that is known.
    async fn may_grant(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Replaces the settings recorded in the store by those of this client, for an operator who changed them on
    /// purpose.
    ///
    /// # Contract
    /// 1. It forgets no lease: every lease that the old settings allowed has expired before one is granted under
    ///    the new ones. It does not wait for that, but returns how long it takes.
    /// 2. A repeated call with the same settings continues and does not begin anew; `wait` is zero when all is
    ///    done.
    /// 3. A larger `max_ttl` is refused as [`Invalid`](ErrorKind::Invalid) unless [`Adopt::LargerMaxTtl`] is asked for.
    /// 4. A store without such a record refuses as [`Unsupported`](ErrorKind::Unsupported).
    // L1.
    async fn adopt(&self, _adopt: Adopt) -> Result<Adoption, BackendError> {
        let message = "this store keeps no record of settings";
        Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message)
            .with("backend", self.promises().backend))
    }
}

/// A backend that can be one node of a quorum.
#[async_trait]
pub trait QuorumNode: Backend {
    /// An identity of this server that lasts as long as it runs. Two nodes with the same identity are one server.
    // H3.5.
    async fn identity(&self) -> Result<String, BackendError>;

    /// Another handle of the same node, as [`Backend::handle`] makes one, but without a request: the node may be down.
    async fn another(&self) -> Result<Self, BackendError>
    where
        Self: Sized;

    /// Raises the token counter of a lock to at least `to`.
    ///
    /// # Contract
    /// 1. Only while this owner holds the lock on this node; otherwise the answer is [`Raised::Gone`] and nothing
    ///    changes.
    /// 2. Every later grant's token is larger than `to`.
    // H3.3.
    async fn raise(&self, name: &LockName, owner: OwnerId, to: FencingToken) -> Result<Raised, BackendError>;
}

/// The request of one owner for one lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The name of the lock.
    pub name: LockName,
    /// The owner of the claim: new for every attempt, the same for every retry of that attempt.
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
    /// Its class in the queue. A waiter that repeats its claim keeps the class of its place. A store that does not
    /// [promise](Promises::classes) classes ignores it: no client sends it another one than the default.
    // L7.
    pub priority: Priority,
    /// Whether an answer is still wanted.
    pub asker: Asker,
    /// The lease may be freed as soon as this process has ended, where the store
    /// [knows that](Promises::free_at_death).
    pub ends_with_process: bool,
}

impl Claim {
    /// A claim for one token that asks once, without a label, for a caller that stays.
    pub fn new(name: LockName, owner: OwnerId, mode: Mode, ttl: Duration) -> Self {
        static UNNAMED: LazyLock<Arc<Label>> = LazyLock::new(Arc::default);
        let label = UNNAMED.clone();
        Self {
            name,
            owner,
            mode,
            ttl,
            label,
            block: 1,
            wait: WaitMode::No,
            priority: Priority::Normal,
            asker: Asker::default(),
            ends_with_process: false,
        }
    }

    /// The same for another lock.
    #[must_use]
    pub fn with_name(self, name: LockName) -> Self {
        Self { name, ..self }
    }

    /// The same of another owner.
    #[must_use]
    pub fn with_owner(self, owner: OwnerId) -> Self {
        Self { owner, ..self }
    }

    /// The same in another mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The same for another length.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// The same with a label of its owner.
    #[must_use]
    pub fn with_label(self, label: Arc<Label>) -> Self {
        Self { label, ..self }
    }

    /// The same with a request for `block` tokens.
    #[must_use]
    pub fn with_block(self, block: u32) -> Self {
        Self { block, ..self }
    }

    /// The same that waits.
    #[must_use]
    pub fn with_wait(self, wait: WaitMode) -> Self {
        Self { wait, ..self }
    }

    /// The same in another class.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// The same for a caller that may leave.
    #[must_use]
    pub fn with_asker(self, asker: Asker) -> Self {
        Self { asker, ..self }
    }

    /// The same for a lease that may be freed as soon as this process has ended.
    #[must_use]
    pub fn ending_with_process(self, ends_with_process: bool) -> Self {
        Self { ends_with_process, ..self }
    }
}

/// Whether the caller of a claim still wants its answer. Clones share this state; by default it always does.
///
/// If the caller has left, the claim is still polled to its end, because it may be granted. A verb of several
/// requests ends before the next one.
#[derive(Clone, Debug, Default)]
pub struct Asker(Option<Arc<AtomicBool>>);

impl Asker {
    /// For a caller that may leave.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// The caller no longer wants an answer.
    pub fn leave(&self) {
        if let Some(is_gone) = &self.0 {
            is_gone.store(true, Ordering::Release);
        }
    }

    /// True once the caller has left.
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|is_gone| is_gone.load(Ordering::Acquire))
    }

    /// Call this before a request of the claim is sent.
    ///
    /// # Errors
    /// `NotApplied`, if the caller has left.
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
    /// A place that is notified, is never made holder by a hand-off, and blocks no other claim (for the nodes of
    /// Redlock).
    Wake,
    /// A place in the FIFO queue, with hand-off.
    Turn,
}

/// The answer to a claim. Busy is an answer, not an error.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    /// The lock is held by this owner.
    Granted(Grant),
    /// The owner has a place in the queue. The place is a separate lease, which the owner keeps by repeating the
    /// claim.
    Queued {
        /// The number of live places ahead.
        ahead: usize,
        /// Repeat the claim after this long, or after a hint.
        retry_after: Duration,
        /// One of the holders, for people.
        holder: Option<HolderView>,
    },
    /// Only some nodes granted it, which is too few; their grants are being released. Claim again **under a new
    /// owner** after this long, so that a late release cannot end the next attempt.
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

/// A lease granted by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The name of the lock.
    pub name: LockName,
    /// The owner that holds it.
    pub owner: OwnerId,
    /// The first fencing token of the block.
    pub token: FencingToken,
    /// The number of tokens, counting up from `token`: at least 1, at most the requested number.
    pub block: u32,
    /// The length of the lease, counted by the server from its answer.
    pub ttl: Duration,
    /// As the [claim](Claim::ends_with_process). A renewal without it makes the lease last for its ttl, even if the
    /// process that acquired it has ended.
    pub ends_with_process: bool,
}

impl Grant {
    /// A lease of this length with a single token.
    pub fn new(name: LockName, owner: OwnerId, token: FencingToken, ttl: Duration) -> Self {
        Self { name, owner, token, block: 1, ttl, ends_with_process: false }
    }

    /// The last fencing token of the block: the store knows the lease by it.
    pub fn last_token(&self) -> FencingToken {
        FencingToken::new(self.token.get() + u64::from(self.block).saturating_sub(1))
    }

    /// The same for a lease that may be freed as soon as this process has ended.
    #[must_use]
    pub fn ending_with_process(self, ends_with_process: bool) -> Self {
        Self { ends_with_process, ..self }
    }

    /// The same for another lock.
    #[must_use]
    pub fn with_name(self, name: LockName) -> Self {
        Self { name, ..self }
    }

    /// The same from another token on.
    #[must_use]
    pub fn with_token(self, token: FencingToken) -> Self {
        Self { token, ..self }
    }

    /// The same with `block` tokens.
    #[must_use]
    pub fn with_block(self, block: u32) -> Self {
        Self { block, ..self }
    }

    /// The same for another length.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }
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
    /// The owner held the lock or had a place; now it has neither.
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
    /// The counter is now at least the requested number.
    Raised,
    /// This owner does not hold the lock here; nothing was changed.
    Gone,
}

/// A short text that a holder stores with its lock, and how long the store keeps it.
///
/// It outlives the lease: for example the address of the holder, or when a job ran last. Only a holder writes a
/// memo, in place of the one before; every client can read it in [`LockView::memo`](crate::LockView::memo). No
/// decision of the lock depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memo {
    text: String,
    kept: Duration,
}

impl Memo {
    /// 1024 bytes: an address, or a line about a run. Store longer texts elsewhere.
    pub const MAX_BYTES: usize = 1024;
    /// 366 days: longer than any interval of a job.
    pub const MAX_KEPT: Duration = Duration::from_secs(366 * 24 * 3600);

    /// A memo that the store keeps for this long after writing it, by its own clock. A fraction of a millisecond is
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

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How long it is kept, in whole milliseconds.
    pub fn kept(&self) -> Duration {
        self.kept
    }
}

/// A memo that is not valid on any store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMemo {
    /// Its text is too long.
    #[error("a memo of {bytes} bytes is too long: {} at most", Memo::MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The time to keep it is zero or too long.
    #[error("a memo is kept for 1 ms to 366 days, not for {kept:?}")]
    Kept {
        /// The time to keep it.
        kept: Duration,
    },
}

/// The answer to a [`note`](crate::Backend::note).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The memo was stored.
    Noted,
    /// This owner does not hold the lock, or a holder with a larger token has stored a memo; nothing was changed.
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
