//! What can be seen: reading without writing.

use std::sync::Arc;

use tenure_core::{BackendError, LockName, LockView};
use tenure_ledger::Ledger;
use tokio_postgres::types::Type;

use crate::{
    error::{self, Failure},
    line::Line,
    memory::{moment, since_epoch},
    schema::Table,
    store::Store,
};

impl Store {
    /// The state of one lock.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockView, BackendError> {
        let read = |line: Arc<Line>| async move {
            line.facts().must_be_ours(line.name()).map_err(Failure::Refused)?;
            self.read(&line, name, false).await
        };
        let sight = self.reading(read).await?;
        Ok(sight.ledger.view(name.clone(), moment(sight.now)))
    }

    /// Every lock that is held or waited for and whose name starts with `prefix`.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.reading(|line| async move { self.list_over(&line, prefix).await }).await
    }

    async fn list_over(&self, line: &Line, prefix: &str) -> Result<Vec<LockView>, Failure> {
        line.facts().must_be_ours(line.name()).map_err(Failure::Refused)?;
        if line.facts().table == Table::Missing && line.look().await?.table == Table::Missing {
            return Ok(Vec::new());
        }
        let rows = line.ask(&self.shared().sql.list, &[(&prefix, Type::TEXT)]).await?;
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let mut views = Vec::new();
        for row in rows {
            let (name, state): (String, &str) =
                (row.try_get(0).map_err(unreadable)?, row.try_get(1).map_err(unreadable)?);
            let now = moment(since_epoch(row.try_get(2).map_err(unreadable)?));
            // Somebody else's.
            let Ok(name) = LockName::new(name) else { continue };
            let ledger = Ledger::decode(state);
            let ledger = ledger.map_err(|error| Failure::Refused(error::ledger(line.name(), error)))?;
            views.push(ledger.view(name, now));
        }
        // What is over is free, though nobody has noticed yet.
        views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
        Ok(views)
    }

    /// Reads, once more on a new connection where the first one broke.
    pub(crate) async fn reading<A, F>(&self, read: impl Fn(Arc<Line>) -> F) -> Result<A, BackendError>
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let failure = match read(self.lines.line().await?).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Refused(error)) => return Err(error),
            Err(failure) => failure,
        };
        tracing::debug!(?failure, "asked again");
        let line = self.lines.line().await?;
        read(line.clone()).await.map_err(|failure| failure.into_error(line.name()))
    }
}
