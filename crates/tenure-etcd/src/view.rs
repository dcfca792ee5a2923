//! The visible state of a queue: holders, waiters, time left.

use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures_util::stream::{self, StreamExt};
use tenure_core::{BackendError, HolderView, LockName, LockView, WaiterView};

use crate::{
    backend::Etcd,
    keys::folder,
    queue::{Place, Queue, token},
};

/// Keys that one request of `list` reads.
const PAGE: i64 = 1000;

/// Requests for time left that are under way at once.
const AT_ONCE: usize = 64;

/// A holder, with the time that its lease has left.
pub(crate) fn holder(place: &Place, expires_in: Option<Duration>) -> HolderView {
    let ours = place.ours.as_ref();
    let mut holder = HolderView::new(owner(place), place.mode());
    holder.token = ours.filter(|value| !value.waits).map(|_| token(place.created));
    holder.label = ours.map(|value| value.label.clone());
    holder.since = ours.map(|value| Duration::from_millis(value.since_ms));
    holder.expires_in = expires_in;
    holder
}

fn waiter(place: &Place, now: Duration) -> WaiterView {
    let ours = place.ours.as_ref();
    let since = ours.map(|value| Duration::from_millis(value.since_ms));
    let waiting = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
    WaiterView::new(owner(place), place.mode(), ours.map(|value| value.label.clone()), waiting)
}

/// The owner, or the lease of a foreign client.
fn owner(place: &Place) -> String {
    let ours = place.ours.as_ref();
    ours.map_or_else(|| format!("lease {:x}", place.lease), |value| value.owner.to_string())
}

impl Etcd {
    pub(crate) async fn look(&self, name: &LockName) -> Result<LockView, BackendError> {
        let patience = self.config().response_timeout;
        let queue = self.members.queue(&folder(&self.config().prefix, name), patience).await?;
        let mut view = self.view(name.clone(), queue).await?;
        view.memo = self.memo_view(name).await?;
        Ok(view)
    }

    /// A queue for display. A holder or waiter that has left since the read is not shown.
    async fn view(&self, name: LockName, queue: Queue) -> Result<LockView, BackendError> {
        let holders = self.with_time_left(queue.holders()).await?;
        let now = self.members.host.now().wall;
        let waiters = queue.places[queue.leading()..].iter().map(|place| waiter(place, now)).collect();
        Ok(LockView::new(name, holders, waiters, token(queue.revision)))
    }

    pub(crate) async fn with_time_left(&self, holders: &[Place]) -> Result<Vec<HolderView>, BackendError> {
        let patience = self.config().response_timeout;
        let asking: Vec<_> =
            holders.iter().map(|place| self.members.time_left(place.lease, patience)).collect();
        let left: Vec<Result<_, BackendError>> = stream::iter(asking).buffered(AT_ONCE).collect().await;
        let view = |(place, left): (&Place, Result<Option<Duration>, _>)| {
            left.map(|left| left.map(|left| holder(place, Some(left)))).transpose()
        };
        holders.iter().zip(left).filter_map(view).collect()
    }

    /// Every queue whose name starts with `prefix`. Keys that are not places in a queue are skipped.
    pub(crate) async fn queues(&self, prefix: &str) -> Result<Vec<LockView>, BackendError> {
        let mut queues = std::collections::BTreeMap::<LockName, Vec<Place>>::new();
        let start = format!("{}{prefix}", self.config().prefix).into_bytes();
        let end = end_of(&start);
        let (mut from, mut revision) = (start, 0);
        loop {
            let page = self.page(&from, &end, revision).await?;
            revision = page.header().map_or(0, |header| header.revision()).max(revision);
            for kv in page.kvs() {
                if let Some((name, place)) = self.named(kv) {
                    queues.entry(name).or_default().push(place);
                }
            }
            match page.kvs().last().filter(|_| page.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => break,
            }
        }
        let mut views = Vec::with_capacity(queues.len());
        for (name, mut places) in queues {
            places.sort_by_key(|place| place.created);
            let view = self.view(name, Queue { places, revision }).await?;
            if !view.holders.is_empty() || !view.queue.is_empty() {
                views.push(view);
            }
        }
        Ok(views)
    }

    async fn page(
        &self,
        from: &[u8],
        end: &[u8],
        revision: i64,
    ) -> Result<etcd_client::GetResponse, BackendError> {
        let request = async |mut client: Client| {
            let from = if from.is_empty() { &[0] } else { from };
            let options = GetOptions::new().with_range(end).with_limit(PAGE).with_revision(revision);
            client.get(from, Some(options)).await
        };
        Ok(self.members.ask(self.config().response_timeout, request).await?.value)
    }

    /// The lock that a key belongs to.
    fn named(&self, kv: &etcd_client::KeyValue) -> Option<(LockName, Place)> {
        let end = kv.key().iter().rposition(|byte| *byte == b'/')?;
        let name = kv.key()[..end].strip_prefix(self.config().prefix.as_bytes())?;
        let name = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
        Some((name, Place::read(&kv.key()[..=end], kv)?))
    }
}

/// The first key that does not begin so; `\0`, as etcd writes "no end", if all do.
fn end_of(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
