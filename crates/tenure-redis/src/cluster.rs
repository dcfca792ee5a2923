//! `Cluster`: the nodes of a Redis Cluster, each over its own connection, and which of them has which slot.
//!
//! A request is sent once. It is sent to another node only if a node has reported that it did not take it: `MOVED`, `ASK`
//! or `TRYAGAIN`, before the first write of a script. The outcome of a request without an answer is unknown (L9). A driver
//! that repeats it by itself would return the answer to the second copy, and a late copy would meet another lease of its
//! owner (L4).

use std::{
    collections::HashMap,
    fmt::Display,
    future::{pending, ready},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{
    Arg, AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tenure_client::{Channels, Connections, End, Link, SingleFlight, StallDetector, url::HostPort};
use tenure_core::{BackendError, Moment, locked};

use crate::{
    client::{ServerAddress, ServerRoute},
    config::Topology,
    error,
    hints::on_push,
    shared::RedisShared,
    slot_map::{Disagreement, SLOTS, View, host_or},
};

/// The nodes of a Cluster.
pub(crate) struct Cluster {
    shared: Arc<RedisShared>,
    /// The node that hints come from. When its connection ends, this `Cluster` ends too.
    listener: Arc<ClusterNode>,
    listening: (MultiplexedConnection, Arc<StallDetector>),
    state: Mutex<ClusterState>,
    /// A node was not reached, or may be no master any more: the slot map is read again.
    is_stale: Arc<AtomicBool>,
    /// A map is never wrong for long: the node that a request is sent to corrects it.
    refreshing: SingleFlight<RedisResult<()>>,
}

struct ClusterState {
    nodes: HashMap<HostPort, Arc<ClusterNode>>,
    /// By slot.
    owners: Vec<Option<Arc<ClusterNode>>>,
    learnt: Moment,
}

/// One node. It is connected at the first request to it.
struct ClusterNode {
    at: HostPort,
    links: Connections<NodeLink, RedisError>,
}

/// A connection to a node.
struct NodeLink {
    connection: MultiplexedConnection,
    stall: Arc<StallDetector>,
    end: Arc<End>,
    hints: Arc<OnceLock<Hints>>,
}

/// Where hints go, and the end of the connection that they come over.
type Hints = (Arc<Channels>, Arc<End>);

/// Where a request that a node has not taken is sent next.
enum Redirect {
    Moved(u16, HostPort),
    Ask(HostPort),
    Again,
}

/// Nothing comes over a connection any more.
fn leave(end: &End, hints: &OnceLock<Hints>) {
    end.set();
    if let Some((channels, end)) = hints.get()
        && end.set()
    {
        channels.notify_all();
    }
}

impl Link for NodeLink {
    fn is_usable(&self) -> bool {
        !self.end.is_over() && !self.stall.is_stalled()
    }

    fn on_left(&self) {
        leave(&self.end, &self.hints);
    }
}

impl NodeLink {
    async fn connect(route: ServerRoute) -> RedisResult<Self> {
        let (end, hints) = (Arc::<End>::default(), Arc::<OnceLock<Hints>>::default());
        let ended = {
            let (end, hints) = (end.clone(), hints.clone());
            move || leave(&end, &hints)
        };
        let (to, at_end) = (hints.clone(), ended.clone());
        let settings = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            match to.get() {
                _ if push.kind == PushKind::Disconnection => at_end(),
                Some((channels, end)) => on_push(push, channels, end),
                None => {}
            }
            Ok::<(), ()>(())
        });
        let (connection, stall) = route.connect(settings, ended).await?;
        Ok(Self { connection, stall, end, hints })
    }

    /// From here on hints come over it.
    fn listen(&self, channels: &Arc<Channels>, end: &Arc<End>) {
        self.hints.get_or_init(|| (channels.clone(), end.clone()));
        if self.end.is_over() {
            self.on_left();
        }
    }

    /// A connection that is of no use is not used any more: the next request opens another one.
    fn on_error(&self, error: &RedisError) {
        if error::is_of_no_use(error) {
            self.on_left();
        }
    }

    /// Sends a request, once.
    async fn ask(&self, cmd: &Cmd, is_asking: bool) -> RedisResult<Value> {
        let _awaited = self.stall.ask();
        let mut connection = self.connection.clone();
        if !is_asking {
            return cmd.query_async(&mut connection).await;
        }
        // In one write: `ASKING` applies to the next request of this connection.
        let mut together = redis::pipe();
        together.add_command(redis::cmd("ASKING")).add_command(cmd.clone());
        let mut answers = connection.send_packed_commands(&together, 0, 2).await?;
        answers.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// The slot map that the node reports.
    async fn view(&self, at: &HostPort) -> RedisResult<View> {
        let mut together = redis::pipe();
        together.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let _awaited = self.stall.ask();
        let answers = self.connection.clone().send_packed_commands(&together, 0, 2).await?;
        let mut answers = answers.into_iter();
        let slots = answers.next().unwrap_or(Value::Nil).extract_error()?;
        // A user that has only the permissions that an earlier version needed may not ask for it.
        let info = answers.next().and_then(|info| info.extract_error().ok());
        View::read(at, &slots, info).ok_or_else(|| {
            let detail = format!("{}:{} names no master of any slot", at.0, at.1);
            redis::make_extension_error(error::UNJOINED.to_owned(), Some(detail))
        })
    }
}

impl ClusterNode {
    /// With its connection, if there is one. When another one is opened, `is_stale` is set: the node may have been
    /// replaced.
    fn new(
        shared: &Arc<RedisShared>,
        at: HostPort,
        link: Option<NodeLink>,
        is_stale: &Arc<AtomicBool>,
    ) -> Arc<Self> {
        let (first, host, is_stale) = (Mutex::new(link), shared.host.clone(), is_stale.clone());
        let (shared, to, was_opened) = (shared.clone(), at.clone(), AtomicBool::new(false));
        let open = move || {
            if was_opened.swap(true, Ordering::Relaxed) {
                is_stale.store(true, Ordering::Relaxed);
            }
            if let Some(link) = locked(&first).take() {
                return Box::pin(ready(Ok(link))) as _;
            }
            // With the current password.
            let address = ServerAddress::Host(to.0.clone(), to.1);
            let route = ServerRoute::new(&shared.config, &shared.host, address, true);
            Box::pin(async move {
                let route = route.map_err(unreached)?;
                NodeLink::connect(route).await.map_err(unreached)
            }) as _
        };
        Arc::new(Self { at, links: Connections::new(host, open) })
    }

    async fn view(&self) -> RedisResult<View> {
        let link = self.links.get().await?;
        link.view(&self.at).await.inspect_err(|error| link.on_error(error))
    }
}

/// Nothing was sent. A node that refuses a login may be in the middle of a change, because another node has accepted it.
fn unreached(error: impl Display) -> RedisError {
    redis::make_extension_error(error::UNREACHED.to_owned(), Some(error.to_string()))
}

impl Cluster {
    /// Connects to the named nodes and the last known masters at the same time, and keeps one connection to a node of the
    /// Cluster.
    pub(crate) async fn open(
        shared: &Arc<RedisShared>,
        channels: &Arc<Channels>,
        end: &Arc<End>,
    ) -> Result<Arc<Self>, BackendError> {
        let place = shared.config.place_name();
        let connect = async |at: HostPort| {
            let address = ServerAddress::Host(at.0.clone(), at.1);
            let route = ServerRoute::new(&shared.config, &shared.host, address, true)?;
            let connected = async {
                let link = NodeLink::connect(route).await?;
                let view = link.view(&at).await?;
                Ok((view, (at, link)))
            };
            connected.await.map_err(|error| error::connecting(&place, error))
        };
        let (answers, failed) = answers(shared, addresses(shared).into_iter().map(connect)).await;
        let (views, links): (Vec<View>, Vec<_>) = answers.into_iter().unzip();
        if views.is_empty() {
            return Err(failed.unwrap_or_else(|| error::no_answer(&place)));
        }
        let view = chosen(shared, &views).map_err(|error| error::connecting(&place, error))?;
        let (at, link) = Self::listener(shared, &view, &views, links).await;
        link.listen(channels, end);
        Ok(Self::of(shared, at, link, &view))
    }

    /// The node for hints. A node that has left the Cluster answers, but receives no hints. If no node of the Cluster can
    /// be reached, one that answered: the announced addresses may not be reachable from this host.
    async fn listener(
        shared: &Arc<RedisShared>,
        view: &View,
        views: &[View],
        mut links: Vec<(HostPort, NodeLink)>,
    ) -> (HostPort, NodeLink) {
        let known = links.iter().position(|(at, _)| view.has(at, views));
        if known.is_none() {
            let connect = async |at: HostPort| {
                let address = ServerAddress::Host(at.0.clone(), at.1);
                let route = ServerRoute::new(&shared.config, &shared.host, address, true).ok()?;
                Some((at, NodeLink::connect(route).await.ok()?))
            };
            let mut connecting: FuturesUnordered<_> = view.masters().into_iter().map(connect).collect();
            while let Some(connected) = connecting.next().await {
                if let Some(connected) = connected {
                    return connected;
                }
            }
        }
        let answered = known.or_else(|| links.iter().position(|(at, _)| *at == view.at));
        links.swap_remove(answered.expect("BUG: its view came over a connection"))
    }

    fn of(shared: &Arc<RedisShared>, at: HostPort, link: NodeLink, view: &View) -> Arc<Self> {
        let listening = (link.connection.clone(), link.stall.clone());
        let is_stale = Arc::<AtomicBool>::default();
        let listener = ClusterNode::new(shared, at, Some(link), &is_stale);
        let state = ClusterState {
            nodes: HashMap::new(),
            owners: vec![None; usize::from(SLOTS)],
            learnt: shared.host.now(),
        };
        let cluster = Self {
            shared: shared.clone(),
            listener,
            listening,
            state: Mutex::new(state),
            is_stale,
            refreshing: SingleFlight::new(shared.host.clone()),
        };
        cluster.learn(view);
        Arc::new(cluster)
    }

    /// The node that hints come from is dead or stuck.
    pub(crate) fn is_stalled(&self) -> bool {
        self.listening.1.is_stalled()
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.listening.0.clone().subscribe(channel).await
    }

    /// The masters, as they are now.
    pub(crate) async fn masters(self: &Arc<Self>) -> RedisResult<Vec<HostPort>> {
        self.refresh(true).await?;
        let state = locked(&self.state);
        let mut masters: Vec<HostPort> = Vec::new();
        for owner in state.owners.iter().flatten() {
            if !masters.contains(&owner.at) {
                masters.push(owner.at.clone());
            }
        }
        Ok(masters)
    }

    /// Asks one node.
    pub(crate) async fn ask_at(&self, at: &HostPort, cmd: &Cmd) -> RedisResult<Value> {
        let link = self.node(at).links.get().await?;
        link.ask(cmd, false).await.inspect_err(|error| link.on_error(error))
    }

    /// Asks the node that has the lock.
    pub(crate) async fn ask(self: &Arc<Self>, cmd: &Cmd) -> RedisResult<Value> {
        if self.is_stale.load(Ordering::Relaxed) {
            // OK to ignore: what is known may still be right.
            let _ = Box::pin(self.refresh(true)).await;
        } else if self.is_old() {
            // Opens no connection.
            let this = self.clone();
            self.shared.host.spawn(Box::pin(async move { drop(this.refresh(false).await) }));
        }
        let slot = key_of(cmd).map(slot_of);
        let (mut node, mut is_asking) = (self.owner(slot), false);
        let mut pauses = PAUSES_MS.into_iter().map(Duration::from_millis);
        loop {
            let link = node.links.get().await.inspect_err(|_| self.suspect())?;
            let error = match link.ask(cmd, is_asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(redirect) = redirect(&error, &node.at.0) else {
                link.on_error(&error);
                if error::leaves(&error) {
                    self.suspect();
                }
                return Err(error);
            };
            let Some(pause) = pauses.next() else { return Err(unsettled(&error)) };
            if !pause.is_zero() {
                let host = &self.shared.host;
                host.sleep_until(host.now() + pause).await;
            }
            is_asking = matches!(redirect, Redirect::Ask(_));
            node = match redirect {
                Redirect::Moved(slot, at) => self.moved(slot, &at),
                Redirect::Ask(at) => self.node(&at),
                Redirect::Again => self.owner(slot),
            };
        }
    }

    /// The next request reads the slot map again.
    fn suspect(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// True once per interval: if the node for hints has left the Cluster, no request fails, so the map is refreshed
    /// anyway.
    fn is_old(&self) -> bool {
        let (mut state, now) = (locked(&self.state), self.shared.host.now());
        let is_old = state.learnt.elapsed(now) >= REFRESH;
        if is_old {
            state.learnt = now;
        }
        is_old
    }

    fn node(&self, at: &HostPort) -> Arc<ClusterNode> {
        if *at == self.listener.at {
            return self.listener.clone();
        }
        let mut state = locked(&self.state);
        let node = state.nodes.entry(at.clone());
        node.or_insert_with(|| ClusterNode::new(&self.shared, at.clone(), None, &self.is_stale)).clone()
    }

    /// For a slot without a known node, the node that is connected.
    fn owner(&self, slot: Option<u16>) -> Arc<ClusterNode> {
        let state = locked(&self.state);
        let owner = slot.and_then(|slot| state.owners[usize::from(slot)].clone());
        owner.unwrap_or_else(|| self.listener.clone())
    }

    fn moved(&self, slot: u16, to: &HostPort) -> Arc<ClusterNode> {
        // Other slots may have moved too.
        self.suspect();
        let node = self.node(to);
        if let Some(owner) = locked(&self.state).owners.get_mut(usize::from(slot)) {
            *owner = Some(node.clone());
        }
        node
    }

    fn learn(&self, view: &View) {
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in &view.ranges {
            let node = self.node(&range.at);
            owners[usize::from(range.first)..=usize::from(range.last)].fill(Some(node));
        }
        let mut state = locked(&self.state);
        state.nodes.retain(|at, _| view.ranges.iter().any(|range| range.at == *at));
        (state.owners, state.learnt) = (owners, self.shared.host.now());
    }

    /// Refreshes the slot map, from connected nodes or from others too. The next `MOVED` corrects an outdated map.
    async fn refresh(self: &Arc<Self>, asks_others: bool) -> RedisResult<()> {
        let refresh = || {
            let this = self.clone();
            Box::pin(async move {
                this.is_stale.store(false, Ordering::Relaxed);
                let asked =
                    this.asked(asks_others).into_iter().map(async |node| Ok((node.view().await?, ())));
                let (answers, failed) = answers(&this.shared, asked).await;
                let views: Vec<View> = answers.into_iter().map(|(view, ())| view).collect();
                let taken = if views.is_empty() {
                    Err(failed.unwrap_or_else(|| unreached("no node answers")))
                } else {
                    chosen(&this.shared, &views)
                };
                let view = taken.inspect_err(|_| this.suspect())?;
                this.learn(&view);
                if !view.has(&this.listener.at, &views)
                    && let Some(link) = this.listener.links.current()
                {
                    // It receives no hints any more. The next session chooses another node.
                    link.on_left();
                }
                Ok(())
            }) as _
        };
        self.refreshing.join(refresh).await
    }

    fn asked(&self, asks_others: bool) -> Vec<Arc<ClusterNode>> {
        let known = locked(&self.state).nodes.clone();
        let mut nodes = vec![self.listener.clone()];
        nodes.extend(known.values().filter(|node| node.links.current().is_some()).cloned());
        for at in addresses(&self.shared).into_iter().filter(|_| asks_others) {
            if nodes.iter().all(|node| node.at != at) {
                // The connection to a node that is not a master ends with this request.
                let new = || ClusterNode::new(&self.shared, at.clone(), None, &self.is_stale);
                nodes.push(known.get(&at).cloned().unwrap_or_else(new));
            }
        }
        nodes
    }
}

/// The nodes that the URL names, and some of the last known masters, so that no single node is required.
fn addresses(shared: &RedisShared) -> Vec<HostPort> {
    let Topology::Cluster(named) = &shared.config.topology else { unreachable!("BUG: there is no Cluster") };
    let known = locked(&shared.known).masters.clone();
    let mut addresses = named.clone();
    addresses.extend(known.into_iter().filter(|at| !named.contains(at)).take(SEVERAL));
    addresses
}

/// Asks nodes at the same time. Returns their views, as long as waiting for more is useful, and the last error.
async fn answers<T, E>(
    shared: &RedisShared,
    asked: impl Iterator<Item: Future<Output = Result<(View, T), E>>>,
) -> (Vec<(View, T)>, Option<E>) {
    let host = &shared.host;
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (count, mut answers, mut failed) = (asked.len(), Vec::new(), None);
    let mut until: Option<Moment> = None;
    loop {
        let late = async {
            match until {
                Some(until) => host.sleep_until(until).await,
                None => pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = asked.next() => answer,
            () = late => None,
        };
        match answer {
            Some(Ok(answer)) => answers.push(answer),
            Some(Err(error)) => failed = Some(error),
            None => return (answers, failed),
        }
        let views: Vec<&View> = answers.iter().map(|(view, _)| view).collect();
        let patience = locked(&shared.known).patience(count, &views, shared.config.connect_timeout);
        let (left, now) = (until.map(|until| until.remaining(host.now())), host.now());
        if let Some(patience) = patience.filter(|patience| left.is_none_or(|left| *patience < left)) {
            until = Some(now + patience);
        }
    }
}

fn chosen(shared: &RedisShared, views: &[View]) -> RedisResult<View> {
    let known = locked(&shared.known).choose(shared.host.now(), &views.iter().collect::<Vec<_>>());
    known.map_err(|disagreement| {
        let detail = match disagreement {
            Disagreement::Two(one, other) => {
                format!("{}:{} and {}:{}; name nodes of one in the URL", one.0, one.1, other.0, other.1)
            }
            Disagreement::Another(at) => {
                format!("{}:{} is of another one than the nodes that this process knows", at.0, at.1)
            }
        };
        redis::make_extension_error(error::STRANGE.to_owned(), Some(detail))
    })
}

/// The nodes redirect a request back and forth, or the slot is being moved. Nothing was done, and the state is temporary.
fn unsettled(error: &RedisError) -> RedisError {
    redis::make_extension_error(error::UNSETTLED.to_owned(), Some(error.to_string()))
}

/// Where a request is sent that this node has not taken. A redirect without a host means the host of the node that sent it.
fn redirect(error: &RedisError, host: &str) -> Option<Redirect> {
    let redis::ErrorKind::Server(kind) = error.kind() else { return None };
    let to = || {
        let (to, slot) = error.redirect_node()?;
        let (named, port) = to.rsplit_once(':')?;
        Some((slot, (host_or(named, host), port.parse().ok()?)))
    };
    match kind {
        ServerErrorKind::Moved => to().map(|(slot, at)| Redirect::Moved(slot, at)),
        ServerErrorKind::Ask => to().map(|(_, at)| Redirect::Ask(at)),
        ServerErrorKind::TryAgain => Some(Redirect::Again),
        _ => None,
    }
}

/// The first key of a script, or of a command of `doctor`. For a word that is no key, each node is right.
fn key_of(cmd: &Cmd) -> Option<&[u8]> {
    let word = |at| match cmd.args_iter().nth(at) {
        Some(Arg::Simple(word)) => Some(word),
        _ => None,
    };
    word(if word(0)?.starts_with(b"EVAL") { 3 } else { 1 })
}

/// The slot of a key: CRC16 (XMODEM) of the text between its first braces, or of all of it.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let inside = &key[open + 1..];
        let close = inside.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &inside[..close])
    });
    let shift = |sum: u16, bit: u16| (sum << 1) ^ (if (sum >> 15) ^ bit == 1 { 0x1021 } else { 0 });
    let byte = |sum, byte: &u8| (0..8).rev().fold(sum, |sum, at| shift(sum, u16::from(byte >> at & 1)));
    tag.unwrap_or(key).iter().fold(0, byte) % SLOTS
}

