//! `Store`: what one handle knows of the store: its connections and its ears.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tenure_client::locked;
use tenure_core::{BackendError, Moment};

use crate::{config::Listen, ears::Ears, line::Line, lines::Lines, shared::Shared};

/// What one handle knows of the store.
pub(crate) struct Store {
    pub(crate) lines: Lines,
    pub(crate) ears: Arc<Ears>,
    /// Where hints come from, if not over the same connection.
    hints: Option<Lines>,
    /// When that could not be listened to last.
    deaf_since: Mutex<Option<Moment>>,
    /// Hints reached us when somebody waited last.
    hears: AtomicBool,
}

impl Store {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let ears = Arc::new(Ears::new(shared.bells.beside()));
        let hints = match &shared.config.listen {
            Listen::At(config) => {
                Some(Lines::new(shared.clone(), ears.clone(), Arc::new((**config).clone())))
            }
            Listen::Same | Listen::Off => None,
        };
        let lines = Lines::new(shared.clone(), ears.clone(), shared.config.clone());
        Self { lines, ears, hints, deaf_since: Mutex::default(), hears: AtomicBool::new(true) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.lines.shared
    }

    /// Where hints come from, unless they are off.
    pub(crate) fn hint_lines(&self) -> Option<&Lines> {
        let is_off = matches!(self.shared().config.listen, Listen::Off);
        (!is_off).then(|| self.hints.as_ref().unwrap_or(&self.lines))
    }

    /// The connection, after making sure that hints are heard where they can be (hazard 31).
    pub(crate) async fn listening(&self) -> Result<Arc<Line>, BackendError> {
        let Some(hints) = &self.hints else {
            let (line, is_heard) = self.lines.listening().await?;
            self.hears.store(is_heard, Ordering::Relaxed);
            return Ok(line);
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
        self.lines.line().await
    }

    /// Whether a hint would reach us.
    pub(crate) fn hears_hints(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }
}

/// How long claims do not wait for hints that could not be listened to.
const DEAF: Duration = Duration::from_secs(5);
