//! `Lock::attach`: continues a lease that another process has detached.

use std::sync::Arc;

use tenure_core::{
    BackendError, EndOfGrant, ErrorKind, FencingToken, Grant, HolderView, Outcome, OwnerId, Renewal,
};

use crate::{
    engine::{Engine, acquire::AcquireRequest, hold::HoldCell, request::forked},
    error::{AcquireError, ConfigError},
    guard::Guard,
    lease::Lease,
    lock::Lock,
};

impl Lock {
    /// Continues a lease that another process acquired and [detached](crate::Guard::detach): this client renews it,
    /// and the guard releases it. The token is [`Detached::token`](crate::manual::Detached::token), wherever and however often
    /// the lease is attached to, so a resource accepts it where the other process has shown it. It is the last token
    /// of the lease: that of the guard that was detached, or a larger one, if tasks shared the lease in
    /// [turns](Self::fifo) or it was kept [idle](Self::keep_idle).
    ///
    /// The other process must no longer work under the lease: nothing excludes one from the other.
    ///
    /// # Timing
    /// Two requests, a renewal and a query. The lease lasts for the [ttl](Self::ttl) from the renewal, or longer if
    /// it had more left; [`remaining`](crate::Lease::remaining) counts the ttl only. A release by force is detected
    /// at the next renewal, at most ttl/3 later, because its hint is sent to the process that acquired the lease.
    ///
    /// # Errors
    /// [`AcquireError::Gone`] if the owner does not hold the lock. [`ConfigError::OwnerInUse`] if a guard of this
    /// process holds it under this owner, even one that takes [turns](Self::fifo). [`ConfigError::EndsWithProcess`]
    /// where no lease outlives its process (ZooKeeper).
    ///
    /// # Cancel safety
    /// The lease may have been renewed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = tenure::connect("memory:").await?;
    /// let left = locks.mutex("nightly").acquire().await?.detach().await?;
    /// // In another process:
    /// let guard = locks.mutex("nightly").attach(left.owner()).await?;
    /// assert_eq!((guard.owner(), Some(guard.token())), (left.owner(), left.token()));
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn attach(&self, owner: OwnerId) -> impl Future<Output = Result<Guard, AcquireError>> + Send + use<> {
        let lock = self.clone();
        async move {
            let engine = lock.shared_engine();
            engine.must_be_ours()?;
            let request = lock.request(None)?;
            let (linger, min_hold) = (request.options.linger, request.options.min_hold);
            let promises = engine.backend.promises();
            if promises.end == EndOfGrant::Session {
                return Err(ConfigError::EndsWithProcess { backend: promises.backend }.into());
            }
            let began = engine.host.now();
            let lease = match attach(engine, request.clone(), owner).await {
                Err(error) => match request.shortened(engine, began, &error) {
                    Some(shorter) => attach(engine, shorter, owner).await?,
                    None => return Err(error),
                },
                Ok(lease) => lease,
            };
            let mut guard = Guard::new(engine.clone(), lease);
            guard.stays_taken(linger, min_hold);
            Ok(guard)
        }
    }
}

/// Renews the lease of this owner and keeps it; its token is the one that the store shows.
///
/// The renewal comes first: it alone proves that the owner holds, and belief counts from before it was sent (H1.1).
/// If the lease is lost between the two requests, the query finds no holder of this owner.
async fn attach(
    engine: &Arc<Engine>,
    request: AcquireRequest<'_>,
    owner: OwnerId,
) -> Result<Lease, AcquireError> {
    let attaching = attach_here(engine, request, owner);
    engine.unless_forked(|| Err(AcquireError::Store(forked())), attaching).await
}

async fn attach_here(
    engine: &Arc<Engine>,
    request: AcquireRequest<'_>,
    owner: OwnerId,
) -> Result<Lease, AcquireError> {
    engine.start_keeper().map_err(|error| AcquireError::NoKeeper(Arc::new(error)))?;
    if engine.has(owner) || engine.is_releasing(owner) || engine.is_shared(request.name, owner) {
        return Err(ConfigError::OwnerInUse { owner }.into());
    }
    let _reservation = engine.reserve(owner);
    let (timing, name) = (request.timing, request.name.clone());
    let mut grant = Grant::new(name, owner, FencingToken::new(0), timing.ttl());
    let sent_at = engine.host.now();
    if engine.renew_one(&grant, timing.request_timeout()).await? == Renewal::Gone {
        return Err(AcquireError::Gone);
    }
    let now = engine.host.now();
    let view = engine.request(now, timing.request_timeout(), || engine.backend.inspect(request.name)).await?;
    let text = owner.to_string();
    let is_ours = |holder: &&HolderView| holder.owner == text;
    // An owner without a token was handed the lock, but has not acquired it.
    let held = view.holders.iter().find(is_ours).and_then(|holder| Some((holder.token?, holder.mode)));
    let Some((token, mode)) = held else { return Err(AcquireError::Gone) };
    grant.token = token;
    let until = timing.believed_until(sent_at, grant.ttl);
    let now = engine.host.now();
    if until.is_over(now) {
        let message = format!("the store answers more slowly than a lease of {:?} lasts", grant.ttl);
        return Err(BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message).into());
    }
    let cap = request.options.max_hold.map(|max_hold| now + max_hold);
    let seen = (engine.host.clone(), engine.telemetry().hold(&grant.name));
    let cell = Arc::new(HoldCell::new(grant, until, timing, cap, seen));
    if engine.keep_new(now, cell.clone()) {
        Ok(Lease::new(cell, mode, engine))
    } else {
        Err(ConfigError::OwnerInUse { owner }.into())
    }
}
