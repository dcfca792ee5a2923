//! `Sessions`: the connection of one handle, and the next one when it ends or is stuck. `Session`: one connection, with
//! the facts about its server and the table.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mysql_async::{
    ClientIdentity, Conn, DriverError, Error, IoError, Opts, OptsBuilder, SslOpts, consts::StatusFlags,
    prelude::Queryable,
};
use rustls::CertificateError;
use tenure_cas::{CellError, OPENS_AFTER};
use tenure_client::{Connections, End, Link, Secret, Slot, Slots, StallDetector, tls};
use tenure_core::{BackendError, ErrorKind, Host, Notifier, Outcome, locked};
use tokio::sync::{mpsc, oneshot};

use crate::{
    answer::Answer,
    config::{Config, Server, TlsMode},
    error::{self, WORDS},
    schema::{LockTable, ServerFacts, columns, variables},
    sql::{self, CLOCK_OF_SERVER, SESSION, Sql, sent},
};

/// The common state of all handles of one process.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) sql: Sql,
    /// Delivers hints inside this process: the server does not push any.
    pub(crate) notifier: Notifier,
    /// This process has seen Tenure's table, so it does not make the table again.
    has_seen: AtomicBool,
}

impl Shared {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Arc<Self> {
        let config = config.with_password();
        let sql = Sql::new(config.quoted_table());
        let notifier = Notifier::with_turns(host.clone(), config.rules.claim_ttl);
        Arc::new(Self { config, host, sql, notifier, has_seen: AtomicBool::new(false) })
    }

    /// The connections of one handle.
    pub(crate) fn sessions(self: &Arc<Self>) -> Connections<Session> {
        let (shared, slots) = (self.clone(), Slots::new(self.host.clone()));
        let open = move || Box::pin(shared.clone().open(slots.clone())) as _;
        Connections::new(self.host.clone(), open).easing(BackendError::after_success)
    }

    /// Connects to the first server that can be reached, and that takes writes if there are several.
    pub(crate) async fn open(self: Arc<Self>, slots: Arc<Slots>) -> Result<Session, BackendError> {
        let servers = self.config.servers();
        let is_choosy = servers.len() > 1;
        let open = |server, slot| Box::pin(self.open_chosen(server, Arc::new(slot), is_choosy)) as _;
        slots.first(&servers, open, |server| WORDS.occupied(&server.to_string())).await
    }

    async fn open_chosen(
        self: &Arc<Self>,
        server: &Server,
        slot: Arc<Slot>,
        is_choosy: bool,
    ) -> Result<Session, BackendError> {
        let mut session = self.open_one(server, slot).await?;
        if is_choosy {
            session.facts().must_take_writes(session.name())?;
            session.rival = self.rival(server, &session.facts()).await;
        }
        Ok(session)
    }

    async fn open_one(self: &Arc<Self>, server: &Server, slot: Arc<Slot>) -> Result<Session, BackendError> {
        let over = self.host.sleep_until(self.host.now() + self.config.connect_timeout);
        tokio::select! {
            biased;
            opened = Session::open(self.clone(), server, slot) => opened,
            () = over => Err(WORDS.not_opened(&server.to_string(), self.config.connect_timeout)),
        }
    }

    /// Another server of the URL that takes writes as well, if it answers soon: one that hangs delays no failover.
    async fn rival(self: &Arc<Self>, server: &Server, facts: &ServerFacts) -> Option<String> {
        for other in self.config.servers().into_iter().filter(|other| other != server) {
            let over = self.host.sleep_until(self.host.now() + SOON);
            let writer = tokio::select! {
                biased;
                writer = self.writer(&other) => writer,
                () = over => None,
            };
            if writer.is_some_and(|identity| identity != facts.identity()) {
                return Some(other.to_string());
            }
        }
        None
    }

    /// The identity of a server, if it takes writes.
    async fn writer(self: &Arc<Self>, server: &Server) -> Option<String> {
        let slot = Arc::new(Slot::alone(self.host.clone()));
        let facts = self.open_one(server, slot).await.ok()?.facts();
        facts.read_only().is_none().then(|| facts.identity())
    }

    /// The servers that take writes, each with its name and identity. A server that cannot be reached is left out.
    pub(crate) async fn writers(self: &Arc<Self>) -> Vec<(String, String)> {
        let mut writers = Vec::new();
        for server in self.config.servers() {
            writers.extend(self.writer(&server).await.map(|identity| (server.to_string(), identity)));
        }
        writers
    }
}

