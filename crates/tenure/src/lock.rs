//! `Lock`: a lock in one mode, ready to be acquired. `RwLock` has two.

use std::{sync::Arc, time::Duration};

use tenure_core::{
    BackendError, EndOfGrant, ErrorKind, FencingToken, Grant, HolderView, Host, Label, LockName, LockView,
    Minting, Mode, Outcome, OwnerId, Promises, Renewal, Sharing, Timing,
};

use crate::{
    engine::{
        Engine, News,
        acquire::{self, Request},
        hold::HoldCell,
        request::forked,
    },
    error::{AcquireError, AttachError, ConfigError, HoldError},
    guard::Guard,
    lease::Lease,
    options::{Options, Progress, Together},
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
/// match import.acquire_within(Duration::from_secs(5)).await {
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
        self.options.together = Together::Turns;
        self
    }

    fn with_mode(&self, mode: Mode) -> Self {
        Self { mode: Ok(mode), ..self.clone() }
    }

    /// The length of the lease. Default 10 s: a crash blocks the lock for no longer, and two renewals may fail. Where the
    /// store's [maximum](crate::Promises::max_ttl) is less than that, it is the default.
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
    /// [`Loss::MaxHold`](crate::Loss::MaxHold). For work that may hang (hazard 25). Default: never, because work ends when it
    /// ends.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// How long the store may fail in a row while a caller waits. Default: as long as the caller waits, and 30 s if that is
    /// for ever: longer than a fail-over, and shorter than a person waits without a word.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
        self
    }

    /// First come, first served also within this process: no lease is passed on from one of its holders to the next.
    ///
    /// Without it, the waiters of one [`Locker`](crate::Locker) for one [mutex](crate::Locker::mutex) take turns with one
    /// lease, each with a token of its own: up to 128 turns, and none later than 10 ms after the lease was acquired. Then the
    /// store lets others in. So a waiter of another process is passed for 10 ms and one hold at most, where the store has an
    /// [order](crate::Promises::order); a lease that may be kept [idle](Self::idle) is passed on until its process is told that
    /// somebody waits elsewhere. Of a locker's waiters only the first has a place in the store's queue, with this and without it.
    ///
    /// Changes nothing on stores that mint a token for each [place](crate::Minting::Place), and for locks other than
    /// mutexes: there each lease has one holder.
    #[must_use]
    pub fn strict_order(mut self) -> Self {
        if self.options.together == Together::Turns {
            self.options.together = Together::Queue;
        }
        self
    }

    /// Keeps the lease for so long after a release that finds no waiter, before it is given back: whoever acquires the lock in
    /// this process meanwhile needs no request. Default: not at all.
    ///
    /// Each holder has a token of its own, as with [local turns](Self::strict_order). The first waiter elsewhere tells this
    /// process, which then gives the lease back at once, or when its holder is done: within a round trip and a hint, on
    /// `sqlite` within 100 ms, and if the hint is lost when the waiter asks again, 2 s later at most.
    ///
    /// A process that does not hear such hints yet, because it holds its first lease of all, keeps nothing.
    ///
    /// # What it costs
    /// * A process that dies meanwhile blocks the lock for what is left of the ttl, though nobody was inside.
    /// * `tenure show` names this process as the holder, and a [`try_acquire`](Self::try_acquire) elsewhere finds the lock
    ///   held; it tells the holder too, so the next one may find it free.
    /// * A waiter elsewhere may be passed by waiters of this process until the hint is there (L7).
    ///
    /// [`Locker::drain`](crate::Locker::drain) gives such leases back, and so does dropping the last [`Locker`](crate::Locker)
    /// and lock.
    ///
    /// Only for mutexes without [`strict_order`](Self::strict_order) and [`max_hold`](Self::max_hold), on stores that mint a
    /// token on [entry](crate::Minting::Entry); anything else is refused when the lock is acquired.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::connect("memory:").await?;
    /// let counter = locks.mutex("counter").idle(Duration::from_secs(1));
    /// for _ in 0..1000 {
    ///     counter.acquire().await?.release().await?; // some 8 requests in all, not 2000
    /// }
    /// # locks.drain(Duration::from_secs(1)).await;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.options.idle = (!idle.is_zero()).then_some(idle);
        self.options.mark_label();
        self
    }

    /// Asks under this owner instead of a new one, so that another process can repeat the claim if its answer is lost: who
    /// asks again under the owner that holds is granted the same lease again, extended to the full ttl. Where tokens are
    /// minted on [entry](crate::Minting::Entry), with a larger token.
    ///
    /// Choose a new one for every lease, as [`Locker::new_owner`](crate::Locker::new_owner) makes them, and keep it where the
    /// other process finds it. Never use one for two claims at the same time: the one that gives up ends the other. A release
    /// that comes late ends what was taken under the same owner afterwards: after a future of it was dropped,
    /// [`drain`](crate::Locker::drain) before it is used again. It is released until the store has answered once, so a claim whose
    /// answer was lost may still be granted after that.
    ///
    /// It takes no [turns](Self::strict_order). If the owner was not made by this `Locker` it may hear of its turn late: it
    /// then asks every 2 s, and on Redis may be passed once by the waiter behind it.
    ///
    /// # Errors
    /// Acquiring is refused with [`ConfigError::OwnerNotChosen`] where the store does not
    /// [promise](crate::Promises::chosen_owner) it (Redlock, ZooKeeper), and with [`ConfigError::OwnerInUse`] while a guard of
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
        self.strict_order()
    }

    /// Who we are, for people who ask who holds the lock. Default: host, pid, user and program of this process.
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

    /// Waits until this process holds the lock.
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
    /// Waits for ever, in the order of arrival where the backend promises it. The lease is believed from the moment
    /// the last request was *sent*.
    ///
    /// # Errors
    /// [`AcquireError::Config`] before anything is sent; [`AcquireError::Backend`] if the store fails for good, or in a
    /// row for longer than the [`patience`](Self::patience).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue. A grant that was already on its way is released in the
    /// background; if that fails too, it ends after one ttl.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.acquire_for(None).await
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
    pub async fn try_acquire(&self) -> Result<Option<Guard>, AcquireError> {
        AcquireError::if_free(self.acquire_for(Some(Duration::ZERO)).await)
    }

    /// Waits for at most `patience`; zero asks once. The error names the holder.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`AcquireError::TimedOut`]; nothing is held or queued then. If the store was
    /// failing when the time ran out, its error is the answer.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, patience: Duration) -> Result<Guard, AcquireError> {
        self.acquire_for(Some(patience)).await
    }

    /// Runs `work` while the lock is held, then gives the lock back and waits for the store's answer to that, also if
    /// clones of the lease live on.
    ///
    /// The future that `work` makes is dropped as soon as the lease is lost, at the end of validity at the latest.
    /// What it spawned or blocks on is not stopped: give the token to the resource.
    ///
    /// # Timing
    /// Waits for the lock as [`acquire`](Self::acquire) does: for ever.
    ///
    /// # Errors
    /// [`HoldError::Acquire`] if the work never began; [`HoldError::Lost`] if the lease was lost before the work was done:
    /// it was dropped, or its result came too late and is. So it is if only the release finds the lease gone: another holder may
    /// have been inside by then. A release that fails otherwise is logged, and is no error of the work; if it is not known
    /// whether it arrived, it is tried again in the background.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and then the guard.
    ///
    /// # Example: a report that must not run twice at once
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
    pub async fn hold<T>(&self, work: impl AsyncFnOnce(Lease) -> T) -> Result<T, HoldError> {
        run(self.acquire().await?, work).await
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
    pub async fn try_hold<T>(&self, work: impl AsyncFnOnce(Lease) -> T) -> Result<Option<T>, HoldError> {
        match self.try_acquire().await? {
            Some(guard) => run(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`hold`](Self::hold), but waits for the lock for at most `patience`; zero asks once. The work itself may take as
    /// long as it likes.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), and [`AcquireError::TimedOut`] in [`HoldError::Acquire`].
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub async fn hold_within<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(Lease) -> T,
    ) -> Result<T, HoldError> {
        run(self.acquire_within(patience).await?, work).await
    }

    /// Goes on with a lease that another process took and [left behind](crate::Guard::detach): it is renewed from here on, and the
    /// guard gives it back. The token is the one that the lease has, and passes where the other process has been.
    ///
    /// The other process must not work under the lease any more: nothing keeps the two apart.
    ///
    /// # Timing
    /// Two requests, a renewal and a look. The lease lasts for the [ttl](Self::ttl) from the renewal, or for what it had left
    /// if that is longer. A `break` is noticed at the next renewal, ttl/3 later at most: its hint goes to the process that
    /// took the lease.
    ///
    /// # Errors
    /// [`AttachError::Gone`] if the owner does not hold the lock; [`AttachError::HeldHere`] if a guard of this process does
    /// under this owner, also one of those that take [turns](Self::strict_order);
    /// [`ConfigError::EndsWithProcess`] where no lease outlives its process (ZooKeeper).
    ///
    /// # Cancel safety
    /// The lease may have been renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let (owner, token) = locks.mutex("nightly").acquire().await?.detach();
    /// // In another process:
    /// let guard = locks.mutex("nightly").attach(owner).await?;
    /// assert_eq!((guard.owner(), guard.token()), (owner, token));
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn attach(&self, owner: OwnerId) -> Result<Guard, AttachError> {
        self.engine.must_be_ours()?;
        let request = self.request(None)?;
        let promises = self.engine.backend.promises();
        if promises.end == EndOfGrant::Session {
            return Err(ConfigError::EndsWithProcess { backend: promises.backend }.into());
        }
        let lease = attach(&self.engine, request, owner).await?;
        Ok(Guard::new(self.engine.clone(), lease))
    }

    pub(crate) async fn acquire_for(&self, budget: Option<Duration>) -> Result<Guard, AcquireError> {
        self.engine.must_be_ours()?;
        let request = self.request(budget)?;
        let mode = request.mode;
        let cell = acquire::acquire(&self.engine, request).await?;
        Ok(Guard::new(self.engine.clone(), Lease::new(cell, mode, &self.engine)))
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

    fn request(&self, budget: Option<Duration>) -> Result<Request<'_>, ConfigError> {
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
        Ok(Request { name, mode, timing, budget, options: &self.options })
    }

    fn must_be_able_to_idle(&self, promises: &Promises) -> Result<(), ConfigError> {
        let why = if promises.minting != Minting::Entry {
            "this store mints a token for each place in its queue"
        } else if self.options.together != Together::Turns {
            "only a mutex without a strict order passes its lease on"
        } else if self.options.max_hold.is_some() {
            "a hold that is bounded ends its lease"
        } else {
            return Ok(());
        };
        Err(ConfigError::NotIdle { backend: promises.backend, why })
    }
}

/// A read-write lock: many readers or one writer. A reader that comes after a waiting writer waits behind it, so that writers
/// are not starved. For the same reason a reader that asks for a second read lock may wait for itself: pass its
/// [`Lease`](crate::Lease) on instead.
///
/// Made by [`Locker::rwlock`](crate::Locker::rwlock).
#[derive(Clone)]
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

/// Works under a guard for as long as the lease lasts, then gives it back.
pub(crate) async fn run<T>(guard: Guard, work: impl AsyncFnOnce(Lease) -> T) -> Result<T, HoldError> {
    let out = guard.work_under(work(guard.lease())).await.map_err(HoldError::Lost)?;
    guard.settle().await?;
    Ok(out)
}

/// Renews the lease of this owner and has it kept; its token is the one that the store shows.
///
/// The renewal comes first: it alone says that the owner holds, and belief counts from before it was sent (H1.1). If the
/// lease is lost between the two, the look finds nobody of this owner.
async fn attach(engine: &Arc<Engine>, request: Request<'_>, owner: OwnerId) -> Result<Lease, AttachError> {
    let attaching = attach_here(engine, request, owner);
    engine.unless_forked(|| Err(AttachError::Backend(forked())), attaching).await
}

async fn attach_here(
    engine: &Arc<Engine>,
    request: Request<'_>,
    owner: OwnerId,
) -> Result<Lease, AttachError> {
    engine.start_keeper().map_err(|error| AttachError::NoKeeper(Arc::new(error)))?;
    if engine.has(owner) || engine.is_shared(request.name, owner) {
        return Err(AttachError::HeldHere);
    }
    let _expected = engine.expect(owner);
    let (timing, name) = (request.timing, request.name.clone());
    let mut grant = Grant { name, owner, token: FencingToken::new(0), block: 1, ttl: timing.ttl() };
    let sent_at = engine.host.now();
    if engine.renew_one(&grant, timing.request_timeout()).await? == Renewal::Gone {
        return Err(AttachError::Gone);
    }
    let now = engine.host.now();
    let view = engine.request(now, timing.request_timeout(), || engine.backend.inspect(request.name)).await?;
    let text = owner.to_string();
    let is_ours = |holder: &&HolderView| holder.owner == text;
    // Who has no token was handed the lock, and has not entered.
    let held = view.holders.iter().find(is_ours).and_then(|holder| Some((holder.token?, holder.mode)));
    let Some((token, mode)) = held else { return Err(AttachError::Gone) };
    grant.token = token;
    let until = timing.believed_until(sent_at, grant.ttl);
    let now = engine.host.now();
    if until.is_over(now) {
        let message = format!("the store answers more slowly than a lease of {:?} lasts", grant.ttl);
        return Err(BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message).into());
    }
    let cap = request.options.max_hold.map(|max_hold| now + max_hold);
    let cell = Arc::new(HoldCell::new(grant, until, timing, cap, engine.host.clone()));
    if engine.keep_new(now, cell.clone()) {
        Ok(Lease::new(cell, mode, engine))
    } else {
        Err(AttachError::HeldHere)
    }
}
