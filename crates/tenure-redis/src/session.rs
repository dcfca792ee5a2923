//! `Session`: one connection that has looked at its server, and `Sessions`, which makes a new one when it ends.
//!
//! Reconnecting to one server is ours, never silent inside the driver (that of a Cluster is the driver's): every new connection reads who the server is and judges its
//! record before its first claim (H4.3).

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use redis::{Cmd, RedisError, Value, aio::PubSubStream};
use tenure_client::{Connections, End, HintRouter, Link};
use tenure_core::{Adoption, BackendError, ErrorKind, Host, Moment, Outcome, locked};

use crate::{
    check::{self, Gate},
    config::GuardMode,
    connect::{self, Wire},
    connection::Connection,
    error,
    gathering::{Entrance, Gathering},
    guard::{self, LOOK, Terms, Why},
    hint,
    plain::{Plain, Told},
    reply::Reply,
    script::Script,
    shared::Shared,
    together::{self, Sender},
};

/// One handle's way to the server.
pub(crate) struct Sessions {
    pub(crate) shared: Arc<Shared>,
    router: Arc<HintRouter>,
    connections: Connections<Session>,
}

/// One connection that has looked at its server.
pub(crate) struct Session {
    connection: Arc<Connection>,
    _entrance: Entrance,
    gate: Mutex<Gate>,
    checking: tokio::sync::Mutex<()>,
    /// When it was asked last whether it has its replicas, if it had: see [`guard::is_alone`].
    looked: Mutex<Option<Moment>>,
    looking: tokio::sync::Mutex<()>,
    /// How many of the channels it is subscribed to.
    subscribed: AtomicUsize,
    subscribing: tokio::sync::Mutex<()>,
    /// The connection for messages, where they are not pushed.
    messages: Option<tokio::sync::Mutex<Option<PubSubStream>>>,
}

