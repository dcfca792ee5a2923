//! `Lease`: what a holder passes on to code that works for it.

use std::{
    fmt,
    future::pending,
    sync::{Arc, Weak},
    time::Duration,
};

use tenure_core::{
    BackendError, Exposure, FencingToken, LockName, Memo, Memos, Mode, Noted, OwnerId, Ownership, WaiterView,
    no_single_owner,
};

use crate::{
    engine::{Engine, hold::HoldCell},
    error::{ConfigError, Loss, Lost, MemoError, OwnershipError},
    fence::Pass,
    machine::{backoff::Backoff, hold::Renewals},
    newest,
};

/// The proof that this process holds a lock, to be passed on: cloneable, `Send` and `Sync`.
///
/// A [`Guard`](crate::Guard) releases the lock and derefs to its lease; [`Lock::hold`](crate::Lock::hold)
/// passes one to the work. A clone neither keeps nor releases the lock. When the guard releases it, every clone
/// reports [`Loss::Released`](crate::Loss::Released), from the moment *before* the release is sent.
///
/// # Reentrancy
/// Locks are not reentrant. A function that needs the lock takes a `&Lease`. Its caller thus proves that it holds
/// the lock, instead of acquiring it a second time and waiting for itself.
///
/// ```
/// use tenure::Lease;
///
/// /// Needs the lock of the books: the caller shows the proof.
/// fn book(lease: &Lease, amount: u64) -> Result<(u64, u64), tenure::Lost> {
///     lease.check()?;
///     Ok((lease.token().get(), amount))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.mutex("books").acquire().await?;
/// book(&guard, 12)?;
/// let lease = guard.lease();
/// guard.release().await?;
/// assert_eq!(book(&lease, 30).unwrap_err().cause(), tenure::Loss::Released);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lease {
    cell: Arc<HoldCell>,
    mode: Mode,
    /// A lease does not keep the engine alive.
    engine: Weak<Engine>,
}

impl Lease {
    pub(crate) fn new(cell: Arc<HoldCell>, mode: Mode, engine: &Arc<Engine>) -> Self {
        Self { cell, mode, engine: Arc::downgrade(engine) }
    }

    pub(crate) fn cell(&self) -> &Arc<HoldCell> {
        &self.cell
    }

    /// The name of the lock. On Redlock, the name of a semaphore's slot, `name#1`.
    pub fn name(&self) -> &LockName {
        &self.cell.grant().name
    }

    /// The owner as the store knows it. It is new for every lease, unless it was [chosen](crate::Lock::owner),
    /// so it identifies this lease in every process.
    ///
    /// This call has an effect. The guard of the lease will release it in the store: it neither passes it on to a
    /// waiter of this process nor [keeps it idle](crate::Lock::keep_idle). Otherwise the owner would name the next
    /// holder's lease. Call it while the guard is held: after a release the lease, with its owner, may already have
    /// been passed on.
    pub fn owner(&self) -> OwnerId {
        self.cell.expose_owner()
    }

    /// The fencing token of this grant: give it to the resource with every write.
    ///
    /// # Fencing
    /// Larger than every token granted before for this lock. An exclusive holder's write is safe where the
    /// resource refuses smaller tokens than the largest it has seen. Co-holders of a semaphore or a read lock are
    /// not fenced from each other.
    pub fn token(&self) -> FencingToken {
        self.cell.grant().token
    }

    /// What to show to a fenced resource: the token, and whether it raises the resource's mark. See
    /// [`fence`](crate::fence).
    ///
    /// Does not check the clock, even when the lease is lost. The resource refuses a former holder as soon as a
    /// later one has shown its token. Call [`check`](Self::check) first to save a request.
    pub fn pass(&self) -> Pass {
        Pass::new(self.token(), self.mode)
    }

