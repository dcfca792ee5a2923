//! `Cell`: the operations that a store needs so that its locks can be kept by comparing and setting.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use tenure_core::{
    Absent, Audience, BackendError, EndOfGrant, ErrorKind, Finding, Hint, LockName, Memos, Minting, Order,
    Outcome, OwnerId, Ownership, Priority, ProcessId, Promises, Sharing, WakeStream,
};
use tenure_ledger::LedgerError;

use crate::memory::TOLERANCE;

/// One handle to a store that keeps each lock in a cell: a version and a text, written only if both are as
/// expected. A row is one.
///
/// A cell decides nothing about locks and waits for no turn. This crate compares, decodes and trusts its answers.
/// [`read`](Self::read), [`write`](Self::write), [`list`](Self::list) and the optional methods are one request
/// each, except that `read_many` and `write_many` are one request per cell where a store has nothing better.
///
/// A clone is a handle with its own connection: one that is stuck does not stop the other.
///
/// Besides reading, writing, listing and notifying there are optional methods. Without [`enqueue`](Self::enqueue) a
/// claim may lose every race to an owner that comes again. Without [`beside`](Self::beside) each waiter writes the
/// cell that a holder writes. [`error`](Self::error) and [`diagnose`](Self::diagnose) let messages name rows.
#[async_trait]
pub trait Cell: Clone + Send + Sync + 'static {
    /// The connection for requests; `()` where there is none.
    type Connection: Send + Sync;

    /// What the store promises.
    fn promises(&self) -> Promises;

    /// The connection; a new one where there is none, or the present one is broken or stuck.
    ///
    /// # Errors
    /// Nothing was sent yet: they are always `NotApplied`.
    async fn connect(&self, purpose: ConnectionPurpose) -> Result<Connected<Self::Connection>, BackendError>;

    /// Reads a cell and the store's clock.
    ///
    /// # Contract
    /// 1. The time is one that the clock showed after the request was sent.
    // H2.2.
    /// 2. Version and text are of one moment. The result was acknowledged, or is unacknowledged for the caller as
    ///    well.
    async fn read(
        &self,
        over: &Self::Connection,
        name: &LockName,
        look: &ReadRequest,
    ) -> Result<CellReading, CellError>;

    /// Makes a cell with this text, which has no holder, if there is none; `None` if there is one, or if it was not
    /// made.
    ///
    /// # Contract
    /// 1. The version is the store's clock in µs: one that no other cell of this name has had.
    // L2.
    /// 2. The time is one that the clock showed after the cell was made.
    async fn make(
        &self,
        over: &Self::Connection,
        name: &LockName,
        state: &str,
    ) -> Result<Option<NewCell>, CellError>;

    /// Writes a cell if it is unchanged.
    ///
    /// # Contract
    /// 1. Compares version *and* text in the atomic step that writes: after a failover another history may have the
    ///    same version.
    /// 2. Writes only if the store's clock is within [`CellWrite::within`] in that step. It is enough if it was
    ///    when the write began to wait for the client that has the cell locked, and the cell is unchanged.
    /// 3. Returns [`CellError::Broken`] unless the store reported the outcome; a success is as durable as the store
    ///    promises.
    // A3.
    /// 4. An answer that is not [`Done`](WriteAnswer::Done) may have the cell as it is now, read as
    ///    [`read`](Self::read) reads it, without places next to it. It saves that request.
    /// 5. A write that was answered does not come again: no layer below this call repeats it.
    /// 6. Sends [`CellWrite::hints`] with the write or after it, or not at all.
    async fn write(
        &self,
        over: &Self::Connection,
        name: &LockName,
        write: &CellWrite<'_>,
    ) -> Result<WriteAnswer, CellError>;

    /// Puts a place into a cell, whatever the content, and returns the new cell; `None` if the cell does not take
    /// it, or the store cannot. The place gives no right: the client that writes the cell next reads it as the end
    /// of the queue.
    ///
    /// # Contract
    /// 1. Compares nothing that others write to the cell, and waits for the client that has the cell locked:
    ///    however often others write, it succeeds after a few of them. It waits for each of them for a moment only.
    // L6.
    /// 2. The cell takes it unless it [is long](Newcomer::long) or full, or has the owner already, or the store's clock is
    ///    not [within](Newcomer::within).
    /// 3. The version is the next one, so that no write that was made without it succeeds.
    // L7.
    async fn enqueue(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _place: &Newcomer<'_>,
    ) -> Result<Option<CellReading>, CellError> {
        Ok(None)
    }

    /// What a transaction of the store runs to rely on the owner whose text is in this row; it may stand still for `rest` at
    /// most. An error where that is not possible.
    ///
    /// # Contract
    /// 1. It finds the row if and only if it has that text, and locks it until the transaction ends.
    async fn ownership(
        &self,
        _over: &Self::Connection,
        _row: &str,
        _text: &str,
        _rest: Duration,
    ) -> Result<Ownership, CellError> {
        let message = "transactions of this store cannot rely on an owner";
        Err(CellError::Refused(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message)))
    }

    /// No transaction begins to rely any more on the owner with this text, which this write would end; those that do already have
    /// its row locked.
    ///
    /// # Contract
    /// 1. Does nothing unless the cell and the time are as the write requires.
    /// 2. Does not wait. It fails if it is not possible now: then a transaction may still begin to.
    /// 3. [`ownership`](Self::ownership) does not find the row from then on, except in a transaction that reads an older state.
    // L6: transactions of one lease that overlap would keep its row locked.
    async fn stop_relying(
        &self,
        _over: &Self::Connection,
        _name: &LockName,
        _write: &CellWrite<'_>,
        _text: &str,
    ) -> Result<(), CellError> {
        Ok(())
    }

    /// The sessions whose transactions may rely on an owner, for people: the oldest first. Empty if that is not known.
    async fn relying(&self, _over: &Self::Connection) -> String {
        String::new()
    }

    /// Every cell whose name starts with `prefix` and that may be held or waited for, by name.
    async fn list(&self, over: &Self::Connection, prefix: &str) -> Result<Vec<Listed>, CellError>;

    /// An error in the terms of this store.
    fn error(&self, trouble: VerbError) -> BackendError;

    /// Findings about the server and the conditions that the locks need.
    async fn diagnose(&self) -> Result<Vec<Finding>, BackendError> {
        Ok(Vec::new())
    }

    /// Makes the table of the locks if there is none, for an operator; returns how long no lock is made in it.
    async fn prepare(&self) -> Result<Duration, BackendError> {
        let message = "this store has no table that must be made";
        Err(BackendError::new(ErrorKind::Unsupported, Outcome::NotApplied, message))
    }

    /// Notifies an owner of another process, without a write.
    async fn notify(&self, _over: &Self::Connection, _hint: Hint) -> Result<(), CellError> {
        Ok(())
    }

    /// True if a hint to this owner is delivered inside this process.
    fn reaches(&self, hint: Hint) -> bool;

    /// Delivers a hint inside this process.
    fn deliver(&self, hint: Hint);

    /// A stream of the hints for owners of a process.
    fn listen(self: &Arc<Self>, process: ProcessId, audience: Audience) -> Box<dyn WakeStream>;

    /// Reads many cells; one answer for each, in order, and `None` for a cell that does not exist.
    async fn read_many(
        &self,
        over: &Self::Connection,
        names: &[&LockName],
    ) -> Result<Vec<Option<CellReading>>, CellError> {
        let one = |name| async move { self.read(over, name, &ReadRequest::default()).await.map(Some) };
        try_join_all(names.iter().copied().map(one)).await
    }

    /// Writes many cells, each separately as [`write`](Self::write) does; one answer for each, in order. All have
    /// the same [`CellWrite::within`], none has hints or waits.
    async fn write_many(
        &self,
        over: &Self::Connection,
        writes: &[(&LockName, CellWrite<'_>)],
    ) -> Result<Vec<WriteAnswer>, CellError> {
        // All of them are answered before one fails, because the outcome of a write is known only by its answer
        // (L9).
        let answers = join_all(writes.iter().map(|(name, write)| self.write(over, name, write))).await;
        let is_broken = |answer: &Result<_, CellError>| matches!(answer, Err(CellError::Broken(_)));
        let (broken, rest): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_broken);
        // If the outcome of one is unknown, so is that of the request.
        broken.into_iter().chain(rest).collect()
    }

    /// Keeps places of waiters next to the cells, where that is possible: only there a reading has an [`Overflow`].
    fn beside(&self) -> Option<&dyn PlacesBeside<Self::Connection>> {
        None
    }
}

