//! `Doubts`: the makings of nodes whose answer was lost. A member that hung may carry one out after all.
//!
//! Such a member has the request, and often one more to move the session back to it, from when its connection was tried
//! again. If it goes on before its leader lets go of it, the session is its own for a moment, and what was asked of it
//! before is carried out: after everything that was asked over the connection in between. The node that it makes belongs
//! to a session that lives, so that nothing would end it. But our connection breaks when the session moves away, and
//! nothing old is carried out once it has moved back: so behind each connection that is made again one look is enough.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tenure_core::{Moment, OwnerId};

/// The doubtful makings of one session, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    makings: VecDeque<(Moment, String, OwnerId)>,
}

impl Doubts {
    pub(crate) fn add(&mut self, lock: String, owner: OwnerId, now: Moment) {
        self.forget_old(now);
        self.makings.push_back((now, lock, owner));
        if self.makings.len() > MANY {
            self.makings.pop_front();
        }
    }

    /// Whose nodes may be where, by lock.
    pub(crate) fn by_lock(&mut self, now: Moment) -> BTreeMap<String, Vec<OwnerId>> {
        self.forget_old(now);
        let mut by_lock: BTreeMap<String, Vec<OwnerId>> = BTreeMap::new();
        for (_, lock, owner) in &self.makings {
            by_lock.entry(lock.clone()).or_default().push(*owner);
        }
        by_lock
    }

    fn forget_old(&mut self, now: Moment) {
        while self.makings.front().is_some_and(|(since, ..)| since.elapsed(now) > OLD) {
            self.makings.pop_front();
        }
    }
}

/// A leader lets go of a member that hangs after `syncLimit` ticks, ten seconds by default, and what that one has not
/// sent by then is void.
const OLD: Duration = Duration::from_secs(600);
/// One request for each lock of these when the connection is made again.
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

    #[test]
    fn a_doubt_lasts_until_it_is_old_and_there_are_not_too_many() {
        let mut doubts = Doubts::default();
        doubts.add("/t/a".into(), owner(1), at(0));
        doubts.add("/t/b".into(), owner(2), at(500));
        doubts.add("/t/a".into(), owner(3), at(500));
        assert_eq!(doubts.by_lock(at(600))["/t/a"], [owner(1), owner(3)]);
        assert_eq!(doubts.by_lock(at(601))["/t/a"], [owner(3)]);
        assert!(doubts.by_lock(at(1101)).is_empty());
        for n in 0..=MANY {
            doubts.add(format!("/t/{n}"), owner(1), at(2000));
        }
        assert_eq!(doubts.by_lock(at(2000)).len(), MANY);
        assert!(!doubts.by_lock(at(2000)).contains_key("/t/0"), "the oldest goes first");
    }
}
