//! Several locks: all of them to be held at the same time (`AllOf`), or one of them (`AnyOf`).

use std::{fmt, future::pending, ops::Deref, pin::pin, slice, sync::Arc, time::Duration};

use futures_util::future::{Either, join_all, select, select_all};
use tenure_core::Moment;

use crate::{
    engine::Engine,
    error::{AcquireError, ConfigError, HoldError, Lost, ReleaseError},
    guard::{Guard, held_until_its_release},
    lease::Lease,
    lock::Lock,
    manual::Detached,
    verbs::{self, Acquirable, Held},
};

/// Several mutexes, to be held at the same time: all or none. Made by [`Locker::all`](crate::Locker::all).
///
/// They are taken one after the other, in the order of their names. Every process that takes several locks this way takes
/// them in the same order, so that none of them waits for another that waits for it. A program that holds one of the locks
/// and then asks for several breaks that order: it should name all of them together.
///
/// While it waits for one lock it holds those before it, and others wait for those.
///
/// # Example: money goes from one account to another
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
    /// In the order in which they are taken.
    locks: Result<Vec<Lock>, ConfigError>,
}

impl AllOf {
    pub(crate) fn new(engine: Arc<Engine>, locks: Vec<Lock>) -> Self {
        Self { engine, locks: in_order(locks) }
    }

    /// With settings, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    /// [`max_hold`](Lock::max_hold) counts from when all are held.
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

    /// How long to wait for all of them together at most. Default: without a bound. Zero asks once for each. When the limit has
    /// passed, an acquisition fails with [`AcquireError::TimedOut`], which names a holder of the lock that it did not get;
    /// nothing is held or queued then.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        self.with(|lock| lock.within(limit))
    }

    /// Waits until this process holds all of the locks.
    ///
    /// If one that it holds already is lost while it waits for another, it releases what it has and begins anew.
    ///
    /// # Timing
    /// Waits in each lock's queue in turn, for as long as [`within`](Self::within) says. One lock costs one request at least.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; nothing is held then. [`ConfigError::NameTwice`] and the like before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`]; what was held already is released in the background.
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

    /// Runs `work` while all locks are held, then releases them. The future that `work` makes is dropped as soon as one of the
    /// leases is lost; see [`Lock::hold`].
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
        let began = self.engine.host.now();
        loop {
            let mut held = Vec::with_capacity(locks.len());
            let gathered = self.gather(locks, &mut held, began, budget).await;
            let guards = Guards::new(held);
            if gathered.is_ok() && guards.check().is_ok() {
                locks.iter().zip(guards.iter()).for_each(|(lock, lease)| lock.cap(lease.cell()));
                return Ok(guards);
            }
            // Not in the background: who is told that it has nothing has left nothing behind (L8).
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
    /// Takes one after the other, until all are held or one of them is lost.
    async fn gather(
        &self,
        locks: &[Lock],
        held: &mut Vec<Guard>,
        began: Moment,
        budget: Option<Duration>,
    ) -> Result<(), AcquireError> {
        for lock in locks {
            let waited = || began.elapsed(self.engine.host.now());
            let next = {
                let next = pin!(lock.acquire_uncapped(budget.map(|budget| budget.saturating_sub(waited()))));
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
/// Made by [`AllOf::acquire`](crate::AllOf::acquire), or from one [`Guard`]. When one of the leases is lost, the others are
/// still renewed and keep others out until this is released or dropped.
///
/// # Dropping
/// Has every lock released in the background, as the drop of each [`Guard`] does.
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
    fn new(guards: Vec<Guard>) -> Self {
        let leases = Leases::new(guards.iter().map(Guard::lease));
        Self { guards, leases }
    }

    /// The leases, to be passed on to code that works under the locks. They do not keep the locks.
    pub fn leases(&self) -> Leases {
        self.leases.clone()
    }

    /// Releases all locks, at the same time, and says truthfully what happened.
    ///
    /// # Timing
    /// As [`Guard::release`] of the slowest.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if one of the leases had ended before; otherwise [`ReleaseError::Unknown`] if the store
    /// did not answer for one of them. Those that can be released are.
    ///
    /// # Cancel safety
    /// If the future is dropped, the releases go on in the background.
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
    pub fn detach(self) -> Vec<Detached> {
        self.guards.into_iter().map(Guard::detach).collect()
    }
}

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

/// The proof that this process holds several locks at the same time, to be passed on: cloneable, `Send` and `Sync`.
///
/// A [`Guards`](crate::Guards) derefs to it, and [`AllOf::hold`](crate::AllOf::hold) hands one to the work. It is
/// worth as much as the weakest of its leases: it is lost as soon as one of them is. Every lock has a
/// [token](Lease::token) of its own, for what that lock protects.
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

    /// The lease of one lock; `None` if that was not named.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&Lease> {
        self.iter().find(|lease| lease.name().as_str() == name.as_ref())
    }

    /// Whether all of them may be believed now. Reads the clock itself, and sends nothing, as [`Lease::check`].
    ///
    /// # Errors
    /// The loss of one of them, and from then on always.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Lease::check)
    }

    /// How long all of them may be believed if no renewal succeeds any more; zero once one is lost or released.
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

    /// Ends when a renewal of one of them has failed, or one is lost or released; see [`Lease::renewal_failing`].
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn renewal_failing(&self) {
        first(self.iter().map(Lease::renewal_failing)).await;
    }

    /// Ends when one of them is lost or released; never while all are held.
    ///
    /// # Timing
    /// As [`Lease::lost`], of the one that is lost first.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) -> Lost {
        first(self.iter().map(Lease::lost)).await
    }

    /// Ends when no more than `margin` of validity is left of one of them; see [`Lease::expires_within`].
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all of one of them.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
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

