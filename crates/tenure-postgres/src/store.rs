//! `RowStore`: a lock is a row. Does with statements what `tenure-cas` requires of a cell; has the connections and
//! hints of one handle.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use tenure_cas::{
    BESIDE, Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, END, Listed, Locks,
    NewCell, NewPlace, Newcomer, OldPlace, Overflow, Patience, PlacesBeside, ReadRequest, Until, VerbError,
    WriteAnswer, WrittenCell, listed, promises, slot_row, stop_row,
};
use tenure_client::Channels;
use tenure_core::{
    Audience, Backend, BackendError, Finding, Forward, Hint, Host, LockName, Moment, Notifications,
    Ownership, ProcessId, Promises, Restart, SqlOwnership, WakeEvent, WakeStream, WakeSupport, locked,
};
use tokio_postgres::{Row, types::Type};

use crate::{
    config::{Config, Listen},
    diagnose::examine,
    error::{self, WORDS},
    schema::LockTable,
    session::{Argument, Session, Sessions, Shared, channel, payload},
    sql::{NOTIFY, PLACES, READ, quoted, relies},
};

/// A handle to the locks in a table of a PostgreSQL database; the first request connects. The verbs are those of a lock
/// in a cell: see `tenure-cas`.
pub fn backend(config: Config, host: Arc<dyn Host>) -> impl Backend {
    let rules = config.rules;
    let store = RowStore::new(Arc::new(Shared::new(config, host.clone())));
    Locks::new(store, host, rules)
}

/// The state of one handle.
pub(crate) struct RowStore {
    pub(crate) sessions: Sessions,
    /// Used instead of `sessions`: the connection over which a lock is tried in a transaction.
    trial: Option<Arc<Session>>,
    channels: Arc<Channels>,
    /// The connections for hints, if they are separate.
    hints: Option<Sessions>,
    /// When listening over them failed last.
    deaf_since: Mutex<Option<Moment>>,
}

#[async_trait]
impl Cell for RowStore {
    type Connection = Arc<Session>;

    fn promises(&self) -> Promises {
        let mut promises = promises("postgres");
        promises.restart = Restart::Survives;
        // A standby for which commits do not wait may lack the last writes.
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "all clients of the database";
        promises.chosen_owner = true;
        promises.wake = WakeSupport::Pushed;
        promises.places = Some(8);
        promises
    }

    async fn connect(&self, purpose: ConnectionPurpose) -> Result<Connected<Arc<Session>>, BackendError> {
        if let Some(session) = &self.trial {
            return Ok(Connected { over: session.clone(), is_notified: true });
        }
        let (over, is_notified) = match purpose {
            ConnectionPurpose::Wait => self.listening().await?,
            ConnectionPurpose::Use | ConnectionPurpose::Keep => (self.sessions.session().await?, true),
        };
        if let Err(error) = over.facts().must_be_one_table(over.name()) {
            // The next connection may have another `search_path`.
            over.leave();
            return Err(error);
        }
        if purpose != ConnectionPurpose::Keep {
            over.facts().must_be_ours(over.name())?;
        }
        Ok(Connected { over, is_notified })
    }

    async fn read(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        look: &ReadRequest,
    ) -> Result<CellReading, CellError> {
        self.read_row(session, name, look).await
    }

    async fn read_many(
        &self,
        session: &Arc<Session>,
        names: &[&LockName],
    ) -> Result<Vec<Option<CellReading>>, CellError> {
        let keys: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let rows = session.ask(&session.sql().read_many, &[(&keys, Type::TEXT_ARRAY)]).await?;
        let mut readings = vec![None; names.len()];
        for row in rows {
            let key: &str = session.column(&row, 0)?;
            if let Some(at) = keys.iter().position(|known| *known == key) {
                readings[at] = Some(reading(session, &row, 1)?);
            }
        }
        Ok(readings)
    }

