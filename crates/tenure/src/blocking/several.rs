//! Several locks at once and one of several, for threads.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use crate::{
    blocking::{
        apart::Apart,
        guard::{Guard, Lease},
    },
    error::{AcquireError, HoldError, Lost, ReleaseError},
};

/// Several mutexes, to be held at once, for threads; see [`AllOf`](crate::AllOf).
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let guards = locks.all(["account/1", "account/2"]).acquire()?;
/// guards.check()?;
/// guards.release()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AllOf {
    inner: crate::AllOf,
    runtime: Arc<Apart>,
}

/// Several mutexes, of which the first that is free is taken, for threads; see [`AnyOf`](crate::AnyOf).
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let name = locks.any(["gpu0", "gpu1"]).hold(|lease| lease.name().to_string())?;
/// assert_eq!(name, "gpu0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AnyOf {
    inner: crate::AnyOf,
    runtime: Arc<Apart>,
}

/// Several locks that are held at once: [`Leases`], to which it is dereferenced, and the duty to give them back.
///
/// # Dropping
/// Has every lock released in the background.
#[must_use = "dropping guards releases the locks"]
pub struct Guards {
    inner: crate::Guards,
    leases: Leases,
}

/// The proof that this process holds several locks at once, to be passed on: cloneable, `Send` and `Sync`.
///
/// What does not wait is called through [`Deref`] on the asynchronous [`Leases`](crate::Leases), which says more.
#[derive(Clone)]
pub struct Leases {
    inner: crate::Leases,
    runtime: Arc<Apart>,
}

impl AllOf {
    pub(super) fn new(inner: crate::AllOf, runtime: Arc<Apart>) -> Self {
        Self { inner, runtime }
    }

    /// With settings, the same for each lock; see [`AllOf::with`](crate::AllOf::with).
    #[must_use]
    pub fn with(self, set: impl Fn(crate::Lock) -> crate::Lock) -> Self {
        Self { inner: self.inner.with(set), ..self }
    }

    /// As [`AllOf::acquire`](crate::AllOf::acquire).
    ///
    /// # Errors
    /// The same.
    pub fn acquire(&self) -> Result<Guards, AcquireError> {
        self.runtime.block_on(self.inner.acquire()).map(|inner| self.guard(inner))
    }

    /// As [`AllOf::try_acquire`](crate::AllOf::try_acquire).
    ///
    /// # Errors
    /// The same.
    pub fn try_acquire(&self) -> Result<Option<Guards>, AcquireError> {
        let acquired = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(acquired.map(|inner| self.guard(inner)))
    }

    /// As [`AllOf::acquire_within`](crate::AllOf::acquire_within).
    ///
    /// # Errors
    /// The same.
    pub fn acquire_within(&self, patience: Duration) -> Result<Guards, AcquireError> {
        self.runtime.block_on(self.inner.acquire_within(patience)).map(|inner| self.guard(inner))
    }

    /// As [`AllOf::hold`](crate::AllOf::hold), but a thread cannot be stopped from outside: see
    /// [`Lock::hold`](crate::blocking::Lock::hold).
    ///
    /// # Errors
    /// The same.
    pub fn hold<T>(&self, work: impl FnOnce(Leases) -> T) -> Result<T, HoldError> {
        self.acquire()?.run(work)
    }

    /// As [`AllOf::try_hold`](crate::AllOf::try_hold).
    ///
    /// # Errors
    /// The same.
    pub fn try_hold<T>(&self, work: impl FnOnce(Leases) -> T) -> Result<Option<T>, HoldError> {
        self.try_acquire()?.map(|guard| guard.run(work)).transpose()
    }

    /// As [`AllOf::hold_within`](crate::AllOf::hold_within).
    ///
    /// # Errors
    /// The same.
    pub fn hold_within<T>(&self, patience: Duration, work: impl FnOnce(Leases) -> T) -> Result<T, HoldError> {
        self.acquire_within(patience)?.run(work)
    }

