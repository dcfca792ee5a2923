//! A verb on a row that this handle wrote last, as a single statement: nothing is read, and there is no transaction
//! around it (decision 0074).

use std::time::Duration;

use tenure_core::{BackendError, LockName, Moment};
use tenure_ledger::{Change, Ledger, LedgerError, Rules};

use crate::{error, schema, sql, store::Store, written::Written};

/// A token that was drawn so long before it was written is not granted: the file may have been put back meanwhile (L2).
const PROMPT: Duration = Duration::from_secs(1);

impl Store {
    /// Runs a verb on the row as this handle wrote it last, and writes the change if the row is still that and nobody
    /// waits. `None` if it has to be asked in a transaction. `grants` is the ttl of the lease that it grants.
    ///
    /// A row says all of its lock but the queue: its counter of tokens, and each lease. The clock is read before
    /// SQLite's write lock is had: a lease that is granted so ends no later in the file for it, and one that is taken
    /// for over is over.
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
            |ttl| !open.names.is_unsure && open.guard.covers(ttl) && schema::until_open(open, now).is_none();
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
        let Some(lock) = open.conn.write_lock() else { return Ok(None) };
        let written = write.execute((name.as_str(), is_busy, now.wall.as_secs(), &after.state, before));
        drop((write, lock));
        match written {
            Ok(0) => Ok(None),
            Ok(_) => {
                self.busy = 0;
                self.last.remember(name, Some(after));
                let is_late = grants.is_some() && (now + PROMPT).is_over(self.now());
                if is_late { Err(error::late(&self.config.path)) } else { Ok(Some(answer)) }
            }
            // The transaction says why, or knows how to wait.
            Err(error) if error::is_refusal(&error) => Ok(None),
            Err(error) => Err(error::at_commit(&self.config.path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tempfile::TempDir;
    use tenure_core::{Bells, Claim, ClaimAnswer, ErrorKind, Outcome};
    use tenure_testkit::{conformance::player::Player, host::PausedHost};

    use super::*;
    use crate::{backend::Sqlite, config::Config, store::Haste};

    struct Stage {
        host: Arc<PausedHost>,
        claim: Claim,
        store: Store,
        _folder: TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (config, host) = (Config::new(folder.path().join("locks.db")), PausedHost::new(1));
            let claim = Player::new(Arc::new(Sqlite::new(config.clone(), host.clone())), "one").claim;
            Self { store: Store::new(config, host.clone(), Bells::default()), host, claim, _folder: folder }
        }

        /// The claim for a lease of `ttl`, while so much time passes between the reading of the clock and the write.
        fn enter(&mut self, ttl: Duration, delay: Duration) -> Result<Option<ClaimAnswer>, BackendError> {
            let (claim, host) = (&self.claim, &self.host);
            let verb = |ledger: &mut Ledger, now, rules: &Rules| {
                host.suspend(delay);
                ledger.claim(now, rules, claim)
            };
            self.store.at_once(&claim.name, Some(ttl), verb)
        }

        fn leave(&mut self) -> bool {
            let owner = self.claim.owner;
            let verb = |ledger: &mut Ledger, now, rules: &Rules| Ok(ledger.release(now, rules, owner));
            self.store.at_once(&self.claim.name, None, verb).unwrap().is_some()
        }

        /// So often that the file is known to be the one at the path.
        fn enter_and_leave(&mut self) {
            for _ in 0..2 {
                self.store.claim(&self.claim, Haste::Waiter).unwrap();
                assert!(self.leave());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_this_handle_wrote_last_is_not_read_again() {
        let mut stage = Stage::new();
        let ttl = stage.claim.ttl;
        assert!(stage.enter(ttl, Duration::ZERO).unwrap().is_none(), "it wrote nothing yet");
        stage.enter_and_leave();
        assert!(matches!(stage.enter(ttl, Duration::ZERO), Ok(Some(ClaimAnswer::Granted(_)))));
        assert!(
            stage.enter(ttl * 2, Duration::ZERO).unwrap().is_none(),
            "longer than any that is remembered"
        );
    }

    /// L2: the file may have been put back since. L9: the owner is there.
    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_drawn_long_before_it_was_written_is_not_granted() {
        let mut stage = Stage::new();
        let ttl = stage.claim.ttl;
        stage.enter_and_leave();
        let error = stage.enter(ttl, PROMPT).unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::TimedOut, Outcome::Unknown), "{error}");
        let granted = stage.store.claim(&stage.claim, Haste::Waiter).unwrap();
        assert!(matches!(granted, ClaimAnswer::Granted(_)), "it asks again, and gets another one");
    }
}
