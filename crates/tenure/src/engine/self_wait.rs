//! `SelfWait`: notices that what is waited for is held by this very process.

use std::time::Duration;

use tenure_core::{HolderView, LockName, Moment};

/// A wait for ourselves that is worth a word: most end sooner, when another task of the process has done its work.
const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// What one waiter has seen of holders that are its own process.
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