/// One connection.
///
/// A separate task has it, and runs the statements in the order of the requests. So a caller whose future is not polled
/// or is dropped does not keep others from the connection. A statement that was begun is finished.
pub(crate) struct Session {
    shared: Arc<Shared>,
    name: String,
    requests: mpsc::UnboundedSender<Request>,
    facts: Mutex<ServerFacts>,
    stall: Arc<StallDetector>,
    end: Arc<End>,
    /// A row that was written over it was read back once: no trigger changes it.
    pub(crate) is_checked: AtomicBool,
    /// The last reading found `read_only`.
    pub(crate) is_read_only: AtomicBool,
    /// A lock is tried over it, in a transaction.
    is_trial: AtomicBool,
    /// Another server of the URL took writes as well when this connection was opened.
    rival: Option<String>,
}

struct Request {
    sql: String,
    /// `None`: it was not sent.
    reply: oneshot::Sender<Option<Result<Answer, Error>>>,
}

impl Session {
    /// Connects, and reads the facts about the server and the table.
    async fn open(shared: Arc<Shared>, server: &Server, slot: Arc<Slot>) -> Result<Self, BackendError> {
        let name = server.to_string();
        let login = {
            let (shared, server, name) = (shared.clone(), server.clone(), name.clone());
            async move { connect(&shared.config, &server, &name).await }
        };
        let ended = || Err(WORDS.login_ended(&name));
        let conn = slot.log_in(login).await.unwrap_or_else(ended)?;
        // No MariaDB is older than 10.
        let is_mysql = conn.server_version().0 < 10;
        let (requests, asked) = mpsc::unbounded_channel();
        let stall = StallDetector::new(shared.host.clone(), STUCK);
        let end = Arc::<End>::default();
        // The task ends with the connection, or when the connection is abandoned.
        let driver = Driver { conn, asked, stall: stall.clone(), ending: Ending(end.clone()), slot };
        shared.host.spawn(Box::pin(driver.drive(shared.host.clone())));
        let facts = Mutex::new(ServerFacts::read(&Answer::default(), &Answer::default()));
        let session = Self {
            shared,
            name,
            requests,
            facts,
            stall,
            end,
            is_checked: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
            is_trial: AtomicBool::new(false),
            rival: None,
        };
        // If a pooler drops the first statement, statements wait longer for a lock. If the second one is refused, no
        // other client may stop the clock either.
        for said in [SESSION, CLOCK_OF_SERVER].into_iter().filter(|_| is_mysql) {
            match session.ask(said.into()).await {
                Ok(_) => {}
                Err(CellError::Refused(_)) if !session.end.is_over() => {}
                Err(failure) => return Err(WORDS.settled(&session.name, failure)),
            }
        }
        session.look().await.map_err(|failure| WORDS.settled(&session.name, failure))?;
        Ok(session)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn facts(&self) -> ServerFacts {
        locked(&self.facts).clone()
    }

    /// # Errors
    /// If locks must not be acquired over it.
    pub(crate) fn must_be_ours(&self) -> Result<(), BackendError> {
        let one_writer = self.shared.config.one_writer;
        match &self.rival {
            Some(rival) if !one_writer => Err(error::rivals(&self.name, rival)),
            _ => self.facts().must_be_ours(&self.name, one_writer),
        }
    }

    /// # Errors
    /// If a transaction may run on another server than the one that grants the locks: it would lock nothing here.
    pub(crate) fn must_be_alone(&self) -> Result<(), BackendError> {
        let facts = self.facts();
        let other = facts.many_writers().map(|cluster| cluster.to_owned()).or_else(|| self.rival.clone());
        other.map_or(Ok(()), |other| Err(error::not_alone(&self.name, &other)))
    }

    /// This user may delete rows.
    pub(crate) fn may_delete(&self) -> bool {
        locked(&self.facts).may_delete
    }

    /// Reads the facts about the server and the table again.
    pub(crate) async fn look(&self) -> Result<ServerFacts, CellError> {
        let (schema, table) = self.shared.config.table_parts();
        let variables = self.ask(variables()).await?;
        let mut facts = ServerFacts::read(&variables, &self.ask(columns(schema, table)).await?);
        // A server that takes no writes would refuse the deletion as well, and the connection would be abandoned for
        // that.
        if matches!(facts.table, LockTable::Ours(_)) && facts.takes_writes() {
            let deleted = self.ask(self.shared.sql.delete_nothing()).await;
            facts.may_delete =
                !matches!(deleted, Err(CellError::Refused(error)) if error.kind() == ErrorKind::Denied);
        }
        if matches!(facts.table, LockTable::Ours(_)) {
            self.shared.has_seen.store(true, Ordering::Release);
        }
        *locked(&self.facts) = facts.clone();
        Ok(facts)
    }

    /// Transactions that have had rows locked for this time, for people; empty if there is none, or without the right PROCESS.
    pub(crate) async fn relying(&self, at_least: Duration) -> String {
        let Ok(answer) = self.ask(sql::relying(at_least.as_secs())).await else { return String::new() };
        let texts = (0..answer.rows.len()).filter_map(|row| answer.text(row, 0));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// Looks for the table. False if there never was one.
    ///
    /// # Errors
    /// If it existed and is missing now, because leases may be in it.
    pub(crate) async fn has_table(&self) -> Result<bool, CellError> {
        let is_there = self.look().await?.table != LockTable::Missing;
        if !is_there && self.shared.has_seen.load(Ordering::Acquire) {
            return Err(WORDS.away(&self.name));
        }
        Ok(is_there)
    }

    /// Makes the table if there never was one.
    pub(crate) async fn create(&self) -> Result<(), CellError> {
        if !self.has_table().await? {
            // For a user that may write despite `read_only`.
            self.facts().must_take_writes(&self.name).map_err(CellError::Refused)?;
            self.ask(self.shared.sql.create()).await?;
            tracing::warn!(table = self.shared.config.quoted_table(), wait = ?OPENS_AFTER, "made the table of the locks");
            self.look().await?;
        }
        self.must_be_ours().map_err(CellError::Refused)
    }

    /// Runs one statement, as a separate transaction.
    pub(crate) async fn ask(&self, sql: String) -> Result<Answer, CellError> {
        let awaited = self.stall.ask();
        let (reply, answer) = oneshot::channel();
        let sets_clock = locked(&self.facts).sets_clock();
        if self.requests.send(Request { sql: sent(sql, sets_clock), reply }).is_err() {
            return Err(self.unsent());
        }
        let answer = tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| Some(Err(DriverError::ConnectionClosed.into()))),
            () = self.is_hopeless() => return Err(CellError::Broken(WORDS.unanswered(&self.name))),
        };
        drop(awaited);
        let Some(answer) = answer else { return Err(self.unsent()) };
        let answer = answer.map_err(|error| {
            let is_demoted = error::is_demoted(&error);
            if error::is_table_missing(&error) {
                locked(&self.facts).table = LockTable::Missing;
            }
            let failure = error::asked(&self.name, error);
            if is_demoted || matches!(failure, CellError::Broken(_)) {
                self.leave();
            }
            failure
        })?;
        if answer.is_in_transaction && !self.is_trial.load(Ordering::Acquire) {
            // The transaction ends with its connection.
            self.leave();
            return Err(error::uncommitted(&self.name, &answer));
        }
        Ok(answer)
    }

