//! `Gathered`: the hints of all nodes as one stream.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use tenure_core::{Host, Moment, OwnerId, Wake, Wakes};

use crate::nodes::Nodes;

/// How long the hints of the other nodes are waited for: 20 ms. Asked at the first one, the others would refuse.
const SPREAD: Duration = Duration::from_millis(20);
/// Owners whose hints are counted at a time; more, and the oldest is told at once.
const COUNTED_MAX: usize = 1024;

/// The hints of all nodes. A waiter is told once a quorum of them says so, or a little after the first one.
pub(crate) struct Gathered {
    /// Each goes on listening between two calls: begun anew, one that cannot connect would try at every hint.
    streams: SelectAll<BoxStream<'static, (usize, Wake)>>,
    quorum: usize,
    host: Arc<dyn Host>,
    counted: BTreeMap<OwnerId, (Moment, Nodes)>,
}

impl Gathered {
    /// `quorum` of 1 tells at once.
    pub(crate) fn new(streams: Vec<Box<dyn Wakes>>, quorum: usize, host: Arc<dyn Host>) -> Self {
        let numbered = streams.into_iter().enumerate().map(|(node, stream)| {
            let next = |mut stream: Box<dyn Wakes>| async { Some((stream.next().await, stream)) };
            stream::unfold(stream, next).map(move |wake| (node, wake)).boxed()
        });
        Self { streams: stream::select_all(numbered), quorum, host, counted: BTreeMap::new() }
    }

    /// Counts a hint; the owner if it is to be told now.
    fn count(&mut self, node: usize, owner: OwnerId) -> Option<OwnerId> {
        let now = self.host.now();
        let (_, nodes) = self.counted.entry(owner).or_insert_with(|| (now, Nodes::default()));
        nodes.insert(node);
        if nodes.len() >= self.quorum {
            self.counted.remove(&owner);
            return Some(owner);
        }
        if self.counted.len() > COUNTED_MAX { self.take_oldest() } else { None }
    }

    fn oldest(&self) -> Option<(Moment, OwnerId)> {
        let first = self.counted.iter().min_by_key(|(_, (since, _))| since.boot);
        first.map(|(&owner, &(since, _))| (since, owner))
    }

    fn take_oldest(&mut self) -> Option<OwnerId> {
        let (_, owner) = self.oldest()?;
        self.counted.remove(&owner);
        Some(owner)
    }
}

#[async_trait]
impl Wakes for Gathered {
    async fn next(&mut self) -> Wake {
        loop {
            let due = self.oldest().map(|(since, _)| since + SPREAD);
            let timer = async {
                match due {
                    Some(due) => self.host.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let hint = tokio::select! {
                biased;
                Some(hint) = self.streams.next() => Some(hint),
                () = timer => None,
            };
            let told = match hint {
                Some((_, Wake::All)) => return Wake::All,
                Some((node, Wake::Owner(owner))) => self.count(node, owner),
                None => self.take_oldest(),
            };
            if let Some(owner) = told {
                return Wake::Owner(owner);
            }
        }
    }
}
