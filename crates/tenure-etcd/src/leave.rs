//! The verbs `release` and `break`: a lease that ends takes its keys along.

use std::time::Duration;

use etcd_client::Client;
use futures_util::future::{join_all, try_join_all};
use tenure_core::{BackendError, HolderView, LockName, OwnerId, Released};

use crate::{
    backend::Etcd,
    error,
    keys::{folder, key},
    members::Answer,
    queue::Place,
};

/// How often a key is followed that goes to another lease under our hands.
const ROUNDS: usize = 3;

impl Etcd {
    /// Ends the owner's leases. Whether the one that its key hung on was still there says whether the key was: nothing
    /// else
    /// takes a key of ours away without its lease but a person (L9).
    pub(crate) async fn leave(&self, name: &LockName, owner: OwnerId) -> Result<Released, BackendError> {
        let patience = self.config().response_timeout;
        self.shared.forget(owner);
        let Some(known) = self.shared.owners.get(owner) else {
            return self.leave_unseen(name, owner, patience).await;
        };
        let on = match known.key_at {
            Some(key_at) => Some(key_at.lease),
            None => self.place_of(name, owner, patience).await?.map(|place| place.lease),
        };
        let others: Vec<i64> = known.leases.into_iter().filter(|lease| Some(*lease) != on).collect();
        let leases = on.iter().chain(&others);
        let revoked = join_all(leases.map(|lease| self.members.revoke(*lease, patience))).await;
        let is_one = revoked.len() == 1;
        let revoked: Result<Vec<_>, _> = revoked.into_iter().collect();
        let revoked = revoked.map_err(|error| if is_one { error } else { error.of_unknown_outcome() })?;
        self.shared.owners.forget(owner);
        match (on, revoked.first()) {
            (Some(_), Some(Answer { value: true, .. })) => Ok(Released::Released),
            (Some(_), Some(Answer { was_repeated: true, .. })) => {
                Err(error::left_or_gone(&self.members.place()))
            }
            // It was about to enter, and which of its leases had the key is not known.
            (Some(_), _) if known.key_at.is_none() && revoked.iter().any(|revoked| revoked.value) => {
                Err(error::left_or_gone(&self.members.place()))
            }
            // Another process may have made it longer, or claimed for the same owner.
            (Some(_), _) => {
                let left = self.leave_unseen(name, owner, patience).await;
                left.map_err(BackendError::of_unknown_outcome)
            }
            (None, _) => Ok(Released::WasGone),
        }
    }

    /// Where its key is, this process does not know.
    async fn leave_unseen(
        &self,
        name: &LockName,
        owner: OwnerId,
        patience: Duration,
    ) -> Result<Released, BackendError> {
        let Some(place) = self.place_of(name, owner, patience).await? else { return Ok(Released::WasGone) };
        match self.end(name, owner, place, patience).await? {
            Answer { value: true, .. } => Ok(Released::Released),
            Answer { was_repeated: true, .. } => Err(error::left_or_gone(&self.members.place())),
            Answer { .. } => Ok(Released::WasGone),
        }
    }

    /// The owner's key, if there is one.
    async fn place_of(
        &self,
        name: &LockName,
        owner: OwnerId,
        patience: Duration,
    ) -> Result<Option<Place>, BackendError> {
        let folder = folder(&self.config().prefix, name);
        let key = &key(&folder, owner)[..];
        let read = self.members.ask(patience, async |mut client: Client| client.get(key, None).await).await?;
        let place = read.value.kvs().first().and_then(|kv| Place::read(folder.as_bytes(), kv));
        Ok(place.filter(|place| place.is_of(owner)))
    }

    /// Ends the lease that an owner's key hangs on, and the next one if it goes there meanwhile. Leases first: so a
    /// release
    /// that comes later finds nothing, and says so. Whether any was there.
    async fn end(
        &self,
        name: &LockName,
        owner: OwnerId,
        mut place: Place,
        patience: Duration,
    ) -> Result<Answer<bool>, BackendError> {
        let mut ended = self.members.revoke(place.lease, patience).await?;
        for _ in 0..ROUNDS {
            let next =
                self.place_of(name, owner, patience).await.map_err(BackendError::of_unknown_outcome)?;
            let Some(next) = next.filter(|next| next.created == place.created) else { return Ok(ended) };
            place = next;
            let revoked = self.members.revoke(place.lease, patience).await;
            let revoked = revoked.map_err(BackendError::of_unknown_outcome)?;
            ended.value |= revoked.value;
            ended.was_repeated |= revoked.was_repeated;
        }
        let deleted = self.members.delete(&place.key, place.created, patience).await;
        deleted.map(|()| ended).map_err(BackendError::of_unknown_outcome)
    }

    /// Takes the lock from its holders. Every write raises the revision of the store, and so the fence.
    pub(crate) async fn rob(&self, name: &LockName) -> Result<Vec<HolderView>, BackendError> {
        let patience = self.config().response_timeout;
        let folder = folder(&self.config().prefix, name);
        let queue = self.members.queue(&folder, patience).await?;
        let holders = queue.holders();
        if holders.is_empty() {
            self.raise(&folder, patience).await?;
            return Ok(Vec::new());
        }
        let robbed = self.with_time_left(holders).await?;
        try_join_all(holders.iter().map(|holder| self.rob_one(name, holder, patience))).await?;
        Ok(robbed)
    }

    /// A foreign lease is its owner's, who may have other keys on it.
    async fn rob_one(&self, name: &LockName, holder: &Place, patience: Duration) -> Result<(), BackendError> {
        match &holder.ours {
            Some(value) => self.end(name, value.owner, holder.clone(), patience).await.map(drop),
            None => self.members.delete(&holder.key, holder.created, patience).await,
        }
    }

    /// Writes a key that is no place in the queue, and deletes it.
    async fn raise(&self, folder: &str, patience: Duration) -> Result<(), BackendError> {
        let marker = format!("{folder}!");
        let marker = marker.as_str();
        self.members.ask(patience, async |mut client: Client| client.put(marker, "", None).await).await?;
        self.members.ask(patience, async |mut client: Client| client.delete(marker, None).await).await?;
        Ok(())
    }
}
