//! `GatheredHints`: the hints of all nodes as one stream.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use tenure_core::{Forward, Host, Moment, OwnerId, WakeEvent, WakeStream, locked};
use tokio::sync::Notify;

use crate::ballot::Nodes;

/// How long to wait for the hints of the other nodes: 20 ms. If the waiter asked at the first hint, the others would
/// refuse.
const SPREAD: Duration = Duration::from_millis(20);
/// How many owners have their hints counted at the same time; with more, the oldest is passed on immediately.
const COUNTED_MAX: usize = 1024;

/// The hints of all nodes. A waiter is notified once a majority of the nodes has notified it, or a little after the
/// first one.
pub(crate) struct GatheredHints {
    /// Each continues to listen between two calls: begun anew, one that cannot connect would try at every hint.
    streams: SelectAll<BoxStream<'static, (usize, WakeEvent)>>,
    /// The streams, until they are polled for the first time.
    begun: Vec<Box<dyn WakeStream>>,
    host: Arc<dyn Host>,
    count: Arc<HintCount>,
}

/// Which nodes have notified an owner.
struct HintCount {
    quorum: usize,
    host: Arc<dyn Host>,
    counted: Mutex<BTreeMap<OwnerId, (Moment, Nodes)>>,
    /// A first owner was added.
    added: Notify,
}

impl GatheredHints {
    /// With a `quorum` of 1, each hint is passed on immediately.
    pub(crate) fn new(streams: Vec<Box<dyn WakeStream>>, quorum: usize, host: Arc<dyn Host>) -> Self {
        let count = HintCount { quorum, host: host.clone(), counted: Mutex::default(), added: Notify::new() };
        Self { streams: SelectAll::new(), begun: streams, host, count: Arc::new(count) }
    }

    fn begin(&mut self) {
        let numbered = self.begun.drain(..).enumerate().map(|(node, stream)| {
            let next = |mut stream: Box<dyn WakeStream>| async { Some((stream.next().await, stream)) };
            stream::unfold(stream, next).map(move |wake| (node, wake)).boxed()
        });
        self.streams.extend(numbered);
    }
}

impl HintCount {
    /// Counts a hint of a node. Returns the hint to pass on now.
    fn count(&self, node: usize, wake: WakeEvent) -> Option<WakeEvent> {
        let WakeEvent::Owner(owner) = wake else { return Some(wake) };
        let now = self.host.now();
        let mut counted = locked(&self.counted);
        let (_, nodes) = counted.entry(owner).or_insert_with(|| (now, Nodes::default()));
        nodes.insert(node);
        if nodes.len() >= self.quorum {
            counted.remove(&owner);
            return Some(wake);
        }
        if counted.len() == 1 {
            self.added.notify_one();
        }
        let is_full = counted.len() > COUNTED_MAX;
        drop(counted);
        is_full.then(|| self.take_oldest()).flatten()
    }

    fn oldest(&self) -> Option<(Moment, OwnerId)> {
        let counted = locked(&self.counted);
        let first = counted.iter().min_by_key(|(_, (since, _))| since.boot);
        first.map(|(&owner, &(since, _))| (since, owner))
    }

    fn take_oldest(&self) -> Option<WakeEvent> {
        let (_, owner) = self.oldest()?;
        locked(&self.counted).remove(&owner);
        Some(WakeEvent::Owner(owner))
    }
}

#[async_trait]
impl WakeStream for GatheredHints {
    async fn next(&mut self) -> WakeEvent {
        self.begin();
        loop {
            let (host, count) = (&self.host, &self.count);
            let timer = async {
                match count.oldest() {
                    Some((since, _)) => host.sleep_until(since + SPREAD).await,
                    None => std::future::pending().await,
                }
            };
            let hint = tokio::select! {
                biased;
                Some((node, wake)) = self.streams.next() => count.count(node, wake),
                () = count.added.notified() => None,
                () = timer => count.take_oldest(),
            };
            if let Some(wake) = hint {
                return wake;
            }
        }
    }

    fn forward(&mut self, to: Forward) {
        for (node, stream) in self.begun.iter_mut().enumerate() {
            let (count, to) = (self.count.clone(), to.clone());
            stream
                .forward(Arc::new(move |wake| count.count(node, wake).into_iter().for_each(|wake| to(wake))));
        }
    }
}
