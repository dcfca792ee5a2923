//! `Front`: a lock as it is in its rows, with the part of its queue that a verb needs.

use rusqlite::{Connection, OptionalExtension, Row};
use tenure_core::{LockName, Mode, Moment, OwnerId, Priority};
use tenure_ledger::{Ledger, Place, Rules, Unseen};

use crate::{clock::micros, error::RowError, sql, unsigned::Unsigned};

/// The numbers of the places of a class, from and below: its places are read in this order.
///
/// A version of Tenure that knows no class gives its places the largest number of all: they are the last, in whatever class that
/// is. Numbers are never used up: a class has 2^40.
// L7.
fn numbers(priority: Priority, is_ahead_of_its_class: bool) -> (i64, i64) {
    const CLASS: i64 = 1 << 40;
    match priority {
        _ if is_ahead_of_its_class => (-3 * CLASS, -2 * CLASS),
        Priority::Urgent => (-2 * CLASS, -CLASS),
        Priority::High => (-CLASS, 0),
        Priority::Normal => (0, CLASS),
        Priority::Low => (CLASS, i64::MAX),
    }
}

/// How many places are read at first: the next holder, the one behind it, and two in case these are dead.
pub(crate) const FIRST_LOOK: usize = 4;
/// If a verb needs more places, it gets this many times as many.
pub(crate) const LOOK_FURTHER: usize = 8;
/// More than there are.
pub(crate) const WHOLE: usize = 1 << 30;
/// Places ahead are counted up to this many. Further back, the numbers show how many they are at most.
const COUNTED: usize = 32;
/// Behind this many others a waiter polls rarely. Not more than are counted, so the result is that of the whole queue.
pub(crate) const FAR: usize = COUNTED;

/// The rows that are read of a lock.
pub(crate) struct LockQuery<'a> {
    pub(crate) name: &'a LockName,
    /// The owner whose place is read too, wherever it is in the queue, and the class in which it would take one.
    pub(crate) asker: Option<(OwnerId, Priority)>,
    pub(crate) now: Moment,
    pub(crate) rules: &'a Rules,
    /// How many places from the front.
    pub(crate) places: usize,
}

/// The rows of a lock, and the ledger that they make up.
pub(crate) struct Front {
    pub(crate) ledger: Ledger,
    /// False if the lock has no row.
    pub(crate) is_there: bool,
    row: (bool, String),
    places: Vec<PlaceRow>,
    is_whole: bool,
    read_at_us: u64,
    /// The last live place of the front that waits for a turn. A verb that leaves it there has not read behind it.
    last_turn: Option<OwnerId>,
}

/// The row of a lock.
struct LockRow {
    /// Without its queue.
    ledger: Ledger,
    row: Option<(bool, String)>,
    /// False if there is no waiter.
    has_places: bool,
}

struct PlaceRow {
    number: i64,
    owner: OwnerId,
    ends_us: u64,
    mode: Mode,
    /// It is ahead of its class.
    is_ahead: bool,
}

/// The rows that a verb changed.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// Whether there is a holder or a waiter, and the holders and the fence; `None` if all this is unchanged.
    row: Option<(bool, LedgerRow)>,
    /// The lock has no places afterwards.
    is_alone: bool,
    /// The lock has no row yet.
    is_new: bool,
    removed: Vec<i64>,
    kept: Vec<(i64, u64)>,
    added: Vec<Place>,
}

impl Front {
    /// Reads a lock and the front of its queue, in several statements. The caller runs them in one snapshot.
    pub(crate) fn read(conn: &Connection, look: &LockQuery<'_>) -> Result<Self, RowError> {
        let LockRow { ledger, row, has_places } = LockRow::read(conn, look.name)?;
        let mut front = match has_places {
            true => read_places(conn, sql::READ_FRONT, (look.name.as_str(), Unsigned(look.places)))?,
            false => Vec::new(),
        };
        let is_whole = front.len() < look.places;
        let is_live = |place: &Place| place.ends_us() > micros(look.now.boot);
        let last_turn = front.iter().rev().find(|(_, place)| is_live(place) && place.waits_for_a_turn());
        let last_turn = last_turn.map(|(_, place)| place.owner());
        let mut behind = Unseen::default();
        if let (Some((owner, priority)), Some((last, _)), false) = (look.asker, front.last(), is_whole) {
            let last = *last;
            if front.iter().all(|(_, place)| place.owner() != owner) {
                front.extend(read_places(conn, sql::READ_PLACE, (look.name.as_str(), owner.to_string()))?);
            }
            // A place that has ended will be taken anew, at the end.
            let own = front.iter().find(|(_, place)| place.owner() == owner && is_live(place));
            behind = unseen(conn, look, (last, priority), own.map(|(number, _)| *number))?;
        }
        let places = front.iter().map(|(number, place)| PlaceRow {
            number: *number,
            owner: place.owner(),
            ends_us: place.ends_us(),
            mode: place.mode(),
            is_ahead: place.is_ahead_of_its_class(),
        });
        let places = places.collect();
        let is_there = row.is_some();
        let ledger = ledger.with_queue(front.into_iter().map(|(_, place)| place), behind);
        Ok(Self {
            ledger,
            is_there,
            row: row.unwrap_or_default(),
            places,
            is_whole,
            read_at_us: micros(look.now.boot),
            last_turn,
        })
    }

