//! `Memory`: the attempts of this process: the current ballot of each, the owners that must not be used again (spent
//! owners), and hints that save round trips. Shared by all handles.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use tenure_core::{LockName, OwnerId, locked};
use tokio::sync::Notify;

use crate::ballot::Nodes;

/// How many spent owners are remembered: those of some seconds, if thousands are released in each. An owner that comes back later
/// may lose a node that hung all the time and is still owed its release; the engine never comes back.
const SPENT_MAX: usize = 65_536;

/// Attempts of which it is remembered where they have places; more, and all are forgotten.
const PLACES_MAX: usize = 65_536;

/// Names of which it is remembered where they are held; more, and all are forgotten.
const HELD_MAX: usize = 4096;

/// The memory of one process, shared by its handles.
#[derive(Default)]
pub(crate) struct Memory {
    /// Tasks of all handles, and when the last one has ended.
    under_way: AtomicUsize,
    idle: Notify,
    /// The number of split votes in a row. A hint, as `held` is: both save round trips.
    splits: AtomicU32,
    attempts: Mutex<Attempts>,
    /// The nodes that a holder of a lock has, while the other nodes are free.
    held: Mutex<HashMap<LockName, Nodes>>,
}

/// A task under way, for as long as this is there.
pub(crate) struct UnderWay(Arc<Memory>);

impl UnderWay {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        memory.under_way.fetch_add(1, Ordering::AcqRel);
        Self(memory)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The current ballot of each attempt, and the spent owners.
#[derive(Default)]
struct Attempts {
    ballots: u64,
    live: HashMap<Attempt, Live>,
    spent: HashSet<Attempt>,
    by_age: VecDeque<Attempt>,
    /// Nodes at which an attempt that waits has places.
    places: HashMap<Attempt, Nodes>,
}

/// A ballot under way.
struct Live {
    number: u64,
    /// Nodes that were asked and have not answered.
    pending: Nodes,
    /// The owner has left all nodes. At these it found nothing, and they had not answered its claim: what they answer
    /// late is the ballot's to give back.
    left: Option<Nodes>,
}

/// Nodes where the claim of an owner that leaves may come after its release.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Late {
    /// Those that have not answered its claim.
    pending: Nodes,
    /// Those that had a place of its: what was left there may have been that.
    places: Nodes,
}

impl Late {
    /// Whether its claim may come yet, if a release was answered so.
    pub(crate) fn may_come(self, node: usize, is_released: bool) -> bool {
        self.pending.contains(node) && (!is_released || self.places.contains(node))
    }
}

/// One owner's try for one lock.
pub(crate) type Attempt = (OwnerId, LockName);

/// A ballot under way, as the memory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    attempt: Attempt,
    number: u64,
}

impl Attempts {
    fn is_live(&self, ticket: &Ticket) -> bool {
        self.live.get(&ticket.attempt).is_some_and(|live| live.number == ticket.number)
    }

    fn set_spent(&mut self, attempt: &Attempt) {
        if self.spent.insert(attempt.clone()) {
            self.by_age.push_back(attempt.clone());
            if self.by_age.len() > SPENT_MAX
                && let Some(oldest) = self.by_age.pop_front()
            {
                self.spent.remove(&oldest);
            }
        }
    }
}

