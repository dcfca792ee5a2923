//! `KnownHolders`: a cache of holders, for display.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{HolderView, locked};
use zookeeper_client::Stat;

use crate::{
    node::{Contender, token},
    record::Record,
    session::Session,
};

/// Holders that were read before, by their paths. Their text does not change.
#[derive(Default)]
pub(crate) struct KnownHolders(Mutex<HashMap<String, HolderView>>);

/// A holder for display; `None` if it is gone, or cannot be read.
pub(crate) async fn first_holder(
    known_holders: &KnownHolders,
    session: &Session,
    lock: &str,
    holder: &Contender,
) -> Option<HolderView> {
    let path = format!("{lock}/{}", holder.name);
    if let Some(known) = locked(&known_holders.0).get(&path) {
        return Some(known.clone());
    }
    let (data, stat) = session.client.get_data(&path).await.ok()?;
    Some(known_holders.remember(path, holder_view(holder, &data, &stat)))
}

impl KnownHolders {
    /// Adds a holder whose node was read when it was watched.
    pub(crate) fn read(&self, path: String, holder: &Contender, data: &[u8], stat: &Stat) {
        self.remember(path, holder_view(holder, data, stat));
    }

    fn remember(&self, path: String, seen: HolderView) -> HolderView {
        let mut known_holders = locked(&self.0);
        if known_holders.len() >= KEPT {
            known_holders.clear();
        }
        known_holders.insert(path, seen.clone());
        seen
    }
}

pub(crate) fn holder_view(node: &Contender, data: &[u8], stat: &Stat) -> HolderView {
    let record = Record::read(data);
    let owner = record.as_ref().map_or_else(|| node.name.clone(), |record| record.owner.to_string());
    // Without an end: nobody can say when its process will not be heard of any more.
    let mut holder = HolderView::new(owner, node.mode);
    holder.token = record.as_ref().map(|_| token(stat.czxid));
    holder.since = record.as_ref().map(|record| Duration::from_millis(record.since_ms));
    holder.label = record.map(|record| record.label);
    holder
}

const KEPT: usize = 1024;
