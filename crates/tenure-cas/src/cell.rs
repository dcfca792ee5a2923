//! `Cell`: what a store must be able to do so that its locks can be kept by comparing and setting.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tenure_core::{Audience, BackendError, Finding, Hint, LockName, OwnerId, ProcessId, Promises, Wakes};
use tenure_ledger::LedgerError;

/// One handle to a store that keeps each lock in a cell: a version and a text, written only if both are as expected.
///
/// A cell decides nothing about locks and waits for nobody's turn. What it answers is compared, decoded and believed in this crate.
/// [`read`](Self::read), [`write`](Self::write), [`list`](Self::list) and what is optional are one request each, except that
/// `read_many` and `write_many` are one for each cell where a store has nothing better.
#[async_trait]
pub trait Cell: Send + Sync + Sized + 'static {
    /// What requests travel over; `()` where there is no such thing.
    type Connection: Send + Sync;

    /// What the store promises.
    fn promises(&self) -> Promises;

    /// A handle of its own to the same store. One that is stuck does not stop the other.
    async fn another(&self) -> Result<Self, BackendError>;

    /// The connection; a new one where there is none, or the one there was is broken or stuck.
    ///
    /// # Errors
    /// Nothing was asked yet: they are always `NotApplied`.
    async fn connect(&self, purpose: Purpose) -> Result<Self::Connection, BackendError>;

    /// Reads a cell and the store's clock.
    ///
    /// # Contract
    /// 1. The time is one that the clock showed after the request was sent (H2.2).
    /// 2. Version and text are of one moment, and what is read was acknowledged, or is in doubt for the caller as well.
    async fn read(&self, over: &Self::Connection, name: &LockName, look: &Look) -> Result<Reading, Failure>;

    /// Makes a cell with this text, which nobody holds, if there is none; `None` if there is one, or if nothing came of it.
    ///
    /// # Contract
    /// 1. The version is the store's clock in µs: one that no other cell of this name has had (L2).
    /// 2. The time is one that the clock showed after the cell was made.
    async fn make(
        &self,
        over: &Self::Connection,
        name: &LockName,
        state: &str,
    ) -> Result<Option<Made>, Failure>;

    /// Writes a cell if it is as it was, and answers when; `None` if it is not, or is locked and the write does not wait.
    ///
    /// # Contract
    /// 1. Compares version *and* text in the atomic step that writes: after a fail-over another history may have the same version.
    /// 2. Writes only if the store's clock lies within [`Write::within`] in that step; or did so when it began to wait for who has the
    ///    cell locked, and the cell is as it was.
    /// 3. Answers [`Failure::Broken`] unless the store said what became of it; a yes is as durable as the store promises (A3).
    /// 4. A write that was answered does not come again: nobody below this call repeats it.
    /// 5. Tells [`Write::hints`] with the write or after it, or not at all.
    async fn write(
        &self,
        over: &Self::Connection,
        name: &LockName,
        write: &Write<'_>,
    ) -> Result<Option<Stored>, Failure>;

    /// Puts a place into a cell, whatever the cell has, and answers the cell as it is then; `None` if the cell does not take it, or
    /// the store cannot. It gives no right: who writes the cell next reads it as the end of the queue.
    ///
    /// # Contract
    /// 1. Compares nothing that others write to the cell, and waits for who has the cell locked: however often others write, it comes
    ///    through after a few of them (L6). It waits for each of them for a moment only.
    /// 2. The cell takes it unless it [is long](Newcomer::long) or full, or has the owner already, or `until` has passed.
    /// 3. The version is the next one, so that no write comes through that was made without it (L7).
    async fn enqueue(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _place: &Newcomer<'_>,
    ) -> Result<Option<Reading>, Failure> {
        Ok(None)
    }

    /// Every cell whose name starts with `prefix` and that may be held or waited for, by name.
    async fn list(&self, over: &Self::Connection, prefix: &str) -> Result<Vec<Listed>, Failure>;

    /// An error in this store's own words.
    fn error(&self, trouble: Trouble) -> BackendError;

    /// Findings about the server and our assumptions.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError>;

    /// Tells an owner of another process something, beside any write.
    async fn tell(&self, _over: &Self::Connection, _hint: Hint) -> Result<(), Failure> {
        Ok(())
    }

    /// True if a hint to this owner is delivered inside this process.
    fn reaches(&self, hint: Hint) -> bool;

    /// Delivers a hint inside this process.
    fn ring(&self, hint: Hint);

    /// A stream of the hints for owners of a process.
    fn wakes(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn Wakes>;

    /// True if hints of other processes reach this handle; where they do not, waiters ask more often.
    fn hears(&self) -> bool {
        true
    }

    /// How many leases one request can renew.
    fn batch(&self) -> usize {
        1
    }

    /// Reads many cells; one answer for each, in order, and none for a cell that is not there.
    async fn read_many(
        &self,
        over: &Self::Connection,
        names: &[&LockName],
    ) -> Result<Vec<Option<Reading>>, Failure> {
        let mut readings = Vec::new();
        for name in names {
            readings.push(Some(self.read(over, name, &Look::default()).await?));
        }
        Ok(readings)
    }

    /// Writes many cells, each on its own as [`write`](Self::write) does; one answer for each, in order. All have the same
    /// [`Write::within`], none has hints or waits.
    async fn write_many(
        &self,
        over: &Self::Connection,
        writes: &[(&LockName, Write<'_>)],
    ) -> Result<Vec<Option<Stored>>, Failure> {
        let mut stored = Vec::new();
        for (name, write) in writes {
            stored.push(self.write(over, name, write).await?);
        }
        Ok(stored)
    }

    /// Puts a place beside the cell, behind all others of this lock, and answers its key; `None` if the cell does not begin with
    /// [`NewPlace::behind`]. Asked only where [`Reading::overflow`] was there, as the three below.
    ///
    /// # Contract
    /// 1. Keys of one lock grow, compared as text, in the order in which places were put there (L7).
    /// 2. If `may_be_there`, a place of this owner that is there already is answered instead.
    /// 3. Looks at the cell in the step that puts it there, as well as the store can: where the two may be told apart, two that ask at
    ///    one moment may change places.
    async fn append_place(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _place: &NewPlace<'_>,
    ) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// Writes a place beside the cell anew; false if it is not there.
    async fn keep_place(&self, _over: &Self::Connection, _key: &str, _state: &str) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Takes a place away; false if it is not there.
    async fn remove_place(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _place: &OldPlace<'_>,
    ) -> Result<bool, Failure> {
        Ok(false)
    }

    /// All places beside the cell, in their order.
    async fn places(&self, _over: &Self::Connection, _name: &LockName) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To keep or give back what is held.
    Keep,
    /// To take a lock, or to look: the store must be one of ours.
    Use,
    /// To wait for a lock as well: from here on hints are heard, where they can be (hazard 31).
    Wait,
}

/// How a cell is read.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// How far places beside the cell are counted.
    pub until: Until,
    /// A lock may be taken next: what holds the cells is made if it is not there.
    pub creates: bool,
}

/// How far places beside a cell are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// They are not.
    #[default]
    Nothing,
    /// Up to this key.
    Key(String),
    /// All of this lock.
    End,
}

