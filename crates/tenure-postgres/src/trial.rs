//! Trying the table: a lock is taken, kept and released in a transaction that is rolled back.

use std::{sync::Arc, time::Duration};

use tenure_core::{Claim, Finding, Label, LockName, Mode, OwnerId, ProcessId, Wait};
use tenure_ledger::Ledger;
use tokio_postgres::types::Type;

use crate::{
    diagnose::problem,
    error::Failure,
    line::{Argument, Line},
    memory::moment,
    store::Store,
    verb::{Leaving, Renewing, Verb},
    write::{encoded, window},
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
        let tried = match self.lines.apart().await {
            Ok(line) => {
                let tried = self.try_over(&line).await;
                line.leave();
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

    async fn try_over(&self, line: &Line) -> Result<(), Bad> {
        line.ask("BEGIN", &[]).await?;
        // What would come with the commit comes with each statement.
        line.ask("SET CONSTRAINTS ALL IMMEDIATE", &[]).await?;
        let tried = self.try_verbs(line).await;
        // OK to ignore because a connection that has ended has rolled back too.
        let _ = line.ask("ROLLBACK", &[]).await;
        tried
    }

    async fn try_verbs(&self, line: &Line) -> Result<(), Bad> {
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
        let claim = Claim { name: name.clone(), owner, mode, ttl, label, block: 1, wait };
        let mut row = Row { name: &name, version: 0, state: String::new(), ledger: Ledger::new(0) };
        self.try_verb(line, &mut row, &claim).await?;
        self.try_verb(line, &mut row, &Renewing { owner, ttl: ttl * 2 }).await?;
        self.try_verb(line, &mut row, &Leaving(owner)).await
    }

    /// Runs one verb on the row, and looks at it.
    async fn try_verb<V: Verb>(&self, line: &Line, row: &mut Row<'_>, verb: &V) -> Result<(), Bad> {
        let (rules, sql) = (&self.shared().config.rules, &self.shared().sql);
        let now = moment(self.shared().host.now().wall);
        let change = verb.run(&mut row.ledger, rules, now, Duration::ZERO);
        let _ = change.map_err(|error| Failure::Refused(crate::error::ledger(line.name(), error)))?;
        let (state, is_busy, is_new) = (encoded(&row.ledger, false), !row.ledger.is_free(), row.version == 0);
        let name = row.name.as_str();
        let version = if is_new { 1 } else { row.version };
        let mut arguments: Vec<Argument<'_>> =
            vec![(&name, Type::TEXT), (&version, Type::INT8), (&is_busy, Type::BOOL), (&state, Type::TEXT)];
        let (from, until) = window(None);
        let statement = if is_new {
            &sql.insert
        } else {
            arguments.extend([
                (&row.state as _, Type::TEXT),
                (&from as _, Type::TIMESTAMPTZ),
                (&until as _, Type::TIMESTAMPTZ),
            ]);
            &sql.write.plain
        };
        let written = line.ask(statement, &arguments).await?;
        let is_ours = written.first().is_some_and(|row| row.try_get(1).unwrap_or(false));
        let read = line.ask(&sql.read, &[(&name, Type::TEXT)]).await?;
        let (expected, read) = (if is_new { 1 } else { row.version + 1 }, read.first());
        let is_there = read.is_some_and(|read| {
            read.try_get::<_, Option<i64>>(0).is_ok_and(|version| version == Some(expected))
                && read.try_get::<_, Option<&str>>(1).is_ok_and(|there| there == Some(state.as_str()))
        });
        if !is_ours || !is_there {
            return Err(Bad::Altered);
        }
        (row.version, row.state) = (expected, state);
        Ok(())
    }
}

/// The row that is tried, as it must be.
struct Row<'a> {
    name: &'a LockName,
    version: i64,
    state: String,
    ledger: Ledger,
}
