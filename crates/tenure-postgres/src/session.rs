//! `Sessions`: the connection of one handle, and the next one when it ends or is stuck. `Session`: one
//! connection, with the facts about its server and the table.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use tenure_cas::{CellError, OPENS_AFTER};
use tenure_client::{Channels, Connections, End, Link, SingleFlight, Slot, Slots, StallDetector};
use tenure_core::{Audience, BackendError, ErrorKind, Hint, Host, Notifier, OwnerId, ProcessId, locked};
use tokio_postgres::{
    AsyncMessage, Client, Row,
    types::{FromSql, ToSql, Type},
};

use crate::{
    config::{Config, Listen, Server},
    connect::{self, Driver, Opened},
    error::{self, WORDS},
    schema::{LOOK, LockTable, ServerFacts, since_epoch},
    sql::{DATABASE, RELYING, STARTED, Sql},
};

/// The common state of all handles of one process.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    /// The schema of the table, once it was found: no later connection looks it up along another path.
    pub(crate) schema: OnceLock<String>,
    /// This process has seen Tenure's table, so it does not make the table again.
    has_seen: AtomicBool,
    /// The identifier of the database, if several servers are named.
    identifier: OnceLock<i64>,
    /// Delivers hints inside this process, without the server.
    pub(crate) notifier: Notifier,
}

impl Shared {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let config = config.with_password();
        let notifier = Notifier::with_turns(host.clone(), config.rules.claim_ttl);
        Self {
            config: Arc::new(config),
            host,
            schema: OnceLock::new(),
            has_seen: AtomicBool::new(false),
            identifier: OnceLock::new(),
            notifier,
        }
    }

    /// The schema of the table, if it is configured or known, and the name of the table.
    fn table(&self) -> (Option<&str>, &str) {
        let (said, name) = self.config.table_parts();
        (said.or_else(|| self.schema.get().map(String::as_str)), name)
    }

    /// Records where the table is, but not from the connection for hints (`config`), which may have another path.
    fn found(&self, facts: &ServerFacts, config: &Arc<Config>) {
        if facts.two_tables.is_some() || !Arc::ptr_eq(config, &self.config) {
            return;
        }
        if facts.table == LockTable::Ours {
            self.has_seen.store(true, Ordering::Release);
        }
        if facts.table != LockTable::Missing
            && let Some(schema) = &facts.schema
        {
            // OK to ignore because the first connection that found the table has recorded its schema.
            let _ = self.schema.set(schema.clone());
        }
    }
}

/// The connections of one handle.
pub(crate) struct Sessions {
    pub(crate) shared: Arc<Shared>,
    birth: SessionOpener,
    connections: Connections<Session>,
}

impl Sessions {
    /// To the servers of `config`, which is the configuration of the locks or that of the hints.
    pub(crate) fn new(shared: Arc<Shared>, channels: Arc<Channels>, config: Arc<Config>) -> Self {
        let birth = SessionOpener(shared.clone(), channels.clone(), config);
        let (host, one, slots) = (shared.host.clone(), birth.clone(), Slots::new(shared.host.clone()));
        let open = move || Box::pin(one.clone().open(slots.clone())) as _;
        let connections = Connections::new(host, open).easing(BackendError::after_success);
        Self { shared, birth, connections }
    }

