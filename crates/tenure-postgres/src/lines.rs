//! `Lines`: the connection of one handle, and its successor when it ends or is stuck.

use std::sync::{Arc, Mutex};

use tenure_client::locked;
use tenure_core::{BackendError, BoxFuture, ErrorKind, Moment};

use crate::{
    config::{Config, Listen},
    ears::Ears,
    error::{self, Failure},
    line::{Line, Target},
    shared::Shared,
};

/// One handle's way to the server.
pub(crate) struct Lines {
    pub(crate) shared: Arc<Shared>,
    ears: Arc<Ears>,
    config: Arc<Config>,
    current: Mutex<Option<Arc<Line>>>,
    /// The connection that is being made. It outlives the request that began it: where connecting takes longer than a
    /// caller's patience, the next one goes on with it.
    connecting: tokio::sync::Mutex<Option<Connecting>>,
}

/// Since when, and the rest of it.
type Connecting = (Moment, BoxFuture<'static, Result<Line, BackendError>>);

impl Lines {
    /// To the servers of `config`, which is that of the locks or that of the hints.
    pub(crate) fn new(shared: Arc<Shared>, ears: Arc<Ears>, config: Arc<Config>) -> Self {
        Self { shared, ears, config, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// The connection; a new one if there is none, or the one there was is dead or stuck.
    pub(crate) async fn line(&self) -> Result<Arc<Line>, BackendError> {
        if let Some(line) = self.alive() {
            return Ok(line);
        }
        let mut connecting = self.connecting.lock().await;
        if let Some(line) = self.alive() {
            return Ok(line);
        }
        let now = self.shared.host.now();
        let whole = self.config.connect_timeout * u32::try_from(self.config.hosts.len()).unwrap_or(u32::MAX);
        // One that nobody went on with has only its time-out to tell.
        let begun = connecting.take().filter(|(since, _)| since.elapsed(now) < whole);
        let (shared, ears, config) = (self.shared.clone(), self.ears.clone(), self.config.clone());
        let begin = || (now, Box::pin(open(shared, ears, config)) as BoxFuture<'static, _>);
        let (_, opening) = connecting.insert(begun.unwrap_or_else(begin));
        let opened = opening.as_mut().await;
        *connecting = None;
        let line = Arc::new(opened?);
        *locked(&self.current) = Some(line.clone());
        Ok(line)
    }

    /// Hints of this connection reach us.
    fn brings_hints(&self, line: &Line) -> bool {
        let facts = line.facts();
        // A standby knows no LISTEN.
        match self.shared.config.listen {
            Listen::Same => facts.is_direct && !facts.is_standby,
            Listen::Off => false,
            Listen::At(_) => !facts.is_standby,
        }
    }

    /// The connection, listening to everybody whom we hear, and whether it brings their hints.
    pub(crate) async fn listening(&self) -> Result<(Arc<Line>, bool), BackendError> {
        let line = self.line().await?;
        if !self.brings_hints(&line) {
            return Ok((line, false));
        }
        match line.listen(&self.ears).await {
            Ok(()) => Ok((line, true)),
            Err(Failure::Broken(error)) => Err(error),
            // Without hints a waiter asks again after a while, which is no reason not to let it wait.
            Err(failure) => {
                tracing::debug!(?failure, "no hints are heard");
                Ok((line, false))
            }
        }
    }

    /// A connection of one's own, for what must not be mixed with the requests of others.
    pub(crate) async fn apart(&self) -> Result<Line, BackendError> {
        open(self.shared.clone(), self.ears.clone(), self.config.clone()).await
    }

    fn alive(&self) -> Option<Arc<Line>> {
        let mut current = locked(&self.current);
        let line = current.as_ref()?;
        if line.is_alive() && !line.is_stuck() {
            return Some(line.clone());
        }
        if line.is_alive() {
            line.unblock(Target { config: self.config.clone(), place: line.place().clone() });
        }
        line.leave();
        *current = None;
        // Hints may have been missed from here until the next one listens.
        self.ears.ring_all();
        None
    }
}

/// The first server that can be reached, and that takes writes if that is demanded.
async fn open(shared: Arc<Shared>, ears: Arc<Ears>, config: Arc<Config>) -> Result<Line, BackendError> {
    let mut last = None;
    for place in &config.hosts {
        let name = place.to_string();
        let target = Target { config: config.clone(), place: place.clone() };
        let over = shared.host.sleep_until(shared.host.now() + config.connect_timeout);
        let opened = tokio::select! {
            biased;
            opened = Line::open(shared.clone(), ears.clone(), target) => opened,
            () = over => Err(error::refused(&name, ErrorKind::Unavailable, "the PostgreSQL server does not answer")),
        };
        let opened = opened.and_then(|line| {
            if config.must_write {
                line.facts().must_take_writes(&name)?;
            }
            Ok(line)
        });
        match opened {
            Ok(line) => return Ok(line),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("BUG: a configuration names a server"))
}
