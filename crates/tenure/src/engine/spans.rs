//! `Spans`: what a trace shows of each acquisition, hold and renewal. All have the same fields.

use tenure_core::{Grant, LockName};
use tracing::{Span, debug_span, field::Empty};

/// Makes the spans of one store.
#[derive(Clone, Copy)]
pub(crate) struct Spans {
    pub(crate) backend: &'static str,
}

impl Spans {
    /// From the first request to the answer; its owner and its token are recorded when they are known.
    pub(crate) fn acquire(self, lock: &LockName) -> Span {
        debug_span!("acquire", %lock, owner = Empty, token = Empty, backend = self.backend)
    }

    /// For as long as there is a guard.
    pub(crate) fn hold(self, grant: &Grant) -> Span {
        let Grant { name, owner, token, .. } = grant;
        debug_span!("hold", lock = %name, %owner, %token, backend = self.backend)
    }

    /// One renewal of one lease. Has no parent: it happens on a thread of its own, and may outlive the guard.
    pub(crate) fn renewal(self, grant: &Grant) -> Span {
        let Grant { name, owner, token, .. } = grant;
        debug_span!(parent: None, "renewal", lock = %name, %owner, %token, backend = self.backend)
    }
}
