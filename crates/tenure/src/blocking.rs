//! The same locks for programs without a runtime: the same names, with calls that block the calling thread.
//!
//! Every call runs the asynchronous one; its connections are on a separate thread. Do not call it within an
//! asynchronous runtime: it would block a thread of the runtime, and tokio panics then.
//!
//! ```
//! use std::time::Duration;
//!
//! let locks = tenure::blocking::connect("memory:")?;
//! let guard = locks.mutex("nightly").within(Duration::from_secs(5)).acquire()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//!
//! // `within` is a method here; all other settings go through `with`.
//! let import = locks.mutex("import").with(|lock| lock.ttl(Duration::from_secs(30)));
//! assert!(import.try_acquire()?.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    fmt, io,
    ops::Deref,
    sync::{Arc, mpsc},
    time::Duration,
};

use tenure_core::{
    Adopt, Adoption, BackendError, BoxFuture, BreakScope, FencingToken, Finding, HolderView, Host, Label,
    LockView, OwnerId, Ownership, Released, Renewal, WaiterView,
};
use tokio::{runtime::Handle, sync::oneshot};

use crate::{
    election::{Leader, Observed},
    error::{
        AcquireError, ConfigError, DetachError, HoldError, Lost, MemoError, OwnershipError, ReleaseError,
    },
    guard::held_until_its_release,
    host::TokioHost,
    once::{LastRun, RunOutcome, Turn},
};

pub use crate::verbs::{Acquirable, Held};

/// Connects to the store that a URL names.
///
/// # Errors
/// As [`connect`](crate::connect()), and if no thread can be started.
pub fn connect(url: &str) -> Result<Locker, ConfigError> {
    connected(crate::connect(url))
}

/// The store of these blocking locks.
pub(crate) fn connected(
    connecting: impl Future<Output = Result<crate::Locker, ConfigError>>,
) -> Result<Locker, ConfigError> {
    let failed = |error: io::Error| ConfigError::Url(format!("no thread can be started: {error}"));
    let runtime = Apart::start().map_err(failed)?;
    let inner = runtime.block_on(connecting)?;
    Ok(Locker { inner, runtime: Arc::new(runtime) })
}

/// A value of the asynchronous library, with calls that block the calling thread.
///
/// It derefs to the asynchronous value, for calls that do not wait.
///
/// # Dropping
/// As the asynchronous value: dropping a guard releases its lock in the background.
#[derive(Clone)]
#[must_use = "dropping a guard releases the lock"]
pub struct Blocking<T> {
    inner: T,
    runtime: Arc<Apart>,
}

/// A connected store of locks, for threads.
pub type Locker = Blocking<crate::Locker>;
/// A lock in one mode, for threads.
pub type Lock = Blocking<crate::Lock>;
/// A read-write lock, for threads.
pub type RwLock = Blocking<crate::RwLock>;
/// Several mutexes, to be held at the same time, for threads.
pub type AllOf = Blocking<crate::AllOf>;
/// Several mutexes, of which the first that is free is taken, for threads.
pub type AnyOf = Blocking<crate::AnyOf>;
/// A held lock, for threads.
pub type Guard = Blocking<crate::Guard>;
/// Several held locks, for threads.
pub type Guards = Blocking<crate::Guards>;
/// The proof that this process holds a lock, for threads.
pub type Lease = Blocking<crate::Lease>;
/// The proof that this process holds several locks, for threads.
pub type Leases = Blocking<crate::Leases>;
/// A lease without a guard, for threads.
pub type Detached = Blocking<crate::manual::Detached>;
/// A job that runs once per interval, for threads.
///
/// ```
/// use std::time::Duration;
/// use tenure::once::RunOutcome;
///
/// let locks = tenure::blocking::connect("memory:")?;
/// let nightly = locks.once("nightly").with(|once| once.interval(Duration::from_secs(23 * 3600)));
/// assert_eq!(nightly.run(|_lease| Ok::<_, std::io::Error>(7))?.ran().transpose()?, Some(7));
/// assert!(matches!(nightly.run(|_lease| Ok::<_, std::io::Error>(7))?, RunOutcome::Skipped(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type RunOnce = Blocking<crate::once::RunOnce>;
/// An election, for threads.
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
pub type Election = Blocking<crate::election::Election>;
/// A lead, for threads.
pub type Leadership = Blocking<crate::election::Leadership>;
/// The proof that this process leads, for threads.
pub type Term = Blocking<crate::election::Term>;
/// Follows an election, for threads. As an iterator it never ends.
pub type Observer = Blocking<crate::election::Observer>;
/// Locks as they change, for threads. As an iterator it never ends.
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let mut watch = locks.watch("nightly");
/// assert!(watch.next().expect("it never ends")?.holders.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Watch = Blocking<crate::view::Watch>;

