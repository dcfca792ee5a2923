//! `Session`: one session with the ensemble, what it has proven, what it is asked, and its thread.
//!
//! The thread sends beats, passes on watches, deletes nodes that are not renewed or were made late, and ends the
//! session.

use std::{
    collections::{BTreeMap, btree_map},
    mem,
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
use tenure_core::{Audience, BackendError, Bells, BoxFuture, Host, Moment, OwnerId, Released, locked};
use tokio::sync::{Notify, mpsc, oneshot};
use zookeeper_client::{
    Acls, Client, Error, EventType, MultiWriteError, OneshotWatcher, SessionState, StateWatcher,
};

use crate::{
    config::{Access, Config},
    error,
    node::Contender,
    own_nodes::{Entry, Leaver, OwnNodes},
    pulse::Pulse,
    queue::Queue,
};

/// A session and its nodes, which vanish with it. Its time-out is what lets leases end when their process is gone.
///
/// # Timing
/// It is asked for with the ttl and some slack (1½ ticks). A quorum write, together with what the [`Pulse`] proved
/// before
/// it, makes belief true: see [`proven`](Self::proven). Its thread beats four times per tick as long as it lives, so
/// that
/// it needs nobody else's runtime (H2.5), and deletes the nodes that nobody renews any more: the ensemble would not.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) bells: Bells,
    /// The time-out that the ensemble gave it.
    span: Duration,
    pulse: Mutex<Pulse>,
    own_nodes: Mutex<OwnNodes>,
    doubts: Mutex<Doubts>,
    used: Mutex<Moment>,
    is_over: AtomicBool,
    /// The pulse or the state changed.
    changed: Notify,
    orders: mpsc::Sender<Order>,
}

/// The settings of a session.
pub(crate) struct Birth {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) bells: Bells,
    /// When it began to connect.
    pub(crate) opened: Moment,
}

impl Session {
    /// With the orders that its thread is to carry out.
    pub(crate) fn new(birth: Birth) -> (Arc<Self>, mpsc::Receiver<Order>) {
        let Birth { client, config, host, bells, opened } = birth;
        let (orders, inbox) = mpsc::channel(ORDERS);
        let session = Self {
            span: client.session_timeout(),
            pulse: Mutex::new(Pulse::new(opened, config.tick)),
            client,
            config,
            bells,
            own_nodes: Mutex::default(),
            doubts: Mutex::default(),
            used: Mutex::new(host.now()),
            host,
            is_over: AtomicBool::new(false),
            changed: Notify::new(),
            orders,
        };
        (Arc::new(session), inbox)
    }

    /// For errors: which servers.
    pub(crate) fn place(&self) -> String {
        self.config.place_name()
    }

    /// The longest ttl for which it can vouch.
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

    /// Waits until a quorum write that is sent from now on, and succeeds, shows that the ensemble keeps this session
    /// for the
    /// ttl from `started` at least. Usually that is so at once.
    ///
    /// OK because the write is carried out by a leader that has heard of us at [`Pulse::heard`] or later, and keeps us
    /// for
    /// the span from then: `heard + span ≥ started + ttl` (L1, hazard 58).
    pub(crate) async fn proven(&self, started: Moment, ttl: Duration) -> Result<(), BackendError> {
        self.vouches_for(ttl)?;
        let spare = self.span.saturating_sub(ttl);
        self.until(|session| started.boot <= locked(&session.pulse).heard().boot + spare).await
    }