/// What the first of them says; never, if there is none.
async fn first<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let futures: Vec<_> = futures.map(Box::pin).collect();
    if futures.is_empty() {
        return pending().await;
    }
    select_all(futures).await.0
}

/// Several mutexes, of which the first that is free is taken. Made by [`Locker::any`](crate::Locker::any).
///
/// For things of which one is as good as the other, and each has a name: machines, ports, licences. Where they need no
/// names, take a [semaphore](crate::Locker::semaphore). [`Lease::name`] says which one it is, and its token is one of that
/// lock.
///
/// The free ones are tried in the order in which they were named. If none is free, it waits in all queues at the same time;
/// when it gets one lock, its places in the other queues are withdrawn.
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

    /// With settings, the same for each lock: [`ttl`](Lock::ttl), [`label`](Lock::label) and the others.
    #[must_use]
    pub fn with(self, set: impl Fn(Lock) -> Lock) -> Self {
        let set_all = |locks: Vec<Lock>| checked(locks.into_iter().map(set).collect());
        Self { locks: self.locks.and_then(set_all), ..self }
    }

    /// How long to wait at most. Default: without a bound. Zero asks once for each. When the limit has passed, an acquisition
    /// fails with [`AcquireError::TimedOut`], which names a holder of one of the locks; nothing is held or queued then.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        self.with(|lock| lock.within(limit))
    }

    /// Waits until this process holds one of the locks.
    ///
    /// # Timing
    /// Waits in all queues at the same time, for as long as [`within`](Self::within) says. For an instant another lock may be
    /// granted as well; it is released immediately, in the background.
    ///
    /// # Errors
    /// As [`Lock::acquire`], once none of the locks can be had any more; an error of some of them is logged. [`ConfigError::NameTwice`] and the like before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`], for every queue.
    pub fn acquire(&self) -> impl Future<Output = Result<Guard, AcquireError>> + Send + use<> {
        verbs::acquire(self)
    }

    /// Asks once for each, one after the other, up to the first that is free; `None` if other owners hold all of them, or wait
    /// for them. Leaves no place in a queue.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but without patience.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Guard>, AcquireError>> + Send + use<> {
        verbs::try_acquire(self)
    }

    /// Runs `work` while one of the locks is held, then releases it. The future that `work` makes is dropped as soon as the lease is lost; see
    /// [`Lock::hold`].
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
        // First without a place: who waits for all at once is granted all that are free.
        let waited = || began.elapsed(self.engine.host.now());
        let refused = match try_each(locks).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let left = budget.map(|budget| budget.saturating_sub(waited()));
        let acquired = if left.is_some_and(|left| left.is_zero()) {
            Err(refused)
        } else {
            wait_for_all(locks, left).await
        };
        acquired.map_err(|error| of_all(error, waited()))
    }
}

/// How long to wait: all have the same settings.
fn limit_of(locks: &Result<Vec<Lock>, ConfigError>) -> Option<Duration> {
    locks.as_ref().ok().and_then(|locks| locks.first()).and_then(Lock::limit)
}

/// Asks for one after the other; why none was granted.
async fn try_each(locks: &[Lock]) -> Result<Guard, AcquireError> {
    let mut refused = None;
    for lock in locks {
        match lock.acquire_for(Some(Duration::ZERO)).await {
            Ok(guard) => return Ok(guard),
            Err(error) => {
                // The others are on the same store: what fails there for now fails for them.
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

/// Waits in all queues. Those that are left when one has granted are dropped, and so withdrawn.
async fn wait_for_all(locks: &[Lock], budget: Option<Duration>) -> Result<Guard, AcquireError> {
    let mut waiting: Vec<_> = locks.iter().map(|lock| Box::pin(lock.acquire_for(budget))).collect();
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

/// Of two refusals the one to tell: a time-out is an answer, and means that another may still be had.
fn graver(one: Option<AcquireError>, other: AcquireError) -> AcquireError {
    match (one, other) {
        (Some(timed_out @ AcquireError::TimedOut { .. }), _) => timed_out,
        (_, timed_out @ AcquireError::TimedOut { .. }) => timed_out,
        (Some(error), _) => error,
        (None, error) => error,
    }
}

/// Sorted by name. Processes that take several locks take them in this order, so that none waits for one that waits for
/// it: of all locks that are held and waited for, the holder of the last one waits for none.
fn in_order(locks: Vec<Lock>) -> Result<Vec<Lock>, ConfigError> {
    let mut locks = checked(locks)?;
    locks.sort_by(|one, other| one.name().ok().cmp(&other.name().ok()));
    Ok(locks)
}

/// Refuses what cannot be asked for: a bad name, the same name twice, none, too many, or one owner
/// for several leases.
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

/// The time that was waited is that for all of them.
fn of_all(error: AcquireError, all: Duration) -> AcquireError {
    match error {
        AcquireError::TimedOut { ahead, holder, .. } => AcquireError::TimedOut { waited: all, ahead, holder },
        other => other,
    }
}

/// How many locks one claim may name: each costs at least one request, and is renewed.
pub(crate) const MOST: usize = 64;
