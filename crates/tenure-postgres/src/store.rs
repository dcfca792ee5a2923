//! `Store`: a lock is a row. What `tenure-cas` asks of a cell, said in statements; with what one handle knows of the store, its
//! connections and its hints.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use tenure_cas::{
    Cell, Listed, Locks, Look, Made, NewPlace, Newcomer, OldPlace, Overflow, Patience, Purpose, Reading,
    Stored, TOLERANCE, Trouble, Until, Write, encode,
};
use tenure_client::HintRouter;
use tenure_core::{
    Absent, Audience, Backend, BackendError, Claim, EndOfGrant, Finding, Forward, Hint, Host, Label,
    LockName, Memos, Minting, Mode, Moment, Order, OwnerId, ProcessId, Promises, Restart, Sharing, Wait,
    Wake, WakeUp, Wakes, locked,
};
use tenure_ledger::{Ledger, LedgerError, Rules};
use tokio_postgres::{Row, types::Type};

use crate::{
    config::{Config, Listen},
    diagnose::{examine, problem},
    error::{self, Failure},
    schema::Table,
    session::{Argument, Session, Sessions, Shared, channel, payload},
    sql::{READ, TELL},
};

/// A handle to the locks in a table of a PostgreSQL database; the first request connects. Each verb is that of a lock in a cell:
/// see `tenure-cas`.
pub fn backend(config: Config, host: Arc<dyn Host>) -> impl Backend {
    let rules = config.rules;
    let store = Store::new(Arc::new(Shared::new(config, host.clone())));
    Locks::new(store, host, rules)
}

/// What one handle knows of the store.
pub(crate) struct Store {
    sessions: Sessions,
    router: Arc<HintRouter>,
    /// Where hints come from, if not over the same connection.
    hints: Option<Sessions>,
    /// When that could not be listened to last.
    deaf_since: Mutex<Option<Moment>>,
    /// Hints reached us when somebody waited last.
    hears: AtomicBool,
}

#[async_trait]
impl Cell for Store {
    type Connection = Arc<Session>;

    fn promises(&self) -> Promises {
        let mut promises = Promises::least("postgres");
        promises.sharing = Sharing::Counted;
        promises.order = Order::Fifo;
        promises.absent = Absent::Passed;
        promises.minting = Minting::Entry;
        promises.restart = Restart::Survives;
        // A standby that is not waited for has not everything yet.
        promises.fail_over = Some(Restart::Lost);
        promises.reach = "all clients of the database";
        promises.end = EndOfGrant::Ttl;
        promises.chosen_owner = true;
        promises.wake = WakeUp::Pushed;
        promises.memo = Memos::Kept;
        promises.places = Some(8);
        promises.ttl_grain = TOLERANCE;
        promises
    }

    async fn another(&self) -> Result<Self, BackendError> {
        let store = Self::new(self.shared().clone());
        store.sessions.session().await?;
        Ok(store)
    }

    async fn connect(&self, purpose: Purpose) -> Result<Arc<Session>, BackendError> {
        let session = match purpose {
            Purpose::Wait => self.listening().await?,
            Purpose::Use | Purpose::Keep => self.sessions.session().await?,
        };
        if purpose != Purpose::Keep {
            session.facts().must_be_ours(session.name())?;
        }
        Ok(session)
    }

    async fn read(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        look: &Look,
    ) -> Result<Reading, tenure_cas::Failure> {
        Ok(self.read_row(session, name, look).await?)
    }

    async fn read_many(
        &self,
        session: &Arc<Session>,
        names: &[&LockName],
    ) -> Result<Vec<Option<Reading>>, tenure_cas::Failure> {
        let keys: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let rows = session.ask(&self.shared().sql.read_many, &[(&keys, Type::TEXT_ARRAY)]).await?;
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
    ) -> Result<Option<Made>, tenure_cas::Failure> {
        let made = self.make_row(session, name, state).await?;
        if made.is_some() {
            self.sweep_now_and_then(session);
        }
        Ok(made)
    }

    async fn write(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        write: &Write<'_>,
    ) -> Result<Option<Stored>, tenure_cas::Failure> {
        self.must_take_writes(session).await?;
        let rows = self.send(session, name, write).await?;
        Ok(rows.first().map(|row| stored(session, row, 0)).transpose()?)
    }

