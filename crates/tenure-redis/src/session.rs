//! `RedisSession`: one connection whose server was checked, `RedisSessions`, which opens a new one when it ends, and
//! `Pushed`, the hints that come over it.
//!
//! Tenure reconnects, never the driver silently: every new connection reads the identity of the server and judges its
//! record before its first claim (H4.3).

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::aio::PubSubStream;
use tenure_client::{Channels, Connections, End, Link, SingleFlight};
use tenure_core::{
    Adopt, Adoption, Audience, BackendError, BoxFuture, ErrorKind, Forward, Host, Notifications, Notifier,
    Outcome, ProcessId, WakeEvent, WakeStream, locked,
};
use tokio::sync::oneshot;

use crate::{
    batch::Batcher,
    connection::{self, Connection, Wire},
    error,
    health::Health,
    hints, record,
    shared::RedisShared,
};

/// One handle's way to the server.
pub(crate) struct RedisSessions {
    pub(crate) shared: Arc<RedisShared>,
    channels: Arc<Channels>,
    connections: Connections<RedisSession>,
}

/// One connection whose server was checked.
pub(crate) struct RedisSession {
    host: Arc<dyn Host>,
    connection: Arc<Connection>,
    pub(crate) batcher: Batcher,
    pub(crate) health: Arc<Health>,
    /// How many of the channels it is subscribed to.
    subscribed: AtomicUsize,
    subscribing: SingleFlight<Result<(), BackendError>>,
    /// What reads messages, where they are not pushed over this connection.
    reader: Mutex<Option<Reader>>,
    is_pushed: bool,
}

impl Deref for RedisSession {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl RedisSessions {
    pub(crate) fn new(shared: Arc<RedisShared>) -> Self {
        let channels =
            Arc::new(Channels::new(Notifier::with_turns(shared.host.clone(), shared.config.claim_ttl)));
        let (host, for_shared, for_channels) = (shared.host.clone(), shared.clone(), channels.clone());
        let open = move || Box::pin(open(for_shared.clone(), for_channels.clone())) as _;
        Self {
            shared,
            channels,
            connections: Connections::new(host, open).easing(BackendError::after_success),
        }
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.shared.host
    }

    /// The connection; a new one if there is none, or the one there was is dead.
    pub(crate) async fn session(&self) -> Result<Arc<RedisSession>, BackendError> {
        self.connections.get().await
    }

    /// The same, subscribed to every channel that a task listens to (hazard 31: before the claim is sent).
    pub(crate) async fn listening(&self) -> Result<Arc<RedisSession>, BackendError> {
        let session = self.session().await?;
        while session.subscribed.load(Ordering::Acquire) != self.channels.count() {
            let subscribe = || Box::pin(session.clone().subscribe()) as _;
            Box::pin(session.subscribing.join(subscribe)).await?;
        }
        Ok(session)
    }

    /// A connection that has checked nothing yet; true if it speaks RESP3.
    pub(crate) async fn wire(&self) -> Result<(Wire, bool), BackendError> {
        wire(&self.shared, &self.channels, &Arc::default()).await
    }

    /// See `Backend::adopt`: over a separate connection, since an ordinary one is refused.
    pub(crate) async fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        let place = self.shared.config.place_name();
        if self.shared.config.is_cluster() {
            let message = "a Redis Cluster keeps no record of settings";
            let error = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message);
            return Err(error.with("redis", place));
        }
        let (wire, _) = self.wire().await?;
        record::adopt(&self.shared, &wire, &place, adopt).await
    }
}

async fn wire(
    shared: &Arc<RedisShared>,
    channels: &Arc<Channels>,
    end: &Arc<End>,
) -> Result<(Wire, bool), BackendError> {
    let RedisShared { config, host, .. } = &**shared;
    let over = host.sleep_until(host.now() + config.connect_timeout * WHOLE);
    tokio::select! {
        biased;
        opened = connection::open(shared, channels, end) => opened,
        () = over => Err(error::no_answer(&config.place_name())),
    }
}

async fn open(shared: Arc<RedisShared>, channels: Arc<Channels>) -> Result<RedisSession, BackendError> {
    let opened = open_checked(shared.clone(), channels).await;
    match opened {
        Err(error) if error::is_cut(&error) && connection::leads_to_proxy(&shared).await => {
            Err(error::proxy(&shared.config.place_name()))
        }
        opened => opened,
    }
}

