//! `LedgerError`: the ways in which a ledger refuses.

/// Why a ledger refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The queue is at its bound; nothing was changed.
    #[error("{waiting} owners wait for this lock already; the queue takes no more")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// No token is left: the counter is at [`FencingToken::MAX`](tenure_core::FencingToken::MAX); nothing was changed.
    #[error(
        "the counter of fencing tokens is at its end, 2^53 - 1, where only a wrong clock or a foreign hand can have put \
         it; nothing is granted"
    )]
    TokensSpent,
    /// The stored text is not a ledger.
    #[error("the stored state of the lock is not what tenure writes")]
    Unreadable(#[from] serde_json::Error),
}
