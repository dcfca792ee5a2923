//! Leases that outlive the process that acquired them, renewed and released manually.
//!
//! One process acquires a lock and [detaches](crate::Guard::detach) from it. Another process, or a person, gets the
//! name of the lock and the [`owner`](Detached::owner). It then renews the lease, releases it, or
//! [attaches](crate::Lock::attach) to it and holds it like any other.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let locks = tenure::connect("memory:").await?;
//! let left = locks.mutex("nightly").acquire().await?.detach().await?;
//! let written = left.owner().to_string();
//!
//! // In another process, which has read what was written:
//! let found = locks.detached("nightly", written.parse()?)?;
//! found.renew(Duration::from_secs(30)).await?;
//! let guard = locks.mutex("nightly").attach(found.owner()).await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use tenure_core::{
    BackendError, ErrorKind, Exposure, FencingToken, Grant, LockName, Outcome, OwnerId, Ownership, Released,
    Renewal, Timing,
};

use crate::engine::{Engine, QUESTION, request::invalid};

/// A lease without a guard. Only [`renew`](Self::renew) renews it, and dropping this value changes nothing. Made by
/// [`Guard::detach`](crate::Guard::detach) and [`Locker::detached`](crate::Locker::detached).
#[derive(Clone)]
pub struct Detached {
    engine: Arc<Engine>,
    name: LockName,
    owner: OwnerId,
    token: Option<FencingToken>,
}

impl Detached {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: LockName,
        owner: OwnerId,
        token: Option<FencingToken>,
    ) -> Self {
        Self { engine, name, owner, token }
    }

    /// The name of the lock. Where a store builds a semaphore from several mutexes, the name of the slot.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The owner that holds the lease. Another process needs it and the name of the lock.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The fencing token of the lease, with which [`attach`](crate::Lock::attach) goes on; `None` if another process
    /// detached it. Larger than that of the guard if the lease had tokens for further holders of this process.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Extends the lease to this ttl from now on, 100 ms to 24 h; never shortens it.
    ///
    /// # Timing
    /// One request, up to 5 s.
    ///
    /// # Errors
    /// The store's. [`ErrorKind::Invalid`] for a ttl out of range, and for a lease that guards of this process
    /// [share in turns](crate::Lock::fifo).
    ///
    /// # Cancel safety
    /// The lease may or may not be extended.
    pub async fn renew(&self, ttl: Duration) -> Result<Renewal, BackendError> {
        let ttl = Timing::new(ttl).map_err(invalid)?.ttl();
        self.must_have_one_holder()?;
        let (name, owner) = (self.name.clone(), self.owner);
        let grant = Grant::new(name, owner, FencingToken::new(0), ttl);
        self.engine.renew_one(&grant, QUESTION).await
    }

    /// Releases the lease.
    ///
    /// # Timing
    /// One request, up to 5 s.
    ///
    /// # Errors
    /// The store's. [`ErrorKind::Invalid`] for a lease that guards of this process [share in
    /// turns](crate::Lock::fifo).
    ///
    /// # Cancel safety
    /// The lease may or may not be released.
    pub async fn release(&self) -> Result<Released, BackendError> {
        self.must_have_one_holder()?;
        self.engine.release((&self.name, self.owner), self.engine.host.now(), QUESTION).await
    }

    /// As [`Lease::ownership`](crate::Lease::ownership), for a lease that another process holds under this token; `None` if the
    /// owner does not hold the lock under it. On PostgreSQL a transaction that relies on it may stand still for `rest`, 100
    /// ms to 24 h.
    ///
    /// # Timing
    /// One request, or a few, up to 5 s.
    ///
    /// # Errors
    /// The store's, and [`ErrorKind::Unsupported`] if its transactions cannot do this. [`ErrorKind::Invalid`] for a time
    /// out of range, and for a lease that guards of this process [share in turns](crate::Lock::fifo).
    ///
    /// # Cancel safety
    /// The lease is not affected. Its owner may be shown to transactions.
    pub async fn ownership(
        &self,
        token: FencingToken,
        rest: Duration,
    ) -> Result<Option<Ownership>, BackendError> {
        let rest = Timing::new(rest).map_err(invalid)?.ttl();
        self.must_have_one_holder()?;
        let grant = Grant::new(self.name.clone(), self.owner, token, rest);
        let expose = || self.engine.backend.expose(&grant);
        match self.engine.request(self.engine.host.now(), QUESTION, expose).await? {
            Exposure::Exposed(ownership) => Ok(Some(ownership)),
            Exposure::Gone => Ok(None),
        }
    }

    /// A lease that is passed on has one owner and many holders: by its owner, one holder could end the lease of
    /// another (L4).
    fn must_have_one_holder(&self) -> Result<(), BackendError> {
        self.engine.must_be_ours()?;
        if self.engine.is_shared(&self.name, self.owner) {
            let message = "this lease is passed on from guard to guard here; it ends with the last of them";
            let error = BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, message);
            return Err(error.with("lock", &self.name));
        }
        Ok(())
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, owner, token, .. } = self;
        f.debug_struct("Detached")
            .field("name", name)
            .field("owner", owner)
            .field("token", token)
            .finish_non_exhaustive()
    }
}
