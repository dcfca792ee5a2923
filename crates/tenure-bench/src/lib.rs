//! What the benchmarks share.

mod ratio;

pub use ratio::{Ratio, per_call};