impl<T> Blocking<T> {
    /// Sets options of the asynchronous value: `lock.with(|lock| lock.ttl(…))`.
    pub fn with(self, set: impl FnOnce(T) -> T) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// The asynchronous value.
    pub fn into_async(self) -> T {
        self.inner
    }

    fn wrap<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, runtime: self.runtime.clone() }
    }

    fn wait<A>(&self, work: impl Future<Output = A>) -> A {
        self.runtime.block_on(work)
    }
}

impl<T> Deref for Blocking<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Of a [`Locker`].
impl Locker {
    /// As [`Locker::mutex`](crate::Locker::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.wrap(self.inner.mutex(name))
    }

    /// As [`Locker::rwlock`](crate::Locker::rwlock).
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        self.wrap(self.inner.rwlock(name))
    }

    /// As [`Locker::semaphore`](crate::Locker::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, slots: u32) -> Lock {
        self.wrap(self.inner.semaphore(name, slots))
    }

    /// As [`Locker::all`](crate::Locker::all).
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AllOf {
        self.wrap(self.inner.all(names))
    }

    /// As [`Locker::any`](crate::Locker::any).
    pub fn any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AnyOf {
        self.wrap(self.inner.any(names))
    }

    /// As [`Locker::election`](crate::Locker::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        self.wrap(self.inner.election(name))
    }

    /// As [`Locker::once`](crate::Locker::once).
    pub fn once(&self, name: impl AsRef<str>) -> RunOnce {
        self.wrap(self.inner.once(name))
    }

    /// As [`Locker::with_label`](crate::Locker::with_label).
    pub fn with_label(&self, label: Label) -> Self {
        self.wrap(self.inner.with_label(label))
    }

    /// As [`Locker::detached`](crate::Locker::detached).
    ///
    /// # Errors
    /// As [`Locker::detached`](crate::Locker::detached).
    pub fn detached(&self, name: impl AsRef<str>, owner: OwnerId) -> Result<Detached, ConfigError> {
        Ok(self.wrap(self.inner.detached(name, owner)?))
    }

    /// As [`Locker::inspect`](crate::Locker::inspect).
    ///
    /// # Errors
    /// As [`Locker::inspect`](crate::Locker::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockView, BackendError> {
        self.wait(self.inner.inspect(name))
    }

    /// As [`Locker::list`](crate::Locker::list).
    ///
    /// # Errors
    /// As [`Locker::list`](crate::Locker::list).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockView>, BackendError> {
        self.wait(self.inner.list(prefix))
    }

    /// As [`Locker::watch`](crate::Locker::watch).
    pub fn watch(&self, name: impl AsRef<str>) -> Watch {
        self.wrap(self.inner.watch(name))
    }

    /// As [`Locker::watch_all`](crate::Locker::watch_all).
    pub fn watch_all(&self, prefix: impl AsRef<str>) -> Watch {
        self.wrap(self.inner.watch_all(prefix))
    }

    /// As [`Locker::force_release`](crate::Locker::force_release), which **overrides exclusion**.
    ///
    /// # Errors
    /// As [`Locker::force_release`](crate::Locker::force_release).
    pub fn force_release(&self, name: impl AsRef<str>) -> Result<Vec<HolderView>, BackendError> {
        self.wait(self.inner.force_release(name))
    }

    /// As [`Locker::force_release_from`](crate::Locker::force_release_from), which **overrides exclusion**.
    ///
    /// # Errors
    /// As [`Locker::force_release_from`](crate::Locker::force_release_from).
    pub fn force_release_from(
        &self,
        name: impl AsRef<str>,
        scope: BreakScope,
    ) -> Result<Vec<HolderView>, BackendError> {
        self.wait(self.inner.force_release_from(name, scope))
    }

    /// As [`Locker::diagnose`](crate::Locker::diagnose).
    ///
    /// # Errors
    /// As [`Locker::diagnose`](crate::Locker::diagnose).
    pub fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.wait(self.inner.diagnose())
    }

    /// As [`Locker::may_grant`](crate::Locker::may_grant).
    ///
    /// # Errors
    /// As [`Locker::may_grant`](crate::Locker::may_grant).
    pub fn may_grant(&self) -> Result<(), BackendError> {
        self.wait(self.inner.may_grant())
    }

    /// As [`Locker::adopt`](crate::Locker::adopt).
    ///
    /// # Errors
    /// As [`Locker::adopt`](crate::Locker::adopt).
    pub fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        self.wait(self.inner.adopt(adopt))
    }

    /// As [`Locker::metrics_by_lock`](crate::Locker::metrics_by_lock).
    #[cfg(feature = "metrics")]
    pub fn metrics_by_lock(&self) {
        self.inner.metrics_by_lock();
    }

    /// As [`Locker::flush`](crate::Locker::flush): call it before the program ends.
    pub fn flush(&self, limit: Duration) -> bool {
        self.wait(self.inner.flush(limit))
    }
}