impl Until {
    /// True if this key stands before it.
    pub fn is_behind(&self, key: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Key(own) => key < own.as_str(),
            Self::End => true,
        }
    }
}

/// A cell as it was read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// 0: there is no such cell.
    pub version: i64,
    /// Empty: there is no such cell.
    pub state: String,
    /// The store's clock, since the Unix epoch.
    pub now: Duration,
    /// Places beside the cell; `None` where there can be none.
    pub overflow: Option<Overflow>,
}

/// Places beside a cell.
#[derive(Clone, Debug, Default)]
pub struct Overflow {
    /// The first of them: key and text.
    pub first: Vec<(String, String)>,
    /// That is all.
    pub is_whole: bool,
    /// The text at the key up to which was counted.
    pub own: Option<String>,
    /// How many there are before that key.
    pub ahead: usize,
}

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The version and the text that the cell must have. It gets the next version.
    pub on: (i64, &'a str),
    /// The text that it gets, in ASCII.
    pub state: &'a str,
    /// Somebody holds or waits: the cell must be listed, and not be tidied away.
    pub is_busy: bool,
    /// Between which two times the store's clock must be.
    pub within: (Duration, Duration),
    /// How long it waits for whoever has the cell locked, where cells can be locked.
    pub patience: Patience,
    /// Who is told by it; all of other processes.
    pub hints: &'a [Hint],
    /// Places beside the cell that are deleted with it, as far as nobody has them locked.
    pub gone: &'a [String],
    /// Only if no other place stands beside the cell.
    pub is_last: bool,
}

