//! What a transaction makes sure of before it grants.

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind};

use crate::{
    clock::millis,
    error,
    folder::FolderLock,
    guard::Guard,
    names::Standing,
    schema,
    store::{Haste, Tx},
};

impl Tx<'_> {
    /// Refuses while leases of a file that stood here before may be alive.
    pub(crate) fn must_be_open(&mut self) -> Result<(), BackendError> {
        self.be_sure()?;
        let Some(left) = schema::until_open(self.store.opened(), self.now) else { return Ok(()) };
        let message = format!(
            "the database file or its log was deleted or replaced; nothing is granted for another {left:.1?}, until \
             every lease in the old one has expired",
        );
        Err(error::refused(self.path(), ErrorKind::Unavailable, message).retry_after(left))
    }

    /// Reads again what is remembered of the file, inside and beside it, if it or its log may have been away: another process
    /// may have been the first to open it since.
    fn be_sure(&mut self) -> Result<(), BackendError> {
        if !self.store.opened().names.is_unsure {
            return Ok(());
        }
        let guard = Guard::read(self.path())?;
        let meta = schema::read_meta(self.conn()).map_err(|e| self.failed(e))?;
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        let number = open.names.log_files.number();
        let is_ours = |guard: &Guard| guard.is_of(&open.guard) && guard.knows_log(number);
        if meta.world != open.guard.world || !guard.as_ref().is_none_or(is_ours) {
            return Err(self.must_reopen());
        }
        // If it was removed on purpose, the next grant writes it anew.
        open.guard.max_ttl_ms = guard.map_or(0, |guard| guard.max_ttl_ms);
        (open.opens_us, open.names.is_unsure) = (meta.opens_us, false);
        Ok(())
    }

    fn must_stand(&mut self) -> Result<(), BackendError> {
        let is_ours = self.store.standing()? == Some(Standing::Ours);
        if is_ours { Ok(()) } else { Err(self.must_reopen()) }
    }

    /// The open file is not the one at the path: nothing was done, try again.
    fn must_reopen(&mut self) -> BackendError {
        self.store.stale = true;
        let message = "the database file was replaced; try again";
        let error = error::refused(self.path(), ErrorKind::Throttled, message);
        self.store.jittered(error, Haste::Waiter)
    }

    /// Remembers the longest ttl that is granted, in case the file vanishes. Before the grant is committed.
    pub(crate) fn remember_ttl(&mut self, ttl: Duration) -> Result<(), BackendError> {
        self.be_sure()?;
        if self.store.opened().guard.covers(ttl) {
            return Ok(());
        }
        let ttl_ms = millis(ttl);
        let path = self.path().to_owned();
        // Under it no process remembers another file that has taken the place of this one.
        let _lock = FolderLock::exclusive(&path).map_err(|e| self.store.jittered(e, Haste::Waiter))?;
        self.must_stand()?;
        let remembered = Guard::read(&path)?;
        let host = self.store.host.clone();
        let open = self.store.open.as_mut().expect("BUG: a transaction runs on an open file");
        if remembered.as_ref().is_some_and(|remembered| !remembered.is_of(&open.guard)) {
            return Err(self.must_reopen());
        }
        let guard = remembered.unwrap_or_else(|| Guard { max_ttl_ms: 0, ..open.guard.clone() });
        let guard = Guard { max_ttl_ms: guard.max_ttl_ms.max(ttl_ms), ..guard };
        guard.write(&path, &*host)?;
        // Only what is written is known.
        open.guard = guard;
        // A process that opens a replacement from here on finds this ttl; one that was put there before must be seen.
        self.must_stand()
    }
}
