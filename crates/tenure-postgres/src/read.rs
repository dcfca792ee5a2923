//! Reading rows; and what becomes of those that nobody reads any more.

use std::{sync::Arc, time::SystemTime};

use tenure_cas::{Listed, Look, Overflow, Reading, Until};
use tenure_core::LockName;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{
    clock::since_epoch,
    error::Failure,
    schema::Table,
    session::{Argument, Session},
    sql::READ,
    store::Store,
};

/// Between the name of a lock and the number of a place beside it: no name of a lock has it.
const BESIDE: char = '\u{1}';
/// Behind the name of a lock: no place of it has a name that is greater.
const END: char = '\u{2}';
/// In bytes. With a longer name the row of a place might not fit into the column, and all places are in the row of the lock.
const NAME_MAX: usize = 480;

impl Session {
    /// Whether places of this lock may have rows of their own: one that may not be deleted would stay for ever, and in another order of
    /// names no index would find it.
    fn has_overflow(&self, name: &LockName) -> bool {
        self.facts().takes_places && name.as_str().len() <= NAME_MAX
    }

    /// A column of an answer.
    pub(crate) fn column<'a, T: FromSql<'a>>(&self, row: &'a Row, at: usize) -> Result<T, Failure> {
        row.try_get(at).map_err(|error| Failure::Refused(self.unreadable(error)))
    }

    /// A column that is a time.
    pub(crate) fn time(&self, row: &Row, at: usize) -> Result<std::time::Duration, Failure> {
        Ok(since_epoch(self.column::<SystemTime>(row, at)?))
    }

    /// From a row whose columns are, from `at` on, version, state and time.
    pub(crate) fn reading(&self, row: &Row, at: usize) -> Result<Reading, Failure> {
        let (version, state): (Option<i64>, Option<String>) =
            (self.column(row, at)?, self.column(row, at + 1)?);
        let (version, state) = (version.unwrap_or(0), state.unwrap_or_default());
        Ok(Reading { version, state, now: self.time(row, at + 2)?, overflow: None })
    }

    /// From the columns names, states, own state and number before it.
    fn overflow(&self, row: &Row, at: usize) -> Result<Overflow, Failure> {
        let (keys, states): (Option<Vec<String>>, Option<Vec<String>>) =
            (self.column(row, at)?, self.column(row, at + 1)?);
        let first: Vec<_> = keys.unwrap_or_default().into_iter().zip(states.unwrap_or_default()).collect();
        let ahead = usize::try_from(self.column::<i64>(row, at + 3)?).unwrap_or(usize::MAX);
        Ok(Overflow { is_whole: first.len() < READ, first, own: self.column(row, at + 2)?, ahead })
    }
}

impl Store {
    /// The row with the places beside it, and the server's time. Where there is no table, there is no row.
    pub(crate) async fn read_row(
        &self,
        session: &Session,
        name: &LockName,
        look: &Look,
    ) -> Result<Reading, Failure> {
        if session.facts().table == Table::Missing {
            if look.creates {
                session.create().await?;
            } else {
                let facts = session.look().await?;
                if facts.table == Table::Missing {
                    return Ok(Reading {
                        version: 0,
                        state: String::new(),
                        now: facts.clock,
                        overflow: None,
                    });
                }
            }
        }
        let (sql, key) = (&self.shared().sql, name.as_str());
        if !session.has_overflow(name) {
            let rows = self.asked(session, &sql.read, &[(&key, Type::TEXT)]).await?;
            return session.reading(rows.first().ok_or(Failure::Overtaken)?, 0);
        }
        let until = match &look.until {
            Until::Nothing => String::new(),
            Until::Key(key) => key.clone(),
            Until::End => format!("{name}{END}"),
        };
        let rows =
            self.asked(session, &sql.read_with_tail, &[(&key, Type::TEXT), (&until, Type::TEXT)]).await?;
        let row = rows.first().ok_or(Failure::Overtaken)?;
        Ok(Reading { overflow: Some(session.overflow(row, 3)?), ..session.reading(row, 0)? })
    }

    async fn asked(
        &self,
        session: &Session,
        sql: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>, Failure> {
        match session.ask(sql, arguments).await {
            // The table was dropped: the next look finds that.
            Err(Failure::Missing) => {
                session.look().await?;
                Err(Failure::Missing)
            }
            answer => answer,
        }
    }

    /// The same of many locks, without the places beside them.
    pub(crate) async fn read_rows(
        &self,
        session: &Session,
        names: &[&LockName],
    ) -> Result<Vec<Option<Reading>>, Failure> {
        let keys: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let rows = session.ask(&self.shared().sql.read_many, &[(&keys, Type::TEXT_ARRAY)]).await?;
        let mut readings = vec![None; names.len()];
        for row in rows {
            let key: &str = session.column(&row, 0)?;
            if let Some(at) = keys.iter().position(|known| *known == key) {
                readings[at] = Some(session.reading(&row, 1)?);
            }
        }
        Ok(readings)
    }

    /// Everybody who stands beside the row.
    pub(crate) async fn read_places(
        &self,
        session: &Session,
        name: &LockName,
    ) -> Result<Vec<String>, Failure> {
        let rows = session.ask(&self.shared().sql.tail.places, &[(&name.as_str(), Type::TEXT)]).await?;
        rows.iter().map(|row| session.column(row, 0)).collect()
    }

    /// Every lock that may be held or waited for.
    pub(crate) async fn read_list(&self, session: &Session, prefix: &str) -> Result<Vec<Listed>, Failure> {
        if session.facts().table == Table::Missing && session.look().await?.table == Table::Missing {
            return Ok(Vec::new());
        }
        let rows = session.ask(&self.shared().sql.list, &[(&prefix, Type::TEXT)]).await?;
        let mut list: Vec<Listed> = Vec::new();
        for row in rows {
            let (name, state): (String, String) = (session.column(&row, 0)?, session.column(&row, 1)?);
            if let Some((lock, _)) = name.split_once(BESIDE) {
                if let Some(last) = list.last_mut().filter(|last| last.name.as_str() == lock) {
                    last.places.push(state);
                }
                continue;
            }
            // Somebody else's.
            let Ok(name) = LockName::new(name) else { continue };
            list.push(Listed { name, state, places: Vec::new(), now: session.time(&row, 2)? });
        }
        Ok(list)
    }

    /// Deletes free rows that nobody used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it, unless the clock
    /// was set back by more than a day (H6.4).
    pub(crate) fn sweep_now_and_then(&self, session: &Arc<Session>) {
        let mut chance = [0];
        self.shared().host.random(&mut chance);
        if chance[0] >= SWEEP_CHANCE {
            return;
        }
        let (session, shared) = (session.clone(), self.shared().clone());
        self.shared().host.spawn(Box::pin(async move {
            // Who may not delete has rows that stay.
            if let Err(failure) = session.ask(&shared.sql.sweep, &[(&shared.sql.table, Type::TEXT)]).await {
                tracing::debug!(?failure, "nothing was swept");
            }
        }));
    }
}

/// Of 256: one insert in 64 sweeps.
const SWEEP_CHANCE: u8 = 4;