async fn open_checked(
    shared: Arc<RedisShared>,
    channels: Arc<Channels>,
) -> Result<RedisSession, BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let end = Arc::<End>::default();
    let (wire, resp3) = wire(&shared, &channels, &end).await?;
    let connection = Arc::new(Connection { wire, place, channels, end });
    let batcher = Batcher::new(connection.clone(), shared.clone());
    let health = Arc::new(Health::check(connection.clone(), shared.clone()).await?);
    Ok(RedisSession {
        host: shared.host.clone(),
        connection,
        batcher,
        health,
        subscribed: AtomicUsize::new(0),
        subscribing: SingleFlight::new(shared.host.clone()),
        reader: Mutex::default(),
        is_pushed: resp3,
    })
}

impl Link for RedisSession {
    fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    fn on_left(&self) {
        self.batcher.end();
    }
}

impl RedisSession {
    async fn subscribe(self: Arc<Self>) -> Result<(), BackendError> {
        let wire = &self.connection.wire;
        let all = self.connection.channels.all().into_iter();
        let channels: Vec<String> = all.map(hints::channel).collect();
        if self.is_pushed {
            for channel in channels.iter().skip(self.subscribed.load(Ordering::Acquire)) {
                wire.subscribe(channel).await.map_err(|error| self.failed(error))?;
            }
        } else {
            let reader = self.read_apart(channels.clone()).await?;
            *locked(&self.reader) = Some(reader);
        }
        self.subscribed.store(channels.len(), Ordering::Release);
        Ok(())
    }

    /// Reads messages on a separate thread, which notifies all waiters of the handle: the runtime of the first waiter may
    /// end or be idle.
    async fn read_apart(&self, channels: Vec<String>) -> Result<Reader, BackendError> {
        // If this future is dropped, its thread ends.
        let (reader, connection) = (Reader(Arc::default()), Arc::downgrade(&self.connection));
        let Some(route) = self.connection.wire.route() else { return Ok(reader) };
        let (tell, told) = oneshot::channel();
        let until = reader.0.clone();
        let start = move || -> BoxFuture<'static, ()> {
            Box::pin(async move {
                let (answer, messages) = match route.listen(&channels).await {
                    Ok(messages) => (Ok(()), Some(messages)),
                    Err(error) => (Err(error), None),
                };
                if tell.send(answer).is_ok()
                    && let Some(messages) = messages
                {
                    read(messages, connection, until).await;
                }
            })
        };
        let place = &self.connection.place;
        self.host
            .spawn_apart("tenure-hints", Box::new(start))
            .map_err(|error| error::no_thread(place, error))?;
        let listens = told.await.map_err(|_| error::no_answer(place))?;
        listens.map(|()| reader).map_err(|error| self.failed(error))
    }
}

/// A thread that reads messages until this is dropped.
struct Reader(Arc<End>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.set();
    }
}

async fn read(mut messages: PubSubStream, connection: Weak<Connection>, over: Arc<End>) {
    loop {
        let message = tokio::select! {
            biased;
            () = over.wait() => return,
            message = messages.next() => message,
        };
        let Some(connection) = connection.upgrade() else { return };
        let Some(message) = message else { return connection.on_left() };
        let said = hints::read_hint(message.get_channel_name().as_bytes(), message.get_payload_bytes());
        said.into_iter().for_each(|hint| connection.channels.notifier.deliver(hint));
    }
}

/// The stream of hints of one process. Only the driver reads ahead.
pub(crate) struct Pushed {
    sessions: Arc<RedisSessions>,
    audience: Audience,
    hints: Notifications,
}

impl Pushed {
    pub(crate) fn new(sessions: Arc<RedisSessions>, process: ProcessId, audience: Audience) -> Self {
        let hints = sessions.channels.listen(process, audience);
        Self { sessions, audience, hints }
    }
}

#[async_trait]
impl WakeStream for Pushed {
    async fn next(&mut self) -> WakeEvent {
        tokio::select! {
            biased;
            wake = self.hints.next() => wake,
            () = listen(&self.sessions, self.audience) => unreachable!("BUG: listening never ends"),
        }
    }

    fn forward(&mut self, to: Forward) {
        self.hints.forward(to);
    }
}

/// Keeps a connection that receives what is pushed; never ends.
async fn listen(sessions: &RedisSessions, audience: Audience) {
    let host = sessions.host();
    loop {
        match sessions.listening().await {
            Ok(session) => {
                session.end.wait().await;
                // A waiter, which was notified of the end, opens the next one in its own runtime.
                if audience != Audience::Waiters {
                    continue;
                }
            }
            Err(error) => tracing::debug!(%error, "no hints are heard"),
        }
        host.sleep_until(host.now() + RECONNECT).await;
    }
}

/// How many connect timeouts it may take until a connection can be used: to find the master takes requests to the
/// Sentinels, and then to the server.
const WHOLE: u32 = 4;

/// Pause before a connection is made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);