    async fn make(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        state: &str,
    ) -> Result<Option<NewCell>, CellError> {
        let made = self.make_row(session, name, state).await?;
        // A trial is rolled back, and its role need not have the right to delete.
        if made.is_some() && self.trial.is_none() {
            self.sweep_now_and_then(session);
        }
        Ok(made)
    }

    async fn write(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<WriteAnswer, CellError> {
        self.must_take_writes(session).await?;
        let rows = self.send(session, name, write).await?;
        match rows.first() {
            Some(row) => answered(session, row, 0, write),
            None => Ok(WriteAnswer::Changed(None)),
        }
    }

    async fn enqueue(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        self.must_take_writes(session).await?;
        let most = i64::try_from(place.most).unwrap_or(i64::MAX);
        let (from, until) = window(place.within);
        let arguments: [Argument<'_>; 8] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.state, Type::TEXT),
            (&place.long, Type::TEXT),
            (&place.each, Type::TEXT),
            (&most, Type::INT8),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
        ];
        let rows = session.write(&session.sql().enqueue, &arguments).await?;
        must_be_ours(session, rows.first(), 3)?;
        rows.first().map(|row| reading(session, row, 0)).transpose()
    }

    async fn write_many(
        &self,
        session: &Arc<Session>,
        writes: &[(&LockName, CellWrite<'_>)],
    ) -> Result<Vec<WriteAnswer>, CellError> {
        let mut answers = vec![WriteAnswer::Changed(None); writes.len()];
        self.must_take_writes(session).await?;
        let names: Vec<&str> = writes.iter().map(|(name, _)| name.as_str()).collect();
        // Without writes there is nothing to send.
        let Some((_, CellWrite { within, .. })) = writes.first() else { return Ok(answers) };
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
        for row in session.write(&session.sql().write_many, &arguments).await? {
            let name: &str = session.column(&row, 0)?;
            if let Some(at) = names.iter().position(|known| *known == name) {
                answers[at] = answered(session, &row, 1, &writes[at].1)?;
            }
        }
        Ok(answers)
    }

    async fn ownership(
        &self,
        session: &Arc<Session>,
        row: &str,
        proof: &str,
        rest: Duration,
    ) -> Result<Ownership, CellError> {
        let table = &session.sql().table;
        let literal = relies(table, (&quoted(row), &quoted(proof)), rest);
        let statement = relies(table, ("$1", "$2"), rest);
        Ok(Ownership::Sql(SqlOwnership::new(statement, (row, proof), literal)))
    }

    async fn stop_relying(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &CellWrite<'_>,
        text: &str,
    ) -> Result<(), CellError> {
        let Some(shown) = write.shown else { return Ok(()) };
        let (key, row) = (name.as_str(), stop_row(name, shown.slot));
        let ((version, before), (from, until)) = (write.on, window(write.within));
        let arguments: [Argument<'_>; 7] = [
            (&key, Type::TEXT),
            (&version, Type::INT8),
            (&before, Type::TEXT),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
            (&row, Type::TEXT),
            (&text, Type::TEXT),
        ];
        session.ask(&session.sql().stop_relying, &arguments).await.map(drop)
    }

    async fn relying(&self, session: &Arc<Session>) -> String {
        session.relying(Duration::ZERO).await
    }

    async fn list(&self, session: &Arc<Session>, prefix: &str) -> Result<Vec<Listed>, CellError> {
        if session.facts().table == LockTable::Missing && !session.has_table().await? {
            return Ok(Vec::new());
        }
        let rows = session.ask(&session.sql().list, &[(&prefix, Type::TEXT)]).await?;
        let row = |row| Ok((session.column(row, 0)?, session.column(row, 1)?, session.time(row, 2)?));
        Ok(listed(rows.iter().map(row).collect::<Result<Vec<_>, CellError>>()?))
    }

    fn beside(&self) -> Option<&dyn PlacesBeside<Arc<Session>>> {
        Some(self)
    }

    fn error(&self, trouble: VerbError) -> BackendError {
        WORDS.verb(&self.shared().config.place_name(), trouble)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let (host, rules) = (&self.shared().host, self.shared().config.rules);
        let over = |session| Locks::new(self.over(session), host.clone(), rules);
        examine(&self.sessions, self.hint_sessions(), over).await
    }

    async fn prepare(&self) -> Result<Duration, BackendError> {
        let session = self.sessions.session().await?;
        let prepared = async {
            session.create().await?;
            Ok(opens(&session).await?.unwrap_or_default())
        };
        prepared.await.map_err(|failure| WORDS.settled(session.name(), failure))
    }

    async fn notify(&self, session: &Arc<Session>, hint: Hint) -> Result<(), CellError> {
        let (channel, text) = (channel(hint.owner.process()), payload(&hint));
        let arguments: [Argument<'_>; 2] = [(&channel, Type::TEXT), (&text, Type::TEXT)];
        session.ask(NOTIFY, &arguments).await?;
        Ok(())
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.shared().notifier.reaches(hint.audience, hint.owner)
    }

    fn deliver(&self, hint: Hint) {
        self.channels.notifier.deliver(hint);
    }

    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        Box::new(RowHints::new(self.clone(), process, audience))
    }
}

#[async_trait]
impl PlacesBeside<Arc<Session>> for RowStore {
    async fn put(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, CellError> {
        self.must_take_writes(session).await?;
        let (sql, (from, until)) = (session.sql(), window(place.within));
        if let Some(key) = place.key {
            let arguments: [Argument<'_>; 4] = [
                (&key, Type::TEXT),
                (&place.state, Type::TEXT),
                (&from, Type::TIMESTAMPTZ),
                (&until, Type::TIMESTAMPTZ),
            ];
            let kept = session.write(&sql.tail.keep, &arguments).await?;
            must_be_ours(session, kept.first(), 0)?;
            return Ok((!kept.is_empty()).then(|| key.to_owned()));
        }
        let arguments: [Argument<'_>; 8] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.state, Type::TEXT),
            (&place.may_be_there, Type::BOOL),
            (&place.behind, Type::TEXT),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
            (&place.class, Type::TEXT),
        ];
        let rows = session.write(&sql.tail.stand, &arguments).await?;
        must_be_ours(session, rows.first(), 1)?;
        rows.first().map(|row| session.column(row, 0)).transpose()
    }

    async fn remove(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &OldPlace<'_>,
    ) -> Result<bool, CellError> {
        let arguments: [Argument<'_>; 4] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.key, Type::TEXT),
            (&place.may_have_another, Type::BOOL),
        ];
        Ok(!session.write(&session.sql().tail.withdraw, &arguments).await?.is_empty())
    }

    async fn all(&self, session: &Arc<Session>, name: &LockName) -> Result<Vec<String>, CellError> {
        let rows = session.ask(&session.sql().tail.places, &[(&name.as_str(), Type::TEXT)]).await?;
        rows.iter().map(|row| session.column(row, 0)).collect()
    }
}

impl Clone for RowStore {
    fn clone(&self) -> Self {
        Self::new(self.shared().clone())
    }
}

impl RowStore {
    fn new(shared: Arc<Shared>) -> Self {
        let channels = Arc::new(Channels::new(shared.notifier.clone()));
        let hints = match &shared.config.listen {
            Listen::At(config) => {
                Some(Sessions::new(shared.clone(), channels.clone(), Arc::new((**config).clone())))
            }
            Listen::Same | Listen::Off => None,
        };
        let sessions = Sessions::new(shared.clone(), channels.clone(), shared.config.clone());
        Self { sessions, trial: None, channels, hints, deaf_since: Mutex::default() }
    }

    /// A store that sends all requests over this connection.
    pub(crate) fn over(&self, session: Arc<Session>) -> Self {
        Self { trial: Some(session), ..self.clone() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.sessions.shared
    }

    /// The connections for hints, unless hints are off.
    pub(crate) fn hint_sessions(&self) -> Option<&Sessions> {
        let is_off = matches!(self.shared().config.listen, Listen::Off);
        (!is_off).then(|| self.hints.as_ref().unwrap_or(&self.sessions))
    }

    /// The connection, after subscribing to hints where that is possible (hazard 31), and whether they arrive.
    async fn listening(&self) -> Result<(Arc<Session>, bool), BackendError> {
        let Some(hints) = &self.hints else { return self.sessions.listening().await };
        let host = &self.shared().host;
        let is_deaf = locked(&self.deaf_since).is_some_and(|since| since.elapsed(host.now()) < DEAF);
        if !is_deaf {
            let over = host.sleep_until(host.now() + DEAF / 10);
            let is_heard = tokio::select! {
                biased;
                heard = hints.listening() => heard.is_ok_and(|(_, is_heard)| is_heard),
                () = over => false,
            };
            *locked(&self.deaf_since) = (!is_heard).then(|| host.now());
        }
        Ok((self.sessions.session().await?, locked(&self.deaf_since).is_none()))
    }

    /// The row with the places next to it, and the server's time. Without a table there is no row.
    async fn read_row(
        &self,
        session: &Session,
        name: &LockName,
        look: &ReadRequest,
    ) -> Result<CellReading, CellError> {
        if session.facts().table == LockTable::Missing {
            if look.creates {
                session.create().await?;
            } else if !session.has_table().await? {
                let (version, state, now) = (0, String::new(), session.facts().clock);
                return Ok(CellReading { version, state, now, overflow: None });
            }
        }
        let (sql, key) = (session.sql(), name.as_str());
        if !has_overflow(session, name) {
            let rows = session.ask(&sql.read, &[(&key, Type::TEXT)]).await?;
            return reading(session, rows.first().ok_or(CellError::Overtaken)?, 0);
        }
        let until = match &look.until {
            Until::Nothing => String::new(),
            Until::Key(key) => key.clone(),
            Until::Class(bound) => format!("{name}{BESIDE}{bound}"),
            Until::End => format!("{name}{END}"),
        };
        let most = if look.whole { PLACES } else { READ };
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let arguments: [Argument<'_>; 3] = [(&key, Type::TEXT), (&until, Type::TEXT), (&limit, Type::INT8)];
        let rows = session.ask(&sql.read_with_tail, &arguments).await?;
        let row = rows.first().ok_or(CellError::Overtaken)?;
        let may_begin = session.facts().may_delete;
        let overflow = Overflow { may_begin, ..overflow(session, row, (3, most))? };
        Ok(CellReading { overflow: Some(overflow), ..reading(session, row, 0)? })
    }

    /// Makes the row of a lock if there is none.
    async fn make_row(
        &self,
        session: &Session,
        name: &LockName,
        state: &str,
    ) -> Result<Option<NewCell>, CellError> {
        self.must_take_writes(session).await?;
        let arguments: [Argument<'_>; 2] = [(&name.as_str(), Type::TEXT), (&state, Type::TEXT)];
        let rows = session.write(&session.sql().make, &arguments).await?;
        let made = |row: &Row| {
            let (version, WrittenCell { at, is_ours }) = (session.column(row, 0)?, stored(session, row, 1)?);
            Ok(NewCell { version, at, is_ours })
        };
        if rows.is_empty()
            && let Some(left) = opens(session).await?
        {
            return Err(WORDS.young(session.name(), left));
        }
        rows.first().map(made).transpose()
    }

    /// Sends the statement that fits.
    async fn send(
        &self,
        session: &Session,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<Vec<Row>, CellError> {
        let (sql, key) = (session.sql(), name.as_str());
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
        let is_plain = write.gone.is_empty() && !write.is_last && write.shown.is_none();
        if is_plain && write.hints.is_empty() {
            return session.write(&statements.plain, &arguments).await;
        }
        let said = |hint: &Hint| (channel(hint.owner.process()), payload(hint));
        let (channels, hints): (Vec<String>, Vec<String>) = write.hints.iter().map(said).unzip();
        let shown = write.shown.map(|shown| (slot_row(name, shown.slot), shown.text));
        let statement = match (is_plain, &shown) {
            (true, _) => &statements.notifying,
            (false, None) => &statements.moving,
            (false, Some(_)) => &statements.showing,
        };
        let none: Vec<String> = Vec::new();
        let mut with_hints = arguments.to_vec();
        with_hints.extend([(&channels as _, Type::TEXT_ARRAY), (&hints as _, Type::TEXT_ARRAY)]);
        if !is_plain {
            with_hints.extend([(&write.gone as _, Type::TEXT_ARRAY), (&write.is_last as _, Type::BOOL)]);
        }
        if let Some((row, text)) = &shown {
            with_hints.extend([(row as _, Type::TEXT), (text as _, Type::TEXT)]);
        }
        let answer = session.write(statement, &with_hints).await;
        if channels.is_empty() || !answer.as_ref().is_err_and(error::is_without_hints) {
            return answer;
        }
        // An owner that is not notified asks again anyway, later.
        (with_hints[PLAIN].0, with_hints[PLAIN + 1].0) = (&none, &none);
        session.write(statement, &with_hints).await
    }

    async fn must_take_writes(&self, session: &Session) -> Result<(), CellError> {
        if session.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become the primary while the connection was open.
        let facts = session.look().await?;
        // The name of its host may lead to the next primary by now.
        facts.must_take_writes(session.name()).inspect_err(|_| session.leave()).map_err(CellError::Refused)
    }

    /// Deletes free rows that were not used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it,
    /// unless the clock was set back by more than a day (H6.4).
    fn sweep_now_and_then(&self, session: &Arc<Session>) {
        let mut chance = [0];
        self.shared().host.random(&mut chance);
        if chance[0] >= SWEEP_CHANCE {
            return;
        }
        let session = session.clone();
        self.shared().host.spawn(Box::pin(async move {
            // If the role may not delete, the rows stay.
            let sql = session.sql();
            if let Err(failure) = session.ask(&sql.sweep, &[(&sql.table, Type::TEXT)]).await {
                tracing::debug!(?failure, "nothing was swept");
            }
        }));
    }
}

/// Whether places of this lock may have separate rows: in another order of names no index would find them.
fn has_overflow(session: &Session, name: &LockName) -> bool {
    session.facts().takes_places && name.as_str().len() <= NAME_MAX
}

/// From a row whose columns are, from `at` on, version, state and time.
fn reading(session: &Session, row: &Row, at: usize) -> Result<CellReading, CellError> {
    let (version, state): (Option<i64>, Option<String>) =
        (session.column(row, at)?, session.column(row, at + 1)?);
    let (version, state) = (version.unwrap_or(0), state.unwrap_or_default());
    Ok(CellReading { version, state, now: session.time(row, at + 2)?, overflow: None })
}

/// How long no lock may be made in the table.
async fn opens(session: &Session) -> Result<Option<Duration>, CellError> {
    let opens = session.ask(&session.sql().opens, &[]).await?;
    let left = opens.first().map(|row| session.column::<i64>(row, 0)).transpose()?;
    Ok(left.and_then(|left| u64::try_from(left).ok()).map(Duration::from_micros))
}

/// From the columns names, states, own state, number of places before it, and names of emptied places.
/// `most`: how many of the first places were asked for.
fn overflow(session: &Session, row: &Row, (at, most): (usize, usize)) -> Result<Overflow, CellError> {
    let (keys, states): (Option<Vec<String>>, Option<Vec<String>>) =
        (session.column(row, at)?, session.column(row, at + 1)?);
    let first: Vec<_> = keys.unwrap_or_default().into_iter().zip(states.unwrap_or_default()).collect();
    let ahead = usize::try_from(session.column::<i64>(row, at + 3)?).unwrap_or(usize::MAX);
    // More than all places are not kept.
    let is_whole = first.len() < most || most == PLACES;
    let own = session.column(row, at + 2)?;
    let emptied: Option<Vec<String>> = session.column(row, at + 4)?;
    Ok(Overflow { first, emptied: emptied.unwrap_or_default(), is_whole, own, ahead, may_begin: true })
}

/// From the columns time, and whether the row has what was written; if that is NULL, version and state of a row that
/// was not written.
fn answered(
    session: &Session,
    row: &Row,
    at: usize,
    write: &CellWrite<'_>,
) -> Result<WriteAnswer, CellError> {
    if session.column::<Option<bool>>(row, at + 1)?.is_some() {
        return Ok(WriteAnswer::Done(stored(session, row, at)?));
    }
    if write.shown.is_some() {
        return Ok(WriteAnswer::Locked(None));
    }
    let (version, state) = (session.column(row, at + 2)?, session.column(row, at + 3)?);
    let reading = CellReading { version, state, now: session.time(row, at)?, overflow: None };
    Ok(WriteAnswer::unwritten(write, reading))
}

/// From the columns time, and whether the row has what was written.
fn stored(session: &Session, row: &Row, at: usize) -> Result<WrittenCell, CellError> {
    Ok(WrittenCell { at: session.time(row, at)?, is_ours: session.column(row, at + 1)? })
}

/// # Errors
/// If a trigger has changed what was written.
fn must_be_ours(session: &Session, row: Option<&Row>, at: usize) -> Result<(), CellError> {
    let Some(row) = row else { return Ok(()) };
    if session.column(row, at)? {
        Ok(())
    } else {
        Err(CellError::Refused(WORDS.verb(session.name(), VerbError::Altered)))
    }
}

/// The two times between which the server's clock must be.
fn window((from, until): (Duration, Duration)) -> (SystemTime, SystemTime) {
    (UNIX_EPOCH + from, UNIX_EPOCH + until)
}

/// The stream of hints for one process.
struct RowHints {
    store: Arc<RowStore>,
    audience: Audience,
    hints: Notifications,
}

impl RowHints {
    fn new(store: Arc<RowStore>, process: ProcessId, audience: Audience) -> Self {
        let hints = store.channels.listen(process, audience);
        Self { store, audience, hints }
    }
}

/// Keeps a connection over which hints arrive, where that is possible; never ends.
async fn listen(store: &RowStore, audience: Audience) {
    let Some(sessions) = store.hint_sessions() else { return std::future::pending().await };
    let host = &store.shared().host;
    loop {
        match sessions.listening().await {
            // A connection without hints ends as well, and the next one may have them.
            Ok((session, _)) => {
                let fate = session.fate();
                drop(session);
                fate.end.wait().await;
                // A waiter was notified of the end, and opens the next connection in its own runtime.
                if audience != Audience::Waiters {
                    continue;
                }
            }
            Err(error) => tracing::debug!(%error, "no hints are heard"),
        }
        host.sleep_until(host.now() + RECONNECT).await;
    }
}

#[async_trait]
impl WakeStream for RowHints {
    async fn next(&mut self) -> WakeEvent {
        tokio::select! {
            biased;
            wake = self.hints.next() => wake,
            () = listen(&self.store, self.audience) => unreachable!("BUG: listening never ends"),
        }
    }

    fn forward(&mut self, to: Forward) {
        self.hints.forward(to);
    }
}

/// The number of arguments of a write that notifies no process.
const PLAIN: usize = 7;
/// In bytes. With a longer name, the name of a place's row might not fit into the column. Then all places are in the
/// row of the lock.
const NAME_MAX: usize = 480;
/// Out of 256: one insert in 64 starts a sweep.
const SWEEP_CHANCE: u8 = 4;
/// After listening failed: how long claims do not try it again.
const DEAF: Duration = Duration::from_secs(5);
/// The pause before a connection is opened only to listen.
const RECONNECT: Duration = Duration::from_millis(500);