    /// The connection; a new one if there is none, or the present one is dead or stuck.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, BackendError> {
        self.connections.get().await
    }

    /// Whether hints arrive over this connection.
    fn brings_hints(&self, session: &Session) -> bool {
        let facts = session.facts();
        // A standby does not support LISTEN.
        match self.shared.config.listen {
            Listen::Same => facts.is_direct && !facts.is_standby,
            Listen::Off => false,
            Listen::At(_) => !facts.is_standby,
        }
    }

    /// The connection, subscribed to the channels of this handle, and whether hints arrive over it.
    pub(crate) async fn listening(&self) -> Result<(Arc<Session>, bool), BackendError> {
        let session = self.session().await?;
        if !self.brings_hints(&session) {
            return Ok((session, false));
        }
        match session.listen().await {
            Ok(()) => Ok((session, true)),
            Err(CellError::Broken(error)) => Err(error),
            // OK to wait without hints, because a waiter asks again after a while.
            Err(failure) => {
                tracing::debug!(?failure, "no hints are heard");
                Ok((session, false))
            }
        }
    }

    /// For each server, whatever it is: its name, and a connection to it or the error.
    pub(crate) async fn each(&self) -> Vec<(String, Result<Arc<Session>, BackendError>)> {
        let SessionOpener(_, _, config) = &self.birth;
        let slot = || Arc::new(Slot::alone(self.shared.host.clone()));
        let open = |place: Server| async {
            (place.to_string(), self.birth.open_one(place, slot()).await.map(Arc::new))
        };
        join_all(config.servers().into_iter().map(open)).await
    }

    /// A separate connection, for requests that must not be mixed with others.
    pub(crate) async fn apart(&self) -> Result<Session, BackendError> {
        self.birth.clone().open(Slots::new(self.shared.host.clone())).await
    }
}

/// What is needed to open a connection.
#[derive(Clone)]
struct SessionOpener(Arc<Shared>, Arc<Channels>, Arc<Config>);

impl SessionOpener {
    /// Connects to the first server that can be reached, and that takes writes if that is required.
    async fn open(self, slots: Arc<Slots>) -> Result<Session, BackendError> {
        let servers = self.2.servers();
        let open = |place: &Server, slot| Box::pin(self.open_chosen(place.clone(), Arc::new(slot))) as _;
        slots.first(&servers, open, |place| WORDS.occupied(&place.to_string())).await
    }

    async fn open_chosen(&self, place: Server, slot: Arc<Slot>) -> Result<Session, BackendError> {
        self.open_one(place, slot).await?.chosen(&self.2).await
    }

    async fn open_one(&self, place: Server, slot: Arc<Slot>) -> Result<Session, BackendError> {
        let Self(shared, channels, config) = self.clone();
        let (host, name, patience) = (shared.host.clone(), place.to_string(), config.connect_timeout);
        let stall = StallDetector::new(host.clone(), STUCK);
        let opening = Session::open(shared, channels, ConnectTarget { config, place }, stall.clone(), slot);
        tokio::select! {
            biased;
            opened = opening => opened,
            () = stall.silence(patience, ANSWERS) => Err(WORDS.not_opened(&name, patience)),
        }
    }
}

/// A parameter and its type. Statements have no names, because a pooler may lead each to another connection.
pub(crate) type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// One connection.
pub(crate) struct Session {
    shared: Arc<Shared>,
    channels: Arc<Channels>,
    at: ConnectTarget,
    name: String,
    client: Client,
    facts: Mutex<Arc<ServerFacts>>,
    stall: Arc<StallDetector>,
    fate: Arc<SessionEnd>,
    _owner: Owner,
    /// The processes to whose channels it listens, once for each audience, in the order of `channels`.
    heard: Mutex<Vec<ProcessId>>,
    listening: SingleFlight<Result<(), CellError>>,
}