    /// Waits until it can be asked something.
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
        // OK to ignore because a thread that has ended, or has too much to do, finds it out from the flag.
        self.is_over.store(true, Ordering::Release);
        let _ = self.orders.try_send(Order::End);
        self.changed.notify_waiters();
    }

    pub(crate) fn own_nodes(&self) -> MutexGuard<'_, OwnNodes> {
        locked(&self.own_nodes)
    }

    fn doubts(&self) -> MutexGuard<'_, Doubts> {
        locked(&self.doubts)
    }

    /// Does something with an owner's entry, if it is still there.
    pub(crate) fn with_entry<T>(&self, owner: OwnerId, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.own_nodes().get(owner).map(act)
    }

    /// Whether it has no nodes and was not used for so long.
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

    /// Tells everybody here to look again: hints may have been missed.
    fn ring_all(&self) {
        let everybody = self.own_nodes().everybody();
        for (audience, owner) in everybody {
            self.bells.ring(audience, owner);
        }
    }

    /// Has the thread wait for what is watched. False if it has too much to do: then nobody waits for it.
    pub(crate) fn watch(&self, watch: Watch) -> bool {
        self.orders.try_send(Order::Watch(watch)).is_ok()
    }

    /// The access rights of the nodes that we make.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.access {
            Access::Open => Acls::anyone_all(),
            Access::Creator => Acls::creator_all(),
        }
    }

    /// The children of a lock's directory, none of them older than this question: behind a `sync`, without which a
    /// follower that is behind its leader shows a queue that somebody has left long ago. `None` if there is no
    /// directory.
    pub(crate) async fn seen_now(&self, lock: &str) -> Result<Option<Vec<String>>, Error> {
        // Both are sent at once, in this order.
        let (synced, listed) = join!(self.client.sync(lock), self.client.list_children(lock));
        synced?;
        match listed {
            Err(Error::NoNode) => Ok(None),
            listed => listed.map(Some),
        }
    }

    /// The children of a lock's directory behind a quorum write. `None` if that node is not there.
    pub(crate) async fn seen_by_quorum(&self, lock: &str, node: &str) -> Result<Option<Vec<String>>, Error> {
        // Both are sent at once, in this order.
        let (checked, listed) = join!(self.write(node), self.client.list_children(lock));
        match checked {
            Ok(()) => listed.map(Some),
            Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A quorum write that changes nothing and checks that a node is there. It breaks a connection that the session has
    /// left.
    ///
    /// It is sent here, and not when it is first polled: who lists behind it relies on the order.
    fn write(&self, node: &str) -> impl Future<Output = Result<(), MultiWriteError>> {
        let mut writer = self.client.new_multi_writer();
        let sent = writer.add_check_version(node, ANY_VERSION).map(|()| writer.commit());
        async move { sent?.await.map(drop) }
    }

    /// Looks for an owner's node by what its name begins with. What was asked before, over this or an earlier
    /// connection, has happened by then (H6.5, hazard 57): the write comes behind it, and the list behind the write. If
    /// not, the session moves away for that, and the next write breaks our connection (see [`Doubts`]).
    pub(crate) async fn find(&self, lock: &str, owner: OwnerId) -> Result<Option<Contender>, Error> {
        let mark = self.config.layout.mark(owner);
        let children = self.seen_by_quorum(lock, lock).await?;
        Ok(children.and_then(|children| Queue::read(&children).marked(&mark).cloned()))
    }

    /// Deletes a node that is not wanted any more. It may be gone already. If its name is not known, all that were made
    /// for the owner.
    pub(crate) async fn delete(&self, leaver: &Leaver) -> Result<Released, Error> {
        if let Some(node) = &leaver.node {
            return self.delete_named(&leaver.lock, &node.name).await;
        }
        let mut released = Released::WasGone;
        while let Some(found) = self.find(&leaver.lock, leaver.owner).await? {
            if self.delete_named(&leaver.lock, &found.name).await? == Released::Released {
                released = Released::Released;
            }
        }
        Ok(released)
    }

    async fn delete_named(&self, lock: &str, name: &str) -> Result<Released, Error> {
        is_released(self.client.delete(&format!("{lock}/{name}"), None).await)
    }

    /// Deletes the nodes that were made late for these owners. Answers for whom there is none left.
    async fn delete_late(&self, lock: &str, owners: &[OwnerId]) -> Result<Vec<OwnerId>, Error> {
        let Some(children) = self.seen_by_quorum(lock, lock).await? else { return Ok(owners.to_vec()) };
        let queue = Queue::read(&children);
        let mut settled = Vec::new();
        for owner in owners {
            if let Ok(true) = self.delete_late_of(lock, *owner, &queue).await {
                settled.push(*owner);
            }
        }
        Ok(settled)
    }

    /// All but the one that it has. False if one is being made: that may be any of these.
    async fn delete_late_of(&self, lock: &str, owner: OwnerId, queue: &Queue) -> Result<bool, Error> {
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
                    // It is sent here. Whoever adopts a node from now on asks the ensemble behind this whether it is
                    // there (L1).
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
pub(crate) enum Order {
    /// Rings for an owner when something happens to a node.
    Watch(Watch),
    /// Ends it.
    End,
}

/// A waiter watches a node.
pub(crate) struct Watch {
    pub(crate) owner: OwnerId,
    pub(crate) audience: Audience,
    pub(crate) watcher: OneshotWatcher,
    /// Ends the watch.
    pub(crate) end: oneshot::Receiver<()>,
}

/// Runs until it is told to end, the session is idle, or the ensemble has ended it.
pub(crate) async fn live(session: Arc<Session>, mut orders: mpsc::Receiver<Order>) {
    let mut state = session.client.state_watcher();
    let mut tasks = Tasks::new();
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
        look_around(&session, now, &tasks);
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
                    session.doubts().on_connected();
                    next_look = now;
                }
            }
            order = orders.recv() => match order {
                Some(Order::Watch(watch)) => tasks.push(wait(watch)),
                Some(Order::End) | None => break,
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
    Left { leaver: Leaver, is_gone: bool },
    /// Something happened to a node that this owner watches.
    Rung { owner: OwnerId, audience: Audience },
    /// A holder's own node could not be watched.
    Unwatched { owner: OwnerId },
    /// It was looked for nodes that are made late.
    Looked,
    /// A watch was given up.
    Nothing,
}

type Tasks = FuturesUnordered<BoxFuture<'static, Done>>;

fn on_state(session: &Session, state: SessionState) {
    tracing::debug!(place = session.place(), %state, "the session with ZooKeeper");
    if state.is_terminated() {
        session.end();
    }
    session.on_change();
    session.ring_all();
}

/// Deletes nodes that were made late. What is not settled by this is looked for again a beat later.
fn look_for_late(session: Arc<Session>) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let now = session.host.now();
        if !session.doubts().are_any(now) {
            return Done::Looked;
        }
        // OK to ignore because of what it breaks: the connection, if the session has moved away.
        let _ = session.write("/").await;
        let (connection, by_lock) = session.doubts().due();
        for (lock, owners) in by_lock {
            let settled = session.delete_late(&lock, &owners).await.unwrap_or_default();
            settled.into_iter().for_each(|owner| session.doubts().on_seen(connection, &lock, owner));
        }
        Done::Looked
    })
}

