//! `LastWritten`: the rows that this handle wrote last.

use std::collections::HashMap;

use tenure_core::LockName;
use tenure_ledger::Ledger;

/// So many are remembered; before one more, all are forgotten.
const MANY: usize = 256;

/// The rows of locks for which nobody waits. Only a memory: others may have written since, or this one was rolled back.
#[derive(Default)]
pub(crate) struct LastWritten(HashMap<LockName, Written>);

/// The row of a lock.
#[derive(Debug)]
pub(crate) struct Written {
    /// Without its queue.
    pub(crate) ledger: Ledger,
    /// The same as text.
    pub(crate) state: String,
}

impl Written {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self { state: ledger.encode(), ledger }
    }
}

impl LastWritten {
    /// The row of the lock is this one now, or one that is not remembered.
    pub(crate) fn remember(&mut self, name: &LockName, row: Option<Written>) {
        let Some(row) = row else { return drop(self.take(name)) };
        if self.0.len() >= MANY {
            self.0.clear();
        }
        self.0.insert(name.clone(), row);
    }

    /// Forgets the row, too: whoever writes it says so.
    pub(crate) fn take(&mut self, name: &LockName) -> Option<Written> {
        self.0.remove(name)
    }
}
