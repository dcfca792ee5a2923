//! The thread of a session: connects, sends beats, passes on watches, deletes nodes that are not renewed, and ends the
//! session.

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use tenure_core::{Audience, BoxFuture, Host, Moment, OwnerId};
use tokio::sync::mpsc;
use zookeeper_client::{Client, Connector, Error, EventType, SessionState, StateWatcher};

use crate::{
    config::Config,
    leave,
    own_nodes::{Entry, Leaver},
    session::{Order, Session, Watch},
};

/// Connects, and says when it began to: the first of several tries that succeeds.
///
/// The driver tries the servers in an order of its own, and waits long for one that hangs. A program that has just been
/// started
/// need not: where nothing is heard, another try begins beside the first.
pub(crate) async fn begin(
    config: &Config,
    host: &dyn Host,
    ttl: Duration,
) -> Result<(Client, Moment), Error> {
    let attempt = |began: Moment| async move { connect(config, ttl).await.map(|client| (client, began)) };
    let mut tries = FuturesUnordered::from_iter([attempt(host.now())]);
    // Each draws its own order: of so many tries, one begins with a server that answers.
    let mut left = if config.hosts.len() == 1 { 1 } else { 4 * config.hosts.len() };
    loop {
        let silence = host.sleep_until(host.now() + SILENCE);
        let ended = match select(tries.next(), silence).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => None,
        };
        match ended {
            Some(Ok(begun)) => return Ok(begun),
            Some(Err(error)) if tries.is_empty() => return Err(error),
            None if left > 1 => {
                left -= 1;
                tries.push(attempt(host.now()));
            }
            Some(Err(_)) | None => {}
        }
    }
}

/// One round through all servers.
async fn connect(config: &Config, ttl: Duration) -> Result<Client, Error> {
    // A server that says nothing for so long is left for another one, early enough for a renewal to be tried again.
    let patience = (ttl / 4).clamp(LEAST_PATIENCE, config.connect_timeout);
    let mut connector = Client::connector()
        .with_session_timeout(ttl + config.slack())
        .with_connection_timeout(patience)
        .with_fail_eagerly();
    if let Some(login) = &config.login {
        let word = format!("{}:{}", login.user, login.password.expose());
        connector = connector.with_auth("digest", word.as_bytes());
    }
    Connector::connect(connector, &config.place_name()).await
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
        let _ = leave::write(&session, "/").await;
        let (connection, by_lock) = session.doubts().due();
        for (lock, owners) in by_lock {
            let settled = leave::delete_late(&session, &lock, &owners).await.unwrap_or_default();
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
            let is_gone = leave::delete(&session, &leaver).await.is_ok();
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

/// How often it checks for expired nodes, if it has nodes.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait for an answer before another attempt to connect starts beside the others.
const SILENCE: Duration = Duration::from_millis(150);
const LEAST_PATIENCE: Duration = Duration::from_millis(250);
const GOODBYE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tenure::TokioHost;
    use tenure_core::{BackendHandle, Renewal};
    use tenure_testkit::{
        conformance::player::Player, patience::until, proxy::Proxy, zookeeper::ZooKeeperServer,
    };
    use zookeeper_client::CreateMode;

    use super::*;
    use crate::{backend::ZooKeeper, own_nodes::Node};

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn make(client: &Client, session: &Session, lock: &str, player: &Player) -> Node {
        let prefix = session.config.layout.prefix(player.claim.owner, player.claim.mode);
        let options = CreateMode::EphemeralSequential.with_acls(session.acls());
        let (stat, sequence) = client.create(&format!("{lock}/{prefix}"), b"", &options).await.unwrap();
        Node { name: format!("{prefix}{sequence}"), token: crate::node::token(stat.czxid) }
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
}
