#![doc = include_str!("../README.md")]

mod backend;
mod cell;
mod locks;
mod memory;
mod snapshot;
mod text;
mod verb;

pub use cell::{
    Cell, Failure, Listed, Look, Made, NewPlace, Newcomer, OldPlace, Overflow, Patience, Purpose, Reading,
    Stored, Trouble, Until, Write,
};
pub use locks::Locks;
pub use memory::TOLERANCE;
pub use text::{decode, encode};
