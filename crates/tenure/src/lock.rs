//! `Lock`: a lock in one mode, ready to be acquired. `RwLock` has two.

use std::{fmt, sync::Arc, time::Duration};

use tenure_core::{
    BackendError, ErrorKind, Host, Label, LockName, LockView, Minting, Mode, Outcome, OwnerId, Promises,
    Sharing, Timing,
};

use crate::{
    engine::{
        Engine, News,
        acquire::{self, AcquireRequest},
        hold::HoldCell,
    },
    error::{AcquireError, ConfigError, HoldError},
    guard::Guard,
    lease::Lease,
    options::{LocalQueueing, Options, Progress},
    verbs::{self, Acquirable},
};

/// A lock in one mode, ready to be acquired: made by [`Locker::mutex`](crate::Locker::mutex),
/// [`Locker::semaphore`](crate::Locker::semaphore) and [`RwLock`](crate::RwLock).
///
/// Holds nothing itself, and can be acquired as often as one likes. Settings are checked when it is acquired, before
/// anything is sent.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let import = locks.mutex("import").ttl(Duration::from_secs(30)).max_hold(Duration::from_secs(3600));
/// match import.within(Duration::from_secs(5)).acquire().await {
///     Ok(guard) => guard.release().await?,
///     Err(busy) => println!("{busy}"), // not acquired within 5.0s: held by web-3 pid 4711 import, 21.2s left
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lock {
    engine: Arc<Engine>,
    name: Result<LockName, ConfigError>,
    mode: Result<Mode, ConfigError>,
    options: Options,
}

