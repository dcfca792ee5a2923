//! `Doubts`: the makings of nodes whose answer is not there, or was lost. A member that hung may carry one out after all.
//!
//! Such a member has the request, and often one more to move the session back to it, from when its connection was tried
//! again. If it goes on before its leader lets go of it, the session is its own for a moment, and what was asked of it
//! before is carried out: after everything that was asked over the connection in between. The node that it makes belongs
//! to a session that lives, so that nothing would end it. But the next write over our connection breaks it, because the
//! session moved away, and nothing old is carried out once it has moved back to us. So there is a write with each beat
//! while there are doubts, and a look behind each connection that is made again.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use tenure_core::{Moment, OwnerId};

/// The doubtful makings of one session.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    makings: BTreeMap<(String, OwnerId), Doubt>,
    /// How often the session was connected again.
    connection: u64,
}

#[derive(Debug)]
struct Doubt {
    since: Moment,
    /// The connection behind which there was nothing of it; at first the one over which it is asked for.
    seen: u64,
}

impl Doubts {
    /// A node is asked for. False if one was asked for before, and nobody knows what became of that.
    pub(crate) fn add(&mut self, lock: String, owner: OwnerId, now: Moment) -> bool {
        match self.makings.entry((lock, owner)) {
            Entry::Occupied(mut before) => {
                before.get_mut().since = now;
                false
            }
            Entry::Vacant(place) => {
                place.insert(Doubt { since: now, seen: self.connection });
                true
            }
        }
    }

    /// It is known what became of it.
    pub(crate) fn remove(&mut self, lock: String, owner: OwnerId) {
        self.makings.remove(&(lock, owner));
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn give_up(&mut self, lock: String, owner: OwnerId, now: Moment) {
        self.add(lock, owner, now);
        if self.makings.len() > MANY {
            let oldest =
                self.makings.iter().min_by_key(|(_, doubt)| doubt.since.boot).map(|(key, _)| key.clone());
            oldest.map(|key| self.makings.remove(&key));
        }
    }

    /// The session is connected again: all are looked for once more.
    pub(crate) fn on_connected(&mut self) {
        self.connection += 1;
    }

    /// Whether there are any.
    pub(crate) fn are_any(&mut self, now: Moment) -> bool {
        self.makings.retain(|_, doubt| doubt.since.elapsed(now) <= OLD);
        !self.makings.is_empty()
    }

    /// Whose nodes are to be looked for where, and the connection behind which that is.
    pub(crate) fn due(&self) -> (u64, BTreeMap<String, Vec<OwnerId>>) {
        let mut by_lock: BTreeMap<String, Vec<OwnerId>> = BTreeMap::new();
        for ((lock, owner), _) in self.makings.iter().filter(|(_, doubt)| doubt.seen < self.connection) {
            by_lock.entry(lock.clone()).or_default().push(*owner);
        }
        (self.connection, by_lock)
    }

    /// Behind this connection there is nothing of it.
    pub(crate) fn on_seen(&mut self, connection: u64, lock: &str, owner: OwnerId) {
        if let Some(doubt) = self.makings.get_mut(&(lock.to_owned(), owner)) {
            doubt.seen = doubt.seen.max(connection);
        }
    }
}

/// A leader lets go of a member that hangs after `syncLimit` ticks, ten seconds by default, and what that one has not
/// sent by then is void.
const OLD: Duration = Duration::from_secs(600);
/// A look for each of these when the connection is made again.
const MANY: usize = 1024;

#[cfg(test)]
mod tests {
    use tenure_core::ProcessId;

    use super::*;

    fn at(secs: u64) -> Moment {
        Moment { boot: Duration::from_secs(secs), wall: Duration::from_secs(1_700_000_000 + secs) }
    }

    fn owner(n: u8) -> OwnerId {
        OwnerId::from_random(ProcessId::from_random([0; 8]), [n; 16])
    }

    fn due(doubts: &Doubts) -> Vec<(String, Vec<OwnerId>)> {
        doubts.due().1.into_iter().collect()
    }

    #[test]
    fn a_doubt_lasts_until_it_is_old_and_there_are_not_too_many() {
        let mut doubts = Doubts::default();
        doubts.give_up("/t/a".into(), owner(1), at(0));
        doubts.give_up("/t/a".into(), owner(2), at(500));
        doubts.on_connected();
        assert!(doubts.are_any(at(600)));
        assert_eq!(due(&doubts), [("/t/a".into(), vec![owner(1), owner(2)])]);
        assert!(doubts.are_any(at(601)));
        assert_eq!(due(&doubts), [("/t/a".into(), vec![owner(2)])]);
        assert!(!doubts.are_any(at(1101)));
        for n in 0..=MANY {
            doubts.give_up(format!("/t/{n}"), owner(1), at(2000 + n as u64));
        }
        doubts.on_connected();
        assert_eq!(due(&doubts).len(), MANY);
        assert!(!doubts.due().1.contains_key("/t/0"), "the oldest goes first");
    }

    /// Hazard 57: what was asked for over a connection happens after it broke, and a look that found it unsettled counts not.
    #[test]
    fn each_is_looked_for_behind_every_connection_until_nothing_is_there() {
        let mut doubts = Doubts::default();
        assert!(doubts.add("/t/a".into(), owner(1), at(0)));
        assert_eq!(due(&doubts), []);
        doubts.on_connected();
        let (first, _) = doubts.due();
        doubts.on_connected();
        doubts.on_seen(first, "/t/a", owner(1));
        assert_eq!(due(&doubts).len(), 1, "it may have happened when that connection broke");
        let (second, _) = doubts.due();
        doubts.on_seen(second, "/t/a", owner(1));
        assert_eq!(due(&doubts), []);
        doubts.on_connected();
        assert_eq!(due(&doubts).len(), 1);
    }

    #[test]
    fn the_answer_to_the_second_says_nothing_of_the_first() {
        let mut doubts = Doubts::default();
        assert!(doubts.add("/t/a".into(), owner(1), at(0)));
        doubts.give_up("/t/a".into(), owner(1), at(1));
        assert!(!doubts.add("/t/a".into(), owner(1), at(2)));
        doubts.remove("/t/a".into(), owner(1));
        assert!(!doubts.are_any(at(2)));
    }
}
