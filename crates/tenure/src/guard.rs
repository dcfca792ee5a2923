//! `Guard`: the proof of tenure.

use std::{sync::Arc, time::Duration};

use tenure_core::{FencingToken, LockName, Mode, OwnerId, Released};

use crate::{
    engine::{Engine, cell::HoldCell},
    error::{Loss, Lost, ReleaseError},
    fence::Pass,
};

/// The proof that this process holds a lock, for as long as [`check`](Self::check) says so.
///
/// The lease is renewed every ttl/3 on a thread of its own, whatever the runtime of the holder does.
///
/// # Dropping
/// Stops the renewals at once and has the lock released in the background, from any thread and without a runtime.
/// If that fails too, or more than 1024 guards are dropped at once, the lease ends after its ttl. Call
/// [`release`](Self::release) to know.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    engine: Arc<Engine>,
    cell: Arc<HoldCell>,
    mode: Mode,
    /// Somebody else ends the lease: a release under way, or the caller of `detach`.
    done: bool,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, cell: Arc<HoldCell>, mode: Mode) -> Self {
        Self { engine, cell, mode, done: false }
    }

    /// Which lock.
    pub fn name(&self) -> &LockName {
        &self.cell.grant().name
    }

    /// The owner as the store knows it.
    pub fn owner(&self) -> OwnerId {
        self.cell.owner()
    }

    /// The fencing token of this grant: give it to the resource with every write.
    ///
    /// # Fencing
    /// Larger than every token granted before for this lock (L2). An exclusive holder's write is safe where the
    /// resource refuses smaller tokens than the largest it has seen. Co-holders of a semaphore or a read lock are
    /// not fenced from each other (H6.2).
    pub fn token(&self) -> FencingToken {
        self.cell.grant().token
    }

    /// What to show to a fenced resource: the token, and whether it raises the resource's mark. See [`fence`](crate::fence).
    ///
    /// Does not look at the clock, also not when the lease is lost: the resource refuses whoever is over, as soon as a
    /// later holder has been there. Call [`check`](Self::check) first to save the way.
    pub fn pass(&self) -> Pass {
        Pass::new(self.token(), self.mode)
    }

    /// Whether the lease may be believed now. Reads the clock itself.
    ///
    /// # Errors
    /// [`Lost`], and from then on always.
    pub fn check(&self) -> Result<(), Lost> {
        self.cell.check()
    }

    /// How long the lease may be believed if no renewal succeeds any more; zero once it is lost.
    ///
    /// # Timing
    /// ttl − drift, counted from before the last successful request was sent; drift is ttl/100 + 2 ms.
    pub fn remaining(&self) -> Duration {
        self.cell.remaining()
    }

    /// True if the last renewal failed: the lease holds, but may be about to be lost.
    pub fn is_at_risk(&self) -> bool {
        self.cell.is_at_risk()
    }

    /// Ends when a renewal has failed: the first of the two signals, the time to finish quickly.
    ///
    /// The lease still holds, and a later renewal may mend it; [`lost`](Self::lost) is the second signal.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn at_risk(&self) {
        self.cell.at_risk().await;
    }

    /// Ends when the lease is lost; never while it is held.
    ///
    /// # Timing
    /// At the end of validity at the latest, also when the store hangs. A runtime that is blocked delays this
    /// future, but not [`check`](Self::check).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn lost(&self) -> Lost {
        loop {
            if let Err(lost) = self.cell.nearly_lost(Duration::ZERO).await {
                return lost;
            }
        }
    }

    /// Ends when no more than `margin` of validity is left: the time to stop work that needs as long to stop.
    ///
    /// Renewals keep more than half of the ttl ahead, so that with a margin of ttl/3 it ends only when they fail.
    ///
    /// # Errors
    /// [`Lost`] if nothing is left at all.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub async fn nearly_lost(&self, margin: Duration) -> Result<(), Lost> {
        self.cell.nearly_lost(margin).await
    }

    /// Gives the lock back and says truthfully what happened.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if the lease had ended before; [`ReleaseError::Unknown`] if the store did not
    /// answer, and then it is tried again in the background until the lease is over anyway.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background, as if the guard had been dropped.
    pub async fn release(self) -> Result<(), ReleaseError> {
        if !self.cell.is_ours() {
            self.cell.check().map_err(ReleaseError::AlreadyLost)?;
        }
        // The watchdog stops first: a renewal must not come after the release, and `Gone` is no loss from here on.
        self.engine.forget(&self.cell);
        let now = self.engine.host.now();
        self.cell.release(now).map_err(ReleaseError::AlreadyLost)?;
        let mut guard = self;
        let (name, owner) = (guard.name().clone(), guard.owner());
        let timeout = guard.cell.timing().request_timeout();
        let answer = guard.engine.request(now, timeout, || guard.engine.backend.release(&name, owner)).await;
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
    /// The lock can be renewed and released by its [`owner`](Self::owner) through the [`Locker`](crate::Locker).
    pub fn detach(mut self) -> (OwnerId, FencingToken) {
        self.engine.forget(&self.cell);
        self.done = true;
        (self.owner(), self.token())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A forked child must not release its parent's lock (hazard 27).
        if self.done || !self.cell.is_ours() {
            return;
        }
        self.engine.forget(&self.cell);
        // Lost or not: the store may still count us in, until the ttl ends.
        let now = self.engine.host.now();
        let _ = self.cell.release(now);
        self.engine.reap(self.name().clone(), self.owner(), now + self.cell.grant().ttl);
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}