/// Of an [`RwLock`].
impl RwLock {
    /// As [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Lock {
        self.wrap(self.inner.read())
    }

    /// As [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Lock {
        self.wrap(self.inner.write())
    }
}

/// Of what can be acquired: a [`Lock`], [`AllOf`] and [`AnyOf`].
impl<T: Acquirable> Blocking<T> {
    /// As [`Lock::within`](crate::Lock::within): the longest wait.
    pub fn within(self, limit: Duration) -> Self {
        self.with(|inner| inner.with_limit(limit))
    }

    /// Waits until this process holds it.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<Blocking<T::Held>, AcquireError> {
        Ok(self.wrap(self.wait(crate::verbs::acquire(&self.inner))?))
    }

    /// Asks once; `None` if another owner holds it, or waits for it.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<Blocking<T::Held>>, AcquireError> {
        Ok(self.wait(crate::verbs::try_acquire(&self.inner))?.map(|held| self.wrap(held)))
    }

    /// Waits until this process holds it, runs `work`, then releases it and waits for the store's answer to that.
    ///
    /// A thread cannot be stopped from outside: unlike a future, `work` continues when the lease is lost. Call
    /// [`check`](crate::Lease::check) between its steps. If the lease was lost before the end, the result of `work`
    /// is discarded.
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
    pub fn hold<R>(
        &self,
        work: impl FnOnce(Blocking<<T::Held as Held>::Proof>) -> R,
    ) -> Result<R, HoldError> {
        self.acquire()?.run(work)
    }

    /// As [`hold`](Self::hold), if it is free; `None` if it is not, and the work never begins.
    ///
    /// # Errors
    /// As [`Lock::try_hold`](crate::Lock::try_hold).
    pub fn try_hold<R>(
        &self,
        work: impl FnOnce(Blocking<<T::Held as Held>::Proof>) -> R,
    ) -> Result<Option<R>, HoldError> {
        self.try_acquire()?.map(|held| held.run(work)).transpose()
    }
}

