//! `Guard`: a lease, and the duty to release it.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use tenure_core::{BackendError, ErrorKind, Moment, Outcome, Released, Renewal, Timing};
use tracing::{Instrument, Span};

use crate::{
    engine::{
        Engine, HoldEnd,
        hold::HoldCell,
        metrics::{HoldOutcome, ReleaseOutcome},
    },
    error::{DetachError, HoldError, Lost, ReleaseError},
    lease::Lease,
    manual::Detached,
    verbs::{Held, Sealed},
};

/// A held lock: a [`Lease`], to which it derefs, and the duty to release it.
///
/// A separate thread renews the lease every ttl/3, even if the holder's runtime is blocked. There is one guard
/// for each acquisition; code that works under the lock gets a [`lease`](Self::lease). So `guard.clone()` is a
/// clone of the lease, which does not keep the lock.
///
/// # Dropping
/// Stops the renewals immediately. The lock is released in the background, or the lease is passed on to the next
/// waiter of this process. This works from any thread and without a runtime. If the release fails, the lease
/// expires after its ttl. With [`Lock::linger`](crate::Lock::linger) the lock stays taken for that long instead, and with
/// [`Lock::min_hold`](crate::Lock::min_hold) for that long in all. Call [`release`](Self::release) to learn the result, and
/// [`Locker::flush`](crate::Locker::flush) before the program ends.
///
/// # Forking
/// A forked process holds nothing. In the child, each method of an inherited guard, lease or
/// [`Locker`](crate::Locker), and each future that waits, is refused with
/// [`ErrorKind::Forked`](crate::ErrorKind::Forked). Dropping them does nothing. Connect anew in the child.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.mutex("nightly").acquire().await?;
/// println!("{} with token {}, {:?} left", guard.name(), guard.token(), guard.remaining());
/// guard.check()?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    engine: Arc<Engine>,
    lease: Lease,
    span: Span,
    /// How long the lock stays taken if this guard is dropped.
    linger: Option<Duration>,
    /// Until when it stays taken in any case.
    until: Option<Moment>,
    /// This guard no longer ends the lease: its release was answered, or it was detached.
    done: bool,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, lease: Lease) -> Self {
        let span = engine.telemetry().hold_span(lease.cell().grant());
        Self { engine, lease, span, linger: None, until: None, done: false }
    }

    /// Releases the lock and logs a failure: the work under it was never started.
    pub(crate) async fn give_up(mut self) {
        self.until = None;
        if let Err(error) = self.release().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the release failed");
        }
    }

    /// The work under it is never started: a drop releases the lock immediately. For a binding, whose caller may have left before
    /// the grant reached it.
    #[doc(hidden)]
    pub fn set_unused(&mut self) {
        (self.linger, self.until) = (None, None);
    }

    /// From now on: the lock stays taken after a drop, and for this long in any case.
    pub(crate) fn stays_taken(&mut self, linger: Option<Duration>, min_hold: Option<Duration>) {
        let now = self.engine.host.now();
        (self.linger, self.until) = (linger, min_hold.map(|min_hold| now + min_hold));
    }

    /// For how much longer it stays taken in any case; `None` if that time has passed.
    fn rest(&self) -> Option<Duration> {
        let rest = self.until?.boot.checked_sub(self.engine.host.now().boot)?;
        (!rest.is_zero()).then(|| rest.max(Timing::MIN_TTL))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn cell(&self) -> &HoldCell {
        self.lease.cell()
    }

    /// The lease, to be passed on to code that works under the lock. It does not keep the lock.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Releases the lock and returns whether the lease had ended before.
    ///
    /// # Timing
    /// No request if the lease is [passed on](crate::Lock::fifo) to the next waiter of this process, or kept
    /// [idle](crate::Lock::keep_idle). Otherwise one request, which may take ttl/3, but no less than 250 ms and no
    /// more than 5 s.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if the lease had ended before. [`ReleaseError::Unknown`] if the store did
    /// not answer; the release is then repeated in the background until the lease has expired.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background, as if the guard had been dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let span = self.span.clone();
        self.release_lease().instrument(span).await
    }

    async fn release_lease(self) -> Result<(), ReleaseError> {
        if !self.cell().is_ours() {
            self.check().map_err(ReleaseError::AlreadyLost)?;
        }
        if let Some(rest) = self.rest() {
            return self.stay(rest).await;
        }
        let end = self.engine.end(self.cell()).map_err(ReleaseError::AlreadyLost)?;
        let mut guard = self;
        let HoldEnd::ToRelease(now) = end else {
            guard.end(HoldOutcome::Released, None);
            guard.cell().on_released(ReleaseOutcome::PassedOn);
            return Ok(());
        };
        let (name, owner) = (guard.name().clone(), guard.cell().owner());
        let timeout = guard.cell().timing().request_timeout();
        let answer = guard.engine.release((&name, owner), now, timeout).await;
        match answer {
            Ok(Released::Released) => {
                guard.end(HoldOutcome::Released, Some(now));
                guard.cell().on_released(ReleaseOutcome::Released);
                Ok(())
            }
            Ok(Released::WasGone) => {
                let lost = guard.cell().on_gone();
                guard.end(HoldOutcome::Lost, None);
                guard.cell().on_released(ReleaseOutcome::Gone);
                Err(ReleaseError::AlreadyLost(lost))
            }
            Err(error) => {
                guard.cell().ended(HoldOutcome::Unknown, Some(now));
                guard.cell().on_released(ReleaseOutcome::Unknown);
                Err(ReleaseError::Unknown(error))
            }
        }
    }

    /// Renews the lease once more, for this long, and leaves it.
    async fn stay(mut self, rest: Duration) -> Result<(), ReleaseError> {
        self.check().map_err(ReleaseError::AlreadyLost)?;
        let last = self.cell().grant().clone().with_ttl(rest).ending_with_process(false);
        match self.engine.renew_one(&last, self.cell().timing().request_timeout()).await {
            Ok(Renewal::Renewed) => {
                self.engine.leave_to_ttl(self.cell());
                let now = self.engine.host.now();
                // OK to ignore, because the store has just renewed it.
                let _ = self.cell().release(now);
                self.end(HoldOutcome::Released, Some(now));
                self.cell().on_released(ReleaseOutcome::Released);
                Ok(())
            }
            Ok(Renewal::Gone) => {
                self.engine.leave_to_ttl(self.cell());
                let lost = self.cell().on_gone();
                self.end(HoldOutcome::Lost, None);
                self.cell().on_released(ReleaseOutcome::Gone);
                Err(ReleaseError::AlreadyLost(lost))
            }
            // The drop tries again, in the background.
            Err(error) => Err(ReleaseError::Unknown(error)),
        }
    }

    /// Stops the renewals and leaves the lease to its ttl: for leases that outlive this process, see
    /// [`manual`](crate::manual).
    ///
    /// A [`Lease`] that still exists follows the clock alone: it does not detect manual renewals or releases.
    ///
    /// # Timing
    /// No request, unless the lease would [end with this process](crate::Lock::free_at_death). Then it is renewed once, which
    /// may take ttl/3, but no less than 250 ms and no more than 5 s.
    ///
    /// # Errors
    /// [`DetachError`] if that renewal fails, with the guard in it. Dropping the error drops the guard.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is the guard.
    pub async fn detach(self) -> Result<Detached, DetachError> {
        match self.outlive_process().await {
            Ok(()) => Ok(self.leave()),
            Err(error) => Err(DetachError::new(self, error)),
        }
    }

    /// Makes the store keep the lease for its ttl, even if this process ends.
    pub(crate) async fn outlive_process(&self) -> Result<(), BackendError> {
        let grant = self.cell().grant();
        // A fork holds nothing, and does not speak for its parent.
        if !grant.ends_with_process || !self.cell().is_ours() {
            return Ok(());
        }
        let last = grant.clone().ending_with_process(false);
        match self.engine.renew_one(&last, self.cell().timing().request_timeout()).await? {
            Renewal::Renewed => Ok(()),
            Renewal::Gone => {
                let message = "the lease was lost before it was detached";
                let error = BackendError::new(ErrorKind::Unavailable, Outcome::NotApplied, message);
                Err(error.with("lock", self.name()))
            }
        }
    }

    pub(crate) fn leave(mut self) -> Detached {
        // The parent process keeps it, not a fork.
        if self.cell().is_ours() {
            self.engine.leave_to_ttl(self.cell());
            self.end(HoldOutcome::Detached, None);
        }
        self.done = true;
        let grant = self.cell().grant();
        // The store knows the last token only, so wherever it is attached to, the guard has that one.
        Detached::new(self.engine.clone(), grant.name.clone(), grant.owner, Some(grant.last_token()))
    }

    /// The hold ends here, unless it has ended before, and nothing is left to do.
    fn end(&mut self, outcome: HoldOutcome, then: Option<Moment>) {
        self.done = true;
        let outcome = self.cell().ended(outcome, then);
        self.span.record("outcome", outcome.as_str());
    }
}

