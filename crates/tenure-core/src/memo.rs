//! `Memo`: a short text that a holder leaves beside its lock.

use std::time::Duration;

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
    /// [`MemoError`] for a text of more than [`MAX_BYTES`](Self::MAX_BYTES), and for a time that is zero or more than
    /// [`MAX_KEPT`](Self::MAX_KEPT).
    pub fn new(text: impl Into<String>, kept: Duration) -> Result<Self, MemoError> {
        let text = text.into();
        if text.len() > Self::MAX_BYTES {
            return Err(MemoError::TooLong { bytes: text.len() });
        }
        if kept.is_zero() || kept > Self::MAX_KEPT {
            return Err(MemoError::Kept { kept });
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
pub enum MemoError {
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
        assert_eq!(Memo::new("é".repeat(513), second), Err(MemoError::TooLong { bytes: 1026 }));
        assert_eq!(Memo::new("", Duration::ZERO), Err(MemoError::Kept { kept: Duration::ZERO }));
        assert!(Memo::new("", Memo::MAX_KEPT).is_ok());
        assert!(Memo::new("", Memo::MAX_KEPT + second).is_err());
        assert_eq!(Memo::new("", Duration::from_nanos(1)).unwrap().kept(), Duration::from_millis(1));
    }
}