impl Session {
    /// Connects, and reads the facts about the server and the table.
    async fn open(
        shared: Arc<Shared>,
        channels: Arc<Channels>,
        at: ConnectTarget,
        stall: Arc<StallDetector>,
        slot: Arc<Slot>,
    ) -> Result<Self, BackendError> {
        let ConnectTarget { config, place } = &at;
        let Opened { client, driver, own_end } = connect::open(config, place, stall.clone(), &slot).await?;
        let fate = Arc::<SessionEnd>::default();
        // An abandoned opening is ended, because its first statement may wait in a pooler.
        let owner = Owner(fate.clone());
        // The task ends with the connection, which ends when the last owner of its client drops that.
        shared.host.spawn(Box::pin(drive(driver, Ending(fate.clone(), channels.clone()), slot)));
        let name = place.to_string();
        let (schema, table) = shared.table();
        let asked = shared.host.now();
        let rows = client.query_typed(LOOK, &[(&schema, Type::TEXT), (&table, Type::TEXT)]).await;
        let facts = rows.and_then(|rows| ServerFacts::read(&rows[0], shared.table(), place, own_end));
        let facts = facts.map_err(|error| WORDS.settled(&name, error::asked(&name, error)))?;
        facts.must_be_one_writer(&name)?;
        stall.first_answer_took(asked.elapsed(shared.host.now()));
        shared.found(&facts, config);
        let listening = SingleFlight::new(shared.host.clone());
        Ok(Self {
            shared,
            channels,
            at,
            name,
            client,
            facts: Mutex::new(Arc::new(facts)),
            stall,
            fate,
            _owner: owner,
            heard: Mutex::default(),
            listening,
        })
    }

    /// The session, if its server fits the configuration.
    async fn chosen(self, config: &Arc<Config>) -> Result<Self, BackendError> {
        if config.hosts.len() > 1 && Arc::ptr_eq(config, &self.shared.config) {
            self.must_be_the_same_database().await?;
        }
        if config.needs_writes() {
            self.facts().must_take_writes(&self.name)?;
        }
        Ok(self)
    }

    /// # Errors
    /// `Invalid` if this server has another database than a named server that this process has used.
    async fn must_be_the_same_database(&self) -> Result<(), BackendError> {
        let Some(own) = self.identity().await.and_then(|identity| identity.database) else { return Ok(()) };
        if *self.shared.identifier.get_or_init(|| own) == own {
            return Ok(());
        }
        Err(WORDS.refused(&self.name, ErrorKind::Invalid, error::NOT_ONE_DATABASE))
    }