impl<H: Held> Blocking<H> {
    fn run<R>(self, work: impl FnOnce(Blocking<H::Proof>) -> R) -> Result<R, HoldError> {
        let proof = self.wrap(self.inner.proof());
        let out = self.inner.work_through(|| work(proof));
        self.runtime.block_on(self.inner.settle())?;
        Ok(out)
    }
}

/// Of a [`Lock`].
impl Lock {
    /// As [`Lock::attach`](crate::Lock::attach).
    ///
    /// ```
    /// let locks = tenure::blocking::connect("memory:")?;
    /// let left = locks.mutex("nightly").acquire()?.detach()?;
    /// let guard = locks.mutex("nightly").attach(left.owner())?;
    /// assert_eq!(Some(guard.token()), left.token());
    /// guard.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lock::attach`](crate::Lock::attach).
    pub fn attach(&self, owner: OwnerId) -> Result<Guard, AcquireError> {
        Ok(self.wrap(self.wait(self.inner.attach(owner))?))
    }
}

/// Of a [`Guard`].
impl Guard {
    /// The lease, to be passed on to code that works under the lock. It does not keep the lock.
    pub fn lease(&self) -> Lease {
        self.wrap(self.inner.lease())
    }

    /// As [`Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.release())
    }

    /// As [`Guard::detach`](crate::Guard::detach).
    ///
    /// # Errors
    /// As [`Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> Result<Detached, DetachError<Self>> {
        let Self { inner, runtime } = self;
        match runtime.block_on(inner.detach()) {
            Ok(inner) => Ok(Blocking { inner, runtime }),
            Err(error) => Err(error.map(|inner| Self { inner, runtime })),
        }
    }
}

/// Of [`Guards`].
impl Guards {
    /// The leases, to be passed on to code that works under the locks. They do not keep the locks.
    pub fn leases(&self) -> Leases {
        self.wrap(self.inner.leases())
    }

    /// As [`Guards::release`](crate::Guards::release).
    ///
    /// # Errors
    /// As [`Guards::release`](crate::Guards::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.release())
    }

    /// As [`Guards::detach`](crate::Guards::detach).
    ///
    /// # Errors
    /// As [`Guards::detach`](crate::Guards::detach).
    pub fn detach(self) -> Result<Vec<Detached>, DetachError<Self>> {
        let Self { inner, runtime } = self;
        match runtime.block_on(inner.detach()) {
            Ok(all) => {
                Ok(all.into_iter().map(|inner| Blocking { inner, runtime: runtime.clone() }).collect())
            }
            Err(error) => Err(error.map(|inner| Self { inner, runtime })),
        }
    }
}

/// Of [`Detached`].
impl Detached {
    /// As [`Detached::renew`](crate::manual::Detached::renew).
    ///
    /// # Errors
    /// As [`Detached::renew`](crate::manual::Detached::renew).
    pub fn renew(&self, ttl: Duration) -> Result<Renewal, BackendError> {
        self.wait(self.inner.renew(ttl))
    }

    /// As [`Detached::ownership`](crate::manual::Detached::ownership).
    ///
    /// # Errors
    /// As [`Detached::ownership`](crate::manual::Detached::ownership).
    pub fn ownership(&self, token: FencingToken, rest: Duration) -> Result<Option<Ownership>, BackendError> {
        self.wait(self.inner.ownership(token, rest))
    }

    /// As [`Detached::release`](crate::manual::Detached::release).
    ///
    /// # Errors
    /// As [`Detached::release`](crate::manual::Detached::release).
    pub fn release(&self) -> Result<Released, BackendError> {
        self.wait(self.inner.release())
    }
}

/// The signals that a holder waits for.
macro_rules! signals {
    ($($of:ident)*) => {$(
        #[doc = concat!("Of [`", stringify!($of), "`].")]
        impl $of {
            /// As [`Lease::lost`](crate::Lease::lost).
            pub fn lost(&self) -> Lost {
                self.wait(self.inner.lost())
            }

            /// As [`Lease::renewal_failing`](crate::Lease::renewal_failing).
            pub fn renewal_failing(&self) {
                self.wait(self.inner.renewal_failing());
            }

            /// As [`Lease::expires_within`](crate::Lease::expires_within).
            ///
            /// # Errors
            /// As [`Lease::expires_within`](crate::Lease::expires_within).
            pub fn expires_within(&self, margin: Duration) -> Result<(), Lost> {
                self.wait(self.inner.expires_within(margin))
            }
        }
    )*};
}

