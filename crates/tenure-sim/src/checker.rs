//! The checker: whether a history keeps the laws. It is pure: it knows the events and what the world claims, nothing else.
//!
//! | Law | How it is checked | Where |
//! |---|---|---|
//! | L1 | the intervals of true time in which guards report their leases as held; an entry counts even if its guard already reports the loss; at no instant more permits than the smallest limit; after a run of a job that counts, no other run starts within its interval, and n intervals hold at most n + 1 runs where runs may begin early | everywhere |
//! | L2 | per server and lock, tokens grow in the order of the server's answers; no two entries share a token, and each has one that was granted to its owner; tokens of entries that exclude each other grow in the order of entry, and the resource refuses no holder that treats its lease as held | everywhere; order of entry and refusals: within the assumptions |
//! | L3 | at the resource, after another grant has written, an earlier one is never accepted again; on one server also: accepted grants follow the order in which they were minted; in the database of the locks: no transaction of an owner is committed after a later grant | everywhere |
//! | L4 | a release, renewal or raise shortens or ends no other owner's lease on the server; the server takes a memo only from a holder, and not with a smaller token than that of the memo before | everywhere |
//! | L5 | a guard that has reported the loss never reports that it is held; a renewal on the server makes no holder | everywhere |
//! | L6 | after the last fault every waiter enters within the bound of S7.4 and none fails; over a quorum, where no order is promised, some waiter does | within the assumptions |
//! | L7 | a grant goes to the first of the queue, and to no other owner while there is a queue; waiters of one process acquire in the order in which they asked, and share a lease as often and as long as is promised; mutexes only; one other process passes a waiter a few times at most before it acquires | nothing goes wrong; the queue: one server; passing: where one program of each process asks |
//! | L8 | long after the last program has left, nothing is held and no place kept anywhere | within the assumptions |
//! | L9 | a claim or renewal that failed as `NotApplied` did nothing on any server; an owner that a store of cells reported as gone is not granted the lock later; a release that returned `Released` removed the lease (on a quorum), or passed it on to a waiter that entered or left; a memo that the store acknowledged is seen by later reads | everywhere |
//!
//! Not checkable here: L3 for readers, which raise no mark; L8's "usually immediately", a matter of speed; `break`.

use std::fmt;

use crate::{
    clockwork::Micros,
    history::{Event, What},
};

mod belief;
mod memos;
mod progress;
mod tokens;
mod truth;

/// The laws of docs/evidence/laws.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
#[expect(missing_docs, reason = "their names are in docs/evidence/laws.md")]
pub enum Law {
    L1,
    L2,
    L3,
    L4,
    L5,
    L6,
    L7,
    L8,
    L9,
}

impl Law {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::L1, Self::L2, Self::L3, Self::L4, Self::L5, Self::L6, Self::L7, Self::L8, Self::L9];
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A law that a history broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub law: Law,
    /// When, in true time.
    pub at: Micros,
    /// How.
    pub what: String,
}

/// What a world claims of its histories.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// The store is a quorum of servers.
    pub is_quorum: bool,
    /// How many servers there are.
    pub nodes: usize,
    /// The plan is within the assumptions.
    pub is_within: bool,
    /// Nothing goes wrong: L7 can be checked.
    pub is_calm: bool,
    /// Programs ask in classes.
    pub has_classes: bool,
    /// Each process has one program, which asks for the lock again and again.
    pub is_hot: bool,
    /// A request that arrives too late is not applied.
    pub bars_late: bool,
    /// Programs take several locks, one after the other, before they enter.
    pub takes_several: bool,
    /// How long a waiter may wait after the last fault.
    pub bound: Micros,
}

/// The laws that a history broke, in the order of the laws.
pub fn judge(events: &[Event], claims: &Claims) -> Vec<Violation> {
    let mut found = Vec::new();
    // A3: what a store forgot is no fault of the layers above it. The resource refuses the former holder.
    let forgotten = belief::forgotten(events);
    let tenures: Vec<_> =
        belief::tenures(events).into_iter().filter(|tenure| !forgotten.contains(&tenure.owner)).collect();
    belief::exclusion(&tenures, &mut found);
    belief::finality(events, &mut found);
    tokens::minted(events, &mut found);
    tokens::granted(events, &mut found);
    tokens::entered(events, claims, &forgotten, &mut found);
    tokens::fenced(events, claims, &mut found);
    tokens::committed(events, &mut found);
    if claims.is_within {
        tokens::refused(events, &tenures, &mut found);
        progress::liveness(events, claims, &mut found);
        progress::leftovers(events, &mut found);
    }
    if claims.is_calm {
        progress::turns(events, &mut found);
        if !claims.is_quorum {
            // The places in a cell stay ahead of those next to it.
            match claims.has_classes {
                true if claims.bars_late => {}
                true => progress::order_of_classes(events, &mut found),
                false => progress::order(events, &mut found),
            }
            if claims.is_hot {
                progress::passed(events, &mut found);
            }
        }
    }
    memos::guarded(events, &mut found);
    memos::intervals(events, &mut found);
    memos::seen(events, &mut found);
    truth::harmless(events, &mut found);
    truth::outcomes(events, claims, &mut found);
    found.sort_by_key(|violation| (violation.law, violation.at));
    found
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.6} s: {}", self.law, seconds(self.at), self.what)
    }
}

fn seconds(at: Micros) -> f64 {
    // For display only: a world lasts some minutes.
    std::time::Duration::from_micros(at).as_secs_f64()
}

fn broken(law: Law, at: Micros, what: impl Into<String>) -> Violation {
    Violation { law, at, what: what.into() }
}

/// When the last fault ended, and when programs were ended.
fn phases(events: &[Event]) -> Option<(Micros, Micros)> {
    let healed = events.iter().find(|event| event.what == What::Healed)?.at;
    let closed = events.iter().find(|event| event.what == What::Closed)?.at;
    Some((healed, closed))
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
