//! `Lock`: a lock in one mode, ready to be acquired. `RwLock` has two.

use std::{
    fmt,
    num::NonZeroU32,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tenure_core::{
    BackendError, EndOfGrant, ErrorKind, Host, Label, LockName, LockView, MemoView, Minting, Mode, Order,
    Outcome, OwnerId, Priority, Promises, Sharing, Timing,
};

use crate::{
    engine::{
        Engine,
        acquire::{self, AcquireRequest},
        hold::HoldCell,
        news::News,
    },
    error::{AcquireError, ConfigError, HoldError},
    guard::Guard,
    lease::Lease,
    newest,
    options::{LocalQueueing, Newest, Options, Progress},
    verbs::{self, Acquirable},
};

/// A lock in one mode, ready to be acquired: made by [`Locker::mutex`](crate::Locker::mutex),
/// [`Locker::semaphore`](crate::Locker::semaphore) and [`RwLock`](crate::RwLock).
///
/// It holds nothing itself, and can be acquired any number of times. An acquisition checks the settings before
/// it sends anything.
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

    /// Takes this many permits of a [semaphore](crate::Locker::semaphore), all or none, with one lease and one token.
    /// Default 1.
    ///
    /// The first waiter keeps what it needs: the permits that become free stay free until its own fit, and no waiter
    /// behind it passes. So a claim for many is not overtaken by claims for one, and some permits may be unused
    /// while it waits. A version of Tenure without this method never makes the permits too many; it lets several of
    /// one claim hold alone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let memory = locks.semaphore("gigabytes", 10);
    /// let large = memory.clone().take(8).acquire().await?;
    /// let small = memory.clone().take(2).acquire().await?;
    /// assert!(memory.try_acquire().await?.is_none());
    /// # large.release().await?; small.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Acquiring is refused for no permit, for more than the semaphore has, for a lock that is no semaphore, and for
    /// more than one on Redlock, where each permit is a mutex.
    #[must_use]
    pub fn take(mut self, permits: u32) -> Self {
        self.mode = self.mode.and_then(|mode| {
            let Mode::Shared { limit: Some(limit), .. } = mode else { return Err(ConfigError::NoPermits) };
            let taken = NonZeroU32::new(permits).and_then(|permits| Mode::several(limit, permits));
            taken.ok_or_else(|| ConfigError::PermitsOutOfRange { permits, slots: limit.get() })
        });
        self
    }

    /// The length of the lease. Default 10 s: a crash blocks the lock for no longer, and two renewals may fail.
    /// If the store [grants](crate::backend::Promises::served_ttl) only shorter ones, the longest of them is the default.
    ///
    /// # Timing
    /// 100 ms to 24 h, and no more than the store's maximum: acquiring with a longer one is refused. Renewed
    /// every ttl/3 while held.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Ends the lease after this long, counted from the grant, even if the holder still works: renewals stop,
    /// and the loss is [`Loss::MaxHold`](crate::Loss::MaxHold). For work that may hang. Default: no limit.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Keeps the lock taken for at least this long after a guard that was dropped and not
    /// [released](crate::Guard::release): by `?`, by a panic, with its future. Default: the lock is released. For work that
    /// may go on elsewhere after this process has stopped it, such as a statement in a database.
    ///
    /// The drop sends one last renewal in the background, to this ttl. From then on no process is needed for it.
    /// [`Locker::flush`](crate::Locker::flush) waits for its answer. If the store does not answer, or this process dies
    /// first, the lock stays taken for the rest of its ttl. The lease of a dropped guard is not passed on to a waiter.
    /// [`hold`](Self::hold) releases the lock after work that returned, even with an error.
    ///
    /// # Timing
    /// 100 ms to 24 h, and no more than the store's maximum. Acquiring with a longer one is refused, and so is any on a store
    /// whose leases [end with the process](crate::backend::EndOfGrant::Session).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let migrate = locks.mutex("migrate").linger(Duration::from_secs(30));
    /// drop(migrate.acquire().await?);
    /// assert!(locks.flush(Duration::from_secs(5)).await);
    /// assert!(migrate.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.options.linger = Some(linger);
        self
    }

    /// Keeps the lock taken for at least this long from when it was acquired, even if it is released before. Default: it is free
    /// when it is released. For short work that two hosts with different clocks would do one after the other, and for a pause
    /// between two holders.
    ///
    /// A release before that time, or a drop, renews the lease once, to the rest of the time, and leaves it. From then on no
    /// process is needed for it. The rest of a longer ttl is not shortened, so choose a short ttl. The lease is not passed on to a
    /// waiter of this process. With [`linger`](Self::linger) a dropped guard keeps the lock for the longer of both.
    ///
    /// # Not promised
    /// After a crash the lock is free when its ttl has ended, or [immediately](Self::free_at_death), even if that is before this
    /// time.
    ///
    /// # Timing
    /// 100 ms to 24 h, no more than the store's maximum, and no more than [`max_hold`](Self::max_hold). Acquiring with a longer
    /// one is refused, and so is any on a store whose leases [end with the process](crate::backend::EndOfGrant::Session).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let report = locks.mutex("report").ttl(Duration::from_secs(2)).min_hold(Duration::from_secs(60));
    /// report.acquire().await?.release().await?;
    /// assert!(report.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = Some(min_hold);
        self
    }

    /// Whether the lock is free as soon as this process has ended, even by `kill -9`, and not only after the ttl. Default:
    /// yes, on a store whose waiters [see](crate::backend::Promises::free_at_death) the process: SQLite on Linux. Elsewhere, and
    /// where they cannot be sure that it has ended, the lock stays taken for the rest of its ttl.
    ///
    /// Say no for work that goes on without this process: in a process that it started, on another host. A lock that
    /// [lingers](Self::linger), that has a [chosen owner](Self::owner), or that is
    /// [detached](crate::Guard::detach) does so in any case.
    ///
    /// # Not promised
    /// Only the end of this process is seen, with all of its threads. Processes that it started do not count, except
    /// a fork that has not called `exec`. A process that was restored from a checkpoint has ended before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guard = locks.mutex("render").free_at_death(false).acquire().await?;
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn free_at_death(mut self, free_at_death: bool) -> Self {
        self.options.free_at_death = free_at_death;
        self
    }

    /// The longest wait for the lock. Default: no limit. Zero asks once. After the limit, an acquisition fails
    /// with [`AcquireError::TimedOut`], which names the holder; it then holds nothing and has no place in the
    /// queue. This does not limit the work under the lock: see [`max_hold`](Self::max_hold).
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

    /// How long the store may fail in a row while a caller waits. Default: as long as the caller waits, or 30 s if
    /// it waits without a limit. 30 s is longer than a failover, and shorter than a person waits without news.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
        self
    }

    /// Waiters in this process also acquire in FIFO order: no holder passes its lease on to the next one.
    ///
    /// Without it, the waiters of one [`Locker`](crate::Locker) for one [mutex](crate::Locker::mutex) share one
    /// lease in turns, each with its own token. There are up to 128 turns, and none later than 10 ms after the
    /// lease was acquired. Then the store grants it to others. So a waiter of another process may be overtaken for
    /// at most 10 ms and one hold, where the store has an [order](crate::backend::Promises::order). A lease that
    /// may be kept [idle](Self::keep_idle) is passed on until its process is notified that another process waits.
    /// With and without this setting, only the first waiter of a locker has a place in the store's queue.
    ///
    /// Changes nothing on stores that mint a token for each [place](crate::backend::Minting::Place), and for
    /// locks other than mutexes: each lease has one holder there.
    #[must_use]
    pub fn fifo(mut self) -> Self {
        if self.options.queueing == LocalQueueing::HandOver {
            self.options.queueing = LocalQueueing::Fifo;
        }
        self
    }

    /// Keeps the lease for this long after a release that finds no waiter: an acquisition in this process
    /// during that time needs no request. Default: the lease is released immediately.
    ///
    /// Each holder has its own token, as with [local turns](Self::fifo). The first waiter in another process
    /// notifies this process, which releases the lease immediately, or when its holder is done. That takes a
    /// round trip and a hint, on `sqlite` up to 100 ms. If the hint is lost, the waiter asks again at most 2 s
    /// later.
    ///
    /// The first lease of a process is never kept, because the process does not receive hints yet.
    ///
    /// # What it costs
    /// * If the process dies during that time, the lock is blocked for the rest of the ttl, although no work
    ///   was under way.
    /// * `tenure show` names this process as the holder, and a [`try_acquire`](Self::try_acquire) in another
    ///   process finds the lock held. It notifies the holder, so the next one may find the lock free.
    /// * Waiters of this process may overtake a waiter of another process until the hint arrives.
    ///
    /// [`Locker::flush`](crate::Locker::flush) releases such leases, and so does dropping the last
    /// [`Locker`](crate::Locker) and lock.
    ///
    /// Only for mutexes without [`fifo`](Self::fifo) and [`max_hold`](Self::max_hold), on stores that mint a
    /// token on [entry](crate::backend::Minting::Entry). Acquiring any other lock with this setting is refused.
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

    /// The class of this claim in the queue. Default [`Normal`](Priority::Normal). A waiter of a higher class is granted the lock
    /// before those of lower ones. Within a class the order is that of arrival. The holder is not interrupted.
    ///
    /// Of nine grants to waiters in a row, one goes to the waiter that has waited longest, of whatever class. So no waiter waits
    /// indefinitely: with n waiters before it, it is granted the lock after at most 9(n + 1) grants.
    ///
    /// Tasks of one process queue in their own class. A claim of another class than the default takes no part in
    /// [local turns](Self::fifo). Those of the default class may pass it once, for 10 ms and the hold that was begun. On PostgreSQL,
    /// MySQL and MariaDB up to four waiters that are already at the front of the queue stay ahead of it; of claims that can hold
    /// together up to sixteen.
    ///
    /// The waiters of a version of Tenure without this method count as those of the lowest class that waits. While such clients
    /// wait or hold, the order may be that of arrival, and nothing bounds how often a waiter is passed: update all clients first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::Priority;
    ///
    /// # let locks = tenure::connect("memory:").await?;
    /// let builds = locks.semaphore("builds", 4);
    /// let hotfix = builds.clone().priority(Priority::Urgent).acquire().await?;
    /// let nightly = builds.priority(Priority::Low).acquire().await?;
    /// # hotfix.release().await?; nightly.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Acquiring is refused for another class than the default on a store that does not
    /// [promise](crate::backend::Promises::classes) classes, as etcd, ZooKeeper and Redlock, and with [`latest`](Self::latest),
    /// [`replace`](Self::replace) and [`keep_idle`](Self::keep_idle).
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// Gives way to a newer client: of the waiters with this setting, the newest goes on waiting, and the others fail with
    /// [`AcquireError::GaveWay`]. For work that a newer run makes useless, such as one build for each commit. The
    /// holder is not asked to stop: see [`replace`](Self::replace). Waiters without this setting keep their turns.
    ///
    /// # Timing
    /// A waiter checks every 2 s whether a newer one waits. After a wait it checks once more when it was granted the lock, which
    /// takes no more than 1 s and ttl/6; then it gives way by a release. Each check is a query as that of
    /// [`inspect`](crate::Locker::inspect), which reads the whole queue. A check that fails changes nothing.
    ///
    /// # Errors
    /// Do not acquire again after [`GaveWay`](AcquireError::GaveWay): then this client would be the newest. Its place may be left in
    /// the background: [`flush`](crate::Locker::flush) before the process ends.
    ///
    /// Acquiring is refused for a lock that several can hold, for one of several locks, with [`keep_idle`](Self::keep_idle), with
    /// an [owner](Self::owner), and on a store without an [order](crate::backend::Promises::order) of its waiters, as Redlock.
    /// [`try_acquire`](Self::try_acquire) does not wait, and gives way to no other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::AcquireError;
    ///
    /// # let locks = tenure::connect("memory:").await?;
    /// let preview = locks.mutex("preview").latest();
    /// let guard = preview.acquire().await?;
    /// let (older, newer) = (preview.acquire(), preview.acquire());
    /// # let (older, newer) = (tokio::spawn(older), tokio::spawn(newer));
    /// # let older = older.await?;
    /// // In another process:
    /// assert!(matches!(older, Err(AcquireError::GaveWay { .. })));
    /// guard.release().await?;
    /// # newer.await??.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn latest(mut self) -> Self {
        self.options.newest = Some(Newest::Waits);
        self.options.mark_label();
        self
    }

    /// As [`latest`](Self::latest), and asks the holder to stop while it waits. A holder learns this from
    /// [`Lease::asked_to_stop`](crate::Lease::asked_to_stop), and releases the lock when it is ready. A holder that does not call
    /// that, or does not release, keeps the lock: see [`force_release`](crate::Locker::force_release).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let deploy = locks.mutex("deploy").replace();
    /// let guard = deploy.acquire().await?;
    /// let newer = tokio::spawn(deploy.acquire()); // in another process
    /// let asks = guard.asked_to_stop().await?;
    /// println!("stops for {}", asks.who());
    /// guard.release().await?;
    /// # newer.await??.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.options.newest = Some(Newest::Replaces);
        self.options.mark_label();
        self
    }

    /// Acquires under this owner instead of a new one, so that another process can repeat the claim if its
    /// answer is lost. A claim under the owner that holds the lock is granted the same lease again, extended to
    /// the full ttl. Where tokens are minted on [entry](crate::backend::Minting::Entry), it gets a larger
    /// token.
    ///
    /// Choose a new owner for every lease, as [`Locker::new_owner`](crate::Locker::new_owner) makes them, and
    /// store it where the other process finds it. Never use one owner for two claims at the same time: if one
    /// of them is withdrawn, it ends the other. A late release ends a later lease of the same owner. So after
    /// you drop a future of this owner, [`flush`](crate::Locker::flush) before you use the owner again. The
    /// background release ends when the store has answered once, so a claim whose answer was lost may still be
    /// granted after that.
    ///
    /// It takes no [turns](Self::fifo). If this `Locker` did not make the owner, its waiter may miss hints. It then
    /// asks every 2 s, and on Redis the waiter behind it may overtake it once.
    ///
    /// # Errors
    /// Acquiring is refused with [`ConfigError::OwnerNotChosen`] where the store does not
    /// [promise](crate::backend::Promises::chosen_owner) it (Redlock, ZooKeeper). It is refused with
    /// [`ConfigError::OwnerInUse`] while a guard of this process has a lease of that owner. While this process releases one in the
    /// background, an acquisition waits for that, and [`try_acquire`](Self::try_acquire) is refused so.
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

    /// Shows the state of the wait to other tasks: how many waiters are ahead, and who holds the lock. See
    /// [`Progress`].
    #[must_use]
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.options.progress = Some(progress.clone());
        self
    }

    /// Waits until this process holds the lock, up to the limit of [`within`](Self::within).
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
    /// In the order of arrival where the backend promises it. Validity is counted from the moment the last
    /// request was *sent*. The future does nothing before it is polled, borrows nothing, and can be spawned.
    ///
    /// # Errors
    /// [`AcquireError::Config`] before anything is sent. [`AcquireError::TimedOut`] after [`within`](Self::within).
    /// [`AcquireError::Store`] if the store fails with a permanent error, or in a row for longer than the
    /// [`patience`](Self::patience).
    ///
    /// # Cancel safety
    /// Dropping the future loses the place in the queue. A grant that was already on its way is released in the
    /// background; if that fails too, it expires after one ttl.
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

    /// Runs `work` while the lock is held, then releases the lock and waits for the store's answer. Clones of the
    /// lease do not prevent that.
    ///
    /// If the lease is lost, the future that `work` makes is dropped immediately, at the end of validity at the
    /// latest. Tasks that it spawned and blocking calls are not stopped: give the token to the resource.
    ///
    /// # Timing
    /// Waits for the lock as [`acquire`](Self::acquire) does.
    ///
    /// # Errors
    /// [`HoldError::Acquire`] if the work never began. [`HoldError::Lost`] if the lease was lost before the work
    /// was done: the work was cancelled, or it finished too late and its result was discarded. The same error is
    /// returned if only the release finds the lease gone, because another holder may have had the lock by then. Any
    /// other failed release is logged and does not fail the work. If it is not known whether the store received it,
    /// it is repeated in the background.
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

    /// As [`acquire_for`](Self::acquire_for), as one claim of a wait for several locks.
    pub(crate) async fn acquire_among(
        &self,
        budget: Option<Duration>,
        was_busy: &AtomicBool,
    ) -> Result<Guard, AcquireError> {
        self.must_wait_alone()?;
        self.acquire_with(AcquireRequest { was_busy: Some(was_busy), ..self.request(budget)? }).await
    }

    /// The same, asking once: for as long as the budget, or as any request if that is zero.
    pub(crate) async fn ask_among(
        &self,
        budget: Option<Duration>,
        was_busy: &AtomicBool,
    ) -> Result<Guard, AcquireError> {
        self.must_wait_alone()?;
        let request = self.request(budget.or(Some(Duration::ZERO)))?;
        self.acquire_with(AcquireRequest { was_busy: Some(was_busy), asks_once: true, ..request }).await
    }

    /// The same, but `max_hold` and `min_hold` do not count yet, and a guard that is dropped does not linger:
    /// [`begin`](Self::begin) starts them.
    pub(crate) async fn acquire_uncapped(
        &self,
        budget: Option<Duration>,
        was_busy: &AtomicBool,
    ) -> Result<Guard, AcquireError> {
        let mut uncapped = self.clone();
        // A lock that will linger outlives its process from the beginning.
        uncapped.options.free_at_death = uncapped.options.ends_with_process();
        (uncapped.options.max_hold, uncapped.options.linger, uncapped.options.min_hold) = (None, None, None);
        uncapped.acquire_among(budget, was_busy).await
    }

    async fn acquire_with(&self, request: AcquireRequest<'_>) -> Result<Guard, AcquireError> {
        self.engine.must_be_ours()?;
        let mode = request.mode;
        if let Some(newest) = self.options.newest {
            return Box::pin(self.acquire_as_newest(request, newest)).await;
        }
        let mut guard = self.guard_of(acquire::acquire(&self.engine, request).await?, mode);
        guard.stays_taken(self.options.linger, self.options.min_hold);
        Ok(guard)
    }

    /// Gives way to a newer client, while it waits and when it was granted the lock.
    async fn acquire_as_newest(
        &self,
        request: AcquireRequest<'_>,
        newest: Newest,
    ) -> Result<Guard, AcquireError> {
        let (mode, name, budget, began) =
            (request.mode, request.name, request.budget, self.engine.host.now());
        let (cell, asked_as) = newest::acquire(&self.engine, request, newest).await?;
        // A guard first: if this future is dropped, the lock is released.
        let mut guard = self.guard_of(cell, mode);
        let left = budget.map(|budget| budget.saturating_sub(began.elapsed(self.engine.host.now())));
        // The lease must last for the work that follows.
        let limit = left.unwrap_or(Duration::MAX).min(guard.ttl() / 6);
        if let Some(newer) = newest::newer_at_last(&asked_as, (&self.engine, name), limit).await {
            guard.give_up().await;
            return Err(AcquireError::GaveWay { by: Box::new(newer) });
        }
        guard.lease().cell().wishes().not_of(asked_as.into_older());
        guard.stays_taken(self.options.linger, self.options.min_hold);
        Ok(guard)
    }

    fn guard_of(&self, cell: Arc<HoldCell>, mode: Mode) -> Guard {
        Guard::new(self.engine.clone(), Lease::new(cell, mode, &self.engine))
    }

    /// The work begins now.
    pub(crate) fn begin(&self, guard: &mut Guard) {
        if let Some(max_hold) = self.options.max_hold {
            guard.lease().cell().cap(self.engine.host.now() + max_hold);
        }
        guard.stays_taken(self.options.linger, self.options.min_hold);
    }

    /// The name of the lock, or why it is not valid.
    pub(crate) fn name(&self) -> Result<&LockName, ConfigError> {
        self.name.as_ref().map_err(Clone::clone)
    }

    /// The owner that the caller chose.
    pub(crate) fn chosen_owner(&self) -> Option<OwnerId> {
        self.options.owner
    }

    /// The name as it was given, for messages.
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

    /// The state of the lock, as the store reports it.
    pub(crate) async fn inspect(&self) -> Result<LockView, BackendError> {
        self.engine.inspect(self.valid_name()?).await
    }

    /// Its memo, for a decision.
    pub(crate) async fn memo(&self) -> Result<Option<MemoView>, BackendError> {
        self.engine.memo(self.valid_name()?).await
    }

    fn valid_name(&self) -> Result<&LockName, BackendError> {
        let refused =
            |why: &ConfigError| BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, why.to_string());
        self.name.as_ref().map_err(refused)
    }

    /// Hints for this lock from now on; `None` if the store cannot be reached, or sends no hints.
    pub(crate) async fn news(&self) -> Option<News> {
        let news = self.engine.news(self.name.as_ref().ok()?).await;
        news.inspect_err(|error| tracing::debug!(%error, "nothing is heard of this lock")).ok().flatten()
    }

    /// The label of this client, in one line for messages.
    pub(crate) fn who(&self) -> String {
        self.options.label.to_string()
    }

    /// Refuses settings that this store does not have; sends nothing.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.request(None).map(drop)
    }

    pub(crate) fn request(&self, budget: Option<Duration>) -> Result<AcquireRequest<'_>, ConfigError> {
        let name = self.name()?;
        let mode = self.mode.clone()?;
        let promises = self.engine.backend.promises();
        let timing = Timing::new(self.options.ttl.unwrap_or_else(|| promises.default_ttl()))?;
        let beyond = [self.options.linger, self.options.min_hold].into_iter().flatten().map(Timing::new);
        let beyond = beyond.collect::<Result<Vec<_>, _>>()?.into_iter().map(Timing::ttl).max();
        if timing.ttl().max(beyond.unwrap_or_default()) > promises.max_ttl {
            let (backend, parameter) = (promises.backend, promises.max_ttl_parameter);
            return Err(ConfigError::TtlAboveMaximum { backend, max: promises.max_ttl, parameter });
        }
        if beyond.is_some() && promises.end == EndOfGrant::Session {
            return Err(ConfigError::NoLinger { backend: promises.backend });
        }
        if let (Some(min_hold), Some(max_hold)) = (self.options.min_hold, self.options.max_hold)
            && min_hold > max_hold
        {
            return Err(ConfigError::MinHoldAboveMaxHold { min_hold, max_hold });
        }
        match self.options.owner {
            Some(_) if !promises.chosen_owner => {
                return Err(ConfigError::OwnerNotChosen { backend: promises.backend });
            }
            Some(owner) if self.engine.has(owner) => return Err(ConfigError::OwnerInUse { owner }),
            _ => {}
        }
        let backend = promises.backend;
        if !self.options.priority.is_normal() {
            self.must_have_classes(&promises)?;
        }
        if self.options.idle.is_some() {
            self.must_be_able_to_idle(&promises)?;
        }
        if self.options.newest.is_some() {
            self.must_know_the_newest(mode, &promises)?;
        }
        match (mode, promises.sharing) {
            (Mode::Exclusive, _) | (_, Sharing::Counted) => {}
            (Mode::Shared { limit: Some(slots), .. }, Sharing::Slots { most }) if slots.get() > most => {
                return Err(ConfigError::TooManySlots { backend, most });
            }
            (Mode::Shared { limit: Some(_), permits: NonZeroU32::MIN }, Sharing::Slots { .. }) => {}
            (Mode::Shared { limit: Some(_), .. }, Sharing::Slots { .. }) => {
                return Err(ConfigError::OnePermit { backend });
            }
            (Mode::Shared { limit: None, .. }, Sharing::Slots { .. }) => {
                return Err(ConfigError::NoReadLocks { backend });
            }
            _ => return Err(ConfigError::NotShared { backend }),
        }
        Ok(AcquireRequest {
            name,
            mode,
            timing,
            budget,
            options: &self.options,
            was_busy: None,
            asked_as: None,
            asks_once: false,
        })
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

    fn must_have_classes(&self, promises: &Promises) -> Result<(), ConfigError> {
        let why = if !promises.classes {
            "this store has one order for all waiters"
        } else if self.options.newest.is_some() {
            "the newest of several waiters is the last one in the queue"
        } else if self.options.idle.is_some() {
            "waiters share a lease that is kept idle"
        } else {
            return Ok(());
        };
        Err(ConfigError::NoPriority { backend: promises.backend, why })
    }

    fn must_know_the_newest(&self, mode: Mode, promises: &Promises) -> Result<(), ConfigError> {
        let why = if promises.order != Order::Fifo {
            "this store promises none"
        } else if mode != Mode::Exclusive {
            "this lock has several holders"
        } else if self.options.idle.is_some() {
            "waiters share a lease that is kept idle"
        } else if self.options.owner.is_some() {
            "the lease of an owner that was chosen may be that of another process"
        } else {
            return Ok(());
        };
        Err(ConfigError::NotNewest { backend: promises.backend, why })
    }

    /// Where a claim is one of several, a newer client of one lock would end the wait for all.
    fn must_wait_alone(&self) -> Result<(), ConfigError> {
        let why = "this claim waits for several locks";
        match self.options.newest {
            Some(_) => Err(ConfigError::NotNewest { backend: self.promises().backend, why }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.named()).field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl verbs::Sealed for Lock {}

impl Acquirable for Lock {
    type Held = Guard;

    fn limit(&self) -> Option<Duration> {
        self.options.within
    }

    fn with_limit(self, limit: Duration) -> Self {
        self.within(limit)
    }

    async fn acquire_for(&self, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        self.acquire_with(self.request(limit)?).await
    }
}

/// A read-write lock: many readers or one writer. A new reader queues behind a waiting writer, so that writers
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

    /// The lock in read mode, which other readers can hold at the same time.
    pub fn read(&self) -> Lock {
        self.0.with_mode(Mode::READ)
    }

    /// The lock in write mode, which excludes all others. It is the same lock as the
    /// [`Locker::mutex`](crate::Locker::mutex) of that name.
    pub fn write(&self) -> Lock {
        self.0.with_mode(Mode::Exclusive)
    }
}
