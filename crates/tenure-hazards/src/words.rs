//! What a scene orders a client to do, and what the client says: one line of JSON each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a client is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Take the lock; stop in the gap of the scheme, if it has one.
    Lock { pauses: bool },
    /// Give it back; the same.
    Unlock { pauses: bool },
    /// Look whether the lock is believed in, and if so write; stop between the two.
    Write { text: String, pauses: bool },
    /// Read a number, add one, write it back; stop in between.
    Add { pauses: bool },
    /// Take the lock and give it back, and say nothing of it: the connection is made then.
    Connect,
    /// Take the lock, work for so long, give it back.
    Turn { work: Duration },
    /// Work no more, and do not give the lock back.
    Forget,
    /// Go on after a stop in a gap.
    GoOn,
}

/// What a client says, and when it was so by the clock that all processes share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) at: Duration,
    pub(crate) what: Word,
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It is connected, and waits for orders.
    Ready,
    /// It stands in a gap of the scheme.
    Gap(String),
    /// It has the lock, under this name in the store, with this token.
    Locked { alias: String, token: Option<u64> },
    /// It is about to give the lock back: it works no more.
    Leaves,
    /// Its worker has ended and gave nothing back.
    Abandons,
    /// It has given it back.
    Unlocked,
    /// It knows that it has lost the lock, and works no more: by its own clock, or because it was told.
    Lost { by_clock: bool },
    /// It does not believe any more, and so does not write.
    HeldBack,
    /// This write is on its way.
    Writes { text: String, token: Option<u64> },
    /// The number was written back, or refused.
    Added(bool),
    /// Something worth a mark on its lane.
    Notes(String),
    /// It cannot do what it was told.
    Fails(String),
}
