//! `OwnNodes`: the nodes of one session, and until when each one is wanted.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use tenure_core::{Audience, Claim, FencingToken, Mode, Moment, OwnerId, Timing};
use tokio::sync::oneshot;

use crate::node::NodeRecord;

/// A node that this session made, or may have made.
#[derive(Debug)]
pub(crate) struct OwnNode {
    /// The directory of its lock.
    pub(crate) lock: String,
    pub(crate) mode: Mode,
    /// The node; `None` until its creation is confirmed.
    pub(crate) node: Option<CreatedNode>,
    pub(crate) record: NodeRecord,
    pub(crate) last_answer: LastAnswer,
    /// When it expires, unless its owner claims or renews before.
    due: Moment,
    /// It is being deleted, and does not hold the lock.
    is_leaving: bool,
    /// The session's own thread deletes it now.
    is_deleted_now: bool,
    /// The nodes that it watches.
    watched: HashSet<String>,
    /// Ends the watches when the entry goes.
    watches: Vec<oneshot::Sender<()>>,
}

/// A node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreatedNode {
    pub(crate) name: String,
    pub(crate) token: FencingToken,
}

/// The last answer to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    /// No answer yet that it holds.
    New,
    /// The answer was that it waits, or another client may have seen it waiting.
    Waits,
    /// The answer was that it holds, since this time; and whether its node is watched.
    Holds { since: Moment, is_watched: bool },
}

impl OwnNode {
    pub(crate) fn new(claim: &Claim, lock: String, now: Moment) -> Self {
        Self {
            lock,
            mode: claim.mode,
            node: None,
            record: NodeRecord::new(claim, now),
            last_answer: LastAnswer::New,
            due: now + Timing::PLACE_TTL,
            is_leaving: false,
            is_deleted_now: false,
            watched: HashSet::new(),
            watches: Vec::new(),
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.last_answer, LastAnswer::Holds { .. }) && !self.is_leaving
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

    /// Other clients may have seen it in the queue before it held.
    pub(crate) fn was_seen(&mut self) {
        if self.last_answer == LastAnswer::New {
            self.last_answer = LastAnswer::Waits;
        }
    }

    /// Keeps it until then, or until a later time that was set before (H2.4).
    pub(crate) fn keep_until(&mut self, until: Moment) {
        self.due = self.due.later(until);
    }

    /// It holds from now on. True if it waited before, or other clients may have seen it waiting.
    pub(crate) fn enter(&mut self, now: Moment, until: Moment) -> bool {
        if self.holds() {
            self.keep_until(until);
            return false;
        }
        let has_waited = self.last_answer == LastAnswer::Waits;
        self.last_answer = LastAnswer::Holds { since: now, is_watched: false };
        self.due = until;
        self.on_watched_change();
        has_waited
    }

    /// It does not hold the lock any more. The task that deletes its node has until `due`.
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

    /// A node that it watches has changed: it checks the queue again, and watches anew.
    pub(crate) fn on_watched_change(&mut self) {
        self.watched.clear();
        self.watches.clear();
    }

    /// Ends the watch of that node.
    pub(crate) fn unwatch(&mut self, node: &str) {
        self.watched.remove(node);
    }

    /// Its own node has to be watched again.
    pub(crate) fn on_unwatched(&mut self) {
        if let LastAnswer::Holds { is_watched, .. } = &mut self.last_answer {
            *is_watched = false;
        }
    }

    /// Remembers that a node is watched; the watch ends when the returned receiver resolves.
    pub(crate) fn watch(&mut self, node: &str) -> oneshot::Receiver<()> {
        let (keep, end) = oneshot::channel();
        self.watched.insert(node.to_owned());
        self.watches.retain(|watch| !watch.is_closed());
        self.watches.push(keep);
        end
    }
}

/// The nodes of one session.
#[derive(Debug, Default)]
pub(crate) struct OwnNodes {
    entries: HashMap<OwnerId, OwnNode>,
    pub(crate) in_flight: CreatesInFlight,
    is_closed: bool,
}

/// A node that is to be deleted.
#[derive(Clone, Debug)]
pub(crate) struct NodeDeletion {
    pub(crate) owner: OwnerId,
    pub(crate) lock: String,
    pub(crate) node: Option<CreatedNode>,
}

impl OwnNodes {
    /// Adds an entry. Call it before the request that creates the node is sent. False if the session has ended.
    pub(crate) fn begin(&mut self, owner: OwnerId, entry: OwnNode, now: Moment) -> bool {
        let lock = entry.lock.clone();
        let is_added = self.add(owner, entry);
        if is_added {
            self.in_flight.add(lock, owner, now);
        }
        is_added
    }

