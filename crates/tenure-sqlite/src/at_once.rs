//! A verb on a row that this process wrote last, as a single statement: nothing is read, and there is no transaction
//! around it (decision 0074).

use std::time::Duration;

use tenure_core::{BackendError, ErrorKind, LockName, Moment};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

use crate::{error, schema, sql, store::Store, written::Written};

impl Store {
    /// Runs a verb on the row as this process wrote it last, and writes the change if the row is still that and nobody
    /// waits. `None` if it cannot be done so; then nothing was done. `grants` is the ttl of the lease that it grants.
    ///
    /// It comes to the same as a transaction. A row says all of its lock but the queue: its counter of tokens, and each
    /// lease. The clock is read before SQLite's write lock is had: a lease that is granted so ends no later in the file
    /// for it, and one that is taken for over is over.
    pub(crate) fn at_once<A>(
        &mut self,
        name: &LockName,
        grants: Option<Duration>,
        verb: impl Fn(&mut Ledger, Moment, &Rules) -> Result<Change<A>, LedgerError>,
    ) -> Result<Option<A>, BackendError> {
        let Some(Written { mut ledger, state: before }) = self.last.take(name) else { return Ok(None) };
        if !self.reach(false)? {
            return Ok(None);
        }
        let now = self.now();
        let open = self.opened();
        let may_grant =
            |ttl| !open.is_unsure && open.guard.covers(ttl) && schema::until_open(open, now).is_none();
        if !grants.is_none_or(may_grant) || !open.conn.is_autocommit() {
            return Ok(None);
        }
        let done = verb(&mut ledger, now, &self.config.rules);
        let Ok(Change { answer, wakes, changed: true }) = done else { return Ok(None) };
        if !wakes.is_empty() || ledger.waiting() > 0 {
            return Ok(None);
        }
        let is_busy = !ledger.is_free();
        let after = Written::new(ledger);
        let Ok(mut write) = open.conn.prepare_cached(sql::WRITE_LOCK_AT_ONCE) else { return Ok(None) };
        let written = write.execute((name.as_str(), is_busy, now.wall.as_secs(), &after.state, before));
        drop(write);
        match written.map_err(|e| error::at_commit(&self.config.path, e)) {
            Ok(0) => Ok(None),
            Ok(_) => {
                self.last.remember(name, after);
                Ok(Some(answer))
            }
            // Nothing was done, and a transaction knows how to wait.
            Err(error) if error.kind() == ErrorKind::Throttled => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Bells, ClaimAnswer};
    use tenure_testkit::{conformance::player::Player, host::PausedHost};

    use super::*;
    use crate::{backend::Sqlite, config::Config, store::Haste};

    #[tokio::test(start_paused = true)]
    async fn what_this_process_wrote_last_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (config, host) = (Config::new(folder.path().join("locks.db")), PausedHost::new(1));
        let claim = Player::new(Arc::new(Sqlite::new(config.clone(), host.clone())), "one").claim;
        let mut store = Store::new(config, host, Bells::default());
        let enter = |ledger: &mut Ledger, now, rules: &Rules| ledger.claim(now, rules, &claim);
        let leave = |ledger: &mut Ledger, now, rules: &Rules| Ok(ledger.release(now, rules, claim.owner));
        assert!(
            store.at_once(&claim.name, Some(claim.ttl), enter).unwrap().is_none(),
            "it wrote nothing yet"
        );
        for _ in 0..2 {
            store.claim(&claim, Haste::Waiter).unwrap();
            assert!(store.at_once(&claim.name, None, leave).unwrap().is_some());
        }
        let entered = store.at_once(&claim.name, Some(claim.ttl), enter).unwrap();
        assert!(matches!(entered, Some(ClaimAnswer::Granted(_))));
        assert!(
            store.at_once(&claim.name, Some(claim.ttl * 2), enter).unwrap().is_none(),
            "it was never remembered"
        );
    }
}
