//! `Sessions`: the connection of one handle, and its successor when it ends or is stuck.

use std::sync::Arc;

use tenure_client::{Connections, HintRouter};
use tenure_core::{BackendError, ErrorKind};

use crate::{
    config::{Config, Listen},
    error::{self, Failure},
    session::{Session, Target},
    shared::Shared,
};

/// One handle's way to the server.
pub(crate) struct Sessions {
    pub(crate) shared: Arc<Shared>,
    birth: Birth,
    connections: Connections<Session>,
}

impl Sessions {
    /// To the servers of `config`, which is that of the locks or that of the hints.
    pub(crate) fn new(shared: Arc<Shared>, router: Arc<HintRouter>, config: Arc<Config>) -> Self {
        let birth = Birth(shared.clone(), router.clone(), config);
        let (host, one) = (shared.host.clone(), birth.clone());
        let connections = Connections::new(host, move || Box::pin(one.clone().open()));
        Self { shared, birth, connections }
    }

    /// The connection; a new one if there is none, or the one there was is dead or stuck.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, BackendError> {
        self.connections.get().await
    }

    /// Hints of this connection reach us.
    fn brings_hints(&self, session: &Session) -> bool {
        let facts = session.facts();
        // A standby knows no LISTEN.
        match self.shared.config.listen {
            Listen::Same => facts.is_direct && !facts.is_standby,
            Listen::Off => false,
            Listen::At(_) => !facts.is_standby,
        }
    }

    /// The connection, listening to everybody whom we hear, and whether it brings their hints.
    pub(crate) async fn listening(&self) -> Result<(Arc<Session>, bool), BackendError> {
        let session = self.session().await?;
        if !self.brings_hints(&session) {
            return Ok((session, false));
        }
        match session.listen().await {
            Ok(()) => Ok((session, true)),
            Err(Failure::Broken(error)) => Err(error),
            // Without hints a waiter asks again after a while, which is no reason not to let it wait.
            Err(failure) => {
                tracing::debug!(?failure, "no hints are heard");
                Ok((session, false))
            }
        }
    }

    /// A connection of one's own, for what must not be mixed with the requests of others.
    pub(crate) async fn apart(&self) -> Result<Session, BackendError> {
        self.birth.clone().open().await
    }
}

/// What a connection is made with.
#[derive(Clone)]
struct Birth(Arc<Shared>, Arc<HintRouter>, Arc<Config>);

impl Birth {
    /// The first server that can be reached, and that takes writes if that is demanded.
    async fn open(self) -> Result<Session, BackendError> {
        let Self(shared, router, config) = self;
        let mut last = None;
        for place in &config.hosts {
            let name = place.to_string();
            let target = Target { config: config.clone(), place: place.clone() };
            let over = shared.host.sleep_until(shared.host.now() + config.connect_timeout);
            let opened = tokio::select! {
                biased;
                opened = Session::open(shared.clone(), router.clone(), target) => opened,
                () = over => Err(error::refused(&name, ErrorKind::Unavailable, "the PostgreSQL server does not answer")),
            };
            let opened = opened.and_then(|session| {
                if config.must_write {
                    session.facts().must_take_writes(&name)?;
                }
                Ok(session)
            });
            match opened {
                Ok(session) => return Ok(session),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("BUG: a configuration names a server"))
    }
}
