//! `EnsembleSession`: one session with the ensemble, its proofs, its requests, and its thread.
//!
//! The thread sends beats, passes on what watches report, deletes nodes that are not renewed or were made late, and
//! ends the session.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{Either, select},
    join,
    stream::FuturesUnordered,
};
use tenure_core::{Audience, BackendError, BoxFuture, Host, Moment, Notifier, OwnerId, Released, locked};
use tokio::sync::{Notify, mpsc, oneshot};
use zookeeper_client::{
    Acls, Client, Error, EventType, MultiWriteError, OneshotWatcher, SessionState, StateWatcher,
};

use crate::{
    config::{Access, Config},
    error,
    node::Contender,
    own_nodes::{NodeDeletion, OwnNode, OwnNodes},
    pulse::Pulse,
    queue::NodeQueue,
};

/// A session and its nodes, which end with it. Its timeout lets leases end when their process is gone.
///
/// # Timing
/// It is requested with the ttl and some slack (1½ ticks). A quorum write, together with what the [`Pulse`] proved
/// before it, proves that a lease is valid: see [`proven`](Self::proven). Its thread beats four times per tick as
/// long as it lives, so that it needs no other runtime (H2.5). The thread also deletes the nodes that no owner renews
/// any more: the ensemble would not.
pub(crate) struct EnsembleSession {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) notifier: Notifier,
    /// The timeout that the ensemble granted.
    span: Duration,
    pulse: Mutex<Pulse>,
    own_nodes: Mutex<OwnNodes>,
    used: Mutex<Moment>,
    is_over: AtomicBool,
    /// The pulse or the state changed.
    changed: Notify,
    orders: mpsc::Sender<SessionOrder>,
}

/// The settings of a session.
pub(crate) struct NewSession {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) notifier: Notifier,
    /// When it began to connect.
    pub(crate) opened: Moment,
}

impl EnsembleSession {
    /// A new session, and the orders that its thread is to carry out.
    pub(crate) fn new(birth: NewSession) -> (Arc<Self>, mpsc::Receiver<SessionOrder>) {
        let NewSession { client, config, host, notifier, opened } = birth;
        let (orders, inbox) = mpsc::channel(ORDERS);
        let session = Self {
            span: client.session_timeout(),
            pulse: Mutex::new(Pulse::new(opened, config.tick)),
            client,
            config,
            notifier,
            own_nodes: Mutex::default(),
            used: Mutex::new(host.now()),
            host,
            is_over: AtomicBool::new(false),
            changed: Notify::new(),
            orders,
        };
        (Arc::new(session), inbox)
    }

    /// The servers, for errors.
    pub(crate) fn place(&self) -> String {
        self.config.place_name()
    }

    /// The longest ttl that it can guarantee.
    pub(crate) fn longest(&self) -> Duration {
        self.span.saturating_sub(self.config.slack())
    }

    /// Refuses a ttl that is too long for it.
    pub(crate) fn vouches_for(&self, ttl: Duration) -> Result<(), BackendError> {
        if ttl <= self.longest() {
            return Ok(());
        }
        Err(error::too_long(&self.place(), ttl, self.longest(), self.span))
    }

    /// Waits until a quorum write that is sent from now on, and succeeds, proves this: the ensemble keeps the session
    /// for the ttl from `started` at least. Usually it returns immediately.
    ///
    /// OK because the leader that carries out the write has touched this session at [`Pulse::heard`] or later, and
    /// keeps it for the span from then: `heard + span ≥ started + ttl` (L1, hazard 58).
    pub(crate) async fn proven(&self, started: Moment, ttl: Duration) -> Result<(), BackendError> {
        self.vouches_for(ttl)?;
        let spare = self.span.saturating_sub(ttl);
        self.until(|session| started.boot <= locked(&session.pulse).heard().boot + spare).await
    }

    /// Waits until the session can take requests.
    pub(crate) async fn connected(&self) -> Result<(), BackendError> {
        self.until(|_| true).await
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) -> Result<(), BackendError> {
        *locked(&self.used) = self.host.now();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.is_over() {
                return Err(error::over(&self.place()));
            }
            if self.client.state() == SessionState::SyncConnected && is_so(self) {
                return Ok(());
            }
            changed.await;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        // OK to ignore because the flag is enough for a thread that has ended or has too much to do.
        self.is_over.store(true, Ordering::Release);
        let _ = self.orders.try_send(SessionOrder::End);
        self.changed.notify_waiters();
    }

