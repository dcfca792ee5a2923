//! `Unacknowledged`: a write whose answer nobody has seen yet.

use tenure_core::{Hint, LockName};

use crate::{cell::Cell, locks::Locks};

/// A write that was sent. Unless it is settled, the next verb of that lock makes sure what became of it; and those whom it may
/// concern in this process are told to run one, since nobody else tells them.
pub(crate) struct Unacknowledged<'a, C: Cell> {
    locks: &'a Locks<C>,
    name: &'a LockName,
    /// On top of which version.
    version: i64,
    hints: Vec<Hint>,
    is_settled: bool,
}

impl<'a, C: Cell> Unacknowledged<'a, C> {
    pub(crate) fn new(locks: &'a Locks<C>, name: &'a LockName, version: i64, hints: Vec<Hint>) -> Self {
        Self { locks, name, version, hints, is_settled: false }
    }

    /// The store has said what became of it; answers whom it concerns.
    pub(crate) fn settle(mut self) -> Vec<Hint> {
        self.is_settled = true;
        std::mem::take(&mut self.hints)
    }
}

impl<C: Cell> Drop for Unacknowledged<'_, C> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.locks.shared.memory.doubt(self.name, self.version);
            self.locks.ring(&self.hints);
        }
    }
}