/// Places of waiters next to the cells of a store: a waiter gets one there without a comparison.
#[async_trait]
pub trait PlacesBeside<C>: Send + Sync {
    /// Puts a place next to the cell, behind the others of its class, or rewrites the one that has the key; returns
    /// its key. `None` if the cell does not begin with [`NewPlace::behind`], no place has the key, or the store's clock is
    /// not [within](NewPlace::within).
    ///
    /// # Contract
    /// 1. Keys of one lock with the same [beginning](NewPlace::class) grow, compared as text, in the order in which places were
    ///    put there.
    // L7.
    /// 2. If `may_be_there`, a place of this owner that already exists is returned instead.
    /// 3. Checks the cell in the step that puts the place there, as well as the store can. Where these are two
    ///    steps, two owners that ask at the same moment may be in the other order.
    async fn put(&self, over: &C, name: &LockName, place: &NewPlace<'_>)
    -> Result<Option<String>, CellError>;

    /// Removes a place; false if it does not exist.
    async fn remove(&self, over: &C, name: &LockName, place: &OldPlace<'_>) -> Result<bool, CellError>;

    /// All places of a lock, in their order.
    async fn all(&self, over: &C, name: &LockName) -> Result<Vec<String>, CellError>;
}

/// The promises of a lock in a cell, in any store. A store adds the effects of a restart and a failover, its reach,
/// and how waiters are notified.
pub fn promises(backend: &'static str) -> Promises {
    let mut promises = Promises::least(backend);
    promises.sharing = Sharing::Counted;
    promises.order = Order::Fifo;
    promises.classes = true;
    promises.absent = Absent::Passed;
    promises.minting = Minting::Entry;
    promises.end = EndOfGrant::Ttl;
    promises.memo = Memos::Kept;
    promises.ttl_grain = TOLERANCE;
    promises
}

/// The beginning of the key of a place of this class. Keys of the default class begin with a digit or a letter, as those of a version
/// of Tenure that knows no class.
// L7.
pub(crate) fn class_of_keys(priority: Priority) -> &'static str {
    match priority {
        Priority::Urgent => "+",
        Priority::High => ",",
        Priority::Normal => "",
        Priority::Low => "~",
    }
}

/// Up to the end of this class: see [`class_of_keys`].
pub(crate) fn behind_class(priority: Priority) -> Until {
    match priority {
        Priority::Urgent => Until::Class(","),
        Priority::High => Until::Class("-"),
        Priority::Normal => Until::Class("~"),
        Priority::Low => Until::End,
    }
}

/// The separator between the name of a lock and the key of a place next to it, in a store that keeps both in one
/// table: no name of a lock has it.
pub const BESIDE: char = '\u{1}';
/// Appended to the name of a lock, this sorts after all its places.
pub const END: char = '\u{2}';

/// The name of a row that a client puts into a table when it makes the table, in the same step. Its version is the time
/// of the store's clock, in µs, from when locks may be made in the table. It is busy, so that no client deletes it. No
/// lock has this name, and no list shows it.
///
/// **Why that is enough (L1).** A client that finds no table cannot know whether one with leases was renamed away. A
/// new table has no lock, so the first grant of each is preceded by [`Cell::make`]. That compares the time in its own
/// step, for every client. A person who makes a table decides that no lease is in another one: the new table has no
/// such row, and no wait.
pub const OPENS: &str = "\u{1}opens";
/// How long no lock is made in a table that a client made: leases of that length may be in one that was there before.
pub const OPENS_AFTER: Duration = Duration::from_secs(10);

/// Rows of name, text and time by name, each lock before its places (see [`BESIDE`]), as a list of locks. A row
/// without a lock is left out.
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
    /// The connection itself.
    pub over: C,
    /// Hints of other processes reach this handle; where they do not, waiters ask more often.
    pub is_notified: bool,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// To extend or release a lease.
    Keep,
    /// To acquire or inspect a lock: the store must be one of Tenure.
    Use,
    /// To wait for a lock as well: from now on hints arrive, where possible.
    // Hazard 31.
    Wait,
}

