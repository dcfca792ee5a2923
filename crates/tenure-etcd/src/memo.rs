//! Memos: writing one, and reading one for display. Each is a separate key, on a separate lease.
//!
//! Not in the folder of the lock: `etcdctl lock` waits for each key there that is older than its own.

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use tenure_core::{BackendError, FencingToken, LockName, Memo, MemoView, Noted, OwnerId};

use crate::{
    error,
    members::{Members, whole_seconds},
    queue::{KeyQueue, QueueKey, Value, folder},
};

/// Writes a memo, in one transaction that also checks the owner's key. It replaces only the memo that was read, so
/// that a late copy of the request changes nothing.
pub(crate) async fn leave_memo(
    members: &Members,
    name: &LockName,
    (owner, token): (OwnerId, FencingToken),
    memo: &Memo,
) -> Result<Noted, BackendError> {
    let patience = members.config.response_timeout;
    let prefix = &members.config.prefix;
    let (folder, key) = (folder(prefix, name), key(prefix, name));
    let seconds = whole_seconds(memo.kept());
    for _ in 0..ROUNDS {
        let queue = members.queue(&folder, patience).await?;
        let Some(held) = held(&queue, owner) else { return Ok(Noted::Gone) };
        let there = read_memo(members, &key, patience).await?;
        let there = there.as_ref();
        if there.and_then(MemoRead::content).is_some_and(|there| there.token > token.get()) {
            return Ok(Noted::Gone);
        }
        let lease = members.fresh_id();
        let kept = members.grant_lease(lease, seconds, patience).await?;
        let content = MemoValue {
            owner: owner.to_string(),
            token: token.get(),
            kept_s: u64::try_from(kept).unwrap_or(0),
            text: memo.text().to_owned(),
        };
        let value = serde_json::to_vec(&content).expect("BUG: a memo is always JSON");
        let written = put_memo(members, &key, (held, there), (&value, lease), patience).await;
        // The lease that was replaced, or not needed, has no key any more; after an error the new one ends by itself.
        let left = match &written {
            Ok(true) => there.map(|there| there.lease),
            Ok(false) => Some(lease),
            Err(_) => None,
        };
        if let Some(left) = left {
            let _ = members.revoke(left, patience).await;
        }
        if written? {
            return Ok(Noted::Noted);
        }
    }
    Err(error::unsettled(&members.place()))
}

/// False if the owner's key is gone, or the memo is not the one that was read.
async fn put_memo(
    members: &Members,
    key: &str,
    (held, there): (&QueueKey, Option<&MemoRead>),
    (value, lease): (&[u8], i64),
    patience: Duration,
) -> Result<bool, BackendError> {
    let modified = there.map_or(0, |there| there.modified);
    let request = async |mut client: Client| {
        let holds = Compare::create_revision(&held.key[..], CompareOp::Equal, held.created);
        let is_same = Compare::mod_revision(key, CompareOp::Equal, modified);
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let read = || TxnOp::get(key, None);
        client.txn(Txn::new().when([holds, is_same]).and_then([put]).or_else([read()])).await
    };
    let done = members.ask(patience, request).await?.value;
    if done.succeeded() {
        return Ok(true);
    }
    // This request may have been carried out before, at another member: then the memo is on its lease.
    let is_ours = |answer| matches!(answer, TxnOpResponse::Get(read) if read.kvs().iter().any(|kv| kv.lease() == lease));
    Ok(done.op_responses().into_iter().any(is_ours))
}

/// The memo of a lock, linearizable.
async fn read_memo(
    members: &Members,
    key: &str,
    patience: Duration,
) -> Result<Option<MemoRead>, BackendError> {
    let read = members.ask(patience, async |mut client: Client| client.get(key, None).await).await?;
    Ok(read.value.kvs().first().map(MemoRead::read))
}

/// The memo of a lock, for display.
pub(crate) async fn memo_view(members: &Members, name: &LockName) -> Result<Option<MemoView>, BackendError> {
    let (key, patience) = (key(&members.config.prefix, name), members.config.response_timeout);
    let Some(written) = read_memo(members, &key, patience).await? else { return Ok(None) };
    let Some(content) = written.content() else { return Ok(None) };
    let left = members.time_left(written.lease, members.config.response_timeout).await?;
    let view = |left: Duration| {
        let age = Duration::from_secs(content.kept_s).saturating_sub(left + SECOND);
        MemoView::new(content.text, (content.owner, FencingToken::new(content.token)), age, left)
    };
    Ok(left.map(view))
}

/// The owner's key, if the owner holds with it.
fn held(queue: &KeyQueue, owner: OwnerId) -> Option<&QueueKey> {
    let at = queue.find(owner).filter(|&at| at < queue.leading())?;
    let has_entered = |value: &Value| !value.waits;
    Some(&queue.places[at]).filter(|place| place.ours.as_ref().is_some_and(has_entered))
}

/// The key begins as those of the lock do, so that the same rights apply. No name of a lock has this character.
fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{name}\u{1}memo")
}

/// The value of a memo's key.
#[derive(Serialize, Deserialize)]
struct MemoValue {
    owner: String,
    token: u64,
    /// For how long etcd granted its lease, in whole seconds.
    kept_s: u64,
    text: String,
}

/// A memo as it was read.
#[derive(Clone, Debug)]
struct MemoRead {
    /// The modify revision.
    modified: i64,
    lease: i64,
    value: Vec<u8>,
}

impl MemoRead {
    fn read(kv: &KeyValue) -> Self {
        Self { modified: kv.mod_revision(), lease: kv.lease(), value: kv.value().to_vec() }
    }

    /// `None` if it is not a memo.
    fn content(&self) -> Option<MemoValue> {
        serde_json::from_slice(&self.value).ok()
    }
}

/// How often other clients may write the memo in between.
const ROUNDS: usize = 3;

/// etcd rounds the time left down.
const SECOND: Duration = Duration::from_secs(1);
