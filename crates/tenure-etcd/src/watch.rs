//! Hints: the changes that owners wait for, and one stream of them per process, on a separate thread.
//!
//! Every waiter relies on the stream, and a runtime of the program may end or rest. So neither the task that reads it
//! nor its connection belongs to a runtime. The stream is attached again here when it breaks or its member is left.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use etcd_client::{
    Client, Error, EventType, GetOptions, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchStream,
};
use tenure_core::{Audience, BoxFuture, Mode, Moment, Notifier, OwnerId, locked};
use tokio::sync::Notify;

use crate::{
    members::Members,
    queue::{KeyQueue, QueueKey},
};

/// Ends the stream when the last handle is dropped.
pub(crate) struct Watching(pub(crate) Arc<ChangeWatcher>);

impl Drop for Watching {
    fn drop(&mut self) {
        locked(&self.0.wishes).is_closed = true;
        self.0.changed.notify_one();
    }
}

/// The changes that the owners of one process wait for. Only hints depend on it.
pub(crate) struct ChangeWatcher {
    /// The members to which claims are sent.
    members: Arc<Members>,
    notifier: Notifier,
    wishes: Mutex<Wishes>,
    changed: Notify,
}

impl ChangeWatcher {
    pub(crate) fn new(members: Arc<Members>, notifier: Notifier) -> Arc<Self> {
        Arc::new(Self { members, notifier, wishes: Mutex::default(), changed: Notify::new() })
    }

    /// Notifies the owner when the awaited change happens, from this revision on. Each owner has one wish: the last
    /// one.
    pub(crate) fn listen(self: &Arc<Self>, owner: OwnerId, awaited: AwaitedChange, from: i64) {
        let now = self.members.host.now();
        let is_holder = awaited.audience == Audience::Holders;
        let mut wishes = locked(&self.wishes);
        let before = wishes.of.get(&owner);
        if before.is_some_and(|wish| wish.awaited == awaited) || before.is_none() && wishes.of.len() >= KEPT {
            return;
        }
        wishes.forget(owner);
        wishes.next_id += 1;
        let due = is_holder.then(|| now + HOLDERS_LISTEN_AFTER);
        let wish = Wish { id: wishes.next_id, awaited, from, due, is_sent: false };
        wishes.of.insert(owner, wish);
        let is_looked_for = is_holder && wishes.next_look.is_some();
        let is_served = std::mem::replace(&mut wishes.is_served, true);
        drop(wishes);
        if !is_served {
            self.serve();
        } else if !is_looked_for {
            // The task finds a holder's wish when an earlier one is due: not every grant costs a wakeup.
            self.changed.notify_one();
        }
    }

    fn serve(self: &Arc<Self>) {
        // Its connections end with its thread.
        let members = Arc::new(self.members.beside());
        let served = Served { watcher: self.clone(), members, has_retired: false };
        let start = move || -> BoxFuture<'static, ()> { Box::pin(served.serve()) };
        if let Err(error) = self.members.host.spawn_apart("tenure-etcd", Box::new(start)) {
            tracing::warn!(%error, "no thread can be started: waiters hear of no release, and ask again");
        }
    }

    /// This owner needs no more hints.
    pub(crate) fn forget(&self, owner: OwnerId) {
        let mut wishes = locked(&self.wishes);
        if wishes.forget(owner) {
            drop(wishes);
            self.changed.notify_one();
        }
    }

