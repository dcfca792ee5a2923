//! `Shared`: what all handles of one process have in common.

use std::sync::Arc;

use tenure_client::HintRouter;
use tenure_core::Host;

use crate::{config::Config, sql::Sql};

/// What all handles of one process have in common.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) sql: Sql,
    /// Whom a hint reaches without the server.
    pub(crate) hints: HintRouter,
}

impl Shared {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        let sql = Sql::new(&config.table);
        let hints = HintRouter::new(host.clone(), config.rules.claim_ttl);
        Self { config: Arc::new(config), host, sql, hints }
    }
}
