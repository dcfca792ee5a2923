//! Standing behind the queue of a lock: the place is made, kept and taken away.

use std::{sync::Arc, time::Duration};

use tenure_core::{BackendError, Claim, LockName, OwnerId};
use tenure_ledger::{Ledger, Place};
use tokio_postgres::{Row, types::Type};

use crate::{
    error::{self, Failure},
    line::{Argument, Line},
    marks::Mark,
    memory::moment,
    sql::Patience,
    store::Store,
    verb::crowded,
    write::{Draft, Tried, ascii},
};

impl Store {
    /// For whoever is not to have a place in the row of the lock: it was taken out of the draft.
    pub(crate) async fn stand_behind<A: Send + Sync>(
        &self,
        line: &Arc<Line>,
        claim: &Claim,
        (own, place): (Option<Place>, Place),
        mut draft: Draft<A>,
    ) -> Result<Tried<A>, Failure> {
        // Somebody's turn has come, and who asks has noticed: that is written first (L6).
        if !draft.change.wakes.is_empty() {
            draft.patience = Patience::None;
            let written = self.write(line, &claim.name, draft).await?;
            return Ok(if let Tried::Done(_) = written { Tried::Overtaken } else { written });
        }
        let is_there = self.stand(line, claim, (own, place, draft.now), &draft.ledger).await?;
        Ok(if is_there { Tried::Done(draft.change.answer) } else { Tried::Overtaken })
    }

    /// Puts the place behind the queue, or keeps the one that is there. False if that has moved up meanwhile.
    async fn stand(
        &self,
        line: &Line,
        claim: &Claim,
        (own, place, now): (Option<Place>, Place, Duration),
        ledger: &Ledger,
    ) -> Result<bool, Failure> {
        let shared = self.shared();
        let Some(own) = own else {
            return self.stand_at_the_end(line, claim, &place).await;
        };
        let rules = crowded(&shared.config.rules, ledger.waiting());
        if !own.is_over(moment(now + rules.retry_max * 3 / 2)) {
            return Ok(true);
        }
        let mark = shared.marks.mark(&claim.name, claim.owner);
        let state = ascii(own.lasting_as(&place).encode());
        let kept =
            line.write(&shared.sql.tail.keep, &[(&mark.key, Type::TEXT), (&state, Type::TEXT)]).await?;
        must_be_ours(line, kept.first(), 0)?;
        Ok(!kept.is_empty())
    }

    async fn stand_at_the_end(&self, line: &Line, claim: &Claim, place: &Place) -> Result<bool, Failure> {
        self.must_take_writes(line).await?;
        let (shared, name) = (self.shared(), claim.name.as_str());
        let (owner, state) = (claim.owner.to_string(), ascii(place.encode()));
        let is_doubted = shared.marks.doubt(&claim.name, claim.owner);
        let arguments: [Argument<'_>; 4] =
            [(&name, Type::TEXT), (&owner, Type::TEXT), (&state, Type::TEXT), (&is_doubted, Type::BOOL)];
        let rows = line.write(&shared.sql.tail.stand, &arguments).await?;
        must_be_ours(line, rows.first(), 1)?;
        let Some(row) = rows.first() else { return Ok(false) };
        let key: String = row.try_get(0).map_err(|error| Failure::Refused(line.unreadable(error)))?;
        shared.marks.stands(&claim.name, claim.owner, key);
        Ok(true)
    }

    /// Takes a place that is behind the queue away. True if it was there.
    pub(crate) async fn withdraw(
        &self,
        name: &LockName,
        owner: OwnerId,
        mark: &Mark,
    ) -> Result<bool, BackendError> {
        let line = self.lines.line().await?;
        let (name, owner) = (name.as_str(), owner.to_string());
        let arguments: [Argument<'_>; 4] = [
            (&name, Type::TEXT),
            (&owner, Type::TEXT),
            (&mark.key, Type::TEXT),
            (&mark.is_doubted, Type::BOOL),
        ];
        match line.write(&self.shared().sql.tail.withdraw, &arguments).await {
            Ok(rows) => Ok(!rows.is_empty()),
            // Somebody moved it up.
            Err(Failure::Overtaken | Failure::Missing) => Ok(false),
            Err(Failure::Broken(error)) => Err(error.of_unknown_outcome()),
            Err(Failure::Refused(error)) => Err(error),
        }
    }
}

/// # Errors
/// If a trigger has changed what was written.
fn must_be_ours(line: &Line, row: Option<&Row>, at: usize) -> Result<(), Failure> {
    let Some(row) = row else { return Ok(()) };
    let is_ours: bool = row.try_get(at).map_err(|error| Failure::Refused(line.unreadable(error)))?;
    if is_ours { Ok(()) } else { Err(Failure::Refused(error::altered(line.name()))) }
}
