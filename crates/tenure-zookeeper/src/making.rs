//! `Making`: a request to make a node, until it is answered.

use std::{mem, sync::Arc};

use tenure_core::OwnerId;

use crate::session::Session;

/// The making of a node. Dropped before it is answered, it is doubtful.
pub(crate) struct Making {
    session: Arc<Session>,
    lock: String,
    owner: OwnerId,
}

impl Making {
    pub(crate) fn of(session: &Arc<Session>, lock: &str, owner: OwnerId) -> Self {
        Self { session: session.clone(), lock: lock.to_owned(), owner }
    }

    /// It is known what became of it.
    pub(crate) fn answered(mut self) {
        self.lock.clear();
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.lock.is_empty() {
            let (lock, now) = (mem::take(&mut self.lock), self.session.host.now());
            self.session.doubts().add(lock, self.owner, now);
        }
    }
}
