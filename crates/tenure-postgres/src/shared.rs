//! `Shared`: what all handles of one process have in common.

use std::sync::Arc;

use tenure_core::{Bells, Host};

use crate::{config::Config, hall::Halls, memory::Memory, sql::Sql};

/// What all handles of one process have in common.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) sql: Sql,
    pub(crate) memory: Memory,
    /// Who waits.
    pub(crate) halls: Halls,
    /// Whom a hint reaches without the server.
    pub(crate) bells: Bells,
}

impl Shared {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let sql = Sql::new(&config.table);
        let (memory, halls, bells) = (Memory::default(), Halls::default(), Bells::default());
        Self { config: Arc::new(config), host, sql, memory, halls, bells }
    }
}
