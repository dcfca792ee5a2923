//! `RowStore`: a lock is a row. Does with statements what `tenure-cas` requires of a cell.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use tenure_cas::{
    BESIDE, Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, Listed, Locks, NewCell,
    NewPlace, Newcomer, OldPlace, Overflow, Patience, PlacesBeside, ReadRequest, Until, VerbError,
    WriteAnswer, WrittenCell, decode, listed, promises, slot_row, stop_row,
};
use tenure_client::Connections;
use tenure_core::{
    Audience, Backend, BackendError, ErrorKind, Finding, Forward, Hint, Host, LockName, Moment,
    Notifications, OwnerId, Ownership, ProcessId, Promises, Restart, SqlOwnership, WakeEvent, WakeStream,
    WakeSupport, locked,
};

use crate::{
    answer::Answer,
    config::Config,
    diagnose::examine,
    error::{self, WORDS},
    schema::LockTable,
    session::{Session, Shared},
    sql,
};

/// A handle to the locks in a table of a MariaDB or MySQL database; the first request connects. The verbs are those of
/// a lock in a cell: see `tenure-cas`.
pub fn backend(config: Config, host: Arc<dyn Host>) -> impl Backend {
    let rules = config.rules;
    Locks::new(RowStore::new(Shared::new(config, host.clone())), host, rules)
}

/// The state of one handle.
struct RowStore {
    shared: Arc<Shared>,
    sessions: Connections<Session>,
    /// Used instead of `sessions`: the connection over which a lock is tried in a transaction.
    trial: Option<Arc<Session>>,
    /// The name behind which old rows are looked for next.
    swept: Arc<Mutex<Vec<u8>>>,
}

#[async_trait]
impl Cell for RowStore {
    type Connection = Arc<Session>;

    fn promises(&self) -> Promises {
        let mut promises = promises("mysql");
        promises.restart = Restart::Survives;
        // A replica for which commits do not wait may lack the last writes.
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "all clients of the database";
        promises.chosen_owner = true;
        // How often the first waiters ask: four fifths of the claim ttl.
        promises.wake = WakeSupport::Asked(self.shared.config.rules.claim_ttl * 4 / 5);
        promises.places = Some(8);
        promises
    }

    async fn connect(&self, purpose: ConnectionPurpose) -> Result<Connected<Arc<Session>>, BackendError> {
        let mut over = match &self.trial {
            Some(session) => session.clone(),
            None => self.sessions.get().await?,
        };
        if purpose != ConnectionPurpose::Keep && self.trial.is_none() && over.must_be_ours().is_err() {
            // The server may have been corrected since this connection checked it.
            over.leave();
            over = self.sessions.get().await?;
            over.must_be_ours()?;
        }
        Ok(Connected { over, is_notified: false })
    }

    async fn read(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        look: &ReadRequest,
    ) -> Result<CellReading, CellError> {
        if session.facts().table == LockTable::Missing {
            if look.creates {
                session.create().await?;
            } else if !session.has_table().await? {
                return reading(session, &session.ask(sql::time()).await?, 0);
            }
        }
        let until = match &look.until {
            Until::Nothing => "",
            Until::Key(key) => key,
            Until::Class(bound) => bound,
            Until::End => sql::LAST,
        };
        let may_delete = session.may_delete();
        let most = if look.whole { sql::PLACES } else { sql::READ };
        let answer = session.ask(self.shared.sql.read(name, (until, most), may_delete)).await?;
        let overflow = overflow((name, most), &answer, may_delete);
        Ok(CellReading { overflow: Some(overflow), ..reading(session, &answer, 0)? })
    }