    /// False if the verb that made this ledger may have needed places behind the front.
    pub(crate) fn suffices(&self, after: &Ledger) -> bool {
        let has_last = || self.last_turn.is_some_and(|owner| after.has_place(owner));
        self.is_whole || !after.has_compared_all() && has_last()
    }

    /// The writes that make the rows equal to this ledger.
    pub(crate) fn edits(&self, mut after: Ledger) -> Edits {
        let mut edits = Edits { is_new: !self.is_there, ..Edits::default() };
        let is_busy = !after.is_free();
        edits.is_alone = self.is_whole && after.waiting() == 0;
        // OK because a verb changes the order of the queue in one case only: it takes places out, and puts one in.
        let is_known = |place: &Place| {
            let is_row = |row: &PlaceRow| {
                let is_live = row.ends_us > self.read_at_us;
                let is_same = row.mode == place.mode() && row.is_ahead == place.is_ahead_of_its_class();
                is_live && row.owner == place.owner() && is_same
            };
            self.places.iter().any(is_row)
        };
        let (known, added): (Vec<Place>, Vec<Place>) = after.take_queue().into_iter().partition(is_known);
        edits.added = added;
        let mut queue = known.into_iter().peekable();
        for PlaceRow { number, owner, ends_us, .. } in &self.places {
            // An expired place is removed, even if its owner takes a new one, which is at the end.
            let is_live = *ends_us > self.read_at_us;
            match queue.next_if(|place| is_live && place.owner() == *owner) {
                None => edits.removed.push(*number),
                Some(place) if place.ends_us() != *ends_us => edits.kept.push((*number, place.ends_us())),
                Some(_) => {}
            }
        }
        // Out of the order of the rows, which were removed then.
        edits.added.extend(queue);
        let row = LedgerRow::new(after);
        let is_same = self.row.0 == is_busy && self.row.1 == row.state;
        edits.row = (!is_same).then_some((is_busy, row));
        edits
    }

    /// How many µs the owner's place still lasts, if the edits do no more than extend it: then they can wait.
    pub(crate) fn left_of_place(&self, edits: &Edits, owner: OwnerId, now: Moment) -> Option<u64> {
        let Edits { row: None, removed, kept, added, .. } = edits else { return None };
        if !removed.is_empty() || !added.is_empty() || kept.len() > 1 {
            return None;
        }
        let own = self.places.iter().find(|place| place.owner == owner)?;
        kept.iter()
            .all(|(number, _)| *number == own.number)
            .then(|| own.ends_us.saturating_sub(micros(now.boot)))
    }
}

impl LockRow {
    fn read(conn: &Connection, name: &LockName) -> Result<Self, RowError> {
        let row = conn
            .prepare_cached(sql::READ_LOCK)?
            .query_row([name.as_str()], |row| Ok(((row.get(0)?, state(row, 1)?), row.get(2)?)))
            .optional()?;
        Ok(match row {
            Some((row, has_places)) => Self { ledger: Ledger::decode(&row.1)?, row: Some(row), has_places },
            None => {
                let Unsigned(floor) =
                    conn.prepare_cached(sql::READ_FLOOR)?.query_row([], |row| row.get(0))?;
                Self { ledger: Ledger::new(floor), row: None, has_places: true }
            }
        })
    }
}

impl Edits {
    /// Writes them. A free lock's row is kept for its fence until it is swept (H6.4).
    pub(crate) fn write(&self, conn: &Connection, name: &LockName, now: Moment) -> rusqlite::Result<()> {
        let name = name.as_str();
        if let Some((is_busy, row)) = &self.row {
            let write = if self.is_new { sql::ADD_LOCK } else { sql::WRITE_LOCK };
            conn.prepare_cached(write)?.execute((name, is_busy, Unsigned(now.wall.as_secs()), &row.state))?;
        }
        for number in &self.removed {
            conn.prepare_cached(sql::REMOVE_PLACE)?.execute((name, number))?;
        }
        for (number, ends_us) in &self.kept {
            conn.prepare_cached(sql::KEEP_PLACE)?.execute((name, number, Unsigned(*ends_us)))?;
        }
        for place in &self.added {
            add_place(conn, name, place)?;
        }
        Ok(())
    }

