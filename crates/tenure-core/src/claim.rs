//! Requests to a backend, and its answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    error::{BackendError, ErrorKind, Outcome},
    label::Label,
    mode::Mode,
    name::LockName,
    owner::OwnerId,
    token::FencingToken,
    view::HolderView,
};

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
    /// What to do if it cannot be granted at once.
    pub wait: Wait,
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

/// What a claim that cannot be granted at once leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
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

/// The answer to a [`raise`](crate::QuorumNode::raise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The counter is now at least the number asked for.
    Raised,
    /// This owner does not hold the lock here; nothing was changed.
    Gone,
}
