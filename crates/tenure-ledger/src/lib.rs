//! The state of one lock as a pure value: its holders, its FIFO queue, its fence.
//!
//! [`Ledger::claim`], [`Ledger::renew`], [`Ledger::release`] and [`Ledger::break_lock`] take the time and answer
//! with a [`Change`]: what to tell the caller, whom to wake, whether anything must be stored. There is no I/O and
//! no clock here. A store keeps a ledger wherever it likes and runs one verb per atomic step; the backends that
//! speak to their server in scripts are tested against this one answer by answer.

mod claim;
mod error;
mod fence;
mod front;
mod handoff;
mod rules;
mod state;
mod verbs;

pub use error::LedgerError;
pub use rules::{Floor, Rules};
pub use state::{Change, Ledger, Place, Unseen};