/// Starts to delete nodes that are not renewed, and to watch nodes that are held for a while.
fn look_around(session: &Arc<Session>, now: Moment, tasks: &Tasks) {
    let (overdue, unwatched) = {
        let mut own_nodes = session.own_nodes();
        (own_nodes.take_overdue(now), own_nodes.take_unwatched(now))
    };
    for leaver in overdue {
        let session = session.clone();
        tasks.push(Box::pin(async move {
            let is_gone = session.delete(&leaver).await.is_ok();
            Done::Left { leaver, is_gone }
        }));
    }
    for (owner, node) in unwatched {
        tasks.push(watch_own(session.clone(), owner, node));
    }
}

fn settle(session: &Session, done: Done) {
    match done {
        Done::Left { leaver, is_gone: true } => session.own_nodes().left(&leaver),
        Done::Left { leaver, is_gone: false } => session.own_nodes().put_back(leaver.owner),
        Done::Unwatched { owner } => drop(session.with_entry(owner, Entry::on_unwatched)),
        Done::Rung { owner, audience: Audience::Waiters } => {
            session.with_entry(owner, |entry| entry.rung());
            session.bells.ring(Audience::Waiters, owner);
        }
        Done::Rung { owner, audience: Audience::Holders } => {
            if session.with_entry(owner, |entry| entry.holds()) == Some(true) {
                session.bells.ring(Audience::Holders, owner);
            }
        }
        // Nobody watches for those who look on.
        Done::Rung { audience: Audience::Observers, .. } | Done::Beat { .. } => {}
        Done::Looked | Done::Nothing => {}
    }
}

