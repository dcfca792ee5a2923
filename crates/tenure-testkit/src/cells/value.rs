//! `Cells`: cells and the places next to them, as one value.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tenure_cas::{
    CellReading, CellWrite, Listed, NewCell, NewPlace, Newcomer, OldPlace, Overflow, ReadRequest, ShownOwner,
    Until, WriteAnswer, WrittenCell, slot_row,
};
use tenure_core::LockName;

/// How many places next to a cell are read with it.
const FIRST: usize = 6;
/// Separates the name of a lock from the number of a place next to its cell.
const BESIDE: char = '\u{1}';

/// Cells and the places next to them, as one value.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    cells: BTreeMap<LockName, Kept>,
    places: BTreeMap<LockName, BTreeMap<String, String>>,
    /// The number of the last place.
    last: u64,
    /// The rows in which transactions look for an owner.
    slots: BTreeMap<String, OwnerSlot>,
    /// Rows, and the texts on which no transaction begins to rely.
    stopped: BTreeSet<(String, String)>,
}

/// A row in which transactions look for an owner.
#[derive(Clone, Debug, Default)]
struct OwnerSlot {
    text: String,
    /// The transactions that have it locked.
    locked_by: BTreeSet<u64>,
}

/// A cell that exists.
#[derive(Clone, Debug)]
struct Kept {
    version: i64,
    state: String,
    is_busy: bool,
}

impl Cells {
    /// The text in a cell; empty if there is no cell.
    pub fn state(&self, name: &LockName) -> &str {
        self.cells.get(name).map_or("", |kept| &kept.state)
    }

