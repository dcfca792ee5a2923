//! `SharedState`: the state that all handles share, and what it remembers of the locks and of the servers.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, OnceLock, atomic::AtomicI64},
    time::Duration,
};

use tenure_core::{BackendError, HolderView, LockName, Moment, locked};
use zookeeper_client::{CreateMode, Error, Stat};

use crate::{
    config::Layout,
    error,
    node::{self, Contender, NodeRecord, token},
    session::EnsembleSession,
    sessions::SessionPool,
};

/// The state that all handles share.
pub(crate) struct SharedState {
    pub(crate) sessions: SessionPool,
    pub(crate) directories: Directories,
    pub(crate) known_holders: KnownHolders,
    pub(crate) ensemble: Ensemble,
    /// The latest transaction that made a node of this process: no later one has a smaller number.
    pub(crate) newest: AtomicI64,
}

impl SharedState {
    /// The directory of the contenders of a lock.
    pub(crate) fn directory_of(&self, name: &LockName) -> String {
        format!("{}/{}", self.sessions.config.base, node::encode(name))
    }
}

/// The directories that are known to belong to locks.
#[derive(Default)]
pub(crate) struct Directories(Mutex<HashSet<String>>);

impl Directories {
    /// Makes the directory if there is none. If it is not known, first checks that it belongs to a lock.
    pub(crate) async fn ready(&self, session: &EnsembleSession, path: &str) -> Result<(), BackendError> {
        if locked(&self.0).contains(path) {
            return Ok(());
        }
        if !is_there(session, path).await? {
            make_directory(session, path).await.map_err(|error| error::wrote(&session.place(), error))?;
            // Another client may have been faster.
            is_there(session, path).await?;
        }
        let mut known = locked(&self.0);
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(path.to_owned());
        Ok(())
    }

    /// The directory vanished: the server removes empty ones.
    pub(crate) fn forget(&self, path: &str) {
        locked(&self.0).remove(path);
    }
}

/// Whether there is a directory of a lock.
///
/// # Errors
/// `Invalid` if there is something else.
async fn is_there(session: &EnsembleSession, path: &str) -> Result<bool, BackendError> {
    let (data, children) =
        futures_util::join!(session.client.get_data(path), session.client.list_children(path));
    let looked = |error| error::looked(&session.place(), error);
    let ((data, stat), children) = match (data, children) {
        (Err(Error::NoNode), _) | (_, Err(Error::NoNode)) => return Ok(false),
        (data, children) => (data.map_err(looked)?, children.map_err(looked)?),
    };
    if data.starts_with(NEWER) {
        return Err(error::newer(&session.place(), path));
    }
    let is_ours = data.is_empty() || data == DATA;
    let is_line = children.iter().all(|child| Contender::read(child).is_some());
    if stat.ephemeral_owner == 0 && is_ours && is_line {
        return Ok(true);
    }
    Err(error::no_lock(&session.place(), path))
}

/// Makes the directory, and those above it only if they are missing: a user that may use them need not be able to
/// make them. If the server can, it removes the lowest one again when no client has wanted the lock for a while.
/// Tokens still grow, because the ensemble counts them.
pub(crate) async fn make_directory(session: &EnsembleSession, path: &str) -> Result<(), Error> {
    match make_lowest(session, path).await {
        Err(Error::NoNode) => {}
        made => return made,
    }
    let permanent = CreateMode::Persistent.with_acls(session.acls());
    let (above, _) = path.rsplit_once('/').expect("BUG: a lock is below a path");
    session.client.mkdir(above, &permanent).await?;
    make_lowest(session, path).await
}

async fn make_lowest(session: &EnsembleSession, path: &str) -> Result<(), Error> {
    let client = &session.client;
    let permanent = CreateMode::Persistent.with_acls(session.acls());
    let made = client.create(path, DATA, &CreateMode::Container.with_acls(session.acls())).await;
    let made = match made {
        Err(Error::Unimplemented) => client.create(path, DATA, &permanent).await,
        made => made,
    };
    match made {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Holders that were read before, by their paths. Their text does not change.
#[derive(Default)]
pub(crate) struct KnownHolders(Mutex<HashMap<String, HolderView>>);

impl KnownHolders {
    /// A holder for display; `None` if it is gone, or cannot be read.
    pub(crate) async fn first_holder(
        &self,
        session: &EnsembleSession,
        lock: &str,
        holder: &Contender,
    ) -> Option<HolderView> {
        let path = format!("{lock}/{}", holder.name);
        if let Some(known) = locked(&self.0).get(&path) {
            return Some(known.clone());
        }
        let (data, stat) = session.client.get_data(&path).await.ok()?;
        Some(self.remember(path, holder_view(session.config.layout, holder, &data, &stat)))
    }

    /// Adds a holder whose node was read when it was watched.
    pub(crate) fn read(&self, path: String, layout: Layout, holder: &Contender, data: &[u8], stat: &Stat) {
        self.remember(path, holder_view(layout, holder, data, stat));
    }

    fn remember(&self, path: String, seen: HolderView) -> HolderView {
        let mut known_holders = locked(&self.0);
        if known_holders.len() >= KEPT {
            known_holders.clear();
        }
        known_holders.insert(path, seen.clone());
        seen
    }
}

pub(crate) fn holder_view(layout: Layout, node: &Contender, data: &[u8], stat: &Stat) -> HolderView {
    let record = NodeRecord::read(data);
    let owner =
        record.as_ref().map_or_else(|| layout.stranger(&node.name), |record| record.owner.to_string());
    // Without an end: no client can know when the ensemble will stop receiving beats of its process.
    let mut holder = HolderView::new(owner, node.mode);
    holder.token = record.as_ref().map(|_| token(stat.czxid));
    holder.since = record.as_ref().map(|record| Duration::from_millis(record.since_ms));
    holder.label = record.map(|record| record.label);
    holder
}

/// What is known of the servers.
#[derive(Default)]
pub(crate) struct Ensemble {
    /// Whether they have TTL nodes, once they were asked.
    pub(crate) has_ttl: OnceLock<bool>,
    /// The leader's clock, and when it was read here.
    clock: Mutex<Option<(Duration, Moment)>>,
}

impl Ensemble {
    /// The leader's clock showed this before `at`.
    pub(crate) fn learn(&self, leader: Duration, at: Moment) {
        *locked(&self.clock) = Some((leader, at));
    }

    /// A time that the leader's clock has reached; `None` if it was not read for a while.
    pub(crate) fn now(&self, at: Moment) -> Option<Duration> {
        let (leader, read) = (*locked(&self.clock))?;
        Some(leader + read.elapsed(at)).filter(|_| read.elapsed(at) < FRESH)
    }
}

/// The content of Tenure's directories.
pub(crate) const DATA: &[u8] = b"tenure";
/// How the content begins in a newer version that orders or reads its nodes in another way.
pub(crate) const NEWER: &[u8] = b"tenure ";
const KNOWN: usize = 4096;

const KEPT: usize = 1024;

/// How long a reading of the leader's clock is used: 60 s, in which clocks diverge by less than the drift of a lease.
const FRESH: Duration = Duration::from_secs(60);