fn beat(session: Arc<Session>, sent: Moment) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let result = session.client.sync("/").await;
        Done::Beat { sent, result }
    })
}

fn wait(watch: Watch) -> BoxFuture<'static, Done> {
    let Watch { owner, audience, watcher, end } = watch;
    Box::pin(async move {
        match select(Box::pin(watcher.changed()), end).await {
            Either::Left((event, _)) if event.event_type != EventType::Session => {
                Done::Rung { owner, audience }
            }
            _ => Done::Nothing,
        }
    })
}

/// A holder's own node, which a `break` takes away.
fn watch_own(session: Arc<Session>, owner: OwnerId, node: String) -> BoxFuture<'static, Done> {
    Box::pin(async move {
        let rung = Done::Rung { owner, audience: Audience::Holders };
        loop {
            let watcher = match session.client.get_and_watch_data(&node).await {
                Ok((_, _, watcher)) => watcher,
                Err(Error::NoNode) => return rung,
                Err(_) => return Done::Unwatched { owner },
            };
            // Else it is its entering, which we wrote ourselves.
            if watcher.changed().await.event_type == EventType::NodeDeleted {
                return rung;
            }
        }
    })
}

/// Closes the session, so that its locks are free at once.
async fn finish(session: Arc<Session>, tasks: Tasks, mut state: StateWatcher) {
    session.end();
    session.ring_all();
    let entries = session.own_nodes().close();
    drop((entries, tasks));
    let host = session.host.clone();
    // The driver closes the session when the last one who could use it is gone.
    drop(session);
    if state.peek_state().is_terminated() {
        return;
    }
    let patience = host.sleep_until(host.now() + GOODBYE);
    let closed = async { while !state.changed().await.is_terminated() {} };
    select(Box::pin(closed), patience).map(drop).await;
}

/// The making of a node. It is in doubt until it is answered.
pub(crate) struct Making {
    session: Arc<Session>,
    lock: String,
    owner: OwnerId,
    is_answered: bool,
    /// Another one, of which nobody knows what became, is in doubt as well.
    is_second: bool,
}

impl Making {
    /// Before it is sent: whoever does not poll it may be too late with its doubts.
    pub(crate) fn of(session: &Arc<Session>, lock: &str, owner: OwnerId) -> Self {
        let is_first = session.doubts().add(lock.to_owned(), owner, session.host.now());
        let session = session.clone();
        Self { session, lock: lock.to_owned(), owner, is_answered: false, is_second: !is_first }
    }

    /// It is known what became of it.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let (lock, now) = (mem::take(&mut self.lock), self.session.host.now());
        let mut doubts = self.session.doubts();
        if !self.is_answered {
            doubts.give_up(lock, self.owner, now);
        } else if !self.is_second {
            doubts.remove(lock, self.owner);
        }
    }
}

/// The makings of nodes whose answer is not there, or was lost, in one session. A member that hung may carry one out
/// after all.
///
/// Such a member has the request, and often one more to move the session back to it, from when its connection was tried
/// again. If it goes on before its leader lets go of it, the session is its own for a moment, and what was asked of it
/// before is carried out: after everything that was asked over the connection in between. The node that it makes belongs
/// to a session that lives, so that nothing would end it. But the next write over our connection breaks it, because the
/// session moved away, and nothing old is carried out once it has moved back to us. So there is a write with each beat
/// while there are doubts, and a look behind each connection that is made again.
#[derive(Debug, Default)]
struct Doubts {
    makings: BTreeMap<(String, OwnerId), Doubt>,
    /// How often the session was connected again.
    connection: u64,
}

#[derive(Debug)]
struct Doubt {
    since: Moment,
    /// The connection behind which there was nothing of it; at first the one over which it is asked for.
    seen: u64,
}

