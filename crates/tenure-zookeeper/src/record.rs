//! The content of a contender's node: its owner's label, and whether it holds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{Claim, Label, Moment, OwnerId};

/// The data of a node of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) owner: OwnerId,
    pub(crate) label: Label,
    /// When it took its place, since the Unix epoch.
    pub(crate) since_ms: u64,
    pub(crate) ttl_ms: u64,
    /// It waited, and holds now together with others: the next one in the queue should look again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) entered: bool,
}

impl Record {
    pub(crate) fn new(claim: &Claim, now: Moment) -> Self {
        Self {
            owner: claim.owner,
            label: Label::clone(&claim.label),
            since_ms: millis(now.wall),
            ttl_ms: millis(claim.ttl),
            entered: false,
        }
    }

    /// `None` for the data of another library.
    pub(crate) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub(crate) fn written(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a record of numbers and texts is always JSON")
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
