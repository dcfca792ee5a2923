//! `Halls`: the waiters of one process for one lock stand in line here, and only the first few of them have places in the row.
//!
//! Every change of owner writes the row anew, so that it must not grow with the waiters of a process (L6). The order is kept: who
//! stands here is one of whom the store has not heard yet, and goes there in the order of its first question (L7).

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tenure_core::{Audience, BackendError, LockName, Moment, OwnerId};

use crate::{memory::locked, wake::Ears};

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
    /// It may have a place in the row.
    was_sent: bool,
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
            hall.seats.push(Seat { owner, asked: now, was_sent: false });
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
    pub(crate) fn heard(&self, name: &LockName, trouble: Option<(Moment, BackendError)>) {
        if let Some(hall) = locked(&self.0).get_mut(name) {
            hall.trouble = trouble;
        }
    }

    /// Gives a seat up, and tells who moves to the front for it. True if it certainly has no place in the row.
    pub(crate) fn leave(&self, name: &LockName, owner: OwnerId, ears: &Ears) -> bool {
        let mut halls = locked(&self.0);
        let Some(hall) = halls.get_mut(name) else { return false };
        let Some(at) = hall.seats.iter().position(|seat| seat.owner == owner) else { return false };
        let seat = hall.seats.remove(at);
        let next = hall.seats.get(FRONT - 1).filter(|_| at < FRONT).map(|seat| seat.owner);
        if hall.seats.is_empty() {
            halls.remove(name);
        }
        drop(halls);
        if let Some(next) = next {
            ears.ring(Audience::Waiters, next, false);
        }
        !seat.was_sent
    }
}
