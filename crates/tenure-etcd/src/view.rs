//! The visible state of a queue: holders, waiters, time left.

use std::{collections::BTreeMap, time::Duration};

use etcd_client::{Client, GetOptions, GetResponse, KeyValue};
use futures_util::stream::{self, StreamExt};
use tenure_core::{BackendError, ErrorKind, HolderView, LockName, LockView, Mode, WaiterView};

use crate::{
    error,
    members::Members,
    memo,
    queue::{KeyQueue, QueueKey, folder, is_newer, token},
};

pub(crate) async fn look(members: &Members, name: &LockName) -> Result<LockView, BackendError> {
    let patience = members.config.response_timeout;
    let queue = members.queue(&folder(&members.config.prefix, name), patience).await?;
    let mut view = view(members, name.clone(), queue).await?;
    if let Some(lease) = single_key(members, name, patience).await?
        && let Some(left) = members.time_left(lease, patience).await?
    {
        let owner = format!("lease {lease:x}, in a single key, which excludes no client of Tenure");
        let mut holder = HolderView::new(owner, Mode::Exclusive);
        holder.expires_in = Some(left);
        view.holders.push(holder);
    }
    view.memo = memo::memo_view(members, name).await?;
    Ok(view)
}

/// The lease of a key with exactly the name of the lock, which some clients use. `None` if there is none, or if the
/// user may not read it.
pub(crate) async fn single_key(
    members: &Members,
    name: &LockName,
    patience: Duration,
) -> Result<Option<i64>, BackendError> {
    let key = format!("{}{name}", members.config.prefix);
    let options = || GetOptions::new().with_serializable();
    let request = async |mut client: Client| client.get(key.as_str(), Some(options())).await;
    match members.ask(patience, request).await {
        // Data of an application has no lease.
        Ok(read) => Ok(read.value.kvs().first().map(KeyValue::lease).filter(|lease| *lease != 0)),
        Err(error) if error.kind() == ErrorKind::Denied => Ok(None),
        Err(error) => Err(error),
    }
}

/// A queue for display. A holder or waiter that has left since the read is not shown.
async fn view(members: &Members, name: LockName, queue: KeyQueue) -> Result<LockView, BackendError> {
    let holders = with_time_left(members, queue.holders()).await?;
    let now = members.host.now().wall;
    let waiters = queue.places[queue.leading()..].iter().map(|place| waiter(place, now)).collect();
    Ok(LockView::new(name, holders, waiters, token(queue.revision)))
}

pub(crate) async fn with_time_left(
    members: &Members,
    holders: &[QueueKey],
) -> Result<Vec<HolderView>, BackendError> {
    let patience = members.config.response_timeout;
    let asking: Vec<_> = holders.iter().map(|place| members.time_left(place.lease, patience)).collect();
    let left: Vec<Result<_, BackendError>> = stream::iter(asking).buffered(AT_ONCE).collect().await;
    let view = |(place, left): (&QueueKey, Result<Option<Duration>, _>)| {
        left.map(|left| left.map(|left| holder(place, Some(left)))).transpose()
    };
    holders.iter().zip(left).filter_map(view).collect()
}

/// Every queue whose name starts with `prefix`. Keys that are not places in a queue are skipped.
pub(crate) async fn queues(members: &Members, prefix: &str) -> Result<Vec<LockView>, BackendError> {
    let mut queues = BTreeMap::<LockName, Vec<QueueKey>>::new();
    let start = format!("{}{prefix}", members.config.prefix).into_bytes();
    let end = end_of(&start);
    let (mut from, mut revision) = (start, 0);
    loop {
        let page = page(members, &from, &end, revision).await?;
        revision = page.header().map_or(0, |header| header.revision()).max(revision);
        for kv in page.kvs() {
            match named(members, kv) {
                Some((name, place)) => queues.entry(name).or_default().push(place),
                None if is_newer(kv) => return Err(error::newer(kv.key())),
                None => {}
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
        let view = view(members, name, KeyQueue { places, revision }).await?;
        if !view.holders.is_empty() || !view.queue.is_empty() {
            views.push(view);
        }
    }
    Ok(views)
}

async fn page(
    members: &Members,
    from: &[u8],
    end: &[u8],
    revision: i64,
) -> Result<GetResponse, BackendError> {
    let request = async |mut client: Client| {
        let from = if from.is_empty() { &[0] } else { from };
        let options = GetOptions::new().with_range(end).with_limit(PAGE).with_revision(revision);
        client.get(from, Some(options)).await
    };
    Ok(members.ask(members.config.response_timeout, request).await?.value)
}

/// The lock that a key belongs to.
fn named(members: &Members, kv: &KeyValue) -> Option<(LockName, QueueKey)> {
    let end = kv.key().iter().rposition(|byte| *byte == b'/')?;
    let name = kv.key()[..end].strip_prefix(members.config.prefix.as_bytes())?;
    let name = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
    Some((name, QueueKey::read(&kv.key()[..=end], kv)?))
}

/// A holder, with the time that its lease has left.
pub(crate) fn holder(place: &QueueKey, expires_in: Option<Duration>) -> HolderView {
    let ours = place.ours.as_ref();
    let mut holder = HolderView::new(owner(place), place.mode());
    holder.token = ours.filter(|value| !value.waits).map(|_| token(place.created));
    holder.label = ours.map(|value| value.label.clone());
    holder.since = ours.map(|value| Duration::from_millis(value.since_ms));
    holder.expires_in = expires_in;
    holder
}

fn waiter(place: &QueueKey, now: Duration) -> WaiterView {
    let ours = place.ours.as_ref();
    let since = ours.map(|value| Duration::from_millis(value.since_ms));
    let waiting = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
    WaiterView::new(owner(place), place.mode(), ours.map(|value| value.label.clone()), waiting)
}

/// The owner, or the lease of a foreign client.
fn owner(place: &QueueKey) -> String {
    let ours = place.ours.as_ref();
    ours.map_or_else(|| format!("lease {:x}", place.lease), |value| value.owner.to_string())
}

/// The first key after all that begin with `start`; `\0`, as etcd writes "no end", if there is none.
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

/// Keys that one request of `list` reads.
const PAGE: i64 = 1000;

/// Requests for time left that are in flight at the same time.
const AT_ONCE: usize = 64;
