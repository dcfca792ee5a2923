//! `Keeper`: the thread on which leases are renewed and dropped ones released.

use std::{io, sync::Arc};

use tenure_core::{BackendHandle, Host, ProcessId};

use crate::engine::{link::Link, reaper::Reaper, roster::Roster, waiters::Waiters, watchdog};

/// What is to be kept and to be released, and the way to the thread that does it, which ends when this is dropped and nothing
/// is left to do.
pub(crate) struct Keeper {
    pid: u32,
    roster: Arc<Roster>,
    reaper: Arc<Reaper>,
}

impl Keeper {
    /// Of the process with this id.
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, roster: Arc::default(), reaper: Arc::default() }
    }

    /// Starts the thread if there is none. Where a panic ended it, another one takes over the leases that it kept.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(crate) fn start(
        &self,
        main: &BackendHandle,
        host: &Arc<dyn Host>,
        (process, waiters): (ProcessId, &Arc<Waiters>),
    ) -> io::Result<()> {
        self.reaper.ensure(|life| {
            let (keeps, main, host_there) =
                ((self.roster.clone(), self.reaper.clone()), main.clone(), host.clone());
            let waiters = waiters.clone();
            let start = move || -> tenure_core::BoxFuture<'static, ()> {
                Box::pin(async move {
                    let (_life, reaper) = (life, keeps.1.clone());
                    let link = Arc::new(Link::new(main));
                    let renewing = watchdog::run(keeps, link.clone(), host_there.clone(), process);
                    let releasing = reaper.run(&link, &*host_there);
                    tokio::select! {
                        biased;
                        _ = futures_util::future::join(renewing, releasing) => {}
                        () = waiters.listen(&*host_there) => {}
                    }
                })
            };
            host.spawn_apart("tenure-keeper", Box::new(start))
        })
    }

    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Every guard holds the engine, so only leases that are kept idle are left. Those of the parent are not a child's.
        if self.pid == std::process::id() {
            self.roster.close();
        }
    }
}