impl Memory {
    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        // OK because the maps agree whenever code that can panic runs.
        locked(&self.attempts)
    }

    /// Begins a ballot, in place of one of the same attempt whose caller has gone; `None` if something was given back
    /// under that owner: a release that is still under way would free what is granted to it now (H3.4).
    pub(crate) fn begin(&self, attempt: Attempt) -> Option<Ticket> {
        let mut attempts = self.attempts();
        if attempts.spent.contains(&attempt) {
            return None;
        }
        attempts.ballots += 1;
        let number = attempts.ballots;
        attempts.live.insert(attempt.clone(), Live { number, pending: Nodes::default(), left: None });
        Some(Ticket { attempt, number })
    }

    /// Before anything is given back. False if the attempt has gone on with another ballot, which wants what is there.
    pub(crate) fn spend(&self, ticket: &Ticket) -> bool {
        let mut attempts = self.attempts();
        let is_current = attempts.is_live(ticket);
        if is_current {
            attempts.set_spent(&ticket.attempt);
            attempts.places.remove(&ticket.attempt);
        }
        is_current
    }

    /// Before this owner leaves all nodes; those where its claim may come after that. It is spent: a release that reaches a node late
    /// would free what this owner is granted there next (H3.4).
    pub(crate) fn withdraw(&self, attempt: &Attempt) -> Late {
        let mut attempts = self.attempts();
        attempts.set_spent(attempt);
        let places = attempts.places.remove(attempt).unwrap_or_default();
        let Some(live) = attempts.live.get_mut(attempt) else { return Late::default() };
        live.left.get_or_insert_default();
        Late { pending: live.pending, places }
    }

    /// The attempt waits, and has places at these nodes.
    pub(crate) fn on_places(&self, ticket: &Ticket, nodes: Nodes) {
        let mut attempts = self.attempts();
        if attempts.spent.contains(&ticket.attempt) {
            return;
        }
        if attempts.places.len() >= PLACES_MAX {
            attempts.places.clear();
        }
        attempts.places.entry(ticket.attempt.clone()).or_default().add(nodes);
    }

    /// It found nothing to leave at this node, or does not know: the release may have come before the claim. True if
    /// the ballot sees to it when the node answers; otherwise the node has answered meanwhile.
    pub(crate) fn leave_to_ballot(&self, attempt: &Attempt, node: usize) -> bool {
        let mut attempts = self.attempts();
        let live = attempts.live.get_mut(attempt).filter(|live| live.pending.contains(node));
        live.and_then(|live| live.left.as_mut()).map(|left| left.insert(node)).is_some()
    }

    /// From whom the ballot waits for an answer now; which nodes are left to it, if its owner has left them all.
    pub(crate) fn set_pending(&self, ticket: &Ticket, pending: Nodes) -> Option<Nodes> {
        let mut attempts = self.attempts();
        let live = attempts.live.get_mut(&ticket.attempt).filter(|live| live.number == ticket.number)?;
        live.pending = pending;
        live.left
    }

    /// The ballot is over, and nothing of it is under way.
    pub(crate) fn end(&self, ticket: &Ticket) {
        let mut attempts = self.attempts();
        if attempts.is_live(ticket) {
            attempts.live.remove(&ticket.attempt);
        }
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

    /// A quorum was found, or refused by one holder: there was no split vote.
    pub(crate) fn agreed(&self) {
        self.splits.store(0, Ordering::Relaxed);
    }

    /// Another split vote; how many there were in a row, this one included.
    pub(crate) fn split(&self) -> u32 {
        self.splits.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Waits until no task is under way, in any handle of this process.
    pub(crate) async fn drained(&self) {
        loop {
            let changed = self.idle.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    fn attempt(bits: u8) -> Attempt {
        let owner = OwnerId::from_random(ProcessId::from_random([7; 8]), [bits; 16]);
        (owner, LockName::new("gpu#1").unwrap())
    }

    /// H3.4, L1: whoever moved its place from one slot to another was granted the first one again while its leaving was
    /// under way, and that freed what it was granted. With no ballot under way, leaving did not spend the owner.
    #[test]
    fn whoever_moved_its_place_does_not_come_back() {
        let (memory, leaver) = (Memory::default(), attempt(1));
        let ticket = memory.begin(leaver.clone()).unwrap();
        memory.end(&ticket);
        assert!(!memory.withdraw(&leaver).may_come(0, false), "nothing is under way");
        assert_eq!(memory.begin(leaver), None);
        assert!(memory.begin(attempt(2)).is_some(), "others go on");
    }
}
