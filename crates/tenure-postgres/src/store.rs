//! `Store`: what one handle knows of the store: its connections and its hints.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_client::HintRouter;
use tenure_core::{BackendError, Moment, locked};

use crate::{config::Listen, session::Session, sessions::Sessions, shared::Shared};

/// What one handle knows of the store.
pub(crate) struct Store {
    pub(crate) sessions: Sessions,
    pub(crate) router: Arc<HintRouter>,
    /// Where hints come from, if not over the same connection.
    hints: Option<Sessions>,
    /// When that could not be listened to last.
    deaf_since: Mutex<Option<Moment>>,
    /// Hints reached us when somebody waited last.
    hears: AtomicBool,
}

impl Store {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let router = Arc::new(shared.hints.beside());
        let hints = match &shared.config.listen {
            Listen::At(config) => {
                Some(Sessions::new(shared.clone(), router.clone(), Arc::new((**config).clone())))
            }
            Listen::Same | Listen::Off => None,
        };
        let sessions = Sessions::new(shared.clone(), router.clone(), shared.config.clone());
        Self { sessions, router, hints, deaf_since: Mutex::default(), hears: AtomicBool::new(true) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.sessions.shared
    }

    /// Where hints come from, unless they are off.
    pub(crate) fn hint_sessions(&self) -> Option<&Sessions> {
        let is_off = matches!(self.shared().config.listen, Listen::Off);
        (!is_off).then(|| self.hints.as_ref().unwrap_or(&self.sessions))
    }

    /// The connection, after making sure that hints are heard where they can be (hazard 31).
    pub(crate) async fn listening(&self) -> Result<Arc<Session>, BackendError> {
        let Some(hints) = &self.hints else {
            let (session, is_heard) = self.sessions.listening().await?;
            self.hears.store(is_heard, Ordering::Relaxed);
            return Ok(session);
        };
        let host = &self.shared().host;
        let is_deaf = locked(&self.deaf_since).is_some_and(|since| since.elapsed(host.now()) < DEAF);
        if !is_deaf {
            let over = host.sleep_until(host.now() + DEAF / 10);
            let is_heard = tokio::select! {
                biased;
                heard = hints.listening() => heard.is_ok_and(|(_, is_heard)| is_heard),
                () = over => false,
            };
            *locked(&self.deaf_since) = (!is_heard).then(|| host.now());
            self.hears.store(is_heard, Ordering::Relaxed);
        }
        self.sessions.session().await
    }

    /// Whether a hint would reach us.
    pub(crate) fn hears_hints(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }
}

/// How long claims do not wait for hints that could not be listened to.
const DEAF: Duration = Duration::from_secs(5);
