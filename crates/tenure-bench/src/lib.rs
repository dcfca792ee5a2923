//! What the benchmarks share.

mod ratio;
mod rounds;

pub use ratio::{Ratio, per_call};
pub use rounds::{Rounds, Spread, jain};
