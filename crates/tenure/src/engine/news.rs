//! `News`: word that there is something to see at a lock.

use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::{
    Audience, BackendError, BackendHandle, BoxFuture, LockName, Minting, OwnerId, Wake, Wakes,
};

use crate::engine::{Engine, QUESTION, request::request};

/// How long telling may take: 1 s. Who is not told looks all the same.
const TELLING: Duration = Duration::from_secs(1);

/// What those who look on at one lock are told. A hint only: it may be lost, late or doubled.
///
/// Over a connection of its own, which ends with this: those of waiters and holders hear nothing of it.
pub(crate) struct News {
    hints: Box<dyn Wakes>,
    address: OwnerId,
    _handle: BackendHandle,
}

impl News {
    /// Waits until there is something to see; one look sees all that was told by then.
    pub(crate) async fn next(&mut self) {
        loop {
            let told = self.hints.next().await;
            if told == Wake::All || told == Wake::Owner(self.address) {
                while self.hints.next().now_or_never().is_some() {}
                return;
            }
        }
    }
}

impl Engine {
    /// What is told from now on of this lock; nothing on a store that brings no hints from one client to another.
    pub(crate) async fn news(&self, name: &LockName) -> Result<Option<News>, BackendError> {
        if self.backend.promises().minting == Minting::Place {
            return Ok(None);
        }
        let handle = self.request(self.host.now(), QUESTION, || self.backend.handle()).await?;
        let address = OwnerId::of_observers(name);
        let hints = handle.wakes(address.process(), Audience::Observers);
        Ok(Some(News { hints, address, _handle: handle }))
    }

    /// Tells those who look on.
    pub(crate) fn telling(&self, name: &LockName) -> BoxFuture<'static, ()> {
        let (backend, host, name) = (self.backend.clone(), self.host.clone(), name.clone());
        Box::pin(async move {
            let tell = || backend.tell(&name, Audience::Observers, OwnerId::of_observers(&name));
            if let Err(error) = request(&*host, host.now(), TELLING, tell).await {
                tracing::debug!(lock = %name, %error, "those who look on were not told");
            }
        })
    }
}
