//! The same locks for programs without a runtime.
//!
//! Thin: every call runs the asynchronous one, with its connections on a thread of their own. Do not call from within an
//! asynchronous runtime: it would block its thread, and tokio panics at that.
//!
//! ```
//! let locks = tenure::blocking::connect("memory:")?;
//! let guard = locks.mutex("nightly").acquire()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apart;
mod election;
mod guard;
mod once;
mod several;
mod watch;

use std::{io, sync::Arc, time::Duration};

use tenure_core::{
    Adoption, BackendError, Finding, HolderView, Label, LockView, OwnerId, Promises, Released, Renewal,
};

use crate::{
    blocking::apart::Apart,
    error::{AcquireError, AttachError, ConfigError, HoldError},
};

pub use crate::blocking::{
    election::{Election, Leadership, Observer},
    guard::{Guard, Lease},
    once::Once,
    several::{AllOf, AnyOf, Guards, Leases},
    watch::Watch,
};

/// A connected store of locks, for threads.
#[derive(Clone)]
pub struct Locker {
    inner: crate::Locker,
    runtime: Arc<Apart>,
}

/// A lock in one mode, for threads.
#[derive(Clone)]
pub struct Lock {
    inner: crate::Lock,
    runtime: Arc<Apart>,
}

/// Connects to the store that a URL names.
///
/// # Errors
/// As [`connect`](crate::connect); also if no thread can be started.
pub fn connect(url: &str) -> Result<Locker, ConfigError> {
    let failed = |error: io::Error| ConfigError::Url(format!("no thread can be started: {error}"));
    let runtime = Apart::start().map_err(failed)?;
    let inner = runtime.block_on(crate::connect(url))?;
    Ok(Locker { inner, runtime: Arc::new(runtime) })
}

impl Locker {
    fn lock(&self, inner: crate::Lock) -> Lock {
        Lock { inner, runtime: self.runtime.clone() }
    }

    /// As [`Locker::mutex`](crate::Locker::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.mutex(name))
    }

    /// As [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.rwlock(name).read())
    }

    /// As [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self, name: impl AsRef<str>) -> Lock {
        self.lock(self.inner.rwlock(name).write())
    }

    /// As [`Locker::semaphore`](crate::Locker::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, slots: u32) -> Lock {
        self.lock(self.inner.semaphore(name, slots))
    }

    /// As [`Locker::election`](crate::Locker::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election { inner: self.inner.election(name), runtime: self.runtime.clone() }
    }

    /// As [`Locker::once`](crate::Locker::once).
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        Once { inner: self.inner.once(name), runtime: self.runtime.clone() }
    }

    /// As [`Locker::all`](crate::Locker::all).
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AllOf {
        AllOf::new(self.inner.all(names), self.runtime.clone())
    }

    /// As [`Locker::any`](crate::Locker::any).
    pub fn any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AnyOf {
        AnyOf::new(self.inner.any(names), self.runtime.clone())
    }

    /// The same store, with this label on all locks made from here.
    #[must_use]
    pub fn labelled(&self, label: Label) -> Self {
        Self { inner: self.inner.labelled(label), runtime: self.runtime.clone() }
    }

    /// As [`Locker::promises`](crate::Locker::promises).
    pub fn promises(&self) -> Promises {
        self.inner.promises()
    }

    /// Holders, queue and fence of one lock.
    ///
    /// # Errors
    /// As [`Locker::inspect`](crate::Locker::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockView, BackendError> {
        self.runtime.block_on(self.inner.inspect(name))
    }

    /// Every lock that is held or waited for and whose name starts with `prefix`, by name.
    ///
    /// # Errors
    /// As [`Locker::list`](crate::Locker::list).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockView>, BackendError> {
        self.runtime.block_on(self.inner.list(prefix))
    }

    /// As [`Locker::watch`](crate::Locker::watch).
    pub fn watch(&self, name: impl AsRef<str>) -> Watch {
        Watch::new(self.inner.watch(name), self.runtime.clone())
    }

    /// As [`Locker::watch_all`](crate::Locker::watch_all).
    pub fn watch_all(&self, prefix: impl AsRef<str>) -> Watch {
        Watch::new(self.inner.watch_all(prefix), self.runtime.clone())
    }

    /// Takes the lock from its holders, and says who they were. **Overrides exclusion**: see
    /// [`Locker::break_lock`](crate::Locker::break_lock).
    ///
    /// # Errors
    /// As [`Locker::break_lock`](crate::Locker::break_lock).
    pub fn break_lock(&self, name: impl AsRef<str>) -> Result<Vec<HolderView>, BackendError> {
        self.runtime.block_on(self.inner.break_lock(name))
    }

    /// What a person should know about the store; empty if all is well.
    ///
    /// # Errors
    /// As [`Locker::diagnose`](crate::Locker::diagnose).
    pub fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.runtime.block_on(self.inner.diagnose())
    }

    /// Rewrites the store's record of settings, and says how long to wait before asking again.
    ///
    /// # Errors
    /// As [`Locker::adopt`](crate::Locker::adopt).
    pub fn adopt(&self) -> Result<Adoption, BackendError> {
        self.runtime.block_on(self.inner.adopt())
    }

    /// Extends the lease of an owner by hand; for leases that were [detached](Guard::detach).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let (owner, _token) = locks.mutex("nightly").acquire()?.detach();
    /// assert_eq!(locks.renew("nightly", owner, Duration::from_secs(30))?, tenure::Renewal::Renewed);
    /// assert_eq!(locks.release("nightly", owner)?, tenure::Released::Released);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Locker::renew`](crate::Locker::renew).
    pub fn renew(
        &self,
        name: impl AsRef<str>,
        owner: OwnerId,
        ttl: Duration,
    ) -> Result<Renewal, BackendError> {
        self.runtime.block_on(self.inner.renew(name, owner, ttl))
    }

    /// Goes on with the lease of an owner that another process took.
    ///
    /// # Errors
    /// As [`Lock::attach`](crate::Lock::attach).
    pub fn attach(&self, name: impl AsRef<str>, owner: OwnerId) -> Result<Guard, AttachError> {
        self.mutex(name).attach(owner)
    }

    /// A new owner, for a claim that is to be [repeatable](crate::Lock::owner).
    pub fn new_owner(&self) -> OwnerId {
        self.inner.new_owner()
    }

    /// Has an owner leave, by hand; for leases that were [detached](Guard::detach).
    ///
    /// # Errors
    /// As [`Locker::release`](crate::Locker::release).
    pub fn release(&self, name: impl AsRef<str>, owner: OwnerId) -> Result<Released, BackendError> {
        self.runtime.block_on(self.inner.release(name, owner))
    }

    /// Waits until everything that was dropped has been released, for at most `patience`; true if so. Call it before the
    /// program ends.
    pub fn drain(&self, patience: Duration) -> bool {
        self.runtime.block_on(self.inner.drain(patience))
    }
}

