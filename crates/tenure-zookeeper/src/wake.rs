//! Hints: a waiter watches a node before it, and is woken when that node is deleted or becomes a holder.

use futures_util::future::try_join_all;
use tenure_core::{Audience, BackendError, OwnerId};
use zookeeper_client::Error;

use crate::{
    error,
    holders::KnownHolders,
    node::Contender,
    queue::Queue,
    record::Record,
    session::{Session, Watch},
};

/// From where an owner watches the nodes of a lock.
pub(crate) struct Lookout<'a> {
    pub(crate) session: &'a Session,
    pub(crate) known_holders: &'a KnownHolders,
    /// The directory of the lock.
    pub(crate) lock: &'a str,
    pub(crate) owner: OwnerId,
}

impl Lookout<'_> {
    /// Watches for a waiter with so many others ahead. False if a node to watch is gone already, or has become a
    /// holder.
    ///
    /// A watch is set by reading the node, so nothing is missed between the look and the watch.
    pub(crate) async fn watch(&self, queue: &Queue, ahead: usize) -> Result<bool, BackendError> {
        let targets = queue.watched_by(ahead).into_iter().map(|node| self.watch_one(node, ahead > 0));
        let watched = try_join_all(targets).await?;
        Ok(watched.into_iter().all(|is_watched| is_watched))
    }

    async fn watch_one(&self, node: &str, waits: bool) -> Result<bool, BackendError> {
        let (session, owner) = (self.session, self.owner);
        if session.with_entry(owner, |entry| entry.watches(node)) == Some(true) {
            return Ok(true);
        }
        let path = format!("{}/{node}", self.lock);
        let (data, stat, watcher) = match session.client.get_and_watch_data(&path).await {
            Ok(read) => read,
            Err(Error::NoNode) => return Ok(false),
            Err(error) => return Err(error::looked(&session.place(), error)),
        };
        // Whoever was seen waiting has entered since: what would have rung has happened.
        if waits && Record::read(&data).is_some_and(|record| record.entered) {
            return Ok(false);
        }
        if let Some(holder) = Contender::read(node).filter(|_| !waits) {
            self.known_holders.read(path, &holder, &data, &stat);
        }
        let Some(end) = session.with_entry(owner, |entry| entry.watch(node)) else { return Ok(false) };
        if !session.watch(Watch { owner, audience: Audience::Waiters, watcher, end }) {
            // It asks again all the same, and then watches anew.
            session.with_entry(owner, |entry| entry.unwatch(node));
        }
        Ok(true)
    }
}