impl Sealed for Guard {}

impl Held for Guard {
    type Proof = Lease;

    fn proof(&self) -> Lease {
        self.lease()
    }

    async fn work_under<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            out = work.instrument(self.span.clone()) => Ok(out),
        }
    }

    fn work_through<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    async fn settle(self) -> Result<(), HoldError> {
        self.check().map_err(HoldError::Lost)?;
        held_until_its_release(self.release().await).map_err(HoldError::Lost)
    }
}

/// Whether the work counts after this release: it does not if the lease was gone by then, even if this process
/// had not detected it. Any other failed release does not fail the work.
pub(crate) fn held_until_its_release(released: Result<(), ReleaseError>) -> Result<(), Lost> {
    match released {
        Ok(()) => Ok(()),
        Err(ReleaseError::AlreadyLost(lost)) => Err(lost),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the work is done, the release failed");
            Ok(())
        }
    }
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl AsRef<Lease> for Guard {
    fn as_ref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child must not release its parent's lock (hazard 27).
        if self.done || !self.cell().is_ours() {
            return;
        }
        match self.linger.max(self.rest()) {
            Some(linger) => self.engine.linger(self.cell(), linger),
            None => self.engine.pass_on_or_release(self.cell()),
        }
        self.end(HoldOutcome::Dropped, None);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}