    /// Whether the lease is valid now. Reads the clock itself, so the answer is right after a suspend of the
    /// machine and while the runtime is blocked. Sends nothing.
    ///
    /// The lease stays valid from this call to the end of [`remaining`](Self::remaining), unless the lock is
    /// released by force. A write that takes longer needs the [token](Self::token).
    ///
    /// # Errors
    /// [`Lost`] once the lease has ended, and on every later call.
    pub fn check(&self) -> Result<(), Lost> {
        self.cell.check()
    }

    /// How long the lease stays valid if no renewal succeeds any more; zero once it is lost or released.
    ///
    /// # Timing
    /// ttl − drift, counted from before the last successful request was sent; drift is ttl/100 + 2 ms.
    pub fn remaining(&self) -> Duration {
        self.cell.remaining()
    }

    /// How long the lease lasts after each renewal: the ttl that was asked for, or a shorter one if that was the default and
    /// the store grants less at present.
    pub fn ttl(&self) -> Duration {
        self.cell.timing().ttl()
    }

    /// Stores a memo with the lock and replaces an earlier one: up to 1 KiB of text that
    /// [`inspect`](crate::Locker::inspect) shows to every client. It outlives the lease: for example the
    /// address of a holder, or when a job ran last.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let guard = locks.mutex("import").acquire().await?;
    /// guard.set_memo("row 4711 is done", Duration::from_secs(3600)).await?;
    /// guard.release().await?;
    /// let memo = locks.inspect("import").await?.memo.expect("it is kept for an hour");
    /// println!("{}, {:?} ago", memo.text, memo.age);
    /// # Ok(()) }
    /// ```
    ///
    /// # Timing
    /// Kept for `kept`, 1 ms to 366 days, by the store's clock, then deleted. Takes one or more requests, up to
    /// 5 s.
    ///
    /// # Errors
    /// [`MemoError`]. After [`MemoError::Store`] the memo may have been stored; after any other error it was
    /// not. A store that forgets leases forgets memos too.
    ///
    /// # Cancel safety
    /// The memo may or may not have been stored.
    pub async fn set_memo(&self, text: impl AsRef<str>, kept: Duration) -> Result<(), MemoError> {
        self.leave(&Memo::new(text.as_ref(), kept)?).await
    }

    /// What a transaction of the database that holds this lock needs in order to commit only as its owner: a statement. If
    /// it returns one row, no other client acquires the lock before the transaction has ended. If it returns none,
    /// the lease has ended, and another client has the lock, or had it, or may have it: **roll back**. See [`ownership`](crate::ownership), with examples.
    ///
    /// No clock decides: a holder that was stopped past its ttl commits if no client has acquired the lock since, and is
    /// refused otherwise. So a [loss](Self::lost) is still reported in time, and what a transaction wrote may be committed
    /// nevertheless. On PostgreSQL a transaction that stands still for longer than the ttl is ended by the server.
    ///
    /// This call has an effect, as [`owner`](Self::owner): the guard will release the lease in the store. Ask once for each
    /// lease. **Release the guard after the transaction has ended**: a release before is refused by the store.
    ///
    /// # Timing
    /// One request, or a few, up to 5 s. Renewals and waiters are not delayed by the transaction.
    ///
    /// # Errors
    /// [`OwnershipError::Lost`] if the lease has ended, or was passed on. [`OwnershipError::Store`] if the store failed, and
    /// as [`Unsupported`](crate::ErrorKind::Unsupported) if its transactions cannot do this, or for a lock that others may
    /// hold at the same time: use the [token](Self::token).
    ///
    /// # Cancel safety
    /// The effect may have happened.
    pub async fn ownership(&self) -> Result<Ownership, OwnershipError> {
        self.ownership_resting(self.ttl()).await
    }

