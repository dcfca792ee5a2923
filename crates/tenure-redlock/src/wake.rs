//! `Gathered`: the hints of all nodes as one stream.

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
use tenure_core::{Forward, Host, Moment, OwnerId, Wake, Wakes, locked};
use tokio::sync::Notify;

use crate::ballot::Nodes;

/// How long the hints of the other nodes are waited for: 20 ms. Asked at the first one, the others would refuse.
const SPREAD: Duration = Duration::from_millis(20);
/// Owners whose hints are counted at a time; more, and the oldest is told at once.
const COUNTED_MAX: usize = 1024;

/// The hints of all nodes. A waiter is told once a quorum of them says so, or a little after the first one.
pub(crate) struct Gathered {
    /// Each goes on listening between two calls: begun anew, one that cannot connect would try at every hint.
    streams: SelectAll<BoxStream<'static, (usize, Wake)>>,
    /// Until they are polled first.
    begun: Vec<Box<dyn Wakes>>,
    host: Arc<dyn Host>,
    tally: Arc<Tally>,
}

/// Who was told by which nodes.
struct Tally {
    quorum: usize,
    host: Arc<dyn Host>,
    counted: Mutex<BTreeMap<OwnerId, (Moment, Nodes)>>,
    /// There is a first one.
    added: Notify,
}

impl Gathered {
    /// `quorum` of 1 tells at once.
    pub(crate) fn new(streams: Vec<Box<dyn Wakes>>, quorum: usize, host: Arc<dyn Host>) -> Self {
        let tally = Tally { quorum, host: host.clone(), counted: Mutex::default(), added: Notify::new() };
        Self { streams: SelectAll::new(), begun: streams, host, tally: Arc::new(tally) }
    }

    fn begin(&mut self) {
        let numbered = self.begun.drain(..).enumerate().map(|(node, stream)| {
            let next = |mut stream: Box<dyn Wakes>| async { Some((stream.next().await, stream)) };
            stream::unfold(stream, next).map(move |wake| (node, wake)).boxed()
        });
        self.streams.extend(numbered);
    }
}

impl Tally {
    /// Counts a hint of a node; what is to be told now.
    fn count(&self, node: usize, wake: Wake) -> Option<Wake> {
        let Wake::Owner(owner) = wake else { return Some(wake) };
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

    fn take_oldest(&self) -> Option<Wake> {
        let (_, owner) = self.oldest()?;
        locked(&self.counted).remove(&owner);
        Some(Wake::Owner(owner))
    }
}

#[async_trait]
impl Wakes for Gathered {
    async fn next(&mut self) -> Wake {
        self.begin();
        loop {
            let (host, tally) = (&self.host, &self.tally);
            let timer = async {
                match tally.oldest() {
                    Some((since, _)) => host.sleep_until(since + SPREAD).await,
                    None => std::future::pending().await,
                }
            };
            let told = tokio::select! {
                biased;
                Some((node, wake)) = self.streams.next() => tally.count(node, wake),
                () = tally.added.notified() => None,
                () = timer => tally.take_oldest(),
            };
            if let Some(wake) = told {
                return wake;
            }
        }
    }

    fn forward(&mut self, to: Forward) {
        for (node, stream) in self.begun.iter_mut().enumerate() {
            let (tally, to) = (self.tally.clone(), to.clone());
            stream
                .forward(Arc::new(move |wake| tally.count(node, wake).into_iter().for_each(|wake| to(wake))));
        }
    }
}
