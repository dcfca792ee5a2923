//! `Guard`: a lease, and the duty to give it back.

use std::{fmt, ops::Deref, sync::Arc};

use tenure_core::{FencingToken, OwnerId, Released};
use tracing::{Instrument, Span};

use crate::{
    engine::{End, Engine, hold::HoldCell},
    error::{HoldError, Loss, Lost, ReleaseError},
    lease::Lease,
};

/// A held lock: a [`Lease`], to which it is dereferenced, and the duty to give it back.
///
/// The lease is renewed every ttl/3 on a thread of its own, whatever the runtime of the holder does. There is one guard for
/// each acquisition; code that works under the lock is given a [`lease`](Self::lease). So `guard.clone()` is a clone of the
/// lease, which does not keep the lock.
///
/// # Dropping
/// Stops the renewals immediately and has the lock released in the background, from any thread and without a runtime, or passes
/// the lease on to the next waiter of this process.
/// If that fails too, the lease ends after its ttl. Call [`release`](Self::release) to know, and
/// [`Locker::drain`](crate::Locker::drain) before the program ends.
///
/// # Forking
/// A process that was forked holds nothing: each verb of a guard, a lease or a [`Locker`](crate::Locker) that it has from its
/// parent, and each future that waits, is refused there with [`ErrorKind::Forked`](crate::ErrorKind::Forked), and dropping it
/// does nothing. Connect anew in the child.
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
    /// Somebody else ends the lease: a release that was answered, or the caller of `detach`.
    done: bool,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, lease: Lease) -> Self {
        let span = engine.spans().hold(lease.cell().grant());
        Self { engine, lease, span, done: false }
    }

    /// The work is done: its result counts if the lease was held until now, whatever becomes of the release.
    pub(crate) async fn settle(self) -> Result<(), HoldError> {
        self.check().map_err(HoldError::Lost)?;
        held_until_its_release(self.release().await).map_err(HoldError::Lost)
    }

    /// Gives the lock back; a failure is logged, for what was to be done under it is done, or was not to be done.
    pub(crate) async fn give_up(self) {
        if let Err(error) = self.release().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the release failed");
        }
    }

    /// What `work` answers; the loss, and `work` is dropped, if the lease is lost first.
    pub(crate) async fn work_under<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            out = work.instrument(self.span()) => Ok(out),
        }
    }

    /// What a trace shows of this hold.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
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

    /// Gives the lock back and says truthfully what happened.
    ///
    /// # Timing
    /// None if the lease is [passed on](crate::Lock::strict_order) to the next waiter of this process, or kept
    /// [idle](crate::Lock::idle); otherwise one request, which may take ttl/3, but no less than 250 ms and no more than 5 s.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if the lease had ended before; [`ReleaseError::Unknown`] if the store did not
    /// answer, and then it is tried again in the background until the lease is over anyway.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background, as if the guard had been dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let span = self.span();
        self.give_back().instrument(span).await
    }

    async fn give_back(self) -> Result<(), ReleaseError> {
        if !self.cell().is_ours() {
            self.check().map_err(ReleaseError::AlreadyLost)?;
        }
        let end = self.engine.end(self.cell()).map_err(ReleaseError::AlreadyLost)?;
        let mut guard = self;
        let End::Over(now) = end else {
            guard.done = true;
            return Ok(());
        };
        let (name, owner) = (guard.name().clone(), guard.cell().owner());
        let timeout = guard.cell().timing().request_timeout();
        let answer = guard.engine.release((&name, owner), now, timeout).await;
        match answer {
            Ok(Released::Released) => {
                guard.done = true;
                Ok(())
            }
            Ok(Released::WasGone) => {
                guard.done = true;
                let now = guard.engine.host.now();
                Err(ReleaseError::AlreadyLost(Lost::new(Loss::Taken, guard.token(), now.wall)))
            }
            Err(error) => Err(ReleaseError::Unknown(error)),
        }
    }

    /// Stops the renewals and leaves the lease to its ttl: for leases that outlive this process.
    ///
    /// The lock can be renewed and released by its [`owner`](Lease::owner) through the [`Locker`](crate::Locker). A
    /// [`Lease`] that is still there goes by the clock alone: it learns nothing of those renewals and releases.
    pub fn detach(mut self) -> (OwnerId, FencingToken) {
        // Of a fork it is its parent's to keep.
        if self.cell().is_ours() {
            self.engine.leave_to_ttl(self.cell());
        }
        self.done = true;
        (self.cell().owner(), self.token())
    }
}

/// What a release says of the work before it: it does not count if the lease was gone by then, even if nobody had heard of that.
/// A release that failed otherwise is no failure of the work.
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

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child must not release its parent's lock (hazard 27).
        if self.done || !self.cell().is_ours() {
            return;
        }
        self.engine.give_away(self.cell());
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
