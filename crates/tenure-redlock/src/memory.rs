//! `QuorumMemory`: what this process knows of its owners: which nodes have not answered their claims, which owners
//! must not be used again (spent owners), and where they have asked for a slot. It also has hints that save round
//! trips. All handles share it.
//!
//! # A release that must not come before a claim (L8)
//! A majority decides a claim, and the claim may be released before the last node has answered it. On that node the
//! release could come first, and free nothing. So the node is *in flight* until its answer is read, or is not awaited
//! any more. It is entered before the request is sent, and only the task that reads the answers removes it. A caller
//! that is dropped changes nothing. At such a node a release waits for that, for 250 ms at most, in case the runtime
//! of that task stands still. Then the release is sent, and the task repeats it when the node has answered the claim.
//!
//! If the caller of a claim was dropped, it is the engine that releases the claim, for every store.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use tenure_core::{BackendError, ErrorKind, LockName, Outcome, OwnerId, locked};
use tokio::sync::{Notify, watch};

use crate::ballot::Nodes;

/// How many spent owners are remembered: those of some seconds, if thousands are released in each. An owner that is
/// used again later may lose a node that hung all the time and has its release pending. The engine never uses an
/// owner again.
const SPENT_MAX: usize = 65_536;

/// How many owners are remembered that ask for slots; the oldest are forgotten, and the ttl ends their
/// leases.
const SEARCHES_MAX: usize = 4096;

/// How many names are remembered with the nodes that hold them; with more, all are forgotten.
const HELD_MAX: usize = 4096;

/// A semaphore has no more slots: each is a separate lock on every node.
pub(crate) const SLOTS_MAX: u32 = 1024;

/// One owner at one lock.
pub(crate) type OwnerAtLock = (OwnerId, LockName);

/// The memory of one process, shared by its handles.
pub(crate) struct QuorumMemory {
    /// Every task of every handle has a receiver.
    tasks: watch::Sender<()>,
    /// The number of split votes in a row. A hint, as `held` is: both save round trips.
    splits: AtomicU32,
    owners: Mutex<OwnerMemory>,
    /// The nodes that a holder of a lock has, while the other nodes are free.
    held: Mutex<HashMap<LockName, Nodes>>,
}

struct OwnerMemory {
    in_flight: HashMap<OwnerAtLock, UnansweredNodes>,
    spent: Recent<()>,
    searches: Recent<SlotSearch>,
}

/// A claim that some nodes may not have answered.
struct UnansweredNodes {
    nodes: AwaitedNodes,
    /// Its owner has been released since it began.
    is_released: bool,
    /// At these the release did not wait for the answer.
    released: Nodes,
}

/// A claim in flight, in the hands of the task that reads the answers.
pub(crate) struct InFlightClaim {
    memory: Arc<QuorumMemory>,
    key: OwnerAtLock,
    nodes: AwaitedNodes,
}

/// Nodes whose answers are awaited; `None` once the task that reads them has ended. Not tokio's `watch`, which wakes
/// in another order in each run: one seed would not be one history.
#[derive(Clone)]
pub(crate) struct AwaitedNodes(Arc<(Mutex<Option<Nodes>>, Notify)>);

impl AwaitedNodes {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(Some(Nodes::default())), Notify::new())))
    }

    fn get(&self) -> Option<Nodes> {
        *locked(&self.0.0)
    }

    fn set(&self, nodes: Option<Nodes>) {
        *locked(&self.0.0) = nodes;
        self.0.1.notify_waiters();
    }

    /// True if this node has not answered, and may yet.
    pub(crate) fn contains(&self, node: usize) -> bool {
        self.get().is_some_and(|nodes| nodes.contains(node))
    }

    /// Waits until `is_true` is true of them.
    pub(crate) async fn until(&self, is_true: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.0.1.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if is_true(self) {
                return;
            }
            changed.await;
        }
    }
}

impl Default for QuorumMemory {
    fn default() -> Self {
        let owners = OwnerMemory {
            in_flight: HashMap::new(),
            spent: Recent::new(SPENT_MAX),
            searches: Recent::new(SEARCHES_MAX),
        };
        Self {
            tasks: watch::Sender::new(()),
            splits: AtomicU32::new(0),
            owners: Mutex::new(owners),
            held: Mutex::default(),
        }
    }
}

