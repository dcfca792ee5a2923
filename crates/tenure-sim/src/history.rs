//! `History`: what happened in a world, in the order of true time. The checker knows nothing else.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Mutex,
};

use tenure_core::{LockName, Outcome, OwnerId, Priority, locked};

use crate::clockwork::{Micros, Pid};

/// A machine of clients. Its process may be killed and another one started.
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
    /// Until it acquires.
    Endless,
    /// For this time, set by the caller.
    Some(Micros),
}

/// Why a program did not acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotEntered {
    /// Another owner holds it, or held it all the time.
    Busy,
    /// The program dropped the acquisition, or was killed.
    GaveUp,
    /// The store failed. True: nothing was applied.
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
    /// It was left to another process, and has expired there.
    Expired,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseAnswer {
    /// The lease was there and is released.
    Released,
    /// The lease was lost before.
    AlreadyLost,
    /// It is unknown what happened.
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
        /// The class of its claim; the default where the server does not see it.
        priority: Priority,
    },
    /// It has a place, with a turn or only for a wakeup.
    Queued {
        /// It will be made holder.
        has_turn: bool,
        /// Its class.
        priority: Priority,
    },
    /// Busy.
    Refused,
    /// It has left; false if it was not there.
    Left(bool),
    /// Its lease was extended; false if it does not hold.
    Renewed(bool),
    /// The server took its memo.
    Noted {
        /// It held with a token.
        is_holder: bool,
        /// The memo that was there has a larger token.
        was_later: bool,
    },
    /// The counter was raised to this value for it.
    Raised(u64),
    /// A renewal made its lease again, although it did not hold.
    Recreated,
    /// It lost its lease, or a part of it, by a release, renewal or raise of this other owner.
    Robbed(OwnerId),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "fields are called what they are")]
pub enum What {
    /// A program asks for a lock. Its process has a queue for the lock, or each of its waiters has its own place. The
    /// process may keep the lease when it is released.
    Asked {
        ask: AskId,
        process: Pid,
        lock: LockId,
        patience: Patience,
        limit: u32,
        is_queue: bool,
        keeps: bool,
    },
    /// The program acquired, with tokens from `token` to `last`.
    Entered {
        ask: AskId,
        grant: GrantId,
        process: Pid,
        lock: LockId,
        owner: OwnerId,
        token: u64,
        last: u64,
        limit: u32,
        permits: u32,
    },
    /// It did not acquire.
    NotEntered { ask: AskId, why: NotEntered },
    /// The guard reports that the lease is valid until then, in true time, if it is not renewed any more.
    Believes { grant: GrantId, until: Micros },
    /// The guard reports that the lease is lost.
    Lost { grant: GrantId },
    /// The guard reports that the lease is held, after it had reported that it was lost.
    Resurrected { grant: GrantId },
    /// The program ends its tenure.
    Left { grant: GrantId, how: Leaving },
    /// The release was answered.
    Answered { grant: GrantId, answer: ReleaseAnswer },
    /// A write arrived at the resource.
    Wrote { grant: GrantId, lock: LockId, token: u64, is_accepted: bool, sent_at: Micros },
    /// A transaction did not find this grant as the owner.
    NotOwner { grant: GrantId, lock: LockId, token: u64 },
    /// A transaction that had found this grant as the owner was committed.
    Committed { grant: GrantId, lock: LockId, token: u64 },
    /// A server did something for an owner. `again`: because of a repeated message, for whose answer no process waits.
    Served { node: NodeId, lock: LockId, owner: OwnerId, did: Served, again: bool },
    /// A claim of this owner was sent to the store.
    Claimed { owner: OwnerId },
    /// The claim was answered.
    ClaimAnswered { owner: OwnerId },
    /// The claim failed.
    ClaimFailed { owner: OwnerId, outcome: Outcome },
    /// A lease of this owner is about to be renewed.
    Renewing { owner: OwnerId },
    /// The renewal failed.
    RenewFailed { owner: OwnerId, outcome: Outcome },
    /// The store reported that this owner has left, or was not there.
    Gone { owner: OwnerId },
    /// A server came back without the lease of this owner, or with an older one (A3).
    Forgotten { lock: LockId, owner: OwnerId },
    /// Something is still there long after all programs have left.
    Leftover { node: NodeId, lock: LockId, holders: usize, places: usize },
    /// A lease or place of an owner is there, after `flush` reported to its process that all it had left is released.
    LeftAfterDrain { node: NodeId, lock: LockId, owner: OwnerId },
    /// A job begins that is to run once per interval.
    JobStarted { run: AskId, early: Micros },
    /// The run succeeded, and was reported as one that counts.
    JobCounted { run: AskId },
    /// The store has acknowledged a memo under this token, to be kept until then at least.
    MemoLeft { lock: LockId, token: u64, until: Micros },
    /// A read that was sent then shows the memo of this token, or none.
    MemoSeen { lock: LockId, token: Option<u64>, asked_at: Micros },
    /// A fault of the plan.
    Fault(String),
    /// All faults have ended.
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
