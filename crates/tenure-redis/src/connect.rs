//! `Wire`: a connection of the driver, to one server or to a Cluster.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, RedisResult,
    Value,
    aio::{MultiplexedConnection, PubSubStream},
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use tenure_client::{End, HintRouter, StallDetector};
use tenure_core::{BackendError, locked};

use crate::{
    client::{Address, Way, connector, logged_in},
    cluster,
    config::{Config, Place},
    error, hint,
    script::Script,
    sentinel,
    shared::Shared,
    unanswered::Unanswered,
};

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) enum Wire {
    /// To one server, with the way to make a second connection to the same, and what finds it dead.
    One(MultiplexedConnection, Arc<Way>, Arc<StallDetector>),
    /// With the host that was named first, which nodes have that know no name of their own, and what finds a dead node.
    Cluster(Box<ClusterConnection>, String, Arc<Unanswered>),
}

impl Wire {
    pub(crate) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection, _, stall) => {
                let _awaited = stall.ask();
                cmd.query_async(&mut connection.clone()).await
            }
            Self::Cluster(connection, _, unanswered) => {
                let asked = unanswered.ask(cmd);
                let mut connection = connection.clone();
                let answer = Box::pin(cmd.query_async(&mut *connection)).await;
                asked.on_answer();
                answer
            }
        }
    }

    /// It was asked something, and nothing comes.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self, Self::One(_, _, stall) if stall.is_stalled())
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

    /// Has messages of this channel pushed; only over RESP3.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(connection, ..) => connection.clone().subscribe(channel).await,
            Self::Cluster(connection, ..) => connection.clone().subscribe(channel).await,
        }
    }

    /// The servers that hold locks: this one, or the masters of the Cluster.
    pub(crate) async fn nodes(&self) -> RedisResult<Vec<Node>> {
        let Self::Cluster(_, host, _) = self else { return Ok(vec![Node::Here]) };
        let mut cmd = redis::cmd("CLUSTER");
        let answer = self.ask(cmd.arg("NODES")).await?;
        let text: String = redis::from_redis_value(answer)?;
        Ok(text.lines().filter_map(|line| read_node(line, host)).collect())
    }

    pub(crate) async fn ask_node(&self, node: &Node, cmd: &Cmd) -> RedisResult<Value> {
        match (self, node) {
            (Self::Cluster(connection, ..), Node::At(host, port)) => {
                let node = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
                let value =
                    connection.clone().route_command(cmd.clone(), RoutingInfo::SingleNode(node)).await?;
                value.extract_error()
            }
            _ => self.ask(cmd).await,
        }
    }

    /// A connection of its own for messages, for servers that do not push them.
    pub(crate) async fn listen(&self, channels: &[String]) -> RedisResult<PubSubStream> {
        let Self::One(_, way, _) = self else {
            return Err(RedisError::from((redis::ErrorKind::InvalidClientConfig, "a Cluster speaks RESP3")));
        };
        let mut connection = way.listen().await?;
        for channel in channels {
            connection.subscribe(channel).await?;
        }
        Ok(connection.into_on_message())
    }
}

/// A server that holds locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Here,
    At(String, u16),
}

/// A living master of a line of `CLUSTER NODES`: `id host:port@bus flags …`.
fn read_node(line: &str, known: &str) -> Option<Node> {
    let mut words = line.split(' ');
    let (address, flags) = (words.nth(1)?, words.next()?);
    let (host, port) = address.split(['@', ',']).next()?.rsplit_once(':')?;
    let is_master = flags.split(',').any(|flag| flag == "master") && !flags.contains("fail");
    let host = if host.is_empty() { known } else { host };
    is_master.then_some(Node::At(host.to_owned(), port.parse().ok()?))
}

/// Connects once; what the server pushes goes to the router, and that it ended to `end`. Answers whether it speaks RESP3.
pub(crate) async fn open(
    shared: &Shared,
    router: &Arc<HintRouter>,
    end: &Arc<End>,
) -> Result<(Wire, bool), BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let failed = |error| error::connecting(&place, error);
    let address = match &config.place {
        Place::Cluster(nodes) => {
            let connection = cluster::connect(config, nodes, (router, end)).await?;
            let host = nodes.first().map_or_else(String::new, |(host, _)| host.clone());
            let ends = (router.clone(), end.clone());
            let unanswered = Unanswered::new(shared.host.clone(), config.response_timeout, ends);
            return Ok((Wire::Cluster(Box::new(connection), host, Arc::new(unanswered)), true));
        }
        Place::Sentinel { .. } => {
            let found = sentinel::survey(config, &shared.host).await?;
            let seat = locked(&shared.newest).of(shared.host.now(), found);
            Address::Host(seat.host, seat.port)
        }
        Place::Socket(path) => Address::Socket(path.clone()),
        Place::Host(host, port) => Address::Host(host.clone(), *port),
    };
    let tls = connector(config)?;
    let way = |resp3| Way {
        address: address.clone(),
        tls: tls.clone(),
        login: login(config, resp3),
        host: shared.host.clone(),
        connect_timeout: config.connect_timeout,
        response_timeout: config.response_timeout,
    };
    if config.resp3 {
        let (router, end) = (router.clone(), end.clone());
        let settings = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            hint::on_push(push, &router, &end);
            Ok::<(), ()>(())
        });
        match single(way(true), settings).await {
            Err(error) if knows_no_resp3(&error) => {}
            answer => return answer.map(|wire| (wire, true)).map_err(failed),
        }
    }
    single(way(false), AsyncConnectionConfig::new()).await.map(|wire| (wire, false)).map_err(failed)
}

/// Redis before 6 has no HELLO, and some services rename it away.
fn knows_no_resp3(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported || text.contains("hello") || text.contains("noproto")
}

async fn single(way: Way, settings: AsyncConnectionConfig) -> RedisResult<Wire> {
    let (connection, stall) = way.connect(settings).await?;
    Ok(Wire::One(connection, Arc::new(way), stall))
}

fn login(config: &Config, resp3: bool) -> RedisConnectionInfo {
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let info = RedisConnectionInfo::default()
        .set_db(config.db)
        .set_protocol(protocol)
        .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
    logged_in(info, &config.login)
}
