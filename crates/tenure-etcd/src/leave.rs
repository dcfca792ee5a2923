//! The verbs `release` and `break`: a lease that ends takes its keys along.

use std::time::Duration;

use etcd_client::Client;
use futures_util::future::{join, try_join_all};
use tenure_core::{BackendError, HolderView, LockName, OwnerId, Released};

use crate::{
    backend::Etcd,
    error,
    keys::{Leases, folder, key},
    line::Place,
    members::Answer,
    seats::Seat,
};

impl Etcd {
    /// Ends the owner's leases. Which of them its key hung on says whether it was still there: nothing else takes a key of
    /// ours away without its lease but a person (L9).
    pub(crate) async fn leave(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let (patience, leases) = (self.config().response_timeout, Leases::of(owner));
        self.watching.0.forget(owner);
        let seat = self.shared.seats.take(owner);
        if let Some(Seat::Inside { had_place: false }) = seat {
            return self.released(self.members.revoke(leases.own, patience).await?);
        }
        let on_place = match seat {
            Some(Seat::Inside { .. }) => Some(false),
            Some(Seat::Waiting { on_place, .. }) => Some(on_place),
            None => {
                let folder = folder(&self.config().prefix, name);
                self.lease_of(&key(&folder, owner), owner, patience).await?
            }
        };
        let own = self.members.revoke(leases.own, patience);
        let (own, place) = join(own, self.members.revoke(leases.place, patience)).await;
        let (own, place) = (own?, place?);
        match on_place {
            None => Ok(Released::WasGone),
            Some(false) => self.released(own),
            // It may have been about to enter.
            Some(true) if own.value => Ok(Released::Released),
            Some(true) => self.released(place),
        }
    }

    fn released(&self, revoked: Answer<bool>) -> Result<Released, BackendError> {
        match revoked {
            Answer { value: true, .. } => Ok(Released::Released),
            Answer { was_repeated: true, .. } => Err(error::left_or_gone(&self.members.place())),
            Answer { .. } => Ok(Released::WasGone),
        }
    }

    /// Whether the owner's key hangs on its place lease; `None` if there is no such key.
    async fn lease_of(
        &self,
        key: &[u8],
        owner: OwnerId,
        patience: Duration,
    ) -> Result<Option<bool>, BackendError> {
        let read = self.members.ask(patience, async |mut client: Client| client.get(key, None).await).await?;
        let lease = read.value.kvs().first().map(|kv| kv.lease());
        let leases = Leases::of(owner);
        Ok(lease
            .filter(|lease| [leases.own, leases.place].contains(lease))
            .map(|lease| lease == leases.place))
    }

    /// Ends both leases of an owner that did not get in.
    pub(crate) async fn leave_line(&self, leases: &Leases, patience: Duration) -> Result<(), BackendError> {
        let own = self.members.revoke(leases.own, patience);
        let (own, place) = join(own, self.members.revoke(leases.place, patience)).await;
        own.and(place).map(drop)
    }

    /// Takes the lock from its holders. What writes to the store raises its revision, and so the fence.
    pub(crate) async fn rob(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        let patience = self.config().response_timeout;
        let folder = folder(&self.config().prefix, name);
        let line = self.members.line(&folder, patience).await?;
        let holders = line.holders();
        if holders.is_empty() {
            self.raise(&folder, patience).await?;
            return Ok(Vec::new());
        }
        let robbed = self.with_time_left(holders).await?;
        try_join_all(holders.iter().map(|holder| self.rob_one(holder, patience))).await?;
        Ok(robbed)
    }

    /// Leases first: so a release that comes later finds nothing, and says so. A foreign lease is its owner's, who may have
    /// other keys on it.
    async fn rob_one(&self, holder: &Place, patience: Duration) -> Result<(), BackendError> {
        let leases = holder.ours.as_ref().map(|value| Leases::of(value.owner));
        if let Some(leases) = &leases {
            self.leave_line(leases, patience).await?;
        }
        // One that was about to enter may have put its key on the other lease meanwhile.
        let was_there = self.members.delete(&holder.key, holder.created, patience).await?;
        match leases.filter(|_| was_there) {
            Some(leases) => self.leave_line(&leases, patience).await,
            None => Ok(()),
        }
    }

    /// Writes a key that is no place in the line, and deletes it.
    async fn raise(&self, folder: &str, patience: Duration) -> Result<(), BackendError> {
        let marker = format!("{folder}!");
        let marker = marker.as_str();
        self.members.ask(patience, async |mut client: Client| client.put(marker, "", None).await).await?;
        self.members.ask(patience, async |mut client: Client| client.delete(marker, None).await).await?;
        Ok(())
    }
}
