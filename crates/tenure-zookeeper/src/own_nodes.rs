//! `OwnNodes`: the nodes of one session, and until when each one is wanted.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tenure_core::{Audience, Claim, FencingToken, Mode, Moment, OwnerId, Timing};
use tokio::sync::oneshot;

use crate::node::Record;

/// A node that this session made, or may have made.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The directory of its lock.
    pub(crate) lock: String,
    pub(crate) mode: Mode,
    /// The node; `None` until its creation is confirmed.
    pub(crate) node: Option<Node>,
    pub(crate) record: Record,
    pub(crate) part: Part,
    /// When it is not wanted any more, unless its owner claims or renews before.
    due: Moment,
    /// It is being deleted, and does not hold the lock.
    is_leaving: bool,
    /// The session's own thread deletes it now.
    is_in_hand: bool,
    /// The nodes that it watches.
    watched: HashSet<String>,
    /// Ends the watches when the entry goes.
    watches: Vec<oneshot::Sender<()>>,
}

/// A node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) token: FencingToken,
}

/// The last answer to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It has not been told that it holds.
    New,
    /// It has been told that it waits, or may have been seen waiting.
    Waits,
    /// It has been told that it holds, at this time; whether its node is watched.
    Holds { since: Moment, is_watched: bool },
}

impl Entry {
    pub(crate) fn new(claim: &Claim, lock: String, now: Moment) -> Self {
        Self {
            lock,
            mode: claim.mode,
            node: None,
            record: Record::new(claim, now),
            part: Part::New,
            due: now + Timing::PLACE_TTL,
            is_leaving: false,
            is_in_hand: false,
            watched: HashSet::new(),
            watches: Vec::new(),
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.part, Part::Holds { .. }) && !self.is_leaving
    }

    pub(crate) fn audience(&self) -> Audience {
        if self.holds() { Audience::Holders } else { Audience::Waiters }
    }

    /// Its owner claims again: the place is kept for a while.
    pub(crate) fn ask(&mut self, now: Moment) {
        if !self.is_leaving && !self.holds() {
            self.keep_until(now + Timing::PLACE_TTL);
        }
    }

    /// Others may have seen it in the queue before it held.
    pub(crate) fn was_seen(&mut self) {
        if self.part == Part::New {
            self.part = Part::Waits;
        }
    }

    /// It is wanted until then, and longer if that was said before (H2.4).
    pub(crate) fn keep_until(&mut self, until: Moment) {
        self.due = self.due.later(until);
    }

    /// It holds from now on. True if it waited before, or others may think so.
    pub(crate) fn enter(&mut self, now: Moment, until: Moment) -> bool {
        if self.holds() {
            self.keep_until(until);
            return false;
        }
        let has_waited = self.part == Part::Waits;
        self.part = Part::Holds { since: now, is_watched: false };
        self.due = until;
        self.rung();
        has_waited
    }

    /// It does not hold the lock any more. The task that deletes its node has until then.
    pub(crate) fn leave(&mut self, due: Moment) {
        self.is_leaving = true;
        self.due = due;
    }

    pub(crate) fn watches(&self, node: &str) -> bool {
        self.watched.contains(node)
    }

