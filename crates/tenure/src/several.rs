//! Several locks: all of them to be held at the same time (`AllOf`), or one of them (`AnyOf`).

use std::{
    fmt,
    future::pending,
    ops::Deref,
    pin::pin,
    slice,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::{Either, join_all, select, select_all};
use tenure_core::Moment;

use crate::{
    engine::Engine,
    error::{AcquireError, ConfigError, DetachError, HoldError, Lost, ReleaseError},
    guard::{Guard, held_until_its_release},
    lease::Lease,
    lock::Lock,
    manual::Detached,
    verbs::{self, Acquirable, Held},
};

/// Several mutexes, to be held at the same time: all or none. Made by [`Locker::all`](crate::Locker::all).
///
/// They are acquired one after the other, in the order of their names. Every process that acquires several locks
/// this way uses the same order, so no deadlock is possible between them. A program that holds one of the locks and
/// then asks for several breaks that order: name all of them together.
///
/// While it waits for one lock, it holds those before it, and other clients wait for those.
///
/// # Example: a transfer between two accounts
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let both = locks.all(["account/7", "account/3"]);
/// let moved = both
///     .hold(async |leases| {
///         // Each account refuses the tokens of its own former holders.
///         leases.iter().map(|lease| lease.token()).collect::<Vec<_>>()
///     })
///     .await?;
/// assert_eq!(moved.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AllOf {
    engine: Arc<Engine>,
    /// In the order of acquisition.
    locks: Result<Vec<Lock>, ConfigError>,
}

impl AllOf {
    pub(crate) fn new(engine: Arc<Engine>, locks: Vec<Lock>) -> Self {
        Self { engine, locks: in_order(locks) }
    }

    /// Sets options, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    /// [`max_hold`](Lock::max_hold) counts from when all locks are held.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let both = locks.all(["a", "b"]).with(|lock| lock.ttl(Duration::from_secs(30)));
    /// # both.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with(self, set: impl Fn(Lock) -> Lock) -> Self {
        let set_all = |locks: Vec<Lock>| in_order(locks.into_iter().map(set).collect());
        Self { locks: self.locks.and_then(set_all), ..self }
    }

    /// The longest wait for all of them together. Default: no limit. Zero asks once for each. After the limit, an
    /// acquisition fails with [`AcquireError::TimedOut`], which names a holder of the lock that was not acquired.
    /// The caller then holds nothing and has no place in a queue.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        self.with(|lock| lock.within(limit))
    }

    /// Waits until this process holds all of the locks.
    ///
    /// If a lock that it already holds is lost while it waits for another, it releases all of them and begins anew.
    ///
    /// # Timing
    /// Waits in each lock's queue in turn, up to the limit of [`within`](Self::within). One lock costs at least one
    /// request.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; nothing is held then. [`ConfigError::NameTwice`] and similar errors before anything is
    /// sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]; locks that were already held are released in the background.
    pub fn acquire(&self) -> impl Future<Output = Result<Guards, AcquireError>> + Send + use<> {
        verbs::acquire(self)
    }

    /// Asks once for each; `None` if another owner holds one of them, or waits for it. Leaves no place in a queue.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guards>, AcquireError>> + Send + use<> {
        verbs::try_acquire(self)
    }

    /// Runs `work` while all locks are held, then releases them. The future that `work` makes is dropped
    /// immediately when one of the leases is lost; see [`Lock::hold`].
    ///
    /// # Timing
    /// Waits as [`acquire`](Self::acquire) does.
    ///
    /// # Errors
    /// As [`Lock::hold`].
    ///
    /// # Cancel safety
    /// As [`Lock::hold`].
    pub fn hold<T, F: AsyncFnOnce(Leases) -> T>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, HoldError>> + use<T, F> {
        verbs::hold(self, work)
    }

    /// As [`hold`](Self::hold), if all locks are free; `None` otherwise, and the work never begins.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), but without patience for a store that fails.
    ///
    /// # Cancel safety
    /// As [`hold`](Self::hold).
    pub fn try_hold<T, F: AsyncFnOnce(Leases) -> T>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<Option<T>, HoldError>> + use<T, F> {
        verbs::try_hold(self, work)
    }
}

