//! `Session`: one connection that has looked at its server, `Sessions`, which makes a new one when it ends, and `Pushed`, the
//! hints that come over it.
//!
//! Reconnecting to one server is ours, never silent inside the driver (that of a Cluster is the driver's): every new connection
//! reads who the server is and judges its record before its first claim (H4.3).

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::{Cmd, RedisError, Value, aio::PubSubStream};
use tenure_client::{Connections, End, HintRouter, Hints, Link, SingleFlight};
use tenure_core::{
    Adoption, Audience, BackendError, ErrorKind, Forward, Host, Moment, Outcome, ProcessId, Wake, Wakes,
    locked,
};

use crate::{
    check::{self, Gate},
    config::GuardMode,
    connection::{Batcher, BatcherHandle, Connection, Sender},
    error,
    guard::{self, LOOK, Terms, Why},
    script::{Reply, Script},
    shared::Shared,
    wire::{self, Wire},
};

/// One handle's way to the server.
pub(crate) struct Sessions {
    pub(crate) shared: Arc<Shared>,
    router: Arc<HintRouter>,
    connections: Connections<Session>,
}

/// One connection that has looked at its server.
pub(crate) struct Session {
    shared: Arc<Shared>,
    pub(crate) connection: Arc<Connection>,
    _entrance: BatcherHandle,
    gate: Mutex<Gate>,
    checking: SingleFlight<Result<(), BackendError>>,
    /// When it was asked last whether it has its replicas, if it had: see [`guard::is_alone`].
    looked: Mutex<Option<Moment>>,
    looking: SingleFlight<Result<(), BackendError>>,
    /// How many of the channels it is subscribed to.
    subscribed: AtomicUsize,
    subscribing: SingleFlight<Result<(), BackendError>>,
    /// What reads messages, where they are not pushed over this connection.
    reader: Mutex<Option<Reader>>,
    is_pushed: bool,
}

impl Sessions {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let router = Arc::new(HintRouter::new(shared.host.clone(), shared.config.claim_ttl));
        let (host, for_shared, for_router) = (shared.host.clone(), shared.clone(), router.clone());
        let open = move || Box::pin(open(for_shared.clone(), for_router.clone())) as _;
        Self { shared, router, connections: Connections::new(host, open) }
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.shared.host
    }

    /// The connection; a new one if there is none, or the one there was is dead.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, BackendError> {
        self.connections.get().await
    }

    /// The same, subscribed to every channel that somebody listens to (hazard 31: before the claim is sent).
    pub(crate) async fn listening(&self) -> Result<Arc<Session>, BackendError> {
        let session = self.session().await?;
        while session.subscribed.load(Ordering::Acquire) != self.router.wanted_count() {
            let subscribe = || Box::pin(session.clone().subscribe()) as _;
            Box::pin(session.subscribing.join(subscribe)).await?;
        }
        Ok(session)
    }

    /// A connection that has looked at nothing yet; true if it speaks RESP3.
    pub(crate) async fn wire(&self) -> Result<(Wire, bool), BackendError> {
        wire(&self.shared, &self.router, &Arc::default()).await
    }

    /// See `Backend::adopt`: over a connection of its own, since an ordinary one is refused.
    pub(crate) async fn adopt(&self) -> Result<Adoption, BackendError> {
        let place = self.shared.config.place_name();
        if self.shared.config.is_cluster() {
            let message = "a Redis Cluster keeps no record of settings";
            let error = BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message);
            return Err(error.with("redis", place));
        }
        let (wire, _) = self.wire().await?;
        let terms = Terms::of(&self.shared.config);
        Ok(match check::adopt(&self.shared, &wire, &place).await? {
            Gate::Open(_) => Adoption::new(Duration::ZERO, format!("{place}: the record says {terms}")),
            Gate::Closed { until, .. } => Adoption::new(
                until.remaining(self.host().now()),
                format!(
                    "{place}: grants nothing until the leases of the old settings are over, then {terms}"
                ),
            ),
        })
    }

    /// What to ask with; nothing if the server must be looked at first, and an error while it waits.
    pub(crate) fn pass<'a>(
        &self,
        session: &Session,
        gate: &'a Gate,
        now: Moment,
    ) -> Result<Option<&'a Arc<str>>, BackendError> {
        match gate {
            Gate::Open(text) => Ok(Some(text)),
            Gate::Closed { until, .. } if until.is_over(now) => Ok(None),
            Gate::Closed { .. } => Err(gate.refusal(session.place(), now)),
        }
    }
}

