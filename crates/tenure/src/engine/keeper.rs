//! `Keeper`: the thread on which leases are renewed and dropped ones released.

use std::{io, sync::Arc};

use tenure_core::{BackendHandle, Host, LockName, Moment, OwnerId, ProcessId};

use crate::engine::{link::Link, reaper, reaper::Reaper, roster::Roster, watchdog};

/// The way to the thread; it ends when this is dropped and nothing is left to do.
pub(crate) struct Keeper {
    roster: Arc<Roster>,
    reaper: Reaper,
}

impl Keeper {
    /// # Errors
    /// If there is no thread for it.
    pub(crate) fn start(main: BackendHandle, host: Arc<dyn Host>, process: ProcessId) -> io::Result<Self> {
        let roster = Arc::<Roster>::default();
        let (reaper, orders) = reaper::channel();
        let (watched, host_there) = (roster.clone(), host.clone());
        let start = move || -> tenure_core::BoxFuture<'static, ()> {
            Box::pin(async move {
                let link = Arc::new(Link::new(main));
                let renewing = watchdog::run(watched, link.clone(), host_there.clone(), process);
                let releasing = reaper::run(orders, link, host_there);
                futures_util::future::join(renewing, releasing).await;
            })
        };
        host.spawn_apart("tenure-keeper", Box::new(start))?;
        Ok(Self { roster, reaper })
    }

    /// Whether its thread has ended although somebody needs it: a panic on it.
    pub(crate) fn is_dead(&self) -> bool {
        self.reaper.is_dead()
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    pub(crate) fn reap(&self, name: LockName, owner: OwnerId, until: Moment) {
        self.reaper.order(name, owner, until);
    }

    pub(crate) async fn drained(&self) {
        self.reaper.drained().await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Every guard holds the engine, so the roster is empty by now.
        self.roster.close();
    }
}
