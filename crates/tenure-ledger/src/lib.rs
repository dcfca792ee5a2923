//! The state of one lock as a pure value: its holders, its FIFO queue, its last token.
//!
//! [`Ledger::claim`], [`Ledger::renew`], [`Ledger::release`], [`Ledger::note`] and [`Ledger::break_lock`] take the time and answer with a
//! [`Change`]: the answer to the caller, the owners to wake, and whether the new state must be stored. There is no I/O and
//! no clock here. A store keeps a ledger in a row, a key or in memory, and runs one verb in one atomic step. Backends
//! that run scripts in their server are compared with it in tests, answer by answer.

mod ledger;
mod rules;

pub use ledger::{Change, Exposed, Ledger, LedgerError, Place, Reliance, Unseen, proof};
pub use rules::{Floor, Rules};