    async fn read_many(
        &self,
        session: &Arc<Session>,
        names: &[&LockName],
    ) -> Result<Vec<Option<CellReading>>, CellError> {
        let mut readings = vec![None; names.len()];
        let answer = session.ask(self.shared.sql.read_many(names)).await?;
        for row in 0..answer.rows.len() {
            let at = names.iter().position(|name| answer.bytes(row, 4) == Some(name.as_str().as_bytes()));
            if let Some(at) = at {
                readings[at] = Some(reading(session, &answer, row)?);
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
        let answer = self.ask_in_line(session, self.shared.sql.make(name, state)).await?;
        if answer.written == 0 {
            return match self.opens(session).await? {
                Some(left) => Err(WORDS.young(session.name(), left)),
                None => Ok(None),
            };
        }
        // A trial is rolled back, and its user need not have the right to delete.
        if self.trial.is_none() {
            self.sweep_now_and_then(session);
        }
        let Some(at) = answer.time() else { return self.made(session, name, state).await.map(Some) };
        let version = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        // Another trigger may change what is written to the row.
        let is_ours = self.is_as_written(session, name, (version, state)).await? != Some(false);
        Ok(Some(NewCell { version, at, is_ours }))
    }

    async fn write(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<WriteAnswer, CellError> {
        let answer = match (write.shown, write.patience) {
            (Some(shown), _) => {
                let row = slot_row(name, shown.slot);
                match session.ask(self.shared.sql.slot(&row, session.facts().knows_nowait())).await {
                    Err(CellError::Locked) => return Ok(WriteAnswer::Locked(None)),
                    looked => drop(looked?),
                }
                if !shown.text.is_empty() {
                    session.ask(self.shared.sql.make_slot(name, shown.slot)).await?;
                }
                session.write(self.shared.sql.write_shown(name, write, (&row, shown.text))).await?
            }
            (None, Patience::None) => match session.write(self.shared.sql.write(name, write)).await {
                Err(CellError::Locked) => return Ok(WriteAnswer::Locked(None)),
                answer => answer?,
            },
            (None, _) => self.ask_in_line(session, self.shared.sql.write(name, write)).await?,
        };
        if answer.written == 0 {
            return Ok(WriteAnswer::Changed(None));
        }
        if !write.gone.is_empty() {
            let may_delete = session.may_delete();
            let those = if may_delete { sql::ANY } else { sql::THERE };
            let remove = self.shared.sql.remove((name, write.gone), those, may_delete);
            // A place that stays is left out as long as its owner holds or waits, and its release deletes it.
            if let Err(failure) = session.ask(remove).await {
                tracing::debug!(?failure, "places stay that have moved up");
            }
        }
        for hint in write.hints.iter().filter(|hint| hint.audience != Audience::Waiters) {
            // A hint may be lost.
            if let Err(failure) = self.notify(session, *hint).await {
                tracing::debug!(?failure, "a hint was not left");
            }
        }
        let is_as_written = self.is_as_written(session, name, (write.on.0 + 1, write.state)).await?;
        session.is_checked.fetch_or(is_as_written == Some(true), Ordering::AcqRel);
        let is_ours = is_as_written != Some(false);
        let at = match answer.time() {
            Some(at) => at,
            None => self.time_after(session).await?,
        };
        Ok(WriteAnswer::Done(WrittenCell { at, is_ours }))
    }

    async fn enqueue(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        if self.ask_in_line(session, self.shared.sql.enqueue(name, place)).await?.written == 0 {
            return Ok(None);
        }
        // Writes of other clients before this reading do no harm: they would write the same after it.
        match self.read(session, name, &ReadRequest::default()).await {
            Ok(reading) => Ok(Some(reading)),
            // L9: the place exists.
            Err(failure) => Err(CellError::Broken(WORDS.settled(session.name(), failure))),
        }
    }

    async fn ownership(
        &self,
        session: &Arc<Session>,
        row: &str,
        proof: &str,
        _rest: Duration,
    ) -> Result<Ownership, CellError> {
        session.must_be_alone().map_err(CellError::Refused)?;
        let table = self.shared.config.whole_table();
        let literal = sql::relies(&table, &sql::hex(row), &sql::hex(proof));
        Ok(Ownership::Sql(SqlOwnership::new(sql::relies(&table, "?", "?"), (row, proof), literal)))
    }

    async fn stop_relying(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &CellWrite<'_>,
        text: &str,
    ) -> Result<(), CellError> {
        let Some(shown) = write.shown else { return Ok(()) };
        // A transaction in `SERIALIZABLE` has this row locked, for which MySQL would wait.
        let row = stop_row(name, shown.slot);
        session.ask(self.shared.sql.slot(&row, session.facts().knows_nowait())).await?;
        let stop = self.shared.sql.stop_relying(name, write, (shown.slot, text));
        session.ask(stop).await.map(drop)
    }

    async fn relying(&self, session: &Arc<Session>) -> String {
        session.relying(Duration::ZERO).await
    }

    async fn list(&self, session: &Arc<Session>, prefix: &str) -> Result<Vec<Listed>, CellError> {
        if session.facts().table == LockTable::Missing && !session.has_table().await? {
            return Ok(Vec::new());
        }
        let answer = session.ask(self.shared.sql.list(prefix)).await?;
        let row = |row| Some((answer.text(row, 0)?, answer.text(row, 1)?, time(&answer, row, 2)?));
        Ok(listed((0..answer.rows.len()).filter_map(row)))
    }

    fn beside(&self) -> Option<&dyn PlacesBeside<Arc<Session>>> {
        Some(self)
    }

    fn error(&self, trouble: VerbError) -> BackendError {
        WORDS.verb(&self.shared.config.place_name(), trouble)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        let (host, rules) = (self.shared.host.clone(), self.shared.config.rules);
        examine(&self.shared, &self.sessions, |session| Locks::new(self.over(session), host, rules)).await
    }

    async fn prepare(&self) -> Result<Duration, BackendError> {
        let session = self.sessions.get().await?;
        let prepared = async {
            session.create().await?;
            Ok(self.opens(&session).await?.unwrap_or_default())
        };
        prepared.await.map_err(|failure| WORDS.settled(session.name(), failure))
    }

    async fn notify(&self, session: &Arc<Session>, hint: Hint) -> Result<(), CellError> {
        let row = hint_row(hint.owner.process(), hint.audience);
        session.ask(self.shared.sql.leave_hint(&row, &hint.owner.to_string())).await.map(|_| ())
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.shared.notifier.reaches(hint.audience, hint.owner)
    }

    fn deliver(&self, hint: Hint) {
        self.shared.notifier.deliver(hint);
    }

    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream> {
        let notifications = self.shared.notifier.subscribe(process, audience);
        if audience == Audience::Waiters {
            // Waiters ask again anyway.
            return Box::new(notifications);
        }
        Box::new(RowHints {
            store: self.clone(),
            process,
            audience,
            row: hint_row(process, audience),
            seen: 0,
            due: self.shared.host.now(),
            notifications,
        })
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
        let sql = &self.shared.sql;
        if let Some(key) = place.key {
            let is_kept = self.ask_in_line(session, sql.keep(name, key, place)).await?.written > 0;
            return Ok(is_kept.then(|| key.to_owned()));
        }
        let end = session.ask(sql.end(name, place)).await?;
        let key = |column| end.text(0, column)?.split_once(BESIDE).map(|(_, key)| key.to_owned());
        if let Some(own) = key(2) {
            return Ok(Some(own));
        }
        if end.number(0, 0) != Some(1) {
            return Ok(None);
        }
        let last =
            key(1).and_then(|key| u64::from_str_radix(key.strip_prefix(place.class)?, 16).ok()).unwrap_or(0);
        let answer = self.ask_in_line(session, sql.stand(name, last, place)).await?;
        if answer.written == 0 {
            return Ok(None);
        }
        match answer.micros() {
            Some(number) => Ok(Some(format!("{}{number:016x}", place.class))),
            // L9: the place exists.
            None => self
                .own_key(session, name, place.owner)
                .await
                .map_err(|failure| CellError::Broken(WORDS.settled(session.name(), failure))),
        }
    }

    async fn remove(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &OldPlace<'_>,
    ) -> Result<bool, CellError> {
        let mut keys = vec![place.key.to_owned()];
        if place.may_have_another {
            keys.extend(self.own_key(session, name, place.owner).await?);
        }
        let remove = self.shared.sql.remove((name, &keys), sql::THERE, session.may_delete());
        let is_removed = self.ask_in_line(session, remove).await?.written > 0;
        if !is_removed {
            // No reading follows, so `read_only` is checked here.
            reading(session, &session.ask(sql::time()).await?, 0)?;
            session.must_be_the_writer()?;
        }
        Ok(is_removed)
    }

    async fn all(&self, session: &Arc<Session>, name: &LockName) -> Result<Vec<String>, CellError> {
        let answer = session.ask(self.shared.sql.places(name)).await?;
        Ok((0..answer.rows.len()).filter_map(|row| answer.text(row, 0)).collect())
    }
}

impl Clone for RowStore {
    fn clone(&self) -> Self {
        Self { swept: self.swept.clone(), ..Self::new(self.shared.clone()) }
    }
}

impl RowStore {
    fn new(shared: Arc<Shared>) -> Self {
        Self { sessions: shared.sessions(), shared, trial: None, swept: Arc::default() }
    }

    /// A store that sends all requests over this connection.
    fn over(&self, session: Arc<Session>) -> Self {
        Self { trial: Some(session), ..self.clone() }
    }

    /// How long no lock may be made in the table.
    async fn opens(&self, session: &Session) -> Result<Option<Duration>, CellError> {
        Ok(time(&session.ask(self.shared.sql.opens()).await?, 0, 0))
    }

    /// The key of an owner's place.
    async fn own_key(
        &self,
        session: &Session,
        name: &LockName,
        owner: OwnerId,
    ) -> Result<Option<String>, CellError> {
        let row = session.ask(format!("SELECT {}", self.shared.sql.own(name, owner))).await?.text(0, 0);
        Ok(row.and_then(|row| Some(row.split_once(BESIDE)?.1.to_owned())))
    }

    /// Runs a statement that waits for the client that has the row locked. The shortest wait of the server is a second,
    /// which is enough: a longer lock is not a commit, but a foreign transaction.
    async fn ask_in_line(&self, session: &Session, sql: String) -> Result<Answer, CellError> {
        session.write(sql).await.map_err(|failure| match failure {
            CellError::Locked => CellError::Refused(WORDS.verb(session.name(), VerbError::Locked)),
            other => other,
        })
    }

    /// The row that was made just now, if the server did not return the time.
    async fn made(&self, session: &Session, name: &LockName, state: &str) -> Result<NewCell, CellError> {
        let after = async {
            let answer = session.ask(self.shared.sql.made(name)).await?;
            if answer.rows.is_empty() { Ok(None) } else { reading(session, &answer, 0).map(Some) }
        };
        match after.await {
            Ok(Some(made)) => {
                Ok(NewCell { version: made.version, at: made.now, is_ours: made.state == state })
            }
            // Another client has written it since.
            Ok(None) => Err(CellError::Overtaken),
            // L9: the row exists.
            Err(failure) => Err(CellError::Broken(WORDS.settled(session.name(), failure))),
        }
    }

    /// The server's clock after a write, if the server did not return it with the write.
    async fn time_after(&self, session: &Session) -> Result<Duration, CellError> {
        let answer = session.ask(sql::time()).await;
        let read = answer.and_then(|answer| time(&answer, 0, 2).ok_or_else(|| unreadable(session)));
        // L9: it was written.
        read.map_err(|failure| CellError::Broken(WORDS.settled(session.name(), failure)))
    }

    /// Whether the row has what was written to it, which a trigger may change (L1); `None` if that is not known. The
    /// server cannot return that with the write. So the first write of each connection is read back, and so are the
    /// rows that the connection makes before.
    async fn is_as_written(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        (version, state): (i64, &str),
    ) -> Result<Option<bool>, CellError> {
        if session.is_checked.load(Ordering::Acquire) {
            return Ok(None);
        }
        let reading = match self.read(session, name, &ReadRequest::default()).await {
            Ok(reading) => reading,
            // L9: it was written.
            Err(failure) => return Err(CellError::Broken(WORDS.settled(session.name(), failure))),
        };
        // Another client may have written since.
        let is_over = reading.version > version || reading.version == 0;
        Ok((!is_over).then_some((reading.version, &*reading.state) == (version, state)))
    }

    /// Deletes free rows that were not used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it,
    /// unless the clock was set back by more than a day (H6.4).
    fn sweep_now_and_then(&self, session: &Arc<Session>) {
        let mut chance = [0];
        self.shared.host.random(&mut chance);
        if chance[0] >= SWEEP_CHANCE {
            return;
        }
        let (session, shared, swept) = (session.clone(), self.shared.clone(), self.swept.clone());
        self.shared.host.spawn(Box::pin(async move {
            // If the user may not delete, the rows stay.
            if let Err(failure) = sweep(&session, &shared, &swept).await {
                tracing::debug!(?failure, "nothing was swept");
            }
        }));
    }
}

/// The row in which hints for a process are stored: no lock has such a name.
fn hint_row(process: ProcessId, audience: Audience) -> String {
    format!("\u{1}{}{process}", if audience == Audience::Holders { 'h' } else { 'o' })
}

/// Hints of other processes for holders or observers, read once a second while a caller listens: a lock is seldom
/// broken or watched.
struct RowHints {
    store: Arc<RowStore>,
    process: ProcessId,
    audience: Audience,
    row: String,
    /// How many there were when they were read last.
    seen: i64,
    /// When they are read next: a caller that comes and goes does not delay that.
    due: Moment,
    notifications: Notifications,
}

impl RowHints {
    /// # Errors
    /// If the store does not answer: then no hint is received.
    async fn look(&mut self) -> Result<(), BackendError> {
        let (store, audience) = (&self.store, self.audience);
        let session = store.sessions.get().await?;
        if session.facts().table == LockTable::Missing {
            return Ok(());
        }
        let answer = session.ask(store.shared.sql.hints(&self.row)).await;
        let answer = answer.map_err(|failure| WORDS.settled(session.name(), failure))?;
        let (count, hints) = (answer.number(0, 0).unwrap_or(0), answer.text(0, 1).unwrap_or_default());
        let many = usize::try_from(count.saturating_sub(self.seen)).unwrap_or(0);
        let owners: Vec<&str> =
            hints.as_bytes().chunks(OWNER).filter_map(|o| std::str::from_utf8(o).ok()).collect();
        if many > owners.len() {
            store.shared.notifier.notify_all(self.process, audience);
        }
        for owner in owners.iter().rev().take(many).filter_map(|owner| owner.parse().ok()) {
            store.shared.notifier.deliver(Hint { audience, owner, is_behind: false });
        }
        self.seen = count;
        Ok(())
    }
}

#[async_trait]
impl WakeStream for RowHints {
    async fn next(&mut self) -> WakeEvent {
        loop {
            let host = self.store.shared.host.clone();
            tokio::select! {
                biased;
                wake = self.notifications.next() => return wake,
                () = host.sleep_until(self.due) => {}
            }
            self.due = host.now() + LOOK;
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "no hints are read");
            }
        }
    }

    fn forward(&mut self, to: Forward) {
        self.notifications.forward(to);
    }
}

/// Checks the rows behind those that were checked last, and deletes old ones.
async fn sweep(session: &Session, shared: &Shared, swept: &Mutex<Vec<u8>>) -> Result<(), CellError> {
    let behind = locked(swept).clone();
    let answer = session.ask(shared.sql.old(&behind)).await?;
    *locked(swept) = answer.bytes(answer.rows.len().wrapping_sub(1), 0).unwrap_or_default().to_vec();
    for row in 0..answer.rows.len() {
        let (name, version) = (answer.bytes(row, 0).unwrap_or_default(), answer.number(row, 1).unwrap_or(0));
        let state = answer.text(row, 2).unwrap_or_default();
        let is_old = answer.number(row, 3) == Some(1);
        let now = time(&answer, row, 4).unwrap_or_default();
        // A text that is not a ledger is a place or a hint.
        let is_noted = decode(&state).is_ok_and(|ledger| ledger.has_memo(Moment { boot: now, wall: now }));
        if is_old && !is_noted {
            session.ask(shared.sql.delete(name, version, now)).await?;
        }
    }
    Ok(())
}

/// From a row of [`sql::Sql::read`].
fn reading(session: &Session, answer: &Answer, row: usize) -> Result<CellReading, CellError> {
    session.is_read_only.store(answer.number(row, 3) == Some(8), Ordering::Release);
    if !matches!(answer.number(row, 3), Some(1 | 8)) {
        // The connection may have an open transaction, which ends with it.
        session.leave();
        let is_stopped = answer.number(row, 3) == Some(9);
        let message = if is_stopped { error::STOPPED_CLOCK } else { error::NO_AUTOCOMMIT };
        return Err(CellError::Refused(WORDS.refused(session.name(), ErrorKind::Unsupported, message)));
    }
    let now = time(answer, row, 2).ok_or_else(|| unreadable(session))?;
    let version = answer.number(row, 0).unwrap_or(0);
    Ok(CellReading { version, state: answer.text(row, 1).unwrap_or_default(), now, overflow: None })
}

/// From the rows of [`sql::Sql::read`].
/// `most`: how many of the first places were asked for.
fn overflow((name, most): (&LockName, usize), answer: &Answer, may_begin: bool) -> Overflow {
    let of = |kind| (0..answer.rows.len()).filter(move |row| answer.number(*row, 3) == Some(kind));
    let text = |row, column| answer.text(row, column).unwrap_or_default();
    let key =
        |row: &str| row.strip_prefix(name.as_str()).map(|key| key.trim_start_matches(BESIDE).to_owned());
    let first: Vec<_> = of(3).filter_map(|row| Some((key(&text(row, 0))?, text(row, 1)))).collect();
    let emptied = of(4).filter_map(|row| key(&text(row, 0))).collect();
    let ahead = usize::try_from(answer.number(0, 4).unwrap_or(0)).unwrap_or(usize::MAX);
    // More than all places are not kept.
    let is_whole = first.len() < most || most == sql::PLACES;
    // The row of the lock itself has 0, 1, 8 or 9 there.
    let own = of(2).next().map(|row| text(row, 1));
    Overflow { first, emptied, is_whole, own, ahead, may_begin }
}

/// The server's clock.
fn time(answer: &Answer, row: usize, column: usize) -> Option<Duration> {
    u64::try_from(answer.number(row, column)?).ok().map(Duration::from_micros)
}

/// An answer that does not fit the request.
fn unreadable(session: &Session) -> CellError {
    let message = "the answer is not that of a MySQL server: does a proxy change it?";
    CellError::Refused(WORDS.refused(session.name(), ErrorKind::Corrupt, message).of_unknown_outcome())
}

/// The length of an owner, as it is written.
const OWNER: usize = 48;
/// How often hints are read.
const LOOK: Duration = Duration::from_secs(1);
/// Out of 256: one insert in 64 starts a sweep.
const SWEEP_CHANCE: u8 = 4;
