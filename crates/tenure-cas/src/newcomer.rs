//! Places that are put into a cell without comparing, so that a claim that comes waits for no race.
//!
//! A writer compares the cell with what it has read. A holder that releases and claims again writes on top of its own last
//! write, with one request; a claim that comes reads first, with one more, and so it finds the cell changed each time. Its place is
//! therefore put into the cell as it is by the store itself, in line with the other writes.
//!
//! **Why no owner is granted the lock twice or too early (L1, L2).** Such a place gives no right. The version of the cell grows with it, so that
//! no client writes on top of a cell that it has read without this place. The next write of the ledger, which compares as ever, says
//! which owner holds, and with which token.
//!
//! **Why no claim waits for ever (L6).** A write in line comes through when those before it have: each of the others makes one or two of
//! them, and then reads, for its next comparison fails. The next reader of the cell moves the place into the queue, hands the lock to
//! it if it is free, and stores that with its own write.
//!
//! **Why no waiter is passed (L7).** Places move into the queue in the order in which they were put into the cell, behind those that were
//! there. A cell that [is long](crate::text::LONG) takes none: there the places beside it come first.
//!
//! **What may be left (L8).** One that arrives after its owner has gone ends by itself, as a claim that is late does. It arrives
//! within [`LATE`] of its reading or not at all, and never beside its owner's lease or place.
//!
//! [`LATE`]: crate::memory::LATE

use tenure_core::LockName;
use tenure_ledger::Place;

use crate::{
    cell::{Cell, Failure, Newcomer},
    locks::Locks,
    memory::{LATE, moment},
    snapshot::{FRONT, MovingUp, Snapshot},
    text::{EACH, LONG, encode_newcomer},
    verb::{At, Verb},
};

impl<C: Cell> Locks<C> {
    /// The place of a claim that would wait, or that `has_lost` a race, and what it would be answered; `None` where there is none to be
    /// put into the cell.
    pub(crate) fn newcomer<V: Verb>(
        &self,
        verb: &V,
        (snapshot, up): (&Snapshot, Option<&MovingUp>),
        has_lost: bool,
    ) -> Option<(Place, V::Answer)> {
        let (ledger, rules) = (&snapshot.ledger, &self.shared.rules);
        let claim = verb.claim().filter(|claim| !ledger.knows(claim.owner))?;
        if snapshot.version == 0 || snapshot.is_long || snapshot.is_full(up) {
            return None;
        }
        let now = moment(snapshot.now);
        let change = verb.run(&mut ledger.clone(), &At::new(rules, now, std::time::Duration::ZERO)).ok()?;
        // A write of the ledger tells the owner whose turn has come (L6).
        let is_quiet = snapshot.news.is_empty() && change.wakes.is_empty();
        let waits = is_quiet && verb.yields(&change.answer);
        (waits || has_lost).then(|| (Place::of(claim, now, rules, ledger.waiting()), change.answer))
    }

    /// Puts a place into a cell; answers the cell as it is then, `None` if it did not take it.
    pub(crate) async fn enqueue(
        &self,
        over: &C::Connection,
        (name, place): (&LockName, Place),
        before: &Snapshot,
    ) -> Result<Option<Snapshot>, Failure> {
        let newcomer = Newcomer {
            owner: place.owner(),
            state: &encode_newcomer(&place),
            long: LONG,
            each: EACH,
            most: if before.beside.is_some() { FRONT } else { self.shared.rules.places_max },
            until: before.now + LATE,
        };
        let Some(reading) = self.cell.enqueue(over, name, &newcomer).await? else { return Ok(None) };
        self.shared.memory.forget(name);
        self.shared.memory.learn(reading.now, self.shared.host.now());
        Snapshot::of(reading, &self.shared.rules).map(Some).map_err(|error| self.unreadable(error))
    }
}