impl fmt::Debug for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AllOf").field(&self.locks).finish()
    }
}

impl verbs::Sealed for AllOf {}

impl Acquirable for AllOf {
    type Held = Guards;

    fn limit(&self) -> Option<Duration> {
        limit_of(&self.locks)
    }

    fn with_limit(self, limit: Duration) -> Self {
        self.within(limit)
    }

    async fn acquire_for(&self, budget: Option<Duration>) -> Result<Guards, AcquireError> {
        let locks = self.locks.as_ref().map_err(Clone::clone)?;
        locks.iter().try_for_each(Lock::validate)?;
        let (began, was_busy) = (self.engine.host.now(), AtomicBool::new(false));
        loop {
            let mut held = Vec::with_capacity(locks.len());
            let gathered = self.gather(locks, &mut held, (began, budget), &was_busy).await;
            let mut guards = Guards::new(held);
            if gathered.is_ok() && guards.check().is_ok() {
                locks.iter().zip(&mut guards.guards).for_each(|(lock, guard)| lock.begin(guard));
                return Ok(guards);
            }
            // Not in the background: a caller that gets nothing must leave nothing behind (L8).
            let _ = guards.release().await;
            gathered?;
            let waited = began.elapsed(self.engine.host.now());
            if budget.is_some_and(|budget| waited >= budget) {
                return Err(AcquireError::TimedOut { waited, ahead: None, holder: None });
            }
        }
    }
}

impl AllOf {
    /// Acquires one after the other, until all are held or one of them is lost.
    async fn gather(
        &self,
        locks: &[Lock],
        held: &mut Vec<Guard>,
        (began, budget): (Moment, Option<Duration>),
        was_busy: &AtomicBool,
    ) -> Result<(), AcquireError> {
        for lock in locks {
            let waited = || began.elapsed(self.engine.host.now());
            let next = {
                let left = budget.map(|budget| budget.saturating_sub(waited()));
                let next = pin!(lock.acquire_uncapped(left, was_busy));
                let lost = pin!(first(held.iter().map(|guard| guard.lost())));
                match select(next, lost).await {
                    Either::Left((next, _)) => next,
                    Either::Right(_) => return Ok(()),
                }
            };
            held.push(next.map_err(|error| of_all(error, waited()))?);
        }
        Ok(())
    }
}

/// Several locks that are held at the same time: [`Leases`], to which it derefs, and the duty to release them.
///
/// Made by [`AllOf::acquire`](crate::AllOf::acquire), or from one [`Guard`]. When one of the leases is lost, the
/// others are still renewed and exclude other clients until this value is released or dropped.
///
/// # Dropping
/// Every lock is released in the background, as by dropping each [`Guard`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guards = locks.all(["account/1", "account/2"]).acquire().await?;
/// guards.check()?;
/// guards.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping guards releases the locks"]
pub struct Guards {
    guards: Vec<Guard>,
    leases: Leases,
}

impl Guards {
    /// As [`Guard::set_unused`].
    #[doc(hidden)]
    pub fn set_unused(&mut self) {
        self.guards.iter_mut().for_each(Guard::set_unused);
    }

    fn new(guards: Vec<Guard>) -> Self {
        let leases = Leases::new(guards.iter().map(Guard::lease));
        Self { guards, leases }
    }

    /// The leases, for code that works under the locks. They do not keep the locks.
    pub fn leases(&self) -> Leases {
        self.leases.clone()
    }

    /// Releases all locks at the same time, and returns whether a lease had ended before.
    ///
    /// # Timing
    /// As [`Guard::release`] of the slowest.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if one of the leases had ended before; otherwise [`ReleaseError::Unknown`] if
    /// the store did not answer for one of them. All others are released.
    ///
    /// # Cancel safety
    /// If the future is dropped, the releases continue in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let answers = join_all(self.guards.into_iter().map(Guard::release)).await;
        let mut failed = Ok(());
        for error in answers.into_iter().filter_map(Result::err) {
            match (&failed, &error) {
                (Err(ReleaseError::AlreadyLost(_)), _) | (Err(_), ReleaseError::Unknown(_)) => {}
                _ => failed = Err(error),
            }
        }
        failed
    }

    /// Stops the renewals and leaves the leases to their ttl, as [`Guard::detach`] does.
    ///
    /// # Errors
    /// As [`Guard::detach`], with all guards in the error.
    ///
    /// # Cancel safety
    /// As [`Guard::detach`], for all guards.
    pub async fn detach(self) -> Result<Vec<Detached>, DetachError<Self>> {
        let kept = join_all(self.guards.iter().map(Guard::outlive_process)).await;
        match kept.into_iter().collect::<Result<(), _>>() {
            Ok(()) => Ok(self.guards.into_iter().map(Guard::leave).collect()),
            Err(error) => Err(DetachError::new(self, error)),
        }
    }
}