    pub(crate) fn own_nodes(&self) -> MutexGuard<'_, OwnNodes> {
        locked(&self.own_nodes)
    }

    /// Does something with an owner's entry, if it is still there.
    pub(crate) fn with_entry<T>(&self, owner: OwnerId, act: impl FnOnce(&mut OwnNode) -> T) -> Option<T> {
        self.own_nodes().get(owner).map(act)
    }

    /// True if it has no nodes and was not used for [`IDLE`].
    fn is_idle(&self, now: Moment) -> bool {
        self.own_nodes().is_empty() && locked(&self.used).elapsed(now) > IDLE
    }

    fn on_beat(&self, sent: Moment, answered: Moment) {
        locked(&self.pulse).on_beat(sent, answered);
        self.changed.notify_waiters();
    }

    fn on_change(&self) {
        self.changed.notify_waiters();
    }

    /// Notifies all owners: hints may have been missed.
    fn notify_all(&self) {
        let owners = self.own_nodes().owners();
        for (audience, owner) in owners {
            self.notifier.notify(audience, owner);
        }
    }

    /// Makes the thread wait for the watched change. False if it has too much to do: then the change is not waited
    /// for.
    pub(crate) fn watch(&self, watch: NodeWatch) -> bool {
        self.orders.try_send(SessionOrder::Watch(watch)).is_ok()
    }

    /// The access rights of the nodes that Tenure makes.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.access() {
            Access::Open => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    /// The children of a lock's directory, none of them older than this request. The list comes after a `sync`:
    /// without it, a follower that is behind its leader shows a queue that an owner has left long ago. `None` if
    /// there is no directory.
    pub(crate) async fn seen_now(&self, lock: &str) -> Result<Option<Vec<String>>, Error> {
        // Both are sent immediately, in this order.
        let (synced, listed) = join!(self.client.sync(lock), self.client.list_children(lock));
        synced?;
        match listed {
            Err(Error::NoNode) => Ok(None),
            listed => listed.map(Some),
        }
    }

    /// The children of a lock's directory, listed after a quorum write. `None` if `node` is not there.
    pub(crate) async fn seen_by_quorum(&self, lock: &str, node: &str) -> Result<Option<Vec<String>>, Error> {
        // Both are sent immediately, in this order.
        let (checked, listed) = join!(self.write(node), self.client.list_children(lock));
        match checked {
            Ok(()) => listed.map(Some),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A quorum write that changes nothing and checks that a node is there. It breaks a connection that the
    /// session has left.
    ///
    /// It is sent here, and not when it is first polled: a caller that lists after it relies on the order.
    fn write(&self, node: &str) -> impl Future<Output = Result<(), MultiWriteError>> {
        let mut writer = self.client.new_multi_writer();
        let sent = writer.add_check_version(node, ANY_VERSION).map(|()| writer.commit());
        async move { sent?.await.map(drop) }
    }

    /// Searches for an owner's node by the beginning of its name. Earlier requests, over this or an earlier
    /// connection, have taken effect by then (H6.5, hazard 57): the write comes after them, and the list after the
    /// write. A request that takes effect even later must move the session away first. Then the next write breaks
    /// this client's connection (see [`CreatesInFlight`](crate::own_nodes::CreatesInFlight)).
    pub(crate) async fn find(&self, lock: &str, owner: OwnerId) -> Result<Option<Contender>, Error> {
        let mark = self.config.layout.mark(owner);
        let children = self.seen_by_quorum(lock, lock).await?;
        Ok(children.and_then(|children| NodeQueue::read(&children).marked(&mark).cloned()))
    }

    /// Deletes a node that is not wanted any more. It may be gone already. If its name is not known, deletes all
    /// nodes that were made for the owner.
    pub(crate) async fn delete(&self, deletion: &NodeDeletion) -> Result<Released, Error> {
        if let Some(node) = &deletion.node {
            return self.delete_named(&deletion.lock, &node.name).await;
        }
        let mut released = Released::WasGone;
        while let Some(found) = self.find(&deletion.lock, deletion.owner).await? {
            if self.delete_named(&deletion.lock, &found.name).await? == Released::Released {
                released = Released::Released;
            }
        }
        Ok(released)
    }

    async fn delete_named(&self, lock: &str, name: &str) -> Result<Released, Error> {
        is_released(self.client.delete(&format!("{lock}/{name}"), None).await)
    }

    /// Deletes the nodes that were made late for these owners. Returns the owners that have none left.
    async fn delete_late(&self, lock: &str, owners: &[OwnerId]) -> Result<Vec<OwnerId>, Error> {
        let Some(children) = self.seen_by_quorum(lock, lock).await? else { return Ok(owners.to_vec()) };
        let queue = NodeQueue::read(&children);
        let mut settled = Vec::new();
        for owner in owners {
            if let Ok(true) = self.delete_late_of(lock, *owner, &queue).await {
                settled.push(*owner);
            }
        }
        Ok(settled)
    }

    /// Deletes all nodes of an owner but the one that its entry has. False if one is being made, which may be any of
    /// these.
    async fn delete_late_of(&self, lock: &str, owner: OwnerId, queue: &NodeQueue) -> Result<bool, Error> {
        for late in queue.all_marked(&self.config.layout.mark(owner)) {
            let path = format!("{lock}/{}", late.name);
            // OK because it is of this session: an owner may have its node in another one (L1).
            let stat = self.client.check_stat(&path).await?;
            if stat.is_none_or(|stat| stat.ephemeral_owner != self.client.session_id().0) {
                continue;
            }
            let deleting = {
                let mut own_nodes = self.own_nodes();
                match own_nodes.get(owner).map(|entry| entry.node.as_ref()) {
                    Some(None) => return Ok(false),
                    Some(Some(node)) if node.name == late.name => continue,
                    // The deletion is sent here. A claim that adopts a node from now on asks the ensemble after this
                    // deletion whether the node is there (L1).
                    Some(Some(_)) | None => self.client.delete(&path, None),
                }
            };
            is_released(deleting.await)?;
        }
        Ok(self.with_entry(owner, |entry| entry.node.is_some()) != Some(false))
    }
}

fn is_released(deleted: Result<(), Error>) -> Result<Released, Error> {
    match deleted {
        Ok(()) => Ok(Released::Released),
        Err(Error::NoNode) => Ok(Released::WasGone),
        Err(error) => Err(error),
    }
}

/// A message to its thread.
pub(crate) enum SessionOrder {
    /// Notifies an owner when something happens to a node.
    Watch(NodeWatch),
    /// Ends it.
    End,
}

/// A waiter watches a node.
pub(crate) struct NodeWatch {
    pub(crate) owner: OwnerId,
    pub(crate) audience: Audience,
    pub(crate) watcher: OneshotWatcher,
    /// Ends the watch.
    pub(crate) end: oneshot::Receiver<()>,
}

/// Runs until it is to end, the session is idle, or the ensemble has ended it.
pub(crate) async fn live(session: Arc<EnsembleSession>, mut orders: mpsc::Receiver<SessionOrder>) {
    let mut state = session.client.state_watcher();
    let mut tasks = SessionTasks::new();
    let (mut is_beating, mut next_beat) = (false, session.host.now());
    let (mut is_looking, mut next_look) = (false, next_beat);
    while !session.is_over() {
        let now = session.host.now();
        if !is_beating && next_beat.is_over(now) {
            (is_beating, next_beat) = (true, now + session.config.beat());
            tasks.push(beat(session.clone(), now));
        }
        if !is_looking && next_look.is_over(now) {
            (is_looking, next_look) = (true, now + session.config.beat());
            tasks.push(look_for_late(session.clone()));
        }
        begin_due(&session, now, &tasks);
        if session.is_idle(now) {
            break;
        }
        let beat = session.config.beat();
        let again = session
            .host
            .sleep_until(now + if session.own_nodes().is_empty() { beat } else { LOOK.min(beat) });
        tokio::select! {
            biased;
            state = state.changed() => {
                on_state(&session, state);
                if state == SessionState::SyncConnected {
                    session.own_nodes().in_flight.on_connected();
                    next_look = now;
                }
            }
            order = orders.recv() => match order {
                Some(SessionOrder::Watch(watch)) => tasks.push(wait(watch)),
                Some(SessionOrder::End) | None => break,
            },
            Some(done) = tasks.next() => match done {
                Done::Beat { sent, result } => {
                    is_beating = false;
                    if result.is_ok() {
                        session.on_beat(sent, session.host.now());
                    }
                }
                Done::Looked => is_looking = false,
                done => settle(&session, done),
            },
            () = again => {}
        }
    }
    finish(session, tasks, state).await;
}

/// The result of a task of the thread.
enum Done {
    /// A beat that was sent at this time.
    Beat { sent: Moment, result: Result<(), Error> },
    /// The node of an owner; whether it is gone.
    Left { deletion: NodeDeletion, is_gone: bool },
    /// Something happened to a node that this owner watches.
    Changed { owner: OwnerId, audience: Audience },
    /// A holder's own node could not be watched.
    Unwatched { owner: OwnerId },
    /// Nodes that were made late were looked for.
    Looked,
    /// A watch was cancelled.
    Nothing,
}

type SessionTasks = FuturesUnordered<BoxFuture<'static, Done>>;

fn on_state(session: &EnsembleSession, state: SessionState) {
    tracing::debug!(place = session.place(), %state, "the session with ZooKeeper");
    if state.is_terminated() {
        session.end();
    }
    session.on_change();
    session.notify_all();
}

/// Deletes nodes that were made late. What this does not settle is searched for again a beat later.
fn look_for_late(session: Arc<EnsembleSession>) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let now = session.host.now();
        if !session.own_nodes().in_flight.are_any(now) {
            return Done::Looked;
        }
        // OK to ignore because of what it breaks: the connection, if the session has moved away.
        let _ = session.write("/").await;
        let (connection, by_lock) = session.own_nodes().in_flight.due();
        for (lock, owners) in by_lock {
            let settled = session.delete_late(&lock, &owners).await.unwrap_or_default();
            let in_flight = &mut session.own_nodes().in_flight;
            settled.into_iter().for_each(|owner| in_flight.on_seen(connection, &lock, owner));
        }
        Done::Looked
    })
}

