//! Writing rows, each on top of the one that it was made from.

use std::time::Duration;

use tenure_cas::{Made, NewPlace, Newcomer, OldPlace, Patience, Reading, Stored, Write};
use tenure_core::{Hint, LockName};
use tokio_postgres::{Row, types::Type};

use crate::{
    clock::window,
    error::{self, Failure},
    hint,
    session::{Argument, Session},
    sql,
    store::Store,
};

impl Store {
    /// Makes the row of a lock if there is none.
    pub(crate) async fn make_row(
        &self,
        session: &Session,
        name: &LockName,
        state: &str,
    ) -> Result<Option<Made>, Failure> {
        self.must_take_writes(session).await?;
        let arguments: [Argument<'_>; 2] = [(&name.as_str(), Type::TEXT), (&state, Type::TEXT)];
        let rows = session.write(&self.shared().sql.make, &arguments).await?;
        let made = |row: &Row| {
            let (version, Stored { at, is_ours }) = (session.column(row, 0)?, stored(session, row, 1)?);
            Ok(Made { version, at, is_ours })
        };
        rows.first().map(made).transpose()
    }

    /// Writes the row of a lock if it is as it was.
    pub(crate) async fn write_row(
        &self,
        session: &Session,
        name: &LockName,
        write: &Write<'_>,
    ) -> Result<Option<Stored>, Failure> {
        self.must_take_writes(session).await?;
        let rows = self.send(session, name, write).await?;
        rows.first().map(|row| stored(session, row, 0)).transpose()
    }

    /// The statement that fits.
    pub(crate) async fn send(
        &self,
        session: &Session,
        name: &LockName,
        write: &Write<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let (sql, key) = (&self.shared().sql, name.as_str());
        let (from, until) = window(write.within);
        let (version, before) = write.on;
        let arguments: [Argument<'_>; PLAIN] = [
            (&key, Type::TEXT),
            (&version, Type::INT8),
            (&write.is_busy, Type::BOOL),
            (&write.state, Type::TEXT),
            (&before, Type::TEXT),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
        ];
        let statements = match write.patience {
            Patience::Any => &sql.write,
            Patience::None => &sql.write_unlocked,
            Patience::Brief => &sql.write_briefly,
        };
        let is_plain = write.gone.is_empty() && !write.is_last;
        if is_plain && write.hints.is_empty() {
            return session.write(&statements.plain, &arguments).await;
        }
        let said = |hint: &Hint| (hint::channel(hint.owner.process()), hint::text(hint));
        let (channels, hints): (Vec<String>, Vec<String>) = write.hints.iter().map(said).unzip();
        let statement = if is_plain { &statements.telling } else { &statements.moving };
        let nobody: Vec<String> = Vec::new();
        let mut told = arguments.to_vec();
        told.extend([(&channels as _, Type::TEXT_ARRAY), (&hints as _, Type::TEXT_ARRAY)]);
        if !is_plain {
            told.extend([(&write.gone as _, Type::TEXT_ARRAY), (&write.is_last as _, Type::BOOL)]);
        }
        let answer = session.write(statement, &told).await;
        if channels.is_empty() || !answer.as_ref().is_err_and(error::is_without_hints) {
            return answer;
        }
        // Whoever is not told asks by itself, later.
        (told[PLAIN].0, told[PLAIN + 1].0) = (&nobody, &nobody);
        session.write(statement, &told).await
    }

    /// Tells another process something, and writes nothing.
    pub(crate) async fn tell_process(&self, session: &Session, hint: &Hint) -> Result<(), Failure> {
        let (channel, text) = (hint::channel(hint.owner.process()), hint::text(hint));
        let arguments: [Argument<'_>; 2] = [(&channel, Type::TEXT), (&text, Type::TEXT)];
        session.ask(sql::TELL, &arguments).await.map(drop)
    }

    /// Many at once, each on its own; none waits for anybody.
    pub(crate) async fn write_rows(
        &self,
        session: &Session,
        writes: &[(&LockName, Write<'_>)],
    ) -> Result<Vec<Option<Stored>>, Failure> {
        let mut stored_rows = vec![None; writes.len()];
        self.must_take_writes(session).await?;
        let names: Vec<&str> = writes.iter().map(|(name, _)| name.as_str()).collect();
        // None is no write.
        let Some((_, Write { within, .. })) = writes.first() else { return Ok(stored_rows) };
        let on = || writes.iter().map(|(_, write)| write.on);
        let versions: Vec<i64> = on().map(|(version, _)| version).collect();
        let before: Vec<&str> = on().map(|(_, before)| before).collect();
        let busy: Vec<bool> = writes.iter().map(|(_, write)| write.is_busy).collect();
        let states: Vec<&str> = writes.iter().map(|(_, write)| write.state).collect();
        let (from, until) = window(*within);
        let arguments: [Argument<'_>; 7] = [
            (&names, Type::TEXT_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&busy, Type::BOOL_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&before, Type::TEXT_ARRAY),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
        ];
        for row in session.write(&self.shared().sql.write_many, &arguments).await? {
            let name: &str = session.column(&row, 0)?;
            if let Some(at) = names.iter().position(|known| *known == name) {
                stored_rows[at] = Some(stored(session, &row, 1)?);
            }
        }
        Ok(stored_rows)
    }

    /// Puts a place into the row of a lock; answers the row as it is then.
    pub(crate) async fn enqueue_in_row(
        &self,
        session: &Session,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, Failure> {
        self.must_take_writes(session).await?;
        let most = i64::try_from(place.most).unwrap_or(i64::MAX);
        let (_, until) = window((Duration::ZERO, place.until));
        let arguments: [Argument<'_>; 7] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.state, Type::TEXT),
            (&place.long, Type::TEXT),
            (&place.each, Type::TEXT),
            (&most, Type::INT8),
            (&until, Type::TIMESTAMPTZ),
        ];
        let rows = session.write(&self.shared().sql.enqueue, &arguments).await?;
        must_be_ours(session, rows.first(), 3)?;
        rows.first().map(|row| session.reading(row, 0)).transpose()
    }

    /// Puts a place at the end of the tail; answers the name of its row.
    pub(crate) async fn append_row(
        &self,
        session: &Session,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, Failure> {
        self.must_take_writes(session).await?;
        let arguments: [Argument<'_>; 5] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.state, Type::TEXT),
            (&place.may_be_there, Type::BOOL),
            (&place.behind, Type::TEXT),
        ];
        let rows = session.write(&self.shared().sql.tail.stand, &arguments).await?;
        must_be_ours(session, rows.first(), 1)?;
        rows.first().map(|row| session.column(row, 0)).transpose()
    }

    pub(crate) async fn keep_row(&self, session: &Session, key: &str, state: &str) -> Result<bool, Failure> {
        let arguments: [Argument<'_>; 2] = [(&key, Type::TEXT), (&state, Type::TEXT)];
        let kept = session.write(&self.shared().sql.tail.keep, &arguments).await?;
        must_be_ours(session, kept.first(), 0)?;
        Ok(!kept.is_empty())
    }

    pub(crate) async fn remove_row(
        &self,
        session: &Session,
        name: &LockName,
        place: &OldPlace<'_>,
    ) -> Result<bool, Failure> {
        let arguments: [Argument<'_>; 4] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.key, Type::TEXT),
            (&place.may_have_another, Type::BOOL),
        ];
        Ok(!session.write(&self.shared().sql.tail.withdraw, &arguments).await?.is_empty())
    }

    async fn must_take_writes(&self, session: &Session) -> Result<(), Failure> {
        if session.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become a primary under an open connection.
        let facts = session.look().await?;
        facts.must_take_writes(session.name()).map_err(Failure::Refused)
    }
}

/// From the columns time, and whether the row is what was written.
fn stored(session: &Session, row: &Row, at: usize) -> Result<Stored, Failure> {
    Ok(Stored { at: session.time(row, at)?, is_ours: session.column(row, at + 1)? })
}

/// # Errors
/// If a trigger has changed what was written.
fn must_be_ours(session: &Session, row: Option<&Row>, at: usize) -> Result<(), Failure> {
    let Some(row) = row else { return Ok(()) };
    if session.column(row, at)? { Ok(()) } else { Err(Failure::Refused(error::altered(session.name()))) }
}

/// Arguments of a write that tells nobody.
const PLAIN: usize = 7;
