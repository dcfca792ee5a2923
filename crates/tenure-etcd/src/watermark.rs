//! `Watermark`: the latest revision that this process has seen of its cluster. A cluster that keeps its data never
//! answers with an earlier one.

use std::sync::{Mutex, MutexGuard};

use etcd_client::ResponseHeader;
use tenure_core::{BackendError, locked};

use crate::error;

/// A cluster at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    cluster: u64,
    revision: i64,
}

/// The latest revision that any handle of this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Watermark(Mutex<Option<Seen>>);

impl Watermark {
    /// The watermark before a request is sent: no answer through the quorum may be older.
    pub(crate) fn now(&self) -> Option<Seen> {
        *self.latest()
    }

    /// Judges an answer through the quorum to a request that was sent when this was known.
    ///
    /// # Errors
    /// `Corrupt` if the cluster was put back to an earlier state, where tokens would repeat (L2), or is another one,
    /// which
    /// does not know who holds (L1).
    pub(crate) fn judge(
        &self,
        before: Option<Seen>,
        header: Option<&ResponseHeader>,
    ) -> Result<(), BackendError> {
        let Some(header) = header else { return Ok(()) };
        let seen = Seen { cluster: header.cluster_id(), revision: header.revision() };
        match before {
            Some(before) if before.cluster != seen.cluster => return Err(error::another_cluster()),
            Some(before) if before.revision > seen.revision => return Err(error::put_back()),
            _ => {}
        }
        let mut latest = self.latest();
        let is_later = |latest: Seen| latest.revision < seen.revision;
        if latest.is_none_or(is_later) {
            *latest = Some(seen);
        }
        Ok(())
    }

    fn latest(&self) -> MutexGuard<'_, Option<Seen>> {
        // OK because no code that can panic runs while it is locked.
        locked(&self.0)
    }
}
