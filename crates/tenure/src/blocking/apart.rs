//! `Apart`: a runtime for programs that have none.

use std::{io, sync::mpsc};

use tenure_core::Host;
use tokio::{runtime::Handle, sync::oneshot};

use crate::host::TokioHost;

/// A runtime on a thread of its own, which ends with this. Connections live there, also while nobody calls.
pub(super) struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Not tokio's own workers: where no thread can be started, those panic.
    pub(super) fn start() -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let start = move || -> tenure_core::BoxFuture<'static, ()> {
            let _ = tell.send(Handle::current());
            Box::pin(async move {
                let _ = stopped.await;
            })
        };
        TokioHost.spawn_apart("tenure-blocking", Box::new(start))?;
        let handle = told.recv().map_err(io::Error::other)?;
        Ok(Self { handle, _stop: stop })
    }

    pub(super) fn block_on<A>(&self, work: impl Future<Output = A>) -> A {
        self.handle.block_on(work)
    }
}
