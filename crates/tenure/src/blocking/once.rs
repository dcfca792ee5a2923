//! A job once per interval, for threads.

use std::{sync::Arc, time::Duration};

use tenure_core::Host;

use crate::{
    blocking::{apart::Apart, guard::Lease},
    error::OnceError,
    host::TokioHost,
    once::{LastRun, OnceOutcome},
};

/// A job that is to run once per interval, for threads: see [`Once`](crate::Once).
///
/// ```
/// use std::time::Duration;
/// use tenure::OnceOutcome;
///
/// let locks = tenure::blocking::connect("memory:")?;
/// let nightly = locks.once("nightly").with(|once| once.every(Duration::from_secs(23 * 3600)));
/// assert_eq!(nightly.run(|_lease| Ok::<_, std::io::Error>(7))?.ran().transpose()?, Some(7));
/// assert!(matches!(nightly.run(|_lease| Ok::<_, std::io::Error>(7))?, OnceOutcome::Skipped(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Once {
    pub(super) inner: crate::Once,
    pub(super) runtime: Arc<Apart>,
}

impl Once {
    /// With settings of the asynchronous one: its interval, for example.
    #[must_use]
    pub fn with(self, set: impl FnOnce(crate::Once) -> crate::Once) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// Runs `work` under the lock, unless a run counts that began within the interval.
    ///
    /// A thread cannot be stopped from outside: `work` asks [`check`](crate::Lease::check) between its steps. A run whose lease was
    /// lost meanwhile does not count.
    ///
    /// # Errors
    /// As [`Once::run`](crate::Once::run).
    pub fn run<T, E>(
        &self,
        work: impl FnOnce(Lease) -> Result<T, E>,
    ) -> Result<OnceOutcome<Result<T, E>>, OnceError> {
        let (inner, runtime) = (&self.inner, &self.runtime);
        let guard = match runtime.block_on(inner.begin())? {
            Ok(guard) => guard,
            Err(last) => return Ok(OnceOutcome::Skipped(last)),
        };
        let started = TokioHost.now();
        let out = work(Lease { inner: guard.lease(), runtime: runtime.clone() });
        let took = started.elapsed(TokioHost.now());
        runtime.block_on(inner.end(guard, out.is_ok(), took))?;
        Ok(OnceOutcome::Ran(out))
    }

    /// The last run that counts, if it began within the interval.
    ///
    /// # Errors
    /// As [`Once::last`](crate::Once::last).
    pub fn last(&self) -> Result<Option<LastRun>, OnceError> {
        self.runtime.block_on(self.inner.last())
    }

    /// Makes a run count that began so long ago.
    ///
    /// # Errors
    /// As [`Once::count`](crate::Once::count).
    pub fn count(&self, lease: &Lease, began: Duration) -> Result<(), OnceError> {
        self.runtime.block_on(self.inner.count(lease, began))
    }
}
