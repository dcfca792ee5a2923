//! `Connection`: a connection of the driver with its place, and what a failure on it means for all that use
//! it. `Wire`: the same without a place, to one server or to a Cluster; how it is opened, and what is pushed
//! over it.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    Arg, AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode, Value,
    aio::{MultiplexedConnection, PubSubStream},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    io::tcp::TcpSettings,
};
use tenure_client::{Channels, End, StallDetector, tls};
use tenure_core::{Audience, BackendError, Hint, Host, Moment, OwnerId, ProcessId, locked};

use crate::{
    client::{ServerAddress, ServerRoute, connector, logged_in},
    config::{Config, Topology},
    error::{self, AfterError},
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
        if then == AfterError::Drop {
            self.on_left();
        }
        error
    }
}

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) enum Wire {
    /// To one server, with the way to make a second connection to the same, and what finds it dead.
    One(MultiplexedConnection, Arc<ServerRoute>, Arc<StallDetector>),
    /// With the host that was named first, which nodes have that know no name of their own, and what finds a
    /// dead node.
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

    /// The servers that hold locks: this one, or the masters of the Cluster. Under the names by which the driver knows them: it
    /// reads this answer as well, in which a node may have the name of a host or an address.
    pub(crate) async fn nodes(&self) -> RedisResult<Vec<LockNode>> {
        let Self::Cluster(_, known, _) = self else { return Ok(vec![LockNode::Here]) };
        let mut cmd = redis::cmd("CLUSTER");
        let answer = self.ask(cmd.arg("SLOTS")).await?;
        let Value::Array(ranges) = answer else { return Ok(Vec::new()) };
        let mut nodes: Vec<LockNode> = Vec::new();
        for node in ranges.iter().filter_map(|range| master_of(range, known)) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        Ok(nodes)
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
            (Self::Cluster(connection, ..), LockNode::At(host, port)) => {
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
pub(crate) enum LockNode {
    Here,
    At(String, u16),
}

/// The master of a range of `CLUSTER SLOTS`: `first, last, [host, port, …], replicas …`. A node without a host, `known`
/// stands for it.
fn master_of(range: &Value, known: &str) -> Option<LockNode> {
    let Value::Array(range) = range else { return None };
    let Value::Array(master) = range.get(2)? else { return None };
    let host: Option<String> = redis::from_redis_value(master.first()?.clone()).ok()?;
    let port: u16 = redis::from_redis_value(master.get(1)?.clone()).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| known.to_owned());
    Some(LockNode::At(host, port))
}

/// Connects once; what the server pushes goes to the channels, and that it ended to `end`. Answers whether it
/// speaks RESP3.
pub(crate) async fn open(
    shared: &RedisShared,
    channels: &Arc<Channels>,
    end: &Arc<End>,
) -> Result<(Wire, bool), BackendError> {
    let config = &shared.config;
    let place = config.place_name();
    let failed = |error| error::connecting(&place, error);
    let address = match &config.topology {
        Topology::Cluster(nodes) => {
            let connection = connect_cluster(config, nodes, (channels, end)).await?;
            let host = nodes.first().map_or_else(String::new, |(host, _)| host.clone());
            let ends = (channels.clone(), end.clone());
            let unanswered = Unanswered::new(shared.host.clone(), config.response_timeout, ends);
            return Ok((Wire::Cluster(Box::new(connection), host, Arc::new(unanswered)), true));
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
    let tls = connector(config)?;
    let way = |resp3| {
        Ok::<_, BackendError>(ServerRoute {
            address: address.clone(),
            tls: tls.clone(),
            login: login(config, resp3)?,
            host: shared.host.clone(),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
        })
    };
    if config.resp3 {
        let (channels, end) = (channels.clone(), end.clone());
        let settings = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            on_push(push, &channels, &end);
            Ok::<(), ()>(())
        });
        match single(way(true)?, settings).await {
            Err(error) if knows_no_resp3(&error) => {}
            answer => return answer.map(|wire| (wire, true)).map_err(failed),
        }
    }
    single(way(false)?, AsyncConnectionConfig::new()).await.map(|wire| (wire, false)).map_err(failed)
}

/// Whether a proxy that spreads keys is where one server should be.
pub(crate) async fn leads_to_proxy(shared: &RedisShared) -> bool {
    let config = &shared.config;
    let (Topology::Host(host, port), Ok(tls), Ok(login)) =
        (&config.topology, connector(config), login(config, false))
    else {
        return false;
    };
    let way = ServerRoute {
        address: ServerAddress::Host(host.clone(), *port),
        tls,
        login,
        host: shared.host.clone(),
        connect_timeout: config.connect_timeout,
        response_timeout: config.response_timeout,
    };
    way.leads_to_proxy().await
}

/// Redis before 6 has no HELLO, and some services rename it away.
fn knows_no_resp3(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported || text.contains("hello") || text.contains("noproto")
}

async fn single(way: ServerRoute, settings: AsyncConnectionConfig) -> RedisResult<Wire> {
    let (connection, stall) = way.connect(settings).await?;
    Ok(Wire::One(connection, Arc::new(way), stall))
}

fn login(config: &Config, resp3: bool) -> Result<RedisConnectionInfo, BackendError> {
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let info = RedisConnectionInfo::default()
        .set_db(config.db)
        .set_protocol(protocol)
        .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
    logged_in(info, &config.login)
}

/// Connects to the nodes that answer; what they push goes to the channels, and that one was lost to `end`.
async fn connect_cluster(
    config: &Config,
    nodes: &[(String, u16)],
    (channels, end): (&Arc<Channels>, &Arc<End>),
) -> Result<ClusterConnection, BackendError> {
    let (channels, end) = (channels.clone(), end.clone());
    let mut builder = ClusterClientBuilder::new(nodes.iter().map(|node| address(config.tls, node)))
        .connection_timeout(config.connect_timeout)
        .response_timeout(config.response_timeout)
        .overall_response_timeout(Some(config.response_timeout * 2))
        .use_protocol(ProtocolVersion::RESP3)
        .tcp_settings(TcpSettings::default().set_nodelay(true))
        .push_sender(move |push: PushInfo| {
            on_push(push, &channels, &end);
            Ok::<(), ()>(())
        });
    if let Some(user) = &config.login.user {
        builder = builder.username(user);
    }
    if let Some(password) = &config.login.password {
        builder = builder.password(&*password.now()?);
    }
    if config.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = certificates(config)? {
        builder = builder.certs(certificates);
    }
    let client = builder.build().map_err(|error| error::connecting(&config.place_name(), error))?;
    let connected = client.get_async_connection().await;
    connected.map_err(|error| error::connecting(&config.place_name(), error))
}

fn address(tls: bool, (host, port): &(String, u16)) -> ConnectionAddr {
    let (host, port) = (host.clone(), *port);
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// The own CA, if there is one. Without it the system's are taken.
fn certificates(config: &Config) -> Result<Option<TlsCertificates>, BackendError> {
    if !config.tls {
        return Ok(None);
    }
    // The driver of a Cluster has no place to name others.
    tls::provide();
    let read = |path: &Path| fs::read(path).map_err(|error| error::no_ca(path, error));
    let root_cert = config.ca.as_deref().map(|path| {
        tls::authorities(path, "ca")?;
        read(path)
    });
    let client_tls = config.identity()?.map(|(cert, key)| {
        Ok::<_, BackendError>(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
    });
    let (root_cert, client_tls) = (root_cert.transpose()?, client_tls.transpose()?);
    let is_plain = root_cert.is_none() && client_tls.is_none();
    Ok((!is_plain).then_some(TlsCertificates { client_tls, root_cert }))
}

/// The channel of a process.
pub(crate) fn channel((process, audience): (ProcessId, Audience)) -> String {
    match audience {
        Audience::Waiters => format!("tenure:p:{process}"),
        Audience::Holders => format!("tenure:h:{process}"),
        Audience::Observers => format!("tenure:o:{process}"),
    }
}

/// What came over a connection, perhaps its end.
fn on_push(push: PushInfo, channels: &Channels, end: &End) {
    match push.kind {
        PushKind::Disconnection if end.set() => channels.notify_all(),
        PushKind::Message => {
            if let [Value::BulkString(channel), Value::BulkString(text)] = push.data.as_slice()
                && let Some(hint) = read_hint(channel, text)
            {
                channels.notifier.deliver(hint);
            }
        }
        _ => {}
    }
}

/// In the channel of a process: a letter, and the claim part of an owner. Anything else is not ours.
pub(crate) fn read_hint(channel: &[u8], text: &[u8]) -> Option<Hint> {
    let (channel, text) = (std::str::from_utf8(channel).ok()?, std::str::from_utf8(text).ok()?);
    let (audience, process) = match channel.split_at_checked("tenure:p:".len())? {
        ("tenure:p:", process) => (Audience::Waiters, process),
        ("tenure:h:", process) => (Audience::Holders, process),
        ("tenure:o:", process) => (Audience::Observers, process),
        _ => return None,
    };
    let (kind, claim) = text.split_at_checked(1)?;
    let owner = format!("{process}{claim}").parse::<OwnerId>().ok()?;
    Some(Hint { owner, audience, is_behind: kind == "b" })
}

/// How long callers have waited in vain, by the key that they asked about, since the last answer about it.
///
/// The driver makes the connections to the nodes, and forgets a request whose caller has gone. So callers
/// with a shorter time-out than the driver's would ask a dead node for ever. Other nodes answer during that time:
/// what they say of their keys says nothing of this one.
pub(crate) struct Unanswered {
    host: Arc<dyn Host>,
    limit: Duration,
    channels: Arc<Channels>,
    end: Arc<End>,
    waited: Mutex<HashMap<Vec<u8>, Duration>>,
}

/// A caller that waits for an answer; dropped, it has waited in vain.
struct AwaitedReply<'a> {
    unanswered: &'a Unanswered,
    key: Vec<u8>,
    since: Moment,
    has_answer: bool,
}

impl Unanswered {
    /// Says to `end` that the connection is of no use any more once callers have waited for longer than
    /// `limit`.
    fn new(host: Arc<dyn Host>, limit: Duration, (channels, end): (Arc<Channels>, Arc<End>)) -> Self {
        Self { host, limit, channels, end, waited: Mutex::default() }
    }

    fn ask(&self, cmd: &Cmd) -> AwaitedReply<'_> {
        let key = match cmd.args_iter().nth(FIRST_KEY) {
            Some(Arg::Simple(key)) => key.to_vec(),
            _ => Vec::new(),
        };
        AwaitedReply { unanswered: self, key, since: self.host.now(), has_answer: false }
    }

    /// True if that is too long.
    fn has_waited(&self, key: &[u8], time: Duration) -> bool {
        let mut waited = locked(&self.waited);
        if waited.len() >= KEPT {
            waited.clear();
        }
        let sum = waited.entry(key.to_vec()).or_default();
        *sum += time;
        *sum > self.limit
    }
}

impl AwaitedReply<'_> {
    fn on_answer(mut self) {
        self.has_answer = true;
    }
}

impl Drop for AwaitedReply<'_> {
    fn drop(&mut self) {
        let Unanswered { host, waited, channels, end, .. } = self.unanswered;
        if self.has_answer {
            locked(waited).remove(&self.key);
        } else if self.unanswered.has_waited(&self.key, self.since.elapsed(host.now())) && end.set() {
            channels.notify_all();
        }
    }
}