    fn guard(&self, inner: crate::Guards) -> Guards {
        Guards::new(inner, &self.runtime)
    }
}

impl AnyOf {
    pub(super) fn new(inner: crate::AnyOf, runtime: Arc<Apart>) -> Self {
        Self { inner, runtime }
    }

    /// With settings, the same for each lock; see [`AnyOf::with`](crate::AnyOf::with).
    #[must_use]
    pub fn with(self, set: impl Fn(crate::Lock) -> crate::Lock) -> Self {
        Self { inner: self.inner.with(set), ..self }
    }

    /// As [`AnyOf::acquire`](crate::AnyOf::acquire).
    ///
    /// # Errors
    /// The same.
    pub fn acquire(&self) -> Result<Guard, AcquireError> {
        self.runtime.block_on(self.inner.acquire()).map(|inner| self.guard(inner))
    }

    /// As [`AnyOf::try_acquire`](crate::AnyOf::try_acquire).
    ///
    /// # Errors
    /// The same.
    pub fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        let acquired = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(acquired.map(|inner| self.guard(inner)))
    }

    /// As [`AnyOf::acquire_within`](crate::AnyOf::acquire_within).
    ///
    /// # Errors
    /// The same.
    pub fn acquire_within(&self, patience: Duration) -> Result<Guard, AcquireError> {
        self.runtime.block_on(self.inner.acquire_within(patience)).map(|inner| self.guard(inner))
    }

    /// As [`AnyOf::hold`](crate::AnyOf::hold), but a thread cannot be stopped from outside: see
    /// [`Lock::hold`](crate::blocking::Lock::hold).
    ///
    /// # Errors
    /// The same.
    pub fn hold<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
        self.acquire()?.run(work)
    }

    /// As [`AnyOf::try_hold`](crate::AnyOf::try_hold).
    ///
    /// # Errors
    /// The same.
    pub fn try_hold<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<Option<T>, HoldError> {
        self.try_acquire()?.map(|guard| guard.run(work)).transpose()
    }

    /// As [`AnyOf::hold_within`](crate::AnyOf::hold_within).
    ///
    /// # Errors
    /// The same.
    pub fn hold_within<T>(&self, patience: Duration, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
        self.acquire_within(patience)?.run(work)
    }

    fn guard(&self, inner: crate::Guard) -> Guard {
        Guard::new(inner, &self.runtime)
    }
}

impl Guards {
    fn new(inner: crate::Guards, runtime: &Arc<Apart>) -> Self {
        let leases = Leases { inner: inner.leases(), runtime: runtime.clone() };
        Self { inner, leases }
    }

    /// The leases, to be passed on to code that works under the locks. They do not keep the locks.
    pub fn leases(&self) -> Leases {
        self.leases.clone()
    }

    /// Gives all locks back and says truthfully what happened.
    ///
    /// # Errors
    /// As [`Guards::release`](crate::Guards::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        self.leases.runtime.block_on(self.inner.release())
    }

    fn run<T>(self, work: impl FnOnce(Leases) -> T) -> Result<T, HoldError> {
        let out = work(self.leases());
        self.leases.runtime.block_on(self.inner.settle())?;
        Ok(out)
    }
}

impl Leases {
    /// Waits until one of them is lost or released.
    pub fn lost(&self) -> Lost {
        self.runtime.block_on(self.inner.lost())
    }

    /// Waits until a renewal of one of them has failed, or one is lost or released.
    pub fn at_risk(&self) {
        self.runtime.block_on(self.inner.at_risk());
    }

    /// Waits until no more than `margin` of validity is left of one of them.
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all of one of them.
    pub fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        self.runtime.block_on(self.inner.nearly_lost(margin))
    }
}

impl Deref for Guards {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.leases
    }
}

impl Deref for Leases {
    type Target = crate::Leases;

    fn deref(&self) -> &crate::Leases {
        &self.inner
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