/// How many masters are asked in addition to the nodes that the URL names.
const SEVERAL: usize = 5;
/// The longest age of a map. Only a refresh shows that a node has left, because it keeps its connections.
const REFRESH: Duration = Duration::from_secs(30);
/// Pauses before a request is sent to another node. A slot that has moved costs one more round trip; nodes that do not
/// agree yet are asked for half a second. Then the caller asks again.
const PAUSES_MS: [u64; 7] = [0, 0, 10, 30, 60, 120, 240];

#[cfg(test)]
mod tests {
    use super::*;

    /// By `CLUSTER KEYSLOT`.
    #[test]
    fn a_key_has_the_slot_that_redis_says() {
        for (key, slot) in [
            ("foo", 12182),
            ("bar", 5061),
            ("", 0),
            ("123456789", 12739),
            ("x{foo}y", 12182),
            ("{foo}{bar}", 12182),
            ("{}foo", slot_of(b"{}foo")),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_ne!(slot_of(b"{}foo"), slot_of(b"foo"));
    }

    #[test]
    fn a_redirect_names_the_node_or_means_the_one_that_says_so() {
        let to = |error: &str| {
            let (code, detail) = error.split_once(' ').unwrap();
            let bytes = format!("-{code} {detail}\r\n");
            let error = redis::parse_redis_value(bytes.as_bytes()).unwrap().extract_error().unwrap_err();
            match redirect(&error, "asked") {
                Some(Redirect::Moved(slot, (host, port))) => format!("moved {slot} {host} {port}"),
                Some(Redirect::Ask((host, port))) => format!("ask {host} {port}"),
                Some(Redirect::Again) => "again".to_owned(),
                None => "no".to_owned(),
            }
        };
        for (error, expected) in [
            ("MOVED 3999 10.0.0.1:6381", "moved 3999 10.0.0.1 6381"),
            ("MOVED 3999 :6381", "moved 3999 asked 6381"),
            ("MOVED 3999 ::1:6381", "moved 3999 ::1 6381"),
            ("ASK 3999 node:6381", "ask node 6381"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "again"),
            ("CLUSTERDOWN The cluster is down", "no"),
        ] {
            assert_eq!(to(error), expected, "{error}");
        }
    }
}
