//! `Shared`: what all handles of one process have in common.

use std::sync::Arc;

use tenure_client::HintRouter;
use tenure_core::Host;

use crate::{config::Config, marks::Marks, memory::Memory, sql::Sql};

/// What all handles of one process have in common.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) sql: Sql,
    pub(crate) memory: Memory,
    /// Where the places of its waiters may be.
    pub(crate) marks: Marks,
    /// Whom a hint reaches without the server.
    pub(crate) bells: HintRouter,
}

impl Shared {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let sql = Sql::new(&config.table);
        let (memory, marks) = (Memory::default(), Marks::default());
        let bells = HintRouter::new(host.clone(), config.rules.claim_ttl);
        Self { config: Arc::new(config), host, sql, memory, marks, bells }
    }
}
