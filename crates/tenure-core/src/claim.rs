//! What is asked of a backend and what it answers.

use std::{sync::Arc, time::Duration};

use crate::{
    label::Label, mode::Mode, name::LockName, owner::OwnerId, token::FencingToken, view::HolderView,
};

/// A request for a lock by one owner.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which lock.
    pub name: LockName,
    /// Who asks: new for every attempt, the same for every retry of that attempt.
    pub owner: OwnerId,
    /// Alone or together.
    pub mode: Mode,
    /// Length of the lease that is asked for.
    pub ttl: Duration,
    /// Who that is, for people.
    pub label: Arc<Label>,
    /// How many tokens are wanted; at least 1.
    pub block: u32,
    /// What to do if it cannot be granted at once.
    pub wait: Wait,
}

/// What a claim that cannot be granted at once leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Nothing: the answer is [`ClaimAnswer::Busy`].
    No,
    /// A place that is woken but never made holder and that bars nobody (Redlock's nodes, S3.3 g).
    Wake,
    /// A place in the FIFO queue, with hand-off.
    Turn,
}

/// The answer to a claim. Busy is an answer, not an error.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    /// The lock is held by this owner.
    Granted(Grant),
    /// A place was taken or kept; it is a lease of its own and must be kept by asking again.
    Queued {
        /// How many live places are ahead.
        ahead: usize,
        /// Ask again after this long, or when woken.
        retry_after: Duration,
        /// One of those who hold it, for people.
        holder: Option<HolderView>,
    },
    /// Granted in part only, which is being given back: ask again **under a new owner** after this long, so that what
    /// is given back late cannot be taken from the next attempt (H3.4).
    Split {
        /// Ask again after this long.
        retry_after: Duration,
        /// One of those who hold it, for people.
        holder: Option<HolderView>,
    },
    /// Not granted, and nothing was left behind.
    Busy {
        /// When asking again may help.
        retry_after: Duration,
        /// One of those who hold it, for people.
        holder: Option<HolderView>,
    },
}

/// The server's yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which lock.
    pub name: LockName,
    /// To whom.
    pub owner: OwnerId,
    /// The first token of the block, minted in the step that let this owner in.
    pub token: FencingToken,
    /// How many tokens, counting up from `token`: at least 1, at most what was asked for.
    pub block: u32,
    /// The lease the server gave, from when it answered.
    pub ttl: Duration,
}

/// The answer to a renewal of one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// When it was asked, the server counted this owner as a holder, and will for at least the ttl from then.
    Renewed,
    /// This owner does not hold the lock; nothing was changed.
    Gone,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It held the lock or had a place, and has left.
    Released,
    /// It neither held nor waited; nothing was changed.
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