    /// False if the session has ended.
    pub(crate) fn add(&mut self, owner: OwnerId, entry: OwnNode) -> bool {
        if !self.is_closed {
            self.entries.insert(owner, entry);
        }
        !self.is_closed
    }

    pub(crate) fn get(&mut self, owner: OwnerId) -> Option<&mut OwnNode> {
        self.entries.get_mut(&owner)
    }

    pub(crate) fn remove(&mut self, owner: OwnerId) -> Option<OwnNode> {
        self.entries.remove(&owner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Accepts no new node; the present ones are released.
    pub(crate) fn close(&mut self) -> HashMap<OwnerId, OwnNode> {
        self.is_closed = true;
        std::mem::take(&mut self.entries)
    }

    /// The owners to notify after the session was disconnected for a while.
    pub(crate) fn owners(&self) -> Vec<(Audience, OwnerId)> {
        self.entries.iter().map(|(owner, entry)| (entry.audience(), *owner)).collect()
    }

    /// The expired nodes, which the caller must delete. From here on they do not hold a lock (L5).
    pub(crate) fn take_expired(&mut self, now: Moment) -> Vec<NodeDeletion> {
        let expired =
            self.entries.iter_mut().filter(|(_, entry)| !entry.is_deleted_now && entry.due.is_over(now));
        expired
            .map(|(owner, entry)| {
                (entry.is_leaving, entry.is_deleted_now) = (true, true);
                NodeDeletion { owner: *owner, lock: entry.lock.clone(), node: entry.node.clone() }
            })
            .collect()
    }

    /// Whether there is an expired entry whose node may still exist.
    pub(crate) fn has_expired(&self, now: Moment) -> bool {
        self.entries.values().any(|entry| entry.is_leaving || entry.due.is_over(now))
    }

    /// The node of a deletion that was handed out is gone, as far as the node was known then.
    pub(crate) fn on_deleted(&mut self, deletion: &NodeDeletion) {
        match self.entries.get_mut(&deletion.owner) {
            // The reply to its creation has arrived since then.
            Some(entry) if entry.node != deletion.node => entry.is_deleted_now = false,
            _ => drop(self.entries.remove(&deletion.owner)),
        }
    }

    /// It could not be deleted yet.
    pub(crate) fn not_deleted(&mut self, owner: OwnerId) {
        if let Some(entry) = self.entries.get_mut(&owner) {
            entry.is_deleted_now = false;
        }
    }

    /// Owners whose nodes the caller should watch now: they have held for a while, and are not watched yet. A short
    /// turn is not worth a watch.
    pub(crate) fn take_unwatched(&mut self, now: Moment) -> Vec<(OwnerId, String)> {
        let mut found = Vec::new();
        for (owner, entry) in &mut self.entries {
            if let (LastAnswer::Holds { since, is_watched: is_watched @ false }, Some(node)) =
                (&mut entry.last_answer, &entry.node)
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

/// The creates of one session that are not answered. A create is entered before it is sent, and the code that reads
/// the answer removes it. It stays here if its caller is dropped, or if its answer was lost with its connection: a
/// member that hung may carry it out after all.
///
/// Such a member has the request. It often has a later one too, which moves the session back to it, from when the
/// driver tried to connect to it again. If the member continues before its leader drops it, it has the session for a
/// moment. Then it carries out the earlier requests: after everything that was requested over the connection in
/// between. The node that it makes belongs to a session that lives, so nothing would end it (L8). But the next write
/// over this client's connection breaks that connection, because the session moved away. Once the session has moved
/// back to this client, nothing old is carried out. So while creates are in flight, there is a write with each beat,
/// and a search after each reconnect.
///
/// The engine repeats the release of such an owner for a ttl, which may be less than such a member takes.
#[derive(Debug, Default)]
pub(crate) struct CreatesInFlight {
    creates: BTreeMap<(String, OwnerId), UnansweredCreate>,
    /// How often the session has reconnected.
    connection: u64,
}

#[derive(Debug)]
struct UnansweredCreate {
    requests: usize,
    /// When the last of them was sent.
    since: Moment,
    /// The latest connection after whose start a search found nothing of it; at first the one over which it is sent.
    seen: u64,
}

impl CreatesInFlight {
    pub(crate) fn add(&mut self, lock: String, owner: OwnerId, now: Moment) {
        let first = UnansweredCreate { requests: 0, since: now, seen: self.connection };
        let unanswered = self.creates.entry((lock, owner)).or_insert(first);
        unanswered.requests += 1;
        unanswered.since = now;
    }

    /// The answer was read. It proves nothing about an earlier request.
    pub(crate) fn on_answer(&mut self, lock: &str, owner: OwnerId) {
        let key = (lock.to_owned(), owner);
        if let Some(unanswered) = self.creates.get_mut(&key) {
            unanswered.requests -= 1;
            if unanswered.requests == 0 {
                self.creates.remove(&key);
            }
        }
    }

    /// The session has reconnected: all are searched for once more.
    pub(crate) fn on_connected(&mut self) {
        self.connection += 1;
    }

    /// Forgets the oldest ones, then returns whether any are left.
    pub(crate) fn are_any(&mut self, now: Moment) -> bool {
        self.creates.retain(|_, unanswered| unanswered.since.elapsed(now) <= OLD);
        while self.creates.len() > MANY {
            let oldest = self.creates.iter().min_by_key(|(_, unanswered)| unanswered.since.boot);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            self.creates.remove(&oldest);
        }
        !self.creates.is_empty()
    }

    /// The present connection, and the owners whose nodes must be searched for after it was made, by lock.
    pub(crate) fn due(&self) -> (u64, BTreeMap<String, Vec<OwnerId>>) {
        let mut by_lock: BTreeMap<String, Vec<OwnerId>> = BTreeMap::new();
        for ((lock, owner), _) in self.creates.iter().filter(|(_, create)| create.seen < self.connection) {
            by_lock.entry(lock.clone()).or_default().push(*owner);
        }
        (self.connection, by_lock)
    }

    /// A search after this connection was made found nothing of it.
    pub(crate) fn on_seen(&mut self, connection: u64, lock: &str, owner: OwnerId) {
        if let Some(unanswered) = self.creates.get_mut(&(lock.to_owned(), owner)) {
            unanswered.seen = unanswered.seen.max(connection);
        }
    }
}

/// A leader drops a member that hangs after `syncLimit` ticks, ten seconds by default. What the member has not sent
/// by then is void.
const OLD: Duration = Duration::from_secs(600);
/// Each of these costs a search after each reconnect.
const MANY: usize = 1024;

const SHORT_TURN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Label, LockName, ProcessId, WaitMode};

    use super::*;

    fn at(secs: u64) -> Moment {
        Moment { boot: Duration::from_secs(secs), wall: Duration::from_secs(1_700_000_000 + secs) }
    }

    fn claim(n: u8) -> Claim {
        Claim::new(
            LockName::new("a").unwrap(),
            OwnerId::from_random(ProcessId::from_random([0; 8]), [n; 16]),
            Mode::Exclusive,
            Duration::from_secs(10),
        )
        .with_label(Arc::new(Label::default()))
        .with_wait(WaitMode::Turn)
    }

    fn with_one() -> (OwnNodes, OwnerId) {
        let (mut own_nodes, claim) = (OwnNodes::default(), claim(1));
        assert!(own_nodes.add(claim.owner, OwnNode::new(&claim, "/t/a".into(), at(0))));
        (own_nodes, claim.owner)
    }

    /// L5, L8: a node that has expired stays expired, and is handed out once for deletion.
    #[test]
    fn who_is_overdue_holds_nothing_and_is_deleted_by_one() {
        let (mut own_nodes, owner) = with_one();
        own_nodes.get(owner).unwrap().enter(at(1), at(11));
        assert!(own_nodes.take_expired(at(10)).is_empty());
        assert_eq!(own_nodes.take_expired(at(11)).len(), 1);
        assert!(!own_nodes.get(owner).unwrap().holds());
        assert!(own_nodes.take_expired(at(12)).is_empty(), "it is in hand");
        assert!(own_nodes.has_expired(at(12)));
        own_nodes.not_deleted(owner);
        assert_eq!(own_nodes.take_expired(at(12)).len(), 1, "until it is done");
        own_nodes.remove(owner);
        assert!(!own_nodes.has_expired(at(12)));
    }

    /// H2.4.
    #[test]
    fn a_lease_is_never_shortened() {
        let (mut own_nodes, owner) = with_one();
        let entry = own_nodes.get(owner).unwrap();
        entry.enter(at(1), at(11));
        entry.keep_until(at(5));
        assert!(!entry.enter(at(2), at(6)), "it held already");
        assert!(own_nodes.take_expired(at(10)).is_empty());
    }

    #[test]
    fn a_holder_is_watched_once_and_not_at_once() {
        let (mut own_nodes, owner) = with_one();
        let entry = own_nodes.get(owner).unwrap();
        entry.node = Some(CreatedNode { name: "n".into(), token: FencingToken::new(1) });
        entry.enter(at(1), at(11));
        assert!(own_nodes.take_unwatched(at(1)).is_empty());
        assert_eq!(own_nodes.take_unwatched(at(2)), [(owner, "/t/a/n".to_owned())]);
        assert!(own_nodes.take_unwatched(at(3)).is_empty());
        own_nodes.get(owner).unwrap().on_unwatched();
        assert_eq!(own_nodes.take_unwatched(at(3)).len(), 1, "it could not be watched");
    }

    /// Claim 5: even a place that has expired, as long as no task deletes it.
    #[test]
    fn a_place_is_kept_by_asking_and_one_that_is_given_up_stays_so() {
        let (mut own_nodes, owner) = with_one();
        own_nodes.get(owner).unwrap().ask(at(5));
        assert!(own_nodes.take_expired(at(10)).is_empty());
        assert_eq!(own_nodes.take_expired(at(11)).len(), 1);
        own_nodes.get(owner).unwrap().ask(at(11));
        assert!(own_nodes.get(owner).unwrap().is_leaving());
        assert!(own_nodes.has_expired(at(11)));
    }

    /// L8: the reply to its creation arrived, or its owner came back, while the known node was being deleted.
    #[test]
    fn who_left_is_forgotten_unless_there_is_another_node() {
        let (mut own_nodes, owner) = with_one();
        let deletion = own_nodes.take_expired(at(6)).remove(0);
        let node = CreatedNode { name: "n".into(), token: FencingToken::new(1) };
        own_nodes.get(owner).unwrap().node = Some(node);
        own_nodes.on_deleted(&deletion);
        let again = own_nodes.take_expired(at(6)).remove(0);
        assert!(again.node.is_some(), "it is deleted too");
        own_nodes.on_deleted(&again);
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
        assert!(!own_nodes.add(claim.owner, OwnNode::new(&claim, "/t/a".into(), at(0))));
        assert!(own_nodes.is_empty());
    }

    fn owner(n: u8) -> OwnerId {
        claim(n).owner
    }

    fn due(in_flight: &CreatesInFlight) -> Vec<(String, Vec<OwnerId>)> {
        in_flight.due().1.into_iter().collect()
    }

    #[test]
    fn a_create_is_in_flight_until_it_is_old_and_there_are_not_too_many() {
        let mut in_flight = CreatesInFlight::default();
        in_flight.add("/t/a".into(), owner(1), at(0));
        in_flight.add("/t/a".into(), owner(2), at(500));
        in_flight.on_connected();
        assert!(in_flight.are_any(at(600)));
        assert_eq!(due(&in_flight), [("/t/a".into(), vec![owner(1), owner(2)])]);
        assert!(in_flight.are_any(at(601)));
        assert_eq!(due(&in_flight), [("/t/a".into(), vec![owner(2)])]);
        assert!(!in_flight.are_any(at(1101)));
        for n in 0..=MANY {
            in_flight.add(format!("/t/{n}"), owner(1), at(2000 + n as u64));
        }
        assert!(in_flight.are_any(at(2000)));
        in_flight.on_connected();
        assert_eq!(due(&in_flight).len(), MANY);
        assert!(!in_flight.due().1.contains_key("/t/0"), "the oldest goes first");
    }

    /// Hazard 57: a request over a connection may take effect after that connection broke. A search counts only for
    /// the connection over which it began.
    #[test]
    fn each_is_looked_for_behind_every_connection_until_nothing_is_there() {
        let mut in_flight = CreatesInFlight::default();
        in_flight.add("/t/a".into(), owner(1), at(0));
        assert_eq!(due(&in_flight), []);
        in_flight.on_connected();
        let (first, _) = in_flight.due();
        in_flight.on_connected();
        in_flight.on_seen(first, "/t/a", owner(1));
        assert_eq!(due(&in_flight).len(), 1, "it may have happened when that connection broke");
        let (second, _) = in_flight.due();
        in_flight.on_seen(second, "/t/a", owner(1));
        assert_eq!(due(&in_flight), []);
        in_flight.on_connected();
        assert_eq!(due(&in_flight).len(), 1);
    }

    #[test]
    fn the_answer_to_the_second_says_nothing_of_the_first() {
        let mut in_flight = CreatesInFlight::default();
        in_flight.add("/t/a".into(), owner(1), at(0));
        in_flight.add("/t/a".into(), owner(1), at(2));
        in_flight.on_answer("/t/a", owner(1));
        assert!(in_flight.are_any(at(2)));
        in_flight.on_answer("/t/a", owner(1));
        assert!(!in_flight.are_any(at(2)));
    }
}