/// Starts to delete nodes that are not renewed, and to watch nodes that are held for a while.
fn begin_due(session: &Arc<EnsembleSession>, now: Moment, tasks: &SessionTasks) {
    let (expired, unwatched) = {
        let mut own_nodes = session.own_nodes();
        (own_nodes.take_expired(now), own_nodes.take_unwatched(now))
    };
    for deletion in expired {
        let session = session.clone();
        tasks.push(Box::pin(async move {
            let is_gone = session.delete(&deletion).await.is_ok();
            Done::Left { deletion, is_gone }
        }));
    }
    for (owner, node) in unwatched {
        tasks.push(watch_own(session.clone(), owner, node));
    }
}

fn settle(session: &EnsembleSession, done: Done) {
    match done {
        Done::Left { deletion, is_gone: true } => session.own_nodes().on_deleted(&deletion),
        Done::Left { deletion, is_gone: false } => session.own_nodes().not_deleted(deletion.owner),
        Done::Unwatched { owner } => drop(session.with_entry(owner, OwnNode::on_unwatched)),
        Done::Changed { owner, audience: Audience::Waiters } => {
            session.with_entry(owner, |entry| entry.on_watched_change());
            session.notifier.notify(Audience::Waiters, owner);
        }
        Done::Changed { owner, audience: Audience::Holders } => {
            if session.with_entry(owner, |entry| entry.holds()) == Some(true) {
                session.notifier.notify(Audience::Holders, owner);
            }
        }
        // Observers watch nothing.
        Done::Changed { audience: Audience::Observers, .. } | Done::Beat { .. } => {}
        Done::Looked | Done::Nothing => {}
    }
}