    /// Runs one statement that writes.
    ///
    /// # Errors
    /// Even without an error of the server, if it wrote nothing and the last reading found `read_only`.
    pub(crate) async fn write(&self, sql: String) -> Result<Answer, CellError> {
        let answer = self.ask(sql).await?;
        if answer.written == 0 {
            self.must_be_the_writer()?;
        }
        Ok(answer)
    }

    /// # Errors
    /// If the last reading found `read_only`. This user may write there anyway, but other clients would not see it.
    pub(crate) fn must_be_the_writer(&self) -> Result<(), CellError> {
        if !self.is_read_only.load(Ordering::Acquire) {
            return Ok(());
        }
        self.leave();
        Err(CellError::Refused(error::read_only(&self.name, "read_only")))
    }

    /// Begins a transaction, in which a lock is tried. It ends with the session.
    pub(crate) async fn begin_trial(&self) -> Result<(), CellError> {
        self.is_trial.store(true, Ordering::Release);
        self.ask("BEGIN".into()).await.map(drop)
    }

    /// The connection was abandoned or has ended: nothing happened, and the next try uses another one.
    fn unsent(&self) -> CellError {
        self.leave();
        CellError::Overtaken
    }

    /// Waits until 2 s after the connection was abandoned. Then no answer is expected over it.
    async fn is_hopeless(&self) {
        self.end.wait().await;
        let host = &self.shared.host;
        host.sleep_until(host.now() + HOPELESS).await;
    }