impl Doubts {
    /// A node is asked for. False if one was asked for before, and nobody knows what became of that.
    fn add(&mut self, lock: String, owner: OwnerId, now: Moment) -> bool {
        match self.makings.entry((lock, owner)) {
            btree_map::Entry::Occupied(mut before) => {
                before.get_mut().since = now;
                false
            }
            btree_map::Entry::Vacant(place) => {
                place.insert(Doubt { since: now, seen: self.connection });
                true
            }
        }
    }

    /// It is known what became of it.
    fn remove(&mut self, lock: String, owner: OwnerId) {
        self.makings.remove(&(lock, owner));
    }

    /// Nobody waits for the answer any more.
    fn give_up(&mut self, lock: String, owner: OwnerId, now: Moment) {
        self.add(lock, owner, now);
        if self.makings.len() > MANY {
            let oldest =
                self.makings.iter().min_by_key(|(_, doubt)| doubt.since.boot).map(|(key, _)| key.clone());
            oldest.map(|key| self.makings.remove(&key));
        }
    }

    /// The session is connected again: all are looked for once more.
    fn on_connected(&mut self) {
        self.connection += 1;
    }

    /// Whether there are any.
    fn are_any(&mut self, now: Moment) -> bool {
        self.makings.retain(|_, doubt| doubt.since.elapsed(now) <= OLD);
        !self.makings.is_empty()
    }

    /// Whose nodes are to be looked for where, and the connection behind which that is.
    fn due(&self) -> (u64, BTreeMap<String, Vec<OwnerId>>) {
        let mut by_lock: BTreeMap<String, Vec<OwnerId>> = BTreeMap::new();
        for ((lock, owner), _) in self.makings.iter().filter(|(_, doubt)| doubt.seen < self.connection) {
            by_lock.entry(lock.clone()).or_default().push(*owner);
        }
        (self.connection, by_lock)
    }

    /// Behind this connection there is nothing of it.
    fn on_seen(&mut self, connection: u64, lock: &str, owner: OwnerId) {
        if let Some(doubt) = self.makings.get_mut(&(lock.to_owned(), owner)) {
            doubt.seen = doubt.seen.max(connection);
        }
    }
}

/// Of a check that a node is there, whatever was written to it.
pub(crate) const ANY_VERSION: i32 = -1;

/// Watches that wait to be taken by the thread.
const ORDERS: usize = 1024;
/// After which a session that has no nodes ends. The next claim begins another one.
const IDLE: Duration = Duration::from_secs(60);

/// How often it checks for expired nodes, if it has nodes.
const LOOK: Duration = Duration::from_millis(100);
const GOODBYE: Duration = Duration::from_secs(2);

/// A leader lets go of a member that hangs after `syncLimit` ticks, ten seconds by default, and what that one has not
/// sent by then is void.
const OLD: Duration = Duration::from_secs(600);
/// A look for each of these when the connection is made again.
const MANY: usize = 1024;

#[cfg(test)]
mod tests {
    use tenure::TokioHost;
    use tenure_core::{BackendHandle, ProcessId, Renewal};
    use tenure_testkit::{
        conformance::player::Player, patience::until, proxy::Proxy, zookeeper::ZooKeeperServer,
    };
    use zookeeper_client::CreateMode;

    use super::*;
    use crate::{backend::ZooKeeper, node::token, own_nodes::Node};

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn make(client: &Client, session: &Session, lock: &str, player: &Player) -> Node {
        let prefix = session.config.layout.prefix(player.claim.owner, player.claim.mode);
        let options = CreateMode::EphemeralSequential.with_acls(session.acls());
        let (stat, sequence) = client.create(&format!("{lock}/{prefix}"), b"", &options).await.unwrap();
        Node { name: format!("{prefix}{sequence}"), token: token(stat.czxid) }
    }

    async fn names(session: &Session, lock: &str) -> Vec<String> {
        session.client.list_children(lock).await.unwrap_or_default()
    }

