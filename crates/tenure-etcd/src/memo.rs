//! A memo: a key in the folder of the lock, on a lease of its own.

use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};

/// The name of the key. No number, so that it is no place in the queue.
pub(crate) const NAME: &str = "memo";

/// The value of a memo's key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) owner: String,
    pub(crate) token: u64,
    /// For how long etcd granted its lease, in whole seconds.
    pub(crate) kept_s: u64,
    pub(crate) text: String,
}

/// A memo as it was read with its queue.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// The modify revision.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
    value: Vec<u8>,
}

impl Written {
    /// Among the keys of a folder.
    pub(crate) fn find(folder: &str, kvs: &[KeyValue]) -> Option<Self> {
        let is_memo = |kv: &&KeyValue| kv.key().strip_prefix(folder.as_bytes()) == Some(NAME.as_bytes());
        let kv = kvs.iter().find(is_memo)?;
        Some(Self { modified: kv.mod_revision(), lease: kv.lease(), value: kv.value().to_vec() })
    }

    /// `None` for what is no memo.
    pub(crate) fn content(&self) -> Option<Content> {
        serde_json::from_slice(&self.value).ok()
    }
}