/// How long a write waits for who has the cell locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as the store lets it.
    Any,
    /// For a moment.
    Brief,
    /// Not at all.
    None,
}

/// A cell that was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Its first one.
    pub version: i64,
    /// The store's clock, since the Unix epoch.
    pub at: Duration,
    /// The cell is what was to be made.
    pub is_ours: bool,
}

/// A write that was stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// A time that the store's clock had reached when it answered.
    pub at: Duration,
    /// The cell is what was written.
    pub is_ours: bool,
}

/// A cell that may be held or waited for.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Of which lock.
    pub name: LockName,
    /// Its text.
    pub state: String,
    /// The texts of the places beside it, in their order.
    pub places: Vec<String>,
    /// The store's clock.
    pub now: Duration,
}

/// A place that is to be put into a cell.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// Whose it is: a cell that has this already does not take it.
    pub owner: OwnerId,
    /// Its text, in ASCII: it is put behind the first character of the cell's.
    pub state: &'a str,
    /// How the text of a cell begins that takes none; with the last place that a cell has room for, this takes the place of the first
    /// character.
    pub long: &'a str,
    /// What is in the text of a cell once for each place.
    pub each: &'a str,
    /// How many places a cell has room for.
    pub most: usize,
    /// Until when by the store's clock.
    pub until: Duration,
}

/// A place that is to be put beside a cell.
#[derive(Clone, Copy, Debug)]
pub struct NewPlace<'a> {
    /// Whose it is.
    pub owner: OwnerId,
    /// Its text, in ASCII; the owner is in it.
    pub state: &'a str,
    /// An earlier try may have put it there.
    pub may_be_there: bool,
    /// How the text of the cell must begin.
    pub behind: &'a str,
}

/// A place that may be beside a cell.
#[derive(Clone, Copy, Debug)]
pub struct OldPlace<'a> {
    /// Whose it is.
    pub owner: OwnerId,
    /// Its key; empty if that is not known.
    pub key: &'a str,
    /// It may be there under another key.
    pub may_have_another: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Somebody else was faster, and nothing happened: read again (hazard 56).
    Overtaken,
    /// Another transaction has the cell locked for longer than the write waits; nothing was written.
    Locked,
    /// The connection broke. A write may have happened.
    Broken(BackendError),
    /// The store refused, and nothing happened (L9).
    Refused(BackendError),
}

/// What went wrong between a verb and its cell.
#[derive(Debug)]
pub enum Trouble {
    /// Others were faster every time. `NotApplied`.
    Overtaken,
    /// It was there, it is not any more, and nobody can say whether our own request ended it. `Unknown`.
    Unsettled,
    /// Somebody has the cell locked for longer than a commit takes. `NotApplied`.
    Locked,
    /// The cell stays as it is whatever is written, though nobody else writes to it. `NotApplied`.
    Swallowed,
    /// The cell has something else than what was written to it. `Unknown`.
    Altered,
    /// The ledger refused, or is none. `NotApplied`.
    Ledger(LedgerError),
}