impl QuorumMemory {
    fn owners(&self) -> MutexGuard<'_, OwnerMemory> {
        // OK because the maps agree whenever code that can panic runs.
        locked(&self.owners)
    }

    /// Begins a claim, after an earlier one of this owner. `None` if the owner has released something here: a release
    /// that is still in flight would free what is granted to the owner now (H3.4).
    pub(crate) async fn begin(self: &Arc<Self>, key: OwnerAtLock) -> Option<InFlightClaim> {
        loop {
            let earlier = {
                let mut owners = self.owners();
                if owners.spent.contains(&key) {
                    return None;
                }
                match owners.in_flight.get(&key) {
                    Some(earlier) => earlier.nodes.clone(),
                    None => {
                        let nodes = AwaitedNodes::new();
                        let unanswered = UnansweredNodes {
                            nodes: nodes.clone(),
                            is_released: false,
                            released: Nodes::default(),
                        };
                        owners.in_flight.insert(key.clone(), unanswered);
                        return Some(InFlightClaim { memory: self.clone(), key, nodes });
                    }
                }
            };
            earlier.until(|nodes| nodes.get().is_none()).await;
        }
    }

    /// Call it before this owner is released at all nodes. Returns the nodes that have not answered its claim. The
    /// owner is spent: a release that reaches a node late would free what this owner is granted there next (H3.4).
    pub(crate) fn on_release(&self, key: &OwnerAtLock) -> Option<AwaitedNodes> {
        let mut owners = self.owners();
        owners.spent.insert(key.clone(), ());
        let unanswered = owners.in_flight.get_mut(key)?;
        unanswered.is_released = true;
        Some(unanswered.nodes.clone())
    }

    /// Notes that the owner is released at this node although its claim is not answered, unless it is by now.
    pub(crate) fn release_again_when_answered(&self, key: &OwnerAtLock, node: usize) {
        let mut owners = self.owners();
        let unanswered = owners.in_flight.get_mut(key);
        if let Some(unanswered) = unanswered.filter(|unanswered| unanswered.nodes.contains(node)) {
            unanswered.released.insert(node);
        }
    }

    /// Call it before the first slot is asked for. Returns what is known already of an owner that asks again.
    pub(crate) fn begin_search(&self, key: &OwnerAtLock, slots: NonZeroU32, from: u32) -> SlotSearch {
        let mut owners = self.owners();
        if let Some(search) = owners.searches.get_mut(key) {
            return *search;
        }
        let search = SlotSearch { slots: slots.get(), next: from, tried: 0, place: None };
        owners.searches.insert(key.clone(), search);
        search
    }

    /// The owner will ask again, from there.
    pub(crate) fn set_search(&self, key: &OwnerAtLock, search: SlotSearch) {
        if let Some(known) = self.owners().searches.get_mut(key) {
            *known = search;
        }
    }

    pub(crate) fn search(&self, key: &OwnerAtLock) -> Option<SlotSearch> {
        self.owners().searches.get_mut(key).copied()
    }

    /// The owner is at no slot any more, or at one by whose name it is released.
    pub(crate) fn end_search(&self, key: &OwnerAtLock) {
        self.owners().searches.remove(key);
    }

    pub(crate) fn held(&self, name: &LockName) -> Option<Nodes> {
        let held = locked(&self.held);
        if held.is_empty() { None } else { held.get(name).copied() }
    }

    pub(crate) fn set_held(&self, name: &LockName, nodes: Option<Nodes>) {
        let mut held = locked(&self.held);
        match nodes {
            None => {
                held.remove(name);
            }
            Some(nodes) => {
                if held.len() >= HELD_MAX {
                    held.clear();
                }
                held.insert(name.clone(), nodes);
            }
        }
    }

    /// A quorum granted, or one holder refused: there was no split vote.
    pub(crate) fn agreed(&self) {
        self.splits.store(0, Ordering::Relaxed);
    }

    /// Another split vote; how many there were in a row, this one included.
    pub(crate) fn split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// A task keeps this for as long as it runs.
    pub(crate) fn on_task(&self) -> watch::Receiver<()> {
        self.tasks.subscribe()
    }

    /// Waits until no task runs, in any handle of this process.
    pub(crate) async fn drained(&self) {
        self.tasks.closed().await;
    }
}