/// How a cell is read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
    /// How far places next to the cell are counted.
    pub until: Until,
    /// A lock may be acquired next: creates the table if it does not exist.
    pub creates: bool,
    /// All places next to the cell are wanted, and not only the first.
    pub whole: bool,
}

/// How far places next to a cell are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Not at all.
    #[default]
    Nothing,
    /// Up to this key.
    Key(String),
    /// Up to the first key that begins with this or is behind it.
    Class(&'static str),
    /// All places of this lock.
    End,
}

impl Until {
    /// True if this key is ahead of it.
    pub fn is_behind(&self, key: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Key(own) => key < own.as_str(),
            Self::Class(bound) => key.rsplit(BESIDE).next().is_some_and(|key| key < *bound),
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
    /// Places next to the cell; `None` where there can be none.
    pub overflow: Option<Overflow>,
}

/// Places next to a cell.
#[derive(Clone, Debug, Default)]
pub struct Overflow {
    /// The first of them: key and text.
    pub first: Vec<(String, String)>,
    /// Keys of places that were emptied by a client which may not delete: the next write deletes them.
    pub emptied: Vec<String>,
    /// There are no more.
    pub is_whole: bool,
    /// The text at the key up to which places were counted.
    pub own: Option<String>,
    /// How many there are before that key.
    pub ahead: usize,
    /// This client may put the first place there. A client that cannot delete what it puts there must not. But its
    /// places go behind those that are there, as the places of all clients do: a part of the queue that is left out is
    /// not empty.
    // L7.
    pub may_begin: bool,
}

/// The content of a write.
#[derive(Clone, Copy, Debug)]
pub struct CellWrite<'a> {
    /// The version and the text that the cell must have. It gets the next version.
    pub on: (i64, &'a str),
    /// The new text, in ASCII.
    pub state: &'a str,
    /// It has a holder or a waiter: the cell must be listed, and not be deleted.
    pub is_busy: bool,
    /// The store's clock must be between these two times.
    pub within: (Duration, Duration),
    /// How long it waits for the client that has the cell locked, where cells can be locked.
    pub patience: Patience,
    /// The owners that it notifies; all are of other processes.
    pub hints: &'a [Hint],
    /// Places next to the cell that are deleted with it, except for those that another client has locked.
    pub gone: &'a [String],
    /// Only if there is no other place next to the cell.
    pub is_last: bool,
    /// What transactions find of the owner from now on.
    pub shown: Option<ShownOwner<'a>>,
}

/// The row in which transactions look for an owner, as a write leaves it.
///
/// # Contract
/// 1. It changes in the same atomic step as the cell, or neither does.
/// 2. If a transaction has the row locked, neither does, and the answer is [`WriteAnswer::Locked`], in no other case: the write
///    does not wait for it.
/// 3. A transaction that has found the text in the row has it locked until it ends.
// L1, L3.
#[derive(Clone, Copy, Debug)]
pub struct ShownOwner<'a> {
    /// The number of the row: a lock has [several](SLOTS), so that a transaction which was refused and stays open has none
    /// locked that the next owner needs.
    pub slot: u32,
    /// The text; empty if transactions find no owner there from now on.
    pub text: &'a str,
}