    /// All locks that have a cell.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.cells.keys()
    }

    /// Reads a cell at this time of the store's clock.
    pub fn read(&self, name: &LockName, look: &ReadRequest, now: Duration) -> CellReading {
        let kept = self.cells.get(name);
        let places = || self.places.get(name).into_iter().flatten();
        let most = if look.whole { usize::MAX } else { FIRST };
        let first = places().take(most).map(|(key, state)| (key.clone(), state.clone())).collect();
        let own = match &look.until {
            Until::Key(key) => places().find(|(known, _)| *known == key).map(|(_, state)| state.clone()),
            Until::Nothing | Until::Class(_) | Until::End => None,
        };
        let ahead = places().filter(|(key, _)| look.until.is_behind(key)).count();
        CellReading {
            version: kept.map_or(0, |kept| kept.version),
            state: kept.map_or_else(String::new, |kept| kept.state.clone()),
            now,
            overflow: Some(Overflow {
                first,
                emptied: Vec::new(),
                is_whole: places().count() < most,
                own,
                ahead,
                may_begin: true,
            }),
        }
    }

    /// Makes a cell if there is none.
    pub fn make(&mut self, name: &LockName, state: &str, now: Duration) -> Option<NewCell> {
        if self.cells.contains_key(name) {
            return None;
        }
        let version = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        self.cells.insert(name.clone(), Kept { version, state: state.to_owned(), is_busy: false });
        Some(NewCell { version, at: now, is_ours: true })
    }

    /// Writes a cell if it has not changed and the time is within the limits. If the write is the last, no place may
    /// be left next to the cell.
    pub fn write(&mut self, name: &LockName, write: &CellWrite<'_>, now: Duration) -> WriteAnswer {
        // As the servers do: before they look at the version.
        let is_locked = |shown: ShownOwner<'_>| {
            self.slots.get(&slot_row(name, shown.slot)).is_some_and(|slot| !slot.locked_by.is_empty())
        };
        if write.shown.is_some_and(is_locked) {
            return WriteAnswer::Locked(None);
        }
        let is_left = |key: &String| !write.gone.contains(key);
        let is_passed =
            write.is_last && self.places.get(name).is_some_and(|places| places.keys().any(is_left));
        if !self.is_as_required(name, write, now) || is_passed {
            let reading = CellReading { overflow: None, ..self.read(name, &ReadRequest::default(), now) };
            return WriteAnswer::Changed(Some(reading));
        }
        if let Some(ShownOwner { slot, text }) = write.shown {
            text.clone_into(&mut self.slots.entry(slot_row(name, slot)).or_default().text);
        }
        let (version, state, is_busy) = (write.on.0 + 1, write.state.to_owned(), write.is_busy);
        self.cells.insert(name.clone(), Kept { version, state, is_busy });
        for key in write.gone {
            self.places.get_mut(name).and_then(|places| places.remove(key));
        }
        WriteAnswer::Done(WrittenCell { at: now, is_ours: true })
    }

    /// A transaction looks for an owner. It has the row locked from then on, even if it has not found it, as on MySQL.
    pub fn rely(&mut self, transaction: u64, row: &str, proof: &str) -> bool {
        let Some(slot) = self.slots.get_mut(row) else { return false };
        slot.locked_by.insert(transaction);
        slot.text == proof && !self.stopped.contains(&(row.to_owned(), proof.to_owned()))
    }

    /// No transaction begins to rely any more on this owner, which the write would end.
    pub fn stop_relying(&mut self, name: &LockName, write: &CellWrite<'_>, proof: &str, now: Duration) {
        if let Some(shown) = write.shown.filter(|_| self.is_as_required(name, write, now)) {
            self.stopped.insert((slot_row(name, shown.slot), proof.to_owned()));
        }
    }

    /// The cell has not changed, and the time is within the limits.
    fn is_as_required(&self, name: &LockName, write: &CellWrite<'_>, now: Duration) -> bool {
        let is_same = |kept: &Kept| write.on == (kept.version, &*kept.state);
        self.cells.get(name).is_some_and(is_same) && is_within(write.within, now)
    }

    /// A transaction ends.
    pub fn end(&mut self, transaction: u64) {
        for slot in self.slots.values_mut() {
            slot.locked_by.remove(&transaction);
        }
    }

    /// Puts a place into a cell, whatever its text, and returns the cell as it is then. `None` if the cell does not
    /// take it.
    pub fn enqueue(&mut self, name: &LockName, place: &Newcomer<'_>, now: Duration) -> Option<CellReading> {
        let kept = self.cells.get_mut(name)?;
        let there = kept.state.matches(place.each).count();
        let is_known = kept.state.contains(&place.owner.to_string());
        let is_in_time = is_within(place.within, now);
        if kept.state.starts_with(place.long) || is_known || there >= place.most || !is_in_time {
            return None;
        }
        let (first, rest) = kept.state.split_at(1);
        let first = if there + 1 < place.most { first } else { place.long };
        kept.state = format!("{first}{}{rest}", place.state);
        kept.version += 1;
        kept.is_busy = true;
        Some(CellReading { version: kept.version, state: kept.state.clone(), now, overflow: None })
    }

    /// Puts a place behind those of its class, unless it is there and may be, and returns its key. `None`: the cell does not begin
    /// as it must, or the time is not within the limits.
    pub fn append(&mut self, name: &LockName, place: &NewPlace<'_>, now: Duration) -> Option<String> {
        let is_behind = self.state(name).starts_with(place.behind);
        let places = self.places.entry(name.clone()).or_default();
        let owner = place.owner.to_string();
        let known = places.iter().find(|(_, state)| place.may_be_there && state.contains(&owner));
        if let Some((key, _)) = known {
            return Some(key.clone());
        }
        if !is_behind || !is_within(place.within, now) {
            return None;
        }
        self.last += 1;
        let key = format!("{name}{BESIDE}{}{:016x}", place.class, self.last);
        places.insert(key.clone(), place.state.to_owned());
        Some(key)
    }

    /// Overwrites a place; false if it is not there, or the time is not within the limits.
    pub fn keep(&mut self, (key, state): (&str, &str), within: (Duration, Duration), now: Duration) -> bool {
        if !is_within(within, now) {
            return false;
        }
        let places = self.places.values_mut().find_map(|places| places.get_mut(key));
        places.map(|place| *place = state.to_owned()).is_some()
    }

    /// Removes a place; false if it is not there.
    pub fn remove(&mut self, name: &LockName, place: &OldPlace<'_>) -> bool {
        let Some(places) = self.places.get_mut(name) else { return false };
        let (owner, before) = (place.owner.to_string(), places.len());
        places.retain(|key, state| key != place.key && !(place.may_have_another && state.contains(&owner)));
        places.len() < before
    }

    /// All places next to a cell.
    pub fn places(&self, name: &LockName) -> Vec<String> {
        self.places.get(name).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// The locks that may have a holder or a waiter.
    pub fn list(&self, prefix: &str, now: Duration) -> Vec<Listed> {
        let busy = self.cells.iter().filter(|(name, kept)| kept.is_busy && name.as_str().starts_with(prefix));
        let list = |(name, kept): (&LockName, &Kept)| {
            let (state, places) = (kept.state.clone(), self.places(name));
            Listed { name: name.clone(), state, places, now }
        };
        busy.map(list).collect()
    }
}

/// Whether a clock is between two times.
fn is_within((from, until): (Duration, Duration), now: Duration) -> bool {
    (from..=until).contains(&now)
}
