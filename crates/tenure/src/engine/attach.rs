//! Goes on with a lease that another process took: one renewal, and one look at what is held.

use std::sync::Arc;

use tenure_core::{BackendError, ErrorKind, FencingToken, Grant, HolderView, Outcome, OwnerId, Renewal};

use crate::{
    engine::{Engine, acquire::Request, cell::HoldCell, fork::forked},
    error::AttachError,
    lease::Lease,
};

/// Renews the lease of this owner and has it kept; its token is the one that the store shows.
///
/// The renewal comes first: it alone says that the owner holds, and belief counts from before it was sent (H1.1). If the
/// lease is lost between the two, the look finds nobody of this owner.
pub(crate) async fn attach(
    engine: &Arc<Engine>,
    request: Request<'_>,
    owner: OwnerId,
) -> Result<Lease, AttachError> {
    let attaching = attach_here(engine, request, owner);
    engine.unless_forked(|| Err(AttachError::Backend(forked())), attaching).await
}

async fn attach_here(
    engine: &Arc<Engine>,
    request: Request<'_>,
    owner: OwnerId,
) -> Result<Lease, AttachError> {
    engine.start_keeper().map_err(|error| AttachError::NoKeeper(Arc::new(error)))?;
    if engine.has(owner) || engine.is_shared(request.name, owner) {
        return Err(AttachError::HeldHere);
    }
    let _expected = engine.expect(owner);
    let (timing, name) = (request.timing, request.name.clone());
    let mut grant = Grant { name, owner, token: FencingToken::new(0), block: 1, ttl: timing.ttl() };
    let sent_at = engine.host.now();
    if engine.renew_one(&grant, timing.request_timeout()).await? == Renewal::Gone {
        return Err(AttachError::Gone);
    }
    let now = engine.host.now();
    let view = engine.request(now, timing.request_timeout(), || engine.backend.inspect(request.name)).await?;
    let text = owner.to_string();
    let is_ours = |holder: &&HolderView| holder.owner == text;
    // Who has no token was handed the lock, and has not entered.
    let held = view.holders.iter().find(is_ours).and_then(|holder| Some((holder.token?, holder.mode)));
    let Some((token, mode)) = held else { return Err(AttachError::Gone) };
    grant.token = token;
    let until = timing.believed_until(sent_at, grant.ttl);
    let now = engine.host.now();
    if until.is_over(now) {
        let message = format!("the store answers more slowly than a lease of {:?} lasts", grant.ttl);
        return Err(BackendError::new(ErrorKind::TimedOut, Outcome::Unknown, message).into());
    }
    let cap = request.options.max_hold.map(|max_hold| now + max_hold);
    let cell = Arc::new(HoldCell::new(grant, until, timing, cap, engine.host.clone()));
    if engine.keep_new(now, cell.clone()) {
        Ok(Lease::new(cell, mode, engine))
    } else {
        Err(AttachError::HeldHere)
    }
}
