//! `Locker`: a connected store, from which locks are made.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{Arc, LazyLock},
    time::Duration,
};

use tenure_core::{
    Adopt, Adoption, BackendError, BackendHandle, BreakScope, Finding, HolderView, Host, Label, LockName,
    LockView, Mode, OwnerId, Promises,
};

use crate::{
    election::Election,
    engine::{Engine, QUESTION, request::invalid},
    error::ConfigError,
    lock::{Lock, RwLock},
    manual::Detached,
    once::RunOnce,
    several::{self, AllOf, AnyOf},
};

/// A connected store of locks, made by [`connect`](crate::connect) or by the builder of a store.
///
/// Make one for each store and clone it: clones share the connection, the thread that renews leases, and the local
/// queue of waiters. Two `Locker`s for the same store behave like two separate processes.
///
/// # Dropping
/// The thread ends when the last clone and the last guard are dropped and all their leases have been released. Call
/// [`flush`](Self::flush) before the program ends.
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
    label: Arc<Label>,
}

impl Locker {
    /// A locker on your own backend; [`connect`](crate::connect) makes one from a URL.
    pub fn new(backend: BackendHandle, host: Arc<dyn Host>) -> Self {
        Self { engine: Arc::new(Engine::new(backend, host)), label: Arc::new(this_process()) }
    }

    /// The same store, with this label on all locks made from the returned value.
    #[must_use]
    pub fn with_label(&self, label: Label) -> Self {
        Self { engine: self.engine.clone(), label: Arc::new(label) }
    }

    /// From now on metrics have the label `lock`, for this `Locker`, its clones and everything made from them. Call
    /// it before the first lock is made.
    ///
    /// For a program with few locks: each has 32 metrics, 19 of them histograms. The first 100 names get separate
    /// metrics while this `Locker` lives; all other locks are counted together, without the label. Names such as
    /// `orders/42` use up the 100.
    #[cfg(feature = "metrics")]
    pub fn metrics_by_lock(&self) {
        self.engine.telemetry().metrics.split_by_lock();
    }

