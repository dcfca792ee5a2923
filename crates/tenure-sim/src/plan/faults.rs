//! `Fault`: something that goes wrong in a world.

use crate::{
    clockwork::Micros,
    history::{Machine, NodeId},
    network::Weather,
};

/// With what memory a server comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// All of it, as with `appendfsync always`.
    Kept,
    /// None.
    Empty,
    /// That of the last snapshot.
    Copy,
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Weather(Weather),
    Cut {
        machine: Machine,
        node: NodeId,
        until: Micros,
        is_kept: bool,
    },
    Stop {
        machine: Machine,
        until: Micros,
    },
    /// Stops the process right after it has sent something.
    StopAsking {
        machine: Machine,
        length: Micros,
    },
    Kill {
        machine: Machine,
        back_after: Micros,
    },
    StepClient {
        machine: Machine,
        by: i64,
    },
    StepServer {
        node: NodeId,
        by: i64,
    },
    /// From here on, what a snapshot or a replica has is as old as this.
    Copy {
        node: NodeId,
    },
    Restart {
        node: NodeId,
        down: Micros,
        memory: Memory,
        loads_history: bool,
    },
    Promote {
        node: NodeId,
        down: Micros,
    },
    EndBacklog {
        node: NodeId,
    },
    Flush {
        node: NodeId,
    },
    /// The replica of this master receives nothing from it any more.
    CutReplica {
        master: NodeId,
    },
    /// A replica becomes master; the old master goes on.
    TakeOver {
        old: NodeId,
        new: NodeId,
    },
    /// A former master becomes the replica of its successor.
    Demote {
        old: NodeId,
        new: NodeId,
    },
    /// New connections of this machine reach this server.
    Lead {
        machine: Machine,
        to: NodeId,
    },
    /// No client reaches it any more.
    Leave {
        node: NodeId,
    },
    /// A server is started with a backup of another one.
    Restore {
        from: NodeId,
        to: NodeId,
        loads_history: bool,
    },
    /// Until then, a trigger undoes what is written to cells.
    Undo {
        until: Micros,
    },
    /// Until then, the clock of readings is ahead by so much, or behind.
    Split {
        by: i64,
        until: Micros,
    },
    /// Until then, a stranger has every cell locked.
    Lock {
        until: Micros,
    },
    /// A snapshot of the whole machine is made.
    Keep {
        node: NodeId,
    },
    /// The machine goes back to its snapshot.
    Rewind {
        node: NodeId,
        down: Micros,
    },
}