    /// L1, L6, hazard 57: as if a member that hung had carried out what was asked of it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_made_late_is_deleted_over_the_next_connection_and_what_is_wanted_is_not() {
        let server = ZooKeeperServer::start();
        let proxy = Proxy::to(server.port(), 1);
        let url = format!("zookeeper://127.0.0.1:{}/tenure", proxy.port());
        let zookeeper = ZooKeeper::new(Config::from_url(&url).unwrap(), Arc::new(TokioHost));
        let backend: BackendHandle = Arc::new(zookeeper.clone());
        // In the order in which it is looked for them.
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
        let mut entry = Entry::new(&being_made.claim, locks[0].clone(), now);
        entry.keep_until(now + Duration::from_secs(3600));
        session.own_nodes().add(being_made.claim.owner, entry);
        let late = make(&session.client, &session, &locks[0], being_made).await;
        let other = Client::connect(&server.address()).await.unwrap();
        let of_another_session = make(&other, &session, &locks[1], elsewhere).await;
        make(&session.client, &session, &locks[2], gone).await;
        make(&session.client, &session, &locks[2], gone).await;
        make(&session.client, &session, &locks[3], held).await;
        for (player, lock) in players.iter().zip(&locks) {
            session.doubts().give_up(lock.clone(), player.claim.owner, now);
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
        until("all is seen", PATIENCE, async || session.doubts().due().1.is_empty()).await;
    }

    fn at(secs: u64) -> Moment {
        Moment { boot: Duration::from_secs(secs), wall: Duration::from_secs(1_700_000_000 + secs) }
    }

    fn owner(n: u8) -> OwnerId {
        OwnerId::from_random(ProcessId::from_random([0; 8]), [n; 16])
    }

    fn due(doubts: &Doubts) -> Vec<(String, Vec<OwnerId>)> {
        doubts.due().1.into_iter().collect()
    }

    #[test]
    fn a_doubt_lasts_until_it_is_old_and_there_are_not_too_many() {
        let mut doubts = Doubts::default();
        doubts.give_up("/t/a".into(), owner(1), at(0));
        doubts.give_up("/t/a".into(), owner(2), at(500));
        doubts.on_connected();
        assert!(doubts.are_any(at(600)));
        assert_eq!(due(&doubts), [("/t/a".into(), vec![owner(1), owner(2)])]);
        assert!(doubts.are_any(at(601)));
        assert_eq!(due(&doubts), [("/t/a".into(), vec![owner(2)])]);
        assert!(!doubts.are_any(at(1101)));
        for n in 0..=MANY {
            doubts.give_up(format!("/t/{n}"), owner(1), at(2000 + n as u64));
        }
        doubts.on_connected();
        assert_eq!(due(&doubts).len(), MANY);
        assert!(!doubts.due().1.contains_key("/t/0"), "the oldest goes first");
    }

    /// Hazard 57: what was asked for over a connection happens after it broke, and a look that found it unsettled counts not.
    #[test]
    fn each_is_looked_for_behind_every_connection_until_nothing_is_there() {
        let mut doubts = Doubts::default();
        assert!(doubts.add("/t/a".into(), owner(1), at(0)));
        assert_eq!(due(&doubts), []);
        doubts.on_connected();
        let (first, _) = doubts.due();
        doubts.on_connected();
        doubts.on_seen(first, "/t/a", owner(1));
        assert_eq!(due(&doubts).len(), 1, "it may have happened when that connection broke");
        let (second, _) = doubts.due();
        doubts.on_seen(second, "/t/a", owner(1));
        assert_eq!(due(&doubts), []);
        doubts.on_connected();
        assert_eq!(due(&doubts).len(), 1);
    }

    #[test]
    fn the_answer_to_the_second_says_nothing_of_the_first() {
        let mut doubts = Doubts::default();
        assert!(doubts.add("/t/a".into(), owner(1), at(0)));
        doubts.give_up("/t/a".into(), owner(1), at(1));
        assert!(!doubts.add("/t/a".into(), owner(1), at(2)));
        doubts.remove("/t/a".into(), owner(1));
        assert!(!doubts.are_any(at(2)));
    }
}