    /// A lock with one holder at a time. A name is 1 to 512 bytes of UTF-8 without control characters. Locks need
    /// not be created first.
    ///
    /// Not reentrant: a task that holds the lock and acquires it again waits for itself. Pass its
    /// [`Lease`](crate::Lease) on instead.
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.lock(name.as_ref(), Ok(Mode::Exclusive)).taking_turns()
    }

    /// A lock that many readers or one writer hold at a time. Redlock does not have it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let settings = locks.rwlock("settings");
    /// let (one, two) = (settings.read().acquire().await?, settings.read().acquire().await?);
    /// assert!(settings.write().try_acquire().await?.is_none());
    /// # one.release().await?; two.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.lock(name.as_ref(), Ok(Mode::Exclusive)))
    }

    /// A lock with up to `slots` holders at a time. All clients should name the same number; otherwise the smallest
    /// among the holders and the client that asks applies, and a larger one takes effect when the last holder with the
    /// smaller one has left. A claim may [take](Lock::take) several slots. Holders are not fenced from each other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let gpu = locks.semaphore("gpu", 2);
    /// let (one, two) = (gpu.acquire().await?, gpu.acquire().await?);
    /// assert!(gpu.try_acquire().await?.is_none());
    /// # one.release().await?; two.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>, slots: u32) -> Lock {
        let limit = NonZeroU32::new(slots).ok_or(ConfigError::NoSlots);
        self.lock(name.as_ref(), limit.map(Mode::permit))
    }

    /// Several mutexes, to be held at the same time: all or none. Every process acquires them in the order of their
    /// names, so no deadlock is possible between them. Up to 64 names, each once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guards = locks.all(["account/1", "account/2"]).acquire().await?;
    /// assert!(locks.mutex("account/2").try_acquire().await?.is_none());
    /// guards.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AllOf {
        AllOf::new(self.engine.clone(), self.mutexes(names))
    }

    /// Several mutexes, of which the first free one is acquired. Up to 64 names, each once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let busy = locks.mutex("gpu0").acquire().await?;
    /// let free = locks.any(["gpu0", "gpu1"]).acquire().await?;
    /// assert_eq!(free.name().as_str(), "gpu1");
    /// # busy.release().await?; free.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> AnyOf {
        AnyOf::new(self.engine.clone(), self.mutexes(names))
    }

    fn mutexes<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Vec<Lock> {
        // One more than may be named is enough to refuse them.
        names.into_iter().take(several::MOST + 1).map(|name| self.mutex(name)).collect()
    }

    /// An election: the candidates wait in a queue, and one of them leads. The leader can publish its address. See
    /// [`Election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.mutex(name))
    }

    /// A job that runs once per interval, on one of many hosts. See [`RunOnce`].
    pub fn once(&self, name: impl AsRef<str>) -> RunOnce {
        RunOnce::new(self.mutex(name))
    }

    fn lock(&self, name: &str, mode: Result<Mode, ConfigError>) -> Lock {
        let name = LockName::new(name).map_err(ConfigError::Name);
        Lock::new(self.engine.clone(), name, mode, self.label.clone())
    }

    /// What the store promises: modes, order, the effect of a restart, the longest ttl. Sends nothing.
    pub fn promises(&self) -> Promises {
        self.engine.backend.promises()
    }

    /// Holders, queue and last token of one lock, as the store reports them. For people and for monitoring: the
    /// answer may be out of date when it arrives.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guard = locks.mutex("nightly").acquire().await?;
    /// for holder in locks.inspect("nightly").await?.holders {
    ///     println!("{} has {:?} left", holder.who(), holder.expires_in);
    /// }
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Timing
    /// Up to 5 s.
    ///
    /// # Errors
    /// The store's, and [`Invalid`](crate::ErrorKind::Invalid) for a name that is not valid.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockView, BackendError> {
        let name = checked(name.as_ref())?;
        self.engine.inspect(&name).await
    }

    /// Every lock that is held or waited for and whose name starts with `prefix`, by name.
    ///
    /// # Timing
    /// May take 60 s, where other queries may take 5 s. Some stores are scanned in bounded steps, key by key, so
    /// that they can serve other clients between them.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockView>, BackendError> {
        let prefix = prefix.as_ref();
        let mut views = self.ask(WALK, || self.engine.backend.list(prefix)).await?;
        views.iter_mut().for_each(|view| self.recognise(view));
        Ok(views)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.engine.host
    }

    /// Releases the lock by force and returns its former holders, which are notified immediately.
    ///
    /// **Overrides exclusion**: a former holder may work on until it detects the loss. Until then only the fencing
    /// token protects the resource, because every later token is larger. The first waiter acquires the lock
    /// immediately.
    ///
    /// # Errors
    /// The store's, and [`Invalid`](crate::ErrorKind::Invalid) for a name that is not valid.
    ///
    /// # Cancel safety
    /// The lock may or may not be broken.
    pub async fn force_release(&self, name: impl AsRef<str>) -> Result<Vec<HolderView>, BackendError> {
        self.force_release_from(name, BreakScope::Leases).await
    }

    /// As [`force_release`](Self::force_release), from some of the holders only, such as one of several that share the lock, or
    /// from clients that are not Tenure as well.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    /// The lock may or may not be broken.
    pub async fn force_release_from(
        &self,
        name: impl AsRef<str>,
        scope: BreakScope,
    ) -> Result<Vec<HolderView>, BackendError> {
        let name = checked(name.as_ref())?;
        self.ask(QUESTION, || self.engine.backend.break_lock(&name, scope)).await
    }

    /// Findings about the store and about the conditions that the locks need; empty if all is well.
    ///
    /// # Errors
    /// The store's, if it could not be examined.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        self.ask(QUESTION, || self.engine.backend.diagnose()).await
    }

    /// Looks whether the store grants anything at present: a Redis server that restarted or was emptied does not, for
    /// as long as a lease may last that it has lost.
    ///
    /// # Errors
    /// Why it grants nothing, and for [how long](BackendError::retry_hint) if that is known; and the store's.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn may_grant(&self) -> Result<(), BackendError> {
        self.ask(QUESTION, || self.engine.backend.may_grant()).await
    }

    /// Rewrites the store's record of settings to those of this client, and returns how long to wait before the
    /// next call. Zero means that it is done. For an operator who changed the settings of all clients on purpose.
    ///
    /// # Errors
    /// The store's; [`Unsupported`](crate::ErrorKind::Unsupported) if it keeps no such record;
    /// [`Invalid`](crate::ErrorKind::Invalid) for a larger `max_ttl`, unless `adopt` says so.
    ///
    /// # Cancel safety
    /// The record may or may not be rewritten; the next call continues from there.
    pub async fn adopt(&self, adopt: Adopt) -> Result<Adoption, BackendError> {
        self.ask(QUESTION, || self.engine.backend.adopt(adopt)).await
    }

    /// The lease of an owner, which another process has [detached](crate::Guard::detach). Sends nothing: only a
    /// later request shows whether there is such a lease.
    ///
    /// # Errors
    /// [`ConfigError::Name`] if the name is not valid.
    pub fn detached(&self, name: impl AsRef<str>, owner: OwnerId) -> Result<Detached, ConfigError> {
        Ok(Detached::new(self.engine.clone(), LockName::new(name.as_ref())?, owner, None))
    }

    /// A new owner, of 128 random bits, for a claim that can be [repeated](crate::Lock::owner).
    pub fn new_owner(&self) -> OwnerId {
        self.engine.new_owner()
    }

    fn recognise(&self, view: &mut LockView) {
        view.holders.iter_mut().for_each(|holder| self.engine.recognise(holder));
    }

    /// One request, repeated only while the store reports a transient overload.
    async fn ask<A, F>(&self, timeout: Duration, ask: impl FnMut() -> F) -> Result<A, BackendError>
    where
        F: Future<Output = Result<A, BackendError>>,
    {
        self.engine.request(self.engine.host.now(), timeout, ask).await
    }

    /// Releases the leases that are kept [idle](crate::Lock::keep_idle). Then waits up to `limit` until everything
    /// that was dropped has been released or has expired; true if so. Leases that are held or detached do not
    /// count.
    ///
    /// Call it before the program ends if it dropped guards or acquisitions, or released on a quorum. A release is
    /// done when a quorum has answered; nodes that did not receive it keep the lock until its ttl has passed.
    ///
    /// # Cancel safety
    /// The releases continue.
    pub async fn flush(&self, limit: Duration) -> bool {
        self.engine.drain(limit).await
    }
}

/// Shows the store, and the current numbers of leases, waiters and requests under way. All are zero when nothing is
/// held, waited for or being released.
impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Locker");
        shown.field("backend", &self.promises().backend);
        // The child of a fork takes no mutex: another thread of its parent may have held it at the fork.
        if self.engine.is_ours() {
            for (name, size) in self.engine.sizes() {
                shown.field(name, &size);
            }
        }
        shown.finish_non_exhaustive()
    }
}

/// Host, pid, user and program of this process: the default label of its locks, which other clients see as the
/// holder. [`Lock::label`](crate::Lock::label) sets another one.
pub fn this_process() -> Label {
    LABEL.clone()
}

fn checked(name: &str) -> Result<LockName, BackendError> {
    LockName::new(name).map_err(invalid)
}

static LABEL: LazyLock<Label> = LazyLock::new(|| {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let uid = nix::unistd::getuid();
    let user =
        nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let command = std::env::args_os().next().unwrap_or_default();
    Label::new(&host, std::process::id(), &user, &command.to_string_lossy())
});

/// How long a scan of all locks may take: 60 s, because a busy server is scanned in many bounded steps.
const WALK: Duration = Duration::from_secs(60);