/// Keys about which callers get no answer; beyond that all are forgotten, and counted anew.
const KEPT: usize = 1024;
/// Where a script has its first key.
const FIRST_KEY: usize = 3;

#[cfg(test)]
mod tests {
    use tenure_core::Notifier;
    use tenure_testkit::host::{PausedHost, pass};

    use super::*;
    use crate::{keys::Counting, script::Scripts};

    const LIMIT: Duration = Duration::from_secs(1);

    async fn ms(ms: u64) {
        pass(Duration::from_millis(ms)).await;
    }

    /// A node that died silently was asked for renewals until the kernel gave up: each was given up before
    /// the driver's own time-out, which then never came, and all leases of that node were lost.
    #[tokio::test(start_paused = true)]
    async fn callers_with_little_patience_find_a_dead_node_and_leave_a_healthy_one() {
        let (host, end) = (PausedHost::new(1), Arc::<End>::default());
        let channels = Arc::new(Channels::new(Notifier::with_turns(host.clone(), LIMIT)));
        let unanswered = Unanswered::new(host, LIMIT, (channels, end.clone()));
        let renew = Scripts::new(Counting::Own).renew;
        let (dead, healthy) = (renew.call(&["dead"]), renew.call(&["healthy"]));
        // Dropped immediately: that says nothing.
        for _ in 0..3 {
            drop(unanswered.ask(&dead));
            ms(2000).await;
        }
        // Answered in the end.
        for _ in 0..3 {
            let asked = unanswered.ask(&healthy);
            ms(900).await;
            asked.on_answer();
        }
        assert!(!end.is_over());
        for patience in [400, 400, 400] {
            assert!(!end.is_over());
            let asked = unanswered.ask(&dead);
            unanswered.ask(&healthy).on_answer();
            ms(patience).await;
            drop(asked);
        }
        assert!(end.is_over(), "1.2 s in vain");
    }
}
