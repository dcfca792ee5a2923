//! What is said of acquisitions and holds in traces and in the log.

use std::time::Duration;

use tenure_core::{Grant, HolderView, LockName, Moment};
use tracing::{Span, debug_span, field::Empty};

/// What a trace shows of each acquisition, hold and renewal on one store. All have the same fields.
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

/// What one waiter has seen of holders that are its own process: notices that it waits for itself.
#[derive(Default)]
pub(crate) struct SelfWait {
    /// Which owner, and since when.
    seen: Option<(String, Moment)>,
    told: bool,
}

impl SelfWait {
    /// The store has said who holds the lock. Warns once, when it has been the same owner of this process for a second.
    pub(crate) fn on_holder(&mut self, now: Moment, lock: &LockName, holder: Option<&HolderView>) {
        let Some(holder) = holder.filter(|holder| holder.is_this_process) else {
            self.seen = None;
            return;
        };
        match &self.seen {
            Some((owner, since)) if *owner == holder.owner => {
                if since.elapsed(now) >= WORTH_A_WORD && !self.told {
                    self.told = true;
                    tracing::warn!(
                        %lock,
                        owner = holder.owner,
                        "held by this process, by another task or by the one that waits; one that waits for itself waits for ever: \
                         pass the `Lease` on instead"
                    );
                }
            }
            _ => self.seen = Some((holder.owner.clone(), now)),
        }
    }
}

/// A wait for ourselves that is worth a word: most end sooner, when another task of the process has done its work.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