    /// Abandons the connection: no new request is sent over it.
    pub(crate) fn leave(&self) {
        self.end.set();
    }
}

/// This abandons a dropped opening as well: one of its statements may wait for a lock.
impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Link for Session {
    fn is_usable(&self) -> bool {
        !self.end.is_over() && !self.stall.is_stalled()
    }

    fn on_left(&self) {
        self.leave();
    }
}

/// Signals that a connection has ended, whatever ended its task.
struct Ending(Arc<End>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The task of a connection.
struct Driver {
    conn: Conn,
    asked: mpsc::UnboundedReceiver<Request>,
    stall: Arc<StallDetector>,
    ending: Ending,
    /// Free when the socket is closed: the last field, so that it is dropped last.
    slot: Arc<Slot>,
}

impl Driver {
    /// Runs the requests, one after the other. Ends with the connection, or when it is abandoned.
    async fn drive(mut self, host: Arc<dyn Host>) {
        while let Some(Request { sql, reply }) = self.next().await {
            self.stall.on_sent();
            let answer = tokio::select! {
                biased;
                answer = run(&mut self.conn, sql) => answer,
                () = overdue(&self.ending.0, &self.slot) => break,
            };
            self.stall.on_heard();
            let is_over = answer.as_ref().is_err_and(Error::is_fatal);
            // OK to ignore because a caller that has left needs no answer.
            let _ = reply.send(Some(answer));
            if is_over {
                break;
            }
        }
        let Self { conn, mut asked, ending, slot, .. } = self;
        asked.close();
        while let Ok(Request { reply, .. }) = asked.try_recv() {
            // OK to ignore because a caller that has left needs no answer.
            let _ = reply.send(None);
        }
        drop(ending);
        let over = host.sleep_until(host.now() + GOODBYE);
        tokio::select! {
            biased;
            _ = conn.disconnect() => {}
            () = over => {}
        }
        drop(slot);
    }

    async fn next(&mut self) -> Option<Request> {
        tokio::select! {
            biased;
            // A request that was not sent yet is not sent late, and a transaction that may be open ends immediately.
            () = self.ending.0.wait() => None,
            asked = self.asked.recv() => asked,
        }
    }
}

async fn run(conn: &mut Conn, sql: String) -> Result<Answer, Error> {
    let mut result = conn.query_iter(sql).await?;
    let rows = result.collect().await?;
    let written = result.affected_rows();
    let id = result.last_insert_id().unwrap_or(0);
    drop(result);
    let status = conn.last_ok_packet().map(|ok| ok.status_flags()).unwrap_or_default();
    let is_in_transaction = status.contains(StatusFlags::SERVER_STATUS_IN_TRANS);
    let is_autocommit = status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
    Ok(Answer { rows, written, id, is_in_transaction, is_autocommit })
}

/// Waits until the connection was abandoned and its answer is overdue.
async fn overdue(end: &End, slot: &Slot) {
    end.wait().await;
    slot.overdue().await;
}

/// Connects and logs in.
async fn connect(config: &Config, server: &Server, name: &str) -> Result<Conn, BackendError> {
    let mode = match server {
        // A socket of the same machine needs no TLS.
        Server::Socket(_) => TlsMode::Disabled,
        Server::Host(..) => config.tls_mode(),
    };
    // A user without a certificate gets the answer of a wrong password.
    let is_bare = config.cert.is_none() && (config.ca.is_some() || config.tls.is_some());
    let failed = |error| error::connecting(name, error, is_bare && mode != TlsMode::Disabled);
    if mode == TlsMode::Disabled {
        return log_in(options(config, server, None)?).await.map_err(failed);
    }
    tls::provide();
    let trusted = trust(config, mode)?;
    match log_in(options(config, server, Some(trusted.clone()))?).await {
        Err(Error::Driver(DriverError::NoClientSslFlagFromServer)) if mode == TlsMode::Preferred => {
            log_in(options(config, server, None)?).await.map_err(failed)
        }
        Err(error) if mode == TlsMode::VerifyCa => match other_name(&error) {
            Some(name) => {
                let named = trusted.with_danger_tls_hostname_override(Some(name));
                log_in(options(config, server, Some(named))?).await.map_err(failed)
            }
            None => Err(failed(error)),
        },
        answer => answer.map_err(failed),
    }
}

/// Logs in, and once more if the password is refused. The driver drops a zero at the end of the challenge of `ed25519`,
/// so one login of 256 with the right password fails.
async fn log_in(options: Opts) -> Result<Conn, Error> {
    match Conn::new(options.clone()).await {
        Err(Error::Server(refusal)) if refusal.code == error::ACCESS_DENIED => Conn::new(options).await,
        answer => answer,
    }
}

/// A name of the server's certificate, if the CA has signed it and it lacks nothing but the name of the host. The
/// driver checks the name even if that is off, because it expects another error of rustls.
fn other_name(error: &Error) -> Option<String> {
    let Error::Io(IoError::Io(io)) = error else { return None };
    let Some(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
        presented, ..
    })) = io.get_ref()?.downcast_ref()
    else {
        return None;
    };
    // As in `DnsName("*.example")` or `IpAddress(::1)`.
    let (_, name) = presented.first()?.split_once('(')?;
    Some(name.trim_matches(['"', ')']).replace('*', "any"))
}

