//! Leaving: deletes an owner's node, even if its name is not known.

use futures_util::join;
use tenure_core::{BackendError, OwnerId, Released};
use zookeeper_client::{Error, MultiWriteError};

use crate::{error, node::Contender, own_nodes::Leaver, queue::Queue, session::Session};

/// Deletes a node that is not wanted any more. It may be gone already. If its name is not known, all that were made for
/// the owner.
pub(crate) async fn delete(session: &Session, leaver: &Leaver) -> Result<Released, Error> {
    if let Some(node) = &leaver.node {
        return delete_named(session, &leaver.lock, &node.name).await;
    }
    let mut released = Released::WasGone;
    while let Some(found) = find(session, &leaver.lock, leaver.owner).await? {
        if delete_named(session, &leaver.lock, &found.name).await? == Released::Released {
            released = Released::Released;
        }
    }
    Ok(released)
}

async fn delete_named(session: &Session, lock: &str, name: &str) -> Result<Released, Error> {
    is_released(session.client.delete(&format!("{lock}/{name}"), None).await)
}

fn is_released(deleted: Result<(), Error>) -> Result<Released, Error> {
    match deleted {
        Ok(()) => Ok(Released::Released),
        Err(Error::NoNode) => Ok(Released::WasGone),
        Err(error) => Err(error),
    }
}

/// Looks for an owner's node by what its name begins with. What was asked before, over this or an earlier connection,
/// has happened by then (H6.5, hazard 57): the write comes behind it, and the list behind the write. If not, the session
/// moves away for that, and the next write breaks our connection (see [`Doubts`](crate::doubts::Doubts)).
pub(crate) async fn find(session: &Session, lock: &str, owner: OwnerId) -> Result<Option<Contender>, Error> {
    let mark = session.config.layout.mark(owner);
    let children = seen_by_quorum(session, lock, lock).await?;
    Ok(children.and_then(|children| Queue::read(&children).marked(&mark).cloned()))
}

/// Deletes the nodes that were made late for these owners. Answers for whom there is none left.
pub(crate) async fn delete_late(
    session: &Session,
    lock: &str,
    owners: &[OwnerId],
) -> Result<Vec<OwnerId>, Error> {
    let Some(children) = seen_by_quorum(session, lock, lock).await? else { return Ok(owners.to_vec()) };
    let queue = Queue::read(&children);
    let mut settled = Vec::new();
    for owner in owners {
        if let Ok(true) = delete_late_of(session, lock, *owner, &queue).await {
            settled.push(*owner);
        }
    }
    Ok(settled)
}

/// All but the one that it has. False if one is being made: that may be any of these.
async fn delete_late_of(session: &Session, lock: &str, owner: OwnerId, queue: &Queue) -> Result<bool, Error> {
    for late in queue.all_marked(&session.config.layout.mark(owner)) {
        let path = format!("{lock}/{}", late.name);
        // OK because it is of this session: an owner may have its node in another one (L1).
        let stat = session.client.check_stat(&path).await?;
        if stat.is_none_or(|stat| stat.ephemeral_owner != session.client.session_id().0) {
            continue;
        }
        let deleting = {
            let mut own_nodes = session.own_nodes();
            match own_nodes.get(owner).map(|entry| entry.node.as_ref()) {
                Some(None) => return Ok(false),
                Some(Some(node)) if node.name == late.name => continue,
                // It is sent here. Whoever adopts a node from now on asks the ensemble behind this whether it is there (L1).
                Some(Some(_)) | None => session.client.delete(&path, None),
            }
        };
        is_released(deleting.await)?;
    }
    Ok(session.with_entry(owner, |entry| entry.node.is_some()) != Some(false))
}

/// The children of a lock's directory behind a quorum write. `None` if that node is not there.
pub(crate) async fn seen_by_quorum(
    session: &Session,
    lock: &str,
    node: &str,
) -> Result<Option<Vec<String>>, Error> {
    // Both are sent at once, in this order.
    let (checked, listed) = join!(write(session, node), session.client.list_children(lock));
    match checked {
        Ok(()) => listed.map(Some),
        Err(MultiWriteError::OperationFailed { source: Error::NoNode, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A quorum write that changes nothing and checks that a node is there. It breaks a connection that the session has left.
///
/// It is sent here, and not when it is first polled: who lists behind it relies on the order.
pub(crate) fn write<'a>(
    session: &'a Session,
    node: &str,
) -> impl Future<Output = Result<(), MultiWriteError>> + 'a {
    let mut writer = session.client.new_multi_writer();
    let sent = writer.add_check_version(node, ANY_VERSION).map(|()| writer.commit());
    async move { sent?.await.map(drop) }
}

/// The children of a lock's directory, none of them older than this question: behind a `sync`, without which a follower
/// that is
/// behind its leader shows a queue that somebody has left long ago. `None` if there is no directory.
pub(crate) async fn seen_now(session: &Session, lock: &str) -> Result<Option<Vec<String>>, Error> {
    // Both are sent at once, in this order.
    let (synced, listed) = join!(session.client.sync(lock), session.client.list_children(lock));
    synced?;
    match listed {
        Err(Error::NoNode) => Ok(None),
        listed => listed.map(Some),
    }
}

/// Leaves for an owner, whether it holds or waits.
pub(crate) async fn release(
    session: &Session,
    lock: String,
    owner: OwnerId,
) -> Result<Released, BackendError> {
    session.connected().await?;
    let due = session.host.now() + GRACE;
    let node = session.with_entry(owner, |entry| {
        // From here on it holds nothing. If this is broken off, the session's thread goes on with it.
        entry.leave(due);
        entry.node.clone()
    });
    let leaver = Leaver { owner, lock, node: node.flatten() };
    let released = delete(session, &leaver).await.map_err(|error| error::wrote(&session.place(), error))?;
    session.own_nodes().remove(owner);
    Ok(released)
}

pub(crate) const ANY_VERSION: i32 = -1;
/// After this time the session's thread deletes a node whose owner has begun to delete it.
const GRACE: std::time::Duration = std::time::Duration::from_secs(1);
