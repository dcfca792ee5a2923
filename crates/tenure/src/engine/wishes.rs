//! The marks in the labels of waiters, as a waiter and a holder read them in a view: *give way to a newer waiter*, *ask the holder
//! to stop*. `newest.rs` asks the store for the views.

use std::{
    collections::BTreeSet,
    sync::{Mutex, OnceLock},
};

use tenure_core::{Label, LockView, OwnerId, WaiterView, locked};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::{engine::news::News, pace::PollPace};

/// Which other waiters one wait has seen, and on which side of its own place.
#[derive(Default)]
pub(crate) struct AskedAs {
    seen: Mutex<Seen>,
    answered: Notify,
}

#[derive(Default)]
struct Seen {
    /// The owners of its claims; the last one is that of the present claim.
    own: Vec<String>,
    /// The owners of the waiters that were ahead.
    older: BTreeSet<String>,
    /// A view has shown its own place.
    is_placed: bool,
    /// The number of answers to its claims; the last answer is the grant.
    answers: u32,
}

impl AskedAs {
    /// The next claims have this owner. A new owner has a new place, behind all others.
    pub(crate) fn on_owner(&self, owner: OwnerId) {
        let mut seen = locked(&self.seen);
        seen.own.push(owner.to_string());
        (seen.older, seen.is_placed) = (BTreeSet::new(), false);
    }

    /// The store has answered a claim.
    pub(crate) fn on_answer(&self) {
        let mut seen = locked(&self.seen);
        seen.answers = seen.answers.saturating_add(1);
        drop(seen);
        self.answered.notify_one();
    }

    /// Waits for the next answer to a claim; returns the owner of that claim.
    pub(crate) async fn answered(&self) -> Option<String> {
        self.answered.notified().await;
        locked(&self.seen).own.last().cloned()
    }

    /// The newest waiter behind the place of this owner, if the view shows that place.
    pub(crate) fn newer_behind(&self, asked_as: Option<&str>, view: &LockView) -> Option<WaiterView> {
        let mut seen = locked(&self.seen);
        let own = asked_as.filter(|own| seen.own.last().is_some_and(|last| last == own))?;
        let at = view.queue.iter().position(|waiter| waiter.owner == own)?;
        seen.is_placed = true;
        seen.older.extend(view.queue[..at].iter().map(|waiter| waiter.owner.clone()));
        newest(&view.queue[at + 1..], |waiter, label| label.latest && !seen.own.contains(&waiter.owner))
    }

    /// Its first claim was not granted the lock.
    pub(crate) fn has_waited(&self) -> bool {
        locked(&self.seen).answers > 1
    }

    /// The newest waiter in a view after the grant. A waiter that was ahead does not count: a store may pass one that it does not
    /// reach. If no view has shown the own place, each waiter may have been ahead.
    pub(crate) fn newer_after_grant(&self, view: &LockView) -> Option<WaiterView> {
        let mut seen = locked(&self.seen);
        if !seen.is_placed {
            seen.older.extend(view.queue.iter().map(|waiter| waiter.owner.clone()));
            return None;
        }
        newest(&view.queue, |waiter, label| label.latest && !seen.knows(waiter))
    }

    /// The owners that came before the holder: it does not stop for them.
    pub(crate) fn into_older(self) -> BTreeSet<String> {
        let seen = self.seen.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.older.into_iter().chain(seen.own).collect()
    }
}

impl Seen {
    fn knows(&self, waiter: &WaiterView) -> bool {
        self.older.contains(&waiter.owner) || self.own.contains(&waiter.owner)
    }
}

/// How a holder learns that a waiter asks it to stop.
#[derive(Default)]
pub(crate) struct Wishes {
    /// The owners of waiters that came before it.
    older: OnceLock<BTreeSet<String>>,
    listening: OnceLock<Box<AsyncMutex<Listening>>>,
}

/// When a holder polls the store, and its hints.
pub(crate) struct Listening {
    pub(crate) pace: PollPace,
    pub(crate) news: Option<News>,
}

impl Wishes {
    /// The holder does not stop for these waiters.
    pub(crate) fn not_of(&self, older: BTreeSet<String>) {
        // OK because it is set once, before the holder has its guard.
        let _ = self.older.set(older);
    }

