//! `Referee`: a resource and a log. It knows no scheme.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::protocol;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, since the half began.
    pub at: Duration,
    /// On whose lane: a client, a server, or the resource.
    pub lane: String,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The lane is there.
    Opens(Kind),
    /// A client asks for the lock.
    Asks,
    /// A client treats the lock as held, and works.
    Enters,
    /// It works no more.
    Leaves,
    /// Its worker has ended, and has not released the lock.
    Abandons,
    /// It has noticed that the lock is lost, and works no more.
    Hears {
        /// By its own clock. Otherwise the store reported it, or the client has held for as long as it may.
        by_clock: bool,
    },
    /// It is ended, as by `kill -9`.
    Dies,
    /// It is stopped, and cannot notice that.
    Stops,
    /// It goes on.
    GoesOn,
    /// A write of it reached the resource.
    Writes {
        /// What it wrote.
        text: String,
        /// The resource took it.
        is_taken: bool,
    },
    /// It read a number, and wrote back one more.
    Adds {
        /// That was taken.
        is_taken: bool,
    },
    /// A store reports the holder: a client, an unknown owner, or none.
    Holds(Option<String>),
    /// The number at the end.
    Sum(u64),
    /// Requests that a server has received from the start until now.
    Requests(u64),
    /// A fault that the scene makes.
    Fault(String),
    /// A remark.
    Note(String),
    /// The half has ended.
    Ends,
}

/// What a lane stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process that takes the lock.
    Client,
    /// What it protects.
    Resource,
    /// What keeps the lock.
    Store,
}

/// Writes down what happens.
#[derive(Debug)]
pub(crate) struct Referee {
    began: Duration,
    events: Mutex<Vec<Event>>,
    resource: Mutex<Resource>,
    aliases: Mutex<Vec<(String, String)>>,
}

/// What the lock protects. If a write comes with a number, it refuses numbers that are smaller than one it has seen.
#[derive(Debug, Default)]
pub(crate) struct Resource {
    text: String,
    mark: u64,
}

impl Resource {
    /// Whether it takes this write.
    pub(crate) fn write(&mut self, text: &str, token: Option<u64>) -> bool {
        let is_taken = token.is_none_or(|token| token >= self.mark);
        if is_taken {
            text.clone_into(&mut self.text);
            self.mark = self.mark.max(token.unwrap_or(0));
        }
        is_taken
    }
}

impl Referee {
    pub(crate) fn new() -> Self {
        Self {
            began: protocol::now(),
            events: Mutex::default(),
            resource: Mutex::default(),
            aliases: Mutex::default(),
        }
    }

    /// Writes down what happens now.
    pub(crate) fn note(&self, lane: &str, what: What) {
        self.note_at(protocol::now(), lane, what);
    }

    /// Writes down what happened at an instant of the clock that all processes share.
    pub(crate) fn note_at(&self, at: Duration, lane: &str, what: What) {
        let at = at.saturating_sub(self.began);
        locked(&self.events).push(Event { at, lane: lane.to_owned(), what });
    }

    /// A write arrives at the resource.
    pub(crate) fn write(&self, lane: &str, text: &str, token: Option<u64>) {
        let is_taken = locked(&self.resource).write(text, token);
        self.note(lane, What::Writes { text: text.to_owned(), is_taken });
    }

    /// In what a store reports, this text means this client.
    pub(crate) fn knows(&self, lane: &str, alias: &str) {
        locked(&self.aliases).push((alias.to_owned(), lane.to_owned()));
    }

    /// All that happened, by time. Names of clients replace the texts of stores.
    pub(crate) fn take(&self) -> Vec<Event> {
        let aliases = locked(&self.aliases);
        let mut events = std::mem::take(&mut *locked(&self.events));
        for event in &mut events {
            if let What::Holds(Some(words)) = &mut event.what {
                let known = aliases.iter().find(|(alias, _)| words.contains(alias.as_str()));
                *words = known.map_or_else(|| SOMEBODY.to_owned(), |(_, lane)| lane.clone());
            }
        }
        events.sort_by_key(|event| event.at);
        events
    }
}

/// Locks even after a panic elsewhere: what is written down is never half of something.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A holder that is not a known client of the scene.
const SOMEBODY: &str = "?";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_refuses_a_number_that_is_smaller_than_one_it_has_seen() {
        let mut resource = Resource::default();
        assert!(resource.write("first", Some(7)) && resource.write("second", Some(8)));
        assert!(!resource.write("late", Some(7)));
        assert!(resource.write("without a number", None));
        assert_eq!(resource.text, "without a number");
    }
}
