//! The verb `renew`: keeps leases alive, and reads whether their keys are still there.

use std::time::Duration;

use etcd_client::{Client, Txn, TxnOp, TxnOpResponse};
use futures_util::{
    future::join_all,
    stream::{self, StreamExt},
};
use tenure_core::{BackendError, FencingToken, Grant, OwnerId, Renewal};

use crate::{
    backend::Etcd,
    claim::whole_seconds,
    error,
    keys::{Value, folder, key, millis},
    owners::KeyAt,
    queue::{Place, token},
    requests::{Change, Kept},
};

/// Keys that one transaction reads: a member takes 128 operations.
const BATCH: usize = 100;

/// Leases that are kept alive at once.
const AT_ONCE: usize = 128;

/// Rounds for leases of which a change of the leader left us uncertain, or that were changed by hand.
const ROUNDS: usize = 3;

/// One grant on its way.
struct Renewing<'a> {
    grant: &'a Grant,
    /// The lease on which its key was last seen; `None` if this process has not seen it.
    lease: Option<i64>,
    answer: Option<Result<Renewal, BackendError>>,
}

/// The next step for one grant.
enum Next {
    Answer(Result<Renewal, BackendError>),
    /// Its key is there; ask again, about this lease.
    Again(Place),
    /// Its lease is shorter than the requested ttl.
    Lengthen(Place),
}

/// The key of a grant as a linearizable read of this term saw it.
struct Read {
    place: Option<Place>,
    term: u64,
}

impl Etcd {
    /// A renewal is true because of both its halves, in this order. The leader alone counts leases: that it kept this
    /// one
    /// alive means that it will for the ttl from then, and so will its successors, who begin anew with the full ttl.
    /// But one
    /// that was replaced may not know it yet. So a read through the quorum comes after it: had the leader been replaced
    /// before, the term would be a later one; and the key says that the lease has not ended, nor was broken (hazard 58,
    /// etcd #15247).
    pub(crate) async fn renew_all(&self, grants: &[Grant]) -> Vec<Result<Renewal, BackendError>> {
        let lease = |grant: &Grant| self.shared.owners.key_at(grant.owner).map(|key_at| key_at.lease);
        let begin = |grant| Renewing { grant, lease: lease(grant), answer: None };
        let mut all: Vec<Renewing<'_>> = grants.iter().map(begin).collect();
        for _ in 0..ROUNDS {
            let open: Vec<&mut Renewing<'_>> = all.iter_mut().filter(|one| one.answer.is_none()).collect();
            let mut open = open.into_iter();
            loop {
                let batch: Vec<_> = open.by_ref().take(BATCH).collect();
                if batch.is_empty() {
                    break;
                }
                self.renew_batch(batch).await;
            }
        }
        let unsettled = || Err(error::unsettled(&self.members.place()));
        all.into_iter().map(|one| one.answer.unwrap_or_else(unsettled)).collect()
    }

    async fn renew_batch(&self, batch: Vec<&mut Renewing<'_>>) {
        let shortest = batch.iter().map(|one| one.grant.ttl).min().unwrap_or_default();
        let patience = self.members.patience(shortest);
        let keeping: Vec<_> = batch.iter().map(|one| self.keep(one.lease, patience)).collect();
        let kept: Vec<_> = stream::iter(keeping).buffered(AT_ONCE).collect().await;
        let grants: Vec<&Grant> = batch.iter().map(|one| one.grant).collect();
        let read = match self.read(&grants, patience).await {
            Ok(read) => read,
            Err(error) => return batch.into_iter().for_each(|one| one.answer = Some(Err(error.clone()))),
        };
        let judged = batch.into_iter().zip(kept).zip(read);
        let steps = judged.map(|((one, kept), read)| self.settle(one, kept, read, patience));
        join_all(steps.collect::<Vec<_>>()).await;
    }

    async fn keep(&self, lease: Option<i64>, patience: Duration) -> Result<Option<Kept>, BackendError> {
        match lease {
            Some(lease) => self.members.keep_alive(lease, patience).await,
            None => Ok(None),
        }
    }

