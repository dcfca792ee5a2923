//! A lock in a cell keeps the contract: in memory, with places beside the cell.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_cas::Locks;
use tenure_core::BackendHandle;
use tenure_ledger::Rules;
use tenure_testkit::{
    cells::CellStore,
    conformance::Arena,
    host::{PausedHost, pass},
};

struct OneStore {
    host: Arc<PausedHost>,
    store: CellStore,
    here: BackendHandle,
}

fn locks(store: CellStore, host: &Arc<PausedHost>) -> BackendHandle {
    Arc::new(Locks::new(store, host.clone(), Rules::default()))
}

#[async_trait]
impl Arena for OneStore {
    fn here(&self) -> BackendHandle {
        self.here.clone()
    }

    async fn elsewhere(&self) -> BackendHandle {
        locks(self.store.elsewhere(), &self.host)
    }

    async fn pass(&self, d: Duration) {
        pass(d).await;
    }
}

async fn arena() -> OneStore {
    let host = PausedHost::new(1);
    let store = CellStore::new(host.clone());
    OneStore { here: locks(store.clone(), &host), store, host }
}

tenure_testkit::conformance!(arena);
