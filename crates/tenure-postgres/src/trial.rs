//! Trying the table: a lock is taken, kept and released in a transaction that is rolled back.

use std::{sync::Arc, time::Duration};

use tenure_cas::{Look, Patience, Write, encode};
use tenure_core::{Claim, Finding, Label, LockName, Mode, Moment, OwnerId, ProcessId, Wait};
use tenure_ledger::{Ledger, LedgerError, Rules};

use crate::{
    diagnose::problem,
    error::{self, Failure},
    session::Session,
    store::Store,
};

/// Why the table is no good, or that it could not be tried.
enum Bad {
    Altered,
    Failed(Failure),
}

impl From<Failure> for Bad {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Store {
    /// Writes a lock of a name that nobody else has, and reads it again after each write, as a claim, a renewal and a release do it,
    /// with their statements. Nobody else sees it, and nothing of it stays, whatever rights the role has.
    pub(crate) async fn try_out(&self) -> Option<Finding> {
        let tried = match self.sessions.apart().await {
            Ok(session) => {
                let tried = self.try_over(&session).await;
                session.leave();
                tried
            }
            Err(error) => Err(Bad::Failed(Failure::Refused(error))),
        };
        let what = match tried {
            Ok(()) => return None,
            Err(Bad::Altered) => "a lock was tried, and the row is not what was written to it".to_owned(),
            Err(Bad::Failed(failure)) => {
                let error = failure.into_error(&self.shared().config.place_name());
                let source =
                    std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
                format!("a lock was tried, and could not be taken: {error}{source}")
            }
        };
        Some(problem(what, "look at the triggers, rules, policies, columns and checks of the table"))
    }

    async fn try_over(&self, session: &Session) -> Result<(), Bad> {
        session.ask("BEGIN", &[]).await?;
        // What would come with the commit comes with each statement.
        session.ask("SET CONSTRAINTS ALL IMMEDIATE", &[]).await?;
        let tried = self.try_verbs(session).await;
        // OK to ignore because a connection that has ended has rolled back too.
        let _ = session.ask("ROLLBACK", &[]).await;
        tried
    }

    async fn try_verbs(&self, session: &Session) -> Result<(), Bad> {
        let host = &self.shared().host;
        let mut bits = [0; 24];
        host.random(&mut bits);
        let (process, rest) = bits.split_at(8);
        let process = ProcessId::from_random(process.try_into().expect("BUG: eight bytes"));
        let owner = OwnerId::from_random(process, rest.try_into().expect("BUG: sixteen bytes"));
        let name =
            LockName::new(format!("tenure-doctor/{owner}")).expect("BUG: a name without control characters");
        let (label, ttl) = (Arc::new(Label::new("doctor", 0, "", "tenure doctor")), Duration::from_secs(10));
        let (mode, wait) = (Mode::Exclusive, Wait::Turn);
        let claim =
            Claim { name: name.clone(), owner, mode, ttl, label, block: 1, wait, asker: Default::default() };
        let ledger = Ledger::new(0);
        let state = encode(&ledger, false);
        let made = self.make_row(session, &name, &state).await?;
        let made = made.filter(|made| made.is_ours).ok_or(Bad::Altered)?;
        let mut row = Row { name: &name, version: made.version, state, ledger };
        self.try_verb(session, &mut row, |ledger, rules, now| ledger.claim(now, rules, &claim).map(drop))
            .await?;
        let renew = |ledger: &mut Ledger, rules: &Rules, now| {
            drop(ledger.renew(now, rules, owner, ttl * 2));
            Ok(())
        };
        self.try_verb(session, &mut row, renew).await?;
        let release = |ledger: &mut Ledger, rules: &Rules, now| {
            drop(ledger.release(now, rules, owner));
            Ok(())
        };
        self.try_verb(session, &mut row, release).await
    }

    /// Runs one verb on the row, and looks at it.
    async fn try_verb(
        &self,
        session: &Session,
        row: &mut Row<'_>,
        verb: impl FnOnce(&mut Ledger, &Rules, Moment) -> Result<(), LedgerError>,
    ) -> Result<(), Bad> {
        let wall = self.shared().host.now().wall;
        verb(&mut row.ledger, &self.shared().config.rules, Moment { boot: wall, wall })
            .map_err(|error| Failure::Refused(error::ledger(session.name(), error)))?;
        let state = encode(&row.ledger, false);
        let write = Write {
            on: (row.version, &row.state),
            state: &state,
            is_busy: !row.ledger.is_free(),
            within: (Duration::ZERO, FAR),
            patience: Patience::Any,
            hints: &[],
            gone: &[],
            is_last: false,
        };
        let written = self.send(session, row.name, &write).await?;
        let is_ours = written.first().is_some_and(|row| row.try_get(1).unwrap_or(false));
        let read = self.read_row(session, row.name, &Look::default()).await?;
        if !is_ours || (read.version, &read.state) != (row.version + 1, &state) {
            return Err(Bad::Altered);
        }
        (row.version, row.state) = (row.version + 1, state);
        Ok(())
    }
}

/// 2^33 s: the year 2242.
const FAR: Duration = Duration::from_secs(1 << 33);

/// The row that is tried, as it must be.
struct Row<'a> {
    name: &'a LockName,
    version: i64,
    state: String,
    ledger: Ledger,
}