    /// The same for transactions that may stand still for this long on PostgreSQL, instead of the ttl: after that the server
    /// ends the session, because its client may be gone.
    ///
    /// # Errors
    /// As [`ownership`](Self::ownership).
    ///
    /// # Cancel safety
    /// The effect may have happened.
    pub async fn ownership_resting(&self, rest: Duration) -> Result<Ownership, OwnershipError> {
        if self.mode != Mode::Exclusive {
            return Err(OwnershipError::Store(no_single_owner(self.name())));
        }
        self.cell.expose_if_held()?;
        let released = || Lost::new(Loss::Released, self.token(), Duration::ZERO);
        let engine = self.engine.upgrade().ok_or_else(released)?;
        let grant = self.cell.grant().clone().with_ttl(rest);
        match insist(&engine, &self.cell, || engine.backend.expose(&grant)).await? {
            Exposure::Exposed(ownership) => Ok(ownership),
            Exposure::Gone => Err(gone(&engine, &self.cell).into()),
        }
    }

    /// Notifies observers in the background that something has changed.
    pub(crate) fn tell_observers(&self) {
        if let Some(engine) = self.engine.upgrade().filter(|engine| engine.is_ours()) {
            engine.in_background(engine.telling(self.name()));
        }
    }

    /// Does this for as long as it takes, on the keeper's thread.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(engine) = self.engine.upgrade().filter(|engine| engine.is_ours()) {
            engine.in_background(work);
        }
    }

    pub(crate) async fn leave(&self, memo: &Memo) -> Result<(), MemoError> {
        self.check()?;
        let released = || Lost::new(Loss::Released, self.token(), Duration::ZERO);
        let engine = self.engine.upgrade().ok_or_else(released)?;
        leave(&engine, &self.cell, memo).await
    }

    /// True if the last renewal failed: the lease is still valid, but may be lost soon.
    pub fn is_renewal_failing(&self) -> bool {
        self.cell.is_at_risk()
    }

    /// The error of the last renewal; `None` after one that succeeded, or if the store has not answered yet.
    pub fn renewal_error(&self) -> Option<BackendError> {
        self.cell.failure()
    }

    /// Statistics of its renewals so far, to choose a ttl by.
    ///
    /// The slowest should take less than ttl/6, after which a renewal counts as failed. Each holder of a lease
    /// that is [passed on](crate::Lock::fifo) has its own statistics.
    pub fn renewals(&self) -> Renewals {
        self.cell.renewals()
    }

    /// Completes when a renewal has failed: the first of the two signals, and the time to finish quickly.
    ///
    /// The lease is still valid, and a later renewal may succeed; [`lost`](Self::lost) is the second signal.
    /// Completes too when the lease is lost or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn renewal_failing(&self) {
        self.cell.unless_forked(|| (), self.cell.at_risk()).await;
    }

    /// Completes when the lease is lost or released; never while it is held.
    ///
    /// # Timing
    /// At the end of validity at the latest, even if the store hangs. A blocked runtime delays this future, but
    /// not [`check`](Self::check).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> Lost {
        loop {
            if let Err(lost) = self.expires_within(Duration::ZERO).await {
                return lost;
            }
        }
    }

    /// Completes when a waiter asks this holder to [stop](crate::Lock::replace), and returns that waiter. It is a wish: the lease
    /// lasts until it is released. Never completes so on a store without an [order](crate::backend::Promises::order) of waiters.
    ///
    /// # Timing
    /// Asks the store when it is polled first, when a waiter sends a hint, and every ttl/3, between 1 s and 5 s; every second where
    /// the store [sends no hints](crate::backend::Minting::Place) between clients. A store that fails is asked again. The first call
    /// for a lease opens a connection for the hints, which later calls use. Of several calls at the same time each asks for itself.
    /// A lease on which nothing calls this costs nothing.
    ///
    /// A waiter asks for as long as its place lasts: after its death up to 6 s. A call after one that completed may complete again
    /// for the same waiter.
    ///
    /// # Errors
    /// [`Lost`] when the lease is lost or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn asked_to_stop(&self) -> Result<WaiterView, Lost> {
        let asked = async {
            match self.engine.upgrade() {
                Some(engine) => newest::asked_to_stop(&engine, &self.cell).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            lost = self.lost() => {
                self.cell.wishes().close();
                Err(lost)
            }
            waiter = asked => Ok(waiter),
        }
    }

    /// The same, for at most this long. For a binding, whose callers have no timer of tokio.
    ///
    /// # Errors
    /// As [`asked_to_stop`](Self::asked_to_stop).
    ///
    /// # Cancel safety
    /// As [`asked_to_stop`](Self::asked_to_stop).
    #[doc(hidden)]
    pub async fn asked_to_stop_within(&self, limit: Duration) -> Result<Option<WaiterView>, Lost> {
        let over = async {
            match self.engine.upgrade() {
                Some(engine) => engine.host.sleep_until(engine.host.now() + limit).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            asked = self.asked_to_stop() => asked.map(Some),
            () = over => Ok(None),
        }
    }

    /// Completes when no more than `margin` of validity is left: the time to stop work that takes that long to
    /// stop.
    ///
    /// Renewals keep more than half of the ttl ahead, so with a margin of ttl/3 it completes only when they
    /// fail.
    ///
    /// # Errors
    /// [`Lost`] if no validity is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn expires_within(&self, margin: Duration) -> Result<(), Lost> {
        self.cell.unless_forked(|| self.cell.check(), self.cell.nearly_lost(margin)).await
    }
}