impl verbs::Sealed for Guards {}

impl Held for Guards {
    type Proof = Leases;

    fn proof(&self) -> Leases {
        self.leases()
    }

    async fn work_under<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            out = work => Ok(out),
        }
    }

    fn work_through<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    async fn settle(self) -> Result<(), HoldError> {
        self.check().map_err(HoldError::Lost)?;
        held_until_its_release(self.release().await).map_err(HoldError::Lost)
    }
}

impl From<Guard> for Guards {
    fn from(guard: Guard) -> Self {
        Self::new(vec![guard])
    }
}

/// For locks that were acquired separately.
impl FromIterator<Guard> for Guards {
    fn from_iter<I: IntoIterator<Item = Guard>>(guards: I) -> Self {
        Self::new(guards.into_iter().collect())
    }
}

impl Deref for Guards {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.leases
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guards").field(&self.guards).finish()
    }
}

/// The proof that this process holds several locks at the same time: cloneable, `Send` and `Sync`.
///
/// A [`Guards`](crate::Guards) derefs to it, and [`AllOf::hold`](crate::AllOf::hold) passes one to the work. It is
/// lost as soon as one of its leases is lost. Every lock has its own [token](Lease::token), for the resource that
/// it protects.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guards = locks.all(["account/1", "account/2"]).acquire().await?;
/// for lease in guards.iter() {
///     println!("{} with token {}", lease.name(), lease.token());
/// }
/// let to = guards.get("account/2").expect("it was named");
/// assert_eq!(to.name().as_str(), "account/2");
/// # guards.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Leases(Arc<[Lease]>);

impl Leases {
    fn new(leases: impl IntoIterator<Item = Lease>) -> Self {
        Self(leases.into_iter().collect())
    }

    /// The leases, by the names of their locks.
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.0.iter()
    }

    /// The lease of one lock; `None` if that lock was not named.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&Lease> {
        self.iter().find(|lease| lease.name().as_str() == name.as_ref())
    }

    /// Whether all of them are valid now. Reads the clock itself, and sends nothing, as [`Lease::check`].
    ///
    /// # Errors
    /// The loss of one of them, and the same on every later call.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Lease::check)
    }

    /// How long all of them stay valid if no renewal succeeds any more; zero once one is lost or released.
    ///
    /// # Timing
    /// As [`Lease::remaining`], of the one that ends first.
    pub fn remaining(&self) -> Duration {
        self.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// True if the last renewal of one of them failed.
    pub fn is_renewal_failing(&self) -> bool {
        self.iter().any(Lease::is_renewal_failing)
    }

    /// Completes when a renewal of one of them has failed, or one is lost or released; see
    /// [`Lease::renewal_failing`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn renewal_failing(&self) {
        first(self.iter().map(Lease::renewal_failing)).await;
    }

    /// Completes when one of them is lost or released; never while all are held.
    ///
    /// # Timing
    /// As [`Lease::lost`], of the one that is lost first.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> Lost {
        first(self.iter().map(Lease::lost)).await
    }

    /// Completes when no more than `margin` of validity is left of one of them; see [`Lease::expires_within`].
    ///
    /// # Errors
    /// [`Lost`] if one of them has no validity left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn expires_within(&self, margin: Duration) -> Result<(), Lost> {
        first(self.iter().map(|lease| lease.expires_within(margin))).await
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The result of the first future that completes; never, if there is none.
async fn first<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let futures: Vec<_> = futures.map(Box::pin).collect();
    if futures.is_empty() {
        return pending().await;
    }
    select_all(futures).await.0
}

