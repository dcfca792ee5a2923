//! A memo: a key of its own, on a lease of its own.
//!
//! Not in the folder of the lock: `etcdctl lock` waits for every key there that is older than its own.

use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use tenure_core::LockName;

/// It begins as the lock does, so that the same rights hold for it; no name of a lock has this character.
pub(crate) fn key(prefix: &str, name: &LockName) -> String {
    format!("{prefix}{name}\u{1}memo")
}

/// The value of a memo's key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) owner: String,
    pub(crate) token: u64,
    /// For how long etcd granted its lease, in whole seconds.
    pub(crate) kept_s: u64,
    pub(crate) text: String,
}

/// A memo as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// The modify revision.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
    value: Vec<u8>,
}

impl Written {
    pub(crate) fn read(kv: &KeyValue) -> Self {
        Self { modified: kv.mod_revision(), lease: kv.lease(), value: kv.value().to_vec() }
    }

    /// `None` for what is no memo.
    pub(crate) fn content(&self) -> Option<Content> {
        serde_json::from_slice(&self.value).ok()
    }
}
