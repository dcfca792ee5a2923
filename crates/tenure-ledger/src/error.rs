//! `LedgerError`: the two ways in which a ledger refuses.

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
    /// The stored text is not a ledger.
    #[error("the stored state of the lock is not what tenure writes")]
    Unreadable(#[from] serde_json::Error),
}
