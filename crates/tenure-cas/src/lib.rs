#![doc = include_str!("../README.md")]

mod beside;
mod cell;
mod encode;
mod memory;
mod step;
mod tries;
mod turns;
mod verbs;
mod words;

pub use cell::{
    BESIDE, Cell, CellError, CellReading, CellWrite, Connected, ConnectionPurpose, END, Listed, NewCell,
    NewPlace, Newcomer, OPENS, OPENS_AFTER, OldPlace, Overflow, Patience, PlacesBeside, ReadRequest, SLOTS,
    ShownOwner, Until, VerbError, WriteAnswer, WrittenCell, listed, promises, slot_row, stop_row,
};
pub use encode::{decode, encode};
pub use memory::TOLERANCE;
pub use step::Locks;
pub use words::TableWords;
