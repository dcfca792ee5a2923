//! The backend: locks in cells, of which each is a row.

use std::sync::Arc;

use tenure_cas::Locks;
use tenure_core::{Backend, Host};

use crate::{config::Config, shared::Shared, store::Store};

/// A handle to the locks in a table of a PostgreSQL database; the first request connects. Each verb is that of a lock in a cell:
/// see `tenure-cas`.
pub fn backend(config: Config, host: Arc<dyn Host>) -> impl Backend {
    let rules = config.rules;
    let store = Store::new(Arc::new(Shared::new(config, host.clone())));
    Locks::new(store, host, rules)
}
