//! Reading a row; and what becomes of rows that nobody reads any more.

use std::sync::Arc;

use tenure_core::LockName;
use tenure_ledger::Ledger;
use tokio_postgres::{Row, types::Type};

use crate::{
    error::{self, Failure},
    line::{Argument, Line},
    memory::since_epoch,
    schema::Table,
    sight::Sight,
    store::Store,
    tail::Tail,
    write::is_long,
};

impl Store {
    /// The row with who stands behind its queue, counted up to a name, and the server's time. Where there is no table, there is no row; `creates`: it is made then.
    pub(crate) async fn read(
        &self,
        line: &Line,
        (name, until): (&LockName, &str),
        creates: bool,
    ) -> Result<Sight, Failure> {
        if line.facts().table == Table::Missing {
            if creates {
                line.create().await?;
            } else if line.look().await?.table == Table::Missing {
                return Ok(Sight {
                    version: 0,
                    state: String::new(),
                    ledger: Ledger::new(0),
                    is_long: false,
                    tail: Tail::default(),
                    now: self.server_time().unwrap_or_default(),
                });
            }
        }
        let sql = &self.shared().sql;
        let arguments: [Argument<'_>; 2] = [(&name.as_str(), Type::TEXT), (&until, Type::TEXT)];
        let has_tail = line.has_tail(name);
        let (statement, count) = if has_tail { (&sql.read_with_tail, 2) } else { (&sql.read, 1) };
        let rows = match line.ask(statement, &arguments[..count]).await {
            // It was dropped: the next look finds that.
            Err(Failure::Missing) => {
                line.look().await?;
                return Err(Failure::Missing);
            }
            answer => answer?,
        };
        let row = rows.first().ok_or(Failure::Overtaken)?;
        let tail = if has_tail { Tail::read(line, row, 3)? } else { Tail::default() };
        Ok(Sight { tail, ..self.sight(line, row, 0)? })
    }

    /// From a row whose columns are, from `at` on, version, state and time.
    pub(crate) fn sight(&self, line: &Line, row: &Row, at: usize) -> Result<Sight, Failure> {
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let version: Option<i64> = row.try_get(at).map_err(unreadable)?;
        let state: Option<String> = row.try_get(at + 1).map_err(unreadable)?;
        let now = since_epoch(row.try_get(at + 2).map_err(unreadable)?);
        let version = version.unwrap_or(0);
        let ledger = state.as_deref().map_or_else(|| Ok(Ledger::new(0)), Ledger::decode);
        let ledger = ledger.map_err(|error| Failure::Refused(error::ledger(line.name(), error)))?;
        self.shared().memory.learn(now, self.shared().host.now());
        let state = state.unwrap_or_default();
        let (is_long, tail) = (is_long(&state), Tail::default());
        Ok(Sight { version, state, ledger, is_long, tail, now })
    }

    /// Deletes free rows that nobody used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it, unless the clock
    /// was set back by more than a day (H6.4).
    pub(crate) fn sweep_now_and_then(&self, line: &Arc<Line>) {
        let mut chance = [0];
        self.shared().host.random(&mut chance);
        if chance[0] >= SWEEP_CHANCE {
            return;
        }
        let (line, shared) = (line.clone(), self.shared().clone());
        self.shared().host.spawn(Box::pin(async move {
            // Who may not delete has rows that stay.
            if let Err(failure) = line.ask(&shared.sql.sweep, &[(&shared.sql.table, Type::TEXT)]).await {
                tracing::debug!(?failure, "nothing was swept");
            }
        }));
    }
}

/// Of 256: one insert in 64 sweeps.
const SWEEP_CHANCE: u8 = 4;
