//! The visible state of a lock, and breaking it.

use std::time::Duration;

use futures_util::{future::join_all, join};
use tenure_core::{
    BackendError, BreakScope, FencingToken, HolderView, LockName, LockView, Moment, WaiterView,
};
use zookeeper_client::{Error, Stat};

use crate::{
    config::Layout,
    error, memo,
    node::{self, Contender, NodeRecord, token},
    queue::NodeQueue,
    session::EnsembleSession,
    store::{DATA, NEWER, SharedState, holder_view, make_directory},
};

fn waiter_view(layout: Layout, (node, data, stat): &NodeRead<'_>, now: Moment) -> WaiterView {
    let record = NodeRecord::read(data);
    let made_ms = u64::try_from(stat.ctime).unwrap_or(0);
    let since = Duration::from_millis(record.as_ref().map_or(made_ms, |record| record.since_ms));
    let owner =
        record.as_ref().map_or_else(|| layout.stranger(&node.name), |record| record.owner.to_string());
    let label = record.map(|record| record.label);
    WaiterView::new(owner, node.mode, label, now.wall.saturating_sub(since))
}

/// The state of one lock, none of it older than the request.
pub(crate) async fn inspect(
    store: &SharedState,
    session: &EnsembleSession,
    name: &LockName,
) -> Result<LockView, BackendError> {
    // Sent immediately, in this order.
    let synced = session.client.sync(&session.config.base);
    let (synced, seen, memo) = join!(synced, look(store, session, name), memo::read(store, session, name));
    synced.map_err(|error| error::looked(&session.place(), error))?;
    let mut view = seen?;
    view.memo = memo?;
    Ok(view)
}

/// The state of one lock, as the server knows it.
async fn look(
    store: &SharedState,
    session: &EnsembleSession,
    name: &LockName,
) -> Result<LockView, BackendError> {
    let lock = store.directory_of(name);
    let looked = |error| error::looked(&session.place(), error);
    // Sent immediately.
    let (seen, directory) = join!(session.client.get_children(&lock), session.client.get_data(&lock));
    if directory.is_ok_and(|(data, _)| data.starts_with(NEWER)) {
        return Err(error::newer(&session.place(), &lock));
    }
    let (children, stat) = match seen {
        Err(Error::NoNode) => {
            let fence = fence_without_directory(session).await.map_err(looked)?;
            return Ok(LockView::new(name.clone(), Vec::new(), Vec::new(), fence));
        }
        seen => seen.map_err(looked)?,
    };
    let queue = NodeQueue::read(&children);
    let now = session.host.now();
    let holders = read_all(session, &lock, queue.holders()).await.map_err(looked)?;
    let waiters = read_all(session, &lock, queue.waiters()).await.map_err(looked)?;
    if let Some((node, ..)) = holders.iter().chain(&waiters).find(|(_, data, _)| node::is_newer(data)) {
        return Err(error::newer(&session.place(), &format!("{lock}/{}", node.name)));
    }
    let layout = session.config.layout;
    let holders = holders.iter().map(|(node, data, stat)| holder_view(layout, node, data, stat)).collect();
    let queue = waiters.iter().map(|waiter| waiter_view(layout, waiter, now)).collect();
    let fence = token(stat.czxid.max(stat.mzxid).max(stat.pzxid));
    Ok(LockView::new(name.clone(), holders, queue, fence))
}

/// The fence of a lock without a directory. It was never there, or its removal when it was empty raised this number.
async fn fence_without_directory(session: &EnsembleSession) -> Result<FencingToken, Error> {
    let base = session.client.check_stat(&session.config.base).await?;
    Ok(token(base.map_or(0, |stat| stat.czxid.max(stat.pzxid))))
}

type NodeRead<'a> = (&'a Contender, Vec<u8>, Stat);

/// The nodes that still exist.
async fn read_all<'a>(
    session: &EnsembleSession,
    lock: &str,
    nodes: &'a [Contender],
) -> Result<Vec<NodeRead<'a>>, Error> {
    let mut seen = Vec::new();
    for batch in nodes.chunks(BATCH) {
        let reads = batch.iter().map(|node| session.client.get_data(&format!("{lock}/{}", node.name)));
        for (node, read) in batch.iter().zip(join_all(reads).await) {
            match read {
                Ok((data, stat)) => seen.push((node, data, stat)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(seen)
}

/// The locks with a holder or a waiter, by name.
pub(crate) async fn list(
    store: &SharedState,
    session: &EnsembleSession,
    prefix: &str,
) -> Result<Vec<LockView>, BackendError> {
    let children = session.seen_now(&session.config.base).await;
    let children = children.map_err(|error| error::looked(&session.place(), error))?.unwrap_or_default();
    let mut names: Vec<LockName> = children.iter().filter_map(|child| node::decode(child)).collect();
    names.retain(|name| name.as_str().starts_with(prefix));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    let mut views = Vec::new();
    for batch in names.chunks(BATCH) {
        for view in join_all(batch.iter().map(|name| look(store, session, name))).await {
            views.push(view?);
        }
    }
    views.retain(|view| !view.holders.is_empty() || !view.queue.is_empty());
    Ok(views)
}

/// Deletes the nodes of the holders, and raises the fence.
pub(crate) async fn break_lock(
    store: &SharedState,
    session: &EnsembleSession,
    name: &LockName,
    scope: BreakScope,
) -> Result<Vec<HolderView>, BackendError> {
    let lock = store.directory_of(name);
    let wrote = |error| error::wrote(&session.place(), error);
    store.directories.ready(session, &lock).await?;
    let Some(children) = session.seen_by_quorum(&lock, &lock).await.map_err(wrote)? else {
        // The directory was empty, and has just been removed.
        return raise(session, &lock).await.map(|()| Vec::new()).map_err(wrote);
    };
    let queue = NodeQueue::read(&children);
    let mut held = read_all(session, &lock, queue.holders()).await.map_err(wrote)?;
    let owner_of = |data: &[u8]| NodeRecord::read(data).map(|record| record.owner);
    match scope {
        BreakScope::Owner(owner) => {
            held.retain(|(_, data, _)| owner_of(data) == Some(owner));
            if held.is_empty() {
                return Ok(Vec::new());
            }
        }
        BreakScope::Leases if held.iter().any(|(_, data, _)| owner_of(data).is_none()) => {
            return Err(BackendError::foreign_holder(name));
        }
        BreakScope::Leases | BreakScope::All => {}
    }
    raise(session, &lock).await.map_err(wrote)?;
    let mut broken = Vec::new();
    for (node, data, stat) in &held {
        match session.client.delete(&format!("{lock}/{}", node.name), None).await {
            Ok(()) => broken.push(holder_view(session.config.layout, node, data, stat)),
            Err(Error::NoNode) => {}
            // The nodes that were deleted before stay deleted.
            Err(error) => return Err(wrote(error).of_unknown_outcome()),
        }
    }
    Ok(broken)
}

/// Raises the fence: a change of the directory is a transaction, whose number is larger than all before.
async fn raise(session: &EnsembleSession, lock: &str) -> Result<(), Error> {
    match session.client.set_data(lock, DATA, None).await {
        Err(Error::NoNode) => make_directory(session, lock).await,
        raised => raised.map(drop),
    }
}

/// Requests that are under way at the same time.
const BATCH: usize = 64;