    /// The row that they write, if the lock has no places afterwards.
    pub(crate) fn alone(self) -> Option<LedgerRow> {
        let (_, row) = self.row.filter(|_| self.is_alone)?;
        Some(row)
    }
}

/// The row of a lock.
#[derive(Debug)]
pub(crate) struct LedgerRow {
    /// Without its queue.
    pub(crate) ledger: Ledger,
    /// The same as text.
    pub(crate) state: String,
}

impl LedgerRow {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self { state: ledger.encode(), ledger }
    }
}

/// Puts a place into the queue, behind those of its class.
pub(crate) fn add_place(conn: &Connection, name: &str, place: &Place) -> rusqlite::Result<()> {
    let owner = place.owner().to_string();
    let (from, until) = numbers(place.priority(), place.is_ahead_of_its_class());
    let (turn, ends_us) = (place.waits_for_a_turn(), Unsigned(place.ends_us()));
    let row = (name, owner, turn, ends_us, place.encode(), from, until);
    conn.prepare_cached(sql::ADD_PLACE)?.execute(row).map(drop)
}

/// A lock without its queue.
pub(crate) fn holders(conn: &Connection, name: &LockName) -> Result<Ledger, RowError> {
    LockRow::read(conn, name).map(|row| row.ledger)
}

/// A lock with its whole queue; `None` if it has no row.
pub(crate) fn whole(conn: &Connection, name: &LockName) -> Result<Ledger, RowError> {
    let LockRow { ledger, .. } = LockRow::read(conn, name)?;
    let places = read_places(conn, sql::READ_FRONT, (name.as_str(), -1))?;
    Ok(ledger.with_queue(places.into_iter().map(|(_, place)| place), Unseen::default()))
}

/// The state in this column. Bytes that are not UTF-8, which another program wrote, are replaced. The lock is then reported
/// as damaged, with its name.
pub(crate) fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?).into_owned())
}

/// The name in the first column. `None` if it is not UTF-8, and so not the name of a lock.
pub(crate) fn name(row: &Row<'_>) -> rusqlite::Result<Option<String>> {
    Ok(str::from_utf8(row.get_ref(0)?.as_bytes()?).ok().map(str::to_owned))
}

fn read_places(
    conn: &Connection,
    statement: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<(i64, Place)>, RowError> {
    let mut read = conn.prepare_cached(statement)?;
    let text = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, state(row, 2)?));
    let mut places = Vec::new();
    for row in read.query_map(parameters, text)? {
        let (number, Unsigned(ends_us), state) = row?;
        places.push((number, Place::decode(&state, ends_us)?));
    }
    Ok(places)
}

/// The places between the last place of the front and the owner's own one, or the end of the queue.
fn unseen(
    conn: &Connection,
    look: &LockQuery<'_>,
    (last, priority): (i64, Priority),
    own: Option<i64>,
) -> rusqlite::Result<Unseen> {
    let (name, most) = (look.name.as_str(), look.rules.places_max);
    let next = |(from, until): (i64, i64)| -> rusqlite::Result<i64> {
        conn.prepare_cached(sql::NEXT_PLACE)?.query_row((name, from, until), |row| row.get(0))
    };
    let until = own.map_or_else(|| next(numbers(priority, false)), Ok)?;
    let end = if own.is_some() { until } else { next((i64::MIN, i64::MAX))? };
    let now_us = micros(look.now.boot);
    let between = |until: i64| usize::try_from(until.saturating_sub(last).saturating_sub(1)).unwrap_or(0);
    let count = |statement: &str, until: i64, limit: usize| -> rusqlite::Result<usize> {
        let parameters = (name, last, until, Unsigned(now_us), Unsigned(limit));
        let Unsigned(count) = conn.prepare_cached(statement)?.query_row(parameters, |row| row.get(0))?;
        Ok(count)
    };
    let ahead = match between(until) {
        0 => 0,
        // Between two classes there is a large gap.
        far if far > most => count(sql::COUNT_TURNS, until, most)?,
        between => match count(sql::COUNT_TURNS, until, COUNTED)? {
            COUNTED => between,
            counted => counted,
        },
    };
    // Numbers have gaps where places were given up. The places themselves are counted only where gaps may mislead.
    let is_near_bound = own.is_none() && look.places.saturating_add(between(end)) >= most;
    let places = if is_near_bound { count(sql::COUNT_PLACES, end, most)? } else { 0 };
    Ok(Unseen { ahead, places, is_partial: false })
}
