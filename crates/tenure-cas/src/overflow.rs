//! `Tail`: who comes when the places in the row of a lock are taken stands behind, in a row of its own.
//!
//! The row of a lock is written by whoever comes to hold it or leaves it, and compared and set. So its queue is short: [`FRONT`] places.
//! Whoever else waits puts a row of its own into the same table, without comparing anything, and then reads. When few places are left in
//! the row of the lock, the next verb that writes it takes those who stand first behind it into it, with the same statement.
//!
//! **Why nobody is let in twice or forgotten (L1, L6).** A row of the tail gives no right: who holds and who is next is decided by the
//! ledger in the row of the lock alone. One that is moved up twice, for it could not be deleted, is left out the second time
//! while its owner holds or waits. One that was put there while the queue went empty is found by its owner's next question.
//!
//! Its name is that of the lock, a control character, which no name of a lock has, and the number of the transaction that put it there:
//! so the order of names is the order of arrival (L7), and the index knows who is first.

use tenure_core::{Audience, LockName, OwnerId};
use tenure_ledger::Place;
use tokio_postgres::Row;

use crate::{error::Failure, line::Line, sql::READ};

/// Places in the row of a lock.
pub(crate) const FRONT: usize = 4;
/// Who stands behind moves up when so many of them are left.
pub(crate) const LOW: usize = 1;
/// In bytes. With a longer name the row of a place might not fit into the column, and all places are in the row of the lock.
const NAME_MAX: usize = 480;

/// What was read of it.
#[derive(Default)]
pub(crate) struct Tail {
    /// The first few, with the names of their rows; none is somebody's joke.
    pub(crate) rows: Vec<(String, Option<Place>)>,
    /// That of whoever asks.
    pub(crate) own: Option<Place>,
    /// How many stand before whoever asks.
    pub(crate) ahead: usize,
}

/// Who moves up with the next write.
#[derive(Default)]
pub(crate) struct MovingUp {
    /// The rows that are of no use then.
    pub(crate) gone: Vec<String>,
    /// Somebody may stand behind still.
    pub(crate) is_more: bool,
    /// Who is handed the lock by that.
    pub(crate) news: Vec<(Audience, OwnerId)>,
}

impl Tail {
    /// From the columns of a reading, from `at` on.
    pub(crate) fn read(line: &Line, row: &Row, at: usize) -> Result<Self, Failure> {
        let unreadable = |error| Failure::Refused(line.unreadable(error));
        let keys: Option<Vec<String>> = row.try_get(at).map_err(unreadable)?;
        let states: Option<Vec<String>> = row.try_get(at + 1).map_err(unreadable)?;
        let own: Option<String> = row.try_get(at + 2).map_err(unreadable)?;
        let ahead: i64 = row.try_get(at + 3).map_err(unreadable)?;
        let place = |text: String| Place::from_text(&text).ok();
        let rows = keys.unwrap_or_default().into_iter().zip(states.unwrap_or_default());
        let rows = rows.map(|(key, state)| (key, place(state))).collect();
        let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
        Ok(Self { rows, own: own.and_then(place), ahead })
    }

    /// All of them, if they were read.
    pub(crate) fn whole(self) -> Option<Vec<Place>> {
        (self.rows.len() < READ).then(|| self.rows.into_iter().filter_map(|(_, place)| place).collect())
    }
}

impl Line {
    /// Whether places of this lock may have rows of their own: one that may not be deleted would stay for ever, and in another order of
    /// names no index would find it.
    pub(crate) fn has_tail(&self, name: &LockName) -> bool {
        self.facts().takes_places && name.as_str().len() <= NAME_MAX
    }
}
