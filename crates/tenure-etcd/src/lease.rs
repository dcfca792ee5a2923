//! Leases, and why a request that is carried out twice, or late, ends nobody's hold.
//!
//! A member that hangs may carry out what it was asked when everybody has gone on without it: any request may have a
//! copy
//! that comes late. Three rules make every such copy harmless (L1, hazard 58):
//!
//! 1. **The id of a lease is drawn by chance for one attempt**, and asked for before any key is written on it. A key
//!    goes from
//!    lease to lease, as its owner waits, enters and asks for longer, and never back to one that it has left.
//! 2. **A lease is ended only when its key has left it or its owner leaves**, and whoever asked for its end writes no
//!    key on it
//!    any more. So a late end meets a lease that carries nothing.
//! 3. **A write names the state that it starts from**: that there is no key, or the revision at which the key was last
//!    written. So a late write comes true only if nothing has happened to the key since it was read; then it is no
//!    copy.
//!
//! What is left of late copies: a lease that is asked for twice may come to be after its end, and bars nobody without a
//! key. Both
//! this and the first write must come late, in this order, for a place that nobody wants; it ends with that lease. A
//! lease
//! that is kept alive late lasts longer by no more than its length.

use std::time::Duration;

use tenure_core::{BackendError, OwnerId};

use crate::{backend::Etcd, error};

/// The purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A place in the queue, kept alive by repeating the claim: a dead waiter must not block the places behind it for a
    /// long ttl.
    Place,
    /// The ttl: to hold, or to wait where that is short.
    Ttl,
}

impl Etcd {
    /// A new lease for this owner, which lasts so long from now: granted through the quorum, it is counted by whoever
    /// is the
    /// leader, and a later leader begins it anew.
    ///
    /// # Errors
    /// Those of the request; of unknown outcome if the server does not give as long as that.
    pub(crate) async fn new_lease(
        &self,
        owner: OwnerId,
        seconds: i64,
        patience: Duration,
    ) -> Result<i64, BackendError> {
        let lease = self.fresh_id();
        self.shared.owners.will_use(owner, lease);
        match self.members.grant_lease(lease, seconds, patience).await {
            Ok(granted) if granted >= seconds => Ok(lease),
            Ok(granted) => Err(error::too_short(seconds, granted)),
            Err(error) => {
                if error.outcome() == tenure_core::Outcome::NotApplied {
                    self.shared.owners.forget_lease(owner, lease);
                }
                Err(error)
            }
        }
    }

    /// An id that no lease has had.
    pub(crate) fn fresh_id(&self) -> i64 {
        let mut bits = [0; 8];
        self.members.host.random(&mut bits);
        (i64::from_ne_bytes(bits) & i64::MAX).max(1)
    }
}