    async fn settle(
        &self,
        one: &mut Renewing<'_>,
        kept: Result<Option<Kept>, BackendError>,
        read: Read,
        patience: Duration,
    ) {
        one.answer = match judge(one.grant, one.lease, kept, read) {
            Next::Answer(Ok(Renewal::Renewed)) if one.grant.token == FencingToken::new(0) => {
                Some(self.holds(one.grant, patience).await)
            }
            Next::Answer(answer) => Some(answer),
            Next::Again(place) => {
                one.lease = Some(place.lease);
                self.saw_key(one.grant.owner, &place);
                None
            }
            Next::Lengthen(place) => self.lengthen(one.grant, &place, patience).await.transpose(),
        };
    }

    /// A renewal by hand comes without a token: its owner may still wait.
    async fn holds(&self, grant: &Grant, patience: Duration) -> Result<Renewal, BackendError> {
        let queue = self.members.queue(&folder(&self.config().prefix, &grant.name), patience).await?;
        let holds = queue.find(grant.owner).is_some_and(|at| at < queue.leading());
        Ok(if holds { Renewal::Renewed } else { Renewal::Gone })
    }

    /// etcd cannot change the length of a lease: the key goes to a new one, of the length that is asked for.
    /// `None` if something came in between.
    async fn lengthen(
        &self,
        grant: &Grant,
        place: &Place,
        patience: Duration,
    ) -> Result<Option<Renewal>, BackendError> {
        let Some(value) = place.ours.clone() else { return Ok(None) };
        let lease = self.new_lease(grant.owner, whole_seconds(grant.ttl), patience).await?;
        let value = Value { ttl_ms: millis(grant.ttl), lease, ..value }.write();
        let folder = folder(&self.config().prefix, &grant.name);
        let change =
            Change { folder: &folder, key: &place.key, modified: place.modified, value: &value, lease };
        let Some(queue) = self.members.change(&change, patience).await? else { return Ok(None) };
        let at = queue.find(grant.owner).filter(|&at| queue.places[at].lease == lease);
        let Some(at) = at else { return Ok(None) };
        // No key hangs on it any more, nor will one.
        self.members.revoke(place.lease, patience).await?;
        self.shared.owners.forget_lease(grant.owner, place.lease);
        self.saw_key(grant.owner, &queue.places[at]);
        Ok(Some(if at < queue.leading() { Renewal::Renewed } else { Renewal::Gone }))
    }

    /// This process finds its owner there from now on.
    fn saw_key(&self, owner: OwnerId, place: &Place) {
        let key_at = KeyAt { created: place.created, lease: place.lease };
        self.shared.owners.saw_key(owner, key_at);
    }

    /// Whether the keys are those of the grants, through the quorum.
    async fn read(&self, grants: &[&Grant], patience: Duration) -> Result<Vec<Read>, BackendError> {
        let folders: Vec<String> =
            grants.iter().map(|grant| folder(&self.config().prefix, &grant.name)).collect();
        let keys: Vec<Vec<u8>> =
            folders.iter().zip(grants).map(|(folder, grant)| key(folder, grant.owner)).collect();
        let request = async |mut client: Client| {
            let reads: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(&key[..], None)).collect();
            client.txn(Txn::new().and_then(reads)).await
        };
        let done = self.members.ask(patience, request).await?.value;
        let term = done.header().map_or(0, |header| header.raft_term());
        let place = |(answer, folder): (TxnOpResponse, &String)| {
            let TxnOpResponse::Get(read) = answer else { return Read { place: None, term } };
            Read { place: read.kvs().first().and_then(|kv| Place::read(folder.as_bytes(), kv)), term }
        };
        Ok(done.op_responses().into_iter().zip(&folders).map(place).collect())
    }
}

fn judge(grant: &Grant, lease: Option<i64>, kept: Result<Option<Kept>, BackendError>, read: Read) -> Next {
    let any = FencingToken::new(0);
    let is_held = |place: &Place| {
        let is_its_own = grant.token == token(place.created) || grant.token == any;
        is_its_own && place.ours.as_ref().is_some_and(|value| value.owner == grant.owner && !value.waits)
    };
    let Some(place) = read.place.filter(is_held) else { return Next::Answer(Ok(Renewal::Gone)) };
    match kept {
        _ if lease != Some(place.lease) => Next::Again(place),
        Err(error) => Next::Answer(Err(error)),
        Ok(Some(kept)) if kept.term == read.term && kept.seconds >= whole_seconds(grant.ttl) => {
            Next::Answer(Ok(Renewal::Renewed))
        }
        Ok(Some(kept)) if kept.term == read.term => Next::Lengthen(place),
        Ok(_) => Next::Again(place),
    }
}