impl InFlightClaim {
    /// Sets which nodes have not answered now. Call it before requests are sent, and when answers are read. False if
    /// the owner has been released since the claim began: then no more may be sent.
    pub(crate) fn set_unanswered(&self, nodes: Nodes) -> bool {
        // Under this lock: a release waits for what is sent before it, and what would be sent after it is not sent.
        let owners = self.memory.owners();
        let is_released = owners.in_flight.get(&self.key).is_some_and(|unanswered| unanswered.is_released);
        let nodes = if is_released { nodes.and(self.nodes.get().unwrap_or_default()) } else { nodes };
        self.nodes.set(Some(nodes));
        !is_released
    }

    /// The owner has been released since this claim began.
    pub(crate) fn is_released(&self) -> bool {
        let owners = self.memory.owners();
        owners.in_flight.get(&self.key).is_some_and(|unanswered| unanswered.is_released)
    }

    /// The node has answered, after a release that did not wait for it.
    pub(crate) fn is_to_be_released_again(&self, node: usize) -> bool {
        let mut owners = self.memory.owners();
        let unanswered = owners.in_flight.get_mut(&self.key);
        unanswered.is_some_and(|unanswered| {
            let is_released = unanswered.released.contains(node);
            unanswered.released.remove(node);
            is_released
        })
    }
}

impl Drop for InFlightClaim {
    /// Even if the runtime of its task has ended.
    fn drop(&mut self) {
        self.memory.owners().in_flight.remove(&self.key);
        self.nodes.set(None);
    }
}

/// What is known of `most` owners; of more, the oldest are forgotten.
struct Recent<V> {
    most: usize,
    known: HashMap<OwnerAtLock, V>,
    by_age: VecDeque<OwnerAtLock>,
}

impl<V> Recent<V> {
    fn new(most: usize) -> Self {
        Self { most, known: HashMap::new(), by_age: VecDeque::new() }
    }

    fn contains(&self, key: &OwnerAtLock) -> bool {
        self.known.contains_key(key)
    }

    fn get_mut(&mut self, key: &OwnerAtLock) -> Option<&mut V> {
        self.known.get_mut(key)
    }

    fn insert(&mut self, key: OwnerAtLock, value: V) -> Option<V> {
        let before = self.known.insert(key.clone(), value);
        if before.is_none() {
            self.by_age.push_back(key);
        }
        if self.by_age.len() > self.most
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        before
    }

    fn remove(&mut self, key: &OwnerAtLock) {
        if self.known.remove(key).is_some() {
            self.by_age.retain(|other| other != key);
        }
    }
}

/// The slots that an owner has asked for. A semaphore of k is k mutexes, its slots `name#1` … `name#k`. The name of a
/// semaphore and the owner alone do not show these slots, and a release must reach them all.
///
/// Why not counted: with k permits on each of N nodes, there are up to N·k/q holders (H6.1: three for k = 2 on three
/// nodes), because two holders need not share a node. A quorum holds a slot, so each slot has one holder, with a
/// separate token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSearch {
    /// How many slots there are.
    pub(crate) slots: u32,
    /// The slot from which to continue.
    pub(crate) next: u32,
    /// How many have been asked for, up to and including `next`.
    pub(crate) tried: u32,
    /// The slot at which it has a place.
    pub(crate) place: Option<u32>,
}

impl SlotSearch {
    /// The next slot, which counts as asked for from here on.
    pub(crate) fn step(&mut self) -> u32 {
        self.next = self.next % self.slots + 1;
        self.tried = (self.tried + 1).min(self.slots);
        self.next
    }

    /// The slots that were asked for, and no other: only those can have something of the owner.
    pub(crate) fn asked(self) -> impl Iterator<Item = u32> {
        let Self { slots, next, .. } = self;
        // A search that was only begun has asked for none.
        (0..self.tried).map(move |back| (next + slots - 1 - back) % slots + 1)
    }
}