/// How many rows a lock has in which transactions look for its owner.
pub const SLOTS: u32 = 4;

/// The name of such a row. It sorts behind the places of the lock.
pub fn slot_row(name: &LockName, slot: u32) -> String {
    format!("{name}{END}{slot}")
}

/// The name of the row next to it, which has the text on which no transaction begins to rely any more. No transaction has it
/// locked.
pub fn stop_row(name: &LockName, slot: u32) -> String {
    format!("{name}{END}{slot}{END}")
}

/// How long a write waits for the client that has the cell locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as the store permits.
    Any,
    /// For a moment.
    Brief,
    /// Not at all.
    None,
}

/// A cell that was made.
#[derive(Clone, Copy, Debug)]
pub struct NewCell {
    /// Its first version.
    pub version: i64,
    /// The store's clock, since the Unix epoch.
    pub at: Duration,
    /// The cell has the requested content.
    pub is_ours: bool,
}

/// What became of a write.
#[derive(Clone, Debug)]
pub enum WriteAnswer {
    /// It is stored.
    Done(WrittenCell),
    /// It is not, and never will be: the cell is another one, or the store's clock was not [within](CellWrite::within).
    Changed(Option<CellReading>),
    /// It is not, and never will be: another client has the cell locked, and the write does not wait.
    Locked(Option<CellReading>),
}