    async fn enqueue(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, tenure_cas::Failure> {
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
        Ok(rows.first().map(|row| reading(session, row, 0)).transpose()?)
    }

    fn batch(&self) -> usize {
        BATCH
    }

    async fn write_many(
        &self,
        session: &Arc<Session>,
        writes: &[(&LockName, Write<'_>)],
    ) -> Result<Vec<Option<Stored>>, tenure_cas::Failure> {
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

    async fn append_place(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &NewPlace<'_>,
    ) -> Result<Option<String>, tenure_cas::Failure> {
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
        Ok(rows.first().map(|row| session.column(row, 0)).transpose()?)
    }

    async fn keep_place(
        &self,
        session: &Arc<Session>,
        key: &str,
        state: &str,
    ) -> Result<bool, tenure_cas::Failure> {
        let arguments: [Argument<'_>; 2] = [(&key, Type::TEXT), (&state, Type::TEXT)];
        let kept = session.write(&self.shared().sql.tail.keep, &arguments).await?;
        must_be_ours(session, kept.first(), 0)?;
        Ok(!kept.is_empty())
    }

    async fn remove_place(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        place: &OldPlace<'_>,
    ) -> Result<bool, tenure_cas::Failure> {
        let arguments: [Argument<'_>; 4] = [
            (&name.as_str(), Type::TEXT),
            (&place.owner.to_string(), Type::TEXT),
            (&place.key, Type::TEXT),
            (&place.may_have_another, Type::BOOL),
        ];
        Ok(!session.write(&self.shared().sql.tail.withdraw, &arguments).await?.is_empty())
    }

    async fn places(
        &self,
        session: &Arc<Session>,
        name: &LockName,
    ) -> Result<Vec<String>, tenure_cas::Failure> {
        let rows = session.ask(&self.shared().sql.tail.places, &[(&name.as_str(), Type::TEXT)]).await?;
        Ok(rows.iter().map(|row| session.column(row, 0)).collect::<Result<_, Failure>>()?)
    }

    async fn list(&self, session: &Arc<Session>, prefix: &str) -> Result<Vec<Listed>, tenure_cas::Failure> {
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

    fn error(&self, trouble: Trouble) -> BackendError {
        let place = &self.shared().config.place_name();
        match trouble {
            Trouble::Overtaken => error::overtaken(place),
            Trouble::Unsettled => error::unsettled(place),
            Trouble::Locked => error::row_locked(place),
            Trouble::Swallowed => error::swallowed(place),
            Trouble::Altered => error::altered(place),
            Trouble::Ledger(error) => error::ledger(place, error),
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        // The trial is awaited if the table is ours.
        examine(&self.sessions, self.hint_sessions(), self.try_out()).await
    }

    async fn tell(&self, session: &Arc<Session>, hint: Hint) -> Result<(), tenure_cas::Failure> {
        let (channel, text) = (channel(hint.owner.process()), payload(&hint));
        let arguments: [Argument<'_>; 2] = [(&channel, Type::TEXT), (&text, Type::TEXT)];
        session.ask(TELL, &arguments).await?;
        Ok(())
    }

    fn reaches(&self, hint: Hint) -> bool {
        self.shared().hints.reach(hint.audience, hint.owner)
    }

    fn ring(&self, hint: Hint) {
        self.router.route(hint);
    }

    fn wakes(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn Wakes> {
        Box::new(Hints::new(self.clone(), process, audience))
    }

    fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }
}

impl Store {
    fn new(shared: Arc<Shared>) -> Self {
        let router = Arc::new(shared.hints.beside());
        let hints = match &shared.config.listen {
            Listen::At(config) => {
                Some(Sessions::new(shared.clone(), router.clone(), Arc::new((**config).clone())))
            }
            Listen::Same | Listen::Off => None,
        };
        let sessions = Sessions::new(shared.clone(), router.clone(), shared.config.clone());
        Self { sessions, router, hints, deaf_since: Mutex::default(), hears: AtomicBool::new(true) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.sessions.shared
    }

    /// Where hints come from, unless they are off.
    fn hint_sessions(&self) -> Option<&Sessions> {
        let is_off = matches!(self.shared().config.listen, Listen::Off);
        (!is_off).then(|| self.hints.as_ref().unwrap_or(&self.sessions))
    }

    /// The connection, after making sure that hints are heard where they can be (hazard 31).
    async fn listening(&self) -> Result<Arc<Session>, BackendError> {
        let Some(hints) = &self.hints else {
            let (session, is_heard) = self.sessions.listening().await?;
            self.hears.store(is_heard, Ordering::Relaxed);
            return Ok(session);
        };
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
            self.hears.store(is_heard, Ordering::Relaxed);
        }
        self.sessions.session().await
    }

    /// The row with the places beside it, and the server's time. Where there is no table, there is no row.
    async fn read_row(&self, session: &Session, name: &LockName, look: &Look) -> Result<Reading, Failure> {
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
        if !has_overflow(session, name) {
            let rows = self.asked(session, &sql.read, &[(&key, Type::TEXT)]).await?;
            return reading(session, rows.first().ok_or(Failure::Overtaken)?, 0);
        }
        let until = match &look.until {
            Until::Nothing => String::new(),
            Until::Key(key) => key.clone(),
            Until::End => format!("{name}{END}"),
        };
        let rows =
            self.asked(session, &sql.read_with_tail, &[(&key, Type::TEXT), (&until, Type::TEXT)]).await?;
        let row = rows.first().ok_or(Failure::Overtaken)?;
        Ok(Reading { overflow: Some(overflow(session, row, 3)?), ..reading(session, row, 0)? })
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

    /// Makes the row of a lock if there is none.
    async fn make_row(
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

    /// The statement that fits.
    async fn send(&self, session: &Session, name: &LockName, write: &Write<'_>) -> Result<Vec<Row>, Failure> {
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
        let said = |hint: &Hint| (channel(hint.owner.process()), payload(hint));
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

    async fn must_take_writes(&self, session: &Session) -> Result<(), Failure> {
        if session.facts().takes_writes {
            return Ok(());
        }
        // A standby may have become a primary under an open connection.
        let facts = session.look().await?;
        facts.must_take_writes(session.name()).map_err(Failure::Refused)
    }

    /// Deletes free rows that nobody used for a day, a few at a time.
    ///
    /// OK because a fence never outruns the server's clock (A10): the next row of that name starts above it, unless the clock
    /// was set back by more than a day (H6.4).
    fn sweep_now_and_then(&self, session: &Arc<Session>) {
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

    /// Writes a lock of a name that nobody else has, and reads it again after each write, as a claim, a renewal and a release do it,
    /// with their statements. Nobody else sees it, and nothing of it stays, whatever rights the role has.
    async fn try_out(&self) -> Option<Finding> {
        let tried = match self.sessions.apart().await {
            Ok(session) => {
                let tried = self.try_over(&session).await;
                session.leave();
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

    async fn try_over(&self, session: &Session) -> Result<(), Bad> {
        session.ask("BEGIN", &[]).await?;
        // What would come with the commit comes with each statement.
        session.ask("SET CONSTRAINTS ALL IMMEDIATE", &[]).await?;
        let tried = self.try_verbs(session).await;
        // OK to ignore because a connection that has ended has rolled back too.
        let _ = session.ask("ROLLBACK", &[]).await;
        tried
    }

    async fn try_verbs(&self, session: &Session) -> Result<(), Bad> {
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
        let claim =
            Claim { name: name.clone(), owner, mode, ttl, label, block: 1, wait, asker: Default::default() };
        let ledger = Ledger::new(0);
        let state = encode(&ledger, false);
        let made = self.make_row(session, &name, &state).await?;
        let made = made.filter(|made| made.is_ours).ok_or(Bad::Altered)?;
        let mut row = TriedRow { name: &name, version: made.version, state, ledger };
        self.try_verb(session, &mut row, |ledger, rules, now| ledger.claim(now, rules, &claim).map(drop))
            .await?;
        let renew = |ledger: &mut Ledger, rules: &Rules, now| {
            drop(ledger.renew(now, rules, owner, ttl * 2));
            Ok(())
        };
        self.try_verb(session, &mut row, renew).await?;
        let release = |ledger: &mut Ledger, rules: &Rules, now| {
            drop(ledger.release(now, rules, owner));
            Ok(())
        };
        self.try_verb(session, &mut row, release).await
    }

    /// Runs one verb on the row, and looks at it.
    async fn try_verb(
        &self,
        session: &Session,
        row: &mut TriedRow<'_>,
        verb: impl FnOnce(&mut Ledger, &Rules, Moment) -> Result<(), LedgerError>,
    ) -> Result<(), Bad> {
        let wall = self.shared().host.now().wall;
        verb(&mut row.ledger, &self.shared().config.rules, Moment { boot: wall, wall })
            .map_err(|error| Failure::Refused(error::ledger(session.name(), error)))?;
        let state = encode(&row.ledger, false);
        let write = Write {
            on: (row.version, &row.state),
            state: &state,
            is_busy: !row.ledger.is_free(),
            within: (Duration::ZERO, FAR),
            patience: Patience::Any,
            hints: &[],
            gone: &[],
            is_last: false,
        };
        let written = self.send(session, row.name, &write).await?;
        let is_ours = written.first().is_some_and(|row| row.try_get(1).unwrap_or(false));
        let read = self.read_row(session, row.name, &Look::default()).await?;
        if !is_ours || (read.version, &read.state) != (row.version + 1, &state) {
            return Err(Bad::Altered);
        }
        (row.version, row.state) = (row.version + 1, state);
        Ok(())
    }
}

/// Whether places of this lock may have rows of their own: one that may not be deleted would stay for ever, and in another order of
/// names no index would find it.
fn has_overflow(session: &Session, name: &LockName) -> bool {
    session.facts().takes_places && name.as_str().len() <= NAME_MAX
}

/// From a row whose columns are, from `at` on, version, state and time.
fn reading(session: &Session, row: &Row, at: usize) -> Result<Reading, Failure> {
    let (version, state): (Option<i64>, Option<String>) =
        (session.column(row, at)?, session.column(row, at + 1)?);
    let (version, state) = (version.unwrap_or(0), state.unwrap_or_default());
    Ok(Reading { version, state, now: session.time(row, at + 2)?, overflow: None })
}

/// From the columns names, states, own state and number before it.
fn overflow(session: &Session, row: &Row, at: usize) -> Result<Overflow, Failure> {
    let (keys, states): (Option<Vec<String>>, Option<Vec<String>>) =
        (session.column(row, at)?, session.column(row, at + 1)?);
    let first: Vec<_> = keys.unwrap_or_default().into_iter().zip(states.unwrap_or_default()).collect();
    let ahead = usize::try_from(session.column::<i64>(row, at + 3)?).unwrap_or(usize::MAX);
    Ok(Overflow { is_whole: first.len() < READ, first, own: session.column(row, at + 2)?, ahead })
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

/// Between which two times the server's clock must lie.
fn window((from, until): (Duration, Duration)) -> (SystemTime, SystemTime) {
    (UNIX_EPOCH + from, UNIX_EPOCH + until)
}

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

/// The row that is tried, as it must be.
struct TriedRow<'a> {
    name: &'a LockName,
    version: i64,
    state: String,
    ledger: Ledger,
}

/// The stream of hints of one process.
struct Hints {
    store: Arc<Store>,
    audience: Audience,
    hints: tenure_client::Hints,
}

impl Hints {
    fn new(store: Arc<Store>, process: ProcessId, audience: Audience) -> Self {
        let hints = store.router.listen(process, audience);
        Self { store, audience, hints }
    }
}

/// Keeps a connection that brings hints, where there can be one; never ends.
async fn listen(store: &Store, audience: Audience) {
    let Some(sessions) = store.hint_sessions() else { return std::future::pending().await };
    let host = &store.shared().host;
    loop {
        match sessions.listening().await {
            // One that brings none ends as well, and the next may bring them.
            Ok((session, _)) => {
                let fate = session.fate();
                drop(session);
                fate.end.wait().await;
                // A waiter, which was told of the end, makes the next one in its own runtime.
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
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
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

/// Leases that one statement renews: what it holds it holds for one commit.
const BATCH: usize = 128;
/// Arguments of a write that tells nobody.
const PLAIN: usize = 7;
/// Between the name of a lock and the number of a place beside it: no name of a lock has it.
const BESIDE: char = '\u{1}';
/// Behind the name of a lock: no place of it has a name that is greater.
const END: char = '\u{2}';
/// In bytes. With a longer name the row of a place might not fit into the column, and all places are in the row of the lock.
const NAME_MAX: usize = 480;
/// Of 256: one insert in 64 sweeps.
const SWEEP_CHANCE: u8 = 4;
/// How long claims do not wait for hints that could not be listened to.
const DEAF: Duration = Duration::from_secs(5);
/// Pause before a connection is made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);
/// 2^33 s: the year 2242.
const FAR: Duration = Duration::from_secs(1 << 33);