fn beat(session: Arc<EnsembleSession>, sent: Moment) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let result = session.client.sync("/").await;
        Done::Beat { sent, result }
    })
}

fn wait(watch: NodeWatch) -> BoxFuture<'static, Done> {
    let NodeWatch { owner, audience, watcher, end } = watch;
    Box::pin(async move {
        match select(Box::pin(watcher.changed()), end).await {
            Either::Left((event, _)) if event.event_type != EventType::Session => {
                Done::Changed { owner, audience }
            }
            _ => Done::Nothing,
        }
    })
}

/// Watches a holder's own node, which a `break` deletes.
fn watch_own(session: Arc<EnsembleSession>, owner: OwnerId, node: String) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let changed = Done::Changed { owner, audience: Audience::Holders };
        loop {
            let watcher = match session.client.get_and_watch_data(&node).await {
                Ok((_, _, watcher)) => watcher,
                Err(Error::NoNode) => return changed,
                Err(_) => return Done::Unwatched { owner },
            };
            // Any other event is this client's own write, when the holder entered.
            if watcher.changed().await.event_type == EventType::NodeDeleted {
                return changed;
            }
        }
    })
}

/// Closes the session, so that its locks are free immediately.
async fn finish(session: Arc<EnsembleSession>, tasks: SessionTasks, mut state: StateWatcher) {
    session.end();
    session.notify_all();
    let entries = session.own_nodes().close();
    drop((entries, tasks));
    let host = session.host.clone();
    // The driver closes the session when its last handle is dropped.
    drop(session);
    if state.peek_state().is_terminated() {
        return;
    }
    let patience = host.sleep_until(host.now() + CLOSING);
    let closed = async { while !state.changed().await.is_terminated() {} };
    select(Box::pin(closed), patience).map(drop).await;
}

