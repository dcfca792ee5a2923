//! Hints: the streams to which goes what the server pushes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{Audience, Forward, ProcessId, Wake, Wakes};

use crate::store::Store;

/// The stream of hints of one process.
pub(crate) struct Hints {
    store: Arc<Store>,
    audience: Audience,
    hints: tenure_client::Hints,
}

/// Pause before a connection is made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);

impl Hints {
    pub(crate) fn new(store: Arc<Store>, process: ProcessId, audience: Audience) -> Self {
        let hints = store.router.listen(process, audience);
        Self { store, audience, hints }
    }
}

/// Keeps a connection that brings hints, where there can be one; never ends.
async fn listen(store: &Store, audience: Audience) {
    let Some(sessions) = store.hint_sessions() else { return std::future::pending().await };
    let host = &store.shared().host;
    loop {
        match sessions.listening().await {
            // One that brings none ends as well, and the next may bring them.
            Ok((session, _)) => {
                let fate = session.fate();
                drop(session);
                fate.end.wait().await;
                // A waiter, which was told of the end, makes the next one in its own runtime.
                if audience != Audience::Waiters {
                    continue;
                }
            }
            Err(error) => tracing::debug!(%error, "no hints are heard"),
        }
        host.sleep_until(host.now() + RECONNECT).await;
    }
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        tokio::select! {
            biased;
            wake = self.hints.next() => wake,
            () = listen(&self.store, self.audience) => unreachable!("BUG: listening never ends"),
        }
    }

    fn forward(&mut self, to: Forward) {
        self.hints.forward(to);
    }
}
