//! `Cell`: what a store must be able to do so that its locks can be kept by comparing and setting.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use tenure_core::{
    Absent, Audience, BackendError, EndOfGrant, Finding, Hint, LockName, Memos, Minting, Order, OwnerId,
    ProcessId, Promises, Sharing, WakeStream,
};
use tenure_ledger::LedgerError;

use crate::memory::TOLERANCE;

/// One handle to a store that keeps each lock in a cell: a version and a text, written only if both are as
/// expected. A row is one, and so is an object in a bucket.
///
/// A cell decides nothing about locks and waits for no turn. What it answers is compared, decoded and
/// believed in this crate. [`read`](Self::read), [`write`](Self::write), [`list`](Self::list) and what is
/// optional are one request each, except that `read_many` and `write_many` are one for each cell where a
/// store has nothing better.
///
/// A clone is a handle with a connection of its own: one that is stuck does not stop the other.
///
/// Besides reading, writing, listing and notifying there is [`enqueue`](Self::enqueue), without which a claim
/// may lose every race to an owner that comes again; [`beside`](Self::beside), without which each waiter
/// writes what a holder writes; [`error`](Self::error) and [`diagnose`](Self::diagnose), because a person
/// must read of rows or of objects.
#[async_trait]
pub trait Cell: Clone + Send + Sync + 'static {
    /// What requests travel over; `()` where there is no such thing.
    type Connection: Send + Sync;

    /// What the store promises.
    fn promises(&self) -> Promises;

    /// The connection; a new one where there is none, or the one there was is broken or stuck.
    ///
    /// # Errors
    /// Nothing was asked yet: they are always `NotApplied`.
    async fn connect(&self, purpose: ConnectionPurpose) -> Result<Connected<Self::Connection>, BackendError>;

    /// Reads a cell and the store's clock.
    ///
    /// # Contract
    /// 1. The time is one that the clock showed after the request was sent (H2.2).
    /// 2. Version and text are of one moment, and what is read was acknowledged, or is unacknowledged for the
    ///    caller as well.
    async fn read(
        &self,
        over: &Self::Connection,
        name: &LockName,
        look: &ReadRequest,
    ) -> Result<CellReading, CellError>;

    /// Makes a cell with this text, which has no holder, if there is none; `None` if there is one, or if
    /// nothing came of it.
    ///
    /// # Contract
    /// 1. The version is the store's clock in µs: one that no other cell of this name has had (L2).
    /// 2. The time is one that the clock showed after the cell was made.
    async fn make(
        &self,
        over: &Self::Connection,
        name: &LockName,
        state: &str,
    ) -> Result<Option<NewCell>, CellError>;

    /// Writes a cell if it is as it was, and answers when; `None` if it is not, or is locked and the write
    /// does not wait.
    ///
    /// # Contract
    /// 1. Compares version *and* text in the atomic step that writes: after a fail-over another history may
    ///    have the same version.
    /// 2. Writes only if the store's clock lies within [`CellWrite::within`] in that step; or did so when it
    ///    began to wait for the client that has the cell locked, and the cell is as it was.
    /// 3. Answers [`CellError::Broken`] unless the store said what became of it; a yes is as durable as the
    ///    store promises (A3).
    /// 4. A write that was answered does not come again: nothing below this call repeats it.
    /// 5. Sends [`CellWrite::hints`] with the write or after it, or not at all.
    async fn write(
        &self,
        over: &Self::Connection,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<Option<WrittenCell>, CellError>;

    /// Puts a place into a cell, whatever the cell has, and answers the cell as it is then; `None` if the
    /// cell does not take it, or the store cannot. It gives no right: the client that writes the cell next
    /// reads it as the end of the queue.
    ///
    /// # Contract
    /// 1. Compares nothing that others write to the cell, and waits for the client that has the cell locked:
    ///    however often others write, it comes through after a few of them (L6). It waits for each of them
    ///    for a moment only.
    /// 2. The cell takes it unless it [is long](Newcomer::long) or full, or has the owner already, or `until`
    ///    has passed.
    /// 3. The version is the next one, so that no write comes through that was made without it (L7).
    async fn enqueue(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        Ok(None)
    }

    /// Every cell whose name starts with `prefix` and that may be held or waited for, by name.
    async fn list(&self, over: &Self::Connection, prefix: &str) -> Result<Vec<Listed>, CellError>;

    /// An error in this store's own words.
    fn error(&self, trouble: VerbError) -> BackendError;

    /// Findings about the server and our assumptions.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(Vec::new())
    }

    /// Notifies an owner of another process, beside any write.
    async fn notify(&self, _over: &Self::Connection, _hint: Hint) -> Result<(), CellError> {
        Ok(())
    }

    /// True if a hint to this owner is delivered inside this process.
    fn reaches(&self, hint: Hint) -> bool;

    /// Delivers a hint inside this process.
    fn deliver(&self, hint: Hint);

    /// A stream of the hints for owners of a process.
    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream>;

    /// Reads many cells; one answer for each, in order, and none for a cell that is not there.
    async fn read_many(
        &self,
        over: &Self::Connection,
        names: &[&LockName],
    ) -> Result<Vec<Option<CellReading>>, CellError> {
        let one = |name| async move { self.read(over, name, &ReadRequest::default()).await.map(Some) };
        try_join_all(names.iter().copied().map(one)).await
    }

    /// Writes many cells, each on its own as [`write`](Self::write) does; one answer for each, in order. All
    /// have the same [`CellWrite::within`], none has hints or waits.
    async fn write_many(
        &self,
        over: &Self::Connection,
        writes: &[(&LockName, CellWrite<'_>)],
    ) -> Result<Vec<Option<WrittenCell>>, CellError> {
        // All of them are answered before one fails: what was sent is known until it is answered (L9).
        let answers = join_all(writes.iter().map(|(name, write)| self.write(over, name, write))).await;
        let is_broken = |answer: &Result<_, CellError>| matches!(answer, Err(CellError::Broken(_)));
        let (broken, rest): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_broken);
        // If the outcome of one is unknown, that of the request is.
        broken.into_iter().chain(rest).collect()
    }

    /// Where places of waiters are kept beside the cells, where that can be: only there a reading has an
    /// [`Overflow`].
    fn beside(&self) -> Option<&dyn PlacesBeside<Self::Connection>> {
        None
    }
}

