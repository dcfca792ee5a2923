#![doc = include_str!("../README.md")]

mod backend;
mod cell;
mod draft;
mod keyed_mutex;
mod locks;
mod memory;
mod newcomer;
mod overflow;
mod own_places;
mod renew;
mod snapshot;
mod step;
mod text;
mod unacknowledged;
mod verb;
mod view;
mod write;

pub use cell::{
    Cell, Failure, Listed, Look, Made, NewPlace, Newcomer, OldPlace, Overflow, Patience, Purpose, Reading,
    Stored, Trouble, Until, Write,
};
pub use locks::Locks;
pub use memory::TOLERANCE;
pub use text::{decode, encode};