impl Lock {
    /// With settings of the asynchronous lock.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let nightly = locks.mutex("nightly").with(|lock| lock.ttl(Duration::from_secs(5)));
    /// assert!(nightly.try_acquire()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with(self, set: impl FnOnce(crate::Lock) -> crate::Lock) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    fn guard(&self, inner: crate::Guard) -> Guard {
        Guard::new(inner, &self.runtime)
    }

    /// Waits until this process holds the lock.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<Guard, AcquireError> {
        Ok(self.guard(self.runtime.block_on(self.inner.acquire())?))
    }

    /// Goes on with a lease that another process took.
    ///
    /// ```
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let (owner, token) = locks.mutex("nightly").acquire()?.detach();
    /// let guard = locks.mutex("nightly").attach(owner)?;
    /// assert_eq!(guard.token(), token);
    /// guard.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lock::attach`](crate::Lock::attach).
    pub fn attach(&self, owner: OwnerId) -> Result<Guard, AttachError> {
        Ok(self.guard(self.runtime.block_on(self.inner.attach(owner))?))
    }

    /// Asks once; `None` if somebody else holds the lock.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        let acquired = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(acquired.map(|inner| self.guard(inner)))
    }

    /// Waits for at most `patience`; zero asks once.
    ///
    /// # Errors
    /// As [`Lock::acquire_within`](crate::Lock::acquire_within).
    pub fn acquire_within(&self, patience: Duration) -> Result<Guard, AcquireError> {
        Ok(self.guard(self.runtime.block_on(self.inner.acquire_within(patience))?))
    }

    /// Waits for the lock, runs `work` while it is held, then gives it back and waits for the store's answer to that.
    ///
    /// A thread cannot be stopped from outside: unlike a future, `work` runs on when the lease is lost. It asks
    /// [`check`](crate::Lease::check) between its steps, and its result is not handed out if the lease was lost meanwhile.
    ///
    /// ```
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let token = locks.mutex("nightly").hold(|lease| lease.token())?;
    /// println!("done under token {token}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lock::hold`](crate::Lock::hold).
    pub fn hold<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
        self.acquire()?.run(work)
    }

    /// As [`hold`](Self::hold), if the lock is free; `None` if somebody else holds it, and the work never begins.
    ///
    /// # Errors
    /// As [`Lock::try_hold`](crate::Lock::try_hold).
    pub fn try_hold<T>(&self, work: impl FnOnce(Lease) -> T) -> Result<Option<T>, HoldError> {
        self.try_acquire()?.map(|guard| guard.run(work)).transpose()
    }

    /// As [`hold`](Self::hold), but waits for the lock for at most `patience`; zero asks once.
    ///
    /// # Errors
    /// As [`Lock::hold_within`](crate::Lock::hold_within).
    pub fn hold_within<T>(&self, patience: Duration, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
        self.acquire_within(patience)?.run(work)
    }
}
