//! `Store`: the state that all handles share.

use std::sync::atomic::AtomicI64;

use tenure_core::LockName;

use crate::{directory::Directories, ensemble::Ensemble, holders::KnownHolders, node, sessions::Sessions};

/// The state that all handles share.
pub(crate) struct Store {
    pub(crate) sessions: Sessions,
    pub(crate) directories: Directories,
    pub(crate) known_holders: KnownHolders,
    pub(crate) ensemble: Ensemble,
    /// The latest transaction that made a node of this process: no later one has a smaller number.
    pub(crate) newest: AtomicI64,
}

impl Store {
    /// The directory of the contenders of a lock.
    pub(crate) fn directory_of(&self, name: &LockName) -> String {
        format!("{}/{}", self.sessions.config.base, node::encode(name))
    }
}