impl Sessions {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let router = Arc::new(HintRouter::new(shared.host.clone(), shared.config.claim_ttl));
        let (host, patience) = (shared.host.clone(), shared.config.connect_timeout * WHOLE);
        let (for_shared, for_router) = (shared.clone(), router.clone());
        let open = move || Box::pin(open(for_shared.clone(), for_router.clone())) as _;
        Self { shared, router, connections: Connections::new(host, patience, open) }
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.shared.host
    }

    pub(crate) fn router(&self) -> &HintRouter {
        &self.router
    }

    /// The connection; a new one if there is none, or the one there was is dead.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, BackendError> {
        self.connections.get().await
    }

    /// The same, subscribed to every channel that somebody listens to (hazard 31: before the claim is sent).
    pub(crate) async fn listening(&self) -> Result<Arc<Session>, BackendError> {
        let session = self.session().await?;
        if session.subscribed.load(Ordering::Acquire) != self.router.wanted_count() {
            Box::pin(session.subscribe()).await.map_err(|error| session.failed(error))?;
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

    /// Looks once in a while: fails on a master that lost its replicas, and judges one anew that had followed another.
    pub(crate) async fn stand(&self, session: &Session, now: Moment) -> Result<(), BackendError> {
        let config = &self.shared.config;
        if config.is_cluster() || config.guard == GuardMode::Off {
            return Ok(());
        }
        // In a box what is rare: the futures of most requests stay small.
        if session.has_looked(now) { Ok(()) } else { Box::pin(self.look(session)).await }
    }

    async fn look(&self, session: &Session) -> Result<(), BackendError> {
        let _only_one = session.looking.lock().await;
        if session.has_looked(self.host().now()) {
            return Ok(());
        }
        let (asked, look) = (self.host().now(), &self.shared.scripts.look);
        let answer = session.ask(look, &look.call(&[self.shared.config.record()])).await?;
        let read = |mut reply: Reply| {
            let mut millis = || Some(reply.text()?.parse().ok().map(Duration::from_millis));
            let (acked, before, now) = (millis()?, millis()?, millis()??);
            Some((guard::is_alone(now, acked, before), reply.text()?))
        };
        let looked = Reply::new(answer).and_then(read);
        let (is_alone, replid) = looked.ok_or_else(|| error::unreadable(session.place(), "a look"))?;
        let gate = session.gate();
        if gate.is_of_another_history(&replid) {
            return self.recheck(session, &gate).await;
        }
        if is_alone {
            let gate = Gate::Closed { why: Why::Alone, until: asked + LOOK, renews: None };
            return Err(gate.refusal(session.place(), asked));
        }
        *locked(&session.looked) = Some(asked);
        Ok(())
    }

    /// Fails while nothing may be renewed: see [`overlap`](crate::overlap).
    pub(crate) async fn may_renew(&self, session: &Session) -> Result<(), BackendError> {
        let waits = |gate: &Gate| {
            let Gate::Closed { renews: Some(renews), .. } = gate else { return None };
            Some(renews.is_over(self.host().now()))
        };
        let gate = session.gate();
        if waits(&gate) == Some(true) {
            self.recheck(session, &gate).await?;
        }
        let gate = session.gate();
        if waits(&gate).is_none() { Ok(()) } else { Err(gate.no_renewal(session.place(), self.host().now())) }
    }

    /// Looks at the server again: its gate was not what we thought.
    pub(crate) async fn recheck(&self, session: &Session, seen: &Gate) -> Result<(), BackendError> {
        let _only_one = session.checking.lock().await;
        if !session.gate_is(seen) {
            return Ok(());
        }
        let asked = self.host().now();
        match check::check(&self.shared, session.wire(), session.place()).await {
            Ok(gate) => {
                *locked(&session.looked) = gate.is_open().then_some(asked);
                *locked(&session.gate) = gate;
            }
            Err(error) => {
                // A server that is no master any more, say: the next request looks for another one.
                if error.kind().is_transient() {
                    session.on_left();
                }
                return Err(error);
            }
        }
        Ok(())
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
        opened = connect::open(shared, router, end) => opened,
        () = over => Err(error::no_answer(&config.place_name())),
    }
}

async fn open(shared: Arc<Shared>, router: Arc<HintRouter>) -> Result<Session, BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let end = Arc::<End>::default();
    let (wire, resp3) = wire(&shared, &router, &end).await?;
    // The keys of a Cluster's locks lie on several nodes.
    let gathering = Arc::new(Gathering::new(!config.is_cluster(), shared.given_up.clone()));
    let entrance = Entrance(gathering.clone());
    let connection = Arc::new(Connection { wire, place, router, end, gathering });
    if !config.is_cluster() {
        // In the runtime that has begun the driver: nothing was waited for since.
        let sender = Sender { connection: connection.clone(), shared: shared.clone() };
        shared.host.spawn(Box::pin(sender.run()));
    }
    let asked = shared.host.now();
    let gate = if config.is_cluster() {
        Gate::always()
    } else {
        check::check(&shared, &connection.wire, &connection.place).await?
    };
    Ok(Session {
        connection,
        _entrance: entrance,
        looked: Mutex::new(gate.is_open().then_some(asked)),
        looking: tokio::sync::Mutex::default(),
        gate: Mutex::new(gate),
        checking: tokio::sync::Mutex::default(),
        subscribed: AtomicUsize::new(0),
        subscribing: tokio::sync::Mutex::default(),
        messages: (!resp3).then(tokio::sync::Mutex::default),
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

    /// Asks on the plain path: alone while few are under way, else with those that are ready at the same time.
    pub(crate) async fn ask_plainly<R: Plain>(
        &self,
        shared: &Shared,
        request: R,
    ) -> Result<R::Answer, BackendError> {
        let Connection { gathering, .. } = &*self.connection;
        if let Some(_under_way) = gathering.alone() {
            return together::alone(&self.connection, shared, &request).await;
        }
        if gathering.is_stuck(&*shared.host, shared.config.response_timeout) {
            self.connection.on_left();
        }
        match gathering.join(request, &*shared.host).hear().await {
            Some(Told::Answer(answer)) => answer,
            Some(Told::Alone(request)) => together::alone(&self.connection, shared, &request).await,
            None => {
                self.connection.on_left();
                Err(error::unsent(self.place()))
            }
        }
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

    async fn subscribe(&self) -> redis::RedisResult<()> {
        let _only_one = self.subscribing.lock().await;
        let channels: Vec<String> = self.connection.router.wanted().into_iter().map(hint::channel).collect();
        let from = self.subscribed.load(Ordering::Acquire);
        match &self.messages {
            None => {
                for channel in channels.iter().skip(from) {
                    self.connection.wire.subscribe(channel).await?;
                }
            }
            Some(messages) => {
                let stream = self.connection.wire.listen(&channels).await?;
                *messages.lock().await = Some(stream);
            }
        }
        self.subscribed.store(channels.len(), Ordering::Release);
        Ok(())
    }

    /// Listens until the connection ends, or there is another one.
    pub(crate) async fn hear(&self) {
        tokio::select! {
            biased;
            () = self.connection.end.wait() => {}
            () = self.read_messages() => self.on_left(),
        }
    }

    async fn read_messages(&self) {
        let Some(messages) = &self.messages else { return std::future::pending().await };
        let mut messages = messages.lock().await;
        let Some(stream) = messages.as_mut() else { return };
        while let Some(message) = stream.next().await {
            let said = hint::read(message.get_channel_name().as_bytes(), message.get_payload_bytes());
            said.into_iter().for_each(|hint| self.connection.router.route(hint));
        }
    }
}

/// How many connect time-outs it may take until a connection can be used: finding the master takes a question to the Sentinels, and
/// others to the server.
const WHOLE: u32 = 4;
