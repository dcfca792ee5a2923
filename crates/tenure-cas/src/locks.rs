//! `Locks`: what one handle has of a store of cells, and what all handles of a process share.

use std::{sync::Arc, time::Duration};

use tenure_core::{Hint, Host};
use tenure_ledger::Rules;

use crate::{cell::Cell, keyed_mutex::KeyedMutex, memory::Memory, own_places::OwnPlaces};

/// Locks in the cells of a store. It is a [`Backend`](tenure_core::Backend).
pub struct Locks<C> {
    pub(crate) cell: Arc<C>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) verbs: KeyedMutex,
}

/// What all handles of one process have in common.
pub(crate) struct Shared {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) rules: Rules,
    pub(crate) memory: Memory,
    pub(crate) own_places: OwnPlaces,
}

impl<C: Cell> Locks<C> {
    /// Locks in these cells, with these durations of the queue.
    pub fn new(cell: C, host: Arc<dyn Host>, rules: Rules) -> Self {
        let (memory, own_places) = (Memory::default(), OwnPlaces::default());
        Self::sharing(cell, Arc::new(Shared { host, rules, memory, own_places }))
    }

    /// Another handle of this process.
    pub(crate) fn sharing(cell: C, shared: Arc<Shared>) -> Self {
        Self { cell: Arc::new(cell), shared, verbs: KeyedMutex::default() }
    }

    /// A time that the store's clock has reached.
    pub(crate) fn store_time(&self) -> Option<Duration> {
        self.shared.memory.store_time(self.shared.host.now())
    }

    pub(crate) fn ring(&self, hints: &[Hint]) {
        hints.iter().for_each(|hint| self.cell.ring(*hint));
    }
}
