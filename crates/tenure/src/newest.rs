//! The newest wins: of the clients that acquire a lock so, only the newest goes on waiting. It may ask the holder to stop.
//!
//! A client marks the label of its place in the queue. So every store has the mark, and an older version ignores it. The order of
//! the queue decides which client is newer, so two clients never give way to each other. No rule of the lock depends on a mark: the
//! waiter itself leaves the queue, and the holder itself releases (L1).

use std::{future::pending, sync::Arc, time::Duration};

use tenure_core::{BackendError, LockName, LockView, Minting, Moment, Timing, WaiterView};

use crate::{
    engine::{
        Engine, QUESTION,
        acquire::{self, AcquireRequest},
        hold::HoldCell,
        wishes::{AskedAs, Listening},
    },
    error::AcquireError,
    options::Newest,
    pace::PollPace,
};

/// How often a holder polls the store where no hint arrives, and how long the last look of a waiter takes at most: 1 s.
const LOOK: Duration = Duration::from_secs(1);
/// How rarely a holder polls the store where hints arrive: a hint may be lost.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Acquires the lock, unless a newer client waits for it too.
pub(crate) async fn acquire(
    engine: &Engine,
    request: AcquireRequest<'_>,
    newest: Newest,
) -> Result<(Arc<HoldCell>, AskedAs), AcquireError> {
    let (name, asked_as) = (request.name, AskedAs::default());
    let may_wait = !request.asks_once();
    let request = AcquireRequest { asked_as: Some(&asked_as), ..request };
    let overtaken = async {
        match may_wait {
            true => passed(&asked_as, (engine, name), newest).await,
            false => pending().await,
        }
    };
    let cell = tokio::select! {
        biased;
        acquired = acquire::acquire(engine, request) => acquired?,
        newer = overtaken => return Err(AcquireError::GaveWay { by: Box::new(newer) }),
    };
    Ok((cell, asked_as))
}

/// Waits until a newer client waits behind this one. Reads the queue when the claim has a new place, and every 2 s.
async fn passed(asked_as: &AskedAs, (engine, name): (&Engine, &LockName), newest: Newest) -> WaiterView {
    let mut looked: Option<(Option<String>, Moment)> = None;
    loop {
        let asks = asked_as.answered().await;
        if let Some((_, at)) = looked.take_if(|(before, _)| *before == asks) {
            engine.host.sleep_until(at + Timing::RETRY_MAX).await;
        }
        let at = engine.host.now();
        let view = look(engine, name, QUESTION).await;
        if let Some(newer) = view.and_then(|view| asked_as.newer_behind(asks.as_deref(), &view)) {
            return newer;
        }
        // Each time, because the hint may be lost.
        if newest == Newest::Replaces {
            engine.telling(name).await;
        }
        looked = Some((asks, at));
    }
}

/// Reads the queue once more after the grant: a newer client may have come since.
pub(crate) async fn newer_at_last(
    asked_as: &AskedAs,
    (engine, name): (&Engine, &LockName),
    limit: Duration,
) -> Option<WaiterView> {
    if limit.is_zero() || !asked_as.has_waited() {
        return None;
    }
    asked_as.newer_after_grant(&look(engine, name, limit.min(LOOK)).await?)
}

/// Waits until a waiter asks the holder of this lease to stop.
pub(crate) async fn asked_to_stop(engine: &Engine, cell: &HoldCell) -> WaiterView {
    let begins = || Listening { pace: PollPace::new(LOOK), news: None };
    match cell.wishes().listening(begins).try_lock() {
        Ok(mut listening) => listen(&mut listening, engine, cell).await,
        // A caller that is not polled delays no other.
        Err(_) => listen(&mut begins(), engine, cell).await,
    }
}

async fn listen(Listening { pace, news }: &mut Listening, engine: &Engine, cell: &HoldCell) -> WaiterView {
    let name = &cell.grant().name;
    loop {
        let hint = async {
            match news {
                Some(news) => news.next().await,
                None => pending().await,
            }
        };
        let view = pace.ask(&*engine.host, hint, look(engine, name, QUESTION)).await;
        if let Some(waiter) = view.and_then(|view| cell.wishes().asks(&view)) {
            return waiter;
        }
        if news.is_none() && engine.backend.promises().minting == Minting::Entry {
            *news = engine.news(name).await.ok().flatten();
            if news.is_some() {
                *pace = PollPace::new((cell.timing().ttl() / 3).clamp(LOOK, LOOK_MAX));
            }
        }
    }
}

async fn look(engine: &Engine, name: &LockName, limit: Duration) -> Option<LockView> {
    let view = engine.request(engine.host.now(), limit, || engine.backend.inspect(name)).await;
    let told = |error: &BackendError| match error.kind().is_transient() {
        true => tracing::debug!(lock = %name, %error, "cannot look for a newer client"),
        false => tracing::warn!(lock = %name, %error, "cannot look for a newer client"),
    };
    view.inspect_err(told).ok()
}