    /// Notifies the owner of what has happened, and remembers where to continue.
    fn on_response(self: &Arc<Self>, members: &Arc<Members>, response: &WatchResponse) {
        let mut wishes = locked(&self.wishes);
        let found = wishes.of.iter_mut().find(|(_, wish)| wish.id == response.watch_id());
        let Some((&owner, wish)) = found else { return };
        let audience = wish.awaited.audience;
        if let Some(header) = response.header()
            && (!response.created() || wish.begins_now())
        {
            let next = header.revision() + 1;
            let before = wish.from;
            wish.from = next.max(before);
            if response.created() && next > before {
                let (watcher, members) = (self.clone(), members.clone());
                let wish = Wish { from: before, ..wish.clone() };
                let look = async move { watcher.look_back(&members, owner, wish).await };
                self.members.host.spawn(Box::pin(look));
            }
        }
        let is_over = response.canceled();
        let happened = response.events().iter().any(|event| {
            let is_wanted = wish.awaited.entries || event.event_type() == EventType::Delete;
            is_wanted && event.kv().is_some_and(|kv| wish.awaited.is_about(kv.key()))
        });
        let is_deleted = matches!(wish.awaited.sight, WatchedKeys::Key(_))
            && response.events().iter().any(|event| event.event_type() == EventType::Delete);
        if is_over && response.compact_revision() > 0 {
            // Changes before that revision are gone: the owner that is notified now finds them by asking again.
            wishes.renew(owner, response.compact_revision());
            self.changed.notify_one();
        } else if is_over {
            // The watch is not allowed: an owner that asks again listens again.
            wishes.of.remove(&owner);
        } else if is_deleted {
            wishes.forget(owner);
        }
        drop(wishes);
        if happened || is_over {
            self.notifier.notify(audience, owner);
        }
    }

    /// The store has changed since the queue was read: notifies if the awaited change happened before the watch
    /// began.
    async fn look_back(&self, members: &Members, owner: OwnerId, wish: Wish) {
        let WatchedKeys::Key(key) = &wish.awaited.sight else {
            self.notifier.notify(wish.awaited.audience, owner);
            return;
        };
        let (key, options) = (&key[..], || GetOptions::new().with_keys_only());
        let request = async |mut client: Client| client.get(key, Some(options())).await;
        let read = members.ask(members.config.response_timeout, request).await;
        let is_as_before = read.is_ok_and(|read| {
            read.value.kvs().first().is_some_and(|kv| {
                kv.create_revision() < wish.from && (!wish.awaited.entries || kv.mod_revision() < wish.from)
            })
        });
        if !is_as_before {
            self.notifier.notify(wish.awaited.audience, owner);
        }
    }

    /// The wishes to send now, the watches to cancel, and when to check again at the latest.
    fn due(&self) -> (Vec<Wish>, Vec<i64>, Option<Moment>) {
        let now = self.members.host.now();
        let mut wishes = locked(&self.wishes);
        let (mut ready, mut next) = (Vec::new(), None::<Moment>);
        for wish in wishes.of.values_mut().filter(|wish| !wish.is_sent) {
            match wish.due.filter(|due| !due.is_over(now)) {
                None => {
                    wish.is_sent = true;
                    ready.push(wish.clone());
                }
                Some(due) => next = Some(next.map_or(due, |next| next.earlier(due))),
            }
        }
        wishes.next_look = next;
        (ready, std::mem::take(&mut wishes.cancelled), next)
    }

    /// The stream broke: all is to be sent again.
    fn on_break(&self) {
        let mut wishes = locked(&self.wishes);
        wishes.cancelled.clear();
        wishes.next_look = None;
        wishes.of.values_mut().for_each(|wish| wish.is_sent = false);
    }

    fn is_closed(&self) -> bool {
        locked(&self.wishes).is_closed
    }

    /// True if something changed before this moment.
    async fn changed_until(&self, until: Moment) -> bool {
        tokio::select! {
            biased;
            () = self.changed.notified() => true,
            () = self.members.host.sleep_until(until) => false,
        }
    }
}

async fn send(sender: &mut WatchRequestSender, ready: Vec<Wish>, cancelled: Vec<i64>) -> Result<(), Error> {
    for id in cancelled {
        sender.cancel(id).await?;
    }
    for wish in ready {
        let (key, options) = wish.request();
        sender.watch(key, Some(options)).await?;
    }
    Ok(())
}

/// The task that serves; when it ends, even by a panic, the next wish starts another one.
struct Served {
    watcher: Arc<ChangeWatcher>,
    /// Over separate connections.
    members: Arc<Members>,
    has_retired: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.has_retired {
            self.watcher.on_break();
            locked(&self.watcher.wishes).is_served = false;
        }
    }
}