/// Several mutexes, of which the first free one is acquired. Made by [`Locker::any`](crate::Locker::any).
///
/// For named things that are interchangeable: machines, ports, licences. If they need no names, use a
/// [semaphore](crate::Locker::semaphore). [`Lease::name`] returns which one was acquired, and the token is one of
/// that lock.
///
/// The free ones are tried in the order in which they were named. If none is free, the client waits in all queues
/// at the same time. When it gets one lock, its places in the other queues are withdrawn.
///
/// # Example: a free machine
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let one = locks.any(["gpu0", "gpu1"]).acquire().await?;
/// let other = locks.any(["gpu0", "gpu1"]).acquire().await?;
/// assert_eq!((one.name().as_str(), other.name().as_str()), ("gpu0", "gpu1"));
/// # one.release().await?; other.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AnyOf {
    engine: Arc<Engine>,
    /// In the order in which they were named.
    locks: Result<Vec<Lock>, ConfigError>,
}

impl AnyOf {
    pub(crate) fn new(engine: Arc<Engine>, locks: Vec<Lock>) -> Self {
        Self { engine, locks: checked(locks) }
    }

    /// Sets options, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    #[must_use]
    pub fn with(self, set: impl Fn(Lock) -> Lock) -> Self {
        let set_all = |locks: Vec<Lock>| checked(locks.into_iter().map(set).collect());
        Self { locks: self.locks.and_then(set_all), ..self }
    }

    /// The longest wait. Default: no limit. Zero asks once for each. After the limit, an acquisition fails with
    /// [`AcquireError::TimedOut`], which names a holder of one of the locks. The caller then holds nothing and has
    /// no place in a queue.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        self.with(|lock| lock.within(limit))
    }

    /// Waits until this process holds one of the locks.
    ///
    /// # Timing
    /// Waits in all queues at the same time, up to the limit of [`within`](Self::within). For an instant another
    /// lock may be granted as well; it is released immediately, in the background.
    ///
    /// # Errors
    /// As [`Lock::acquire`], once none of the locks can be acquired any more; errors of single locks are logged.
    /// [`ConfigError::NameTwice`] and similar errors before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`], for every queue.
    pub fn acquire(&self) -> impl Future<Output = Result<Guard, AcquireError>> + Send + use<> {
        verbs::acquire(self)
    }

    /// Asks once for each, one after the other, up to the first free one; `None` if other owners hold all of them,
    /// or wait for them. Leaves no place in a queue.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>, AcquireError>> + Send + use<> {
        verbs::try_acquire(self)
    }

    /// Runs `work` while one of the locks is held, then releases it. The future that `work` makes is dropped
    /// immediately when the lease is lost; see [`Lock::hold`].
    ///
    /// # Timing
    /// Waits as [`acquire`](Self::acquire) does.
    ///
    /// # Errors
    /// As [`Lock::hold`].
    ///
    /// # Cancel safety
    /// As [`Lock::hold`].
    pub fn hold<T, F: AsyncFnOnce(Lease) -> T>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, HoldError>> + use<T, F> {
        verbs::hold(self, work)
    }

    /// As [`hold`](Self::hold), if one of the locks is free; `None` otherwise, and the work never begins.
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
}

impl fmt::Debug for AnyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyOf").field(&self.locks).finish()
    }
}

impl verbs::Sealed for AnyOf {}

impl Acquirable for AnyOf {
    type Held = Guard;

    fn limit(&self) -> Option<Duration> {
        limit_of(&self.locks)
    }

    fn with_limit(self, limit: Duration) -> Self {
        self.within(limit)
    }

    async fn acquire_for(&self, budget: Option<Duration>) -> Result<Guard, AcquireError> {
        let locks = self.locks.as_ref().map_err(Clone::clone)?;
        locks.iter().try_for_each(Lock::validate)?;
        let began = self.engine.host.now();
        // First without a place: a client that waits for all at the same time is granted all that are free.
        let (waited, was_busy) = (|| began.elapsed(self.engine.host.now()), AtomicBool::new(false));
        let left = || budget.map(|budget| budget.saturating_sub(waited()));
        let limit = || left().filter(|_| budget != Some(Duration::ZERO));
        let refused = match try_each(locks, limit, &was_busy).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let left = left();
        let acquired = if left.is_some_and(|left| left.is_zero()) {
            Err(refused)
        } else {
            wait_for_all(locks, left, &was_busy).await
        };
        acquired.map_err(|error| of_all(error, waited()))
    }
}

