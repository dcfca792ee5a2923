//! `Making`: a request to make a node, until it is answered.

use std::{mem, sync::Arc};

use tenure_core::OwnerId;

use crate::session::Session;

/// The making of a node. It is in doubt until it is answered.
pub(crate) struct Making {
    session: Arc<Session>,
    lock: String,
    owner: OwnerId,
    is_answered: bool,
    /// Another one, of which nobody knows what became, is in doubt as well.
    is_second: bool,
}

impl Making {
    /// Before it is sent: whoever does not poll it may be too late with its doubts.
    pub(crate) fn of(session: &Arc<Session>, lock: &str, owner: OwnerId) -> Self {
        let is_first = session.doubts().add(lock.to_owned(), owner, session.host.now());
        let session = session.clone();
        Self { session, lock: lock.to_owned(), owner, is_answered: false, is_second: !is_first }
    }

    /// It is known what became of it.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let (lock, now) = (mem::take(&mut self.lock), self.session.host.now());
        let mut doubts = self.session.doubts();
        if !self.is_answered {
            doubts.give_up(lock, self.owner, now);
        } else if !self.is_second {
            doubts.remove(lock, self.owner);
        }
    }
}
