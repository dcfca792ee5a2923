//! The directory of a lock: made when it is first needed, and refused if it holds something else.

use std::{collections::HashSet, sync::Mutex};

use tenure_core::{BackendError, locked};
use zookeeper_client::{CreateMode, Error};

use crate::{error, node::Contender, session::Session};

/// The directories that are known to belong to locks.
#[derive(Default)]
pub(crate) struct Directories(Mutex<HashSet<String>>);

impl Directories {
    /// Makes the directory if there is none. If it is not known, first checks that it belongs to a lock.
    pub(crate) async fn ready(&self, session: &Session, path: &str) -> Result<(), BackendError> {
        if locked(&self.0).contains(path) {
            return Ok(());
        }
        if !is_there(session, path).await? {
            make(session, path).await.map_err(|error| error::wrote(&session.place(), error))?;
            // Somebody may have been faster.
            is_there(session, path).await?;
        }
        let mut known = locked(&self.0);
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(path.to_owned());
        Ok(())
    }

    /// It vanished: the server removes empty ones.
    pub(crate) fn forget(&self, path: &str) {
        locked(&self.0).remove(path);
    }
}

/// Whether there is a directory of a lock.
///
/// # Errors
/// `Invalid` if there is something else.
async fn is_there(session: &Session, path: &str) -> Result<bool, BackendError> {
    let (data, children) =
        futures_util::join!(session.client.get_data(path), session.client.list_children(path));
    let looked = |error| error::looked(&session.place(), error);
    let ((data, stat), children) = match (data, children) {
        (Err(Error::NoNode), _) | (_, Err(Error::NoNode)) => return Ok(false),
        (data, children) => (data.map_err(looked)?, children.map_err(looked)?),
    };
    let is_ours = data.is_empty() || data == DATA;
    let is_line = children.iter().all(|child| Contender::read(child).is_some());
    if stat.ephemeral_owner == 0 && is_ours && is_line {
        return Ok(true);
    }
    Err(error::no_lock(&session.place(), path))
}

/// With all directories above it that are missing: whoever may use them need not be able to make them. Where the server
/// can, it
/// removes the lowest one again when nobody has wanted the lock for a while; tokens grow all the same, for they are
/// counted by
/// the ensemble.
pub(crate) async fn make(session: &Session, path: &str) -> Result<(), Error> {
    match make_lowest(session, path).await {
        Err(Error::NoNode) => {}
        made => return made,
    }
    let permanent = CreateMode::Persistent.with_acls(session.acls());
    let (above, _) = path.rsplit_once('/').expect("BUG: a lock is below a path");
    session.client.mkdir(above, &permanent).await?;
    make_lowest(session, path).await
}

async fn make_lowest(session: &Session, path: &str) -> Result<(), Error> {
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

/// The content of our directories.
pub(crate) const DATA: &[u8] = b"tenure";
const KNOWN: usize = 4096;
