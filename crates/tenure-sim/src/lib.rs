//! Tenure in simulated worlds: one seed, one history, checked against the laws of docs/evidence/laws.md.
//!
//! The worlds run the product's own code: the machines, the engine, the ledger, the quorum of Redlock and the rule of the
//! restart guard. What is simulated is below them: time, the network, servers that stop, forget and are replaced, and
//! processes that are stopped and killed. A history is what programs asked and received, what guards reported, what servers
//! did and what a fenced resource accepted. [`judge`] checks it against the laws.
//!
//! One seed is one history, the same on every run: no thread, no real time, no order of a hash map.

mod blocks;
mod cell;
mod chance;
mod checker;
mod client;
mod clockwork;
mod excuses;
mod history;
mod host;
mod jobs;
mod network;
mod owned;
mod plan;
mod remote;
mod run;
mod server;
mod several;
mod witness;
mod world;

pub use chance::Chance;
pub use checker::{Claims, Law, Violation, judge};
pub use clockwork::{Micros, Pid};
pub use history::{
    AskId, Event, GrantId, Leaving, LockId, NodeId, NotEntered, Patience, ReleaseAnswer, Served, What,
};
pub use plan::PlanKind;
pub use run::{Outcome, WorldKind, run};