async fn wire(
    shared: &Shared,
    router: &Arc<HintRouter>,
    end: &Arc<End>,
) -> Result<(Wire, bool), BackendError> {
    let Shared { config, host, .. } = shared;
    let over = host.sleep_until(host.now() + config.connect_timeout * WHOLE);
    tokio::select! {
        biased;
        opened = wire::open(shared, router, end) => opened,
        () = over => Err(error::no_answer(&config.place_name())),
    }
}

async fn open(shared: Arc<Shared>, router: Arc<HintRouter>) -> Result<Session, BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let end = Arc::<End>::default();
    let (wire, resp3) = wire(&shared, &router, &end).await?;
    // The keys of a Cluster's locks lie on several nodes.
    let batcher = Arc::new(Batcher::new(!config.is_cluster()));
    let entrance = BatcherHandle(batcher.clone());
    let connection = Arc::new(Connection { wire, place, router, end, batcher });
    if !config.is_cluster() {
        // In the runtime that has begun the driver: nothing was waited for since.
        let sender = Sender { connection: connection.clone(), shared: shared.clone() };
        shared.host.spawn(Box::pin(sender.run()));
    }
    let asked = shared.host.now();
    let flights = || SingleFlight::new(shared.host.clone());
    let (checking, looking, subscribing) = (flights(), flights(), flights());
    let gate = if config.is_cluster() {
        Gate::always()
    } else {
        check::check(&shared, &connection.wire, &connection.place).await?
    };
    Ok(Session {
        looked: Mutex::new(gate.is_open().then_some(asked)),
        gate: Mutex::new(gate),
        subscribed: AtomicUsize::new(0),
        is_pushed: resp3,
        reader: Mutex::default(),
        _entrance: entrance,
        shared: shared.clone(),
        connection,
        checking,
        looking,
        subscribing,
    })
}

impl Link for Session {
    fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    /// The next request makes a new connection; those who listen to this one ask again.
    fn on_left(&self) {
        self.connection.on_left();
    }
}

impl Session {
    pub(crate) fn place(&self) -> &str {
        &self.connection.place
    }

    pub(crate) fn gate(&self) -> Gate {
        locked(&self.gate).clone()
    }

    fn has_looked(&self, now: Moment) -> bool {
        locked(&self.looked).is_some_and(|at| at.elapsed(now) < LOOK)
    }

    fn gate_is(&self, seen: &Gate) -> bool {
        locked(&self.gate).is_same(seen)
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.connection.wire
    }

    /// Asks, by hash first.
    pub(crate) async fn ask(&self, script: &Script, call: &Cmd) -> Result<Value, BackendError> {
        self.connection.ask(script, call).await
    }

