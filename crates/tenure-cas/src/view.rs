//! What can be seen: reading without writing.

use tenure_core::{BackendError, LockName, LockView};
use tenure_ledger::{Ledger, Place};

use crate::{
    cell::{Cell, Failure, Listed, Look, Purpose, Reading, Trouble},
    locks::Locks,
    memory::moment,
    snapshot::Beside,
    text::{decode, with_places},
};

impl<C: Cell> Locks<C> {
    /// The state of one lock.
    pub(crate) async fn look_at(&self, name: &LockName) -> Result<LockView, BackendError> {
        self.looking(|over| async move {
            let reading = self.cell.read(&over, name, &Look::default()).await?;
            let Reading { state, now, overflow, .. } = reading;
            let ledger = if state.is_empty() { Ok(Ledger::new(0)) } else { decode(&state) };
            let ledger = ledger.map_err(|error| self.unreadable(error))?;
            let places = match overflow.map(|overflow| Beside::of(overflow).whole()) {
                Some(None) => places(self.cell.places(&over, name).await?),
                Some(Some(all)) => all,
                None => Vec::new(),
            };
            Ok(with_places(ledger, places).view(name.clone(), moment(now)))
        })
        .await
    }

    /// Every lock that is held or waited for and whose name starts with `prefix`.
    pub(crate) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        self.looking(|over| async move {
            let mut views = Vec::new();
            for Listed { name, state, places: beside, now } in self.cell.list(&over, prefix).await? {
                let ledger = decode(&state).map_err(|error| self.unreadable(error))?;
                views.push(with_places(ledger, places(beside)).view(name, moment(now)));
            }
            // What is over is free, though nobody has noticed yet.
            views.retain(|view| !(view.holders.is_empty() && view.queue.is_empty()));
            Ok(views)
        })
        .await
    }

    pub(crate) fn unreadable(&self, error: tenure_ledger::LedgerError) -> Failure {
        Failure::Refused(self.cell.error(Trouble::Ledger(error)))
    }

    /// Reads, once more on a new connection where the first one broke.
    async fn looking<A, F>(&self, look: impl Fn(C::Connection) -> F) -> Result<A, BackendError>
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let failure = match look(self.cell.connect(Purpose::Use).await?).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Refused(error)) => return Err(error),
            Err(failure) => failure,
        };
        tracing::debug!(?failure, "asked again");
        look(self.cell.connect(Purpose::Use).await?).await.map_err(|failure| self.failed(failure))
    }

    /// What is said of a failure that is not asked again.
    pub(crate) fn failed(&self, failure: Failure) -> BackendError {
        match failure {
            Failure::Overtaken => self.cell.error(Trouble::Overtaken),
            Failure::Locked => self.cell.error(Trouble::Locked),
            Failure::Broken(error) | Failure::Refused(error) => error,
        }
    }
}

/// Leaves out what is none.
fn places(texts: Vec<String>) -> Vec<Place> {
    texts.iter().filter_map(|text| Place::from_text(text).ok()).collect()
}
