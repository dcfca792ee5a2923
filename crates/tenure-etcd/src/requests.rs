//! The requests that are said to etcd. Each may be said twice: saying it again changes nothing more.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, LeaseGrantOptions, PutOptions, ResponseHeader, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tenure_core::BackendError;

use crate::{
    error,
    line::Line,
    members::{Answer, Members},
};

/// What became of the wish to have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leased {
    /// It is there, for so many seconds from now.
    Granted { seconds: i64 },
    /// One of this id was there before: keep it alive.
    WasThere,
}

/// A lease that was kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// How long it lasts from when it was asked for.
    pub(crate) seconds: i64,
    /// The term of the member that was asked, from before it kept the lease alive or asked its leader to.
    pub(crate) term: u64,
}

/// A change of a lock's line: what must be true, what is written then, and which line is read in the same step.
pub(crate) struct Change<'a> {
    pub(crate) folder: &'a str,
    pub(crate) key: &'a [u8],
    /// The create revision that the key must have; 0: it must not be there.
    pub(crate) created: i64,
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
    /// A lease of this id, which goes through the quorum.
    pub(crate) async fn grant_lease(
        &self,
        id: i64,
        seconds: i64,
        patience: Duration,
    ) -> Result<Leased, BackendError> {
        let request = async |mut client: Client| {
            let options = LeaseGrantOptions::new().with_id(id);
            match client.lease_grant(seconds, Some(options)).await {
                Ok(granted) => Ok(Leased::Granted { seconds: granted.ttl() }),
                Err(error) if error::is_known_lease(&error) => Ok(Leased::WasThere),
                Err(error) => Err(error),
            }
        };
        Ok(self.ask(patience, request).await?.value)
    }

    /// Keeps a lease alive; `None` if there is no such lease. The leader does that alone: whoever must be certain compares
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

    /// The line of a lock, linearizable.
    pub(crate) async fn line(&self, folder: &str, patience: Duration) -> Result<Line, BackendError> {
        let request = async |mut client: Client| client.get(folder, Some(in_order())).await;
        let read = self.ask(patience, request).await?.value;
        let (revision, term) = header(read.header());
        Line::read(folder, read.kvs(), revision, term)
    }

    /// Writes the key on a lease, if its create revision is as expected, and reads the line in the same step; false if it is
    /// not, and `None` if there is no such lease. Whoever asks again after a lost reply reads the same line.
    pub(crate) async fn change(
        &self,
        change: &Change<'_>,
        patience: Duration,
    ) -> Result<Option<(bool, Line)>, BackendError> {
        let request = async |mut client: Client| {
            let as_expected = Compare::create_revision(change.key, CompareOp::Equal, change.created);
            let put = PutOptions::new().with_lease(change.lease);
            let line = || TxnOp::get(change.folder, Some(in_order()));
            let txn = Txn::new()
                .when([as_expected])
                .and_then([TxnOp::put(change.key, change.value, Some(put)), line()])
                .or_else([line()]);
            match client.txn(txn).await {
                Ok(done) => Ok(Some(done)),
                Err(error) if error::is_no_lease(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(done) = self.ask(patience, request).await?.value else { return Ok(None) };
        Ok(Some((done.succeeded(), line_of(change.folder, &done)?)))
    }

    /// Deletes the key if it is still the one of this create revision; false if not.
    pub(crate) async fn delete(
        &self,
        key: &[u8],
        created: i64,
        patience: Duration,
    ) -> Result<bool, BackendError> {
        let request = async |mut client: Client| {
            let same = Compare::create_revision(key, CompareOp::Equal, created);
            client.txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)])).await
        };
        Ok(self.ask(patience, request).await?.value.succeeded())
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

/// The line stands in the last answer of the transaction.
fn line_of(folder: &str, done: &TxnResponse) -> Result<Line, BackendError> {
    let (revision, term) = header(done.header());
    let answers = done.op_responses();
    let Some(TxnOpResponse::Get(read)) = answers.last() else {
        return Line::read(folder, &[], revision, term);
    };
    Line::read(folder, read.kvs(), revision, term)
}
