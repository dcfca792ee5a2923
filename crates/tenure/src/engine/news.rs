//! `News`: word that there is something to see at a lock.

use tenure_core::{Audience, LockName, OwnerId, Wake, Wakes};

use crate::engine::{Engine, QUESTION, request::request};

/// What those who look on at one lock are told. A hint only: it may be lost, late or doubled.
pub(crate) struct News {
    hints: Box<dyn Wakes>,
    address: OwnerId,
}

impl News {
    /// Waits until there is something to see.
    ///
    /// # Cancel safety
    /// Nothing that was told is lost.
    pub(crate) async fn next(&mut self) {
        loop {
            match self.hints.next().await {
                Wake::Owner(told) if told != self.address => {}
                Wake::Owner(_) | Wake::All => return,
            }
        }
    }
}

impl Engine {
    /// What is told from now on of this lock.
    pub(crate) fn news(&self, name: &LockName) -> News {
        let address = OwnerId::of_observers(name);
        News { hints: self.backend.wakes(address.process(), Audience::Observers), address }
    }

    /// Tells those who look on, in the background: nobody waits for it, and who is not told looks all the same.
    pub(crate) fn tell_observers(&self, name: &LockName) {
        let (backend, host, name) = (self.backend.clone(), self.host.clone(), name.clone());
        self.host.spawn(Box::pin(async move {
            let tell = || backend.tell(&name, Audience::Observers, OwnerId::of_observers(&name));
            if let Err(error) = request(&*host, host.now(), QUESTION, tell).await {
                tracing::debug!(lock = %name, %error, "those who look on were not told");
            }
        }));
    }
}
