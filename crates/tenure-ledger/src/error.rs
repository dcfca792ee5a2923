//! `LedgerError`: why a ledger refuses a verb.

use tenure_core::ErrorKind;

/// Why a ledger refused a verb.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The queue is full; nothing was changed.
    #[error("the queue of this lock is full: {waiting} owners wait already; try again later")]
    QueueFull {
        /// The number of waiters.
        waiting: usize,
    },
    /// The counter of fencing tokens is at [`FencingToken::MAX`](tenure_core::FencingToken::MAX); nothing was changed.
    #[error(
        "the counter of fencing tokens is at its maximum, 2^53 - 1: a wrong clock or another program has set it; \
         nothing is granted"
    )]
    TokensSpent,
    /// The stored text is not a ledger.
    #[error("the stored state of the lock is damaged, or another program wrote it")]
    Unreadable(#[from] serde_json::Error),
}

impl LedgerError {
    /// What it is to the one that asked: a full queue may have room later, all else is for a person.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::QueueFull { .. } => ErrorKind::Unavailable,
            Self::TokensSpent | Self::Unreadable(_) => ErrorKind::Corrupt,
        }
    }
}