signals!(Guard Guards Lease Leases Leadership Term);

impl<T: AsRef<crate::Lease>> Blocking<T> {
    /// As [`Lease::ownership`](crate::Lease::ownership).
    ///
    /// # Errors
    /// As [`Lease::ownership`](crate::Lease::ownership).
    pub fn ownership(&self) -> Result<Ownership, OwnershipError> {
        self.wait(self.inner.as_ref().ownership())
    }

    /// As [`Lease::ownership_resting`](crate::Lease::ownership_resting).
    ///
    /// # Errors
    /// As [`Lease::ownership`](crate::Lease::ownership).
    pub fn ownership_resting(&self, rest: Duration) -> Result<Ownership, OwnershipError> {
        self.wait(self.inner.as_ref().ownership_resting(rest))
    }

    /// As [`Lease::asked_to_stop`](crate::Lease::asked_to_stop), for at most this long; `None` if no waiter has asked by then. Allow
    /// for the time of a query: one that is cut short tells nothing.
    ///
    /// # Errors
    /// As [`Lease::asked_to_stop`](crate::Lease::asked_to_stop).
    pub fn asked_to_stop(&self, within: Duration) -> Result<Option<WaiterView>, Lost> {
        self.wait(self.inner.as_ref().asked_to_stop_within(within))
    }

    /// As [`Lease::set_memo`](crate::Lease::set_memo).
    ///
    /// # Errors
    /// As [`Lease::set_memo`](crate::Lease::set_memo).
    pub fn set_memo(&self, text: impl AsRef<str>, kept: Duration) -> Result<(), MemoError> {
        self.wait(self.inner.as_ref().set_memo(text, kept))
    }
}

/// Of a [`RunOnce`].
impl RunOnce {
    /// Runs `work` under the lock, unless a run that counts began within the interval.
    ///
    /// A thread cannot be stopped from outside: call [`check`](crate::Lease::check) between the steps of `work`. A
    /// run does not count if its lease was lost before its end.
    ///
    /// # Errors
    /// As [`RunOnce::run`](crate::once::RunOnce::run).
    pub fn run<T, E>(
        &self,
        work: impl FnOnce(Lease) -> Result<T, E>,
    ) -> Result<RunOutcome<Result<T, E>>, HoldError> {
        let (guard, turn) = match self.wait(self.inner.begin())? {
            Ok(begun) => begun,
            Err(last) => return Ok(RunOutcome::Skipped(last)),
        };
        let started = TokioHost.now();
        let out = work(self.wrap(guard.lease()));
        let took = started.elapsed(TokioHost.now());
        self.wait(self.inner.end((guard, turn), out.is_ok(), took))?;
        Ok(RunOutcome::Ran(out))
    }

    /// As [`RunOnce::turn`](crate::once::RunOnce::turn).
    ///
    /// # Errors
    /// As [`RunOnce::turn`](crate::once::RunOnce::turn).
    #[doc(hidden)]
    pub fn turn(&self) -> Result<Result<Turn, LastRun>, HoldError> {
        self.wait(self.inner.turn())
    }

    /// As [`RunOnce::turn_held`](crate::once::RunOnce::turn_held).
    ///
    /// # Errors
    /// As [`RunOnce::turn_held`](crate::once::RunOnce::turn_held).
    #[doc(hidden)]
    pub fn turn_held(&self) -> Result<Result<Turn, LastRun>, HoldError> {
        self.wait(self.inner.turn_held())
    }