/// For a check that a node is there, whatever was written to it.
pub(crate) const ANY_VERSION: i32 = -1;

/// How many watches may wait for the thread.
const ORDERS: usize = 1024;
/// After this time without use, a session that has no nodes ends. The next claim begins another one.
const IDLE: Duration = Duration::from_secs(60);

/// How often it checks for expired nodes, if it has nodes.
const LOOK: Duration = Duration::from_millis(100);
const CLOSING: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tenure::backend::TokioHost;
    use tenure_core::{BackendHandle, Renewal};
    use tenure_testkit::{
        conformance::player::Player, patience::until, proxy::Proxy, zookeeper::ZooKeeperServer,
    };
    use zookeeper_client::CreateMode;

    use super::*;
    use crate::{backend::ZooKeeper, node::token, own_nodes::CreatedNode};

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn make(client: &Client, session: &EnsembleSession, lock: &str, player: &Player) -> CreatedNode {
        let prefix = session.config.layout.prefix(player.claim.owner, player.claim.mode);
        let options = CreateMode::EphemeralSequential.with_acls(session.acls());
        let (stat, sequence) = client.create(&format!("{lock}/{prefix}"), b"", &options).await.unwrap();
        CreatedNode { name: format!("{prefix}{sequence}"), token: token(stat.czxid) }
    }

    async fn names(session: &EnsembleSession, lock: &str) -> Vec<String> {
        session.client.list_children(lock).await.unwrap_or_default()
    }

    /// L1, L6, hazard 57: nodes appear as if a member that hung had carried out its old requests.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_made_late_is_deleted_over_the_next_connection_and_what_is_wanted_is_not() {
        let server = ZooKeeperServer::start();
        let proxy = Proxy::to(server.port(), 1);
        let url = format!("zookeeper://127.0.0.1:{}/tenure", proxy.port());
        let zookeeper = ZooKeeper::new(Config::from_url(&url).unwrap(), Arc::new(TokioHost));
        let backend: BackendHandle = Arc::new(zookeeper.clone());
        // In the order in which they are searched for.
        let players =
            ["being-made", "elsewhere", "gone", "held"].map(|lock| Player::new(backend.clone(), lock));
        let locks = players.each_ref().map(|player| format!("/tenure/{}", player.claim.name));
        let mut grants = Vec::new();
        for player in &players {
            grants.push(player.enter().await);
        }
        let session = zookeeper.sessions()[0].clone();
        for player in &players[..3] {
            player.leave().await;
        }

        let [being_made, elsewhere, gone, held] = &players;
        let now = session.host.now();
        let mut entry = OwnNode::new(&being_made.claim, locks[0].clone(), now);
        entry.keep_until(now + Duration::from_secs(3600));
        session.own_nodes().add(being_made.claim.owner, entry);
        let late = make(&session.client, &session, &locks[0], being_made).await;
        let other = Client::connect(&server.address()).await.unwrap();
        let of_another_session = make(&other, &session, &locks[1], elsewhere).await;
        make(&session.client, &session, &locks[2], gone).await;
        make(&session.client, &session, &locks[2], gone).await;
        make(&session.client, &session, &locks[3], held).await;
        for (player, lock) in players.iter().zip(&locks) {
            session.own_nodes().in_flight.add(lock.clone(), player.claim.owner, now);
        }

        proxy.cut();
        until("it is cut off", PATIENCE, async || session.client.state() != SessionState::SyncConnected)
            .await;
        proxy.heal();
        until("the late ones are gone", PATIENCE, async || {
            names(&session, &locks[2]).await.is_empty() && names(&session, &locks[3]).await.len() == 1
        })
        .await;
        assert_eq!(
            backend.renew(&grants[3..]).await[0].as_ref().unwrap(),
            &Renewal::Renewed,
            "it holds by the other"
        );
        assert_eq!(names(&session, &locks[1]).await, [of_another_session.name]);
        assert_eq!(names(&session, &locks[0]).await, [late.name], "it may be the one that is being made");

        let made = make(&session.client, &session, &locks[0], being_made).await;
        session.with_entry(being_made.claim.owner, |entry| entry.node = Some(made.clone()));
        until("it was not", PATIENCE, async || names(&session, &locks[0]).await == [made.name.clone()]).await;
        until("all is seen", PATIENCE, async || session.own_nodes().in_flight.due().1.is_empty()).await;
    }
}
