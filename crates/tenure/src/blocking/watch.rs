//! Locks as they change, for threads.

use std::{sync::Arc, time::Duration};

use tenure_core::{BackendError, LockView};

use crate::blocking::apart::Apart;

/// Locks as they change, for threads; see [`Watch`](crate::Watch). As an iterator it never ends.
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let mut watch = locks.watch("nightly");
/// assert!(watch.next().expect("it never ends")?.holders.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watch {
    inner: crate::Watch,
    runtime: Arc<Apart>,
}

impl Watch {
    pub(super) fn new(inner: crate::Watch, runtime: Arc<Apart>) -> Self {
        Self { inner, runtime }
    }

    /// Asks the store so often; see [`Watch::every`](crate::Watch::every).
    #[must_use]
    pub fn every(self, period: Duration) -> Self {
        Self { inner: self.inner.every(period), ..self }
    }

    /// Waits until the period is over, asks the store once, and answers what has changed since.
    ///
    /// # Errors
    /// As [`Watch::look`](crate::Watch::look).
    pub fn look(&mut self) -> Result<Vec<LockView>, BackendError> {
        self.runtime.block_on(self.inner.look())
    }

    /// What was there when the store was asked last, by name.
    pub fn latest(&self) -> impl Iterator<Item = &LockView> {
        self.inner.latest()
    }
}

impl Iterator for Watch {
    type Item = Result<LockView, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.runtime.block_on(self.inner.next()))
    }
}