/// How long to wait: all have the same settings.
fn limit_of(locks: &Result<Vec<Lock>, ConfigError>) -> Option<Duration> {
    locks.as_ref().ok().and_then(|locks| locks.first()).and_then(Lock::limit)
}

/// Asks for one after the other, while the limit has something left; if none was granted, returns why.
async fn try_each(
    locks: &[Lock],
    limit: impl Fn() -> Option<Duration>,
    was_busy: &AtomicBool,
) -> Result<Guard, AcquireError> {
    let mut refused = None;
    for lock in locks {
        let left = limit();
        if left.is_some_and(|left| left.is_zero()) && refused.is_some() {
            break;
        }
        match lock.ask_among(left, was_busy).await {
            Ok(guard) => return Ok(guard),
            Err(error) => {
                // The others are on the same store, so a transient error applies to them too.
                let is_over = matches!(&error, AcquireError::Store(error) if error.kind().is_transient());
                refused = Some(graver(refused, error));
                if is_over {
                    break;
                }
            }
        }
    }
    Err(refused.expect("BUG: at least one was named"))
}

/// Waits in all queues. When one lock is granted, the other claims are dropped and so withdrawn.
async fn wait_for_all(
    locks: &[Lock],
    budget: Option<Duration>,
    was_busy: &AtomicBool,
) -> Result<Guard, AcquireError> {
    let mut waiting: Vec<_> =
        locks.iter().map(|lock| Box::pin(lock.acquire_among(budget, was_busy))).collect();
    let mut refused = None;
    loop {
        let (answer, _, others) = select_all(waiting).await;
        let error = match answer {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        if !matches!(error, AcquireError::TimedOut { .. }) && !others.is_empty() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "one of several locks cannot be had; the others are waited for");
        }
        refused = Some(graver(refused, error));
        if others.is_empty() {
            return Err(refused.expect("BUG: just set"));
        }
        waiting = others;
    }
}

/// Which of two refusals to return: a timeout is an answer, and means that another lock may still be acquired.
fn graver(one: Option<AcquireError>, other: AcquireError) -> AcquireError {
    match (one, other) {
        (Some(timed_out @ AcquireError::TimedOut { .. }), _) => timed_out,
        (_, timed_out @ AcquireError::TimedOut { .. }) => timed_out,
        (Some(error), _) => error,
        (None, error) => error,
    }
}

/// Sorted by name. Processes that acquire several locks use this order, so there is no cycle of waits. Of all locks
/// that are held and waited for, the holder of the last one waits for none.
fn in_order(locks: Vec<Lock>) -> Result<Vec<Lock>, ConfigError> {
    let mut locks = checked(locks)?;
    locks.sort_by(|one, other| one.name().ok().cmp(&other.name().ok()));
    Ok(locks)
}

/// Refuses wrong requests: a name that is not valid, the same name twice, no name, too many, or one owner for
/// several leases.
fn checked(locks: Vec<Lock>) -> Result<Vec<Lock>, ConfigError> {
    let mut names = locks.iter().map(Lock::name).collect::<Result<Vec<_>, _>>()?;
    if names.is_empty() {
        return Err(ConfigError::NoNames);
    }
    if names.len() > MOST {
        return Err(ConfigError::TooManyNames { most: MOST });
    }
    if let Some(owner) = locks.iter().find_map(Lock::chosen_owner).filter(|_| names.len() > 1) {
        return Err(ConfigError::OwnerInUse { owner });
    }
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ConfigError::NameTwice { name: pair[0].clone() }),
        None => Ok(locks),
    }
}

/// Reports the wait for all of them.
fn of_all(error: AcquireError, all: Duration) -> AcquireError {
    match error {
        AcquireError::TimedOut { ahead, holder, .. } => AcquireError::TimedOut { waited: all, ahead, holder },
        other => other,
    }
}

/// How many locks one claim may name, because each costs at least one request and is renewed.
pub(crate) const MOST: usize = 64;