impl AsRef<Self> for Lease {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// Stores a memo. It may be sent twice: the second one replaces the first.
async fn leave(engine: &Engine, cell: &HoldCell, memo: &Memo) -> Result<(), MemoError> {
    let promises = engine.backend.promises();
    if let Memos::None(why) = promises.memo {
        return Err(ConfigError::NoMemos { backend: promises.backend, why }.into());
    }
    let grant = cell.grant();
    let note = || engine.backend.note(&grant.name, grant.owner, grant.token, memo);
    match insist(engine, cell, note).await? {
        Noted::Noted => Ok(()),
        Noted::Gone => Err(gone(engine, cell).into()),
    }
}

/// Sends a request of a holder, and repeats it after transient errors while the lease lasts.
async fn insist<A, F>(engine: &Engine, cell: &HoldCell, mut ask: impl FnMut() -> F) -> Result<A, Refusal>
where
    F: Future<Output = Result<A, BackendError>>,
{
    // By the clock that does not step: this limits a wait, not validity.
    let began = engine.host.now();
    let mut pauses: Option<Backoff> = None;
    loop {
        cell.check()?;
        let sent_at = engine.host.now();
        let left = PATIENCE.saturating_sub(began.elapsed(sent_at)).min(cell.timing().request_timeout());
        let error = match engine.request(sent_at, left, &mut ask).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let pause = pauses.get_or_insert_with(|| Backoff::new(engine.new_owner_and_seed().1)).delay();
        let again = engine.host.now() + pause;
        if !error.kind().is_transient() || began.elapsed(again) >= PATIENCE {
            return Err(Refusal::Store(error));
        }
        engine.host.sleep_until(again).await;
    }
}

/// Why a request of a holder was not done.
enum Refusal {
    Lost(Lost),
    Store(BackendError),
}

impl From<Lost> for Refusal {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<Refusal> for OwnershipError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Lost(lost) => Self::Lost(lost),
            Refusal::Store(error) => Self::Store(error),
        }
    }
}

impl From<Refusal> for MemoError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Lost(lost) => Self::Lost(lost),
            Refusal::Store(error) => Self::Store(error),
        }
    }
}

/// The store reports that this lease has ended. The watchdog detects it later, too.
fn gone(engine: &Engine, cell: &HoldCell) -> Lost {
    let taken = || Lost::new(Loss::Taken, cell.grant().token, engine.host.now().wall);
    cell.check().err().unwrap_or_else(taken)
}

/// How long a request of a holder may take, in several attempts: 5 s.
const PATIENCE: Duration = Duration::from_secs(5);
