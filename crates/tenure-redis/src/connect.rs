//! `Wire`: a connection of the driver, to one server or to a Cluster.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode, Value,
    aio::{MultiplexedConnection, PubSubStream},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};
use tenure_core::BackendError;

use crate::{
    client::{address, certificates, open_client, tcp},
    config::{Config, Place},
    ears::Ears,
    error,
    mutex::locked,
    script::Script,
    sentinel,
    shared::Shared,
};

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) enum Wire {
    /// To one server, with the way to make a second connection to the same.
    One(MultiplexedConnection, Box<Client>),
    /// With the host that was named first: nodes that know no other name of their own have that one.
    Cluster(Box<ClusterConnection>, String),
}

impl Wire {
    pub(crate) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection, _) => cmd.query_async(&mut connection.clone()).await,
            Self::Cluster(connection, _) => cmd.query_async(&mut (**connection).clone()).await,
        }
    }

    /// Calls a script by its hash, and by its text if the server has forgotten it (hazard 29).
    pub(crate) async fn eval(&self, script: &Script, call: &Cmd) -> RedisResult<Value> {
        match self.ask(call).await {
            Err(error) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                self.ask(&script.in_full(call)).await
            }
            answer => answer,
        }
    }

    /// Has messages of this channel pushed to the ears; only over RESP3.
    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        match self {
            Self::One(connection, _) => connection.clone().subscribe(channel).await,
            Self::Cluster(connection, _) => connection.clone().subscribe(channel).await,
        }
    }

    /// The servers that hold locks: this one, or the masters of the Cluster.
    pub(crate) async fn nodes(&self) -> RedisResult<Vec<Node>> {
        let Self::Cluster(_, host) = self else { return Ok(vec![Node::Here]) };
        let mut cmd = redis::cmd("CLUSTER");
        let answer = self.ask(cmd.arg("NODES")).await?;
        let text: String = redis::from_redis_value(answer)?;
        Ok(text.lines().filter_map(|line| read_node(line, host)).collect())
    }

    pub(crate) async fn ask_node(&self, node: &Node, cmd: &Cmd) -> RedisResult<Value> {
        match (self, node) {
            (Self::Cluster(connection, _), Node::At(host, port)) => {
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
        let Self::One(_, client) = self else {
            return Err(RedisError::from((redis::ErrorKind::InvalidClientConfig, "a Cluster speaks RESP3")));
        };
        let mut connection = client.get_async_pubsub().await?;
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

/// Connects once; what the server pushes goes to `ears`. Answers whether it speaks RESP3.
pub(crate) async fn open(shared: &Shared, ears: &Arc<Ears>) -> Result<(Wire, bool), BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let certificates = certificates(config)?;
    let failed = |error| error::connecting(&place, error);
    if let Place::Cluster(nodes) = &config.place {
        let connection = cluster(config, nodes, certificates, ears).await.map_err(failed)?;
        let host = nodes.first().map_or_else(String::new, |(host, _)| host.clone());
        return Ok((Wire::Cluster(Box::new(connection), host), true));
    }
    let place_of_one = match &config.place {
        Place::Sentinel { .. } => {
            let found = sentinel::survey(config, &*shared.host, &certificates).await?;
            let seat = locked(&shared.newest).of(shared.host.now(), found);
            address(config.tls, &seat.host, seat.port)
        }
        Place::Socket(path) => ConnectionAddr::Unix(path.clone()),
        Place::Host(host, port) => address(config.tls, host, *port),
        Place::Cluster(_) => unreachable!("BUG: a Cluster is not connected to as one server"),
    };
    let single = |ears| single(config, &place_of_one, &certificates, ears);
    if config.resp3 {
        match single(Some(ears)).await {
            Err(error) if knows_no_resp3(&error) => {}
            answer => return answer.map(|wire| (wire, true)).map_err(failed),
        }
    }
    single(None).await.map(|wire| (wire, false)).map_err(failed)
}

/// Redis before 6 has no HELLO, and some services rename it away.
fn knows_no_resp3(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported || text.contains("hello") || text.contains("noproto")
}

async fn single(
    config: &Config,
    place: &ConnectionAddr,
    tls: &Option<TlsCertificates>,
    ears: Option<&Arc<Ears>>,
) -> RedisResult<Wire> {
    let info = place.clone().into_connection_info()?.set_redis_settings(server_info(config, ears.is_some()));
    let client = open_client(info.set_tcp_settings(tcp()), tls)?;
    let mut settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.response_timeout));
    if let Some(ears) = ears {
        let ears = ears.clone();
        settings = settings.set_push_sender(move |push: PushInfo| {
            ears.on_push(push);
            Ok::<(), ()>(())
        });
    }
    let connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
    Ok(Wire::One(connection, Box::new(client)))
}

fn server_info(config: &Config, resp3: bool) -> RedisConnectionInfo {
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let mut info = RedisConnectionInfo::default()
        .set_db(config.db)
        .set_protocol(protocol)
        .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &config.login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &config.login.password {
        info = info.set_password(password);
    }
    info
}

async fn cluster(
    config: &Config,
    nodes: &[(String, u16)],
    tls: Option<TlsCertificates>,
    ears: &Arc<Ears>,
) -> RedisResult<ClusterConnection> {
    let ears = ears.clone();
    let mut builder =
        ClusterClientBuilder::new(nodes.iter().map(|(host, port)| address(config.tls, host, *port)))
            .connection_timeout(config.connect_timeout)
            .response_timeout(config.response_timeout)
            .overall_response_timeout(Some(config.response_timeout * 2))
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(tcp())
            .push_sender(move |push: PushInfo| {
                ears.on_push(push);
                Ok::<(), ()>(())
            });
    if let Some(user) = &config.login.user {
        builder = builder.username(user);
    }
    if let Some(password) = &config.login.password {
        builder = builder.password(password);
    }
    if config.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = tls {
        builder = builder.certs(certificates);
    }
    builder.build()?.get_async_connection().await
}
