//! `Sessions`: one session for each ttl, begun when it is first needed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tenure_core::{BackendError, Bells, Host, OwnerId, Timing};
use tokio::sync::watch;

use crate::{
    config::Config,
    error, life,
    session::{Birth, Session, locked},
};

/// The sessions of one [`ZooKeeper`](crate::ZooKeeper). All its handles share them: a session is what holds the locks.
pub(crate) struct Sessions {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) bells: Bells,
    slots: Mutex<HashMap<Duration, Slot>>,
}

/// A session that was begun; `None` until it is known what became of it. Its thread keeps it.
type Slot = watch::Receiver<Option<Result<Weak<Session>, BackendError>>>;

impl Sessions {
    pub(crate) fn new(config: Config, host: Arc<dyn Host>) -> Self {
        Self { config: Arc::new(config), host, bells: Bells::default(), slots: Mutex::default() }
    }

    /// The one in which leases of this ttl live.
    ///
    /// # Cancel safety
    /// It is begun all the same, and found by whoever asks next.
    pub(crate) async fn of(&self, ttl: Duration) -> Result<Arc<Session>, BackendError> {
        let session = self.begun(ttl).await?;
        session.vouches_for(ttl)?;
        Ok(session)
    }

    /// Any, for those who only look.
    pub(crate) async fn any(&self) -> Result<Arc<Session>, BackendError> {
        match self.living().into_iter().next() {
            Some(session) => Ok(session),
            None => self.begun(Timing::DEFAULT_TTL).await,
        }
    }

    /// The one that has this owner's node.
    pub(crate) fn with(&self, owner: OwnerId) -> Option<Arc<Session>> {
        self.living().into_iter().find(|session| session.with_entry(owner, |_| ()).is_some())
    }

    /// Those that are there now.
    pub(crate) fn living(&self) -> Vec<Arc<Session>> {
        let slots = locked(&self.slots);
        let begun = slots.values().filter_map(|slot| slot.borrow().as_ref()?.as_ref().ok()?.upgrade());
        begun.filter(|session| !session.is_over()).collect()
    }

    async fn begun(&self, ttl: Duration) -> Result<Arc<Session>, BackendError> {
        let mut slot = self.slot(ttl);
        let known = slot.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        // Without a thread for it there is nobody who could say more.
        let over = || error::over(&self.config.place_name());
        known.unwrap_or_else(|| Err(over()))?.upgrade().ok_or_else(over)
    }

    fn slot(&self, ttl: Duration) -> Slot {
        let mut slots = locked(&self.slots);
        slots.retain(|_, slot| is_of_use(slot));
        slots.entry(ttl).or_insert_with(|| self.start(ttl)).clone()
    }

    fn start(&self, ttl: Duration) -> Slot {
        let (result, slot) = watch::channel(None);
        let (config, host, bells) = (self.config.clone(), self.host.clone(), self.bells.clone());
        let start = move || -> tenure_core::BoxFuture<'static, ()> {
            Box::pin(async move {
                let opened = host.now();
                match life::begin(&config, ttl).await {
                    Ok(client) => {
                        let (session, orders) = Session::new(Birth { client, config, host, bells, opened });
                        if result.send(Some(Ok(Arc::downgrade(&session)))).is_err() {
                            session.end();
                        }
                        life::live(session, orders).await;
                    }
                    Err(error) => {
                        let _ = result.send(Some(Err(error::opening(&config.place_name(), error))));
                    }
                }
            })
        };
        self.host.spawn_apart("tenure-zookeeper", Box::new(start));
        slot
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for session in self.living() {
            session.end();
        }
    }
}

/// It is being begun, or lives.
fn is_of_use(slot: &Slot) -> bool {
    match slot.borrow().as_ref() {
        None => slot.has_changed().is_ok(),
        Some(Ok(session)) => session.upgrade().is_some_and(|session| !session.is_over()),
        Some(Err(_)) => false,
    }
}
