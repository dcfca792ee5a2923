//! A held lock, for threads.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use tenure_core::{FencingToken, OwnerId};

use crate::{
    blocking::apart::Apart,
    error::{HoldError, Lost, NoteError, ReleaseError},
};

/// A held lock: a [`Lease`], to which it is dereferenced, and the duty to give it back.
///
/// # Dropping
/// Has the lock released in the background, as that of the asynchronous [`Guard`](crate::Guard).
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    inner: crate::Guard,
    lease: Lease,
}

/// The proof that this process holds a lock, to be passed on: cloneable, `Send` and `Sync`.
///
/// What does not wait is called through [`Deref`] on the asynchronous [`Lease`](crate::Lease), which says more.
#[derive(Clone)]
pub struct Lease {
    pub(super) inner: crate::Lease,
    pub(super) runtime: Arc<Apart>,
}

impl Guard {
    pub(super) fn new(inner: crate::Guard, runtime: &Arc<Apart>) -> Self {
        let lease = Lease { inner: inner.lease(), runtime: runtime.clone() };
        Self { inner, lease }
    }

    /// The lease, to be passed on to code that works under the lock. It does not keep the lock.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Gives the lock back and says truthfully what happened.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        self.lease.runtime.block_on(self.inner.release())
    }

    /// Stops the renewals and leaves the lease to its ttl, as [`Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> (OwnerId, FencingToken) {
        self.inner.detach()
    }

    pub(super) fn run<T>(self, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
        let out = self.inner.span().in_scope(|| work(self.lease()));
        self.lease.runtime.block_on(self.inner.settle())?;
        Ok(out)
    }
}

impl Lease {
    /// Waits until the lease is lost or released.
    pub fn lost(&self) -> Lost {
        self.runtime.block_on(self.inner.lost())
    }

    /// Waits until a renewal has failed, or the lease is lost or released.
    pub fn at_risk(&self) {
        self.runtime.block_on(self.inner.at_risk());
    }

    /// Leaves a memo beside the lock, as [`Lease::note`](crate::Lease::note).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let guard = locks.mutex("import").acquire()?;
    /// guard.note("row 4711 is done", Duration::from_secs(3600))?;
    /// assert_eq!(locks.inspect("import")?.memo.expect("a memo").text, "row 4711 is done");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lease::note`](crate::Lease::note).
    pub fn note(&self, text: impl AsRef<str>, kept: Duration) -> Result<(), NoteError> {
        self.runtime.block_on(self.inner.note(text, kept))
    }

    /// Waits until no more than `margin` of validity is left.
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all.
    pub fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        self.runtime.block_on(self.inner.nearly_lost(margin))
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Deref for Lease {
    type Target = crate::Lease;

    fn deref(&self) -> &crate::Lease {
        &self.inner
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
