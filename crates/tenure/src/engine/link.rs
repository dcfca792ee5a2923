//! `Link`: how the keeper's thread reaches the store.

use tenure_core::{BackendError, BackendHandle};
use tokio::sync::OnceCell;

use crate::engine::spans::Spans;

/// The keeper's own handle to the store, made on its thread when first needed.
pub(crate) struct Link {
    main: BackendHandle,
    own: OnceCell<BackendHandle>,
}

impl Link {
    pub(crate) fn new(main: BackendHandle) -> Self {
        Self { main, own: OnceCell::new() }
    }

    pub(crate) fn spans(&self) -> Spans {
        Spans { backend: self.main.promises().backend }
    }

    pub(crate) async fn backend(&self) -> Result<BackendHandle, BackendError> {
        self.own.get_or_try_init(|| self.main.handle()).await.cloned()
    }
}