impl WriteAnswer {
    /// The cell as it is now, after a write that was not stored. It is locked if it is as it must be, at a right time.
    pub fn unwritten(write: &CellWrite<'_>, reading: CellReading) -> Self {
        let is_same = write.on == (reading.version, reading.state.as_str());
        let (from, until) = write.within;
        let is_locked = is_same && (from..=until).contains(&reading.now);
        if is_locked { Self::Locked(Some(reading)) } else { Self::Changed(Some(reading)) }
    }
}

/// A write that was stored.
#[derive(Clone, Copy, Debug)]
pub struct WrittenCell {
    /// A time that the store's clock had reached when it answered.
    pub at: Duration,
    /// The cell has the written content.
    pub is_ours: bool,
}

/// A cell that may be held or waited for.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name of the lock.
    pub name: LockName,
    /// Its text.
    pub state: String,
    /// The texts of the places next to it, in their order.
    pub places: Vec<String>,
    /// The store's clock.
    pub now: Duration,
}

/// A place to be put into a cell.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// Its owner: a cell that has this owner already does not take it.
    pub owner: OwnerId,
    /// Its text, in ASCII: it is put behind the first character of the cell's.
    pub state: &'a str,
    /// The beginning of the text of a cell that takes none. When the last place for which a cell has room is added,
    /// this replaces the first character.
    pub long: &'a str,
    /// The text that a cell has once for each place.
    pub each: &'a str,
    /// How many places a cell has room for.
    pub most: usize,
    /// The store's clock must be between these two times: a place that was made from the clock of another server ends
    /// too early.
    pub within: (Duration, Duration),
}

/// A place to be put next to a cell.
#[derive(Clone, Copy, Debug)]
pub struct NewPlace<'a> {
    /// The key of an existing one, which is rewritten.
    pub key: Option<&'a str>,
    /// Its owner.
    pub owner: OwnerId,
    /// The beginning of its key: places are in the order of their keys.
    pub class: &'static str,
    /// Its text, in ASCII, which includes the owner.
    pub state: &'a str,
    /// An earlier attempt may have put it there.
    pub may_be_there: bool,
    /// The required beginning of the text of the cell.
    pub behind: &'a str,
    /// The store's clock must be between these two times.
    pub within: (Duration, Duration),
}

/// A place that may be next to a cell.
#[derive(Clone, Copy, Debug)]
pub struct OldPlace<'a> {
    /// Its owner.
    pub owner: OwnerId,
    /// Its key; empty if that is not known.
    pub key: &'a str,
    /// It may exist under another key.
    pub may_have_another: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum CellError {
    /// Another client was faster, and nothing happened: read again.
    // Hazard 56.
    Overtaken,
    /// Another transaction has the cell locked for longer than the write waits; nothing was written.
    Locked,
    /// A transaction that relies on an owner is open, and what was to be written would end its lease; nothing was.
    ReliedOn,
    /// The connection broke. A write may have happened.
    Broken(BackendError),
    /// The store refused, and nothing happened.
    // L9.
    Refused(BackendError),
}

impl CellError {
    /// For a caller that does not read again.
    pub fn into_error(self, words: impl FnOnce(VerbError) -> BackendError) -> BackendError {
        match self {
            Self::Overtaken => words(VerbError::Overtaken),
            Self::Locked => words(VerbError::Locked),
            Self::ReliedOn => words(VerbError::ReliedOn(String::new())),
            Self::Broken(error) | Self::Refused(error) => error,
        }
    }
}

/// The errors of a verb on its cell.
#[derive(Debug)]
pub enum VerbError {
    /// Others were faster every time. `NotApplied`.
    Overtaken,
    /// It existed, it no longer does, and it is not known whether this client's own request ended it. `Unknown`.
    Unsettled,
    /// Another client has the cell locked for longer than a commit takes. `NotApplied`.
    Locked,
    /// A transaction that relies on the owner is open; these sessions may have it, for people. `NotApplied`.
    ReliedOn(String),
    /// The cell stays unchanged after each write, though no other client writes to it. `NotApplied`.
    Swallowed,
    /// The cell has another content than was written to it. `Unknown`.
    Altered,
    /// The ledger refused, or is not a ledger. `NotApplied`.
    Ledger(LedgerError),
}