    /// Whether it watches anything.
    pub(crate) fn is_watching(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Something happened to one of them: it looks again, and watches anew.
    pub(crate) fn rung(&mut self) {
        self.watched.clear();
        self.watches.clear();
    }

    /// Ends the watch of that node.
    pub(crate) fn unwatch(&mut self, node: &str) {
        self.watched.remove(node);
    }

    /// Its own node has to be watched again.
    pub(crate) fn on_unwatched(&mut self) {
        if let Part::Holds { is_watched, .. } = &mut self.part {
            *is_watched = false;
        }
    }

    /// Remembers that a node is watched; the watch ends with what is received.
    pub(crate) fn watch(&mut self, node: &str) -> oneshot::Receiver<()> {
        let (keep, end) = oneshot::channel();
        self.watched.insert(node.to_owned());
        self.watches.retain(|watch| !watch.is_closed());
        self.watches.push(keep);
        end
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct OwnNodes {
    entries: HashMap<OwnerId, Entry>,
    is_closed: bool,
}

/// A node that is to be deleted.
#[derive(Clone, Debug)]
pub(crate) struct Leaver {
    pub(crate) owner: OwnerId,
    pub(crate) lock: String,
    pub(crate) node: Option<Node>,
}

impl OwnNodes {
    /// False if the session is over.
    pub(crate) fn add(&mut self, owner: OwnerId, entry: Entry) -> bool {
        if !self.is_closed {
            self.entries.insert(owner, entry);
        }
        !self.is_closed
    }

    pub(crate) fn get(&mut self, owner: OwnerId) -> Option<&mut Entry> {
        self.entries.get_mut(&owner)
    }

    pub(crate) fn remove(&mut self, owner: OwnerId) -> Option<Entry> {
        self.entries.remove(&owner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Accepts no new node; the present ones are released.
    pub(crate) fn close(&mut self) -> HashMap<OwnerId, Entry> {
        self.is_closed = true;
        std::mem::take(&mut self.entries)
    }

    /// The owners to wake after the session was disconnected for a while.
    pub(crate) fn everybody(&self) -> Vec<(Audience, OwnerId)> {
        self.entries.iter().map(|(owner, entry)| (entry.audience(), *owner)).collect()
    }

    /// The nodes that are not wanted any more, for the caller to delete. They do not hold a lock from here on (L5).
    pub(crate) fn take_overdue(&mut self, now: Moment) -> Vec<Leaver> {
        let overdue =
            self.entries.iter_mut().filter(|(_, entry)| !entry.is_in_hand && entry.due.is_over(now));
        overdue
            .map(|(owner, entry)| {
                (entry.is_leaving, entry.is_in_hand) = (true, true);
                Leaver { owner: *owner, lock: entry.lock.clone(), node: entry.node.clone() }
            })
            .collect()
    }

    /// Whether there is an expired entry whose node may still exist.
    pub(crate) fn has_overdue(&self, now: Moment) -> bool {
        self.entries.values().any(|entry| entry.is_leaving || entry.due.is_over(now))
    }

    /// The node of one that was handed out is gone, as far as was known of it then.
    pub(crate) fn left(&mut self, leaver: &Leaver) {
        match self.entries.get_mut(&leaver.owner) {
            // Its making was answered meanwhile.
            Some(entry) if entry.node != leaver.node => entry.is_in_hand = false,
            _ => drop(self.entries.remove(&leaver.owner)),
        }
    }

    /// It could not be deleted yet.
    pub(crate) fn put_back(&mut self, owner: OwnerId) {
        if let Some(entry) = self.entries.get_mut(&owner) {
            entry.is_in_hand = false;
        }
    }

    /// Those who hold for a while already and whose nodes nobody watches, to be watched by the caller: a short turn
    /// does not
    /// pay for it.
    pub(crate) fn take_unwatched(&mut self, now: Moment) -> Vec<(OwnerId, String)> {
        let mut found = Vec::new();
        for (owner, entry) in &mut self.entries {
            if let (Part::Holds { since, is_watched: is_watched @ false }, Some(node)) =
                (&mut entry.part, &entry.node)
                && !entry.is_leaving
                && since.elapsed(now) >= SHORT_TURN
            {
                *is_watched = true;
                found.push((*owner, format!("{}/{}", entry.lock, node.name)));
            }
        }
        found
    }
}

const SHORT_TURN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Label, LockName, ProcessId, Wait};

    use super::*;

    fn at(secs: u64) -> Moment {
        Moment { boot: Duration::from_secs(secs), wall: Duration::from_secs(1_700_000_000 + secs) }
    }

    fn claim(n: u8) -> Claim {
        Claim {
            name: LockName::new("a").unwrap(),
            owner: OwnerId::from_random(ProcessId::from_random([0; 8]), [n; 16]),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(10),
            label: Arc::new(Label::default()),
            block: 1,
            wait: Wait::Turn,
            asker: Default::default(),
        }
    }

    fn with_one() -> (OwnNodes, OwnerId) {
        let (mut own_nodes, claim) = (OwnNodes::default(), claim(1));
        assert!(own_nodes.add(claim.owner, Entry::new(&claim, "/t/a".into(), at(0))));
        (own_nodes, claim.owner)
    }

    /// L5, L8: what is over stays over, and is handed out once for deletion.
    #[test]
    fn who_is_overdue_holds_nothing_and_is_deleted_by_one() {
        let (mut own_nodes, owner) = with_one();
        own_nodes.get(owner).unwrap().enter(at(1), at(11));
        assert!(own_nodes.take_overdue(at(10)).is_empty());
        assert_eq!(own_nodes.take_overdue(at(11)).len(), 1);
        assert!(!own_nodes.get(owner).unwrap().holds());
        assert!(own_nodes.take_overdue(at(12)).is_empty(), "it is in hand");
        assert!(own_nodes.has_overdue(at(12)));
        own_nodes.put_back(owner);
        assert_eq!(own_nodes.take_overdue(at(12)).len(), 1, "until it is done");
        own_nodes.remove(owner);
        assert!(!own_nodes.has_overdue(at(12)));
    }

    /// H2.4.
    #[test]
    fn a_lease_is_never_shortened() {
        let (mut own_nodes, owner) = with_one();
        let entry = own_nodes.get(owner).unwrap();
        entry.enter(at(1), at(11));
        entry.keep_until(at(5));
        assert!(!entry.enter(at(2), at(6)), "it held already");
        assert!(own_nodes.take_overdue(at(10)).is_empty());
    }

    #[test]
    fn a_holder_is_watched_once_and_not_at_once() {
        let (mut own_nodes, owner) = with_one();
        let entry = own_nodes.get(owner).unwrap();
        entry.node = Some(Node { name: "n".into(), token: FencingToken::new(1) });
        entry.enter(at(1), at(11));
        assert!(own_nodes.take_unwatched(at(1)).is_empty());
        assert_eq!(own_nodes.take_unwatched(at(2)), [(owner, "/t/a/n".to_owned())]);
        assert!(own_nodes.take_unwatched(at(3)).is_empty());
        own_nodes.get(owner).unwrap().on_unwatched();
        assert_eq!(own_nodes.take_unwatched(at(3)).len(), 1, "it could not be watched");
    }

    /// Claim 5: also one that was over, as long as nobody deletes it.
    #[test]
    fn a_place_is_kept_by_asking_and_one_that_is_given_up_stays_so() {
        let (mut own_nodes, owner) = with_one();
        own_nodes.get(owner).unwrap().ask(at(5));
        assert!(own_nodes.take_overdue(at(10)).is_empty());
        assert_eq!(own_nodes.take_overdue(at(11)).len(), 1);
        own_nodes.get(owner).unwrap().ask(at(11));
        assert!(own_nodes.get(owner).unwrap().is_leaving());
        assert!(own_nodes.has_overdue(at(11)));
    }

    /// L8: its making was answered, or its owner came back, while what was known of it was deleted.
    #[test]
    fn who_left_is_forgotten_unless_there_is_another_node() {
        let (mut own_nodes, owner) = with_one();
        let leaver = own_nodes.take_overdue(at(6)).remove(0);
        let node = Node { name: "n".into(), token: FencingToken::new(1) };
        own_nodes.get(owner).unwrap().node = Some(node);
        own_nodes.left(&leaver);
        let again = own_nodes.take_overdue(at(6)).remove(0);
        assert!(again.node.is_some(), "it is deleted too");
        own_nodes.left(&again);
        assert!(own_nodes.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_not_watched() {
        let (mut own_nodes, owner) = with_one();
        let entry = own_nodes.get(owner).unwrap();
        drop((entry.watch("a"), entry.watch("b")));
        entry.unwatch("a");
        assert!(!entry.watches("a") && entry.watches("b"));
        entry.unwatch("b");
        assert!(!entry.is_watching(), "so the next look is one at the ensemble");
    }

    #[test]
    fn nothing_is_added_to_a_session_that_is_over() {
        let (mut own_nodes, _) = with_one();
        assert_eq!(own_nodes.close().len(), 1);
        let claim = claim(2);
        assert!(!own_nodes.add(claim.owner, Entry::new(&claim, "/t/a".into(), at(0))));
        assert!(own_nodes.is_empty());
    }
}
