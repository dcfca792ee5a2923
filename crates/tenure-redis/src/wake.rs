//! Hints: the streams to which goes what Redis pushes to this process.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{Audience, ProcessId, Ringing, Wake, Wakes};

use crate::session::Sessions;

/// The stream of hints of one process. Nothing is read ahead but by the driver.
pub(crate) struct Hints {
    sessions: Arc<Sessions>,
    ringing: Ringing,
}

/// Pause after a connection that could not be made only to listen.
const RECONNECT: Duration = Duration::from_millis(500);

impl Hints {
    pub(crate) fn new(sessions: Arc<Sessions>, process: ProcessId, audience: Audience) -> Self {
        let ringing = sessions.ears().listen(process, audience);
        Self { sessions, ringing }
    }
}

/// Keeps a connection that hears what is pushed; ends only with it.
async fn listen(sessions: &Sessions) {
    let host = sessions.host();
    loop {
        match sessions.listening().await {
            Ok(session) => session.hear(sessions.ears()).await,
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
        let ears = self.sessions.ears();
        let host = self.sessions.host();
        let listen = listen(&self.sessions);
        tokio::pin!(listen);
        loop {
            let later = ears.next_later();
            tokio::select! {
                biased;
                wake = self.ringing.next() => return wake,
                () = ears.later_added.notified() => {}
                () = async { match later { Some(due) => host.sleep_until(due).await, None => std::future::pending().await } } => {
                    ears.ring_later();
                }
                () = &mut listen => unreachable!("BUG: listening never ends"),
            }
        }
    }
}