/// The name of a slot, counted from 1.
///
/// # Errors
/// `Invalid` if it would be too long.
pub(crate) fn slot(name: &LockName, number: u32) -> Result<LockName, BackendError> {
    LockName::new(format!("{name}#{number}")).map_err(|error| {
        BackendError::new(ErrorKind::Invalid, Outcome::NotApplied, error.to_string()).with("slot of", name)
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tenure_core::ProcessId;

    use super::*;

    fn owner_at_lock(bits: u8) -> OwnerAtLock {
        let owner = OwnerId::from_random(ProcessId::from_random([7; 8]), [bits; 16]);
        (owner, LockName::new("gpu#1").unwrap())
    }

    fn nodes(nodes: &[usize]) -> Nodes {
        nodes.iter().copied().collect()
    }

    /// H3.4, L1: an owner that moves its place from one slot to another must not be granted the first one again: the
    /// release there is still under way, and would free the new grant. With no ballot under way, the release spends
    /// the owner too.
    #[test]
    fn whoever_moved_its_place_does_not_come_back() {
        let (memory, leaver) = (Arc::new(QuorumMemory::default()), owner_at_lock(1));
        drop(memory.begin(leaver.clone()).now_or_never().unwrap().unwrap());
        assert!(memory.on_release(&leaver).is_none(), "nothing is in flight");
        assert!(memory.begin(leaver).now_or_never().unwrap().is_none());
        assert!(memory.begin(owner_at_lock(2)).now_or_never().unwrap().is_some(), "others go on");
    }

    /// L8: a release waits for what is sent before it, and what would be sent after it is not sent.
    #[test]
    fn a_release_waits_for_the_nodes_that_have_not_answered_and_no_more_are_asked() {
        let (memory, key) = (Arc::new(QuorumMemory::default()), owner_at_lock(1));
        let claim = memory.begin(key.clone()).now_or_never().unwrap().unwrap();
        assert!(claim.set_unanswered(nodes(&[0, 1])));
        let unanswered = memory.on_release(&key).unwrap();
        memory.release_again_when_answered(&key, 1);
        assert!(!claim.set_unanswered(nodes(&[1, 2])), "it is released");
        assert_eq!(unanswered.get(), Some(nodes(&[1])), "node 2 was not asked");
        assert!(!claim.is_to_be_released_again(0) && claim.is_to_be_released_again(1));
        claim.set_unanswered(Nodes::default());
        memory.release_again_when_answered(&key, 1);
        assert!(!claim.is_to_be_released_again(1), "it has answered: the release came behind that");
        drop(claim);
        assert_eq!(unanswered.get(), None, "the waiters are notified");
        assert!(memory.on_release(&key).is_none());
    }

    /// H3.4: one owner has one claim at a time.
    #[test]
    fn a_claim_begins_when_the_earlier_one_of_its_owner_has_ended() {
        let (memory, key) = (Arc::new(QuorumMemory::default()), owner_at_lock(1));
        let first = memory.begin(key.clone()).now_or_never().unwrap().unwrap();
        let mut second = std::pin::pin!(memory.begin(key));
        assert!(second.as_mut().now_or_never().is_none());
        first.set_unanswered(nodes(&[0]));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().unwrap().is_some());
    }

    /// A release to every possible slot, asked for or not, takes 5 GB with 400 million of them, and aborts.
    #[test]
    fn only_the_slots_that_were_asked_for_are_released() {
        let mut search = SlotSearch { slots: 5, next: 3, tried: 0, place: None };
        assert_eq!(search.asked().count(), 0);
        let stepped = [search.step(), search.step(), search.step()];
        assert_eq!((stepped, search.asked().collect::<Vec<_>>()), ([4, 5, 1], vec![1, 5, 4]));
        for _ in 0..7 {
            search.step();
        }
        let mut all: Vec<_> = search.asked().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        let huge = SlotSearch { slots: u32::MAX / 2, next: 7, tried: 2, place: None };
        assert_eq!(huge.asked().collect::<Vec<_>>(), [7, 6]);
    }
}