    /// The identity of the server, as far as this role may read it.
    pub(crate) async fn identity(&self) -> Option<Identity> {
        let started = self.ask(STARTED, &[]).await.ok()?;
        let started = started.first()?.try_get(0).map(since_epoch).ok()?;
        let database = self.ask(DATABASE, &[]).await.ok();
        let database = database.and_then(|rows| rows.first()?.try_get(0).ok());
        Some(Identity { started, database })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn facts(&self) -> Arc<ServerFacts> {
        locked(&self.facts).clone()
    }

    /// The statements for the table, where it was found.
    pub(crate) fn sql(&self) -> Arc<Sql> {
        locked(&self.facts).sql.clone()
    }

    /// Reads the facts about the server and the table again.
    pub(crate) async fn look(&self) -> Result<Arc<ServerFacts>, CellError> {
        let (schema, table) = self.shared.table();
        let rows = self.ask(LOOK, &[(&schema, Type::TEXT), (&table, Type::TEXT)]).await?;
        let known = self.facts();
        let facts = ServerFacts::read(&rows[0], self.shared.table(), &self.at.place, None)
            .map_err(|e| error::asked(&self.name, e))?;
        self.shared.found(&facts, &self.at.config);
        let facts = Arc::new(ServerFacts { is_direct: known.is_direct, ..facts });
        *locked(&self.facts) = facts.clone();
        Ok(facts)
    }

    /// Transactions that have had rows of the table locked for this time, for people; empty if there is none, or the role may
    /// not see them.
    pub(crate) async fn relying(&self, at_least: Duration) -> String {
        let seconds = at_least.as_secs_f64();
        let arguments: [Argument<'_>; 2] = [(&self.sql().table, Type::TEXT), (&seconds, Type::FLOAT8)];
        let rows = self.ask(RELYING, &arguments).await.unwrap_or_default();
        let texts = rows.iter().filter_map(|row| self.column::<Option<String>>(row, 0).ok().flatten());
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Looks for the table. False if there never was one.
    ///
    /// # Errors
    /// If it existed and is missing now, because leases may be in it. If the table is ambiguous.
    pub(crate) async fn has_table(&self) -> Result<bool, CellError> {
        let facts = self.look().await?;
        if let Err(error) = facts.must_be_one_table(&self.name) {
            self.leave();
            return Err(CellError::Refused(error));
        }
        let is_there = facts.table != LockTable::Missing;
        if !is_there && self.shared.has_seen.load(Ordering::Acquire) {
            return Err(WORDS.away(&self.name));
        }
        Ok(is_there)
    }

    /// Makes the table if there never was one. Several clients may do so at the same time: a client that is too late
    /// reads again.
    pub(crate) async fn create(&self) -> Result<(), CellError> {
        let mut race = None;
        for _ in 0..CREATE_TRIES {
            let is_there = self.has_table().await?;
            let facts = self.facts();
            facts.must_take_writes(&self.name).map_err(CellError::Refused)?;
            if is_there {
                return facts.must_be_ours(&self.name).map_err(CellError::Refused);
            }
            match self.client.batch_execute(&facts.sql.create).await {
                Ok(()) => {
                    tracing::warn!(table = facts.sql.table, wait = ?OPENS_AFTER, "made the table of the locks")
                }
                Err(error) if was_race(&error) => race = Some(error),
                Err(error) => return Err(error::asked(&self.name, error)),
            }
        }
        Err(race.map_or(CellError::Overtaken, |error| error::asked(&self.name, error)))
    }

    /// Runs one statement, as a separate transaction.
    pub(crate) async fn ask(&self, sql: &str, arguments: &[Argument<'_>]) -> Result<Vec<Row>, CellError> {
        let awaited = self.stall.ask();
        let answer = tokio::select! {
            biased;
            answer = self.client.query_typed(sql, arguments) => answer,
            () = self.is_hopeless() => return Err(CellError::Broken(WORDS.unanswered(&self.name))),
        };
        drop(awaited);
        answer.map_err(|error| {
            let is_of_the_server = error::is_of_the_server(&error);
            if error::is_table_missing(&error) {
                Arc::make_mut(&mut locked(&self.facts)).table = LockTable::Missing;
            }
            let failure = error::asked(&self.name, error);
            if is_of_the_server || matches!(failure, CellError::Broken(_)) {
                self.leave();
            }
            failure
        })
    }

    /// Waits until 2 s after the connection was abandoned. Then no answer is expected over it, because the server was
    /// asked to stop the statement. The runtime that reads the connection may be blocked.
    async fn is_hopeless(&self) {
        self.fate.end.wait().await;
        let host = &self.shared.host;
        host.sleep_until(host.now() + HOPELESS).await;
    }

    /// Runs a statement that writes.
    ///
    /// A cancel also ends the wait for a standby, and the server then reports success (A3). All clients see that write,
    /// but no lease may rely on it before a later commit was waited for. So it counts as a lost answer.
    pub(crate) async fn write(&self, sql: &str, arguments: &[Argument<'_>]) -> Result<Vec<Row>, CellError> {
        let rows = self.ask(sql, arguments).await?;
        if !rows.is_empty() && self.fate.is_hasty.load(Ordering::Acquire) {
            self.leave();
            return Err(CellError::Broken(error::unconfirmed(&self.name)));
        }
        Ok(rows)
    }

    /// A column of an answer.
    pub(crate) fn column<'a, T: FromSql<'a>>(&self, row: &'a Row, at: usize) -> Result<T, CellError> {
        row.try_get(at).map_err(|error| CellError::Refused(self.unreadable(error)))
    }

    /// A column that is a time.
    pub(crate) fn time(&self, row: &Row, at: usize) -> Result<Duration, CellError> {
        Ok(since_epoch(self.column::<SystemTime>(row, at)?))
    }

    /// An answer that cannot be read: a value has another type than was asked for.
    pub(crate) fn unreadable(&self, error: tokio_postgres::Error) -> BackendError {
        WORDS.settled(&self.name, error::asked(&self.name, error)).of_unknown_outcome()
    }

    /// It was not abandoned, and has not ended.
    fn is_alive(&self) -> bool {
        !self.fate.end.is_over() && !self.client.is_closed()
    }

    /// Abandons the connection: no new request is sent over it, and callers that wait still get their answers.
    pub(crate) fn leave(&self) {
        self.fate.end(&self.channels);
    }

    /// Asks the server to stop the statement that keeps the others waiting. The server reports that the statement was
    /// not applied. The next one may wait for the same row. So the request is repeated, as long as no answer arrives,
    /// until the connection is closed.
    fn unblock(&self) {
        // Set before the server receives the request, so that an answer that it causes is not taken for an ordinary
        // one.
        self.fate.is_hasty.store(true, Ordering::Release);
        let (token, host) = (self.client.cancel_token(), self.shared.host.clone());
        let (fate, stall, at) = (self.fate.clone(), self.stall.clone(), self.at.clone());
        let patience = self.shared.config.connect_timeout;
        self.shared.host.spawn(Box::pin(async move {
            let (mut pause, mut last) = (AGAIN, None);
            while !fate.closed.is_over() {
                let heard = stall.heard();
                if last.replace(heard).is_none_or(|last| last == heard) {
                    let over = host.sleep_until(host.now() + patience);
                    let stall = StallDetector::new(host.clone(), patience);
                    let sent = tokio::select! {
                        biased;
                        sent = connect::cancel(&at.config, &at.place, token.clone(), stall) => sent.is_ok(),
                        () = over => false,
                        () = fate.closed.wait() => return,
                    };
                    // A server that hangs is not flooded.
                    pause = if sent { AGAIN } else { AGAIN_MAX.min(pause * 2) };
                }
                host.sleep_until(host.now() + pause).await;
            }
        }));
    }

    /// Subscribes to the hints that are wanted from now on (hazard 31: before a claim is sent).
    pub(crate) async fn listen(self: &Arc<Self>) -> Result<(), CellError> {
        while locked(&self.heard).len() != self.channels.count() {
            let listen = || Box::pin(self.clone().listen_to_all()) as _;
            Box::pin(self.listening.join(listen)).await?;
        }
        Ok(())
    }

    async fn listen_to_all(self: Arc<Self>) -> Result<(), CellError> {
        let mut heard = locked(&self.heard).clone();
        for process in self.channels.all().into_iter().map(|(process, _)| process).skip(heard.len()) {
            if !heard.contains(&process) {
                let awaited = self.stall.ask();
                let answer = self.client.batch_execute(&format!("LISTEN \"{}\"", channel(process))).await;
                drop(awaited);
                answer.map_err(|error| error::asked(&self.name, error))?;
            }
            heard.push(process);
            locked(&self.heard).clone_from(&heard);
        }
        Ok(())
    }

    pub(crate) fn fate(&self) -> Arc<SessionEnd> {
        self.fate.clone()
    }
}

impl Link for Session {
    fn is_usable(&self) -> bool {
        self.is_alive() && !self.stall.is_stalled()
    }

    fn on_left(&self) {
        if self.is_alive() {
            self.unblock();
        }
        self.leave();
    }
}

/// Whether a connection has ended or was abandoned, and what is known of the reason.
#[derive(Default)]
pub(crate) struct SessionEnd {
    pub(crate) end: End,
    /// Its task has ended: no answer arrives any more.
    closed: End,
    /// The wait for a standby was cancelled, or the server was asked to: a write that is done no longer proves that a
    /// standby has it.
    is_hasty: AtomicBool,
}

impl SessionEnd {
    fn end(&self, channels: &Channels) {
        if self.end.set() {
            // From here on hints may be missed until the next connection listens.
            channels.notify_all();
        }
    }
}

/// The identity of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// When the server was started: the same under each name of one server.
    pub(crate) started: Duration,
    /// The identifier of the database and its copies; `None` if the role may not read it.
    pub(crate) database: Option<i64>,
}

/// One server of a configuration.
#[derive(Clone)]
struct ConnectTarget {
    config: Arc<Config>,
    place: Server,
}

/// Another client made the table at the same moment: the unique indexes of the catalog report it.
fn was_race(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| ["23505", "42P07", "42710", "XX000", "40001"].contains(&code.code()))
}

/// Signals that the connection has ended, whatever ended its task.
struct Ending(Arc<SessionEnd>, Arc<Channels>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.closed.set();
        self.0.end(&self.1);
    }
}

/// Abandons a connection when its last caller drops it.
struct Owner(Arc<SessionEnd>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end.set();
    }
}

/// Moves the bytes of a connection and delivers its notifications. Ends with the connection, or when it was abandoned
/// and its last answer is overdue.
async fn drive(mut driver: Driver, ending: Ending, slot: Arc<Slot>) {
    let overdue = async {
        ending.0.end.wait().await;
        slot.overdue().await;
    };
    tokio::pin!(overdue);
    loop {
        let message = tokio::select! {
            biased;
            message = connect::heard(&mut driver) => message,
            () = &mut overdue => None,
        };
        let Some(message) = message else { break };
        match message {
            AsyncMessage::Notification(message) => {
                on_notification(&ending.1, message.channel(), message.payload())
            }
            AsyncMessage::Notice(notice) => {
                // Another program may have cancelled the wait, too. The notice arrives before the answer to the write,
                // and the name of the routine is not translated.
                if notice.routine() == Some("SyncRepWaitForLSN") {
                    ending.0.is_hasty.store(true, Ordering::Release);
                }
                tracing::debug!(%notice, "the PostgreSQL server says");
            }
            _ => {}
        }
    }
    // The socket is closed before the slot is free.
    drop(driver);
}

/// The channel by which PostgreSQL pushes the hints of a process.
pub(crate) fn channel(process: ProcessId) -> String {
    format!("tenure_{process}")
}

/// The payload of a hint. A waiter behind the next holder need not ask before that holder's turn has passed: it would
/// only race with the holder.
pub(crate) fn payload(hint: &Hint) -> String {
    let letter = match hint.audience {
        Audience::Waiters if hint.is_behind => 'b',
        Audience::Waiters => 'w',
        Audience::Holders => 'h',
        Audience::Observers => 'o',
    };
    format!("{letter}{}", hint.owner)
}

/// Delivers a notification for an owner whose hints are wanted here. Ignores any other, which Tenure did not send.
fn on_notification(channels: &Channels, from: &str, text: &str) {
    let (audience, is_behind) = match text.as_bytes().first() {
        Some(b'w') => (Audience::Waiters, false),
        Some(b'b') => (Audience::Waiters, true),
        Some(b'h') => (Audience::Holders, false),
        Some(b'o') => (Audience::Observers, false),
        _ => return,
    };
    let Ok(owner) = text[1..].parse::<OwnerId>() else { return };
    if channels.has(owner.process(), audience) && channel(owner.process()) == from {
        channels.notifier.deliver(Hint { owner, audience, is_behind });
    }
}

/// How long a connection may be silent before other callers get a new one.
const STUCK: Duration = Duration::from_millis(500);
/// Answers that a connection takes to open: its socket, the offer of TLS, two of TLS, three of the login, and the
/// facts. Each may be late, by the patience at most.
const ANSWERS: u32 = 8;
const CREATE_TRIES: usize = 10;
/// How long callers wait for an answer over an abandoned connection.
const HOPELESS: Duration = Duration::from_secs(2);
/// The pause between two cancel requests for one connection; doubled while the server does not accept them.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(8);
