//! `News`: the hints for those who observe a lock.

use futures_util::FutureExt;
use tenure_core::{BackendHandle, OwnerId, WakeEvent, WakeStream};

/// The hints for observers of one lock. A hint may be lost, late or doubled.
///
/// Uses a separate connection, which closes with it: those of waiters and holders do not receive these hints.
pub(crate) struct News {
    hints: Box<dyn WakeStream>,
    address: OwnerId,
    _handle: BackendHandle,
}

impl News {
    pub(crate) fn new(hints: Box<dyn WakeStream>, address: OwnerId, handle: BackendHandle) -> Self {
        Self { hints, address, _handle: handle }
    }

    /// Waits for a hint. One poll after it covers all earlier hints.
    pub(crate) async fn next(&mut self) {
        loop {
            let told = self.hints.next().await;
            if told == WakeEvent::All || told == WakeEvent::Owner(self.address) {
                while self.hints.next().now_or_never().is_some() {}
                return;
            }
        }
    }
}
