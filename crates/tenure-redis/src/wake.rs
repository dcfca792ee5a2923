//! Hints: a stream that keeps a connection over which Redis pushes them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_client::Hints;
use tenure_core::{Audience, Forward, ProcessId, Wake, Wakes};

use crate::session::Sessions;

/// The stream of hints of one process. Nothing is read ahead but by the driver.
pub(crate) struct Pushed {
    sessions: Arc<Sessions>,
    audience: Audience,
    hints: Hints,
}

/// Pause before a connection is made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);

impl Pushed {
    pub(crate) fn new(sessions: Arc<Sessions>, process: ProcessId, audience: Audience) -> Self {
        let hints = sessions.router().listen(process, audience);
        Self { sessions, audience, hints }
    }
}

/// Keeps a connection that hears what is pushed; never ends.
async fn listen(sessions: &Sessions, audience: Audience) {
    let host = sessions.host();
    loop {
        match sessions.listening().await {
            Ok(session) => {
                session.ended().await;
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
impl Wakes for Pushed {
    async fn next(&mut self) -> Wake {
        tokio::select! {
            biased;
            wake = self.hints.next() => wake,
            () = listen(&self.sessions, self.audience) => unreachable!("BUG: listening never ends"),
        }
    }

    fn forward(&mut self, to: Forward) {
        self.hints.forward(to);
    }
}
