//! `History`: what happened in a world, in the order of true time. All that the checker knows.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Mutex,
};

use tenure_core::{LockName, Outcome, OwnerId, locked};

use crate::clockwork::{Micros, Pid};

/// A machine of clients: its process may be killed and another one started.
pub(crate) type Machine = usize;

/// Which lock of the world, times 256, and which slot of it: tokens of two slots cannot be compared.
pub type LockId = u16;
/// Which acquisition, counted through the world.
pub type AskId = usize;
/// Which grant that a program entered with, counted through the world.
pub type GrantId = usize;
/// Which server.
pub type NodeId = usize;

/// The number of a lock: names are single letters, perhaps with `#` and the number of a slot behind them.
pub(crate) fn lock_id(name: &LockName) -> LockId {
    let letter = name.as_str().bytes().next().unwrap_or(b'a').saturating_sub(b'a');
    let slot = name.as_str().split('#').nth(1).and_then(|slot| slot.parse::<u8>().ok());
    u16::from(letter) * 256 + u16::from(slot.unwrap_or(0))
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// When, in true time.
    pub at: Micros,
    /// What.
    pub what: What,
}

/// How long a program is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Asks once.
    None,
    /// Until it is let in.
    Endless,
    /// So long, by the caller.
    Some(Micros),
}

/// Why a program was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotEntered {
    /// Somebody else holds it, or did all the time.
    Busy,
    /// The program dropped the acquisition, or was killed.
    GaveUp,
    /// The store failed.
    Failed(bool),
}

/// How a program gave up what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// By a release that it waits for.
    Released,
    /// By dropping the guard.
    Dropped,
    /// It was killed.
    Killed,
}

/// What a release was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseAnswer {
    /// It was there and has left.
    Released,
    /// It was lost before.
    AlreadyLost,
    /// Nobody knows.
    Unknown,
}

/// What a server did for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Served {
    /// It holds, with tokens from `first` to `last`.
    Granted {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
    /// It has a place; with a turn or only to be woken.
    Queued {
        /// It will be made holder.
        has_turn: bool,
    },
    /// Busy.
    Refused,
    /// It has left; false if it was not there.
    Left(bool),
    /// Its lease was extended; false if it does not hold.
    Renewed(bool),
    /// Its memo was taken, while it held or not, and over one of a larger token or not.
    Noted {
        /// It held with a token.
        is_holder: bool,
        /// The one that was there has a larger token.
        was_later: bool,
    },
    /// The counter was raised so far for it.
    Raised(u64),
    /// Its lease was made anew by a renewal, although it did not hold.
    Recreated,
    /// It lost its lease, or a part of it, by a release, renewal or raise of this other one.
    Robbed(OwnerId),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are called what they are")]
pub enum What {
    /// A program asks for a lock; its process has a queue for it, or each of its waiters has a place of its own; and may keep the
    /// lease when it is released.
    Asked {
        ask: AskId,
        process: Pid,
        lock: LockId,
        patience: Patience,
        limit: u32,
        is_queue: bool,
        keeps: bool,
    },
    /// It was let in, with tokens from `token` to `last`.
    Entered {
        ask: AskId,
        grant: GrantId,
        process: Pid,
        lock: LockId,
        owner: OwnerId,
        token: u64,
        last: u64,
        limit: u32,
    },
    /// It was not.
    NotEntered { ask: AskId, why: NotEntered },
    /// The guard says that it may be believed until then, in true time, if it is not renewed any more.
    Believes { grant: GrantId, until: Micros },
    /// The guard says that the lease is lost.
    Lost { grant: GrantId },
    /// The guard says that the lease is held although it had said that it was lost.
    Resurrected { grant: GrantId },
    /// The program ends its tenure.
    Left { grant: GrantId, how: Leaving },
    /// The release was answered.
    Answered { grant: GrantId, answer: ReleaseAnswer },
    /// A write arrived at the resource.
    Wrote { grant: GrantId, lock: LockId, token: u64, is_accepted: bool, sent_at: Micros },
    /// A server did something for an owner; `again`: because a message came twice, whose answer nobody waits for.
    Served { node: NodeId, lock: LockId, owner: OwnerId, did: Served, again: bool },
    /// A claim of this owner was sent to the store.
    Claimed { owner: OwnerId },
    /// It was answered.
    ClaimAnswered { owner: OwnerId },
    /// It failed.
    ClaimFailed { owner: OwnerId, outcome: Outcome },
    /// A lease of this owner is about to be renewed.
    Renewing { owner: OwnerId },
    /// It failed.
    RenewFailed { owner: OwnerId, outcome: Outcome },
    /// The store said of this owner that it has left, or was not there.
    Gone { owner: OwnerId },
    /// A server came back without the lease of this owner, or with an older one (A3).
    Forgotten { lock: LockId, owner: OwnerId },
    /// Something is still there long after everybody has left.
    Leftover { node: NodeId, lock: LockId, holders: usize, places: usize },
    /// Something is there of an owner whose process was told that all it had left is released.
    LeftAfterDrain { node: NodeId, lock: LockId, owner: OwnerId },
    /// A job begins that is to run once per interval.
    JobStarted { run: AskId, early: Micros },
    /// It succeeded, and is said to count.
    JobCounted { run: AskId },
    /// The store has answered for a memo under this token, to be kept until then at least.
    MemoLeft { lock: LockId, token: u64, until: Micros },
    /// A look that was asked for then shows the memo of this token, or none.
    MemoSeen { lock: LockId, token: Option<u64>, asked_at: Micros },
    /// A fault of the plan.
    Fault(String),
    /// All faults are over.
    Healed,
    /// Programs stop asking.
    Closed,
}

/// The events of a world so far.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<Event>>);

impl Log {
    /// Notes an event.
    pub(crate) fn note(&self, at: Micros, what: What) {
        locked(&self.0).push(Event { at, what });
    }

    /// All of them.
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut locked(&self.0))
    }
}

/// A number that two histories share only if they are the same.
pub(crate) fn fingerprint(events: &[Event]) -> u64 {
    let mut hasher = DefaultHasher::new();
    events.hash(&mut hasher);
    hasher.finish()
}