    /// As [`RunOnce::count`](crate::once::RunOnce::count).
    ///
    /// # Errors
    /// As [`RunOnce::count`](crate::once::RunOnce::count).
    #[doc(hidden)]
    pub fn count(&self, lease: &Lease, turn: Turn, began: Duration) -> Result<(), HoldError> {
        self.wait(self.inner.count(lease, turn, began))
    }
}

/// Of an [`Election`].
impl Election {
    /// Waits until this process leads.
    ///
    /// # Errors
    /// As [`Election::campaign`](crate::election::Election::campaign).
    pub fn campaign(&self) -> Result<Leadership, AcquireError> {
        Ok(self.wrap(self.wait(self.inner.campaign())?))
    }

    /// Leads until `work` is done, and campaigns again if the lead was lost before that. A thread cannot be stopped
    /// from outside: `work` calls [`check`](crate::Lease::check) between its steps and returns when that fails. It
    /// is then called again in the next term.
    ///
    /// # Errors
    /// As [`Election::lead`](crate::election::Election::lead).
    pub fn lead<T>(&self, mut work: impl FnMut(Term) -> T) -> Result<T, AcquireError> {
        loop {
            let leadership = self.campaign()?;
            let out = work(leadership.term());
            // A result that came too late does not count.
            if leadership.check().is_ok() && held_until_its_release(leadership.resign()).is_ok() {
                return Ok(out);
            }
        }
    }

    /// The present leader, as the store reports it.
    ///
    /// # Errors
    /// As [`Election::leader`](crate::election::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>, BackendError> {
        self.wait(self.inner.leader())
    }

    /// As [`Election::observe`](crate::election::Election::observe).
    pub fn observe(&self) -> Observer {
        self.wrap(self.inner.observe())
    }
}

/// Of a [`Leadership`].
impl Leadership {
    /// The proof of the lead, to be passed on.
    pub fn term(&self) -> Term {
        self.wrap(self.inner.term())
    }

    /// As [`Term::proclaim`](crate::election::Term::proclaim).
    ///
    /// # Errors
    /// As [`Term::proclaim`](crate::election::Term::proclaim).
    pub fn proclaim(&self, text: impl AsRef<str>) -> Result<(), MemoError> {
        self.wait(self.inner.proclaim(text))
    }

    /// As [`Leadership::resign`](crate::election::Leadership::resign).
    ///
    /// # Errors
    /// As [`Leadership::resign`](crate::election::Leadership::resign).
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.runtime.block_on(self.inner.resign())
    }

    /// As [`Leadership::detach`](crate::election::Leadership::detach).
    ///
    /// # Errors
    /// As [`Leadership::detach`](crate::election::Leadership::detach).
    pub fn detach(self) -> Result<Detached, DetachError<Self>> {
        let Self { inner, runtime } = self;
        match runtime.block_on(inner.detach()) {
            Ok(inner) => Ok(Blocking { inner, runtime }),
            Err(error) => Err(error.map(|inner| Self { inner, runtime })),
        }
    }
}

/// Of a [`Term`].
impl Term {
    /// As [`Term::proclaim`](crate::election::Term::proclaim).
    ///
    /// # Errors
    /// As [`Term::proclaim`](crate::election::Term::proclaim).
    pub fn proclaim(&self, text: impl AsRef<str>) -> Result<(), MemoError> {
        self.wait(self.inner.proclaim(text))
    }
}

impl Iterator for Observer {
    type Item = Result<Observed, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.runtime.block_on(self.inner.next()))
    }
}

/// Of a [`Watch`].
impl Watch {
    /// As [`Watch::look`](crate::view::Watch::look).
    ///
    /// # Errors
    /// As [`Watch::look`](crate::view::Watch::look).
    pub fn look(&mut self) -> Result<Vec<LockView>, BackendError> {
        self.runtime.block_on(self.inner.look())
    }
}

impl Iterator for Watch {
    type Item = Result<LockView, BackendError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.runtime.block_on(self.inner.next()))
    }
}

/// A runtime on a separate thread. Its connections stay open while no call is under way.
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