    /// The newest waiter that asks it to stop.
    pub(crate) fn asks(&self, view: &LockView) -> Option<WaiterView> {
        let is_older =
            |waiter: &WaiterView| self.older.get().is_some_and(|older| older.contains(&waiter.owner));
        newest(&view.queue, |waiter, label| label.replaces && !is_older(waiter))
    }

    /// The lease has ended: closes the connection for hints.
    pub(crate) fn close(&self) {
        if let Some(mut listening) = self.listening.get().and_then(|listening| listening.try_lock().ok()) {
            listening.news = None;
        }
    }

    /// The state that is kept between two calls.
    pub(crate) fn listening(&self, new: impl FnOnce() -> Listening) -> &AsyncMutex<Listening> {
        self.listening.get_or_init(|| Box::new(AsyncMutex::new(new())))
    }
}

fn newest(queue: &[WaiterView], wants: impl Fn(&WaiterView, &Label) -> bool) -> Option<WaiterView> {
    let is_it = |waiter: &&WaiterView| waiter.label.as_ref().is_some_and(|label| wants(waiter, label));
    queue.iter().rev().find(is_it).cloned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::{FencingToken, Mode, ProcessId};

    use super::*;

    fn owner(number: u8) -> OwnerId {
        OwnerId::from_random(ProcessId::from_random([number; 8]), [number; 16])
    }

    fn view(queue: &[u8]) -> LockView {
        let label = Label::new("host", 1, "user", "command").giving_way(true, true);
        let waiter = |number: &u8| {
            let owner = owner(*number).to_string();
            WaiterView::new(owner, Mode::Exclusive, Some(label.clone()), Duration::ZERO)
        };
        let queue = queue.iter().map(waiter).collect();
        LockView::new("x".parse().unwrap(), Vec::new(), queue, FencingToken::new(1))
    }

    fn behind(asked_as: &AskedAs, asks: u8, queue: &[u8]) -> Option<String> {
        let newer = asked_as.newer_behind(Some(&owner(asks).to_string()), &view(queue));
        newer.map(|newer| newer.owner)
    }

    /// Two clients never give way to each other, and none gives way to itself.
    #[test]
    fn a_client_gives_way_to_those_behind_its_present_place_only() {
        let asked_as = AskedAs::default();
        asked_as.on_owner(owner(1));
        assert_eq!(behind(&asked_as, 1, &[2, 3]), None, "it has no place yet");
        assert_eq!(behind(&asked_as, 1, &[2, 3, 1]), None);
        assert_eq!(behind(&asked_as, 1, &[2, 1, 4, 5]), Some(owner(5).to_string()));
        // Its first owner was given up while it looked: the view is that of a place that it has no more.
        asked_as.on_owner(owner(6));
        assert_eq!(behind(&asked_as, 1, &[1, 4]), None);
        assert_eq!(behind(&asked_as, 6, &[4, 6, 1]), None, "its own former owner");
        assert_eq!(behind(&asked_as, 6, &[4, 6, 7]), Some(owner(7).to_string()));
    }

    /// A store may pass a waiter that is dead, or that it does not reach.
    #[test]
    fn one_that_was_ahead_is_not_newer_after_the_grant() {
        let asked_as = AskedAs::default();
        asked_as.on_owner(owner(1));
        assert_eq!(behind(&asked_as, 1, &[2, 1]), None);
        let newer = |queue: &[u8]| asked_as.newer_after_grant(&view(queue)).map(|newer| newer.owner);
        assert_eq!((newer(&[2]), newer(&[2, 3])), (None, Some(owner(3).to_string())));
        let unplaced = AskedAs::default();
        unplaced.on_owner(owner(1));
        assert_eq!(unplaced.newer_after_grant(&view(&[2, 3])), None, "they may have been ahead");
        assert!(unplaced.into_older().contains(&owner(3).to_string()));
        let older = asked_as.into_older();
        assert!(older.contains(&owner(2).to_string()) && older.contains(&owner(1).to_string()));
        assert!(!older.contains(&owner(3).to_string()));
    }
}
