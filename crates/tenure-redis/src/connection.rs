//! `Connection`: a connection of the driver with its place, and what a failure on it means for all that use
//! it. `Wire`: the same without a place, to one server or to a Cluster; how it is opened, and what is pushed
//! over it.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Cmd, PushInfo, RedisError, RedisResult, Value, aio::MultiplexedConnection,
};
use tenure_client::{Channels, End, StallDetector};
use tenure_core::{BackendError, locked};

use crate::{
    client::{ServerAddress, ServerRoute},
    cluster::Cluster,
    config::Topology,
    error::{self, AfterError},
    hints::on_push,
    script::Script,
    sentinel,
    shared::RedisShared,
};

/// What requests go over.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    pub(crate) place: String,
    pub(crate) channels: Arc<Channels>,
    pub(crate) end: Arc<End>,
}

impl Connection {
    pub(crate) fn is_usable(&self) -> bool {
        !self.end.is_over() && !self.wire.is_stalled()
    }

    /// The next request makes a new connection; its listeners ask again.
    pub(crate) fn on_left(&self) {
        if self.end.set() {
            self.channels.notify_all();
        }
    }

    /// Asks, by hash first.
    pub(crate) async fn ask(&self, script: &Script, call: &Cmd) -> Result<Value, BackendError> {
        self.wire.eval(script, call).await.map_err(|error| self.failed(error))
    }

    /// Sends a command that is no script.
    pub(crate) async fn command(&self, cmd: &Cmd) -> Result<Value, BackendError> {
        self.wire.ask(cmd).await.map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: RedisError) -> BackendError {
        let (then, error) = error::asked(&self.place, error);
        // In a Cluster only the connection to one node is dropped, and that has been done.
        if then == AfterError::Drop && matches!(self.wire, Wire::One(..)) {
            self.on_left();
        }
        error
    }
}

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) enum Wire {
    /// To one server, with the route for a second connection to it, and the detector of a stall.
    One(MultiplexedConnection, Arc<ServerRoute>, Arc<StallDetector>),
    /// To the nodes of a Cluster.
    Cluster(Arc<Cluster>),
}

impl Wire {
    pub(crate) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection, _, stall) => {
                let _awaited = stall.ask();
                cmd.query_async(&mut connection.clone()).await
            }
            // In a box: the futures of most requests stay small.
            Self::Cluster(cluster) => Box::pin(cluster.ask(cmd)).await,
        }
    }

    /// A request was sent, and no answer comes.
    pub(crate) fn is_stalled(&self) -> bool {
        match self {
            Self::One(_, _, stall) => stall.is_stalled(),
            Self::Cluster(cluster) => cluster.is_stalled(),
        }
    }

    /// Calls a script by its hash, and by its text if the server has forgotten it (hazard 29).
    pub(crate) async fn eval(&self, script: &Script, call: &Cmd) -> RedisResult<Value> {
        match self.ask(call).await {
            Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                let in_full = script.in_full(call);
                Box::pin(self.ask(&in_full)).await
            }
            answer => answer,
        }
    }

    /// Subscribes to this channel; only over RESP3.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(connection, ..) => connection.clone().subscribe(channel).await,
            Self::Cluster(cluster) => cluster.subscribe(channel).await,
        }
    }

    /// The servers that hold locks: this one, or the masters of the Cluster.
    pub(crate) async fn nodes(&self) -> RedisResult<Vec<LockNode>> {
        let Self::Cluster(cluster) = self else { return Ok(vec![LockNode::Here]) };
        let masters = cluster.masters().await?;
        Ok(masters.into_iter().map(|(host, port)| LockNode::At(host, port)).collect())
    }

    /// As [`eval`](Self::eval), at this server.
    pub(crate) async fn eval_at(&self, node: &LockNode, script: &Script, call: &Cmd) -> RedisResult<Value> {
        match self.ask_node(node, call).await {
            Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                let in_full = script.in_full(call);
                Box::pin(self.ask_node(node, &in_full)).await
            }
            answer => answer,
        }
    }

    pub(crate) async fn ask_node(&self, node: &LockNode, cmd: &Cmd) -> RedisResult<Value> {
        match (self, node) {
            (Self::Cluster(cluster), LockNode::At(host, port)) => {
                cluster.ask_at(&(host.clone(), *port), cmd).await
            }
            _ => self.ask(cmd).await,
        }
    }

    /// The route for a separate connection for messages, if the server does not push them. A Cluster does.
    pub(crate) fn route(&self) -> Option<Arc<ServerRoute>> {
        if let Self::One(_, route, _) = self { Some(route.clone()) } else { None }
    }
}

/// A server that holds locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockNode {
    Here,
    At(String, u16),
}

/// Connects once. What the server pushes goes to the channels; `end` is set when the connection ends. Returns whether the
/// server speaks RESP3.
pub(crate) async fn open(
    shared: &Arc<RedisShared>,
    channels: &Arc<Channels>,
    end: &Arc<End>,
) -> Result<(Wire, bool), BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let failed = |error| error::connecting(&place, error);
    let address = match &config.topology {
        Topology::Cluster(_) => {
            return Ok((Wire::Cluster(Cluster::open(shared, channels, end).await?), true));
        }
        Topology::Sentinel { .. } => {
            let found = sentinel::survey(config, &shared.host).await?;
            let master = locked(&shared.newest).of(shared.host.now(), found);
            let (host, port) = config.mapped(master.host, master.port);
            ServerAddress::Host(host, port)
        }
        Topology::Socket(path) => ServerAddress::Socket(path.clone()),
        Topology::Host(host, port) => ServerAddress::Host(host.clone(), *port),
    };
    let on_end = || {
        let (channels, end) = (channels.clone(), end.clone());
        move || {
            if end.set() {
                channels.notify_all();
            }
        }
    };
    if config.resp3 {
        let (channels, end) = (channels.clone(), end.clone());
        let settings = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            on_push(push, &channels, &end);
            Ok::<(), ()>(())
        });
        match single(ServerRoute::new(config, &shared.host, address.clone(), true)?, settings, on_end()).await
        {
            Err(error) if knows_no_resp3(&error) => {}
            answer => return answer.map(|wire| (wire, true)).map_err(failed),
        }
    }
    let plain = single(
        ServerRoute::new(config, &shared.host, address, false)?,
        AsyncConnectionConfig::new(),
        on_end(),
    );
    plain.await.map(|wire| (wire, false)).map_err(failed)
}

/// Whether the address is that of a proxy that spreads keys, and not of one server.
pub(crate) async fn leads_to_proxy(shared: &RedisShared) -> bool {
    let Topology::Host(host, port) = &shared.config.topology else { return false };
    match ServerRoute::new(&shared.config, &shared.host, ServerAddress::Host(host.clone(), *port), false) {
        Ok(route) => route.leads_to_proxy().await,
        Err(_) => false,
    }
}

/// Redis before 6 has no HELLO, and some services rename it.
fn knows_no_resp3(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported || text.contains("hello") || text.contains("noproto")
}

async fn single(
    way: ServerRoute,
    settings: AsyncConnectionConfig,
    on_end: impl Fn() + Send + 'static,
) -> RedisResult<Wire> {
    let (connection, stall) = way.connect(settings, on_end).await?;
    Ok(Wire::One(connection, Arc::new(way), stall))
}
