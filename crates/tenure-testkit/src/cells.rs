//! Cells in memory: the smallest store that can compare and set, for `tenure-cas` and the simulation.

mod store;
mod value;

pub use store::{CellStore, words};
pub use value::Cells;