impl Lock {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: Result<LockName, ConfigError>,
        mode: Result<Mode, ConfigError>,
        label: Arc<Label>,
    ) -> Self {
        Self { engine, name, mode, options: Options::new(label) }
    }

    pub(crate) fn taking_turns(mut self) -> Self {
        self.options.queueing = LocalQueueing::HandOver;
        self
    }

    fn with_mode(&self, mode: Mode) -> Self {
        Self { mode: Ok(mode), ..self.clone() }
    }

    /// The length of the lease. Default 10 s: a crash blocks the lock for no longer, and two renewals may fail. Where the
    /// store's [maximum](crate::backend::Promises::max_ttl) is less than that, it is the default.
    ///
    /// # Timing
    /// 100 ms to 24 h, and no more than the store's maximum: a longer one is refused when the lock is acquired. Renewed every
    /// ttl/3 while held.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Ends the lease after this long, counted from the grant, whatever the holder does: renewals stop, and the loss is
    /// [`Loss::MaxHold`](crate::Loss::MaxHold). For work that may hang. Default: never, because work ends when it
    /// ends.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// How long to wait for the lock at most. Default: without a bound. Zero asks once. When the limit has passed, an acquisition fails with
    /// [`AcquireError::TimedOut`], which names the holder; nothing is held or queued then. The work under the lock may take as
    /// long as it likes: see [`max_hold`](Self::max_hold).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guard = locks.mutex("nightly").within(Duration::from_secs(5)).acquire().await?;
    /// let refused = locks.mutex("nightly").within(Duration::from_millis(20)).acquire().await.unwrap_err();
    /// assert!(refused.is_busy() && refused.holder().is_some());
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.options.within = Some(limit);
        self
    }

    /// How long the store may fail in a row while a caller waits. Default: as long as the caller waits, and 30 s if that is
    /// without a bound: longer than a fail-over, and shorter than a person waits without a word.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
        self
    }

    /// First come, first served also within this process: no lease is passed on from one of its holders to the next.
    ///
    /// Without it, the waiters of one [`Locker`](crate::Locker) for one [mutex](crate::Locker::mutex) take turns with one
    /// lease, each with a token of its own: up to 128 turns, and none later than 10 ms after the lease was acquired. Then the
    /// store grants it to others. So a waiter of another process may be overtaken for 10 ms and one hold at most, where the store has an
    /// [order](crate::backend::Promises::order); a lease that may be kept [idle](Self::keep_idle) is passed on until its process is told that
    /// another process waits. Of a locker's waiters only the first has a place in the store's queue, with this and without it.
    ///
    /// Changes nothing on stores that mint a token for each [place](crate::backend::Minting::Place), and for locks other than
    /// mutexes: there each lease has one holder.
    #[must_use]
    pub fn fifo(mut self) -> Self {
        if self.options.queueing == LocalQueueing::HandOver {
            self.options.queueing = LocalQueueing::Fifo;
        }
        self
    }

    /// Keeps the lease for so long after a release that finds no waiter, before it is released: an acquisition in this
    /// process meanwhile needs no request. Default: not at all.
    ///
    /// Each holder has a token of its own, as with [local turns](Self::fifo). The first waiter elsewhere tells this
    /// process, which then releases the lease immediately, or when its holder is done: within a round trip and a hint, on
    /// `sqlite` within 100 ms, and if the hint is lost when the waiter asks again, 2 s later at most.
    ///
    /// The first lease of a process is never kept: it does not listen for hints yet.
    ///
    /// # What it costs
    /// * A process that dies meanwhile blocks the lock for what is left of the ttl, though no work was under way.
    /// * `tenure show` names this process as the holder, and a [`try_acquire`](Self::try_acquire) elsewhere finds the lock
    ///   held; it tells the holder too, so the next one may find it free.
    /// * A waiter elsewhere may be passed by waiters of this process until the hint is there.
    ///
    /// [`Locker::flush`](crate::Locker::flush) releases such leases, and so does dropping the last [`Locker`](crate::Locker)
    /// and lock.
    ///
    /// Only for mutexes without [`fifo`](Self::fifo) and [`max_hold`](Self::max_hold), on stores that mint a
    /// token on [entry](crate::backend::Minting::Entry); anything else is refused when the lock is acquired.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::connect("memory:").await?;
    /// let counter = locks.mutex("counter").keep_idle(Duration::from_secs(1));
    /// for _ in 0..1000 {
    ///     counter.acquire().await?.release().await?; // some 8 requests in all, not 2000
    /// }
    /// # locks.flush(Duration::from_secs(1)).await;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn keep_idle(mut self, idle: Duration) -> Self {
        self.options.idle = (!idle.is_zero()).then_some(idle);
        self.options.mark_label();
        self
    }

    /// Asks under this owner instead of a new one, so that another process can repeat the claim if its answer is lost: a
    /// claim under the owner that holds is granted the same lease again, extended to the full ttl. Where tokens are
    /// minted on [entry](crate::backend::Minting::Entry), with a larger token.
    ///
    /// Choose a new one for every lease, as [`Locker::new_owner`](crate::Locker::new_owner) makes them, and keep it where the
    /// other process finds it. Never use one for two claims at the same time: the one that gives up ends the other. A release
    /// that comes late ends what was taken under the same owner afterwards: after a future of it was dropped,
    /// [`flush`](crate::Locker::flush) before it is used again. It is released until the store has answered once, so a claim whose
    /// answer was lost may still be granted after that.
    ///
    /// It takes no [turns](Self::fifo). If the owner was not made by this `Locker` it may hear of its turn late: it
    /// then asks every 2 s, and on Redis may be passed once by the waiter behind it.
    ///
    /// # Errors
    /// Acquiring is refused with [`ConfigError::OwnerNotChosen`] where the store does not
    /// [promise](crate::backend::Promises::chosen_owner) it (Redlock, ZooKeeper), and with [`ConfigError::OwnerInUse`] while a guard of
    /// this process has a lease of that owner.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let owner = locks.new_owner();
    /// // Written down before the claim is sent.
    /// let written = owner.to_string();
    /// let guard = locks.mutex("nightly").owner(owner).acquire().await?;
    /// assert_eq!(guard.owner().to_string(), written);
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn owner(mut self, owner: OwnerId) -> Self {
        self.options.owner = Some(owner);
        self.fifo()
    }

    /// Shown to people who ask which process holds the lock. Default: host, pid, user and program of this process.
    #[must_use]
    pub fn label(mut self, label: Label) -> Self {
        self.options.label = Arc::new(label);
        self.options.mark_label();
        self
    }

    /// Where the waiting can be watched from elsewhere: how many are ahead, and who holds the lock. See [`Progress`].
    #[must_use]
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.options.progress = Some(progress.clone());
        self
    }

    /// Waits until this process holds the lock, for as long as [`within`](Self::within) says.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guard = locks.mutex("orders/42").acquire().await?;
    /// println!("token {}, {:?} left without a renewal", guard.token(), guard.remaining());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Timing
    /// In the order of arrival where the backend promises it. Validity is counted from the moment the last request was
    /// *sent*. The future does nothing before it is polled, borrows nothing, and can be spawned.
    ///
    /// # Errors
    /// [`AcquireError::Config`] before anything is sent; [`AcquireError::TimedOut`] after [`within`](Self::within);
    /// [`AcquireError::Store`] if the store fails for good, or in a row for longer than the [`patience`](Self::patience).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue. A grant that was already on its way is released in the
    /// background; if that fails too, it ends after one ttl.
    pub fn acquire(&self) -> impl Future<Output = Result<Guard, AcquireError>> + Send + use<> {
        verbs::acquire(self)
    }

    /// Asks once; `None` if another owner holds the lock, or waits for it. Leaves no place in the queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let Some(guard) = locks.mutex("nightly").try_acquire().await? else { return Ok(()) };
    /// assert!(locks.mutex("nightly").try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Timing
    /// One request, which may take ttl/3, but no less than 250 ms and no more than 5 s.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>, AcquireError>> + Send + use<> {
        verbs::try_acquire(self)
    }

    /// Runs `work` while the lock is held, then releases the lock and waits for the store's answer to that, even if
    /// clones of the lease live on.
    ///
    /// The future that `work` makes is dropped as soon as the lease is lost, at the end of validity at the latest.
    /// What it spawned or blocks on is not stopped: give the token to the resource.
    ///
    /// # Timing
    /// Waits for the lock as [`acquire`](Self::acquire) does.
    ///
    /// # Errors
    /// [`HoldError::Acquire`] if the work never began; [`HoldError::Lost`] if the lease was lost before the work was done:
    /// the work was dropped, or its late result is discarded. So it is if only the release finds the lease gone: another holder may
    /// have been inside by then. A release that fails otherwise is logged, and is no error of the work; if it is not known
    /// whether it arrived, it is tried again in the background.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then the guard.
    ///
    /// # Example: a report that must not be made twice at the same time
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::connect("memory:").await?;
    /// let mut pages = Vec::new();
    /// let token = locks
    ///     .mutex("report")
    ///     .hold(async |lease| {
    ///         pages.push("first page");
    ///         lease.token()
    ///     })
    ///     .await?;
    /// println!("{} pages under token {token}", pages.len());
    /// # Ok(()) }
    /// ```
    pub fn hold<T, F: AsyncFnOnce(Lease) -> T>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, HoldError>> + use<T, F> {
        verbs::hold(self, work)
    }

    /// As [`hold`](Self::hold), if the lock is free; `None` if another owner holds it, and the work never begins.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let done = locks.mutex("nightly").try_hold(async |_lease| "backed up").await?;
    /// println!("{}", done.unwrap_or("another host does it"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`hold`](Self::hold), but without patience for a store that fails.
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub fn try_hold<T, F: AsyncFnOnce(Lease) -> T>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<Option<T>, HoldError>> + use<T, F> {
        verbs::try_hold(self, work)
    }

    /// As [`acquire_for`](Self::acquire_for), but `max_hold` does not count yet: [`cap`](Self::cap) has it begin.
    pub(crate) async fn acquire_uncapped(&self, budget: Option<Duration>) -> Result<Guard, AcquireError> {
        let mut uncapped = self.clone();
        uncapped.options.max_hold = None;
        uncapped.acquire_for(budget).await
    }

    /// `max_hold` begins now.
    pub(crate) fn cap(&self, cell: &HoldCell) {
        if let Some(max_hold) = self.options.max_hold {
            cell.cap(self.engine.host.now() + max_hold);
        }
    }

    /// Which lock; why there is none of that name.
    pub(crate) fn name(&self) -> Result<&LockName, ConfigError> {
        self.name.as_ref().map_err(Clone::clone)
    }

    /// The owner that the caller chose.
    pub(crate) fn chosen_owner(&self) -> Option<OwnerId> {
        self.options.owner
    }

    /// The name that was given, for people.
    pub(crate) fn named(&self) -> String {
        self.name.as_ref().map_or_else(ToString::to_string, ToString::to_string)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn shared_engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn host(&self) -> Arc<dyn Host> {
        self.engine.host.clone()
    }

    pub(crate) fn promises(&self) -> Promises {
        self.engine.backend.promises()
    }

    /// What the store shows of it.
    pub(crate) async fn inspect(&self) -> Result<LockView, BackendError> {
        let refused =
            |why: &ConfigError| BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_string());
        self.engine.inspect(self.name.as_ref().map_err(refused)?).await
    }

    /// What is told of it from now on; nothing if the store cannot be reached, or tells nothing.
    pub(crate) async fn news(&self) -> Option<News> {
        let news = self.engine.news(self.name.as_ref().ok()?).await;
        news.inspect_err(|error| tracing::debug!(%error, "nothing is heard of this lock")).ok().flatten()
    }

    /// Who asks, in one line for people.
    pub(crate) fn who(&self) -> String {
        self.options.label.to_string()
    }

    /// Refuses what cannot be asked of this store; sends nothing.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.request(None).map(drop)
    }

    pub(crate) fn request(&self, budget: Option<Duration>) -> Result<AcquireRequest<'_>, ConfigError> {
        let (name, mode) = (self.name()?, self.mode.clone()?);
        let promises = self.engine.backend.promises();
        let timing = Timing::new(self.options.ttl.unwrap_or_else(|| promises.default_ttl()))?;
        if timing.ttl() > promises.max_ttl {
            let (backend, parameter) = (promises.backend, promises.max_ttl_parameter);
            return Err(ConfigError::TtlAboveMaximum { backend, max: promises.max_ttl, parameter });
        }
        match self.options.owner {
            Some(_) if !promises.chosen_owner => {
                return Err(ConfigError::OwnerNotChosen { backend: promises.backend });
            }
            Some(owner) if self.engine.has(owner) => return Err(ConfigError::OwnerInUse { owner }),
            _ => {}
        }
        let backend = promises.backend;
        if self.options.idle.is_some() {
            self.must_be_able_to_idle(&promises)?;
        }
        match (mode, promises.sharing) {
            (Mode::Exclusive, _) | (_, Sharing::Counted) => {}
            (Mode::Shared { limit: Some(slots) }, Sharing::Slots { most }) if slots.get() > most => {
                return Err(ConfigError::TooManySlots { backend, most });
            }
            (Mode::Shared { limit: Some(_) }, Sharing::Slots { .. }) => {}
            (Mode::Shared { limit: None }, Sharing::Slots { .. }) => {
                return Err(ConfigError::NoReadLocks { backend });
            }
            _ => return Err(ConfigError::NotShared { backend }),
        }
        Ok(AcquireRequest { name, mode, timing, budget, options: &self.options })
    }

    fn must_be_able_to_idle(&self, promises: &Promises) -> Result<(), ConfigError> {
        let why = if promises.minting != Minting::Entry {
            "this store mints a token for each place in its queue"
        } else if self.options.queueing != LocalQueueing::HandOver {
            "only a mutex without `fifo` passes its lease on"
        } else if self.options.max_hold.is_some() {
            "a hold that is bounded ends its lease"
        } else {
            return Ok(());
        };
        Err(ConfigError::NotIdle { backend: promises.backend, why })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.named()).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Acquirable for Lock {
    type Held = Guard;

    fn limit(&self) -> Option<Duration> {
        self.options.within
    }

    fn with_limit(self, limit: Duration) -> Self {
        self.within(limit)
    }

    async fn acquire_for(&self, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        self.engine.must_be_ours()?;
        let request = self.request(limit)?;
        let mode = request.mode;
        let cell = acquire::acquire(&self.engine, request).await?;
        Ok(Guard::new(self.engine.clone(), Lease::new(cell, mode, &self.engine)))
    }
}

/// A read-write lock: many readers or one writer. A reader that comes after a waiting writer waits behind it, so that writers
/// are not starved. For the same reason a reader that asks for a second read lock may wait for itself: pass its
/// [`Lease`](crate::Lease) on instead.
///
/// Made by [`Locker::rwlock`](crate::Locker::rwlock).
#[derive(Clone, Debug)]
pub struct RwLock(Lock);

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    /// The lock as a reader takes it: together with other readers.
    pub fn read(&self) -> Lock {
        self.0.with_mode(Mode::READ)
    }

    /// The lock as a writer takes it: alone. The same lock as [`Locker::mutex`](crate::Locker::mutex) of that name.
    pub fn write(&self) -> Lock {
        self.0.with_mode(Mode::Exclusive)
    }
}
