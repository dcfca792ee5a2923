//! `Shared`: what all handles of one process share.

use std::sync::{Arc, Mutex};

use tenure_core::Host;

use crate::{
    config::Config,
    known::{Known, Seen},
    script::Scripts,
    sentinel::Newest,
};

/// What all handles of one process share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) scripts: Scripts,
    pub(crate) seen: Mutex<Seen>,
    pub(crate) known: Known,
    /// The newest master that a Sentinel named.
    pub(crate) newest: Mutex<Newest>,
}
