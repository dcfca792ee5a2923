//! Hints: the streams to which goes what the server pushes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{Audience, ProcessId, Wake, Wakes};

use crate::store::Store;

/// The stream of hints of one process.
pub(crate) struct Hints {
    store: Arc<Store>,
    hints: tenure_client::Hints,
}

/// Pause after a connection that could not be made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);

impl Hints {
    pub(crate) fn new(store: Arc<Store>, process: ProcessId, audience: Audience) -> Self {
        let hints = store.router.listen(process, audience);
        Self { store, hints }
    }
}

/// Keeps a connection that brings hints, where there can be one; never ends.
async fn listen(store: &Store) {
    let Some(sessions) = store.hint_sessions() else { return std::future::pending().await };
    let host = &store.shared().host;
    loop {
        match sessions.listening().await {
            // One that brings none ends as well, and the next may bring them.
            Ok((session, _)) => {
                let fate = session.fate();
                drop(session);
                // Whoever makes the next one rings for what may have been missed.
                fate.end.wait().await;
            }
            Err(error) => {
                tracing::debug!(%error, "no hints are heard");
                host.sleep_until(host.now() + RECONNECT).await;
            }
        }
    }
}

#[async_trait]
impl Wakes for Hints {
    async fn next(&mut self) -> Wake {
        tokio::select! {
            biased;
            wake = self.hints.next() => wake,
            () = listen(&self.store) => unreachable!("BUG: listening never ends"),
        }
    }
}
