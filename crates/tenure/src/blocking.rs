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

use std::{
    fmt, io,
    ops::Deref,
    sync::{Arc, mpsc},
    time::Duration,
};

use tenure_core::{
    Adoption, BackendError, BoxFuture, FencingToken, Finding, HolderView, Host, Label, LockView, OwnerId,
    Promises, Released, Renewal,
};
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    election::Leader,
    error::{AcquireError, AttachError, ConfigError, HoldError, Lost, NoteError, OnceError, ReleaseError},
    host::TokioHost,
    once::{LastRun, OnceOutcome},
};

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

/// A connected store of locks, for threads.
#[derive(Clone)]
pub struct Locker {
    inner: crate::Locker,
    runtime: Arc<Apart>,
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
        AllOf { inner: self.inner.all(names), runtime: self.runtime.clone() }
    }

    /// As [`Locker::any`](crate::Locker::any).
    pub fn any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AnyOf {
        AnyOf { inner: self.inner.any(names), runtime: self.runtime.clone() }
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
        Watch { inner: self.inner.watch(name), runtime: self.runtime.clone() }
    }

    /// As [`Locker::watch_all`](crate::Locker::watch_all).
    pub fn watch_all(&self, prefix: impl AsRef<str>) -> Watch {
        Watch { inner: self.inner.watch_all(prefix), runtime: self.runtime.clone() }
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

/// A lock in one mode, for threads.
#[derive(Clone)]
pub struct Lock {
    inner: crate::Lock,
    runtime: Arc<Apart>,
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
    inner: crate::Lease,
    runtime: Arc<Apart>,
}

impl Guard {
    fn new(inner: crate::Guard, runtime: &Arc<Apart>) -> Self {
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

    fn run<T>(self, work: impl FnOnce(Lease) -> T) -> Result<T, HoldError> {
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
    inner: crate::Once,
    runtime: Arc<Apart>,
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

/// An election, for threads: see [`Election`](crate::Election).
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let election = locks.election("scheduler");
/// let leadership = election.campaign()?;
/// leadership.proclaim("10.0.0.7:8080")?;
/// assert_eq!(election.leader()?.and_then(|leader| leader.proclaimed).as_deref(), Some("10.0.0.7:8080"));
/// leadership.resign()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Election {
    inner: crate::Election,
    runtime: Arc<Apart>,
}

impl Election {
    /// With settings of the asynchronous election.
    #[must_use]
    pub fn with(self, set: impl FnOnce(crate::Election) -> crate::Election) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// Waits until this process leads.
    ///
    /// # Errors
    /// As [`Election::campaign`](crate::Election::campaign).
    pub fn campaign(&self) -> Result<Leadership, AcquireError> {
        let inner = self.runtime.block_on(self.inner.campaign())?;
        Ok(Leadership { inner, runtime: self.runtime.clone() })
    }

    /// Leads until `work` is done, and campaigns again if the lead was lost meanwhile. A thread cannot be stopped from outside:
    /// `work` asks [`check`](crate::Lease::check) between its steps, and returns when that fails; then it is called again in the
    /// next term.
    ///
    /// # Errors
    /// As [`Election::lead`](crate::Election::lead).
    pub fn lead<T>(&self, mut work: impl FnMut(&Leadership) -> T) -> Result<T, AcquireError> {
        loop {
            let leadership = self.campaign()?;
            let out = work(&leadership);
            if leadership.check().is_ok() {
                if let Err(error) = leadership.resign() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the work is done, the lead could not be given up at once");
                }
                return Ok(out);
            }
        }
    }

    /// Who leads, as the store sees it now.
    ///
    /// # Errors
    /// As [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>, BackendError> {
        self.runtime.block_on(self.inner.leader())
    }

    /// Follows who leads.
    pub fn observe(&self) -> Observer {
        Observer { inner: self.inner.observe(), runtime: self.runtime.clone() }
    }
}

/// Follows an election, for threads: see [`Observer`](crate::Observer).
///
/// # Dropping
/// Ends it.
pub struct Observer {
    inner: crate::Observer,
    runtime: Arc<Apart>,
}

impl Observer {
    /// Who leads now, and from then on each change.
    ///
    /// # Errors
    /// As [`Observer::next`](crate::Observer::next).
    #[expect(clippy::should_implement_trait, reason = "an iterator has no errors that one goes on after")]
    pub fn next(&mut self) -> Result<Option<Leader>, BackendError> {
        self.runtime.block_on(self.inner.next())
    }
}

/// A lead, and the duty to give it up: a [`Term`](crate::Term), to which it is dereferenced.
///
/// # Dropping
/// Gives the lead up in the background.
#[must_use = "dropping a leadership gives it up"]
pub struct Leadership {
    inner: crate::Leadership,
    runtime: Arc<Apart>,
}

impl Leadership {
    /// Says something to all who ask for the leader, as its address.
    ///
    /// # Errors
    /// As [`Term::proclaim`](crate::Term::proclaim).
    pub fn proclaim(&self, text: impl AsRef<str>) -> Result<(), NoteError> {
        self.runtime.block_on(self.inner.proclaim(text))
    }

    /// Gives the lead up.
    ///
    /// # Errors
    /// As [`Leadership::resign`](crate::Leadership::resign).
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.resign())
    }

    /// Stops the renewals and leaves the lead to its ttl.
    pub fn detach(self) -> (OwnerId, FencingToken) {
        self.inner.detach()
    }
}

impl Deref for Leadership {
    type Target = crate::Term;

    fn deref(&self) -> &crate::Term {
        &self.inner
    }
}

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

/// A runtime on a thread of its own, which ends with this. Connections live there, also while nobody calls.
struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Not tokio's own workers: where no thread can be started, those panic.
    fn start() -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let start = move || -> BoxFuture<'static, ()> {
            let _ = tell.send(Handle::current());
            Box::pin(async move {
                let _ = stopped.await;
            })
        };
        TokioHost.spawn_apart("tenure-blocking", Box::new(start))?;
        let handle = told.recv().map_err(io::Error::other)?;
        Ok(Self { handle, _stop: stop })
    }

    fn block_on<A>(&self, work: impl Future<Output = A>) -> A {
        self.handle.block_on(work)
    }
}