    /// Sends a command that is no script.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value, BackendError> {
        self.connection.command(cmd).await
    }

    pub(crate) fn failed(&self, error: RedisError) -> BackendError {
        self.connection.failed(error)
    }

    /// Looks once in a while: fails on a master that lost its replicas, and judges one anew that had followed another.
    pub(crate) async fn stand(self: &Arc<Self>, now: Moment) -> Result<(), BackendError> {
        let config = &self.shared.config;
        if config.is_cluster() || config.guard == GuardMode::Off || self.has_looked(now) {
            return Ok(());
        }
        // In a box what is rare: the futures of most requests stay small.
        Box::pin(self.looking.join(|| Box::pin(self.clone().look()))).await
    }

    async fn look(self: Arc<Self>) -> Result<(), BackendError> {
        let (asked, look) = (self.shared.host.now(), &self.shared.scripts.look);
        let answer = self.ask(look, &look.call(&[self.shared.config.record()])).await?;
        let read = |mut reply: Reply| {
            let mut millis = || Some(reply.text()?.parse().ok().map(Duration::from_millis));
            let (acked, before, now) = (millis()?, millis()?, millis()??);
            Some((guard::is_alone(now, acked, before), reply.text()?))
        };
        let looked = Reply::new(answer).and_then(read);
        let (is_alone, replid) = looked.ok_or_else(|| error::unreadable(self.place(), "a look"))?;
        let gate = self.gate();
        if gate.is_of_another_history(&replid) {
            return self.recheck(&gate).await;
        }
        if is_alone {
            let gate = Gate::Closed { why: Why::Alone, until: asked + LOOK, renews: None };
            return Err(gate.refusal(self.place(), asked));
        }
        *locked(&self.looked) = Some(asked);
        Ok(())
    }

    /// Fails while nothing may be renewed: see [`renewals_wait`](crate::renewals_wait).
    pub(crate) async fn may_renew(self: &Arc<Self>) -> Result<(), BackendError> {
        let now = || self.shared.host.now();
        let waits = |gate: &Gate| {
            let Gate::Closed { renews: Some(renews), .. } = gate else { return None };
            Some(renews.is_over(now()))
        };
        let gate = self.gate();
        if waits(&gate) == Some(true) {
            self.recheck(&gate).await?;
        }
        let gate = self.gate();
        if waits(&gate).is_none() { Ok(()) } else { Err(gate.no_renewal(self.place(), now())) }
    }

    /// Looks at the server again: its gate was not what we thought.
    pub(crate) async fn recheck(self: &Arc<Self>, seen: &Gate) -> Result<(), BackendError> {
        // One that was under way already may have looked too early.
        let is_ours = AtomicBool::new(false);
        while self.gate_is(seen) && !is_ours.load(Ordering::Relaxed) {
            let check = || {
                is_ours.store(true, Ordering::Relaxed);
                Box::pin(self.clone().check()) as _
            };
            Box::pin(self.checking.join(check)).await?;
        }
        Ok(())
    }

    async fn check(self: Arc<Self>) -> Result<(), BackendError> {
        let asked = self.shared.host.now();
        match check::check(&self.shared, self.wire(), self.place()).await {
            Ok(gate) => {
                *locked(&self.looked) = gate.is_open().then_some(asked);
                *locked(&self.gate) = gate;
                Ok(())
            }
            Err(error) => {
                // A server that is no master any more, say: the next request looks for another one.
                if error.kind().is_transient() {
                    self.on_left();
                }
                Err(error)
            }
        }
    }

    async fn subscribe(self: Arc<Self>) -> Result<(), BackendError> {
        let Connection { router, wire, .. } = &*self.connection;
        let channels: Vec<String> = router.wanted().into_iter().map(wire::channel).collect();
        if self.is_pushed {
            for channel in channels.iter().skip(self.subscribed.load(Ordering::Acquire)) {
                wire.subscribe(channel).await.map_err(|error| self.failed(error))?;
            }
        } else {
            let messages = wire.listen(&channels).await.map_err(|error| self.failed(error))?;
            let over = Arc::<End>::default();
            self.shared.host.spawn(Box::pin(read(messages, Arc::downgrade(&self.connection), over.clone())));
            *locked(&self.reader) = Some(Reader(over));
        }
        self.subscribed.store(channels.len(), Ordering::Release);
        Ok(())
    }
}

/// A task that reads messages until this is dropped.
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
        let said = wire::read_hint(message.get_channel_name().as_bytes(), message.get_payload_bytes());
        said.into_iter().for_each(|hint| connection.router.route(hint));
    }
}

/// The stream of hints of one process. Nothing is read ahead but by the driver.
pub(crate) struct Pushed {
    sessions: Arc<Sessions>,
    audience: Audience,
    hints: Hints,
}

impl Pushed {
    pub(crate) fn new(sessions: Arc<Sessions>, process: ProcessId, audience: Audience) -> Self {
        let hints = sessions.router.listen(process, audience);
        Self { sessions, audience, hints }
    }
}

#[async_trait]
impl Wakes for Pushed {
    async fn next(&mut self) -> Wake {
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

/// Keeps a connection that hears what is pushed; never ends.
async fn listen(sessions: &Sessions, audience: Audience) {
    let host = sessions.host();
    loop {
        match sessions.listening().await {
            Ok(session) => {
                session.connection.end.wait().await;
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

/// How many connect time-outs it may take until a connection can be used: finding the master takes a question to the Sentinels, and
/// others to the server.
const WHOLE: u32 = 4;

/// Pause before a connection is made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);