impl Served {
    /// Ends when there was no listener for a while, or the handle is gone.
    async fn serve(mut self) {
        let watcher = self.watcher.clone();
        let host = &watcher.members.host;
        let mut pause = PAUSE;
        loop {
            let (ready, _, next) = watcher.due();
            if watcher.is_closed() {
                return;
            }
            let Some((first, rest)) = ready.split_first() else {
                let until = next.unwrap_or_else(|| host.now() + LINGER);
                if !watcher.changed_until(until).await && next.is_none() && self.retires() {
                    return;
                }
                continue;
            };
            let mut current = self.members.follow();
            let index = *current.borrow_and_update();
            match self.attach(index, first, rest).await {
                Ok(stream) => {
                    pause = PAUSE;
                    self.read_stream(stream, &mut current).await;
                }
                Err(()) => {
                    self.members.leave(index);
                    self.members.pass_over(index);
                    host.sleep_until(host.now() + pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            watcher.on_break();
        }
    }

    async fn attach(&self, index: usize, first: &Wish, rest: &[Wish]) -> Result<WatchStream, ()> {
        let attach = async {
            let mut client: Client = self.members.client(index).await.map_err(drop)?;
            let (key, options) = first.request();
            let mut stream = client.watch(key, Some(options)).await.map_err(drop)?;
            for wish in rest {
                let (key, options) = wish.request();
                stream.watch(key, Some(options)).await.map_err(drop)?;
            }
            Ok(stream)
        };
        let host = &self.members.host;
        tokio::select! {
            biased;
            attached = attach => attached,
            () = host.sleep_until(host.now() + self.members.config.response_timeout) => Err(()),
        }
    }

    /// Reads the stream until it breaks, its member is left, or there is no listener.
    async fn read_stream(&self, stream: WatchStream, current: &mut tokio::sync::watch::Receiver<usize>) {
        let (mut sender, mut stream) = stream.split();
        let (watcher, host) = (&self.watcher, &self.members.host);
        let mut idle_until = host.now() + LINGER;
        loop {
            let (ready, cancelled, next) = watcher.due();
            let is_sent = self.is_sent(send(&mut sender, ready, cancelled), current).await;
            if watcher.is_closed() || !is_sent {
                return;
            }
            if !locked(&watcher.wishes).of.is_empty() {
                idle_until = host.now() + LINGER;
            }
            let until = next.unwrap_or(idle_until);
            let mut left = pin!(current.changed());
            tokio::select! {
                biased;
                message = stream.message() => match message {
                    Ok(Some(response)) => watcher.on_response(&self.members, &response),
                    Ok(None) | Err(_) => return,
                },
                _ = &mut left => return,
                is_changed = watcher.changed_until(until) => {
                    if !is_changed && next.is_none() && locked(&watcher.wishes).of.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// False if it cannot be sent. A connection that has stalled takes no more, and must keep the task neither from
    /// the end nor from another member.
    async fn is_sent(
        &self,
        sending: impl Future<Output = Result<(), Error>>,
        current: &mut tokio::sync::watch::Receiver<usize>,
    ) -> bool {
        let host = &self.members.host;
        tokio::select! {
            biased;
            sent = sending => sent.is_ok(),
            _ = current.changed() => false,
            () = host.sleep_until(host.now() + self.members.config.response_timeout) => false,
        }
    }

    /// True if there is nothing to do, and no owner can be added before the task ends.
    fn retires(&mut self) -> bool {
        let mut wishes = locked(&self.watcher.wishes);
        self.has_retired = wishes.of.is_empty();
        if self.has_retired {
            wishes.is_served = false;
        }
        self.has_retired
    }
}

#[derive(Default)]
struct Wishes {
    of: HashMap<OwnerId, Wish>,
    next_id: i64,
    /// Watches in the stream that are not needed any more.
    cancelled: Vec<i64>,
    /// When the task checks for wishes that are due, if it does.
    next_look: Option<Moment>,
    /// A task serves them.
    is_served: bool,
    is_closed: bool,
}

impl Wishes {
    /// The server has ended the watch, which is to be sent again and begin no sooner than this.
    fn renew(&mut self, owner: OwnerId, from: i64) {
        self.next_id += 1;
        if let Some(wish) = self.of.get_mut(&owner) {
            *wish = Wish { id: self.next_id, from: wish.from.max(from), is_sent: false, ..wish.clone() };
        }
    }

    /// True if the stream has a watch to cancel.
    fn forget(&mut self, owner: OwnerId) -> bool {
        let Some(wish) = self.of.remove(&owner) else { return false };
        if wish.is_sent {
            self.cancelled.push(wish.id);
        }
        wish.is_sent
    }
}

#[derive(Clone)]
struct Wish {
    id: i64,
    awaited: AwaitedChange,
    /// The first revision that is of interest.
    from: i64,
    /// Not before this moment.
    due: Option<Moment>,
    is_sent: bool,
}

impl Wish {
    /// A member serves watches that begin in the past only from time to time, up to 100 ms late. So a waiter's watch
    /// begins when the member receives it, and earlier changes are looked up. A holder is not in such a hurry.
    fn begins_now(&self) -> bool {
        self.awaited.audience == Audience::Waiters
    }

    fn request(&self) -> (Vec<u8>, WatchOptions) {
        let mut options = WatchOptions::new().with_watch_id(self.id);
        if !self.begins_now() {
            options = options.with_start_revision(self.from);
        }
        if !self.awaited.entries {
            options = options.with_filters([WatchFilterType::NoPut]);
        }
        match &self.awaited.sight {
            WatchedKeys::Key(key) => (key.clone(), options),
            WatchedKeys::Folder(folder, _) => (folder.clone(), options.with_prefix()),
        }
    }
}

/// The changes that an owner waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedChange {
    sight: WatchedKeys,
    /// Entries of new holders count, too; otherwise only keys that are deleted.
    entries: bool,
    audience: Audience,
}

/// One key is watched by itself, several as a whole folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WatchedKeys {
    /// One key.
    Key(Vec<u8>),
    /// These keys, all of one lock.
    Folder(Vec<u8>, HashSet<Vec<u8>>),
}

impl AwaitedChange {
    /// The change that the waiter at this place of the queue waits for. The first waiter waits for room; any other
    /// waiter waits until the one before it moves. So one change of owner wakes one waiter and no herd.
    pub(crate) fn by(queue: &KeyQueue, at: usize) -> Option<Self> {
        let (holders, me) = (queue.holders(), queue.places.get(at)?);
        if at > holders.len() {
            let before = &queue.places[at - 1];
            // If both are shared, they may enter together: the entry of the first notifies the second.
            let entries = before.mode() != Mode::Exclusive && me.mode() != Mode::Exclusive;
            return Some(Self::of(WatchedKeys::Key(before.key.clone()), entries));
        }
        let sight = match (holders, me.mode()) {
            ([holder], _) | ([.., holder], Mode::Exclusive) => WatchedKeys::Key(holder.key.clone()),
            _ => {
                WatchedKeys::Folder(folder_of(me), holders.iter().map(|holder| holder.key.clone()).collect())
            }
        };
        Some(Self::of(sight, false))
    }

    /// The change that a holder waits for: the deletion of its own key.
    pub(crate) fn end_of(key: Vec<u8>) -> Self {
        Self { sight: WatchedKeys::Key(key), entries: false, audience: Audience::Holders }
    }

    fn of(sight: WatchedKeys, entries: bool) -> Self {
        Self { sight, entries, audience: Audience::Waiters }
    }

    /// True if it waits for a change of this key.
    fn is_about(&self, key: &[u8]) -> bool {
        match &self.sight {
            WatchedKeys::Key(_) => true,
            WatchedKeys::Folder(_, keys) => keys.contains(key),
        }
    }
}

fn folder_of(place: &QueueKey) -> Vec<u8> {
    // OK because every place has a key with a slash before its lease.
    let end = place.key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    place.key[..end].to_vec()
}

/// How long the stream is kept without a listener.
const LINGER: Duration = Duration::from_secs(10);

/// The largest number of listening owners of one process; more get no hints.
const KEPT: usize = 1 << 16;

/// A holder is notified of a break, but one that leaves sooner than this need not listen.
const HOLDERS_LISTEN_AFTER: Duration = Duration::from_millis(100);

/// Pause after a stream that could not be attached anywhere.
const PAUSE: Duration = Duration::from_millis(200);
/// The same after several failures in a row. A login that is refused takes the server a tenth of a second, because it
/// hashes the password slowly on purpose. The logins of requests go first.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenure::backend::TokioHost;
    use tenure_core::{Label, OwnerId, ProcessId};

    use super::*;
    use crate::{config::Config, queue::Value};

    fn queue(modes: &[Mode]) -> KeyQueue {
        let place = |(n, mode): (usize, &Mode)| QueueKey {
            key: format!("l/{n}").into_bytes(),
            created: i64::try_from(n).unwrap(),
            modified: 1,
            lease: 1,
            ours: Some(Value {
                format: 0,
                owner: OwnerId::from_random(ProcessId::from_random([0; 8]), [0; 16]),
                mode: *mode,
                label: Label::default(),
                since_ms: 0,
                ttl_ms: 0,
                lease: 1,
                waits: false,
            }),
        };
        KeyQueue { places: modes.iter().enumerate().map(place).collect(), revision: 9 }
    }

    fn sight(modes: &[Mode], at: usize) -> (String, bool) {
        let awaited = AwaitedChange::by(&queue(modes), at).unwrap();
        let seen = match awaited.sight {
            WatchedKeys::Key(key) => String::from_utf8(key).unwrap(),
            WatchedKeys::Folder(folder, keys) => {
                format!("{} {}", String::from_utf8(folder).unwrap(), keys.len())
            }
        };
        (seen, awaited.entries)
    }

    #[test]
    fn everybody_waits_for_the_one_before_and_the_first_one_for_room() {
        let (read, alone) = (Mode::READ, Mode::Exclusive);
        let slots = Mode::permit(NonZeroU32::new(2).unwrap());
        assert_eq!(sight(&[alone, alone], 1), ("l/0".into(), false));
        assert_eq!(sight(&[alone, alone, alone], 2), ("l/1".into(), false));
        assert_eq!(sight(&[alone, read, read], 1), ("l/0".into(), false));
        assert_eq!(sight(&[alone, read, read], 2), ("l/1".into(), true));
        assert_eq!(sight(&[read, read, alone], 2), ("l/1".into(), false));
        assert_eq!(sight(&[read, alone, read], 2), ("l/1".into(), false));
        assert_eq!(sight(&[slots, slots, slots], 2), ("l/ 2".into(), false));
    }

    /// On a stalled connection, some hundred watches cannot be sent. The thread must not wait indefinitely: it must
    /// notice the end of its handle, and that another member is asked.
    #[tokio::test]
    async fn what_cannot_be_sent_is_waited_for_no_longer_than_an_answer() {
        let config = Arc::new(Config::from_url("etcd://a,b/?response_timeout=1s").unwrap());
        let members = Arc::new(Members::new(config, Arc::new(TokioHost), Arc::default()));
        let notifier = Notifier::default();
        let watcher = ChangeWatcher::new(members.clone(), notifier);
        let served = Served { watcher, members: members.clone(), has_retired: true };
        let mut current = members.follow();
        assert!(served.is_sent(async { Ok(()) }, &mut current).await);
        assert!(!served.is_sent(std::future::pending(), &mut current).await);
        members.pass_over(0);
        let began = members.host.now();
        assert!(!served.is_sent(std::future::pending(), &mut current).await);
        assert!(began.elapsed(members.host.now()) < Duration::from_secs(1), "another member is asked");
    }
}
