//! The requests that are said to etcd. Each may be carried out twice, and late: `lease` says why that does no harm.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, LeaseGrantOptions, PutOptions, ResponseHeader, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tenure_core::BackendError;

use crate::{
    error,
    members::{Answer, Members},
    queue::Queue,
};

/// A lease that was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// How long it lasts from when it was asked for.
    pub(crate) seconds: i64,
    /// The term of the member that was asked, from before it kept the lease alive or asked its leader to.
    pub(crate) term: u64,
}

/// A change of a lock's queue: the condition, the write, and the queue to read in the same transaction.
pub(crate) struct Change<'a> {
    pub(crate) folder: &'a str,
    pub(crate) key: &'a [u8],
    /// The modify revision that the key must have; 0: it must not be there.
    pub(crate) modified: i64,
    pub(crate) value: &'a [u8],
    pub(crate) lease: i64,
}

fn header(header: Option<&ResponseHeader>) -> (i64, u64) {
    header.map_or((0, 0), |header| (header.revision(), header.raft_term()))
}

fn in_order() -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend)
}

impl Members {
    /// A lease of this id, which nobody has had before, through the quorum; for how many seconds from now.
    pub(crate) async fn grant_lease(
        &self,
        id: i64,
        seconds: i64,
        patience: Duration,
    ) -> Result<i64, BackendError> {
        let request = async |mut client: Client| {
            let options = LeaseGrantOptions::new().with_id(id);
            match client.lease_grant(seconds, Some(options)).await {
                Ok(granted) => Ok(granted.ttl()),
                // OK because nobody else has this id: it was granted to the same request, sent to another member
                // before.
                Err(error) if error::is_known_lease(&error) => Ok(seconds),
                Err(error) => Err(error),
            }
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Keeps a lease alive; `None` if there is no such lease. The leader does that alone: whoever must be certain
    /// compares
    /// the term with that of a linearizable read that came later.
    ///
    /// It is kept alive twice, because the driver keeps what the first answer says to itself.
    pub(crate) async fn keep_alive(&self, id: i64, patience: Duration) -> Result<Option<Kept>, BackendError> {
        let request = async |mut client: Client| {
            let (mut keeper, mut stream) = match client.lease_keep_alive(id).await {
                Ok(both) => both,
                Err(error) if error::is_no_lease(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            keeper.keep_alive().await?;
            let kept = stream.message().await?;
            let kept = kept.ok_or_else(|| Error::LeaseKeepAliveError("the stream ended".into()))?;
            let (_, term) = header(kept.header());
            Ok((kept.ttl() > 0).then_some(Kept { seconds: kept.ttl(), term }))
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Keeps a place alive, of which nobody has to be certain; false if there is no such lease.
    pub(crate) async fn keep_place(&self, id: i64, patience: Duration) -> Result<bool, BackendError> {
        let request = async |mut client: Client| match client.lease_keep_alive(id).await {
            Ok(_) => Ok(true),
            Err(error) if error::is_no_lease(&error) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Ends a lease, and with it the keys that hang on it; false if there is none.
    pub(crate) async fn revoke(&self, id: i64, patience: Duration) -> Result<Answer<bool>, BackendError> {
        let request = async |mut client: Client| match client.lease_revoke(id).await {
            Ok(_) => Ok(true),
            Err(error) if error::is_no_lease(&error) => Ok(false),
            Err(error) => Err(error),
        };
        self.ask(patience, request).await
    }

    /// The queue of a lock, linearizable.
    pub(crate) async fn queue(&self, folder: &str, patience: Duration) -> Result<Queue, BackendError> {
        let request = async |mut client: Client| client.get(folder, Some(in_order())).await;
        let before = self.watermark.now();
        let read = self.ask(patience, request).await?.value;
        self.watermark.judge(before, read.header())?;
        Queue::read(folder, read.kvs(), header(read.header()).0)
    }

    /// Writes the key on a lease, if nobody has written it since it was read, and reads the queue in the same step:
    /// whether the
    /// key is on that lease now says whether it was written, by this request or its copy at another member. `None` if
    /// there is no such lease.
    pub(crate) async fn change(
        &self,
        change: &Change<'_>,
        patience: Duration,
    ) -> Result<Option<Queue>, BackendError> {
        let request = async |mut client: Client| {
            let as_expected = Compare::mod_revision(change.key, CompareOp::Equal, change.modified);
            let put = PutOptions::new().with_lease(change.lease);
            let queue = || TxnOp::get(change.folder, Some(in_order()));
            let txn = Txn::new()
                .when([as_expected])
                .and_then([TxnOp::put(change.key, change.value, Some(put)), queue()])
                .or_else([queue()]);
            match client.txn(txn).await {
                Ok(done) => Ok(Some(done)),
                Err(error) if error::is_no_lease(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let before = self.watermark.now();
        let Some(done) = self.ask(patience, request).await?.value else { return Ok(None) };
        self.watermark.judge(before, done.header())?;
        queue_of(change.folder, &done).map(Some)
    }

    /// Deletes the key if it is still the one of this create revision.
    pub(crate) async fn delete(
        &self,
        key: &[u8],
        created: i64,
        patience: Duration,
    ) -> Result<(), BackendError> {
        let request = async |mut client: Client| {
            let same = Compare::create_revision(key, CompareOp::Equal, created);
            client.txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)])).await
        };
        self.ask(patience, request).await.map(drop)
    }

    /// Seconds that a lease has left, rounded down; `None` if there is no such lease.
    pub(crate) async fn time_left(
        &self,
        lease: i64,
        patience: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let request = async |mut client: Client| client.lease_time_to_live(lease, None).await;
        let left = self.ask(patience, request).await?.value.ttl();
        Ok(u64::try_from(left).ok().map(Duration::from_secs))
    }
}

/// The queue stands in the last answer of the transaction.
fn queue_of(folder: &str, done: &TxnResponse) -> Result<Queue, BackendError> {
    let (revision, _) = header(done.header());
    let answers = done.op_responses();
    let Some(TxnOpResponse::Get(read)) = answers.last() else {
        return Queue::read(folder, &[], revision);
    };
    Queue::read(folder, read.kvs(), revision)
}