/// Places of waiters beside the cells of a store: a waiter has one there without comparing anything.
#[async_trait]
pub trait PlacesBeside<C>: Send + Sync {
    /// Puts a place beside the cell, behind all others of this lock, or writes the one anew that has the key;
    /// answers its key. `None` if the cell does not begin with [`NewPlace::behind`], or no place has the key.
    ///
    /// # Contract
    /// 1. Keys of one lock grow, compared as text, in the order in which places were put there (L7).
    /// 2. If `may_be_there`, a place of this owner that is there already is answered instead.
    /// 3. Looks at the cell in the step that puts it there, as well as the store can: where these are two
    ///    steps, two that ask at the same moment may change places.
    async fn put(&self, over: &C, name: &LockName, place: &NewPlace<'_>)
    -> Result<Option<String>, CellError>;

    /// Takes a place away; false if it is not there.
    async fn remove(&self, over: &C, name: &LockName, place: &OldPlace<'_>) -> Result<bool, CellError>;

    /// All places of a lock, in their order.
    async fn all(&self, over: &C, name: &LockName) -> Result<Vec<String>, CellError>;
}

/// What a lock in a cell promises, in whatever store. A store adds what a restart and a failover do, its reach,
/// and how waiters are woken.
pub fn promises(backend: &'static str) -> Promises {
    let mut promises = Promises::least(backend);
    promises.sharing = Sharing::Counted;
    promises.order = Order::Fifo;
    promises.absent = Absent::Passed;
    promises.minting = Minting::Entry;
    promises.end = EndOfGrant::Ttl;
    promises.memo = Memos::Kept;
    promises.ttl_grain = TOLERANCE;
    promises
}

/// Between the name of a lock and the key of a place beside it, in a store that keeps both in one table: no name of a
/// lock has it.
pub const BESIDE: char = '\u{1}';
/// Behind the name of a lock: no place of it has a name that is greater.
pub const END: char = '\u{2}';

/// Rows of name, text and time by name, each lock before the places [`BESIDE`] it, as a list of locks. A row of no lock is
/// left out.
pub fn listed(rows: impl IntoIterator<Item = (String, String, Duration)>) -> Vec<Listed> {
    let mut list: Vec<Listed> = Vec::new();
    for (name, state, now) in rows {
        if let Some((lock, _)) = name.split_once(BESIDE) {
            if let Some(last) = list.last_mut().filter(|last| last.name.as_str() == lock) {
                last.places.push(state);
            }
            continue;
        }
        let Ok(name) = LockName::new(name) else { continue };
        list.push(Listed { name, state, places: Vec::new(), now });
    }
    list
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Connected<C> {
    /// What requests travel over.
    pub over: C,
    /// Hints of other processes reach this handle; where they do not, waiters ask more often.
    pub is_notified: bool,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// To extend or release what is held.
    Keep,
    /// To acquire or inspect a lock: the store must be one of ours.
    Use,
    /// To wait for a lock as well: from here on hints arrive, where they can (hazard 31).
    Wait,
}

/// How a cell is read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
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
pub struct CellReading {
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
pub struct CellWrite<'a> {
    /// The version and the text that the cell must have. It gets the next version.
    pub on: (i64, &'a str),
    /// The text that it gets, in ASCII.
    pub state: &'a str,
    /// It has a holder or a waiter: the cell must be listed, and not be deleted.
    pub is_busy: bool,
    /// Between which two times the store's clock must be.
    pub within: (Duration, Duration),
    /// How long it waits for the client that has the cell locked, where cells can be locked.
    pub patience: Patience,
    /// The owners that it notifies; all of other processes.
    pub hints: &'a [Hint],
    /// Places beside the cell that are deleted with it, but for those that another client has locked.
    pub gone: &'a [String],
    /// Only if no other place stands beside the cell.
    pub is_last: bool,
}

/// How long a write waits for the client that has the cell locked.
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
pub struct NewCell {
    /// Its first one.
    pub version: i64,
    /// The store's clock, since the Unix epoch.
    pub at: Duration,
    /// The cell is what was to be made.
    pub is_ours: bool,
}

/// A write that was stored.
#[derive(Clone, Copy, Debug)]
pub struct WrittenCell {
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
    /// How the text of a cell begins that takes none; with the last place that a cell has room for, this
    /// takes the place of the first character.
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
    /// Of one that is there, and is written anew.
    pub key: Option<&'a str>,
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
#[derive(Clone, Debug)]
pub enum CellError {
    /// Another client was faster, and nothing happened: read again (hazard 56).
    Overtaken,
    /// Another transaction has the cell locked for longer than the write waits; nothing was written.
    Locked,
    /// The connection broke. A write may have happened.
    Broken(BackendError),
    /// The store refused, and nothing happened (L9).
    Refused(BackendError),
}

impl CellError {
    /// Where nothing is read again.
    pub fn into_error(self, words: impl FnOnce(VerbError) -> BackendError) -> BackendError {
        match self {
            Self::Overtaken => words(VerbError::Overtaken),
            Self::Locked => words(VerbError::Locked),
            Self::Broken(error) | Self::Refused(error) => error,
        }
    }
}

/// What went wrong between a verb and its cell.
#[derive(Debug)]
pub enum VerbError {
    /// Others were faster every time. `NotApplied`.
    Overtaken,
    /// It was there, it is not any more, and it is not known whether our own request ended it. `Unknown`.
    Unsettled,
    /// Another client has the cell locked for longer than a commit takes. `NotApplied`.
    Locked,
    /// The cell stays as it is whatever is written, though no other client writes to it. `NotApplied`.
    Swallowed,
    /// The cell has something else than what was written to it. `Unknown`.
    Altered,
    /// The ledger refused, or is none. `NotApplied`.
    Ledger(LedgerError),
}
