//! `Lease`: what a holder passes on to code that works for it.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tenure_core::{BackendError, FencingToken, LockName, Memo, Memos, Mode, Noted, OwnerId};

use crate::{
    engine::{Engine, hold::HoldCell},
    error::{ConfigError, Loss, Lost, MemoError},
    fence::Pass,
    machine::{backoff::Backoff, hold::Renewals},
};

/// The proof that this process holds a lock, to be passed on: cloneable, `Send` and `Sync`.
///
/// A [`Guard`](crate::Guard) owns the release and derefs to its lease; [`Lock::hold`](crate::Lock::hold) hands
/// one to the work. A clone neither keeps nor releases the lock. Once the guard has released it, every clone says
/// [`Loss::Released`](crate::Loss::Released), from the moment *before* the release is sent.
///
/// # Reentrancy
/// There are no reentrant locks here. A function that needs the lock takes a `&Lease`: its caller then proves that it holds
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
    /// A lease keeps nothing alive.
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

    /// The owner as the store knows it: new for every lease, unless it was [chosen](crate::Lock::owner), so that it names this
    /// one and no other, here and in every process.
    ///
    /// Calling this has an effect: a lease whose owner was asked for is released in the store by its guard: it is neither passed on to a waiter of this
    /// process nor [kept idle](crate::Lock::keep_idle). Otherwise the owner would name the next holder's lease. So ask while the
    /// guard is held: after its release the lease may have been passed on already, and the owner with it.
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

    /// What to show to a fenced resource: the token, and whether it raises the resource's mark. See [`fence`](crate::fence).
    ///
    /// Does not look at the clock, not even when the lease is lost: the resource refuses a former holder as soon as a
    /// later one has been there. Call [`check`](Self::check) first to save a request.
    pub fn pass(&self) -> Pass {
        Pass::new(self.token(), self.mode)
    }

    /// Whether the lease may be believed now. Reads the clock itself, so that it is right even after a suspend of the machine
    /// and while the runtime is blocked. Sends nothing.
    ///
    /// True between this call and the end of [`remaining`](Self::remaining), as long as the lock is not released by force. A write that
    /// takes longer needs the [token](Self::token).
    ///
    /// # Errors
    /// [`Lost`], and from then on always.
    pub fn check(&self) -> Result<(), Lost> {
        self.cell.check()
    }

    /// How long the lease may be believed if no renewal succeeds any more; zero once it is lost or released.
    ///
    /// # Timing
    /// ttl − drift, counted from before the last successful request was sent; drift is ttl/100 + 2 ms.
    pub fn remaining(&self) -> Duration {
        self.cell.remaining()
    }

    /// Leaves a memo beside the lock, in place of the one that is there: up to 1 KiB of text that
    /// [`inspect`](crate::Locker::inspect) shows to every client. It outlives the lease: where a holder can be found, or when
    /// a job ran last.
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
    /// Kept for `kept`, 1 ms to 366 days, by the store's clock, and gone afterwards. One request or some, up to 5 s.
    ///
    /// # Errors
    /// [`MemoError`]; after [`MemoError::Store`] it may be there, after any other it is not. A store that forgets leases forgets memos.
    ///
    /// # Cancel safety
    /// The memo may or may not be there.
    pub async fn set_memo(&self, text: impl AsRef<str>, kept: Duration) -> Result<(), MemoError> {
        self.leave(&Memo::new(text.as_ref(), kept)?).await
    }

    /// Tells those who look on that there is something to see, in the background.
    pub(crate) fn tell_observers(&self) {
        if let Some(engine) = self.engine.upgrade().filter(|engine| engine.is_ours()) {
            engine.host.spawn(engine.telling(self.name()));
        }
    }

    pub(crate) async fn leave(&self, memo: &Memo) -> Result<(), MemoError> {
        self.check()?;
        let released = || Lost::new(Loss::Released, self.token(), Duration::ZERO);
        let engine = self.engine.upgrade().ok_or_else(released)?;
        leave(&engine, &self.cell, memo).await
    }

    /// True if the last renewal failed: the lease holds, but may be about to be lost.
    pub fn is_renewal_failing(&self) -> bool {
        self.cell.is_at_risk()
    }

    /// What the last renewal failed with; `None` once one has succeeded again, and if the store has not answered yet.
    pub fn renewal_error(&self) -> Option<BackendError> {
        self.cell.failure()
    }

    /// How its renewals went so far: to choose a ttl by.
    ///
    /// The slowest should take less than ttl/6, after which a renewal counts as failed. Of a lease that is
    /// [passed on](crate::Lock::fifo) each holder has its own.
    pub fn renewals(&self) -> Renewals {
        self.cell.renewals()
    }

    /// Completes when a renewal has failed: the first of the two signals, the time to finish quickly.
    ///
    /// The lease still holds, and a later renewal may mend it; [`lost`](Self::lost) is the second signal. Ends also when the
    /// lease is lost or released.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn renewal_failing(&self) {
        self.cell.unless_forked(|| (), self.cell.at_risk()).await;
    }

    /// Completes when the lease is lost or released; never while it is held.
    ///
    /// # Timing
    /// At the end of validity at the latest, even if the store hangs. A runtime that is blocked delays this
    /// future, but not [`check`](Self::check).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) -> Lost {
        loop {
            if let Err(lost) = self.expires_within(Duration::ZERO).await {
                return lost;
            }
        }
    }

    /// Completes when no more than `margin` of validity is left: the time to stop work that needs as long to stop.
    ///
    /// Renewals keep more than half of the ttl ahead, so that with a margin of ttl/3 it ends only when they fail.
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
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

/// Leaves a memo, asked again while the store fails for a moment and the lease lasts. It may be asked for twice: the second one
/// replaces the first.
async fn leave(engine: &Engine, cell: &HoldCell, memo: &Memo) -> Result<(), MemoError> {
    let promises = engine.backend.promises();
    if let Memos::None(why) = promises.memo {
        return Err(ConfigError::NoMemos { backend: promises.backend, why }.into());
    }
    // By the clock that does not step: it is patience, and no belief.
    let began = engine.host.now();
    let mut pauses: Option<Backoff> = None;
    loop {
        cell.check()?;
        let (grant, sent_at) = (cell.grant(), engine.host.now());
        let left = PATIENCE.saturating_sub(began.elapsed(sent_at)).min(cell.timing().request_timeout());
        let ask = || engine.backend.note(&grant.name, grant.owner, grant.token, memo);
        let error = match engine.request(sent_at, left, ask).await {
            Ok(Noted::Noted) => return Ok(()),
            Ok(Noted::Gone) => return Err(gone(engine, cell)),
            Err(error) => error,
        };
        let pause = pauses.get_or_insert_with(|| Backoff::new(engine.new_owner_and_seed().1)).delay();
        let again = engine.host.now() + pause;
        if !error.kind().is_transient() || began.elapsed(again) >= PATIENCE {
            return Err(MemoError::Store(error));
        }
        engine.host.sleep_until(again).await;
    }
}

/// The store says that this lease has ended. The watchdog finds out too, later.
fn gone(engine: &Engine, cell: &HoldCell) -> MemoError {
    let taken = || Lost::new(Loss::Taken, cell.grant().token, engine.host.now().wall);
    MemoError::Lost(cell.check().err().unwrap_or_else(taken))
}

/// How long a memo may take, in several attempts: 5 s.
const PATIENCE: Duration = Duration::from_secs(5);