fn options(config: &Config, server: &Server, tls: Option<SslOpts>) -> Result<Opts, BackendError> {
    let password = config.login.password.as_ref().map(Secret::now).transpose()?;
    let builder = OptsBuilder::default()
        .user(config.login.user.clone())
        .pass(password.map(Cow::into_owned))
        .db_name(config.database.clone())
        .ssl_opts(tls)
        .prefer_socket(false)
        .tcp_keepalive(Some(KEEPALIVE))
        .client_found_rows(false)
        .stmt_cache_size(0)
        // Known here, so that no connection asks for them.
        .max_allowed_packet(Some(PACKET_MAX))
        .wait_timeout(Some(0));
    let builder = match server {
        Server::Host((host, port)) => builder.ip_or_hostname(host.clone()).tcp_port(*port),
        Server::Socket(path) => builder.socket(Some(path.to_string_lossy())),
    };
    Ok(builder.into())
}

/// Which certificates are accepted.
fn trust(config: &Config, mode: TlsMode) -> Result<SslOpts, BackendError> {
    let identity = config.cert.clone().zip(config.key.clone());
    if let Some((certificate, key)) = &identity {
        for (parameter, path) in [("ssl-cert", certificate), ("ssl-key", key)] {
            let unreadable = |error| {
                let message = "cannot read the file of the certificate or its key";
                let unreadable = BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message);
                unreadable.with(parameter, path.display()).caused_by(error)
            };
            std::fs::File::open(path).map_err(unreadable)?;
        }
    }
    let identity = identity.map(|(certificate, key)| ClientIdentity::new(certificate.into(), key.into()));
    let tls = SslOpts::default().with_client_identity(identity);
    if matches!(mode, TlsMode::Preferred | TlsMode::Required) {
        return Ok(tls.with_danger_accept_invalid_certs(true));
    }
    let roots = match &config.ca {
        Some(ca) => {
            // Read here, so that the error names a file that cannot be read.
            tls::authorities(ca, "ssl-ca")?;
            vec![ca.clone().into()]
        }
        None => tls::system_certificates("ssl-ca")?.into_iter().map(|der| der.to_vec().into()).collect(),
    };
    Ok(tls
        .with_disable_built_in_roots(true)
        .with_root_certs(roots)
        .with_danger_skip_domain_validation(mode == TlsMode::VerifyCa))
}

/// How long a connection may be silent before other callers get a new one.
const STUCK: Duration = Duration::from_millis(500);
/// How long other servers of the URL have to report that they take writes, too.
const SOON: Duration = Duration::from_millis(300);
/// How long callers wait for an answer over an abandoned connection.
const HOPELESS: Duration = Duration::from_secs(2);
/// How long the last message to a server may take.
const GOODBYE: Duration = Duration::from_millis(100);
/// How soon the system notices a server that has gone silently.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// In bytes: no row is larger.
const PACKET_MAX: usize = 16 << 20;
