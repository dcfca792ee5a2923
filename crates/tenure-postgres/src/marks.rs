//! `Halls`: the waiters of one process for one lock stand in line here, and only the first few of them have places in the row.
//!
//! Every change of owner writes the row anew, so that it must not grow with the waiters of a process (L6). The order is kept: who
//! stands here is one of whom the store has not heard yet, and goes there in the order of its first question (L7).

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{Audience, BackendError, LockName, Moment, OwnerId};

use crate::{ears::Ears, memory::locked};

/// Places in the row that one process takes for one lock.
pub(crate) const FRONT: usize = 8;
/// Who has not asked for so long has gone without a word.
const AWAY: Duration = Duration::from_secs(40);
/// How long what failed for those in front is told to those behind them.
const TROUBLE: Duration = Duration::from_secs(5);

/// The lines of all locks.
#[derive(Default)]
pub(crate) struct Halls(Mutex<HashMap<LockName, Hall>>);

#[derive(Default)]
struct Hall {
    seats: Vec<Seat>,
    trouble: Option<(Moment, BackendError)>,
}

struct Seat {
    owner: OwnerId,
    asked: Moment,
    /// It may have a place in the store.
    was_sent: bool,
    /// It was told where it stands.
    was_told: bool,
    /// The name of the row that its place behind the queue has.
    key: Option<String>,
    /// Such a place was to be made, and nobody knows whether it was.
    is_doubted: bool,
}

/// Where to look for a place behind the queue of a lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark {
    /// The name of its row; or one behind all others of the lock, where it may be the last; or none.
    pub(crate) key: String,
    /// It may be there under another name.
    pub(crate) is_doubted: bool,
}

impl Mark {
    /// True if this row stands before it.
    pub(crate) fn is_behind(&self, key: &str) -> bool {
        key < self.key.as_str()
    }
}

/// What becomes of a seat that is given up.
#[derive(Debug)]
pub(crate) enum Left {
    /// Nothing of it is in the store.
    Nothing,
    /// It may have a place in the row of the lock.
    Queued,
    /// It may have one behind.
    Standing(Mark),
}

/// Where somebody stands.
pub(crate) enum Standing {
    /// It asks the store.
    Front,
    /// So many of this process stand before it.
    Behind(usize),
}

impl Halls {
    /// Takes or keeps a seat.
    ///
    /// # Errors
    /// What those in front were told a moment ago: a store that is down is down for those behind as well.
    pub(crate) fn sit(&self, name: &LockName, owner: OwnerId, now: Moment) -> Result<Standing, BackendError> {
        let mut halls = locked(&self.0);
        let hall = halls.entry(name.clone()).or_default();
        hall.seats.retain(|seat| seat.owner == owner || seat.asked.elapsed(now) < AWAY);
        let known = hall.seats.iter().position(|seat| seat.owner == owner);
        let at = known.unwrap_or(hall.seats.len());
        if known.is_none() {
            let (key, is_doubted) = (None, false);
            hall.seats.push(Seat { owner, asked: now, was_sent: false, was_told: false, key, is_doubted });
        }
        let seat = &mut hall.seats[at];
        seat.asked = now;
        seat.was_sent |= at < FRONT;
        if at < FRONT {
            return Ok(Standing::Front);
        }
        match &hall.trouble {
            Some((since, error)) if since.elapsed(now) < TROUBLE => Err(error.clone()),
            _ => Ok(Standing::Behind(at)),
        }
    }

    /// What the store answered to somebody in front.
    pub(crate) fn heard(&self, name: &LockName, owner: OwnerId, trouble: Option<(Moment, BackendError)>) {
        if let Some(hall) = locked(&self.0).get_mut(name) {
            let own = hall.seats.iter_mut().find(|seat| seat.owner == owner);
            own.into_iter().for_each(|seat| seat.was_told |= trouble.is_none());
            hall.trouble = trouble;
        }
    }

    fn with<A>(&self, name: &LockName, owner: OwnerId, run: impl FnOnce(&mut Seat) -> A) -> Option<A> {
        let mut halls = locked(&self.0);
        let seat = halls.get_mut(name)?.seats.iter_mut().find(|seat| seat.owner == owner)?;
        Some(run(seat))
    }

    /// Where a place behind the queue may be.
    pub(crate) fn mark(&self, name: &LockName, owner: OwnerId) -> Mark {
        let mark = |seat: &mut Seat| match &seat.key {
            Some(key) => Mark { key: key.clone(), is_doubted: seat.is_doubted },
            None if seat.was_told => Mark { key: String::new(), is_doubted: seat.is_doubted },
            None => Mark { key: format!("{name}\u{2}"), is_doubted: seat.is_doubted },
        };
        self.with(name, owner, mark).unwrap_or_default()
    }

    /// A place behind the queue is about to be made. True if there may be one.
    pub(crate) fn doubt(&self, name: &LockName, owner: OwnerId) -> bool {
        self.with(name, owner, |seat| std::mem::replace(&mut seat.is_doubted, true)).unwrap_or_default()
    }

    /// It has this name.
    pub(crate) fn stands(&self, name: &LockName, owner: OwnerId, key: String) {
        self.with(name, owner, |seat| (seat.key, seat.is_doubted) = (Some(key), false));
    }

    /// Gives a seat up, and tells who moves to the front for it.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId, ears: &Ears) -> Left {
        let mut halls = locked(&self.0);
        let Some(hall) = halls.get_mut(name) else { return Left::Queued };
        let Some(at) = hall.seats.iter().position(|seat| seat.owner == owner) else { return Left::Queued };
        let seat = hall.seats.remove(at);
        let next = hall.seats.get(FRONT - 1).filter(|_| at < FRONT).map(|seat| seat.owner);
        if hall.seats.is_empty() {
            halls.remove(name);
        }
        drop(halls);
        if let Some(next) = next {
            ears.ring(Audience::Waiters, next, false);
        }
        match seat.key {
            _ if !seat.was_sent => Left::Nothing,
            None if !seat.is_doubted => Left::Queued,
            key => Left::Standing(Mark { key: key.unwrap_or_default(), is_doubted: seat.is_doubted }),
        }
    }
}
