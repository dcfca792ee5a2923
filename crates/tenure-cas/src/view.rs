//! What can be seen: reading without writing.

use std::sync::Arc;

use tenure_core::{BackendError, LockName, LockView, Moment};
use tenure_ledger::{Ledger, Place, Unseen};
use tokio_postgres::{Row, types::Type};

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
            let mut sight = self.read(&line, (name, ""), false).await?;
            let behind = match std::mem::take(&mut sight.tail).whole() {
                Some(places) => places,
                None => self.read_tail(&line, name).await?,
            };
            Ok(with_tail(sight.ledger, behind).view(name.clone(), moment(sight.now)))
        };
        self.reading(read).await
    }

    /// Everybody who stands behind the queue.
    async fn read_tail(&self, line: &Line, name: &LockName) -> Result<Vec<Place>, Failure> {
        let rows = line.ask(&self.shared().sql.tail.places, &[(&name.as_str(), Type::TEXT)]).await?;
        rows.iter().filter_map(|row| place(line, row, 0).transpose()).collect()
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
        let mut seen: Vec<(LockName, Ledger, Moment)> = Vec::new();
        for row in rows {
            let (name, state): (String, &str) =
                (row.try_get(0).map_err(unreadable)?, row.try_get(1).map_err(unreadable)?);
            let now = moment(since_epoch(row.try_get(2).map_err(unreadable)?));
            if let Some((base, _)) = name.split_once(BEHIND) {
                if let Some((_, ledger, _)) = seen.last_mut().filter(|(last, ..)| last.as_str() == base) {
                    *ledger = with_tail(std::mem::take(ledger), place(line, &row, 1)?);
                }
                continue;
            }
            // Somebody else's.
            let Ok(name) = LockName::new(name) else { continue };
            let ledger = Ledger::decode(state);
            let ledger = ledger.map_err(|error| Failure::Refused(error::ledger(line.name(), error)))?;
            seen.push((name, ledger, now));
        }
        let mut views: Vec<LockView> =
            seen.into_iter().map(|(name, ledger, now)| ledger.view(name, now)).collect();
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

/// Between the name of a lock and the number of a place behind its queue.
const BEHIND: char = '\u{1}';

/// With those who stand behind its queue in it.
fn with_tail(mut ledger: Ledger, behind: impl IntoIterator<Item = Place>) -> Ledger {
    let mut places = ledger.take_queue();
    for place in behind {
        let is_known = places.iter().any(|known| known.owner() == place.owner());
        if !is_known && !ledger.knows(place.owner()) {
            places.push_back(place);
        }
    }
    ledger.with_queue(places, Unseen::default())
}

/// None if it is something else.
fn place(line: &Line, row: &Row, at: usize) -> Result<Option<Place>, Failure> {
    let text: &str = row.try_get(at).map_err(|error| Failure::Refused(line.unreadable(error)))?;
    Ok(Place::from_text(text).ok())
}
